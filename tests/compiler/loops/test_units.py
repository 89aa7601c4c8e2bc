"""The parts of a program that run after each other, and how many iterations each has at some bounds."""

from __future__ import annotations

import pytest

import polyrhythm as pr
from polyrhythm.compiler.loops.units import units


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 7])
def test_every_step_is_an_iteration_of_one_loop(steps: int) -> None:
    """The borders of a stencil are loops that a run without steps does not have."""
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))
    y = pr.recurrent((), (t,))
    y[(t > 0) & (t < T - 1)] = x[t - 1] + x[t + 1]
    y[pr.otherwise] = x
    parts = list(units(pr.compile(y, backend="numpy").compiled.loops.body))
    assert len(parts) == 3
    done = [step for part in parts for step in part.iterations(lambda _: steps)]
    assert sorted(done) == list(range(steps))
