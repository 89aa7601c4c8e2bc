"""The storage plan is what a run needs: by NumPy's allocations, XLA's account of its programs, and the process."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import polyrhythm as pr
from benchmarks.natural_programs import rows
from polyrhythm.compiler.backends.jax.run.placing import capacity, precision
from polyrhythm.compiler.backends.python.numpy import NumpyBackend
from polyrhythm.compiler.schedule.scheduler import ScheduleError
from tests.fuzz.check import drawn
from tests.fuzz.program import Program
from tests.fuzz.programs import programs
from tests.fuzz.script import build
from tests.memory_corpus import CORPUS
from tests.memory_programs import PROGRAMS, Sized

OBJECTS = 250_000
"""Bytes of Python objects that come and go besides arrays (free lists, frames, array headers)."""


LARGER = 40
"""How many times the bounds of a generated program are multiplied, so that arrays are what it needs memory for."""


def planned(program: pr.Program, bounds: Mapping[str, int]) -> int:
    """All places but the inputs, which a run on NumPy does not copy, and the temporaries."""
    memory = program.memory
    inputs = (place for place in program.compiled.loops.places.values() if place.kind == "input")
    return memory.peak(bounds) - sum(memory.bytes_of(place, bounds) for place in inputs)


def allocated(program: pr.Program, sized: Sized) -> int:
    """The most memory traced at any time during a run on NumPy, beyond what was there before."""
    backend = NumpyBackend(program.compiled.loops)
    backend.run(sized.inputs, sized.bounds, 0)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    try:
        backend.run(sized.inputs, sized.bounds, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak - before


SMALLER = {
    "prefix sum": {"T": 2000},
    "prefix dot": {"T": 1000},
    "prefix sort": {"T": 500},
    "attention 1024": {"T": 600},
    "benchmark lstm": {"T": 50},
    "benchmark decode": {"T": 300},
    "benchmark prefill": {"T": 32, "P": 32},
    "decoder": {"T": 30},
}
"""Bounds at which NumPy runs them in a second or so."""


def numbers_for(program: pr.Program, bounds: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Inputs of the right shapes, and the parameters."""
    random, made = np.random.default_rng(0), dict(program.params)
    for name, node in program.compiled.graph.inputs.items():
        lengths = (*(dim.extent for dim in node.dims), *node.shape)
        shape = tuple(length.evaluate(lambda symbol: bounds[symbol.name]) for length in lengths)
        made.setdefault(name, (random.normal(size=shape) > 0).astype(node.dtype))
    return made


@pytest.mark.parametrize("name", [*PROGRAMS, *SMALLER])
def test_numpy_allocates_what_is_planned(name: str) -> None:
    """A variable that is a copy of another may share its array, which the plan does not count on."""
    program = CORPUS[name].program(backend="numpy")
    bounds = SMALLER.get(name, CORPUS[name].bounds)
    found = allocated(program, Sized({}, numbers_for(program, bounds), dict(bounds)))
    assert found - OBJECTS <= planned(program, bounds) <= 1.1 * found + 1e6


def check(program: pr.Program, bounds: Mapping[str, int]) -> None:
    """The plan is what XLA says of the programs that a call compiles, or what moving its state needs.

    That both are of the same programs is what this can refute; that XLA says what is so, the process below. The plan is
    asked for first. What it compiled of several programs is forgotten, so that the call compiles all of them by itself.
    """
    peak, executor, places = program.memory.peak(bounds), program.backend.executor, program.backend.program.places
    if program.backend.growing is not None:
        executor.programs.clear()
        executor.accounts.clear()
    compile_only(program, bounds)
    told = [made.memory_analysis() for made in executor.programs.values()]
    ends = [one.argument_size_in_bytes + one.output_size_in_bytes - one.alias_size_in_bytes for one in told]
    # XLA counts inputs that are there as a whole and in parts twice, but the parts are views.
    views = [place for place in places.values() if place.part_of is not None and place.part_of[0] in places]
    twice = sum(math.prod(n.constant for n in view.whole) * view.type.dtype.itemsize for view in views)
    largest = max(end + one.temp_size_in_bytes for end, one in zip(ends, told, strict=True)) - twice
    states = [one.output_size_in_bytes for one in told]
    moving = states[-2] + 2 * states[-1] if len(states) > 1 else 0
    assert largest <= peak <= 1.1 * max(largest, moving) + 1e6


def compile_only(program: pr.Program, bounds: Mapping[str, int]) -> None:
    """Let XLA compile what a call at some bounds runs, without running it."""
    backend = program.backend
    capacities = {s: capacity(bounds[s.name]) for s in backend.sizing}
    dtypes = {name: place.type.dtype for name, place in backend.program.places.items()}

    def arrays(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        return {name: jax.ShapeDtypeStruct(shape, dtypes[name]) for name, shape in shapes.items()}

    with precision(backend.wide):
        if backend.growing is None:
            backend._compile(capacities, arrays(backend.input_shapes(capacities)))
            return
        growth = backend.growth
        values = jax.ShapeDtypeStruct((len(backend.program.bounds),), np.int32)
        limits = jax.ShapeDtypeStruct((len(growth.companions) + 1, 2), np.int32)
        words, last = jax.ShapeDtypeStruct((2,), np.uint32), jax.ShapeDtypeStruct((), np.bool_)
        for number, stretch in enumerate(growth.stretches(bounds, capacities[growth.bound])):
            now = {**capacities, growth.bound: stretch.capacity}
            state = arrays(backend.growing._rooms_at(now) if number else {})
            given = arrays(backend.input_shapes(now))
            arguments = (state, given, values, words, limits, last)
            backend.executor.compiled(backend.growing.advance(now, number == 0), arguments)


QUICK, SLOW = ([name for name, case in CORPUS.items() if case.slow == slow] for slow in (False, True))


@pytest.mark.parametrize("name", QUICK)
def test_xla_allocates_what_is_planned(name: str) -> None:
    case = CORPUS[name]
    check(case.program(), case.bounds)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_xla_allocates_what_is_planned_for_large_programs(name: str) -> None:
    test_xla_allocates_what_is_planned(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(rows()))
def test_natural_programs_allocate_what_is_planned(name: str) -> None:
    row, steps = rows()[name], 64
    first = row.compiled()
    first(bounds=dict(row.bounds(steps)), **row.given(steps))
    check(row.compiled(), first.stats.bounds)


@pytest.mark.parametrize("name", ["ema", "prefix sum"])
def test_a_call_finds_what_was_compiled_for_the_plan(name: str) -> None:
    case = CORPUS[name]
    program = case.program()
    program.memory.peak(case.bounds)
    compile_only(program, case.bounds)
    assert [compilation.reason for compilation in program.stats.compilations] == ["to plan its memory"]


RESIDENT = """
import gc, jax, time
from tests.memory_corpus import CORPUS
from tests.test_memory_plan import RESIDENT_AT, numbers_for

def resident(kind):
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(kind))

for name, bounds in RESIDENT_AT.items():
    program = CORPUS[name].program()
    inputs = numbers_for(program, bounds)
    plan = program.memory.peak(bounds)  # and all is compiled
    few = dict.fromkeys(bounds, 64)
    jax.block_until_ready(program(bounds=few, **numbers_for(program, few)))  # and code and threads are there
    taken = []
    for again in range(3):  # what XLA still gives back from before makes a measurement too small, never too large
        gc.collect()
        time.sleep(0.1)
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak of resident memory counts from here
        before = resident("VmRSS")
        jax.block_until_ready(program(bounds=bounds, **inputs))
        taken.append(resident("VmHWM") - before)
    print(plan, program.memory.temporary(bounds), max(taken))
"""

RESIDENT_AT = {
    "ema all values": {"T": 1 << 24},
    "attention 1024": {"T": 2048},
    "prefix sum": {"T": 1 << 20},
    "benchmark lstm": {"T": 2048},
}
"""Programs that are compiled in a moment, at capacities that they fill: memory that is not touched is not resident."""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of resident memory is asked of Linux")
def test_a_process_takes_what_is_planned() -> None:
    """What XLA says of itself is what the process takes from the machine, which knows nothing of any plan.

    A plan without temporaries, as that of the places is, would not pass.
    """
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # what is free goes back at once
    command = [sys.executable, "-c", RESIDENT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = [[int(cell) for cell in line.split()] for line in done.stdout.splitlines()]
    assert len(lines) == len(RESIDENT_AT)
    assert all(is_taken(plan, taken) for plan, _, taken in lines), done.stdout
    assert not all(is_taken(plan - temporary, taken) for plan, temporary, taken in lines), done.stdout


def is_taken(plan: int, taken: int) -> bool:
    """Whether a plan is what a process has taken; other processes move resident memory by half a megabyte."""
    return taken - 4 * OBJECTS <= plan <= 1.1 * taken + 1e6


def planned_programs(lane: str, count: int, number: int) -> None:
    """Generated programs, at bounds many times as large as those they were made for."""
    done = 0

    def example(generated: Program) -> None:
        nonlocal done
        variables = build(generated)
        bounds = {name: size * LARGER for name, size in generated.bounds}
        try:
            program = pr.compile(variables["outputs"], until=variables["until"] or None)
        except (pr.errors.PolyrhythmError, ScheduleError):
            return
        check(program, bounds)
        done += 1

    drawn(programs(lane), example, count, number)
    assert done >= count // 2


@pytest.mark.parametrize("lane", ["int", "float"])
def test_generated_programs_are_within_their_plans(lane: str) -> None:
    planned_programs(lane, 4, 4200)


@pytest.mark.slow
@pytest.mark.parametrize("lane", ["int", "float"])
def test_many_generated_programs_are_within_their_plans(lane: str) -> None:
    planned_programs(lane, 100, 5200)


@pytest.mark.slow
def test_growth_is_as_planned() -> None:
    """Twice the steps of a program that keeps a constant number of values need no more memory."""
    t, T = pr.dim("t")
    x = pr.input("x", (50_000,), ((t, T),))
    y = pr.recurrent((50_000,), (t,))
    y[0] = x[0]
    y[t + 1] = 0.9 * y + 0.1 * x[t + 1]
    program = pr.compile({"last": y[T - 1]}, backend="numpy")
    peaks = []
    for steps in (10, 40):
        ones = np.ones((steps, 50_000), "float32")
        peaks.append(allocated(program, Sized({}, {"x": ones}, {"T": steps})))
    assert abs(peaks[0] - peaks[1]) < OBJECTS
