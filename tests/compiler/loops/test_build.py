"""From schedule and storage to loops: no guards where the most is done, slots as planned, everything stored once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.compiler.loops.ir import For, If, Item, Load, LoopProgram, Steps, blocks_of, walk
from tests.compiler.schedule import programs


def loops_of(outputs: dict[str, pr.Tensor]) -> LoopProgram:
    return pr.compile(outputs, backend="numpy").compiled.loops


def runs(program: LoopProgram, size: int) -> dict[str, Counter[str]]:
    """How often blocks run at large bounds, inside a guard and outside of one."""
    found: dict[str, Counter[str]] = {"guarded": Counter(), "free": Counter()}

    def visit(items: tuple[Item, ...], known: dict[Symbol, int], kind: str, times: int) -> None:
        for item in items:
            if isinstance(item, For):
                first, end = item.first.evaluate(known.__getitem__), item.end.evaluate(known.__getitem__)
                visit(item.body, {**known, item.counter: (first + end) // 2}, kind, times * max(0, end - first))
            elif isinstance(item, If):
                visit(item.body, known, "guarded", times)
            else:
                found[kind][item.name] += times

    visit(program.body, dict.fromkeys(program.bounds, size), "free", 1)
    return found


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_guards_only_at_the_ends(name: str) -> None:
    """Almost all iterations meet no condition."""
    size = 50
    counted = runs(loops_of(programs.PROGRAMS[name]()), size)
    assert sum(counted["guarded"].values()) <= 0.2 * sum(counted["free"].values()) + 10


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_loads_and_stores_name_places_with_an_index_per_axis(name: str) -> None:
    program = loops_of(programs.PROGRAMS[name]())
    for block in blocks_of(program.body):
        for store in block.stores:
            assert len(store.index) == len(program.places[store.place].slots)
        for compute in block.body:
            for load in compute.operands:
                if isinstance(load, Load):
                    assert len(load.index) == len(program.places[load.place].slots)


def test_a_ring_is_indexed_modulo_its_slots() -> None:
    program = loops_of(programs.taps(4))
    (loop,) = (item for item in program.body if isinstance(item, For))
    (store, *_) = (store for block in blocks_of(loop.body) for store in block.stores)
    assert [str(term) for term in store.index] == ["t % 4"]
    steps = [
        entry
        for block in blocks_of(loop.body)
        for compute in block.body
        for load in compute.operands
        if isinstance(load, Load)
        for entry in load.index
        if isinstance(entry, Steps)
    ]
    assert [entry.ring for entry in steps] == [4]


def test_a_backward_loop_counts_upwards() -> None:
    program = loops_of(programs.gae())
    assert all(str(item.first).startswith("-T") for item in walk(program.body) if isinstance(item, For))


def test_values_of_one_block_are_not_stored() -> None:
    """`0.9 * y` and `0.1 * x` stay inside the block that adds them."""
    program = loops_of(programs.ema())
    assert not any("mul" in name for name in program.places)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 9])
def test_short_loops(steps: int) -> None:
    """Prologue and epilogue of a lag of 3 at bounds below it."""
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))
    y = pr.recurrent((), (t,))
    y[0] = x[0]
    y[t + 1] = 0.5 * y + x[t + 1]
    program = pr.compile({"ahead": y[pr.min(t + 3, T - 1)], "near": y[t : pr.min(t + 2, T)].sum(0)}, backend="numpy")
    given = np.arange(1, steps + 1, dtype="float32")
    values = [given[0]]
    for value in given[1:]:
        values.append(0.5 * values[-1] + value)
    found = program(x=given)
    np.testing.assert_allclose(found["ahead"], [values[min(s + 3, steps - 1)] for s in range(steps)])
    np.testing.assert_allclose(found["near"], [sum(values[s : s + 2]) for s in range(steps)])
