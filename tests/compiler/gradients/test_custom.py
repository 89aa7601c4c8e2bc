"""Derivatives given by the user: equal to the derived ones where they should be, and different where they say so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.errors import GradientError
from tests.compiler.gradients.differences import check, check_function, gradients

t, T = pr.dim("t")
x = pr.input("x", (2,), (t,), "float64")
w = pr.input("w", (2, 2), (), "float64")


def squash(value: pr.Tensor) -> pr.Tensor:
    """A hyperbolic tangent by exponentials, whose derivative is said in terms of the result."""
    return pr.custom_vjp(lambda v: 1.0 - 2.0 / (pr.exp(2.0 * v) + 1.0), lambda g, y, v: g * (1.0 - y * y))(value)


def product(a: pr.Tensor, b: pr.Tensor) -> pr.Tensor:
    return pr.custom_vjp(lambda a, b: a * b, lambda g, y, a, b: (g * b, g * a))(a, b)


def test_a_given_rule_equals_the_derived_one() -> None:
    check_function(squash, np.array([0.3, -0.7, 2.0]))
    check_function(product, np.array([0.3, -0.7]), np.array([1.0, 2.0]))


def recurrence(function: Any) -> pr.Tensor:
    h = pr.recurrent((2,), ((t, T + 1),), "float64")
    h[0] = 0.0
    h[t + 1] = function(x + h @ w)
    return (h[t + 1] ** 2).sum()


def given(steps: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(4)
    return {"x": random.normal(size=(steps, 2)), "w": random.normal(size=(2, 2)) / 2}


def test_a_given_rule_inside_a_recurrence() -> None:
    check(recurrence(squash), w, "w", given(4))
    derived = pr.evaluate(pr.grad(recurrence(pr.tanh), (x, w)), given(6))
    ruled = recurrence(squash)
    for found, wanted in zip(pr.evaluate(pr.grad(ruled, (x, w)), given(6)), derived, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize("backend", ["jax", *(pytest.param(b, marks=pytest.mark.slow) for b in ("numpy", "torch"))])
def test_a_given_rule_on_every_backend(backend: str) -> None:
    derived = pr.evaluate(pr.grad(recurrence(pr.tanh), (x, w)), given(6))
    compiled = pr.compile(pr.grad(recurrence(squash), (x, w)), backend=backend)(**dict[str, Any](given(6)))
    for found, wanted in zip(compiled, derived, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_a_given_rule_is_computed_again_in_segments() -> None:
    loss = recurrence(squash)
    kept = pr.evaluate(pr.grad(loss, (x, w)), given(7))
    pr.checkpoint(loss, over=t, every=3)
    for found, wanted in zip(pr.evaluate(pr.grad(loss, (x, w)), given(7)), kept, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_rounding_that_gradients_pass_straight_through() -> None:
    through = pr.custom_vjp(pr.round, lambda g, y, v: g)
    (found,) = gradients(lambda v: through(v * v), [np.array([0.3, 1.6, -2.2])])
    (expected,) = gradients(lambda v: v * v, [np.array([0.3, 1.6, -2.2])])
    np.testing.assert_allclose(found, expected)
    assert gradients(lambda v: pr.round(v * v), [np.array([0.3, 1.6, -2.2])])[0].tolist() == [0.0, 0.0, 0.0]


def test_the_value_is_that_of_the_function() -> None:
    value = pr.evaluate(pr.custom_vjp(pr.round, lambda g, y, v: g)(x), {"x": given(3)["x"]})
    np.testing.assert_array_equal(value, np.round(given(3)["x"]))


def test_a_rule_may_read_other_steps_and_other_tensors() -> None:
    scale = pr.input("scale", (), (), "float64")
    slow = pr.custom_vjp(lambda v: v * 1.0, lambda g, y, v: g * scale)
    loss = (slow(pr.where(t > 0, x[pr.max(0, t - 1)], 0.0)) ** 2).sum()
    values = given(4)["x"]
    found = pr.evaluate(pr.grad(loss, x), {"x": values, "scale": 0.25})
    np.testing.assert_allclose(found, 0.25 * 2 * np.concatenate([values[:-1], np.zeros((1, 2))]))


def test_an_operand_without_gradient() -> None:
    gate = pr.custom_vjp(lambda a, b: a * b, lambda g, y, a, b: (g * b, None))
    by_a, by_b = gradients(gate, [np.array([1.0, 2.0]), np.array([3.0, 4.0])])
    assert by_a.all()
    assert by_b.tolist() == [0.0, 0.0]


def test_second_derivatives_follow_the_rule() -> None:
    v = pr.input("v", (), (), "float64")
    check(pr.grad(squash(v) * v, v), v, "v", {"v": np.float64(0.4)})
    straight = pr.custom_vjp(lambda u: u * u, lambda g, y, u: g * u * u * u)
    second = pr.grad(pr.grad(straight(v), v), v)
    assert float(pr.evaluate(second, {"v": 2.0})) == pytest.approx(12.0)


@pytest.mark.parametrize(
    ("backward", "message"),
    [
        (lambda g, y, a, b: g, "2 operands returned 1 gradients"),
        (lambda g, y, a, b: (g, g.sum(0)), "operand 2 has shape"),
        (lambda g, y, a, b: (g.axes[:1].reshape(1, 1), g), "operand 1 has shape"),
        (lambda g, y, a, b: (g + x.sum(), g), "operand 1 varies along t"),
    ],
)
def test_gradients_that_do_not_fit(backward: Any, message: str) -> None:
    a, b = pr.input("a", (3,), (), "float64"), pr.input("b", (3,), (), "float64")
    with pytest.raises(GradientError, match=message):
        pr.custom_vjp(lambda a, b: a + b, backward)(a, b)


def test_a_gradient_of_another_dtype() -> None:
    a = pr.input("a", (3,), (), "float32")
    with pytest.raises(GradientError, match="is float64, but the operand is float32"):
        pr.custom_vjp(lambda v: v * 1.0, lambda g, y, v: g.cast("float64"))(a)
    n = pr.input("n", (3,), (), "int32")
    with pytest.raises(GradientError, match="which has no gradient"):
        pr.custom_vjp(lambda v: v.cast("float32"), lambda g, y, v: g)(n)
