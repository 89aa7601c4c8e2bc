"""Gathers: reading the part of an input that a number names.

Without further directives a gather is a random load: the numbers make the addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from polyrhythm.compiler.ir.graph import Definition, Node, Range
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.stream.dims import static
from polyrhythm.stream.lowering.loads import load_of
from polyrhythm.stream.lowering.problem import Problem, is_whole
from polyrhythm.stream.lowering.values import ROOT, Axis, Load, Value
from polyrhythm.stream.operators.offchip import random_load
from polyrhythm.stream.operators.structure import source as addresses
from polyrhythm.stream.types import U64, Tile


def taken_part(problem: Problem, node: Node) -> tuple[Node, Node, Symbol] | None:
    """The input, the routing and the dim of the parts, if a node takes a part of an input by metadata."""
    if len(node.definitions) != 1 or node.definitions[0].op != "take":
        return None
    definition = node.definitions[0]
    table, index = definition.operands
    source, routing = problem.graph[table.source], problem.graph[index.source]
    ranges = [s for s, step in source.steps(table).items() if isinstance(step, Range)]
    axis = definition.attributes["axis"]
    is_input = len(source.definitions) == 1 and source.definitions[0].op == "input"
    if not is_input or axis >= len(ranges) or source.dtype.kind != "f" or routing.shape or not routing.dims:
        return None
    simple = all(
        is_whole(step, dim.extent) or step is Term.of(dim.symbol)
        for dim, step in zip(source.dims, table.steps, strict=True)
    )
    current = all(step is Term.of(s) for s, step in routing.steps(index).items())
    if not simple or not current or not problem.is_metadata(routing.name):
        return None
    return source, routing, ranges[axis]


def part_load(problem: Problem, node: Node, inside: Mapping[Symbol, int], slab: bool) -> Load:
    """How the table of a gather is read, with the axes of what is taken; with `slab`, one slab a part."""
    part = taken_part(problem, node)
    assert part is not None
    source, _, branch = part
    definition: Definition = node.definitions[0]
    load = load_of(problem, source, source.definitions[0].attributes["name"], inside, branch if slab else None)
    ranges = [s for s, step in source.steps(definition.operands[0]).items() if isinstance(step, Range)]
    kept = [symbol for symbol in ranges if symbol is not branch]
    names: dict[Axis, Axis] = {symbol: place for place, symbol in enumerate(kept)}
    names |= {axis: axis + len(kept) for axis in range(len(source.shape))}
    return replace(load, axes=tuple(names.get(a, a) for a in load.axes), block=load.block.renamed(names))


def gathered(problem: Problem, node: Node, inside: Mapping[Symbol, int]) -> Value | None:
    """A gather from an input as random loads: the routing makes the addresses. None where points are missing."""
    part = taken_part(problem, node)
    if part is None or problem.levels(node) is not None:
        return None
    table, index, branch = part
    load = part_load(problem, node, inside, slab=False)
    if branch not in load.axes:
        return None
    dims = problem.ordered({*index.symbols, *(a for a in load.axes if isinstance(a, Symbol) and a is not branch)})
    axes: tuple[Axis, ...] = (*dims, *(axis for axis in load.axes if isinstance(axis, int)))
    known = dict(zip(load.axes, load.sizes, strict=True))
    sizes = tuple(known[axis] if axis in known else problem.extent(index, axis) for axis in axes)  # type: ignore[arg-type]
    stride = dict(zip(load.axes, load.strides, strict=True))
    count = known[branch]

    def address(point: tuple[int, ...]) -> int:
        at = dict(zip(axes, point, strict=True))
        chosen = int(problem.metadata(index.name, {s: at[s] for s in index.symbols}))
        total = min(max(chosen, 0), count - 1) * stride[branch]
        return total + sum(stride[axis] * at[axis] for axis in load.axes if axis is not branch)

    numbers = np.array([address(point) for point in np.ndindex(*sizes)]).reshape(sizes).tolist()
    shape = (static(1), *(static(size) for size in sizes))
    where = addresses(f"addresses of {table.name}", [numbers], shape, Tile(1, 1, U64))
    stream = random_load(load.tensor, load.tile, where)
    return Value(ROOT, stream, axes, sizes, load.block, load.dtype)
