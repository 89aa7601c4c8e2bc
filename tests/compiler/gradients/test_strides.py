"""Gradients of ranges with a stride sum over the steps that read a point, and over no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.loops.ir import For, walk
from tests.compiler.gradients.differences import check

t, T = pr.dim("t")
x = pr.input("x", (), (t,), "float64")
w = pr.input("w", (), (t,), "float64")

READS: dict[str, Callable[[], pr.Tensor]] = {
    "past, same remainder": lambda: (x[t % 3 : t + 1 : 3] ** 2).sum(0),
    "past, even steps": lambda: (x[0 : t + 1 : 2] ** 2).sum(0),
    "past, another remainder": lambda: (x[(t + 1) % 3 : t + 1 : 3] ** 2).sum(0),
    "past, backwards": lambda: (x[t : (t % 2) - 1 : -2] * (1.0 + pr.arange(t // 2 + 1))).sum(0),
    "future": lambda: (x[t:T:3] ** 2).sum(0),
    "future, shifted": lambda: pr.where(t + 1 < T, (x[pr.min(t + 1, T) : T : 2] ** 3).sum(0), 0.0),
    "window": lambda: (x[pr.max(t % 2, t - 4 + t % 2 - t % 2) : t + 1 : 2] ** 2).sum(0),
    "by remainder of the reader": lambda: pr.where(t % 4 == 1, (x[0 : t + 1] ** 2).sum(0), x),
    "weights by position": lambda: (x[t % 2 : t + 1 : 2] * pr.exp(-0.5 * pr.arange(t // 2 + 1))).sum(0),
    "largest": lambda: (x[t % 3 : t + 1 : 3] * x).max(0),
}
LENGTHS = (0, 1, 2, 3, 5, 10)


@pytest.mark.parametrize("steps", LENGTHS)
@pytest.mark.parametrize("name", READS)
def test_equal_to_differences(name: str, steps: int) -> None:
    random = np.random.default_rng(steps)
    given = {"x": random.normal(size=steps), "w": random.normal(size=steps)}
    check(pr.tanh(READS[name]()) * w, x, "x", given, {T: steps})


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_compiled(backend: str) -> None:
    for name, read in READS.items():
        gradient = pr.grad((pr.tanh(read()) * w)[0:T].sum(), x)
        program = pr.compile(gradient, backend=backend)
        for steps in LENGTHS:
            random = np.random.default_rng(steps)
            given: dict[str, Any] = {"x": random.normal(size=steps), "w": random.normal(size=steps)}
            want = pr.evaluate(gradient, given, {T: steps})
            found = np.asarray(program(**given, bounds={T: steps}))
            np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-9, err_msg=f"{name} at {steps}")


def test_second_derivatives() -> None:
    inner = pr.grad(((x[t % 2 : t + 1 : 2] ** 3).sum(0) * w)[0:T].sum(), x)
    random = np.random.default_rng(0)
    check(inner * inner, x, "x", {"x": random.normal(size=6), "w": random.normal(size=6)})


def test_inside_a_recurrence() -> None:
    y = pr.recurrent((), ((t, T + 1),), "float64")
    y[0] = 0.5
    y[t + 1] = pr.tanh(0.3 * y[t % 2 : t + 1 : 2].sum(0) + x)
    for steps in (0, 1, 4, 7):
        random = np.random.default_rng(steps)
        given = {"x": random.normal(size=steps), "w": random.normal(size=steps)}
        check(y[t + 1] * w, x, "x", given, {T: steps})


def test_pairs_are_those_that_read_each_other() -> None:
    """An element that every fourth step reads is summed over a quarter of the steps, without a choice in it."""
    score = pr.sigmoid(x[t % 4 : t + 1 : 4] * w).sum(0)
    program = pr.compile(pr.grad((score * score)[0:T].sum(), x))
    loops = [loop for loop in walk(program.compiled.loops.body) if isinstance(loop, For)]
    inner = [item for loop in loops for item in loop.body if isinstance(item, For)]
    outer = {loop.counter for loop in loops} - {loop.counter for loop in inner}
    (bound,) = program.compiled.loops.bounds
    known = {bound: 408} | dict.fromkeys(outer, 8)
    lengths = [(loop.end - loop.first).evaluate(known.__getitem__) for loop in inner]
    assert lengths
    assert max(lengths) == 100
