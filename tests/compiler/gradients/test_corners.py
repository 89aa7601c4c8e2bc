"""Derivatives where there is a choice, ties, zeros and infinities, against `jax.grad`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import polyrhythm as pr
from tests.compiler.gradients.differences import Function, gradients

inf = float("inf")

# Each: the function here, the function there, the arguments.
CASES: dict[str, tuple[Function, Callable[..., Any], list[Any]]] = {
    "maximum": (pr.maximum, jnp.maximum, [[1.0, 2.0, 3.0], [1.0, 3.0, 2.0]]),
    "minimum": (pr.minimum, jnp.minimum, [[1.0, 2.0, 3.0], [1.0, 3.0, 2.0]]),
    "max": (lambda x: x.max(1), lambda x: x.max(1), [[[1.0, 2.0, 2.0], [3.0, 3.0, 3.0]]]),
    "min": (lambda x: x.min(), lambda x: x.min(), [[[1.0, 2.0, 2.0], [3.0, 1.0, 3.0]]]),
    "max_infinite": (lambda x: x.max(1), lambda x: x.max(1), [[[-inf, -inf], [1.0, inf]]]),
    "relu": (pr.relu, jax.nn.relu, [[-1.0, 0.0, 2.0]]),
    "clip": (lambda x: pr.clip(x, 0, 1), lambda x: jnp.clip(x, 0, 1), [[-1.0, 0.0, 0.5, 1.0, 2.0]]),
    "sort": (pr.sort, jnp.sort, [[[3.0, 1.0, 3.0, 1.0]]]),
    "top": (lambda x: pr.topk(x, 2)[0], lambda x: jax.lax.top_k(x, 2)[0], [[3.0, 1.0, 3.0, 3.0]]),
    "pow_zero": (lambda x: x**2, lambda x: x**2, [[0.0, -1.0]]),
    "pow_of_zero": (lambda x, y: x**y, lambda x, y: x**y, [[0.0, 0.0, 2.0], [2.0, 1.0, 0.0]]),
    "pow_exponent_zero": (lambda x: x**0, lambda x: x**0, [[0.0, 2.0]]),
    "pow_float_exponent_zero": (lambda x: x**0.0, lambda x: x**0.0, [[0.0, 2.0]]),
    "pow_negative": (lambda x: x**3.0, lambda x: x**3.0, [[-2.0, 0.0]]),
    "prod": (lambda x: x.prod(0), lambda x: x.prod(0), [[[0.0, 2.0], [0.0, 0.0], [3.0, 4.0]]]),
    "cumprod": (lambda x: x.cumprod(0), lambda x: jnp.cumprod(x), [[2.0, 0.0, 3.0, 0.0, 5.0]]),
    "softmax": (pr.softmax, jax.nn.softmax, [[[0.0, -inf, 1.0], [1000.0, 1000.0, -1000.0]]]),
    "log_softmax": (pr.log_softmax, jax.nn.log_softmax, [[[0.0, -1.0, 1.0], [1000.0, 1000.0, -1000.0]]]),
    "logsumexp": (lambda x: pr.logsumexp(x, 1), lambda x: jax.nn.logsumexp(x, 1), [[[0.0, -inf], [800.0, 800.0]]]),
    "sigmoid": (pr.sigmoid, jax.nn.sigmoid, [[-800.0, 0.0, 800.0]]),
    "softplus": (pr.softplus, jax.nn.softplus, [[-800.0, 0.0, 800.0]]),
    "silu": (pr.silu, jax.nn.silu, [[-800.0, 0.0, 800.0]]),
    "gelu": (pr.gelu, lambda x: jax.nn.gelu(x, approximate=False), [[-30.0, 0.0, 30.0]]),
    "where": (
        lambda x: pr.where(x > 0, pr.log(pr.where(x > 0, x, 1.0)), 0.0),
        lambda x: jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1.0)), 0.0),
        [[-1.0, 0.0, 2.0]],
    ),
    "max_pool": (
        lambda x: pr.max_pool(x, 2, stride=1),
        lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2), (1, 1, 1), "VALID"),
        [[[[1.0, 1.0, 1.0, 2.0, 2.0]]]],
    ),
    "take": (
        lambda x: pr.take(x, pr.constant(np.array([0, 5, -3], np.int32)), 0),
        lambda x: jnp.take(x, jnp.clip(jnp.array([0, 5, -3]), 0, 2), 0),
        [[1.0, 2.0, 3.0]],
    ),
    "scatter": (
        lambda x, u: pr.scatter_add(x, pr.constant(np.array([0, 5, 0], np.int32)), u),
        lambda x, u: x.at[jnp.array([0, 5, 0])].add(u, mode="drop"),
        [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]],
    ),
    "erf": (pr.erf, jax.scipy.special.erf, [[-40.0, 0.0, 40.0]]),
    "mod": (lambda x, y: x % y, lambda x, y: x % y, [[5.5, -5.5, 5.5], [2.0, 2.0, -2.0]]),
}


@pytest.mark.parametrize("name", CASES)
def test_like_jax(name: str) -> None:
    ours, theirs, given = CASES[name]
    arrays = [np.asarray(array, np.float64) for array in given]
    with jax.enable_x64(True):

        def loss(*values: Any) -> Any:
            result = theirs(*values)
            return (result * np.random.default_rng(99).uniform(0.5, 1.5, size=result.shape)).sum()

        expected = jax.grad(loss, tuple(range(len(arrays))))(*map(jnp.asarray, arrays))
    for found, wanted in zip(gradients(ours, arrays), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("order", [1, 2, inf])
def test_the_norm_of_zero_has_gradient_zero(order: float) -> None:
    (found,) = gradients(lambda x: pr.norm(x, order=order), [np.zeros(3)])
    assert found.tolist() == [0.0, 0.0, 0.0]


def test_the_deviation_of_equal_numbers_has_gradient_zero() -> None:
    (found,) = gradients(lambda x: x.std(), [np.ones(3)])
    assert found.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("function", [lambda x: x.sum(), lambda x: x.max() * 0.0, lambda x: x.prod(), pr.logsumexp])
def test_reductions_of_nothing(function: Function) -> None:
    (found,) = gradients(function, [np.zeros(0)])
    assert found.shape == (0,)


@pytest.mark.parametrize("reverse", [False, True])
def test_equal_running_maxima_belong_to_the_first_met(reverse: bool) -> None:
    (found,) = gradients(lambda x: x.cummax(0, reverse=reverse).sum(), [np.array([2.0, 2.0, 1.0, 2.0, 2.0])])
    assert (found > 0).tolist() == [not reverse, False, False, False, reverse]


def test_zero_has_no_direction() -> None:
    # As in torch; JAX counts zero as positive.
    assert gradients(pr.abs, [np.zeros(1)])[0].tolist() == [0.0]


def test_the_logarithm_of_no_weight_at_all_has_gradient_zero() -> None:
    assert gradients(pr.logsumexp, [np.array([-inf, -inf])])[0].tolist() == [0.0, 0.0]


def test_detached_values_have_no_gradient() -> None:
    (found,) = gradients(lambda x: pr.detach(x * x).sum() + x.sum(), [np.ones(2)])
    assert found[0] == found[1] == gradients(lambda x: x.sum(), [np.ones(2)])[0][0]


def test_nothing_before_a_detach_is_differentiated() -> None:
    """A function without a derivative may lie there, and the program holds no work for it."""
    w = pr.input("w")
    hidden = pr.detach(pr.host(lambda v: v * 2, [pr.exp(w)]))
    assert pr.evaluate(pr.grad(hidden * w, w), {"w": 0.0}) == 2
    program = pr.compile(pr.grad(pr.detach(pr.tanh(pr.exp(w))) * w, w), backend="numpy")
    assert "d_" not in program.schedule


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("spelling", ["einsum", "outer", "unsqueeze"])
def test_second_derivatives_of_products_of_ranges_with_themselves(spelling: str, backend: str) -> None:
    """The shapes of what is summed over later steps differ from step to step, so it is no single contraction."""
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,), "float64")
    s = x[0 : t + 1]
    pairs = {
        "einsum": lambda: pr.einsum("a,b->ab", s, s),
        "outer": lambda: pr.outer(s, s),
        "unsqueeze": lambda: pr.unsqueeze(s, 1) * pr.unsqueeze(s, 0),
    }[spelling]()
    second = pr.grad(pr.grad((pairs * pairs).sum(), x), x)
    values = np.array([0.5, -1.0, 2.0, 1.5])
    # Of sum_t (sum_{s<=t} x_s^2)^2 by x_i, summed over i, by x_j.
    want = np.zeros(4)
    for last in range(4):
        inside = values[: last + 1]
        want[: last + 1] += 4 * (inside**2).sum() + 8 * inside * inside.sum()
    np.testing.assert_allclose(pr.evaluate(second, {"x": values}), want)
    np.testing.assert_allclose(pr.compile(second, backend=backend)(x=values), want)
