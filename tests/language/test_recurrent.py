"""Left sides and pieces of recurrent tensors: what they define, and what is refused."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import errors

STEPS = [0, 1, 2, 3, 6]


@pytest.mark.parametrize("steps", STEPS)
def test_shift_forwards(steps: int) -> None:
    t, T = pr.dim("t")
    y = pr.recurrent((), (t,), "int32")
    y[0] = 7
    y[t + 1] = y + pr.value(t)
    expected = [7 + sum(range(k)) for k in range(steps)]
    assert pr.evaluate(y, bounds={T: steps}).tolist() == expected


@pytest.mark.parametrize("steps", STEPS)
def test_mirrored(steps: int) -> None:
    t, T = pr.dim("t")
    y = pr.recurrent((), (t,), "int32")
    y[T - 1 - t] = pr.value(t) * 10
    assert pr.evaluate(y, bounds={T: steps}).tolist() == [10 * k for k in reversed(range(steps))]


@pytest.mark.parametrize("steps", STEPS)
def test_shift_backwards_in_one_of_two_dims(steps: int) -> None:
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    y = pr.recurrent((), (i, t), "int32")
    y[i, t - 1] = pr.where(t < T, y[i, t] + 1, 0)
    y[i, T - 1] = pr.value(i) * 100
    expected = [[i * 100 + (steps - 1 - k) for k in range(steps)] for i in range(2)]
    assert pr.evaluate(y, bounds={I: 2, T: steps}).tolist() == expected


@pytest.mark.parametrize("steps", STEPS)
def test_even_and_odd(steps: int) -> None:
    t, T = pr.dim("t")
    y = pr.recurrent((), ((t, 2 * T),), "int32")
    y[2 * t] = pr.value(t)
    y[2 * t + 1] = -pr.value(t)
    expected = [k // 2 if k % 2 == 0 else -(k // 2) for k in range(2 * steps)]
    assert pr.evaluate(y, bounds={T: steps}).tolist() == expected


def test_the_extent_limits_the_assignment() -> None:
    """`y[2*t]` over T steps: only the half of the steps that fall inside are used."""
    t, T = pr.dim("t")
    y = pr.recurrent((), (t,), "int32")
    y[2 * t] = pr.value(t)
    y[2 * t + 1] = -pr.value(t)
    assert pr.evaluate(y, bounds={T: 5}).tolist() == [0, 0, 1, -1, 2]


def test_diagonals() -> None:
    i, I = pr.dim("i")
    j, J = pr.dim("j")
    y = pr.recurrent((), (i, j), "int32")
    y[i, i] = pr.value(i) + 1
    y[pr.otherwise] = 0
    assert pr.evaluate(y, bounds={I: 3, J: 4}).tolist() == [[1, 0, 0, 0], [0, 2, 0, 0], [0, 0, 3, 0]]
    assert pr.evaluate(y, bounds={I: 3, J: 2}).tolist() == [[1, 0], [0, 2], [0, 0]]
    z = pr.recurrent((), (i, j), "int32")
    z[i, i + j] = pr.value(j)
    z[j < i] = -1
    assert pr.evaluate(z, bounds={I: 3, J: 3}).tolist() == [[0, 1, 2], [-1, 0, 1], [-1, -1, 0]]


def test_other_dims_on_the_left() -> None:
    """The step symbols of the left side need not be those of the tensor."""
    t, T = pr.dim("t")
    s, S = pr.dim("s")
    x = pr.input("x", (), (s,), "int32")
    y = pr.recurrent((), ((t, S + 1),), "int32")
    y[0] = -1
    y[s + 1] = x * 10
    assert pr.evaluate(y, {"x": np.array([1, 2], "int32")}).tolist() == [-1, 10, 20]
    z = pr.recurrent((), (t,), "int32")
    z[s] = x
    z[t >= S] = 0
    assert pr.evaluate(z, {"x": np.array([1, 2], "int32")}, {T: 4}).tolist() == [1, 2, 0, 0]
    assert pr.evaluate(z, {"x": np.array([1, 2], "int32")}, {T: 1}).tolist() == [1]


def test_swapped_dims_on_the_left() -> None:
    i, I = pr.dim("i")
    j, J = pr.dim("j")
    x = pr.input("x", (), (i, j), "int32")
    y = pr.recurrent((), ((i, J), (j, I)), "int32")
    y[j, i] = x
    data = np.arange(6, dtype="int32").reshape(2, 3)
    np.testing.assert_array_equal(pr.evaluate(y, {"x": data}), data.T)


def test_the_left_side_counts_the_steps_of_the_bound() -> None:
    """`y[t]` means every t below T, also where the tensor has fewer or more steps."""
    t, T = pr.dim("t")
    S = pr.size("S")
    y = pr.recurrent((), ((t, S),), "int32")
    y[t] = 1
    with pytest.raises(errors.GapError):
        pr.evaluate(y, bounds={T: 3, S: 3})
    y[pr.otherwise] = 0
    assert pr.evaluate(y, bounds={T: 2, S: 3}).tolist() == [1, 1, 0]
    assert pr.evaluate(y, bounds={T: 3, S: 2}).tolist() == [1, 1]


def test_by_name_and_constants() -> None:
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    y = pr.recurrent((), (i, t), "int32")
    y[{t: 0}] = pr.value(i)
    y[{t: T - 1}] = 100
    y[(t > 0) & (t < T - 1)] = 5
    with pytest.raises(errors.OverlapError):
        pr.evaluate(y, bounds={I: 2, T: 4})  # T may be one, where both ends meet
    z = pr.recurrent((), (i, (t, T + 1)), "int32")
    z[{t: 0}] = pr.value(i)
    z[{t: T}] = 100
    z[(t > 0) & (t < T)] = 5
    with pytest.raises(errors.OverlapError) as caught:
        pr.evaluate(z, bounds={I: 2, T: 4})
    assert caught.value.point is not None
    assert caught.value.point["T"] == 0
    z = pr.recurrent((), (i, (t, T + 2)), "int32")
    z[{t: 0}] = pr.value(i)
    z[{t: T + 1}] = 100
    z[(t > 0) & (t <= T)] = 5
    assert pr.evaluate(z, bounds={I: 2, T: 1}).tolist() == [[0, 5, 100], [1, 5, 100]]


def test_pieces_partition_whatever_their_order() -> None:
    pieces = ["first", "even", "rest"]
    for order in permutations(pieces):
        t, T = pr.dim("t")
        y = pr.recurrent((), (t,), "int32")
        for piece in order:
            if piece == "first":
                y[0] = 1
            elif piece == "even":
                y[(t % 2 == 0) & (t > 0)] = y[t - 1] + 10
            else:
                y[pr.otherwise] = y[t - 1] * 2
        assert pr.evaluate(y, bounds={T: 5}).tolist() == [1, 2, 12, 24, 34]


def test_missing_dims_and_shapes_broadcast() -> None:
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    w = pr.input("w", (3,), (i,), "int32")
    y = pr.recurrent((2, 3), (i, t), "int32")
    y[i, t] = w
    data = np.arange(6, dtype="int32").reshape(2, 3)
    have = pr.evaluate(y, {"w": data}, {T: 4})
    np.testing.assert_array_equal(have, np.broadcast_to(data[:, None, None], (2, 4, 2, 3)))
    with pytest.raises(errors.ShapeError):
        y[i, t] = pr.zeros((4,), "int32")
    with pytest.raises(errors.ShapeError):
        pr.recurrent((3,), (t,))[t] = pr.zeros((2, 3))
    del I


def test_dtypes_of_right_sides() -> None:
    t, T = pr.dim("t")
    y = pr.recurrent((), (t,), "float32")
    y[t] = pr.value(t)  # an integer promotes
    assert pr.evaluate(y, bounds={T: 2}).dtype == np.dtype("float32")
    with pytest.raises(errors.DTypeError):
        pr.recurrent((), (t,), "int32")[t] = 0.5
    with pytest.raises(errors.DTypeError):
        pr.recurrent((), (t,), "bool")[t] = 1
    half = pr.recurrent((), (t,), "float16")
    half[t] = 0.5
    assert pr.evaluate(half, bounds={T: 1}).dtype == np.dtype("float16")


def assign(dims: tuple[Any, ...], key: Any, value: Any) -> None:
    pr.recurrent((), dims, "int32")[key] = value


def test_the_right_side_may_not_have_an_unbound_dim() -> None:
    t, T = pr.dim("t")
    s, _ = pr.dim("s")
    x = pr.input("x", (), (t,), "int32")
    with pytest.raises(errors.UnboundDimError):
        assign((t,), 0, x)
    with pytest.raises(errors.UnboundDimError):
        assign((t,), T - 1, x)
    with pytest.raises(errors.UnboundDimError):
        assign((s,), pr.otherwise, x)
    with pytest.raises(errors.UnboundDimError):
        assign((s,), s > 0, x)
    with pytest.raises(errors.UnboundDimError):
        assign((s,), t > 0, 1)
    assign((t,), 0, x[0])


def test_left_sides_that_cannot_be_inverted() -> None:
    i, _ = pr.dim("i")
    t, T = pr.dim("t")
    with pytest.raises(errors.NotInjectiveError):
        assign((t,), i + t, 1)
    with pytest.raises(errors.NotInjectiveError):
        assign((i, t), (i + t, i + t), 1)
    for key in (t // 2, t % 2, pr.min(t, 3)):
        with pytest.raises(errors.IndexingError):
            assign((t,), key, 1)
    with pytest.raises(errors.IndexingError):
        assign((t,), slice(0, T), 1)
    with pytest.raises(errors.IndexingError):
        assign((t,), (t, t), 1)


def test_one_otherwise() -> None:
    t, _ = pr.dim("t")
    y = pr.recurrent((), (t,), "int32")
    y[pr.otherwise] = 1
    with pytest.raises(errors.DefinitionError):
        y[pr.otherwise] = 2


def test_declarations() -> None:
    t, _ = pr.dim("t")
    s, _ = pr.dim("s")
    with pytest.raises(errors.PolyrhythmError):
        pr.recurrent((), (t, t))
    with pytest.raises(errors.PolyrhythmError):
        pr.recurrent((), ("t",))  # type: ignore[arg-type]
    with pytest.raises(errors.UnboundDimError):
        pr.recurrent((s,), (t,))


def test_shapes_may_vary_along_the_dims() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,), "int32")
    y = pr.recurrent((t + 1,), (t,), "int32")
    y[t] = x[0 : t + 1]
    have = pr.evaluate({"y": y, "sum": y.sum(), "last": y[T - 1]}, {"x": np.array([1, 2, 4], "int32")})
    assert have["y"].lengths.tolist() == [1, 2, 3]
    assert have["sum"].tolist() == [1, 3, 7]
    assert have["last"].tolist() == [1, 2, 4]


def test_ragged_left_sides() -> None:
    b, B = pr.dim("b")
    lengths = pr.input("lengths", (), (b,), "int32")
    t, T = pr.dim("t", extent=lengths, max=5)
    y = pr.recurrent((), (b, t), "int32")
    y[b, 0] = pr.value(b)
    y[b, t + 1] = y + 10
    have = pr.evaluate({"y": y, "n": pr.where(T > 0, y[b, T - 1], -1)}, {"lengths": np.array([2, 0, 3])})
    assert have["y"].lengths.tolist() == [2, 0, 3]
    assert have["y"].values[2].tolist() == [2, 12, 22]
    assert have["n"].tolist() == [10, -1, 22]
    with pytest.raises(errors.IndexingError):
        pr.recurrent((), (b, t), "int32")[B - 1 - b, t] = 1
