"""Reductions, cumulative reductions, arguments of extrema, sorting and einsum against JAX and plain loops."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.ops import TABLE
from tests.compiler.ir.ops.samples import ANY, MONOIDS, NUMBERS, elements

JAX_REDUCE: dict[str, Any] = {
    "sum": jnp.sum,
    "prod": jnp.prod,
    "max": jnp.max,
    "min": jnp.min,
    "any": jnp.any,
    "all": jnp.all,
}
JAX_CUMULATIVE: dict[str, Any] = {
    "sum": jax.lax.cumsum,
    "prod": jax.lax.cumprod,
    "max": jax.lax.cummax,
    "min": jax.lax.cummin,
}


def reduce(x: np.ndarray, monoid: str, axes: tuple[int, ...]) -> np.ndarray:
    return TABLE["reduce"].numpy(x, monoid=monoid, axes=axes)


def check(ours: np.ndarray, theirs: Any, tolerance: float = 1e-6) -> None:
    expected = np.asarray(theirs)
    assert (ours.dtype, ours.shape) == (expected.dtype, expected.shape)
    tolerance = {"float16": 2e-3, "bfloat16": 1.6e-2}.get(ours.dtype.name, tolerance)
    if dtypes.is_float(ours.dtype):
        np.testing.assert_allclose(ours.astype(float), expected.astype(float), tolerance, tolerance)
    else:
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize(("monoid", "name"), [(m, name) for m, allowed in MONOIDS.items() for name in allowed])
def test_reduce(monoid: str, name: str) -> None:
    dtype = dtypes.parse(name)
    x = elements(np.random.default_rng(0), dtype, (4, 3, 5))
    extra = {"dtype": dtype} if monoid in ("sum", "prod") else {}
    with jax.enable_x64(True):
        for axes in ((), (1,), (0, 2), (0, 1, 2)):
            check(reduce(x, monoid, axes), JAX_REDUCE[monoid](x, axis=axes, **extra))


@pytest.mark.parametrize(("monoid", "name"), [(m, name) for m, allowed in MONOIDS.items() for name in allowed])
def test_an_empty_axis_gives_the_identity(monoid: str, name: str) -> None:
    dtype = dtypes.parse(name)
    result = reduce(np.zeros((0, 2), dtype), monoid, (0,))
    np.testing.assert_array_equal(result, np.full(2, dtypes.identity(monoid, dtype), dtype))


def test_extrema_over_nothing_are_infinite_or_the_limits() -> None:
    assert reduce(np.zeros(0, np.float32), "max", (0,)) == -np.inf
    assert reduce(np.zeros(0, np.int8), "max", (0,)) == -128
    assert reduce(np.zeros(0, np.uint8), "min", (0,)) == 255
    assert not reduce(np.zeros(0, bool), "max", (0,))


@pytest.mark.parametrize("name", ["f16", "bf16", "f32", "f64"])
def test_extrema_propagate_nan(name: str) -> None:
    x = np.array([1.0, np.nan, 3.0], dtypes.parse(name))
    for monoid in ("max", "min"):
        assert np.isnan(reduce(x, monoid, (0,)))
        running = TABLE["cumulative"].numpy(x, monoid=monoid, axis=0, reverse=False)
        np.testing.assert_array_equal(np.isnan(running), [False, True, True])


def test_integer_sums_keep_their_dtype_and_wrap() -> None:
    result = reduce(np.full(3, 100, np.int8), "sum", (0,))
    assert result.dtype == np.int8
    assert result == np.int8(300 - 256)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_short_floats_accumulate_in_float32(name: str) -> None:
    dtype = dtypes.parse(name)
    x = np.ones(4096, dtype)  # in either short dtype a running sum of ones would stop at 256 or 2048
    assert reduce(x, "sum", (0,)) == dtype.type(4096)
    running = TABLE["cumulative"].numpy(x, monoid="sum", axis=0, reverse=False)
    np.testing.assert_array_equal(running, np.arange(1, 4097).astype(np.float32).astype(dtype))
    assert TABLE["einsum"].numpy(x, x, spec="i,i->") == dtype.type(4096)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("monoid", "name"), [(m, name) for m in JAX_CUMULATIVE for name in MONOIDS[m] if name != "bool"]
)
def test_cumulative(monoid: str, name: str, reverse: bool) -> None:
    x = elements(np.random.default_rng(1), dtypes.parse(name), (4, 6))
    ours = TABLE["cumulative"].numpy(x, monoid=monoid, axis=1, reverse=reverse)
    if name in ("f16", "bf16"):
        wide = JAX_CUMULATIVE[monoid](jnp.asarray(x, jnp.float32), axis=1, reverse=reverse)
        check(ours, wide.astype(x.dtype))
        return
    with jax.enable_x64(True):
        check(ours, JAX_CUMULATIVE[monoid](jnp.asarray(x), axis=1, reverse=reverse))


def test_cumulative_extrema_of_truth_values() -> None:
    x = np.array([False, True, False])
    np.testing.assert_array_equal(TABLE["cumulative"].numpy(x, monoid="max", axis=0, reverse=False), [0, 1, 1])
    np.testing.assert_array_equal(TABLE["cumulative"].numpy(x, monoid="min", axis=0, reverse=True), [0, 0, 0])


@pytest.mark.parametrize("name", ANY)
@pytest.mark.parametrize("which", ["max", "min"])
def test_argreduce_finds_the_first_winner(which: str, name: str) -> None:
    x = elements(np.random.default_rng(2), dtypes.parse(name), (5, 7, 2))
    reference: Any = jnp.argmax if which == "max" else jnp.argmin
    with jax.enable_x64(True):
        check(TABLE["argreduce"].numpy(x, which=which, axis=1), reference(x, axis=1).astype(jnp.int32))


def test_argreduce_finds_the_first_nan() -> None:
    x = np.array([1.0, np.nan, 3.0, np.nan])
    assert TABLE["argreduce"].numpy(x, which="max", axis=0) == 1
    assert TABLE["argreduce"].numpy(x, which="min", axis=0) == 1


def sorted_positions(row: list[Any], descending: bool) -> list[int]:
    """By insertion: stable in both directions, NaN last."""
    result: list[int] = []
    for position, value in enumerate(row):
        at = len(result)
        while at and comes_before(value, row[result[at - 1]], descending):
            at -= 1
        result.insert(at, position)
    return result


def comes_before(a: Any, b: Any, descending: bool) -> bool:
    if a != a or b != b:
        return bool(b != b and a == a)
    return bool(a > b if descending else a < b)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("name", ANY)
def test_argsort_is_stable_with_nan_last(name: str, descending: bool) -> None:
    dtype = dtypes.parse(name)
    x = elements(np.random.default_rng(3), dtype, (3, 9))
    if dtypes.is_float(dtype):
        x[:, 2], x[:, 5] = np.nan, np.nan
        x[0, 0], x[0, 1], x[0, 3] = -0.0, 0.0, -np.inf
    elif dtype.kind in "iu":
        x[0, 0], x[0, 1] = np.iinfo(dtype).min, np.iinfo(dtype).max
    ours = TABLE["argsort"].numpy(x, axis=1, descending=descending)
    expected = [sorted_positions(row.tolist(), descending) for row in x]
    np.testing.assert_array_equal(ours, np.array(expected, np.int32))


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("spec", ["ij,jk->ik", "bij,bjk->bki", "ij,kl->", "i,j->ji", "ii,ij->j", "iij->ij", "ij->ji"])
def test_einsum(spec: str, name: str) -> None:
    dtype = dtypes.parse(name)
    rng = np.random.default_rng(4)
    lengths = dict(zip("bijkl", (2, 3, 4, 5, 6), strict=True))
    inputs = spec.split("->")[0].split(",")
    operands = [elements(rng, dtype, tuple(lengths[letter] for letter in word)) for word in inputs]
    ours = TABLE["einsum"].numpy(*operands, spec=spec)
    exact = np.einsum(spec, *(operand.astype(np.float64) for operand in operands))
    # The elements are small multiples of 1/2: sums are exact in float64 and in 64-bit integers.
    expected = exact.astype(dtype) if dtypes.is_float(dtype) else exact.astype(np.int64).astype(dtype)
    assert ours.dtype == dtype
    np.testing.assert_array_equal(ours, expected)
