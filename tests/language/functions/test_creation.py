from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import polyrhythm as pr
from polyrhythm.errors import DTypeError, ShapeError
from tests.language.functions.helpers import assert_close, f32, i32, on_dynamic_axis, random_array


def test_constants_of_python_numbers() -> None:
    assert_close(pr.evaluate(pr.constant(1.5)), np.float32(1.5))
    assert_close(pr.evaluate(pr.constant([1, 2])), i32([1, 2]))
    assert_close(pr.evaluate(pr.constant([True])), np.array([True]))
    assert_close(pr.evaluate(pr.constant([1, 2.5], "float64")), np.array([1, 2.5]))
    assert pr.constant([]).dtype == np.float32
    assert not pr.constant(1.5).weak
    with pytest.raises(DTypeError, match="int64"):
        pr.constant([2**40])


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint8", "float16", "bool"])
def test_constants_of_arrays_keep_their_dtype(dtype: str) -> None:
    assert pr.constant(np.zeros(3, dtype)).dtype == np.dtype(dtype)


def test_what_is_no_constant() -> None:
    with pytest.raises(DTypeError, match="tensor itself"):
        pr.constant(pr.zeros(3))
    with pytest.raises(DTypeError, match="supported"):
        pr.constant(["a"])


@given(st.integers(-5, 5), st.integers(-5, 5), st.integers(-3, 3).filter(bool))
def test_arange_as_in_numpy(start: int, stop: int, step: int) -> None:
    assert_close(pr.evaluate(pr.arange(start, stop, step)), i32(np.arange(start, stop, step)))


@given(st.integers(0, 4), st.integers(-3, 3).filter(bool))
def test_arange_of_steps(offset: int, step: int) -> None:
    t, T = pr.dim("t")
    total = pr.arange(t - offset, 2 * T - t, step).sum()
    expected = [i32(np.arange(k - offset, 10 - k, step)).sum(dtype="int32") for k in range(5)]
    assert_close(pr.evaluate(total, bounds={T: 5}), i32(expected))


@pytest.mark.parametrize("arguments", [(2.5,), (0, 1, 0.25), (1.0, 0.0, -0.3), (1.0, 0.0)])
def test_arange_of_floats(arguments: Any) -> None:
    assert_close(pr.evaluate(pr.arange(*arguments)), np.arange(*arguments).astype("float32"))


def test_arange_with_a_dtype() -> None:
    assert_close(pr.evaluate(pr.arange(3, dtype="bfloat16").cast("float32")), f32([0, 1, 2]))
    t, _ = pr.dim("t")
    with pytest.raises(DTypeError, match="scale"):
        pr.arange(0, t, 0.5)
    with pytest.raises(DTypeError, match="other than 0"):
        pr.arange(0, 3, 0)


def test_filled() -> None:
    t, T = pr.dim("t")
    assert_close(pr.evaluate(pr.zeros((2, 3), "int8")), np.zeros((2, 3), "int8"))
    assert_close(pr.evaluate(pr.ones(())), np.float32(1))
    assert_close(pr.evaluate(pr.full((T, 2), 2.5), bounds={T: 3}), np.full((3, 2), 2.5, "float32"))
    assert_close(pr.evaluate(pr.full(2, t), bounds={T: 2}), i32([[0, 0], [1, 1]]))
    assert not pr.full((), 1).weak
    x = pr.constant([1.0, 2.0], "float16")
    assert [f(x).dtype.name for f in (pr.zeros_like, pr.ones_like)] == ["float16", "float16"]
    assert pr.full_like(x, 3, "int32").dtype == np.int32
    with pytest.raises(ShapeError, match="negative"):
        pr.zeros(-1)


@pytest.mark.parametrize("diagonal", [-1, 0, 2])
def test_diagonals(diagonal: int) -> None:
    x = random_array((4, 3))
    assert_close(pr.evaluate(pr.eye(4, 3, diagonal)), np.eye(4, 3, diagonal, "float32"))
    assert_close(on_dynamic_axis(lambda x: pr.tril(x, diagonal), x), np.tril(x, diagonal))
    assert_close(on_dynamic_axis(lambda x: pr.triu(x, diagonal), x), np.triu(x, diagonal))
    with pytest.raises(ShapeError, match="two axes"):
        pr.tril(pr.zeros(3))


def test_triangle_of_booleans() -> None:
    mask = pr.tril(pr.ones((3, 3), "bool"))
    assert_close(pr.evaluate(mask), np.tril(np.ones((3, 3), bool)))


def test_values_of_indices() -> None:
    t, T = pr.dim("t")
    assert_close(pr.evaluate(pr.value(T - t), bounds={T: 3}), i32([3, 2, 1]))
    assert_close(pr.evaluate(pr.value(t > 1), bounds={T: 3}), np.array([False, False, True]))
    assert pr.value(3).dtype == np.int32
    with pytest.raises(DTypeError):
        pr.value(0.5)  # type: ignore[arg-type]
