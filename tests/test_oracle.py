"""The oracle: depth, `until`, ragged outputs, empty bounds, effects under early ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr


def counter(t: pr.Dim, start: Any = 0) -> pr.Recurrent:
    """0, 1, 2, ... along t."""
    y = pr.recurrent((), (t,), "int32")
    y[0] = start
    y[t + 1] = y + 1
    return y


def test_a_chain_of_twenty_thousand_steps() -> None:
    t, T = pr.dim("t")
    y = counter(t)
    assert pr.evaluate(y[T - 1], bounds={T: 20_000}).tolist() == 19_999


def test_a_chain_backwards_of_five_thousand_steps() -> None:
    t, T = pr.dim("t")
    y = pr.recurrent((), ((t, T + 1),), "int32")
    y[T] = 0
    y[t] = y[t + 1] + 1
    assert pr.evaluate(y[0], bounds={T: 5_000}).tolist() == 5_000


@pytest.mark.parametrize(
    ("limit", "stop", "length"), [(9, 3, 4), (9, 0, 1), (4, 3, 4), (3, 3, 3), (2, 99, 2), (0, 0, 0)]
)
def test_until_includes_the_step_that_ends(limit: int, stop: int, length: int) -> None:
    t, T = pr.dim("t")
    y = counter(t)
    have = pr.evaluate({"y": y, "T": pr.value(T), "sum": y[0:T].sum()}, bounds={T: limit}, until={t: y == stop})
    assert have["y"].tolist() == list(range(length))
    assert have["T"].tolist() == length
    assert have["sum"].tolist() == sum(range(length))


def test_until_ends_at_the_first_time_only() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), ((t, 6),), "bool")
    flags = np.array([False, True, False, True, False, False])
    s, S = pr.dim("s", max=6)
    have = pr.evaluate(pr.value(s), {"x": flags}, {S: 6}, until={s: x[s]})
    assert have.tolist() == [0, 1]
    del T


def test_tensors_with_more_steps_follow_the_early_end() -> None:
    t, T = pr.dim("t")
    y = pr.recurrent((), ((t, T + 1),), "int32")
    y[0] = 0
    y[t + 1] = y + 1
    have = pr.evaluate((y, y[T]), bounds={T: 9}, until={t: y == 2})
    assert have[0].tolist() == [0, 1, 2, 3]
    assert have[1].tolist() == 3


def test_until_per_index() -> None:
    b, _ = pr.dim("b")
    t, T = pr.dim("t")
    goal = pr.input("goal", (), (b,), "int32")
    y = pr.recurrent((), (b, t), "int32")
    y[b, 0] = 0
    y[b, t + 1] = y + 1
    have = pr.evaluate(
        {"y": y, "last": y[b, T - 1], "sum": y[b, 0:T].sum()},
        {"goal": np.array([2, 0, 99], "int32")},
        {T: 5},
        until={t: y == goal},
    )
    assert isinstance(have["y"], pr.Ragged)
    assert have["y"].lengths.tolist() == [3, 1, 5]
    assert have["y"].values[0, :3].tolist() == [0, 1, 2]
    assert have["last"].tolist() == [2, 0, 4]
    assert have["sum"].tolist() == [3, 0, 10]


def test_what_lacks_the_dims_of_the_end_runs_until_all_have_ended() -> None:
    b, _ = pr.dim("b")
    t, T = pr.dim("t")
    goal = pr.input("goal", (), (b,), "int32")
    done = pr.value(t) >= goal
    have = pr.evaluate(pr.value(t), {"goal": np.array([2, 0, 1], "int32")}, {T: 9}, until={t: done})
    assert have.tolist() == [0, 1, 2]


def test_no_effect_runs_after_the_end() -> None:
    t, T = pr.dim("t")
    log: list[int] = []

    def note(value: np.ndarray) -> np.float32:
        log.append(int(value))
        return np.float32(value)

    y = counter(t)
    noted = pr.host(note, [y], effect="log")
    pr.evaluate(y, bounds={T: 9}, until={t: y == 2}, effects=[noted])
    assert log == [0, 1, 2]


def test_an_effect_may_decide_the_end() -> None:
    t, T = pr.dim("t")
    log: list[int] = []

    def step(value: np.ndarray) -> np.int32:
        log.append(int(value))
        return np.int32(value * 2)

    y = pr.host(step, [pr.value(t)], dtype="int32", effect="world")
    assert pr.evaluate(y, bounds={T: 9}, until={t: y >= 6}).tolist() == [0, 2, 4, 6]
    assert log == [0, 1, 2, 3]


def test_two_dims_may_end_early() -> None:
    t, T = pr.dim("t")
    s, S = pr.dim("s")
    a, b = counter(t), counter(s, 10)
    have = pr.evaluate((a, b, pr.value(T) * 100 + pr.value(S)), bounds={T: 9, S: 9}, until={t: a == 1, s: b == 12})
    assert have[0].tolist() == [0, 1]
    assert have[1].tolist() == [10, 11, 12]
    assert have[2].tolist() == 203


@pytest.mark.parametrize(("I", "T"), [(0, 0), (0, 3), (2, 0), (1, 1)])
def test_empty_bounds_everywhere(I: int, T: int) -> None:
    i, I_ = pr.dim("i")
    t, T_ = pr.dim("t")
    x = pr.input("x", (2,), (i, t))
    y = pr.recurrent((2,), (i, t))
    y[i, 0] = x[i, 0]
    y[i, t + 1] = y + x[i, t + 1]
    outputs = {
        "y": y,
        "sum": x[0:I_, 0:T_].sum((0, 1)),
        "rows": x[i, 0:T_].sum(0),
        "columns": x[0:I_, t],
        "both": x[:, :],
        "outer": y * pr.value(i),
        "axis": pr.zeros((I_, T_)),
    }
    data = np.ones((I, T, 2), "float32")
    have = pr.evaluate(outputs, {"x": data})
    np.testing.assert_array_equal(have["y"], data.cumsum(1))
    np.testing.assert_array_equal(have["sum"], data.sum((0, 1)))
    np.testing.assert_array_equal(have["rows"], data.sum(1))
    np.testing.assert_array_equal(have["columns"], data.transpose(1, 0, 2))
    np.testing.assert_array_equal(have["both"], data)
    assert have["outer"].shape == (I, T, 2)
    assert have["axis"].shape == (I, T)


def test_results_are_arrays_of_the_declared_dtype() -> None:
    t, T = pr.dim("t")
    for dtype in ("float16", "float32", "float64", "int8", "int32", "int64", "bool"):
        x = pr.input("x", (), (t,), dtype)
        have = pr.evaluate({"all": x, "one": x[0], "axis": x[0:T]}, {"x": np.ones(2, dtype)})
        assert {array.dtype for array in have.values()} == {np.dtype(dtype)}
        assert all(isinstance(array, np.ndarray) for array in have.values())


def test_each_value_is_computed_once() -> None:
    """A pure host function may be repeated, but the oracle remembers: the doubling below would take 2**40 calls."""
    t, T = pr.dim("t")
    calls: list[int] = []

    def note(value: np.ndarray) -> np.ndarray:
        calls.append(1)
        return value

    y = pr.recurrent((), (t,), "int64")
    y[0] = 1
    y[t + 1] = pr.host(note, [y + y], dtype="int64")
    assert pr.evaluate(y[T - 1], bounds={T: 41}).tolist() == 2**40
    assert len(calls) == 40


def test_evaluating_twice_gives_the_same() -> None:
    t, T = pr.dim("t")
    y = pr.recurrent((), (t,))
    y[0] = 0.0
    y[t + 1] = 0.5 * y + pr.normal(dims=(t,))
    first, second = (pr.evaluate(y, bounds={T: 6}, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first, second)
