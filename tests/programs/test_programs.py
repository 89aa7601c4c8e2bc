"""Every hand-written program, evaluated by definition, equals its reference at every bounds."""

from __future__ import annotations

import pytest

import polyrhythm as pr
from tests.programs import PROGRAMS
from tests.programs.case import Bounds, Case

RUNS = [
    pytest.param(case, bounds, id="-".join([case.name, *(f"{k}{v}" for k, v in bounds.items())]))
    for case in PROGRAMS
    for bounds in case.bounds
]


@pytest.mark.parametrize(("case", "bounds"), RUNS)
def test_program(case: Case, bounds: Bounds) -> None:
    built = case.built
    if built.log is not None:
        built.log.clear()
    inputs = case.inputs(bounds)
    outputs = pr.evaluate(built.outputs, inputs, case.call_bounds(bounds), built.until, effects=built.effects)
    case.check(outputs, inputs, bounds)


def test_names_differ() -> None:
    names = [case.name for case in PROGRAMS]
    assert len(set(names)) == len(names)
