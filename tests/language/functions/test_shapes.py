from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import polyrhythm as pr
from polyrhythm.errors import AxisError, DTypeError, ShapeError
from tests.language.functions.helpers import assert_close, f32, on_constants, on_dynamic_axis, random_array

SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@given(SHAPES, st.data())
def test_reshape_as_in_numpy(shape: tuple[int, ...], data: st.DataObject) -> None:
    x = np.arange(math.prod(shape), dtype="int32").reshape(shape)
    rest, target = x.size, []
    while rest > 1:
        divisor = data.draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
        target.append(divisor)
        rest //= divisor
    target = [*target, 0] if x.size == 0 else target
    if x.size and data.draw(st.booleans()) and target:
        target[data.draw(st.integers(0, len(target) - 1))] = -1
    assert_close(on_constants(lambda x: x.reshape(*target), x), x.reshape(target))


def test_reshape_cancels_symbolic_factors() -> None:
    t, T = pr.dim("t")
    S = pr.size("S")
    x = pr.input("x", (4, S), (t,))[0:T]
    assert x.reshape(-1, 4).shape[0] is S * T
    assert x.reshape(T, -1).shape == (T, 4 * S)
    assert x.reshape(S, -1, 2).shape[1] is 2 * T
    assert x.reshape(2, T, -1).shape[2] is 2 * S
    assert x.flatten().shape[0] is 4 * S * T
    y = pr.input("y", (6,), (t,))[0 : t + 1]
    assert y.reshape(-1, 3).shape[0] is 2 * t + 2
    assert y.reshape(3, -1).shape[1] is 2 * t + 2
    assert y.reshape(t + 1, 2, -1).shape[2] == 3
    with pytest.raises(ShapeError, match="do not divide"):
        y.reshape(-1, 4)
    with pytest.raises(ShapeError, match="do not divide"):
        y.reshape(T, -1)


def test_reshape_of_a_dynamic_axis() -> None:
    x = random_array((4, 6))
    assert_close(on_dynamic_axis(lambda x: x.reshape(-1, 3), x), x.reshape(-1, 3))
    assert_close(on_dynamic_axis(lambda x: x.reshape(x.shape[0], 2, -1), x), x.reshape(4, 2, 3))
    assert_close(on_dynamic_axis(lambda x: x.flatten(), x), x.ravel())


@given(SHAPES, st.data())
def test_orders_of_axes(shape: tuple[int, ...], data: st.DataObject) -> None:
    x = np.arange(math.prod(shape)).reshape(shape).astype("int32")
    order = data.draw(st.permutations(range(len(shape))))
    assert_close(on_constants(lambda x: x.transpose(order), x), x.transpose(order))
    assert_close(on_constants(lambda x: x.T, x), x.T)
    if shape:
        a, b = (data.draw(st.integers(-len(shape), len(shape) - 1)) for _ in range(2))
        assert_close(on_constants(lambda x: x.swapaxes(a, b), x), x.swapaxes(a, b))
        assert_close(on_constants(lambda x: pr.flip(x, a), x), np.flip(x, a))


@given(SHAPES, st.data())
def test_axes_of_length_one(shape: tuple[int, ...], data: st.DataObject) -> None:
    x = np.zeros(shape, "int32")
    axis = data.draw(st.integers(-len(shape) - 1, len(shape)))
    both = tuple(data.draw(st.permutations(range(len(shape) + 2)))[:2])
    assert_close(on_constants(lambda x: x.unsqueeze(axis), x), np.expand_dims(x, axis))
    assert_close(on_constants(lambda x: x.unsqueeze(both), x), np.expand_dims(x, both))
    assert_close(on_constants(lambda x: x.squeeze(), x), x.squeeze())
    wide = np.expand_dims(x, axis)
    assert_close(on_constants(lambda x: x.squeeze(axis), wide), wide.squeeze(axis))


@given(SHAPES, st.data())
def test_tile_and_repeat_as_in_numpy(shape: tuple[int, ...], data: st.DataObject) -> None:
    x = np.arange(math.prod(shape)).reshape(shape).astype("int32")
    times = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple))
    assert_close(on_constants(lambda x: x.tile(times), x), np.tile(x, times))
    if shape:
        axis, count = data.draw(st.integers(-len(shape), len(shape) - 1)), times[0]
        assert_close(on_constants(lambda x: x.repeat(count, axis), x), np.repeat(x, count, axis))


@given(SHAPES.filter(len), st.integers(-9, 9), st.data())
def test_roll_as_in_numpy(shape: tuple[int, ...], shift: int, data: st.DataObject) -> None:
    x = np.arange(math.prod(shape)).reshape(shape).astype("int32")
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    assert_close(on_constants(lambda x: x.roll(shift, axis), x), np.roll(x, shift, axis))
    assume(shape[0] > 0)
    assert_close(on_dynamic_axis(lambda x: x.roll(shift, axis), x), np.roll(x, shift, axis))


@pytest.mark.parametrize(("shift", "axis"), [((1, -2), (0, 1)), (3, (1, 0)), ((0, 1), (-1, -2)), ((2,), [1])])
def test_roll_along_several_axes(shift: Any, axis: Any) -> None:
    x = np.arange(12, dtype="float32").reshape(3, 4)
    assert_close(on_constants(lambda x: pr.roll(x, shift, axis), x), np.roll(x, shift, tuple(axis)))


def test_roll_by_a_step() -> None:
    t, T = pr.dim("t")
    x = np.arange(4, dtype="float32")
    result = pr.evaluate(pr.roll(pr.constant(x), t), bounds={T: 6})
    assert_close(result, np.stack([np.roll(x, k) for k in range(6)]))


def test_expand() -> None:
    x = random_array((1, 3))
    assert_close(on_constants(lambda x: x.expand(2, 4, -1), x), np.broadcast_to(x, (2, 4, 3)))
    assert_close(on_constants(lambda x: x.expand((4, 3)), x), np.broadcast_to(x, (4, 3)))
    assert_close(on_constants(lambda x: pr.broadcast_to(x, (4, 3)), x), np.broadcast_to(x, (4, 3)))
    _, T = pr.dim("t")
    assert pr.zeros((1, 3)).expand(T, -1).shape[0] is T
    with pytest.raises(ShapeError):
        pr.zeros((2, 3)).expand(4, 3)
    with pytest.raises(ShapeError, match="negative"):
        pr.zeros((3,)).expand(-1, 3)


def test_concat_and_stack() -> None:
    a, b = random_array((4, 3), seed=1), random_array((4, 2), "int32", 2)
    assert_close(
        on_dynamic_axis(lambda x, y: pr.concat([x, y, x], 1), a, b), np.concatenate([a, b.astype("float32"), a], 1)
    )
    c = random_array((4, 3), seed=3)
    assert_close(on_dynamic_axis(lambda x, y: pr.concat([x, y]), a, c), np.concatenate([a, c]))
    for axis in (0, 1, -1):
        assert_close(on_dynamic_axis(lambda x, y, k=axis: pr.stack([x, y], k), a, c), np.stack([a, c], axis))
    assert_close(pr.evaluate(pr.stack([1.0, 2.0])), f32([1, 2]))
    for wrong, text in [
        (lambda: pr.concat([]), "at least one"),
        (lambda: pr.concat(pr.zeros((2, 2))), r"pr.concat\(\[x, y\]\)"),  # type: ignore[arg-type]
        (lambda: pr.concat([1.0, 2.0]), "pr.stack"),
        (lambda: pr.stack([pr.zeros(2), pr.zeros(())]), "one shape"),
    ]:
        with pytest.raises(ShapeError, match=text):
            wrong()


@given(st.integers(0, 7), st.lists(st.integers(0, 9), max_size=3).map(sorted))
def test_split_as_in_numpy(length: int, cuts: list[int]) -> None:
    x = np.arange(2 * length, dtype="int32").reshape(length, 2)
    for part, expected in zip(on_constants(lambda x: x.split(cuts), x), np.split(x, cuts), strict=True):
        assert_close(part, expected)


def test_split_of_dynamic_axes() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (4,), (t,))
    halves = pr.split(x[0:T], 2, axis=1)
    assert [half.shape for half in halves] == [(T, 2), (T, 2)]
    doubled = pr.split(x[0:T].reshape(-1, 2), 2)
    assert [part.shape[0] for part in doubled] == [T, T]
    before, after = pr.split(x[0:T], [t])
    assert (before.shape[0], after.shape[0]) == (t, T - t)
    with pytest.raises(ShapeError, match="equal parts"):
        pr.split(x[0:T], 2)
    with pytest.raises(ShapeError, match="equal parts"):
        pr.split(pr.zeros(4), 0)


@pytest.mark.parametrize("widths", [1, (1, 2), [(0, 1), (2, 0)]], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_pad(widths: Any, dtype: str) -> None:
    x = random_array((3, 2), dtype)
    assert_close(on_dynamic_axis(lambda x: x.pad(widths), x), np.pad(x, widths))
    if dtype == "float32":
        assert_close(on_constants(lambda x: x.pad(widths, 1.5), x), np.pad(x, widths, constant_values=1.5))


def test_pad_by_a_step() -> None:
    t, T = pr.dim("t")
    padded = pr.pad(pr.input("x", (), (t,))[0 : t + 1], (0, T - t - 1))
    assert padded.shape == (T,)
    assert_close(pr.evaluate(padded, {"x": [1.0, 2.0]}), f32([[1, 0], [1, 2]]))


def test_refusals() -> None:
    x = pr.zeros((2, 3))
    for wrong, kind, text in [
        (lambda: x.reshape(-1, -1), ShapeError, "at most one"),
        (lambda: x.reshape(4), ShapeError, "elements"),
        (lambda: x.transpose(0, 0), AxisError, "every axis once"),
        (lambda: x.squeeze(0), ShapeError, "length 1"),
        (lambda: x.pad([(1, 1)]), ShapeError, "pair per axis"),
        (lambda: x.pad(-1), ShapeError, "negative"),
        (lambda: pr.pad(pr.constant([1]), 1, 0.5), DTypeError, "0.5"),
        (lambda: x.unsqueeze(4), AxisError, "from -3 to 2"),
        (lambda: x.roll(0.5, 0), DTypeError, "integers"),
        (lambda: x.roll((1, 2), (0,)), ShapeError, "2 shifts along 1 axes"),
        (lambda: x.roll((1, 2), 0), ShapeError, "several shifts along one axis"),
    ]:
        with pytest.raises(kind, match=text):
            wrong()
