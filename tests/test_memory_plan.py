"""The storage plan is what a run needs: NumPy's allocations, and XLA's own account of its program."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Mapping

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.backends.jax.backend import JaxBackend
from polyrhythm.compiler.backends.python.numpy import NumpyBackend
from tests.memory_programs import PROGRAMS, Sized

OBJECTS = 150_000
"""Bytes of Python objects that come and go besides arrays (free lists, frames, array headers)."""


def planned(program: pr.Program, bounds: Mapping[str, int], inputs: bool) -> int:
    """All places, with or without inputs, and the temporaries of the block that needs most."""
    memory = program.memory
    places = (p for p in program.compiled.loops.places.values() if inputs or p.kind != "input")
    return sum(memory.bytes_of(place, bounds) for place in places) + memory.temporary(bounds)


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


@pytest.mark.parametrize("name", PROGRAMS)
def test_numpy_allocates_what_is_planned(name: str) -> None:
    sized = PROGRAMS[name]()
    program = pr.compile(sized.outputs, backend="numpy")
    plan = planned(program, sized.bounds, inputs=False)
    assert abs(allocated(program, sized) - plan) <= 0.01 * plan + OBJECTS


@pytest.mark.parametrize("name", PROGRAMS)
def test_xla_reports_what_is_planned(name: str) -> None:
    """At capacity: bounds that size a buffer count as the power of two that holds them."""
    sized = PROGRAMS[name]()
    program = pr.compile(sized.outputs, backend="jax")
    backend = program.backend
    assert isinstance(backend, JaxBackend)
    backend.run(sized.inputs, sized.bounds, 0)
    compilation = backend.compilations[-1]  # the largest, where buffers grow
    programs = [*backend._compiled.values(), *(backend.growing._compiled.values() if backend.growing else ())]
    compiled = programs[-1]
    plan = planned(program, {**sized.bounds, **compilation.capacities}, inputs=True)
    report = compiled.memory_analysis()
    ends = report.argument_size_in_bytes + report.output_size_in_bytes - report.alias_size_in_bytes
    needed = report.temp_size_in_bytes + ends
    assert abs(needed - plan) <= 0.1 * plan + 1e6


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
