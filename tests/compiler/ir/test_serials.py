"""Symbols that the compiler makes are never the user's, nor each other's, whatever a dim is called."""

from __future__ import annotations

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.ir import serials

NUMBERED = ("COUNTER", "SEGMENT", "PROVED", "WRITER", "OTHER", "LATER")
MOST = 400_000
"""More loops than a program has."""


def test_every_purpose_has_numbers_of_its_own() -> None:
    purposes = {name: value for name, value in vars(serials).items() if name.isupper()}
    taken: set[int] = {0}
    for name, first in purposes.items():
        own = set(range(first, first - 2 * MOST, -1)) if name in NUMBERED else {first}
        assert first < 0
        assert not own & taken, name
        taken |= own


@pytest.mark.parametrize("name", ["next", "last", "value", "position", "k0", "first", "t_before"])
def test_a_dim_may_be_called_like_a_symbol_of_the_compiler(name: str) -> None:
    t, T = pr.dim(name)
    x = pr.input("x", (), (t,))
    start: pr.Tensor = x[0]
    for _ in range(24):  # loops one after the other, each with a counter of its own
        y = pr.recurrent((), (t,))
        y[0] = start
        y[t + 1] = y * 0.5 + pr.value(t) + x[t + 1]
        start = y[T - 1]
    latest = pr.recurrent((), (t,))
    latest[0] = start
    latest[t + 1] = latest[pr.max(0, t - 2) : t + 1].max(0) * 0.5 + x[t + 1]
    array = np.random.default_rng(0).normal(size=7).astype("float32")
    expected = pr.evaluate(latest, {"x": array})
    program = pr.compile(latest, backend="numpy")
    np.testing.assert_allclose(program(x=array), expected, rtol=1e-5)
    steps = np.stack(list(program.stream(over=t, x=array)))
    np.testing.assert_allclose(steps, expected, rtol=1e-5)
