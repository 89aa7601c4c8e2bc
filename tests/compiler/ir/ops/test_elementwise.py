"""Elementwise operations against JAX, and at the points where NumPy, JAX and torch disagree."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.ops import TABLE
from tests.compiler.ir.ops.samples import ANY, BINARY, BITS, FLOATS, NUMBERS, UNARY

JAX_UNARY: dict[str, Callable[..., Any]] = {
    "neg": jnp.negative,
    "exp": jnp.exp,
    "log": jnp.log,
    "log1p": jnp.log1p,
    "expm1": jnp.expm1,
    "tanh": jnp.tanh,
    "sqrt": jnp.sqrt,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "sinh": jnp.sinh,
    "cosh": jnp.cosh,
    "lgamma": lax.lgamma,
    "digamma": lax.digamma,
    "abs": jnp.abs,
    "sign": jnp.sign,
    "floor": jnp.floor,
    "ceil": jnp.ceil,
    "round": jnp.round,
    "erf": jax.scipy.special.erf,
    "not": jnp.invert,
    "isfinite": jnp.isfinite,
    "detach": lax.stop_gradient,
    "keep": lax.optimization_barrier,
}
JAX_BINARY: dict[str, Callable[..., Any]] = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "div": jnp.divide,
    "floordiv": jnp.floor_divide,
    "mod": jnp.mod,
    "pow": jnp.power,
    "atan2": jnp.arctan2,
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "and": jnp.bitwise_and,
    "or": jnp.bitwise_or,
    "xor": jnp.bitwise_xor,
}


def points(dtype: np.dtype) -> np.ndarray:
    """Interesting elements of a dtype."""
    if dtype == dtypes.BOOL:
        return np.array([False, True])
    if dtypes.is_float(dtype):
        usual = [-3.5, -2.5, -1.0, -0.5, 0.5, 1.0, 1.5, 2.5, 3.0]
        return np.array([-np.inf, *usual, 0.0, np.inf, np.nan], dtype)
    limits = np.iinfo(dtype)
    return np.array(sorted({limits.min, max(-3, limits.min), 0, 1, 2, 5, limits.max}), dtype)


def check(ours: np.ndarray, theirs: Any) -> None:
    expected = np.asarray(theirs)
    assert ours.dtype == expected.dtype
    assert ours.shape == expected.shape
    if not dtypes.is_float(ours.dtype):
        np.testing.assert_array_equal(ours, expected)
        return
    tolerance = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-6, "float64": 1e-14}[ours.dtype.name]
    np.testing.assert_allclose(ours.astype(np.float64), expected.astype(np.float64), tolerance, tolerance)


@pytest.mark.parametrize(("op", "name"), [(op, name) for op, allowed in UNARY.items() for name in allowed])
def test_unary(op: str, name: str) -> None:
    x = points(dtypes.parse(name))
    with jax.enable_x64(True):
        check(TABLE[op].numpy(x), JAX_UNARY[op](x))


@pytest.mark.parametrize(("op", "name"), [(op, name) for op, allowed in BINARY.items() for name in allowed])
def test_binary(op: str, name: str) -> None:
    dtype = dtypes.parse(name)
    x, y = (a.ravel() for a in np.meshgrid(points(dtype), points(dtype)))
    if op in ("floordiv", "mod"):
        # Division by zero and of infinities is below, or is left to the platform's float arithmetic.
        usual = (y != 0) & np.isfinite(x.astype(float)) & np.isfinite(y.astype(float))
        x, y = x[usual], y[usual]
    if op == "pow" and dtype.kind in "iu":
        x, y = x[y >= 0], y[y >= 0]
        x, y = x[y < 60], y[y < 60]  # JAX computes integer powers up to 6 bits of exponent
    with jax.enable_x64(True):
        check(TABLE[op].numpy(x, y), JAX_BINARY[op](x, y))


@pytest.mark.parametrize("name", [name for name in NUMBERS if name not in FLOATS])
def test_integer_division_by_zero_is_zero(name: str) -> None:
    x = points(dtypes.parse(name))
    for op in ("floordiv", "mod"):
        np.testing.assert_array_equal(TABLE[op].numpy(x, np.zeros_like(x)), np.zeros_like(x))


def test_division_rounds_down_and_the_remainder_has_the_sign_of_the_divisor() -> None:
    x, y = np.array([7, -7, 7, -7]), np.array([3, 3, -3, -3])
    for dtype in ("int32", "float32", "bfloat16"):
        a, b = x.astype(dtypes.parse(dtype)), y.astype(dtypes.parse(dtype))
        np.testing.assert_array_equal(TABLE["floordiv"].numpy(a, b).astype(int), [2, -3, -3, 2])
        np.testing.assert_array_equal(TABLE["mod"].numpy(a, b).astype(int), [1, 2, -2, -1])


def test_integer_powers_with_negative_exponents_are_cut_off() -> None:
    x = np.array([-3, -2, -1, 0, 1, 2, 3], np.int32)
    for exponent in (-1, -2, -3):
        expected = [math.trunc(float(v) ** exponent) if v else 0 for v in x]
        ours = TABLE["pow"].numpy(x, np.full_like(x, exponent))
        np.testing.assert_array_equal(ours, np.array(expected, np.int32))


def test_extrema_propagate_nan() -> None:
    x, y = np.array([np.nan, 1.0, np.nan]), np.array([1.0, np.nan, np.nan])
    for op in ("maximum", "minimum"):
        assert np.isnan(TABLE[op].numpy(x, y)).all()


def test_rounding_goes_to_even() -> None:
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], np.float32)
    np.testing.assert_array_equal(TABLE["round"].numpy(x), [-2, -2, 0, 0, 2, 2])


def test_erf_is_that_of_the_standard_library() -> None:
    x = np.linspace(-4, 4, 101)
    np.testing.assert_array_equal(TABLE["erf"].numpy(x), [math.erf(v) for v in x])
    np.testing.assert_array_equal(TABLE["erf"].numpy(x.reshape(1, 101)[:, :0]).shape, (1, 0))


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
def test_arithmetic_of_short_floats_is_correctly_rounded(op: str, name: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 1000)).astype(dtypes.parse(name))
    exact = TABLE[op].numpy(x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_array_equal(TABLE[op].numpy(x, y), exact.astype(x.dtype))


def test_overflow_is_infinite_and_silent() -> None:
    largest = np.array(65504, np.float16)
    assert TABLE["add"].numpy(largest, largest) == np.inf
    assert TABLE["exp"].numpy(np.array(1000, np.float32)) == np.inf
    assert TABLE["mul"].numpy(np.array(100, np.int8), np.array(3, np.int8)) == 300 - 256


@pytest.mark.parametrize("name", ANY)
def test_select(name: str) -> None:
    dtype = dtypes.parse(name)
    condition, a, b = np.array([[True], [False]]), points(dtype), points(dtype)[::-1]
    with jax.enable_x64(True):
        check(TABLE["select"].numpy(condition, a, b), jnp.where(condition, a, b))


@pytest.mark.parametrize("target", ANY)
@pytest.mark.parametrize("name", ANY)
def test_cast(name: str, target: str) -> None:
    x, dtype = points(dtypes.parse(name)), dtypes.parse(target)
    with jax.enable_x64(True):
        check(TABLE["cast"].numpy(x, dtype=dtype), jnp.asarray(x).astype(dtype))


@pytest.mark.parametrize("target", [name for name in BITS if name != "bool"])
@pytest.mark.parametrize("source", [np.float32, np.float64, ml_dtypes.bfloat16])
def test_casts_to_integers_saturate(source: Any, target: str) -> None:
    dtype = dtypes.parse(target)
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 2.75, -0.75], source)
    limits = np.iinfo(dtype)
    expected = [0, limits.max, limits.min, limits.max, limits.min, 2, 0]
    np.testing.assert_array_equal(TABLE["cast"].numpy(x, dtype=dtype), np.array(expected, dtype))


@pytest.mark.parametrize("target", [name for name in BITS if name != "bool"])
def test_casts_are_exact_up_to_the_limits(target: str) -> None:
    dtype = dtypes.parse(target)
    limits = np.iinfo(dtype)
    for limit in (limits.min, limits.max):
        for x in (np.nextafter(float(limit), -np.inf), float(limit), np.nextafter(float(limit), np.inf)):
            expected = min(max(math.trunc(x), limits.min), limits.max)
            assert int(TABLE["cast"].numpy(np.array(x), dtype=dtype)) == expected
