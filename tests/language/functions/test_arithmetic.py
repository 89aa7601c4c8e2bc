from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.errors import DTypeError, ShapeError
from tests.language.functions.helpers import assert_close, f32, i8, i32, on_constants, on_dynamic_axis, random_array

OPERATORS = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
]
DTYPES = ["int8", "uint8", "int32", "float16", "bfloat16", "float32"]


def all_operators(a: Any, b: Any) -> tuple[Any, ...]:
    return tuple(function(a, b) for function in OPERATORS)


def assert_all_close(results: tuple[np.ndarray, ...], expected: tuple[Any, ...]) -> None:
    for function, result, wanted in zip(OPERATORS, results, expected, strict=True):
        assert result.dtype == wanted.dtype, function.__name__
        assert_close(result, np.asarray(wanted))


@pytest.mark.parametrize("right", DTYPES)
@pytest.mark.parametrize("left", DTYPES)
def test_operators_promote_as_jax_does(left: str, right: str) -> None:
    a = jnp.asarray(random_array((3, 2), "int8", 1) % 5, left)
    b = jnp.asarray(random_array((2,), "int8", 2) % 5 + 1, right)
    assert_all_close(on_constants(all_operators, np.asarray(a), np.asarray(b)), jax.jit(all_operators)(a, b))


@pytest.mark.parametrize("scalar", [2, 2.5])
@pytest.mark.parametrize("dtype", ["bool", *DTYPES])
def test_python_scalars_are_weak(scalar: float, dtype: str) -> None:
    a = jnp.asarray(random_array((4,), "int8", 3) % 5 + 1, dtype)
    for reflected in (False, True):

        def function(x: Any, reflected: bool = reflected) -> tuple[Any, ...]:
            return all_operators(scalar, x) if reflected else all_operators(x, scalar)

        assert_all_close(on_constants(function, np.asarray(a)), jax.jit(function)(a))


def test_numpy_scalars_on_the_left() -> None:
    a = f32([1, 2, -4])
    assert_all_close(on_constants(lambda x: all_operators(np.float32(3), x), a), all_operators(np.float32(3), a))


def test_a_python_float_is_rounded_once() -> None:
    x = np.array([1.0])
    assert on_constants(lambda x: x * 0.1, x)[0] == 0.1


def test_numpy_default_scalars_are_weak_too() -> None:
    assert on_constants(lambda x: x / np.sqrt(2), f32([1])).dtype == np.float32
    assert on_constants(lambda x: x + np.prod([2, 3]), i8([1])).dtype == np.int8


def test_weakness_survives_arithmetic_between_scalars() -> None:
    half = pr.exp(0) / 2
    assert half.weak
    assert (pr.constant([1.0], "bfloat16") * half).dtype == np.dtype("bfloat16")


def test_index_expressions_are_operands() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))
    result = pr.evaluate(x * t + (T - t), {"x": [1.0, 2.0, 3.0]})
    np.testing.assert_array_equal(result, f32([3, 4, 7]))


def test_conditions_meet_data_conditions() -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,))
    np.testing.assert_array_equal(pr.evaluate((t > 0) & (x > 1), {"x": [5.0, 0.0, 2.0]}), [False, False, True])


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -1, -2.0])
def test_powers_of_floats(exponent: float) -> None:
    a = f32([0.5, 2.0, 3.0])
    assert_close(on_constants(lambda x: x**exponent, a), np.asarray(jnp.asarray(a) ** exponent), 4)


def test_powers_of_integers() -> None:
    np.testing.assert_array_equal(on_constants(lambda x: x**3, i32([-2, 3])), i32([-8, 27]))
    assert_close(on_constants(lambda x: 2.0**x, i32([-2, 3])), f32([0.25, 8]))
    for wrong in (lambda x: x**-1, lambda x: x**x, lambda x: 2**x):
        with pytest.raises(DTypeError, match="float32"):
            wrong(pr.constant([1, 2]))


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_logic(name: str) -> None:
    a, b = f32([0, 0, 1, 2]), i32([0, 1, 0, 3])
    np.testing.assert_array_equal(on_constants(getattr(pr, name), a, b), getattr(np, name)(a, b))


@pytest.mark.parametrize("function", [operator.and_, operator.or_, operator.xor], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", ["bool", "int32", "uint8"])
def test_bits(function: Callable[..., Any], dtype: str) -> None:
    a, b = random_array((8,), dtype, 1), random_array((8,), dtype, 2)
    np.testing.assert_array_equal(on_constants(function, a, b), function(a, b))
    np.testing.assert_array_equal(on_constants(operator.invert, a), ~a)


def test_where_promotes_and_broadcasts() -> None:
    condition, a = np.array([True, False]), f32([[1], [2]])
    result = on_constants(lambda c, x: pr.where(c, x, 7), condition, a)
    assert_close(result, f32([[1, 7], [2, 7]]))


def test_where_refuses_numbers_as_condition() -> None:
    with pytest.raises(DTypeError, match="x != 0"):
        pr.where(pr.constant([1.0]), 1, 2)


def test_where_on_an_index_condition_reads_only_the_chosen_branch() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (2,), (t,))
    value = pr.where(t + 1 < T, x[t + 1], -1)
    array = random_array((4, 2))
    assert_close(pr.evaluate(value, {"x": array}), np.concatenate([array[1:], np.full((1, 2), -1, "float32")]))


def test_clip_and_extrema() -> None:
    a = f32([-2, 0.5, 2])
    assert_close(on_constants(lambda x: x.clip(-1, 1), a), a.clip(-1, 1))
    assert_close(on_constants(lambda x: pr.clip(x, high=0), a), np.minimum(a, 0))
    assert_close(on_constants(lambda x: pr.maximum(x, 0), a), np.maximum(a, 0))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "bool"])
def test_casts(dtype: str) -> None:
    a = f32([0.0, 1.75, -3.0])
    assert_close(on_constants(lambda x: x.cast(dtype), a), a.astype(np.dtype(pr.cast(1.0, dtype).dtype)))


def test_operators_on_a_dynamic_axis() -> None:
    a, b = random_array((4, 3), seed=1), random_array((4, 1), seed=2)
    assert_close(on_dynamic_axis(lambda x, y: x * y - 1, a, b), a * b - 1)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match="broadcast"):
        pr.constant([1, 2]) + pr.constant([1, 2, 3])
    with pytest.raises(DTypeError, match="constant"):
        pr.add(pr.constant([1, 2]), [1, 2])  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="does not fit"):
        pr.constant([1], "int8") + 300
    with pytest.raises(DTypeError, match="not a supported dtype"):
        pr.cast(1.0, "float8")
