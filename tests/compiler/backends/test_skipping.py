"""Guarded work: what is long is skipped where its guard does not hold, what is short is masked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from tests.compiler.backends.hlo import loop_bodies, optimised

STEPS = 13


def shuffled(size: int, every: int) -> tuple[Any, Any]:
    """A vector that is shuffled at each step, in an order that changes now and then."""
    t, bound = pr.dim("t")
    order = pr.permutation(size, dims=(t,))[{t: t // every * every}]
    x = pr.recurrent((size,), ((t, bound + 1),))
    x[0] = pr.input("x", (size,))
    x[t + 1] = pr.take(x, order, 0) * 0.5 + 1.0
    return bound, {"last": x[bound], "first": pr.take(x, pr.constant(0), 0)[0 : bound + 1]}


def multiplied(size: int, every: int) -> tuple[Any, Any]:
    """A matrix that is raised to the next power now and then, and a vector that it changes at each step."""
    t, bound = pr.dim("t")
    w = pr.input("w", (size, size))
    power = pr.recurrent((size, size), ((t, bound + 1),))
    power[0] = w
    power[t + 1] = pr.where(t % every == 0, power @ w, power)
    x = pr.recurrent((size,), ((t, bound + 1),))
    x[0] = pr.input("x", (size,))
    x[t + 1] = power @ x
    return bound, {"last": x[bound], "sums": power.sum((0, 1))[0 : bound + 1]}


def recalled(size: int, every: int) -> tuple[Any, Any]:
    """Products of some steps only, kept and read by all later ones."""
    t, bound = pr.dim("t")
    w = pr.input("w", (size, size))
    x = pr.recurrent((size,), ((t, bound + 1),))
    made = pr.tanh(w @ pr.tanh(w @ pr.broadcast_to(x, (size, size))))
    x[0] = pr.input("x", (size,))
    x[t + 1] = pr.tanh(made[{t: t // every * every}].mean(0) + made[0].mean(1) * 0.1)
    return bound, {"last": x[bound], "all": x[0 : bound + 1]}


def given(size: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "w": (random.normal(size=(size, size)) / size**0.5).astype("float32"),
        "x": random.normal(size=size).astype("float32"),
    }


@pytest.mark.parametrize("every", [2, 5])
@pytest.mark.parametrize(("made", "size", "skips"), [
    (shuffled, 4096, True),
    (shuffled, 128, True),
    (shuffled, 16, False),
    (multiplied, 256, True),
    (multiplied, 8, False),
    (recalled, 128, True),
    (recalled, 8, False),
])  # fmt: skip
def test_long_work_is_skipped(made: Any, size: int, skips: bool, every: int) -> None:
    bound, outputs = made(size, every)
    arrays: Any = given(size) if made is not shuffled else {"x": given(size)["x"]}
    expected = pr.compile(outputs, backend="numpy")(bounds={bound: STEPS}, seed=3, **arrays)
    program = pr.compile(outputs)
    text = optimised(program, bounds={bound: STEPS}, seed=3, **arrays)
    found = program(bounds={bound: STEPS}, seed=3, **arrays)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=2e-4, atol=2e-4)
    assert (" conditional(" in loop_bodies(text)) == skips
