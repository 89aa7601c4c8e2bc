"""Trees of tensors as inputs, parameters and outputs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import optim
from polyrhythm.errors import MissingInputError, UnknownInputError
from tests.language.functions.everywhere import BACKENDS


class Pair(NamedTuple):
    first: pr.Tensor
    second: pr.Tensor


def test_a_tree_of_inputs() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", {"obs": (3,), "parts": [(), (2,)]}, (t,))
    out = {"sum": x["obs"][0:T].sum(), "nested": (x["parts"][0] * 2, [x["parts"][1]])}
    given = {"obs": np.ones((4, 3)), "parts": [np.arange(4.0), np.ones((4, 2))]}
    expected = pr.evaluate(out, {"x": given})
    assert expected["sum"] == 12
    assert isinstance(expected["nested"], tuple)
    for backend in BACKENDS:
        found = pr.compile(out, backend=backend)(x=given)
        assert found["sum"] == 12
        np.testing.assert_array_equal(found["nested"][0], np.arange(4.0) * 2)
        np.testing.assert_array_equal(found["nested"][1][0], np.ones((4, 2)))


def test_a_named_tuple_of_shapes() -> None:
    pair = pr.input("p", Pair((2,), (3,)))  # type: ignore[arg-type]
    assert isinstance(pair, Pair)
    assert pr.evaluate(pair.first.sum() + pair.second.sum(), {"p": (np.ones(2), np.ones(3))}) == 5


def test_training_a_tree_of_parameters() -> None:
    i, I = pr.dim("i")
    init = {"layer": {"w": np.ones((2,), "float32")}, "b": np.zeros((), "float32")}
    params = pr.parameter("model", init=init)
    assert params["layer"]["w"].shape == (2,)
    weights = optim.over(i, params)
    loss = (weights["layer"]["w"].sum() + weights["b"] - 5.0) ** 2
    optim.sgd(i, weights, pr.grad(loss, weights), rate=0.1)
    program = pr.compile({"weights": weights, "loss": loss}, backend="numpy")
    first = program(bounds={I: 4})
    assert first["loss"][-1] < first["loss"][0]
    other = program(bounds={I: 4}, model={"layer": {"w": np.full(2, 2.5)}})
    assert other["loss"][0] == 0
    assert set(other["weights"]) == {"layer", "b"}


def test_streams_take_trees() -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", {"a": (), "b": ()}, (t,))
    program = pr.compile(x["a"] + x["b"], backend="numpy")
    steps = program.stream(over=t, x={"a": iter([1.0, 2.0]), "b": np.array([5.0, 6.0])})
    assert [float(step) for step in steps] == [6.0, 8.0]


def test_what_is_missing_or_unknown_is_named_by_its_path() -> None:
    x = pr.input("x", {"a": (), "b": ()})
    program = pr.compile(x["a"] + x["b"], backend="numpy")
    with pytest.raises(MissingInputError, match=r"x\.b"):
        program(x={"a": 1.0})
    with pytest.raises(UnknownInputError, match=r"x\.c"):
        program(x={"a": 1.0, "b": 1.0, "c": 2.0})
    with pytest.raises(UnknownInputError, match="'y'"):
        program(x={"a": 1.0, "b": 1.0}, y={"a": 1.0})
