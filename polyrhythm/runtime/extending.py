"""Runs that go further than they were to: the same call with a larger bound of the dim that checkpoints follow.

A run of 400 iterations can go on to 500 where nothing that was computed up to the cut depends on how many there are: a
learning rate that falls to zero at the last iteration does, and is named. The loops tell: up to the cut no index, no
length and no attribute has the bound in it, and every condition on it holds, or fails, whatever larger number it is.
Buffers along the bound become longer, and of inputs along it the part that was given before must be the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.ir.conditions import TRUE, Condition, conjunction, eq, ge, lt, negation
from polyrhythm.compiler.ir.graph import Graph
from polyrhythm.compiler.ir.ops.record import map_attribute
from polyrhythm.compiler.ir.sets import proves
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.loops.ir import Block, Compute, For, If, Item, LoopProgram, Steps, blocks_of
from polyrhythm.compiler.loops.units import units

Position = tuple[int, int]


def lookers(program: LoopProgram, bound: str, position: Position, old: Mapping[str, int]) -> Iterator[str]:
    """The nodes that were computed before a position and depend on a bound, by name."""
    symbol = next(s for s in program.bounds if s.name == bound)
    last, after = position
    others = (eq(Term.of(s), old[s.name]) for s in program.bounds if s is not symbol and s.name in old)
    known = conjunction(ge(Term.of(symbol), old[bound]), *others)
    for number, unit in enumerate(units(program.body)[: last + 1]):
        if unit.loop is None or number < last:
            yield from _within(If(unit.condition, (unit.item,)), symbol, known)
            continue
        before = conjunction(known, ge(Term.of(unit.loop.counter), unit.loop.first))
        inside = If(unit.condition, (If(lt(Term.of(unit.loop.counter), after), unit.loop.body),))
        if symbol in unit.loop.first.symbols:
            yield from _computed(unit.loop)
        yield from _within(inside, symbol, conjunction(before, lt(Term.of(unit.loop.counter), after)))


def _within(item: Item, bound: Symbol, known: Condition) -> Iterator[str]:
    if isinstance(item, If):
        if item.condition is not TRUE and proves(known, negation(item.condition)):
            return
        if bound in item.condition.symbols and not proves(known, item.condition):
            yield from _computed(item)
            return
        for inner in item.body:
            yield from _within(inner, bound, conjunction(known, item.condition))
    elif isinstance(item, For):
        if bound in item.first.symbols | item.end.symbols:
            yield from _computed(item)
            return
        counter = Term.of(item.counter)
        for inner in item.body:
            yield from _within(inner, bound, conjunction(known, ge(counter, item.first), lt(counter, item.end)))
    else:
        for compute in item.body:
            if bound in _symbols(compute):
                yield compute.node
        yield from (store.place for store in item.stores if any(bound in term.symbols for term in store.index))


def _computed(item: Item) -> Iterator[str]:
    blocks: Iterator[Block] = blocks_of((item,))
    yield from (compute.node for block in blocks for compute in block.body)


def _symbols(compute: Compute) -> set[Symbol]:
    """The symbols that a computation depends on."""
    found: set[Symbol] = set()

    def seen(part: Any) -> Any:
        found.update(part.symbols)
        return part

    for value in compute.attributes.values():
        map_attribute(value, seen)
    for load in compute.loads:
        for entry in load.index:
            parts = (entry.start, entry.length) if isinstance(entry, Steps) else (entry,)
            found.update(*(part.symbols for part in parts))
    return found.union(*(term.symbols for term in (*compute.type.shape, *compute.step)))


def named(graph: Graph, nodes: Iterator[str]) -> tuple[str, Any] | None:
    """The first of some nodes as the user knows it, and its line."""
    name = next((name for name in nodes if name in graph.nodes), None)
    return None if name is None else (described(graph[name]), graph[name].at)


def beginning(graph: Graph, name: str, array: Any, bound: str, old: Mapping[str, int]) -> Any:
    """The part of an input that a run with other bounds was given; None where it has no axis along the bound."""
    extents = [*(d.extent for d in graph.inputs[name].dims), *graph.inputs[name].shape]
    if not any(s.name == bound for extent in extents for s in extent.symbols):
        return None
    sizes = (extent.evaluate(lambda s: old[s.name]) for extent in extents)
    return array[tuple(slice(size) for size in sizes)]


def lengthened(program: LoopProgram, places: Mapping[str, np.ndarray], new: Mapping[str, int]) -> dict[str, np.ndarray]:
    """The contents of places at larger bounds: what is not there yet is zeros."""
    found = {}
    for name, array in places.items():
        whole = program.places[name].whole if name in program.places else ()
        more = [n.evaluate(lambda s: new[s.name]) - m for n, m in zip(whole, array.shape, strict=False)]
        is_longer = len(whole) == array.ndim and min(more, default=0) >= 0 and any(more)
        found[name] = np.pad(array, [(0, n) for n in more]) if is_longer else array
    return found
