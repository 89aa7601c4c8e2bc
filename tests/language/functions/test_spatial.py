from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays, basic_indices

import polyrhythm as pr
from polyrhythm.errors import AxisError, DTypeError, IndexingError, OutOfRangeError
from tests.language.functions.helpers import assert_close, f32, on_constants, on_dynamic_axis, random_array

SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype="int32").reshape(shape)


@settings(max_examples=100)
@given(SHAPES, st.data())
def test_basic_indexing_as_in_numpy(shape: tuple[int, ...], data: st.DataObject) -> None:
    key = data.draw(basic_indices(shape, allow_newaxis=True, max_dims=8))
    x = numbered(shape)
    assert_close(on_constants(lambda x: x.axes[key], x), np.asarray(x[key]))


@settings(max_examples=60)
@given(
    st.integers(0, 6),
    st.none() | st.integers(-8, 8),
    st.none() | st.integers(-8, 8),
    st.none() | st.integers(-3, 3).filter(bool),
)
def test_slices_of_a_dynamic_axis_as_in_numpy(length: int, start: Any, stop: Any, step: Any) -> None:
    x = numbered((length, 2))
    key = slice(start, stop, step)
    assert_close(on_constants(lambda x: x.axes[key], x), x[key])
    assert_close(on_dynamic_axis(lambda x: x.axes[key], x), x[key])


@settings(max_examples=60)
@given(SHAPES.filter(len), st.data())
def test_one_integer_tensor_as_in_numpy(shape: tuple[int, ...], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(shape) - 1))
    length = max(shape[place], 1)
    shape = (*shape[:place], length, *shape[place + 1 :])
    form = data.draw(st.sampled_from([(), (0,), (2,), (2, 3)]))
    indices = data.draw(arrays("int32", form, elements=st.integers(-length, length - 1)))
    entries: list[Any] = []
    for axis, n in enumerate(shape):
        if axis == place:
            entries.append(indices)
        else:
            entry: Any = data.draw(st.sampled_from([slice(None), slice(1, None), slice(None, None, -1), 0, -1]))
            entries.append(slice(None) if isinstance(entry, int) and n == 0 else entry)
        if data.draw(st.integers(0, 5)) == 0:
            entries.append(None)
        if data.draw(st.integers(0, 5)) == 0 and not any(entry is Ellipsis for entry in entries):
            entries.append(Ellipsis)
    x = numbered(shape)
    assert_close(on_constants(lambda x: x.axes[tuple(entries)], x), x[tuple(entries)])


def test_positions_of_a_dynamic_axis() -> None:
    x = random_array((5, 3))
    assert_close(on_dynamic_axis(lambda x: x.axes[-1, 0], x), np.asarray(x[-1, 0]))
    assert_close(on_dynamic_axis(lambda x: x.axes[:, -1], x), x[:, -1])
    assert_close(on_dynamic_axis(lambda x: x.axes[[0, -1]], x), x[[0, -1]])


def test_index_expressions_as_positions() -> None:
    t, T = pr.dim("t")
    array = random_array((4, 3))
    x = pr.input("x", (3,), (t,))[0:T]
    assert_close(pr.evaluate(x.axes[T - 1 - t], {"x": array}), array[::-1])
    assert_close(pr.evaluate(x.axes[t, t % 3], {"x": array}), array[range(4), np.arange(4) % 3])


def test_index_expressions_as_bounds_are_clamped() -> None:
    t, T = pr.dim("t")
    array = random_array((4,))
    x = pr.input("x", (), (t,))[0:T]
    assert x.axes[: t + 1].shape == (t + 1,)
    assert x.axes[t:].shape == (T - t,)
    assert_close(pr.evaluate(x.axes[: t + 1].sum(), {"x": array}), np.cumsum(array))
    windows = f32([array[max(t - 1, 0) : t + 3].sum() for t in range(4)])
    assert_close(pr.evaluate(x.axes[t - 1 : t + 3].sum(), {"x": array}), windows)
    assert_close(pr.evaluate(x.axes[t::-2].sum(), {"x": array}), f32([array[t::-2].sum() for t in range(4)]))


def test_data_positions_are_clamped() -> None:
    x = f32([1, 2, 3])
    assert_close(on_constants(lambda x: x.axes[pr.constant([7, -9, -1])], x), f32([3, 1, 3]))
    assert_close(on_constants(lambda x: x.axes[pr.constant([200, 1], "uint8")], x), f32([3, 2]))


@pytest.mark.parametrize(
    ("key", "kind", "text"),
    [
        ((0, 0, 0), AxisError, "3 entries for a value with 2 axes"),
        ((..., 0, ...), AxisError, "more than one ellipsis"),
        (2, OutOfRangeError, "from -2 to 1"),
        ((0, -4), OutOfRangeError, "from -3 to 2"),
        (True, IndexingError, "pr.where"),
        (np.array([True, False]), IndexingError, "pr.where"),
        (0.5, DTypeError, "integer"),
        (np.array([0.5]), DTypeError, "integers"),
        (slice(None, None, 0), IndexingError, "step"),
        (slice(0.5), DTypeError, "index"),
        (([0], [1]), IndexingError, "only one tensor"),
    ],
    ids=str,
)
def test_refusals(key: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        pr.zeros((2, 3)).axes[key]


def test_a_condition_is_a_mask() -> None:
    t, _ = pr.dim("t")
    with pytest.raises(IndexingError, match=r"pr\.where"):
        pr.zeros((2, 3)).axes[t > 0]  # type: ignore[index]
    with pytest.raises(OutOfRangeError, match="the axis is empty"):
        pr.zeros((0,)).axes[0]
