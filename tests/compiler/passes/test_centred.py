"""Sums of differences from centres that move with the reader: variances so far, their gradients, other centres."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from tests.compiler.passes.cases import after

t, T = pr.dim("t")
b, B = pr.dim("b")
x = pr.input("x", (2,), (b, t))
y = pr.input("y", (2,), (b, t))
c = pr.input("c", (2,), (t,))

past, future = x[b, 0 : t + 1], x[b, t:T]
FORMS: dict[str, Callable[[], pr.Tensor]] = {
    "variance": lambda: past.var(0),
    "by hand": lambda: ((past - past.mean(0)) ** 2).mean(0),
    "the other way round": lambda: pr.square(past.mean(0) - past).sum(0),
    "of the future": lambda: future.var(0),
    "covariance": lambda: ((past - past.mean(0)) * (y[b, 0 : t + 1] - y[b, 0 : t + 1].mean(0))).mean(0),
    "weighted": lambda: (y[b, 0 : t + 1] * (past - past.mean(0)) ** 2).sum(0),
    "another centre": lambda: ((past - c) ** 2).sum(0),
    "from the newest": lambda: (x[b, 0 : t + 1] - x).sum(0),
    "twice the reader": lambda: (c * (past - c) * 3.0 / (1.0 + c * c)).sum(0),
    "centre of a row": lambda: ((future - future.mean(0)) ** 2).sum(0).sum(0),
}


ASKED = [
    pytest.param(name, marks=pytest.mark.slow) if name in ("by hand", "the other way round") else name for name in FORMS
]
"""Other spellings of a variance are left to the slow lane."""


def given(steps: int, about: float = 0.0) -> dict[str, Any]:
    random = np.random.default_rng(steps)
    arrays = {name: random.normal(size=(2, steps, 2)).astype("float32") + np.float32(about) for name in "xy"}
    return arrays | {"c": random.normal(size=(steps, 2)).astype("float32")}


def used(name: str, steps: int, about: float = 0.0) -> dict[str, Any]:
    names = pr.compile(FORMS[name](), backend="numpy").compiled.graph.inputs
    return {given_name: array for given_name, array in given(steps, about).items() if given_name in names}


@pytest.mark.parametrize("name", ASKED)
def test_equal_to_the_oracle(name: str) -> None:
    total = (FORMS[name]()[0:B, 0:T] ** 2).sum()
    outputs = {"value": FORMS[name](), "x": pr.grad(total, x)}
    program = pr.compile(outputs)
    assert any(note.rule == "running-sum" for note in program.compiled.notes)
    for steps in (1, 17, 30):
        inputs = used(name, steps)
        want = pr.evaluate(outputs, inputs)
        found = program(**inputs)
        for output, value in want.items():
            np.testing.assert_allclose(found[output], value, rtol=2e-4, atol=2e-4, err_msg=f"{output} of {steps}")


@pytest.mark.parametrize("name", ASKED)
def test_the_memory_is_linear(name: str) -> None:
    total = (FORMS[name]()[0:B, 0:T] ** 2).sum()
    program = pr.compile([FORMS[name](), pr.grad(total, x)])
    assert program.memory.peak({T: 8_192, B: 1}) <= 2.1 * program.memory.peak({T: 4_096, B: 1}) + 1e6


def test_no_digits_are_lost_where_the_mean_is_large() -> None:
    steps, about = 500, 4096.0
    inputs = {"x": given(steps, about)["x"]}
    found = pr.compile(past.var(0))(**inputs)
    exact = np.stack([inputs["x"][:, : n + 1].astype("float64").var(1) for n in range(steps)], 1)
    np.testing.assert_allclose(found, exact, rtol=1e-3, atol=1e-3)  # a difference of sums would be off by more than one


def test_a_centre_that_follows_from_the_sum_is_left_alone() -> None:
    """Each sum is about what the next one gives: running sums would need the centres of readers before it."""
    s = pr.input("s", (), (t,))
    h = pr.recurrent((), ((t, T + 1),))
    h[T] = pr.constant(0.5)
    h[t] = ((s[0 : t + 1] - h[t + 1]) ** 2).mean(0)
    values = np.random.default_rng(0).uniform(size=20).astype("float32")
    np.testing.assert_allclose(pr.compile(h)(s=values), pr.evaluate(h, {"s": values}), rtol=1e-5)


def test_readers_that_are_not_all_steps() -> None:
    s = pr.input("s", (), (t,))
    centre = pr.where(t >= 5, s, 100.0)
    some = pr.where(t % 3 == 0, ((s[0 : t + 1] - centre) ** 2).sum(0), 0.0)
    after([some], {"s": np.random.default_rng(0).normal(size=30).astype("float32")})
