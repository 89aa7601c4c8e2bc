"""What is proved before a program runs: partitions, ranges, requirements on the bounds, stopping conditions."""

from __future__ import annotations

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import errors


def data(n: int) -> dict[str, np.ndarray]:
    return {"x": np.arange(1, n + 1, dtype="int32")}


def test_a_gap_comes_with_a_point() -> None:
    t, T = pr.dim("t")
    y = pr.recurrent((), (t,), "int32")
    y[t >= 2] = 0
    y[0] = 1
    with pytest.raises(errors.GapError) as caught:
        pr.evaluate(y, bounds={T: 1})
    assert caught.value.point == {"T": 2, "t": 1}


def test_an_overlap_comes_with_a_point_and_both_lines() -> None:
    t, T = pr.dim("t")
    y = pr.recurrent((), (t,), "int32")
    y[t <= 3] = 0
    y[t >= 3] = 1
    with pytest.raises(errors.OverlapError) as caught:
        pr.evaluate(y, bounds={T: 1})
    assert caught.value.point == {"T": 4, "t": 3}
    assert "y[t >= 3]" in str(caught.value)
    assert "y[t <= 3]" in str(caught.value)


def test_an_assignment_never_enlarges() -> None:
    t, T = pr.dim("t")
    y = pr.recurrent((), ((t, T + 2),), "int32")
    y[0] = 0
    y[t + 1] = 1
    with pytest.raises(errors.GapError) as caught:
        pr.evaluate(y, bounds={T: 1})
    assert caught.value.point == {"T": 0, "t": 1}


def test_undefined() -> None:
    t, T = pr.dim("t")
    y = pr.recurrent((), (t,), "int32")
    with pytest.raises(errors.UndefinedError):
        pr.evaluate(y + 1, bounds={T: 1})


def test_checks_cover_recurrent_tensors_on_their_whole_domain() -> None:
    """Only y[0] is wanted, but the other pieces are checked all the same."""
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,), "int32")
    y = pr.recurrent((), (t,), "int32")
    y[0] = x[0]
    y[t > 0] = x[t + 1]
    with pytest.raises(errors.OutOfRangeError):
        pr.evaluate(y[0], data(3))
    del T


def test_plain_expressions_are_defined_where_they_are_demanded() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,), "int32")
    following = x[t + 1] - x
    y = pr.recurrent((), (t,), "int32")
    y[t < T - 1] = following
    y[t == T - 1] = 0
    assert pr.evaluate(y, data(3)).tolist() == [1, 1, 0]
    assert pr.evaluate(following[0:2].sum(), data(3)).tolist() == 2
    with pytest.raises(errors.OutOfRangeError) as caught:
        pr.evaluate(following, data(3))
    assert caught.value.point is not None
    assert caught.value.point["t"] == caught.value.point["T"] - 1


@pytest.mark.parametrize(
    ("build", "least"),
    [
        (lambda x, t, T: x[0], 1),
        (lambda x, t, T: x[T - 1], 1),
        (lambda x, t, T: x[3], 4),
        (lambda x, t, T: x[0:2].sum(0), 2),
        (lambda x, t, T: x[T - 3 : T].sum(0), 3),
        (lambda x, t, T: x[1] + x[0], 2),
    ],
)
def test_small_bounds_become_requirements(build: object, least: int) -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,), "int32")
    tensor = build(x, t, T)  # type: ignore[operator]
    pr.evaluate(tensor, data(least))
    pr.evaluate(tensor, data(least + 3))
    with pytest.raises(errors.RequirementError, match=f"T >= {least}"):
        pr.evaluate(tensor, data(least - 1))


def test_no_requirement_where_nothing_is_read() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,), "int32")
    y = pr.recurrent((), (t,), "int32")
    y[0] = x[0]
    y[t + 1] = y + x[0] + x[T - 1]
    assert pr.evaluate(y, data(0)).tolist() == []
    assert pr.evaluate(y + x[0], data(0)).tolist() == []


def test_a_read_that_fails_for_large_bounds_is_an_error_at_once() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,), "int32")
    for tensor in (x[t - 1], x[T], x[2 * t], x[t : t + 2], x[t + T]):
        with pytest.raises(errors.OutOfRangeError):
            pr.evaluate(tensor, data(0))


def test_requirements_between_two_bounds() -> None:
    t, T = pr.dim("t")
    s, S = pr.dim("s")
    x = pr.input("x", (), (t,), "int32")
    with pytest.raises(errors.OutOfRangeError):  # S may be larger than T, however large both are
        pr.evaluate(x[s], data(3), {S: 2})
    del T


def test_future_reads_are_legal() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,), "int32")
    y = pr.recurrent((), (t,), "int32")
    y[t] = x[t:T].sum() + x[T - 1] + x[T - 1 - t]
    assert pr.evaluate(y, data(3)).tolist() == [6 + 3 + 3, 5 + 3 + 2, 3 + 3 + 1]


def test_reads_through_other_extents() -> None:
    t, T = pr.dim("t")
    v = pr.input("v", (), ((t, T + 1),), "int32")
    values = {"v": np.array([1, 2, 4], "int32")}
    difference = v[t + 1] - v
    assert pr.evaluate(difference, values).tolist() == [1, 2]
    with pytest.raises(errors.OutOfRangeError):
        pr.evaluate(v[t + 2], values)


def test_spatial_positions_are_checked() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (4,), (t,), "int32")
    inside = x.axes[pr.min(t, 3)]
    grid = {"x": np.arange(24, dtype="int32").reshape(6, 4)}
    assert pr.evaluate(inside, grid).tolist() == [0, 5, 10, 15, 19, 23]
    with pytest.raises(errors.OutOfRangeError):
        pr.evaluate(x.axes[t], grid)
    del T


def test_lengths_may_not_be_negative() -> None:
    t, T = pr.dim("t")
    with pytest.raises(errors.ShapeError):
        pr.evaluate(pr.zeros((t - 1,)).sum(), bounds={T: 3})
    assert pr.evaluate(pr.ones((pr.max(0, t - 1),)).sum(), bounds={T: 3}).tolist() == [0, 0, 1]


def test_until_may_not_depend_on_its_own_bound() -> None:
    t, T = pr.dim("t")
    y = pr.recurrent((), (t,), "int32")
    y[0] = 0
    y[t + 1] = y + 1
    with pytest.raises(errors.UntilError):
        pr.evaluate(y, bounds={T: 5}, until={t: pr.value(t == T - 2)})
    with pytest.raises(errors.UntilError):
        pr.evaluate(y, bounds={T: 5}, until={t: y + pr.value(T) > 9})
    with pytest.raises(errors.UntilError):
        pr.evaluate(y, bounds={T: 5}, until={t: y})
    with pytest.raises(errors.UntilError):
        pr.evaluate(y, bounds={T: 5}, until={t: y[0] > 3})


def test_reads_of_a_dim_that_may_end_early() -> None:
    """Of its length only `1 <= T` is known, once it may have a step at all."""
    t, T = pr.dim("t")
    y = pr.recurrent((), (t,), "int32")
    y[0] = 0
    y[t + 1] = y + 1
    assert pr.evaluate(y[0], bounds={T: 4}, until={t: y >= 2}).tolist() == 0
    with pytest.raises(errors.RequirementError):
        pr.evaluate(y[0], bounds={T: 0}, until={t: y >= 2})
    with pytest.raises(errors.OutOfRangeError):
        pr.evaluate(y[2], bounds={T: 4}, until={t: y >= 2})


def test_a_requirement_beside_a_dim_that_ends_early() -> None:
    t, T = pr.dim("t")
    P = pr.size("P")
    y = pr.recurrent((), (t,), "int32")
    y[t < P] = 1
    y[t >= P] = y[t - 1] + 1
    assert pr.evaluate(y, bounds={T: 9, P: 2}, until={t: y == 3}).tolist() == [1, 1, 2, 3]
    with pytest.raises(errors.RequirementError):
        pr.evaluate(y, bounds={T: 9, P: 0}, until={t: y == 3})
