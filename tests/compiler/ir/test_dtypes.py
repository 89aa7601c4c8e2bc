"""Promotion against JAX, exhaustively; names, accumulators and identities against what they are for."""

from itertools import product

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.dtypes import Operand

STRONG: list[Operand] = [(dtype, False) for dtype in dtypes.DTYPES]
WEAK: list[Operand] = [dtypes.python_scalar(1), dtypes.python_scalar(1.5)]


def in_jax(operand: Operand) -> object:
    dtype, weak = operand
    return {"int": 1, "float": 1.5}[dtypes.kind(dtype)] if weak else jnp.zeros((), dtype)


def promoted_by_jax(a: Operand, b: Operand) -> Operand:
    with jax.enable_x64(True):
        dtype, weak = jax.dtypes.result_type(in_jax(a), in_jax(b), return_weak_type_flag=True)
    # With 64-bit types on, JAX's weak types are 64 bits wide; ours have the default width.
    return ({"i": dtypes.INT32, "f": dtypes.FLOAT32}[dtype.kind], True) if weak else (dtype, False)


@pytest.mark.parametrize(("a", "b"), list(product(STRONG + WEAK, STRONG + WEAK)))
def test_promotion_is_that_of_jax(a: Operand, b: Operand) -> None:
    assert dtypes.promote(a, b) == promoted_by_jax(a, b)


@pytest.mark.parametrize(("a", "b"), list(product(dtypes.DTYPES, dtypes.DTYPES)))
def test_promotion_is_that_of_promote_types(a: np.dtype, b: np.dtype) -> None:
    ours, weak = dtypes.promote((a, False), (b, False))
    with jax.enable_x64(True):
        assert (np.dtype("float64") if weak else ours) == jnp.promote_types(a, b)


def test_promotion_is_associative_commutative_and_idempotent() -> None:
    everything = STRONG + WEAK
    for a, b, c in product(everything, everything, everything):
        assert dtypes.promote(dtypes.promote(a, b), c) == dtypes.promote(a, dtypes.promote(b, c))
        assert dtypes.promote(a, b) == dtypes.promote(b, a)
        assert dtypes.promote(a, a) == a


def test_python_bool_is_the_bottom() -> None:
    truth = dtypes.python_scalar(True)
    assert all(dtypes.promote(truth, other) == other for other in STRONG + WEAK)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("f32", "float32"),
        ("float32", "float32"),
        (np.float32, "float32"),
        (np.dtype("float32"), "float32"),
        (jnp.float32, "float32"),
        (float, "float32"),
        (int, "int32"),
        (bool, "bool"),
        ("bool", "bool"),
        ("u8", "uint8"),
        ("i64", "int64"),
        ("f16", "float16"),
        ("bf16", "bfloat16"),
        ("bfloat16", "bfloat16"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (jnp.bfloat16, "bfloat16"),
    ],
)
def test_names(name: object, expected: str) -> None:
    assert dtypes.parse(name).name == expected


@pytest.mark.parametrize("name", [None, "float", "f8", "f4", "complex256", np.clongdouble, str, object(), 3])
def test_what_is_no_dtype_is_refused(name: object) -> None:
    with pytest.raises(ValueError, match="not a supported dtype"):
        dtypes.parse(name)


@pytest.mark.parametrize("dtype", dtypes.DTYPES)
def test_short_names_parse_back(dtype: np.dtype) -> None:
    assert dtypes.parse(dtypes.short(dtype)) == dtype
    assert dtypes.parse(str(dtype)) == dtype


@pytest.mark.parametrize("dtype", dtypes.DTYPES)
def test_kinds(dtype: np.dtype) -> None:
    is_a = {"bool": jnp.bool_, "int": jnp.integer, "float": jnp.floating, "complex": jnp.complexfloating}
    assert [k for k, parent in is_a.items() if jnp.issubdtype(dtype, parent)] == [dtypes.kind(dtype)]
    assert dtypes.is_float(dtype) == jnp.issubdtype(dtype, jnp.floating)


@pytest.mark.parametrize("dtype", dtypes.DTYPES)
def test_only_the_short_floats_accumulate_wider(dtype: np.dtype) -> None:
    expected = "float32" if dtype.name in ("float16", "bfloat16") else dtype.name
    assert dtypes.accumulator(dtype).name == expected


def extremes(dtype: np.dtype) -> np.ndarray:
    """The extreme elements of a dtype, and some between."""
    if dtype.kind == "c":
        return np.array([-1.5, 0, 2.5j, 1 - 1j], dtype)
    if dtypes.is_float(dtype):
        return np.array([-np.inf, -1.5, 0, 2.5, np.inf], dtype)
    if dtype == np.bool_:
        return np.array([False, True])
    return np.array([np.iinfo(dtype).min, 0, 1, np.iinfo(dtype).max], dtype)


MONOIDS = ("sum", "prod", "max", "min", "any", "all")


@pytest.mark.parametrize(
    ("monoid", "dtype"),
    [(m, d) for m in MONOIDS for d in dtypes.DTYPES if d.kind != "c" or m not in ("max", "min")],  # they have no order
)
def test_identities_are_neutral(monoid: str, dtype: np.dtype) -> None:
    combine = {
        "sum": np.add,
        "prod": np.multiply,
        "max": np.maximum,
        "min": np.minimum,
        "any": np.logical_or,
        "all": np.logical_and,
    }[monoid]
    if monoid in ("any", "all"):
        dtype = np.dtype(bool)
    neutral = dtypes.identity(monoid, dtype)
    assert (neutral.shape, neutral.dtype) == ((), dtype)
    elements = extremes(dtype)
    np.testing.assert_array_equal(combine(elements, neutral), elements)


def test_an_unknown_monoid_is_refused() -> None:
    with pytest.raises(ValueError, match="not a monoid"):
        dtypes.identity("median", dtypes.FLOAT32)
