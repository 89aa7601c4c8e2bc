"""`x.at[...]` against NumPy's assignment, on every backend, over dynamic axes, in recurrences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import polyrhythm as pr
from polyrhythm.errors import DataIndexError, DTypeError, IndexingError, OutOfRangeError, ShapeError
from tests.language.functions.everywhere import BACKENDS, check_everywhere
from tests.language.functions.helpers import assert_close, f32, i32, on_constants, random_array

SHAPE = (3, 4, 2)
AT = {"add": np.add.at, "max": np.maximum.at, "min": np.minimum.at}


def assigned(x: np.ndarray, key: Any, values: np.ndarray, mode: str) -> np.ndarray:
    """What NumPy makes of it; of several values for one place the last stays."""
    result = np.array(x)
    if mode == "set":
        result[key] = values
    else:
        AT[mode](result, key, values)
    return result


def entry(length: int) -> st.SearchStrategy[Any]:
    bound = st.none() | st.integers(-length - 1, length + 1)
    steps = st.sampled_from([None, 1, 2, -1, -2])
    return st.one_of(
        st.integers(-length, length - 1),
        st.builds(slice, bound, bound, steps),
        st.lists(st.integers(-length, length - 1), min_size=1, max_size=3).map(i32),
        st.just(slice(None)),
    )


@st.composite
def keys(draw: st.DrawFn) -> tuple[Any, ...]:
    """Entries for some axes; tensors among them have one length."""
    key = [draw(entry(n)) for n in SHAPE[: draw(st.integers(1, 3))]]
    count = draw(st.integers(1, 3))
    return tuple(np.resize(e, count) if isinstance(e, np.ndarray) else e for e in key)


@given(keys(), st.sampled_from(["set", "add", "max", "min"]))
def test_as_in_numpy(key: tuple[Any, ...], mode: str) -> None:
    x = random_array(SHAPE)
    values = random_array(x[key].shape, seed=3)
    expected = assigned(x, key, values, mode)
    assert_close(on_constants(lambda x, v: getattr(x.at[key], mode)(v), x, values), expected)


def test_two_tables_of_places() -> None:
    x, rows, columns = random_array((3, 4)), i32([[0], [2]]), i32([1, 3, 1])
    for mode in ("set", "add"):
        expected = assigned(x, (rows, columns), f32(7), mode)
        assert_close(on_constants(lambda x: getattr(x.at[rows, columns], mode)(7.0), x), expected)  # noqa: B023


def test_what_lies_outside_is_not_written() -> None:
    places, values = i32([5, 1, -9]), f32([1, 2, 3])
    x = f32([10, 20, 30])
    for mode, expected in {"set": 2, "add": 22, "max": 20, "min": 2}.items():
        found = on_constants(lambda x: getattr(x.at[places], mode)(pr.constant(values)), x)  # noqa: B023
        assert_close(found, f32([10, expected, 30]))
    square = np.zeros((2, 2), "float32")
    found = on_constants(lambda x: x.at[i32([0, 1]), i32([2, 1])].set(1.0), square)
    assert_close(found, f32([[0, 0], [0, 1]]))


def test_truth_values_and_integers() -> None:
    flags = np.array([True, False, False])
    assert_close(on_constants(lambda x: x.at[i32([0, 2])].set(pr.constant([False, True])), flags), flags[::-1])
    assert_close(on_constants(lambda x: x.at[1].max(True), flags), np.array([True, True, False]))
    assert_close(on_constants(lambda x: x.at[1:].add(3), i32([1, 1, 1])), i32([1, 4, 4]))


def test_refusals() -> None:
    x = pr.zeros((3,))
    with pytest.raises(DTypeError):
        x.at[pr.constant([0.5])]
    with pytest.raises(DataIndexError):
        x.at[pr.constant([True, False, True])]
    with pytest.raises(IndexingError, match="None"):
        x.at[None]
    with pytest.raises(OutOfRangeError):
        x.at[3]
    with pytest.raises(ShapeError):
        x.at[0:2].set(pr.ones((3,)))


def test_everywhere_over_a_dynamic_axis() -> None:
    i = pr.constant(i32([2, 0, 2, 7]))
    table = {
        "set": lambda x: x.at[i].set(x.axes[0] * pr.arange(4).unsqueeze(1)),
        "add": lambda x: x.at[i].add(1.0),
        "max": lambda x: x.at[i].max(0.5),
        "column": lambda x: x.at[:, 1].set(x.axes[:, 0] * 2),
        "slice": lambda x: x.at[1:, 0].set(5.0),
        "backwards": lambda x: x.at[::-2].min(0.0),
        "both": lambda x: x.at[i, 1 - i % 2].add(1.0),
    }
    x = random_array((5, 2))
    check_everywhere(table, x, gradients=True, lengths=(1, 3))
    check_everywhere({k: lambda x, f=f: f(x).sum() for k, f in table.items()}, x, prefixes=True)


def test_a_buffer_that_is_written_in_a_recurrence() -> None:
    """A replay buffer: each step writes one place that data choose, and reads another."""
    t, T = pr.dim("t")
    place, value = pr.input("place", (), (t,), "int32"), pr.input("value", (2,), (t,))
    buffer = pr.recurrent((4, 2), ((t, T + 1),))
    buffer[0] = pr.zeros((4, 2))
    buffer[t + 1] = buffer.at[place].set(value * buffer.axes[0].sum() + value)
    loss = (buffer[T] ** 2).sum()
    outputs = {"buffer": buffer[T], "gradient": pr.grad(loss, value)}
    places, values = i32([0, 2, 0, 3, 9, 0]), random_array((6, 2))
    table = np.zeros((4, 2), "float32")
    for k, v in zip(places, values, strict=True):
        if k < 4:
            table[k] = v * table[0].sum() + v
    expected = pr.evaluate(outputs, {"place": places, "value": values})
    assert_close(expected["buffer"], table)
    for backend in BACKENDS:
        found = pr.compile(outputs, backend=backend)(place=places, value=values)
        assert_close(found["buffer"], table)
        assert_close(found["gradient"], expected["gradient"], 4)


def test_one_row_is_written_without_copying_the_buffer() -> None:
    """The time of a step does not grow with the buffer: one row is updated in place."""
    t, T = pr.dim("t")
    place = pr.input("place", (), (t,), "int32")
    buffer = pr.recurrent((1 << 20,), ((t, T + 1),))
    buffer[0] = pr.zeros((1 << 20,))
    buffer[t + 1] = buffer.at[place].set(buffer.axes[0] + 1.0)
    program = pr.compile(buffer[T].axes[0:4])
    places = np.zeros(3000, "int32")
    assert_close(program(place=places), f32([3000, 0, 0, 0]))  # 12 GB would move otherwise: several seconds
    assert program.memory.peak({T: 3000}) < 20 * 2**20
