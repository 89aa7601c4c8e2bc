"""Indexing steps, the dims and shapes that result, broadcasting, and where."""

from __future__ import annotations

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import errors

GRID = np.arange(24, dtype="int32").reshape(2, 3, 4)


def grid() -> tuple[pr.Dim, pr.Bound, pr.Dim, pr.Bound, pr.Tensor]:
    """A tensor over (i, t) with one axis of four."""
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    return i, I, t, T, pr.input("x", (4,), (i, t), "int32")


def run(tensor: pr.Tensor) -> np.ndarray:
    result = pr.evaluate(tensor, {"x": GRID})
    assert isinstance(result, np.ndarray)
    return result


def test_by_position_and_by_name() -> None:
    i, _, t, T, x = grid()
    for tensor in (x[i, T - 1 - t], x[{t: T - 1 - t}], x[{i: i, t: T - 1 - t}]):
        assert tensor.dims == (i, t)
        np.testing.assert_array_equal(run(tensor), GRID[:, ::-1])
    assert x[i] is x
    assert x[i, t] is x


def test_a_constant_removes_the_dim() -> None:
    i, _, t, T, x = grid()
    assert x[1].dims == (t,)
    assert x[i, 2].dims == (i,)
    assert x[1, T - 1].dims == ()
    np.testing.assert_array_equal(run(x[1]), GRID[1])
    np.testing.assert_array_equal(run(x[1, T - 1]), GRID[1, 2])


def test_symbols_of_the_index_take_the_place_of_the_dim() -> None:
    i, _, t, _, x = grid()
    s, S = pr.dim("s")
    tensor = x[i, pr.min(s, 2)]
    assert tensor.dims == (i, s)
    np.testing.assert_array_equal(pr.evaluate(tensor, {"x": GRID}, {S: 5}), GRID[:, [0, 1, 2, 2, 2]])
    swapped = x[pr.min(t, 1), pr.min(i, 2)]
    assert swapped.dims == (t, i)
    assert run(swapped).shape == (3, 2, 4)
    np.testing.assert_array_equal(run(swapped)[2, 1], GRID[1, 1])


def test_slices_prepend_axes_in_position_order() -> None:
    i, I, t, T, x = grid()
    assert x[0:I].shape == (I, 4)
    assert x[0:I].dims == (t,)
    both = x[0:I, 0:T]
    assert both.shape == (I, T, 4)
    np.testing.assert_array_equal(run(both), GRID)
    np.testing.assert_array_equal(run(x[:, :]), GRID)
    np.testing.assert_array_equal(run(x[0:I]), GRID.transpose(1, 0, 2))
    assert x[i, t : t + 1].shape == (1, 4)
    np.testing.assert_array_equal(run(x[i, t : t + 1]), GRID[:, :, None])


def test_chained_indexing_prepends_again() -> None:
    _, I, _, T, x = grid()
    chained = x[0:I][0:T]
    assert chained.shape == (T, I, 4)
    np.testing.assert_array_equal(run(chained), GRID.transpose(1, 0, 2))
    np.testing.assert_array_equal(run(x[0:I][0]), GRID[:, 0])


def test_steps_of_slices() -> None:
    i, _, t, T, x = grid()
    np.testing.assert_array_equal(run(x[i, 0:T:2]), GRID[:, 0::2])
    np.testing.assert_array_equal(run(x[i, 1:T:2]), GRID[:, 1::2])
    np.testing.assert_array_equal(run(x[i, ::-1]), GRID[:, ::-1])
    np.testing.assert_array_equal(run(x[i, T - 1 : 0 : -1]), GRID[:, :0:-1])
    np.testing.assert_array_equal(run(x[i, t:-1:-1].sum(0)), GRID.cumsum(1))
    np.testing.assert_array_equal(run(x[i, ::-2]), GRID[:, ::-2])


def test_empty_slices() -> None:
    i, _, t, T, x = grid()
    assert run(x[i, 2:2]).shape == (2, 0, 4)
    assert run(x[i, 2:1]).shape == (2, 0, 4)
    np.testing.assert_array_equal(run(x[i, 0:t].sum(0)), GRID.cumsum(1) - GRID)
    np.testing.assert_array_equal(run(x[i, T:T].sum(0)), np.zeros((2, 4)))
    assert run(x[i, 99:99].sum(0)).tolist() == np.zeros((2, 4)).tolist()


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_a_slice_of_every_length(steps: int) -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,), "int32")
    data = np.arange(1, steps + 1, dtype="int32")
    have = pr.evaluate({"sum": x[0 : t + 1].sum(0), "all": x[:]}, {"x": data})
    assert have["sum"].tolist() == np.cumsum(data).tolist()
    assert have["all"].tolist() == data.tolist()


def test_negative_constants_never_wrap_and_slices_never_clamp() -> None:
    i, _, t, T, x = grid()
    for outside in (x[i, -1], x[i, T], x[i, 0 : T + 1], x[i, -1:1], x[i, t + 1], x[i, t : t + 2], x[i, ::-1][-1]):
        with pytest.raises(errors.OutOfRangeError):
            run(outside)


def test_views_of_views() -> None:
    i, I, t, T, x = grid()
    mirrored = x[i, T - 1 - t]
    np.testing.assert_array_equal(run(mirrored[i, T - 1 - t]), GRID)
    np.testing.assert_array_equal(run(mirrored[i, 0:T]), GRID[:, ::-1])
    np.testing.assert_array_equal(run(mirrored[i, 0:2]), GRID[:, :0:-1])
    np.testing.assert_array_equal(run(mirrored[0:I, 0:T]), GRID[:, ::-1])
    np.testing.assert_array_equal(run(x[I - 1 - i, T - 1 - t][0:I, t]), GRID[::-1, ::-1].transpose(1, 0, 2))
    np.testing.assert_array_equal(run(x[i, t // 2][i, 0:T]), GRID[:, [0, 0, 1]])
    np.testing.assert_array_equal(run(x[i, t % 2][i, 0:T]), GRID[:, [0, 1, 0]])


def test_a_view_along_a_diagonal_sliced() -> None:
    n, N = pr.dim("n")
    i, _ = pr.dim("i")
    j, _ = pr.dim("j")
    x = pr.input("x", (), ((i, N), (j, N)), "int32")
    data = np.arange(9, dtype="int32").reshape(3, 3)
    assert pr.evaluate(x[n, n], {"x": data}).tolist() == [0, 4, 8]
    assert pr.evaluate(x[n, n][0:N], {"x": data}).tolist() == [0, 4, 8]
    assert pr.evaluate(x[n, N - 1 - n], {"x": data}).tolist() == [2, 4, 6]


def test_slicing_twice_out_of_order_keeps_the_axes_of_the_text() -> None:
    """`x[t, 0:I][0:T]`: the later slice is the leading axis although its dim comes first."""
    i, I, t, T, x = grid()
    np.testing.assert_array_equal(run(x[i, 0:T][0:I]), GRID)
    np.testing.assert_array_equal(run(x[0:I, t][0:T]), GRID.transpose(1, 0, 2))


def test_expressions_can_be_indexed() -> None:
    i, _, t, T, x = grid()
    doubled = x * 2 + pr.value(t)
    expected = GRID * 2 + np.arange(3)[None, :, None]
    np.testing.assert_array_equal(run(doubled[i, T - 1 - t]), expected[:, ::-1])
    np.testing.assert_array_equal(run(doubled[i, 0:T].sum(0)), expected.sum(1))


def test_dims_unite_in_order_of_declaration_and_missing_ones_broadcast() -> None:
    i, _ = pr.dim("i")
    t, _ = pr.dim("t")
    a = pr.input("a", (), (t,), "int32")
    b = pr.input("b", (2,), (i,), "int32")
    inputs = {"a": np.arange(3, dtype="int32"), "b": np.arange(8, dtype="int32").reshape(4, 2)}
    expected = inputs["a"][None, :, None] + inputs["b"][:, None]
    for united in (a + b, b + a):
        assert united.dims == (i, t)
        np.testing.assert_array_equal(pr.evaluate(united, inputs), expected)


def test_dims_keep_the_order_of_the_operands() -> None:
    """Whatever has fewer dims, a condition above all, does not change it."""
    t, T = pr.dim("t")
    b, _ = pr.dim("b")
    h, _ = pr.dim("h")
    u, w, c = pr.input("u", (), (b, t)), pr.input("w", (), (t,)), pr.input("c", (), (b,))
    th, hb = pr.input("th", (), (t, h)), pr.input("hb", (), (h, b))
    for same in (
        pr.where(t >= 2, u[b, t - 2], 0.0),
        pr.where((t >= 1) & (b >= 1), 0.0, u),
        w * u,
        u * w,
        pr.where(w > 0, u, c),
        pr.where(w > 0, c, u),
        pr.value(t) + u,
        u[b, T - 1 - t],
    ):
        assert same.dims == (b, t)
    assert (c + w).dims == (w + c).dims == pr.where(t > 0, c, 0.0).dims == (t, b)
    assert (u * th).dims == (th * u).dims == (b, t, h)
    assert (u + pr.input("other", (), (t, b))).dims == (t, b)
    assert (u * th * hb).dims == (t, b, h)


def test_extents_other_than_the_bound() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,), "int32")
    v = pr.input("v", (), ((t, T + 1),), "int32")
    inputs = {"x": np.array([1, 2], "int32"), "v": np.array([10, 20, 30], "int32")}
    have = pr.evaluate({"v": v, "sum": x + v, "next": x + v[t + 1], "all": v[:], "back": v[::-1]}, inputs)
    assert have["sum"].tolist() == [11, 22]
    assert have["next"].tolist() == [21, 32]
    assert have["v"].tolist() == have["all"].tolist() == [10, 20, 30]
    assert have["back"].tolist() == [30, 20, 10]


def test_no_dims_and_too_many_indices() -> None:
    i, _, t, _, x = grid()
    with pytest.raises(errors.IndexingError, match="axes"):
        pr.constant([1, 2])[0]
    with pytest.raises(errors.IndexingError):
        x[i, t, 0]
    s, _ = pr.dim("s")
    with pytest.raises(errors.UnknownDimError):
        x[{s: 0}]
    with pytest.raises(errors.UnknownDimError):
        x[{"t": 0}]
    with pytest.raises(errors.IndexingError):
        x[t > 0]
    with pytest.raises(errors.IndexingError):
        x[0 : 3 : t]  # fmt: skip


def test_tensors_are_not_iterated_or_tested() -> None:
    *_, x = grid()
    with pytest.raises(errors.PolyrhythmError):
        list(x)
    with pytest.raises(errors.PolyrhythmError):
        bool(x == x)


def test_window() -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,), "int32")
    have = pr.evaluate(pr.window(x, t, 3).sum(0), {"x": np.arange(6, dtype="int32")})
    assert have.tolist() == [0, 1, 3, 6, 9, 12]


def test_where_narrows_the_reads_of_its_branches() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,), "int32")
    data = {"x": np.array([1, 2, 4], "int32")}
    legal = {
        "past": pr.where(t > 0, x[t - 1], -1),
        "future": pr.where(t < T - 1, x[t + 1], -1),
        "else": pr.where(t == 0, -1, x[t - 1]),
        "nested": pr.where(t > 0, pr.where(t < T - 1, x[t - 1] + x[t + 1], -1), -2),
        "deep": pr.where(t > 0, pr.exp(pr.log(x[t - 1] * 1.0)), 0.0),
        "or": pr.where((t == 0) | (t == T - 1), -1, x[t - 1] + x[t + 1]),
    }
    have = pr.evaluate(legal, data)
    assert have["past"].tolist() == [-1, 1, 2]
    assert have["future"].tolist() == [2, 4, -1]
    assert have["else"].tolist() == [-1, 1, 2]
    assert have["nested"].tolist() == [-2, 5, -1]
    np.testing.assert_allclose(have["deep"], [0, 1, 2], rtol=1e-6)
    assert have["or"].tolist() == [-1, 5, -1]


def test_where_does_not_narrow_enough_or_not_at_all() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,), "int32")
    illegal = [
        pr.where(t > 0, x[t - 2], 0),
        pr.where(t > 0, 0, x[t - 1]),
        pr.where(x > 0, x[t - 1], 0),
        pr.where((t > 0) | (T > 5), x[t - 1], 0),
        pr.where(t > 0, x[t - 1], 0) + x[t - 1],
        pr.where(pr.value(t) > 0, x[t - 1], 0),
    ]
    for tensor in illegal:
        with pytest.raises(errors.OutOfRangeError):
            pr.evaluate(tensor, {"x": np.array([1, 2, 4], "int32")})


def test_a_shared_expression_is_narrowed_for_each_use() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,), "int32")
    before = x[t - 1] * 10
    tensor = pr.where(t > 0, before, 0) + pr.where(t == T - 1, pr.where(t > 0, before, 7), 0)
    assert pr.evaluate(tensor, {"x": np.array([1, 2, 4], "int32")}).tolist() == [0, 10, 40]
    assert pr.evaluate(tensor, {"x": np.array([1], "int32")}).tolist() == [7]


def test_ragged_tensors_carry_the_dims_of_their_extent_first() -> None:
    b, B = pr.dim("b")
    lengths = pr.input("lengths", (), (b,), "int32")
    t, T = pr.dim("t", extent=lengths, max=4)
    assert pr.value(t).dims == (b, t)
    assert pr.recurrent((), (t,)).dims == (b, t)
    x = pr.input("x", (), (b, t), "int32")
    have = pr.evaluate(x + pr.value(t), {"x": np.zeros((2, 3), "int32"), "lengths": np.array([3, 1])})
    assert have.lengths.tolist() == [3, 1]
    assert have.values[0].tolist() == [0, 1, 2]
    with pytest.raises(errors.RaggedShapeError):
        x[0:B]
    with pytest.raises(errors.RaggedShapeError):
        x[b, 0:T][0:B]
    assert x[b, 0:T].sum(0)[0:B].shape == (B,)


def test_ragged_reads_of_another_row_are_not_proved() -> None:
    b, _ = pr.dim("b")
    lengths = pr.input("lengths", (), (b,), "int32")
    t, _ = pr.dim("t", extent=lengths, max=4)
    x = pr.input("x", (), (b, t), "int32")
    with pytest.raises(errors.OutOfRangeError):
        pr.evaluate(pr.where(b > 0, x[b - 1, t], 0), {"x": np.zeros((2, 3), "int32"), "lengths": np.array([3, 3])})


def test_a_ragged_bound_in_an_index_is_that_of_the_row_read() -> None:
    """`y[b, T]` taken at another row means that row's T."""
    b, B = pr.dim("b")
    lengths = pr.input("lengths", (), (b,), "int32")
    _, T = pr.dim("t", extent=lengths, max=8)
    s, _ = pr.dim("s")
    y = pr.recurrent((), (b, (s, 9)), "int32")
    y[pr.otherwise] = pr.value(s) + 10 * pr.value(b)
    ends = y[b, T]
    shifted = pr.recurrent((), ((b, B + 1),), "int32")
    shifted[0] = -1
    shifted[b + 1] = ends
    outputs = {"ends": ends, "before": pr.where(b > 0, ends[b - 1], -1), "mirror": ends[B - 1 - b], "all": ends[:]}
    have = pr.evaluate(outputs | {"shifted": shifted}, {"lengths": np.array([3, 2, 4, 1])})
    assert have["ends"].tolist() == have["all"].tolist() == [3, 12, 24, 31]
    assert have["before"].tolist() == [-1, 3, 12, 24]
    assert have["mirror"].tolist() == [31, 24, 12, 3]
    assert have["shifted"].tolist() == [-1, 3, 12, 24, 31]


def test_empty_reductions_give_the_identity() -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,))
    n = pr.input("n", (), (t,), "int32")
    have = pr.evaluate(
        {"sum": x[:].sum(), "prod": x[:].prod(), "max": x[:].max(), "min": n[:].max(), "mean": x[:].mean()},
        {"x": np.zeros(0, "float32"), "n": np.zeros(0, "int32")},
    )
    assert have["sum"] == 0
    assert have["prod"] == 1
    assert have["max"] == -np.inf
    assert have["min"] == np.iinfo("int32").min
    assert np.isnan(have["mean"])
    with pytest.raises(errors.PolyrhythmError):
        pr.evaluate(x[0:t].argmax(0), {"x": np.zeros(2, "float32")})


def test_an_index_that_fits_in_another_order_is_shown_by_name() -> None:
    b, B = pr.dim("b")
    i, I = pr.dim("i")
    y = pr.input("x", (), (b,)) - pr.input("w", (), (i,))
    given = {"x": np.arange(3.0, dtype="float32"), "w": np.arange(4.0, dtype="float32")}
    for wrong, named in (
        (y[i, b], "[{i: i, b: b}]"),
        (y[i, 0:B], "[{i: i, b: slice(0, B)}]"),
        (y[0:I, 0:B], "[{i: slice(0, I), b: slice(0, B)}]"),
    ):
        with pytest.raises(errors.OutOfRangeError) as caught:
            pr.evaluate(wrong, given)
        assert f"in the order (b, i), and a positional index follows it; by name it is {named}" in caught.value.fix
        right = y[eval(named.strip("[]"), {"i": i, "b": b, "B": B, "I": I, "slice": slice})]
        assert np.ravel(pr.evaluate(right, given)).size == 12
    with pytest.raises(errors.OutOfRangeError) as caught:
        pr.evaluate(y[i - 1, b], given)
    assert "by name" not in caught.value.fix
