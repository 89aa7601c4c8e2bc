"""Decoders of several layers: no buffer or weight is copied at a step, and memory is what the pattern needs."""

from __future__ import annotations

import numpy as np
import pytest

import polyrhythm as pr
from tests.compiler.backends.decoders import CAUSAL, L, Sizes, T, decoder, inputs, over, t, windowed
from tests.compiler.backends.hlo import large, loop_bodies, optimised

STEPS, WINDOW = 512, 128
COPIES = ("copy", "transpose", "select", "gather", "slice", "dynamic-slice", "concatenate", "pad")

slow = pytest.mark.slow
CONFIGURATIONS = [
    (1, 4, None),
    (4, 2, WINDOW),
    pytest.param(4, 2, None, marks=slow),
    pytest.param(1, 2, WINDOW, marks=slow),
    pytest.param(4, 4, WINDOW, marks=slow),
    pytest.param(1, 1, None, marks=slow),
    pytest.param(1, 2, None, marks=slow),
    pytest.param(4, 4, None, marks=slow),
    pytest.param(4, 1, WINDOW, marks=slow),
    pytest.param(1, 4, WINDOW, marks=slow),
]


@pytest.mark.parametrize(("batch", "kv_heads", "window"), CONFIGURATIONS)
def test_nothing_large_is_copied_at_a_step(batch: int, kv_heads: int, window: int | None) -> None:
    sizes = Sizes(batch, kv_heads)
    program = pr.compile(decoder(sizes, CAUSAL if window is None else windowed(window)), bounds={L: sizes.layers})
    bodies = loop_bodies(optimised(program, bounds={T: STEPS}, **inputs(sizes)))
    buffer = (window or STEPS) * batch * kv_heads * sizes.depth
    weight = sizes.width * kv_heads * sizes.depth
    assert bodies.count("dynamic-update-slice") >= 2 * sizes.layers, "the loop is not there"
    assert large(bodies, COPIES, buffer) == []
    assert large(bodies, ("slice", "dynamic-slice"), weight) == []


@pytest.mark.parametrize("window", [None, 5])
def test_what_is_decoded_is_right(window: int | None) -> None:
    sizes = Sizes(2, 2, layers=2)
    token = decoder(sizes, CAUSAL if window is None else windowed(window))
    program = pr.compile(token, bounds={L: sizes.layers})
    want = pr.evaluate(token, inputs(sizes), bounds={T: 9, L: sizes.layers})
    np.testing.assert_array_equal(program(bounds={T: 9}, **inputs(sizes)), want)


@pytest.mark.parametrize("stride", [2, 3])
def test_every_other_step(stride: int) -> None:
    """The steps of a stride are read where they lie, without a gather."""
    sizes = Sizes(2, 2, layers=2)
    token = decoder(sizes, over(slice(t % stride, t + 1, stride)))
    program = pr.compile(token, bounds={L: sizes.layers})
    want = pr.evaluate(token, inputs(sizes), bounds={T: 11, L: sizes.layers})
    np.testing.assert_array_equal(program(bounds={T: 11}, **inputs(sizes)), want)
    bodies = loop_bodies(optimised(program, bounds={T: 16}, **inputs(sizes)))
    gathers = large(bodies, ("gather",), 5 * sizes.batch * sizes.kv_heads * sizes.depth)
    assert gathers == []


def test_a_window_needs_the_same_memory_for_any_number_of_steps() -> None:
    sizes = Sizes(1, 4)
    memory = pr.compile(decoder(sizes, windowed(WINDOW)), bounds={L: sizes.layers}, backend="numpy").memory
    kept = {memory.kept({T: steps}) for steps in (1024, 4096, 32768)}
    assert len(kept) == 1
    keys = 2 * sizes.layers * WINDOW * sizes.width * 4
    assert keys <= kept.pop() <= 1.1 * keys
    assert len({memory.temporary({T: steps}) for steps in (1024, 32768)}) == 1
    grown = memory.bytes({T: 32768}) - memory.bytes({T: 1024})
    assert grown == (32768 - 1024) * 4  # the tokens themselves


@slow
def test_the_buffers_of_all_steps_double_as_they_fill() -> None:
    sizes = Sizes(1, 4)
    program = pr.compile(decoder(sizes), bounds={L: sizes.layers})
    program(bounds={T: 300}, **inputs(sizes))
    assert [entry.capacities for entry in program.stats.compilations] == [{"T": 128}, {"T": 256}, {"T": 512}]
    needed = [entry.memory_analysis().output_size_in_bytes for entry in program.backend.executor.programs.values()]
    per_step = 2 * sizes.layers * sizes.width * 4
    assert needed[1] - needed[0] == pytest.approx(128 * per_step, rel=0.01)
    assert needed[2] - needed[1] == pytest.approx(256 * per_step, rel=0.01)
