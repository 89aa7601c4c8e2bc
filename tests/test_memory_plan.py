"""The storage plan is what a run needs: NumPy's allocations, and XLA's own account of its program."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pytest

import polyrhythm as pr
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
    """Every XLA program is within its plan, and the plan of the run is that of the largest, or of moving its state."""
    compiled = program.stats.compilations
    assert compiled
    for compilation in compiled:
        above = compilation.planned - compilation.allocated
        assert 0 <= above <= 0.1 * compilation.allocated + 1e6, compilation
    peak, largest = program.memory.peak(bounds), max(c.allocated for c in compiled)
    states = [made.memory_analysis().output_size_in_bytes for made in program.backend.executor.programs.values()]
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
            backend.growing._compile(now, number == 0, (state, given, values, words, limits, last))


QUICK, SLOW = ([name for name, case in CORPUS.items() if case.slow == slow] for slow in (False, True))


@pytest.mark.parametrize("name", QUICK)
def test_xla_allocates_what_is_planned(name: str) -> None:
    case = CORPUS[name]
    program = case.program()
    compile_only(program, case.bounds)
    check(program, case.bounds)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_xla_allocates_what_is_planned_for_large_programs(name: str) -> None:
    test_xla_allocates_what_is_planned(name)


@pytest.mark.parametrize("name", ["ema", "decode", "prefix sum", "benchmark windowed decode"])
def test_a_plan_made_before_is_the_same(name: str) -> None:
    """What is planned from the trace alone is what is planned when it is compiled."""
    case = CORPUS[name]
    program = case.program()
    before = program.memory.peak(case.bounds)
    assert not program.stats.compilations
    compile_only(program, case.bounds)
    assert max(c.planned for c in program.stats.compilations) <= before == program.memory.peak(case.bounds)


def planned_programs(lane: str, count: int, number: int) -> None:
    """Generated programs, at bounds many times as large as those they were made for."""
    done = 0

    def example(generated: Program) -> None:
        nonlocal done
        variables = build(generated)
        bounds = {name: size * LARGER for name, size in generated.bounds}
        try:
            program = pr.compile(variables["outputs"], until=variables["until"] or None, progress=False)
            compile_only(program, bounds)
        except (pr.errors.PolyrhythmError, ScheduleError):
            return
        check(program, bounds)
        done += 1

    drawn(programs(lane), example, count, number)
    assert done >= count // 2


@pytest.mark.slow
@pytest.mark.parametrize("lane", ["int", "float"])
def test_generated_programs_are_within_their_plans(lane: str) -> None:
    planned_programs(lane, 20, 4200)


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
