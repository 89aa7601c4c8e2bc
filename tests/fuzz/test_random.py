"""Random draws: the same for the same seed, and independent of what else is in the program."""

from __future__ import annotations

import numpy as np
from hypothesis import given, reject, settings

import polyrhythm as pr
from tests.fuzz.program import Program
from tests.fuzz.programs import data, programs
from tests.fuzz.script import build


@settings(max_examples=10)
@given(programs("int"))
def test_draws_do_not_depend_on_the_rest(program: Program) -> None:
    variables = build(program)
    t, T = variables["t"], variables["T"]
    draw = pr.uniform((2,), dims=(t,), name="here")
    sizes = {variables[name]: size for name, size in program.bounds}
    alone = pr.evaluate({"u": draw}, {}, bounds={T: dict(program.bounds)["T"]}, seed=3)["u"]
    other = next(iter(variables["outputs"].values()))
    rest = pr.uniform((), dims=(t,), name="there")
    outputs = {**variables["outputs"], "u": draw, "v": rest, "w": other * 0 + rest}
    try:
        results = [pr.evaluate(outputs, data(program), bounds=sizes, seed=3) for _ in range(2)]
    except pr.errors.ProgressError:
        reject()
    for result in results:
        np.testing.assert_array_equal(result["u"], alone)
        np.testing.assert_array_equal(result["v"], results[0]["v"])
        assert ((result["u"] >= 0) & (result["u"] < 1)).all()
    again = pr.evaluate({"u": draw}, {}, bounds={T: dict(program.bounds)["T"]}, seed=4)["u"]
    assert again.size == 0 or not np.array_equal(again, alone)
