"""isl's scheduler as a second opinion: what it can order we can, both orders are right, and the lags are the same."""

from __future__ import annotations

from random import Random

import islpy as isl
import pytest

from polyrhythm.compiler.ir.terms import ordered
from polyrhythm.compiler.pipeline import Compiled, compile_tensors
from polyrhythm.compiler.schedule.scheduler import ScheduleError, schedule
from tests.compiler.schedule import programs
from tests.compiler.schedule.enumeration import violations, when
from tests.compiler.schedule.generated import BOUNDS, program
from tests.compiler.schedule.isl_scheduler import Bounds, isl_schedule, relation_of, respected, times_of
from tests.programs import PROGRAMS
from tests.programs.case import Case


def bounds_of(compiled: Compiled) -> Bounds:
    return ordered(s for s in compiled.graph.symbols if s.kind != "dim")


def isl_times(compiled: Compiled) -> dict[str, isl.Map]:
    bounds = bounds_of(compiled)
    found = isl_schedule(compiled.blocks, compiled.dependences, bounds)
    assert found is not None
    return times_of(found, compiled.blocks)


def check_both(compiled: Compiled) -> None:
    bounds, times = bounds_of(compiled), isl_times(compiled)
    for d in compiled.dependences:
        assert respected(times, relation_of(d, compiled.blocks, bounds), d.source, d.reader), f"isl: {d}"
    small = {bound.name: 3 for bound in bounds}
    assert not violations(compiled.schedule, compiled.blocks, compiled.dependences, small)


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_known_programs(name: str) -> None:
    check_both(compile_tensors(list(programs.PROGRAMS[name]().values())))


@pytest.mark.parametrize("case", list(PROGRAMS), ids=lambda case: case.name)
def test_written_programs(case: Case) -> None:
    built = case.built
    compiled = compile_tensors(list(built.outputs.values()), built.effects, built.until)
    check_both(compiled)


@pytest.mark.parametrize(("returns", "n"), [("td", 1), ("rewards", 3), ("rewards", 5), ("values", 2), ("values", 4)])
def test_learning_lags_as_little_as_isl_makes_it(returns: str, n: int) -> None:
    """From the action of step t to the gradient of step t, in iterations of the loop over t."""
    compiled = compile_tensors(list(programs.reinforce(returns, n).values()))
    acts = {node.name for node in compiled.graph if any(d.op == "tanh" for d in node.definitions)}
    (action,) = [b.name for b in compiled.blocks.values() if any(s.node in acts for s in b.statements)]
    ours = when(compiled.schedule, compiled.blocks, {"I": 3, "T": 9})
    theirs = isl_times(compiled)
    by_isl = {key: _at(theirs[key[0]], key[1], {"I": 3, "T": 9}) for key in ours if key[0] in (action, "gradient.1")}
    assert _lag(ours, action) == _lag(by_isl, action) == (n - 1 if returns == "rewards" else n)


def _lag(times: dict[tuple[str, tuple[int, ...]], tuple[int, ...]], action: str) -> int:
    now, following = times[action, (1, 2)], times[action, (1, 3)]
    (level,) = [k for k, (a, b) in enumerate(zip(now, following, strict=True)) if a != b]
    learned = times["gradient.1", (1, 3)]
    assert learned[:level] == now[:level], "they share the loop"
    return learned[level] - now[level]


def _at(times: isl.Map, point: tuple[int, ...], bounds: dict[str, int]) -> tuple[int, ...]:
    for position in range(times.dim(isl.dim_type.param)):
        name = times.get_dim_name(isl.dim_type.param, position) or ""
        times = times.fix_val(isl.dim_type.param, position, isl.Val(bounds[name]))
    for position, value in enumerate(point):
        times = times.fix_val(isl.dim_type.in_, position, isl.Val(value))
    found = times.range().sample_point()
    count = times.dim(isl.dim_type.out)
    return tuple(int(found.get_coordinate_val(isl.dim_type.set, k).to_python()) for k in range(count))


@pytest.mark.parametrize("start", range(0, 120, 30))
def test_generated_programs(start: int) -> None:
    """isl may return an order for a program with a cycle; where its order is right, there is one of ours."""
    bounds = tuple(BOUNDS.values())
    for seed in range(start, start + 30):
        blocks, dependences = program(Random(seed))
        found = isl_schedule(blocks, dependences, bounds)
        if found is None:
            continue
        times = times_of(found, blocks)
        relations = [(relation_of(d, blocks, bounds), d.source, d.reader) for d in dependences]
        if all(respected(times, *entry) for entry in relations):
            try:
                schedule(blocks, dependences)
            except ScheduleError:
                pytest.fail(f"program {seed}: isl finds an order and we do not")
