"""First steps that every step reads have a copy of their own, so that the rest of a tensor is kept in a ring."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr

STEPS = 13


def recurrence(first: int, width: int) -> tuple[pr.Tensor, pr.Bound]:
    """Each step is made of the first few and the last few before it."""
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))
    y = pr.recurrent((), (t,), name="y")
    early = y[0 : pr.min(first, t + 1)].sum(0)
    late = y[pr.max(first, t - width + 1) : t + 1].sum(0)
    y[0] = x[0]
    y[t + 1] = pr.tanh(early - 0.5 * late + x[t + 1])
    return y, T


@pytest.mark.parametrize(("first", "width"), [(2, 3), (3, 1), (4, 2)])
@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_prefix_and_a_window_keep_a_constant_number_of_steps(first: int, width: int, backend: str) -> None:
    y, T = recurrence(first, width)
    outputs = {"last": y[T - 1]}
    program = pr.compile(outputs, backend=backend)
    assert any(note.by == "separate" for note in program.compiled.notes)
    assert program.memory.kept({T: 1000}) == program.memory.kept({T: 100_000}) <= 4 * (first + width + 5)
    arrays = {"x": np.random.default_rng(0).normal(size=STEPS).astype("float32")}
    for steps in (1, 2, 5, STEPS):
        some: dict[str, Any] = {"x": arrays["x"][:steps]}
        np.testing.assert_allclose(program(**some)["last"], pr.evaluate(outputs, some)["last"], rtol=1e-5)


def test_nothing_is_copied_where_all_steps_are_kept_anyway() -> None:
    y, _ = recurrence(2, 3)
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))
    z = pr.recurrent((), (t,))
    z[0] = x[0]
    z[t + 1] = z[0] + z[0 : t + 1 : 2].sum(0)
    for output in (y, z[T - 1]):
        notes = pr.compile({"out": output}, backend="numpy").compiled.notes
        assert not any(note.by == "separate" for note in notes)
