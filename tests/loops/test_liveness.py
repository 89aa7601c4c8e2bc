"""Which places a loop carries."""

from __future__ import annotations

import polyrhythm as pr
from polyrhythm.loops.ir import For, LoopProgram, walk
from polyrhythm.loops.liveness import carried, live_before, written
from tests.schedule import programs


def loops_of(outputs: dict[str, pr.Tensor]) -> LoopProgram:
    return pr.compile(outputs, backend="numpy").compiled.loops


def steady(program: LoopProgram) -> For:
    """The last innermost loop."""
    return [item for item in walk(program.body) if isinstance(item, For)][-1]


def after(program: LoopProgram, loop: For) -> set[str]:
    """The places that matter after an outermost loop."""
    rest = program.body[program.body.index(loop) + 1 :]
    return live_before(rest, set(program.outputs), program)


def test_a_register_is_carried_and_a_local_variable_is_not() -> None:
    program = loops_of(programs.ema())
    loop = steady(program)
    (local,) = written(loop.body) - {"y"}
    assert program.places[local].kind == "variable"
    assert carried(loop, after(program, loop), program) == ["y"]


def test_a_ring_is_carried() -> None:
    program = loops_of(programs.taps(3))
    loop = steady(program)
    assert set(carried(loop, after(program, loop), program)) == written(loop.body)


def test_what_nobody_reads_later_is_not_live() -> None:
    program = loops_of(programs.ema())
    loop = steady(program)
    assert "y" in after(program, loop)
    assert "y" not in live_before((), set(program.outputs), program)
    local = written(loop.body) - {"y"}
    assert not local & live_before(program.body, set(program.outputs), program)


def test_an_outer_loop_carries_what_its_next_iteration_reads() -> None:
    """Weights go from episode to episode; what an episode reads of before it is not written in it."""
    program = loops_of(programs.reinforce("td"))
    outer = [item for item in program.body if isinstance(item, For)][-1]
    kept = carried(outer, after(program, outer), program)
    assert "weights" in kept
    assert set(kept) <= written(outer.body)
    assert "noise" not in kept
