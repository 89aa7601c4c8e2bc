"""Infinities, NaN and zeros in random expressions and their gradients; `not_finite.py` draws them."""

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from tests.fuzz import not_finite

FEW = 12


@pytest.mark.parametrize("number", range(FEW))
def test_a_few(number: int) -> None:
    not_finite.check(number, ("jax", ("torch", "numpy")[number % 2]))


@pytest.mark.slow
@pytest.mark.parametrize("hundred", [1, 2, 3])
def test_many(hundred: int) -> None:
    for number in range(100 * hundred, 100 * hundred + 100):
        not_finite.check(number)


@pytest.mark.parametrize("backend", not_finite.BACKENDS)
def test_a_product_with_truth_values_is_no_choice(backend: str) -> None:
    """XLA would have it so: 0 where infinity is multiplied by 0."""
    x, g = pr.input("x", (4,)), pr.input("g", (4,))
    outputs = {"product": g * (x > 0), "halves": g.cast("float16") * (x > 0), "sum": (g * (x > 0)).sum()}
    data: dict[str, Any] = {
        "x": np.array([-1, 1, -1, 1], "float32"),
        "g": np.array([np.inf, np.inf, np.nan, 2], "float32"),
    }
    found = pr.compile(outputs, backend=backend)(**data)
    for name, value in pr.evaluate(outputs, data).items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("backend", not_finite.BACKENDS)
@pytest.mark.parametrize("weight", [1.0, np.inf, np.nan])
@pytest.mark.parametrize("last", [2.0, np.inf, np.nan])
def test_gradients_of_extremes_are_those_of_jax(last: float, weight: float, backend: str) -> None:
    jax = pytest.importorskip("jax")
    x, h = pr.input("x", (4,)), pr.input("h", ())
    slopes = {"max": pr.grad(h * x.max(0), x), "min": pr.grad(h * (-x).min(0), x)}
    row = np.array([-1, 1, np.inf, last], "float32")
    by_hand = {"max": lambda x: weight * x.max(), "min": lambda x: weight * (-x).min()}
    data: dict[str, Any] = {"x": row, "h": np.float32(weight)}
    found, defined = pr.compile(slopes, backend=backend)(**data), pr.evaluate(slopes, data)
    for name, function in by_hand.items():
        np.testing.assert_array_equal(defined[name], jax.grad(function)(row), err_msg=name)
        np.testing.assert_array_equal(found[name], defined[name], err_msg=name)


@pytest.mark.parametrize("backend", not_finite.BACKENDS)
def test_softmax_of_infinite_numbers(backend: str) -> None:
    """Of one infinite number only its own place is NaN; torch would have it everywhere."""
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    y = pr.recurrent((3,), (t,))
    y[0] = pr.softmax(x[0])
    y[t + 1] = pr.softmax(x[t + 1] + 0.0 * y)
    inf, nan = np.inf, np.nan
    rows = np.array([[1, 2, 3], [inf, 1, 2], [-inf, 1, 2], [-inf, -inf, -inf], [inf, inf, 0], [1, nan, 2]], "float32")
    outputs = {"alone": pr.softmax(x)[0:T], "whole": pr.softmax(x[0:T], 0), "state": y[0:T]}
    found = pr.compile(outputs, backend=backend)(x=rows)
    for name, value in pr.evaluate(outputs, {"x": rows}).items():
        np.testing.assert_allclose(found[name], value, atol=1e-6, err_msg=name)
