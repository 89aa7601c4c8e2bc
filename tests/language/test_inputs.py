"""Inputs, parameters and host functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import errors


def test_dims_lead_then_the_shape() -> None:
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    x = pr.input("x", (2, 5), (i, t))
    data = np.random.default_rng(0).normal(size=(3, 4, 2, 5)).astype("float32")
    np.testing.assert_array_equal(pr.evaluate(x, {"x": data}), data)
    np.testing.assert_array_equal(pr.evaluate(x[I - 1, T - 1], {"x": data}), data[-1, -1])


def test_a_parameter_has_a_value_that_a_call_may_override() -> None:
    w = pr.parameter("w", (2,), init=np.array([1.0, 2.0]))
    made = pr.parameter("made", (2, 3), init=lambda shape: np.full(shape, 7))
    assert pr.evaluate(w * 2).tolist() == [2, 4]
    assert pr.evaluate(w * 2, {"w": np.array([5.0, 6.0])}).tolist() == [10, 12]
    assert pr.evaluate(w * 2).tolist() == [2, 4]
    assert pr.evaluate(made).tolist() == [[7.0] * 3] * 2
    assert pr.evaluate(pr.parameter("zero", (2,))).tolist() == [0, 0]


def test_a_parameter_needs_a_fixed_shape_and_a_fitting_value() -> None:
    _, T = pr.dim("t")
    with pytest.raises(errors.ShapeError):
        pr.parameter("w", (T,))
    with pytest.raises(errors.ShapeError):
        pr.parameter("w", (2,), init=np.zeros(3))


def test_the_shape_of_an_input_does_not_vary() -> None:
    t, _ = pr.dim("t")
    with pytest.raises(errors.ShapeError):
        pr.input("x", (t + 1,), (t,))


def test_a_host_function_gets_the_values_of_its_inputs() -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (2,), (t,))
    seen = []

    def largest(value: np.ndarray, step: np.ndarray) -> np.ndarray:
        seen.append((value.tolist(), int(step)))
        return value.max() * 10

    y = pr.host(largest, [x, pr.value(t)])
    have = pr.evaluate(y, {"x": np.array([[1, 2], [4, 3]], "float32")})
    assert have.tolist() == [20, 40]
    assert sorted(seen) == [([1, 2], 0), ([4, 3], 1)]


def test_several_results() -> None:
    t, T = pr.dim("t")

    def split(step: np.ndarray) -> tuple[np.ndarray, np.int32]:
        return np.full(3, step, "float32"), np.int32(-step)

    wide, narrow = pr.host(split, [pr.value(t)], [(3,), ()], ["float32", "int32"])
    have = pr.evaluate({"wide": wide.sum(), "narrow": narrow}, bounds={T: 3})
    assert have["wide"].tolist() == [0, 3, 6]
    assert have["narrow"].tolist() == [0, -1, -2]


def test_dims_without_inputs() -> None:
    t, T = pr.dim("t")
    y = pr.host(lambda: np.float32(3), dims=(t,))
    assert pr.evaluate(y, bounds={T: 2}).tolist() == [3, 3]
    x = pr.input("x", (), (t,))
    with pytest.raises(errors.UnboundDimError):
        pr.host(lambda v: v, [x], dims=())


class OwnError(Exception):
    """An exception of the user."""


def test_exceptions_pass_through_with_their_own_type() -> None:
    t, T = pr.dim("t")

    def fail(step: np.ndarray) -> np.float32:
        if step == 2:
            raise OwnError("at two")
        return np.float32(0)

    y = pr.host(fail, [pr.value(t)])
    assert pr.evaluate(y, bounds={T: 2}).tolist() == [0, 0]
    with pytest.raises(OwnError, match="at two"):
        pr.evaluate(y, bounds={T: 3})


@pytest.mark.parametrize("returned", [np.zeros(3, "float32"), np.zeros((2, 1), "float32"), np.zeros(2, "complex64")])
def test_wrong_results_are_reported(returned: Any) -> None:
    y = pr.host(lambda: returned, shape=(2,))
    with pytest.raises(errors.HostError):
        pr.evaluate(y)


def test_too_few_results() -> None:
    a, _ = pr.host(lambda: (np.float32(1),), [], [(), ()])
    with pytest.raises(errors.HostError):
        pr.evaluate(a)


def logging(log: list[Any], name: str) -> Any:
    """A host function that notes its name and its arguments."""

    def note(*values: np.ndarray) -> np.float32:
        log.append((name, *(v.tolist() for v in values)))
        return np.float32(len(log))

    return note


def test_an_effect_runs_once_per_point_in_lexicographic_order() -> None:
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    log: list[Any] = []
    y = pr.host(logging(log, "a"), [pr.value(i), pr.value(t)], effect="log")
    backwards = y[I - 1 - i, T - 1 - t]
    have = pr.evaluate((backwards, y, backwards + y), bounds={I: 2, T: 3})
    assert log == [("a", i, t) for i in range(2) for t in range(3)]
    assert have[1].tolist() == [[1, 2, 3], [4, 5, 6]]


def test_calls_that_share_an_effect_run_in_the_order_of_the_text_at_each_step() -> None:
    t, T = pr.dim("t")
    log: list[Any] = []
    first = pr.host(logging(log, "first"), [pr.value(t)], effect="log")
    second = pr.host(logging(log, "second"), [pr.value(t)], effect="log")
    before = pr.host(logging(log, "late"), [], effect="log")
    pr.evaluate((before, second[T - 1], first[0]), bounds={T: 2})
    assert log == [("first", 0), ("second", 0), ("first", 1), ("second", 1), ("late",)]


def test_a_call_without_the_dim_written_first_runs_first() -> None:
    t, T = pr.dim("t")
    log: list[Any] = []
    start = pr.host(logging(log, "start"), [], effect="log")
    each = pr.host(logging(log, "each"), [pr.value(t)], effect="log")
    pr.evaluate((each, start), bounds={T: 2})
    assert log == [("start",), ("each", 0), ("each", 1)]


def test_effects_that_nothing_reads_are_kept_when_asked_for() -> None:
    t, T = pr.dim("t")
    log: list[Any] = []
    note = pr.host(logging(log, "note"), [pr.value(t)], effect="log")
    pr.evaluate(pr.value(t), bounds={T: 2})
    assert log == []
    pr.evaluate(pr.value(t), bounds={T: 2}, effects=[note])
    assert log == [("note", 0), ("note", 1)]


def test_an_effect_read_at_one_step_runs_at_all() -> None:
    t, T = pr.dim("t")
    log: list[Any] = []
    note = pr.host(logging(log, "note"), [pr.value(t)], effect="log")
    assert pr.evaluate(note[0], bounds={T: 3}).tolist() == 1
    assert log == [("note", 0), ("note", 1), ("note", 2)]


def test_an_order_that_cannot_be_kept_is_an_error() -> None:
    t, T = pr.dim("t")
    y = pr.recurrent((), (t,))
    y[t] = pr.host(lambda v: v + 1, [pr.where(t < T - 1, y[pr.min(t + 1, T - 1)], 0.0)], effect="e")
    with pytest.raises(errors.PolyrhythmError):
        pr.evaluate(y, bounds={T: 3})


def test_effects_with_two_names_are_independent() -> None:
    t, T = pr.dim("t")
    log: list[Any] = []
    a = pr.host(logging(log, "a"), [pr.value(t)], effect="one")
    b = pr.host(logging(log, "b"), [pr.value(t)], effect="two")
    pr.evaluate((b, a), bounds={T: 2})
    assert [entry for entry in log if entry[0] == "a"] == [("a", 0), ("a", 1)]
    assert [entry for entry in log if entry[0] == "b"] == [("b", 0), ("b", 1)]
