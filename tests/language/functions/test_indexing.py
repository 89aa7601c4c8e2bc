from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.errors import AxisError, DTypeError, ShapeError
from tests.language.functions.helpers import assert_close, i32, on_constants, on_dynamic_axis, on_prefixes, random_array


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_take(axis: int) -> None:
    x, indices = random_array((4, 3)), i32([[2, 0], [7, -1]])
    expected = np.take(x, indices, axis, mode="clip")
    assert_close(on_constants(lambda x, i: pr.take(x, i, axis), x, indices), expected)
    assert_close(on_dynamic_axis(lambda x: x.take(pr.constant(indices), axis), x), expected)


@pytest.mark.parametrize("axis", [0, 1])
def test_gather(axis: int) -> None:
    x, indices = random_array((4, 3)), np.argsort(random_array((4, 3), seed=1), axis)
    expected = np.take_along_axis(x, indices, axis)
    assert_close(on_constants(lambda x, i: x.gather(i, axis), x, indices), expected)
    assert_close(on_dynamic_axis(lambda x, i: x.gather(i, axis), x, indices), expected)


def test_scatter_add() -> None:
    x, updates, indices = random_array((3, 2)), random_array((4, 2), seed=1), i32([0, 2, 0, 1])
    expected = x.copy()
    np.add.at(expected, indices, updates)
    assert_close(on_constants(lambda x, u: pr.scatter_add(x, pr.constant(indices), u), x, updates), expected)
    counts = pr.scatter_add(pr.zeros(4, "int32"), pr.constant([1, 3, 1, 9, -1]), 1)
    np.testing.assert_array_equal(pr.evaluate(counts), [0, 2, 0, 1])


def test_scatter_add_of_a_dynamic_number_of_updates() -> None:
    updates, indices = random_array((5, 2)), i32([0, 2, 0, 1, 2])
    expected = np.zeros((3, 2), "float32")
    np.add.at(expected, indices, updates)
    assert_close(on_dynamic_axis(lambda u, i: pr.scatter_add(pr.zeros((3, 2)), i, u), updates, indices), expected)


def test_scatter_add_along_is_the_adjoint_of_gather() -> None:
    x, updates = random_array((3, 4)), random_array((3, 2), seed=1)
    indices = i32([[0, 3], [1, 1], [2, 0]])
    expected = x.copy()
    np.add.at(expected, (np.arange(3)[:, None], indices), updates)
    assert_close(on_constants(lambda x, i, u: pr.scatter_add_along(x, i, u, 1), x, indices, updates), expected)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot(axis: int) -> None:
    indices = i32([[0, 2, 5], [1, -1, 3]])
    expected = np.asarray(jax.nn.one_hot(indices, 4, axis=axis))
    assert_close(on_constants(lambda i: pr.one_hot(i, 4, axis=axis), indices), expected)
    assert_close(on_constants(lambda i: pr.one_hot(i, 4, "bool", axis), indices), expected.astype(bool))


def test_one_hot_of_dynamic_length() -> None:
    t, T = pr.dim("t")
    np.testing.assert_array_equal(pr.evaluate(pr.one_hot(t, T), bounds={T: 3}), np.eye(3, dtype="float32"))


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bfloat16"])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("axis", [0, -1])
def test_sorting(dtype: str, descending: bool, axis: int) -> None:
    x = np.asarray(pr.evaluate(pr.cast(pr.constant(random_array((5, 4)) * 5), dtype)))
    keys = -x.astype("float64") if descending else x.astype("float64")
    order = np.argsort(keys, axis, kind="stable").astype("int32")
    assert_close(on_dynamic_axis(lambda x: x.argsort(axis, descending), x), order)
    assert_close(on_constants(lambda x: x.sort(axis, descending), x), np.take_along_axis(x, order, axis))


def test_topk() -> None:
    x = random_array((4, 6))
    values, indices = jax.lax.top_k(x, 3)
    for result, expected in zip(on_constants(lambda x: x.topk(3), x), (values, indices), strict=True):
        assert_close(result, np.asarray(expected))
    for result, expected in zip(on_dynamic_axis(lambda x: x.topk(2, 0), x), jax.lax.top_k(x.T, 2), strict=True):
        assert_close(result, np.asarray(expected).T)


def test_greatest_of_each_prefix() -> None:
    x = random_array((5,))
    assert_close(on_prefixes(lambda x: x.topk(1)[0], x), np.maximum.accumulate(x)[:, None])


@pytest.mark.parametrize("k", [4, -1])
def test_topk_of_too_many(k: int) -> None:
    with pytest.raises(ShapeError, match="0 to 3"):
        pr.topk(pr.zeros(3), k)


def test_refusals() -> None:
    x: Any = pr.zeros((2, 3))
    with pytest.raises(DTypeError, match="int32"):
        pr.take(x, pr.constant([0.5]), 0)
    with pytest.raises(AxisError):
        pr.take(x, 0, 2)
    with pytest.raises(ShapeError):
        pr.gather(x, pr.constant([0]), 0)
    with pytest.raises(ShapeError):
        pr.scatter_add(x, pr.constant([0]), pr.zeros((2, 2)))
