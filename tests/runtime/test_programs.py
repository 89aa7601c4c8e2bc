"""Every hand-written program, compiled by each backend, equals its reference."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.runtime.program import Program
from tests.programs import PROGRAMS
from tests.programs.case import Bounds, Case

QUICK_ON_JAX = {"fibonacci", "rnn", "causal_attention", "gae", "edit_distance", "generation", "downsampled"}

CASES = {case.name: case for case in PROGRAMS}


@cache
def compiled(name: str, backend: str) -> Program:
    built = CASES[name].built
    return pr.compile(built.outputs, until=built.until, effects=built.effects, backend=backend)


def check(case: Case, backend: str, bounds: Bounds) -> None:
    built = case.built
    if built.log is not None:
        built.log.clear()
    inputs = case.inputs(bounds)
    outputs = compiled(case.name, backend)(**inputs, bounds=case.call_bounds(bounds))
    case.check(outputs, inputs, bounds)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_program(case: Case, backend: str) -> None:
    for bounds in case.bounds:
        check(case, backend, bounds)


@pytest.mark.parametrize(
    "case", [case for case in CASES.values() if case.name in QUICK_ON_JAX], ids=lambda case: case.name
)
def test_program_on_jax(case: Case) -> None:
    for bounds in (case.bounds[0], case.bounds[-1]):
        check(case, "jax", bounds)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_program_on_jax_at_all_bounds(case: Case) -> None:
    for bounds in case.bounds:
        check(case, "jax", bounds)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_a_run_that_ends_before_a_size_is_refused(backend: str) -> None:
    """P never exceeds T, so neither does it exceed the length found: called whole, and step by step."""
    t, T = pr.dim("t")
    P = pr.size("P", max=T)
    x = pr.input("x", (), (t,), "int32")
    y = pr.recurrent((), (t,), "int32")
    y[t < P] = x
    y[t >= P] = y[t - 1] + 1
    program = pr.compile(y, until={t: y == 2}, backend=backend)
    given = np.array([1, 2, 3, 4], "int32")
    np.testing.assert_array_equal(program(x=given, bounds={P: 2}), [1, 2])
    with pytest.raises(pr.errors.BoundsError, match="ended with T = 2, but P is 3"):
        program(x=given, bounds={P: 3})
    with pytest.raises(pr.errors.BoundsError, match="ended with T = 2, but P is 3"):
        list(program.stream(over=t, x=given, bounds={P: 3}))
