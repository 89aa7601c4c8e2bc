"""Gradients against `jax.grad` of the same functions by hand: every way of indexing time, and every operation.

The patterns and operations are those that `test_patterns.py` and `test_ops.py` compare with finite differences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import polyrhythm as pr
from tests.compiler.gradients.differences import check, gradients
from tests.compiler.gradients.test_ops import CASES as OPERATIONS
from tests.compiler.gradients.test_patterns import PATTERNS, x


def _each(step: Callable[[Any, int, int], Any]) -> Callable[[Any], Any]:
    """The sum over all steps of what a step computes."""
    return lambda x: sum(step(x, t, len(x)) for t in range(len(x)))


BY_HAND: dict[str, Callable[[Any], Any]] = {
    "identity": lambda x: (x * x).sum(),
    "constant_range": lambda x: (x[0:2] ** 2).sum() * x.sum(),
    "all": lambda x: (x**2).sum() * x.sum(),
    "past": _each(lambda x, t, T: x[: t + 1].sum() ** 3),
    "future": _each(lambda x, t, T: (x[t:] ** 2).sum() * x[t]),
    "past_window": _each(lambda x, t, T: (x[max(0, t - 2) : t + 1] ** 2).sum() * x[t]),
    "future_window": _each(lambda x, t, T: (x[t : t + 3] ** 2).sum() * x[t]),
    "two_sided_window": _each(lambda x, t, T: (x[max(0, t - 1) : t + 2] ** 2).sum() * x[t]),
    "before": lambda x: (x[:-1] * x[1:]).sum(),
    "after": lambda x: (x[1:] ** 2 * x[:-1]).sum(),
    "last": lambda x: (x[-1] * x * x).sum(),
    "first": lambda x: (x[0] ** 2 * x).sum(),
    "stride": lambda x: (x[::2] ** 3).sum(),
    "strided_step": _each(lambda x, t, T: x[2 * t] ** 3 if 2 * t < T else 0.0),
    "quotient": _each(lambda x, t, T: x[t // 2] * x[t]),
    "remainder": _each(lambda x, t, T: x[t % 2] * x[t] ** 2),
    "reversed": _each(lambda x, t, T: x[T - 1 - t] * x[t] * t),
    "reversed_range": _each(lambda x, t, T: (x[: t + 1][::-1] * x[: t + 1]).sum() * x[t]),
    "clamped": _each(lambda x, t, T: x[max(0, t - 2)] * x[t]),
    "chained": lambda x: 2.0 * x[jnp.arange(len(x)) // 2].sum() * x.sum(),
    "diagonal": lambda x: x.sum() ** 2 * x.sum(),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern(name: str) -> None:
    values = np.random.default_rng(5).normal(size=5)
    with jax.enable_x64(True):
        expected = np.asarray(jax.jit(jax.grad(BY_HAND[name]))(jnp.asarray(values)))
    found = pr.evaluate(pr.grad(PATTERNS[name](), x), {"x": values})
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


lax = jax.lax
CONV = ("NCH", "OIH", "NCH")

# For each operation, one case of `test_ops.py` by its number, and the same in JAX.
JAX: dict[str, tuple[int, Callable[..., Any]]] = {
    "neg": (0, lambda x: -x),
    "exp": (0, jnp.exp),
    "log": (0, jnp.log),
    "log1p": (0, jnp.log1p),
    "expm1": (0, jnp.expm1),
    "tanh": (0, jnp.tanh),
    "sqrt": (0, jnp.sqrt),
    "sin": (0, jnp.sin),
    "cos": (0, jnp.cos),
    "sinh": (0, jnp.sinh),
    "cosh": (0, jnp.cosh),
    "lgamma": (0, lax.lgamma),
    "digamma": (0, lax.digamma),
    "atan2": (0, jnp.arctan2),
    "cholesky": (0, lambda x: jnp.linalg.cholesky(x @ x.T + jnp.eye(3))),
    "triangular_solve": (2, lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True)),
    "solve": (0, jnp.linalg.solve),
    "slogdet": (0, lambda x: jnp.linalg.slogdet(x)[1]),
    "qr": (1, lambda x: jnp.linalg.qr(x)[1]),
    "eigh": (0, jnp.linalg.eigvalsh),
    "svd": (0, lambda x: jnp.linalg.svd(x, compute_uv=False)),
    "scatter": (3, lambda x, u: x.at[1:, 0].set(u) * x),
    "real": (0, lambda x, y: ((x + 1j * y) ** 2).real),
    "imag": (0, lambda x, y: jnp.exp(x + 1j * y).imag),
    "complex": (0, lambda x, y: jnp.abs(x + 1j * y)),
    "fft": (3, lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * (1 + 2j), 5)),
    "abs": (0, jnp.abs),
    "erf": (0, lax.erf),
    "cast": (0, lambda x: x**2),
    "add": (0, lambda x, y: x + y),
    "sub": (0, lambda x, y: x - y),
    "mul": (0, lambda x, y: x * y),
    "div": (0, lambda x, y: x / y),
    "mod": (0, lambda x, y: x % y),
    "pow": (0, lambda x, y: x**y),
    "maximum": (0, jnp.maximum),
    "minimum": (0, jnp.minimum),
    "select": (0, lambda x, y: jnp.where(x > y, x * 2.0, y * y)),
    "reduce": (2, lambda x: x.max(1)),
    "cumulative": (2, lambda x: jnp.cumprod(x, 0)),
    "linear_scan": (0, lambda a, b: lax.scan(lambda y, ab: (ab[0] * y + ab[1],) * 2, jnp.zeros(()), (a, b))[1]),
    "einsum": (12, lambda x, y: jnp.einsum("jii,ik->kj", x, y)),
    "reshape": (0, lambda x: x.reshape(3, 2) ** 2),
    "transpose": (0, lambda x: jnp.transpose(x, (2, 0, 1)) ** 2),
    "broadcast": (0, lambda x: jnp.broadcast_to(x, (2, 3, 2)) ** 2),
    "copy": (0, lambda x: x * x * x),
    "concat": (0, lambda x, y: jnp.concatenate([x, y, x * x], 1)),
    "pad": (0, lambda x: jnp.pad(x, ((1, 0), (2, 1)), constant_values=5.0)),
    "slice": (1, lambda x: x[::2, 1:3]),
    "take": (0, lambda x: x[jnp.array([0, 2, 2])]),
    "take_along": (0, lambda x: jnp.take_along_axis(x, jnp.array([[0, 2], [2, 1]]), 1)),
    "scatter_add": (0, lambda x, u: x.at[jnp.array([0, 2, 2])].add(u)),
    "scatter_along": (
        0,
        lambda x, u: x.at[jnp.array([[0, 0], [1, 1]]), jnp.array([[0, 1], [1, 2]])].add(u),
    ),
    "conv": (0, lambda x, w: lax.conv_general_dilated(x, w, (1,), "VALID", dimension_numbers=CONV)),
    "reduce_window": (0, lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2), (1, 1, 2), "VALID")),
    "sign": (0, lambda x: jnp.sign(x) * x),
    "floor": (0, lambda x: jnp.floor(x * 3) * x),
    "ceil": (0, lambda x: jnp.ceil(x * 3) * x),
    "round": (0, lambda x: jnp.round(x * 3) * x),
    "isfinite": (0, lambda x: jnp.where(jnp.isfinite(x), x * x, 0.0)),
    "floordiv": (0, lambda x, y: lax.stop_gradient(x // y) + x * y),
    "eq": (0, lambda x: jnp.where(x == 0.0, 0.0, x * x)),
    "ne": (0, lambda x: jnp.where(x != 0.0, x * x, 0.0)),
    "lt": (0, lambda x: (x < 0.1).astype(x.dtype) * x),
    "le": (0, lambda x: (x <= 0.1).astype(x.dtype) * x),
    "argreduce": (0, lambda x: x[x.argmax()] * x),
    "argsort": (0, lambda x: jnp.argsort(x).astype(x.dtype) * x),
    "opaque": (0, lambda x, y: jnp.sin(x) * y),
    "shard": (0, lambda x: x * x * x),
    "keep": (0, lambda x: x * x * x),
}


def test_every_operation_is_compared() -> None:
    assert set(OPERATIONS) <= set(JAX)  # which are all that have a rule: see `test_every_rule_is_tested`


@pytest.mark.parametrize("op", OPERATIONS)
def test_every_operation(op: str) -> None:
    number, theirs = JAX[op]
    ours, arrays = OPERATIONS[op][number]
    values = [np.asarray(array, np.float64) for array in arrays]
    with jax.enable_x64(True):

        def loss(*given: Any) -> Any:
            result = theirs(*given)
            return (result * np.random.default_rng(99).uniform(0.5, 1.5, size=result.shape)).sum()

        slopes = jax.jit(jax.grad(loss, tuple(range(len(values)))))
        expected = [np.asarray(slope) for slope in slopes(*map(jnp.asarray, values))]
    for found, wanted in zip(gradients(ours, values), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


def test_a_length_decided_by_data() -> None:
    """A loss over the steps until a condition holds; the condition itself has no derivative."""
    t, T = pr.dim("t")
    w = pr.input("w", (), (), "float64")
    y = pr.recurrent((), (t,), "float64")
    y[0] = w
    y[t + 1] = y * 1.7 + pr.tanh(w)
    given = {"w": np.float64(0.31)}

    def by_hand(w: Any) -> Any:
        total, state = 0.0, w
        for _ in range(20):
            total = total + state**2
            if state > 2.0:
                break
            state = state * 1.7 + jnp.tanh(w)
        return total

    with jax.enable_x64(True):
        expected = float(jax.grad(by_hand)(jnp.float64(0.31)))
    options: dict[str, Any] = {"until": {t: y > 2.0}}
    found = pr.evaluate((pr.grad(y * y, w), y), given, {T: 20}, **options)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    check(y * y, w, "w", given, {T: 20}, **options)
    for backend in ("numpy", "jax"):
        program = pr.compile((pr.grad(y * y, w), y), backend=backend, **options)
        np.testing.assert_allclose(program(**dict[str, Any](given), bounds={T: 20})[0], expected, rtol=1e-5)


def test_second_derivatives_of_a_recurrence() -> None:
    t, T = pr.dim("t")
    values = np.random.default_rng(1).normal(size=4)
    given = {"x": values, "w": np.float64(0.7), "x0": np.float64(0.2)}
    w, first = pr.input("w", (), (), "float64"), pr.input("x0", (), (), "float64")
    h = pr.recurrent((), ((t, T + 1),), "float64")
    h[0] = first
    h[t + 1] = pr.tanh(w * h + pr.input("x", (), (t,), "float64"))
    slope = pr.grad(h[t + 1] ** 2, w)
    found = pr.evaluate(pr.grad(slope, (w, first)), given)

    def by_hand(w: Any, state: Any) -> Any:
        total = 0.0
        for value in values:
            state = jnp.tanh(w * state + value)
            total = total + state**2
        return total

    with jax.enable_x64(True):
        expected = jax.jit(jax.grad(jax.grad(by_hand), (0, 1)))(jnp.float64(0.7), jnp.float64(0.2))
        np.testing.assert_allclose(found, np.asarray(expected), rtol=1e-10)
    check(slope, w, "w", given)
    compiled = pr.compile(pr.grad(slope, (w, first)), backend="numpy")(**dict[str, Any](given))
    np.testing.assert_allclose(compiled, np.asarray(expected), rtol=1e-4)


def test_the_value_beside_its_gradient() -> None:
    t, _ = pr.dim("t")
    x, w = pr.input("x", (), (t,), "float64"), pr.input("w", (), (), "float64")
    values = np.array([0.5, -1.0, 2.0])
    loss, slopes = pr.evaluate(pr.value_and_grad(pr.tanh(w * x), {"w": w, "x": x}), {"x": values, "w": 0.4})
    np.testing.assert_allclose(loss, np.tanh(0.4 * values))
    np.testing.assert_allclose(slopes["w"], (values * (1 - loss**2)).sum())
    np.testing.assert_allclose(slopes["x"], 0.4 * (1 - loss**2))


def test_detached_values_of_a_recurrence_are_constants() -> None:
    """Truncated backpropagation: what enters every other step is a constant."""
    t, T = pr.dim("t")
    w = pr.input("w", (), (), "float64")
    h = pr.recurrent((), ((t, T + 1),), "float64")
    h[0] = 1.0
    h[t + 1] = pr.sin(w * pr.where(t % 2 == 0, pr.detach(h), h))
    given = {"w": np.float64(0.9)}

    def by_hand(w: Any) -> Any:
        state, total = jnp.float64(1.0), jnp.float64(0.0)
        for step in range(5):
            state = jnp.sin(w * (lax.stop_gradient(state) if step % 2 == 0 else state))
            total = total + state**2
        return total

    with jax.enable_x64(True):
        expected = float(jax.jit(jax.grad(by_hand))(jnp.float64(0.9)))
    np.testing.assert_allclose(pr.evaluate(pr.grad(h[t + 1] ** 2, w), given, {T: 5}), expected, rtol=1e-10)
