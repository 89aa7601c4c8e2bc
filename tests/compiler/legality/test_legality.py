"""The checker accepts what the compiler makes, and says clearly what is wrong with what it rejects."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from polyrhythm.compiler.ir.conditions import FALSE
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.legality import IllegalProgramError, check_program
from polyrhythm.compiler.legality.instances import carried
from polyrhythm.compiler.loops.ir import Block, For, Item, Load, LoopProgram
from polyrhythm.compiler.pipeline import compile_tensors
from polyrhythm.compiler.schedule import dependences
from polyrhythm.compiler.schedule.scheduler import ScheduleError
from polyrhythm.errors import ProgressError, UnsupportedError
from tests.compiler.legality.mutants import refolded
from tests.compiler.loops.cases import BUILDERS, made, stopped_log_of_the_past
from tests.fuzz.check import drawn
from tests.fuzz.program import Program
from tests.fuzz.programs import programs
from tests.fuzz.script import build
from tests.fuzz.special import hosted, stopped

SECONDS = 1.0
"""The most processor time that a hand-written program may take; most take a tenth of it."""


@pytest.mark.parametrize("name", BUILDERS)
def test_compiled_programs_are_legal(name: str) -> None:
    found = made(name)
    began = time.process_time()
    check_program(*found)
    assert time.process_time() - began < SECONDS


def _check(program: Program) -> None:
    variables = build(program)
    try:
        compiled = compile_tensors(list(variables["outputs"].values()), (), variables["until"] or None)
    except (ProgressError, ScheduleError, UnsupportedError):
        return  # whether it can be compiled is the business of other tests
    check_program(compiled.graph, compiled.loops)


@pytest.mark.parametrize("strategy", [programs("int"), hosted(), stopped()], ids=["plain", "hosted", "stopped"])
def test_random_programs_are_legal(strategy: Any) -> None:
    drawn(strategy, _check, 12, 10, 6)


def changed(program: LoopProgram, change: Callable[[Item], Item | None]) -> LoopProgram:
    """The program with every item changed, inner ones first; None drops one."""

    def visit(items: tuple[Item, ...]) -> tuple[Item, ...]:
        inner = (item if isinstance(item, Block) else replace(item, body=visit(item.body)) for item in items)
        return tuple(kept for item in inner if (kept := change(item)) is not None)

    return replace(program, body=visit(program.body))


def _in_block(name: str, change: Callable[[Block], Block | None]) -> Callable[[LoopProgram], LoopProgram]:
    def visit(item: Item) -> Item | None:
        return change(item) if isinstance(item, Block) and item.name == name else item

    return lambda program: changed(program, visit)


def _first_load(block: Block, change: Callable[[Load], Load]) -> Block:
    """The block with its first load changed."""
    for number, compute in enumerate(block.body):
        for position, operand in enumerate(compute.operands):
            if isinstance(operand, Load) and operand.index:
                operands = list(compute.operands)
                operands[position] = change(operand)
                body = list(block.body)
                body[number] = replace(compute, operands=tuple(operands))
                return replace(block, body=tuple(body))
    raise AssertionError(block.name)


def reversed_body(program: LoopProgram) -> LoopProgram:
    return replace(program, body=program.body[::-1])


def shifted_load(block: Block) -> Block:
    def shift(load: Load) -> Load:
        first = load.index[0]
        assert isinstance(first, Term)
        return replace(load, index=(first + 1, *load.index[1:]))

    return _first_load(block, shift)


def swapped(block: Block) -> Block:
    position, compute = next((n, c) for n, c in enumerate(block.body) if len(c.operands) > 1)
    body = list(block.body)
    body[position] = replace(compute, operands=compute.operands[::-1])
    return replace(block, body=tuple(body))


def longer(item: Item) -> Item:
    return replace(item, end=item.end + 1) if isinstance(item, For) else item


def shorter_ring(program: LoopProgram) -> LoopProgram:
    """Every ring of four slots with three."""
    for place in program.places.values():
        if place.kind == "buffer":
            program = refolded(program, place, 0, 3)
    return program


def all_parallel(item: Item) -> Item:
    return replace(item, parallel=True) if isinstance(item, For) else item


def later_stop(item: Item) -> Item:
    if isinstance(item, For) and item.stop is not None:
        return replace(item, stop=replace(item.stop, length=item.stop.length + 1))
    return item


def endless(item: Item) -> Item:
    return replace(item, stop=None) if isinstance(item, For) else item


def first_call_last(program: LoopProgram) -> LoopProgram:
    return replace(program, body=(*program.body[2:], *program.body[:2]))


FAULTS: dict[str, tuple[str, str, Callable[[LoopProgram], LoopProgram]]] = {
    "operands_swapped": ("ema", "operation", _in_block("y_add", swapped)),
    "block_dropped": ("ema", "completeness", _in_block("output", lambda block: None)),
    "wrong_definition": ("ema", "operation", lambda program: changed(program, longer)),
    "loop_too_long": ("resampling", "completeness", lambda program: changed(program, longer)),
    "computed_twice": ("ema", "completeness", lambda program: replace(program, body=program.body * 2)),
    "items_reversed": ("ema", "order", reversed_body),
    "load_shifted": ("ema", "storage", _in_block("output", shifted_load)),
    "store_dropped": ("ema", "storage", _in_block("y_add", lambda block: replace(block, stores=()))),
    "ring_too_short": ("windowed_attention", "storage", shorter_ring),
    "falsely_parallel": ("ema", "parallel", lambda program: changed(program, all_parallel)),
    "first_call_last": ("logs", "effects", first_call_last),
    "stop_too_late": ("counting", "order", lambda program: changed(program, later_stop)),
    "no_stop": ("counting", "until", lambda program: changed(program, endless)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_messages(name: str, golden: Callable[[str, str], None]) -> None:
    case, rule, change = FAULTS[name]
    found = made(case)
    assert found is not None
    graph, program = found
    with pytest.raises(IllegalProgramError) as caught:
        check_program(graph, change(program))
    assert caught.value.rule == rule, str(caught.value)
    golden(name, re.sub(r"(\.py):\d+", r"\1", str(caught.value)))


def test_effects_beyond_the_end_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value beside the call may be computed beyond the end; that proves nothing about the call."""
    every = dependences._stop_dependences
    monkeypatch.setattr(dependences, "_stop_dependences", lambda *given: (d for d in every(*given) if not d.gap))
    outputs, effects, until = stopped_log_of_the_past()
    with pytest.raises(IllegalProgramError, match="is computed, which does not exist") as caught:
        compile_tensors(list(outputs.values()), effects, until)
    assert caught.value.rule == "completeness"


@pytest.mark.parametrize("name", ["collatz", "fibonacci"])
def test_no_output_is_left_out(name: str) -> None:
    """Not even one that is made of index values, which others may make where they read it."""
    graph, program = made(name)
    for output in graph.outputs:

        def without(item: Item, output: str = output) -> Item | None:
            writes = isinstance(item, Block) and any(store.place == output for store in item.stores)
            return None if writes else item

        with pytest.raises(IllegalProgramError, match="is never"):
            check_program(graph, changed(program, without))


def test_iterations_of_different_loops_are_never_two_of_one() -> None:
    counter = Term.of(Symbol("t", "dim"))
    assert carried((0, counter, 1, 5), (0, counter, 0, counter), 3) is FALSE
