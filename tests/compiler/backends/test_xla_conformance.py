"""Known faults of XLA, one test each: the code we emit for a program of that kind is right all the same.

Each test states the fault and runs a program whose natural translation would meet it, against the oracle, which uses
no XLA. Whether XLA still has a fault does not matter here: versions move, and the code must be right with all of them.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import jax
import numpy as np
import pytest

import polyrhythm as pr


def agrees(outputs: Any, inputs: dict[str, Any], bounds: dict[str, int] | None = None) -> None:
    """The compiled program and the oracle give the same."""
    have = pr.compile(outputs)(bounds=bounds, **inputs)
    want = pr.evaluate(outputs, inputs, bounds=bounds)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5), have, want)


@pytest.mark.parametrize("steps", [1, 2, 7, 8, 33])
@pytest.mark.parametrize("width", [1, 4])
def test_shift_by_one_into_the_same_buffer_then_reshape(steps: int, width: int) -> None:
    """openxla/xla 49176: a buffer updated with itself moved by one, followed by a reshape, has wrong values.

    A recurrence that reads step t and writes step t + 1 of one buffer, which is then reshaped as a whole; and a
    register that is moved by one place in every iteration.
    """
    t, T = pr.dim("t")
    x = pr.input("x", (width,), (t,))
    y = pr.recurrent((width,), ((t, T + 1),))
    y[0] = 1.0
    y[t + 1] = y + x
    row = pr.recurrent((2 * width,), ((t, T + 1),))
    row[0] = 0.0
    row[t + 1] = pr.concat([x, row.axes[: 2 * width - width]])
    flat = y[0:T].reshape(T * width)
    inputs = {"x": np.random.default_rng(0).normal(size=(steps, width)).astype("float32")}
    agrees({"y": y, "flat": flat, "row": row, "square": row[T].reshape(width, 2)}, inputs)


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 8, 9, 16, 17])
def test_nested_slices_with_starts_out_of_range(steps: int) -> None:
    """jax 40849: a dynamic slice of a dynamic slice, with starts out of range, reads the wrong element.

    Windows that begin before the first step and end after the last one, inside `where`; and windows of windows.
    """
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    before = pr.where(t >= 4, x[t - 4], 0.0)
    after = pr.where(t + 3 < T, x[t + 3], -1.0)
    trailing = pr.window(x, t, 5)
    sums = trailing.sum(0)
    twice = pr.window(sums, t, 3).sum(0)
    ahead = x[t : pr.min(T, t + 4)].sum(0)
    inputs = {"x": np.random.default_rng(0).normal(size=(steps, 3)).astype("float32")}
    agrees({"before": before, "after": after, "sums": sums, "twice": twice, "ahead": ahead}, inputs)


def test_cost_of_a_small_update_does_not_grow_with_the_buffer() -> None:
    """jax 40101: with jaxlib 0.11.1 a small update of a buffer in a loop costs as much as copying the buffer.

    One step in a buffer of 2**20 elements may not cost more than in one of 2**13; with a copy per step it would cost
    a hundred times as much. A step takes 20 ns, so most of what is allowed here is for noise.
    """
    t, T = pr.dim("t")
    K = pr.size("K", max=T)
    y = pr.recurrent((), ((t, T + 1),))
    y[0] = 1.0
    y[t + 1] = 0.5 * y + 0.25 * y[pr.max(0, t - 5000)]
    program = pr.compile(y[K])

    def seconds(steps: int) -> float:
        program(bounds={"T": steps, "K": 0})
        times = []
        for _ in range(5):
            started = time.perf_counter()
            jax.block_until_ready(program(bounds={"T": steps, "K": 0}))
            times.append(time.perf_counter() - started)
        return statistics.median(times) / steps

    assert seconds(2**20) < 8 * seconds(2**13)
