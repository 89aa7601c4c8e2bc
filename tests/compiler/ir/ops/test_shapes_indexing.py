"""Shapes, indexing, windows and creation against NumPy, JAX and plain loops."""

from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.ops import TABLE
from tests.compiler.ir.ops.samples import NUMBERS, elements


def random(shape: tuple[int, ...], dtype: str = "f32") -> np.ndarray:
    return elements(np.random.default_rng(sum(shape)), dtypes.parse(dtype), shape)


def test_reshape_transpose_broadcast_concat() -> None:
    x, y = random((2, 3, 4)), random((2, 5, 4))
    np.testing.assert_array_equal(TABLE["reshape"].numpy(x, shape=(6, 4)), x.reshape(6, 4))
    np.testing.assert_array_equal(TABLE["transpose"].numpy(x, axes=(2, 0, 1)), jnp.transpose(x, (2, 0, 1)))
    np.testing.assert_array_equal(
        TABLE["broadcast"].numpy(x[:, :1], shape=(7, 2, 3, 4)), np.broadcast_to(x[:, :1], (7, 2, 3, 4))
    )
    np.testing.assert_array_equal(TABLE["concat"].numpy(x, y, axis=1), np.concatenate([x, y], 1))


def test_pad() -> None:
    x = random((2, 3))
    ours = TABLE["pad"].numpy(x, before=(1, 0), after=(0, 2), value=-np.inf)
    np.testing.assert_array_equal(ours, np.pad(x, ((1, 0), (0, 2)), constant_values=-np.inf))


@pytest.mark.parametrize("step", [1, 2, 3, -1, -2])
def test_slice_takes_exactly_the_elements_it_names(step: int) -> None:
    x = np.arange(7)
    for start, length in product(range(7), range(5)):
        positions = [start + step * n for n in range(length)]
        call = {"starts": (start,), "lengths": (length,), "steps": (step,)}
        if all(0 <= position < 7 for position in positions):
            np.testing.assert_array_equal(TABLE["slice"].numpy(x, **call), x[positions] if positions else x[:0])
        else:
            with pytest.raises(ValueError, match="leaves an axis"):
                TABLE["slice"].numpy(x, **call)


def test_an_empty_slice_may_start_anywhere() -> None:
    for start in (-1, 0, 3, 9):
        assert TABLE["slice"].numpy(np.arange(3), starts=(start,), lengths=(0,), steps=(1,)).shape == (0,)


INDICES = [
    np.array([[0, 2], [1, 1]], np.int32),
    np.array([-1, -100, 3, 100], np.int8),
    np.array([0, 255], np.uint8),
    np.array([0, 2**64 - 1, 2**63], np.uint64),
    np.array(2, np.int64),
    np.zeros((0, 2), np.int32),
]


def clamped(index: int, length: int) -> int:
    return min(max(index, 0), length - 1)


@pytest.mark.parametrize("indices", INDICES, ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_take_clamps(indices: np.ndarray, axis: int) -> None:
    x = random((3, 4, 2))
    ours = TABLE["take"].numpy(x, indices, axis=axis)
    wanted = np.array([clamped(int(n), x.shape[axis]) for n in indices.ravel()], int).reshape(indices.shape)
    np.testing.assert_array_equal(ours, np.take(x, wanted, axis))
    if indices.dtype == np.int32:
        np.testing.assert_array_equal(ours, jnp.take(x, np.clip(indices, 0, None), axis, mode="clip"))


def test_taking_from_an_empty_axis_gives_zeros() -> None:
    indices = np.array([0, 1], np.int32)
    np.testing.assert_array_equal(TABLE["take"].numpy(np.ones((0, 3)), indices, axis=0), np.zeros((2, 3)))
    along = TABLE["take_along"].numpy(np.ones((0, 3)), indices[:, None], axis=0)
    np.testing.assert_array_equal(along, np.zeros((2, 3)))


@pytest.mark.parametrize("indices", INDICES, ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", ["f32", "bf16", "i8"])
def test_scatter_add_drops_what_is_out_of_range(indices: np.ndarray, axis: int, name: str) -> None:
    base = random((3, 4, 2), name)
    updates = random((*base.shape[:axis], *indices.shape, *base.shape[axis + 1 :]), name)
    expected = base.astype(np.float64)
    for where in np.ndindex(updates.shape):
        index = int(indices[where[axis : axis + indices.ndim]])
        if 0 <= index < base.shape[axis]:
            expected[(*where[:axis], index, *where[axis + indices.ndim :])] += float(updates[where])
    ours = TABLE["scatter_add"].numpy(base, indices, updates, axis=axis)
    np.testing.assert_array_equal(ours.astype(np.float64), expected)


@pytest.mark.parametrize("axis", [0, 1])
def test_take_along_and_its_adjoint(axis: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 4))
    shape = (6, 4) if axis == 0 else (4, 6)
    indices = rng.integers(-3, 8, shape).astype(np.int32)
    taken = TABLE["take_along"].numpy(x, indices, axis=axis)
    np.testing.assert_array_equal(taken, np.take_along_axis(x, np.clip(indices, 0, 3), axis))

    inside = rng.integers(0, 4, shape).astype(np.int32)
    updates = rng.standard_normal(shape)
    scattered = TABLE["scatter_along"].numpy(np.zeros((4, 4)), inside, updates, axis=axis)
    taken = TABLE["take_along"].numpy(x, inside, axis=axis)
    np.testing.assert_allclose(np.sum(x * scattered), np.sum(taken * updates))


def test_take_along_broadcasts_axes_of_length_one() -> None:
    x, indices = random((3, 4)), np.array([[3, 0, 9]], np.int32)
    np.testing.assert_array_equal(TABLE["take_along"].numpy(x, indices, axis=1), x[:, [3, 0, 3]])
    ours = TABLE["take_along"].numpy(x[:1], np.array([[0], [2], [1]], np.int8), axis=1)
    np.testing.assert_array_equal(ours, x[:1, [0, 2, 1]].T)


def test_scatter_along_by_a_loop() -> None:
    base, indices, updates = random((2, 3, 2)), np.array([[[0], [2], [0], [-1], [3]]], np.int32), random((2, 5, 2))
    expected = base.copy()
    for a, b, c in np.ndindex(updates.shape):
        if 0 <= indices[0, b, 0] < 3:
            expected[a, indices[0, b, 0], c] += updates[a, b, c]
    np.testing.assert_array_equal(TABLE["scatter_along"].numpy(base, indices, updates, axis=1), expected)


def test_scattered_short_floats_accumulate_in_float32() -> None:
    dtype = dtypes.BFLOAT16
    ones, indices = np.ones(4096, dtype), np.zeros(4096, np.int32)
    for op in ("scatter_add", "scatter_along"):
        assert TABLE[op].numpy(np.zeros(1, dtype), indices, ones, axis=0)[0] == dtype.type(4096)


CONVOLUTIONS = [
    ((2, 3, 8), (4, 3, 3), (1,), ((0, 0),), (1,), 1),
    ((2, 3, 9), (4, 3, 2), (2,), ((1, 2),), (3,), 1),
    ((2, 4, 7, 6), (6, 2, 3, 2), (2, 1), ((1, 1), (0, 2)), (1, 2), 2),
    ((1, 3, 4, 5, 4), (2, 3, 2, 2, 2), (1, 2, 1), ((0, 0), (1, 0), (0, 0)), (1, 1, 1), 1),
    ((2, 3, 2), (4, 3, 5), (1,), ((1, 1),), (1,), 1),
    ((0, 3, 8), (4, 3, 3), (1,), ((0, 0),), (1,), 1),
    ((2, 3), (4, 3), (), (), (), 1),
]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_conv(case: Any, name: str) -> None:
    x_shape, w_shape, stride, padding, dilation, groups = case
    x, w = random(x_shape, name), random(w_shape, name)
    ours = TABLE["conv"].numpy(x, w, stride=stride, padding=padding, dilation=dilation, groups=groups)
    with jax.enable_x64(True):
        a, b = jnp.asarray(x, jnp.float64), jnp.asarray(w, jnp.float64)
        theirs = jax.lax.conv_general_dilated(a, b, stride, padding, (), dilation, feature_group_count=groups)
        exact = np.asarray(theirs)
    # The elements are small multiples of 1/2: the convolution is exact in float64.
    expected = exact.astype(x.dtype) if dtypes.is_float(x.dtype) else exact.astype(np.int64).astype(x.dtype)
    assert ours.dtype == x.dtype
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("monoid", ["sum", "max", "min"])
@pytest.mark.parametrize("name", ["f32", "bf16", "i32", "u8"])
def test_reduce_window(monoid: str, name: str) -> None:
    dtype = dtypes.parse(name)
    combine: Any = {"sum": jax.lax.add, "max": jax.lax.max, "min": jax.lax.min}[monoid]
    for window, stride, padding in (
        ((3,), (1,), ((0, 0),)),
        ((2, 3), (2, 1), ((1, 0), (2, 2))),
        ((9, 1), (1, 1), ((0, 0), (0, 0))),
    ):
        x = random((2, 5, 7), name)
        kept = 3 - len(window)
        theirs = jax.lax.reduce_window(
            jnp.asarray(x),
            dtypes.identity(monoid, dtype)[()],
            combine,
            (1,) * kept + window,
            (1,) * kept + stride,
            ((0, 0),) * kept + padding,
        )
        ours = TABLE["reduce_window"].numpy(x, monoid=monoid, window=window, stride=stride, padding=padding)
        assert ours.dtype == dtype
        np.testing.assert_array_equal(ours, np.asarray(theirs))


def test_creation() -> None:
    np.testing.assert_array_equal(TABLE["iota"].numpy(length=4), np.arange(4, dtype=np.int32))
    assert TABLE["iota"].numpy(length=0).shape == (0,)
    assert TABLE["index"].numpy(value=-3) == np.int32(-3)
    assert TABLE["index"].numpy(value=True).dtype == np.bool_
    x = random((2, 2))
    np.testing.assert_array_equal(TABLE["constant"].numpy(value=x), x)
