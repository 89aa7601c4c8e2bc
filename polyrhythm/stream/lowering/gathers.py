"""Gathers: reading the part of an input that a number names.

Without further directives a gather is a random load: the numbers make the addresses. They are metadata, which is known
when a program is lowered, or a stream of numbers that the program computes or reads.

Contractions with one-hot vectors are gathers.

`einsum("e,ed->d", one_hot(route, E), w[0:E])` multiplies every part of w by zero but one. It is
`take(w[0:E], route, 0)`, which the lowering can send to branches. The two differ where a number names no part: one-hot
vectors are zero there, and a gather takes the nearest. The numbers are metadata, so that is looked at first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.ir.graph import Access, Definition, Node, Range
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.stream.dims import static
from polyrhythm.stream.errors import DataMismatch
from polyrhythm.stream.lowering.accesses import aligned
from polyrhythm.stream.lowering.loads import load_of
from polyrhythm.stream.lowering.packing import pack_rows, retiled
from polyrhythm.stream.lowering.problem import Problem, is_whole, metadata_grid, only
from polyrhythm.stream.lowering.tiles import materialised
from polyrhythm.stream.lowering.values import ROOT, Axis, Block, Load, Value
from polyrhythm.stream.operators.common import affine_walk
from polyrhythm.stream.operators.higher import accum, flat_map
from polyrhythm.stream.operators.offchip import random_load
from polyrhythm.stream.operators.structure import source as addresses
from polyrhythm.stream.tokens import Token
from polyrhythm.stream.types import U64, Tile, TileValue


def taken_part(problem: Problem, node: Node) -> tuple[Node, Node, Symbol] | None:
    """The input, the routing and the dim of the parts, if a node takes a part of an input by a number of its step."""
    definition = only(problem.graph, node.name, "take")
    if definition is None:
        return None
    table, index = definition.operands
    source, routing = problem.graph[table.source], problem.graph[index.source]
    ranges = [s for s, step in source.steps(table).items() if isinstance(step, Range)]
    axis = definition.attributes["axis"]
    if not source.is_input or axis >= len(ranges) or source.dtype.kind != "f" or routing.shape or not routing.dims:
        return None
    simple = all(
        is_whole(step, dim.extent) or step is dim.symbol.term
        for dim, step in zip(source.dims, table.steps, strict=True)
    )
    if not simple or index != routing.here or routing.dtype.kind not in "iu":
        return None
    return source, routing, ranges[axis]


def part_load(problem: Problem, node: Node, inside: Mapping[Symbol, int], slab: bool) -> Load:
    """How the table of a gather is read, with the axes of what is taken; with `slab`, one slab a part."""
    part = taken_part(problem, node)
    assert part is not None
    source, _, branch = part
    load = load_of(problem, source, inside, branch if slab else None)
    ranges = [s for s, step in source.steps(node.accesses[0]).items() if isinstance(step, Range)]
    kept = [symbol for symbol in ranges if symbol is not branch]
    names: dict[Axis, Axis] = {symbol: place for place, symbol in enumerate(kept)}
    names |= {axis: axis + len(kept) for axis in range(len(source.shape))}
    return replace(load, axes=tuple(names.get(a, a) for a in load.axes), block=load.block.renamed(names))


def gathered(
    problem: Problem, node: Node, inside: Mapping[Symbol, int], numbers: Callable[[str], Value]
) -> Value | None:
    """A gather from an input as random loads: the routing makes the addresses. None at missing points.

    Where `inside` puts chunks of the routing's steps into a tile, their parts are loaded in turn and packed. `numbers`
    gives the stream of a routing that is computed.
    """
    part = taken_part(problem, node)
    if part is None or problem.levels(node) is not None:
        return None
    table, index, branch = part
    if branch in inside:
        return None
    if not problem.is_metadata(index.name):
        shared = set(table.symbols) & set(index.symbols)
        return None if shared else _computed(problem, node, part, inside, numbers(index.name))
    load = part_load(problem, node, {s: n for s, n in inside.items() if s not in index.symbols}, slab=False)
    steps = problem.ordered({*index.symbols, *(a for a in load.axes if isinstance(a, Symbol) and a is not branch)})
    chunks = {symbol: inside[symbol] for symbol in problem.ordered(index.symbols) if symbol in inside}
    known: dict[Axis, int] = dict(zip(load.axes, load.sizes, strict=True))
    known |= {s: problem.extent(index, s) // chunks.get(s, 1) for s in steps if s in index.symbols}
    axes: tuple[Axis, ...] = (
        *(s for s in steps if s not in chunks or known[s] > 1),
        *(axis for axis in load.axes if isinstance(axis, int)),
    )
    sizes = tuple(known[axis] for axis in axes)
    stride = dict(zip(load.axes, load.strides, strict=True))
    order = problem.ordered(index.symbols)
    routes = np.broadcast_to(metadata_grid(problem, index, order), [problem.extent(index, s) for s in order])
    count = problem.extent(table, branch)

    def address(point: tuple[int, ...]) -> int:
        at: dict[Axis, int] = dict.fromkeys(steps, 0) | dict(zip(axes, point, strict=False))
        offset = dict(zip(chunks, point[len(axes) :], strict=True))
        place: dict[Axis, int] = {s: at[s] * chunks.get(s, 1) + offset.get(s, 0) for s in order}
        total = min(max(int(routes[tuple(place.values())]), 0), count - 1) * stride.get(branch, 0)
        return total + sum(stride[axis] * place.get(axis, at[axis]) for axis in load.axes if axis is not branch)

    full = (*sizes, *chunks.values())
    numbers = np.array([address(point) for point in np.ndindex(*full)]).reshape(full).tolist()
    shape = (static(1), *(static(size) for size in full))
    where = addresses(f"addresses of {table.name}", [numbers], shape, Tile(1, 1, U64))
    stream = random_load(load.tensor, load.tile, where)
    if chunks:
        stream = accum(pack_rows(load.block, load.dtype), stream, rank=len(chunks), name=f"pack {table.name}")
    block = Block((*chunks, *load.block.axes), (*chunks.values(), *load.block.lengths))
    return Value(ROOT, stream, axes, sizes, block, load.dtype)


def _computed(
    problem: Problem, node: Node, part: tuple[Node, Node, Symbol], inside: Mapping[Symbol, int], numbers: Value
) -> Value | None:
    """A gather by numbers that flow."""
    table, index, branch = part
    load = part_load(problem, node, {s: n for s, n in inside.items() if s not in index.symbols}, slab=False)
    inner = [(axis, size) for axis, size in zip(load.axes, load.sizes, strict=True) if axis is not branch]
    if any(isinstance(axis, Symbol) for axis, _ in inner):
        return None
    stride = dict(zip(load.axes, load.strides, strict=True))
    walk = list(affine_walk([n for _, n in inner], [stride[axis] for axis, _ in inner]))
    last, each = problem.extent(table, branch) - 1, stride.get(branch, 0)
    numbers = one_by_one(problem, index, numbers)

    def expand(value: TileValue, copy: int) -> Sequence[Token]:
        first = min(max(number_of(value, index), 0), last) * each
        return [(TileValue(1, 1, 8, data=np.array([[first + at]])), level) for at, level in walk]

    stream = materialised(numbers)
    dims = (stream.shape[-1], *(static(size) for _, size in inner))
    where = flat_map(expand, stream, dims, Tile(1, 1, U64), cycles=1, name=f"addresses of {table.name}")
    found = Value(ROOT, random_load(load.tensor, load.tile, where), (*numbers.axes, *(axis for axis, _ in inner)),
                  (*numbers.sizes, *(size for _, size in inner)), load.block, load.dtype)  # fmt: skip
    for symbol in index.symbols:
        found = retiled(found, symbol, inside.get(symbol), problem)
    return found


def one_by_one(problem: Problem, index: Node, numbers: Value) -> Value:
    """Numbers of all steps of a routing, one an element, in the order of its dims."""
    for symbol in index.symbols:
        numbers = retiled(numbers, symbol, None, problem)
    dims = problem.ordered(index.symbols)
    return aligned(numbers, dims, tuple(problem.extent(index, symbol) for symbol in dims), None)


def number_of(value: TileValue, index: Node) -> int:
    """The largest number that a tile carries; without values nothing can be chosen by it."""
    if value.data is None:
        raise DataMismatch(
            f"{described(index)} is computed while the program runs, and chooses what is read",
            fix="simulate with values: functional=True, and inputs for all it depends on",
            at=index.at,
        )
    return int(value.data.max())


def gathers_for_one_hots(problem: Problem) -> Problem:
    """The problem with every contraction that picks one part written as a gather."""
    nodes = {}
    for node in problem.graph:
        found = tuple(_gather(problem, definition) or definition for definition in node.definitions)
        nodes[node.name] = replace(node, definitions=found)
    return replace(problem, graph=replace(problem.graph, nodes=nodes))


def _gather(problem: Problem, definition: Definition) -> Definition | None:
    if definition.op != "einsum" or len(definition.operands) != 2:
        return None
    words, output = parse_spec(definition.attributes["spec"])
    for number, access in enumerate(definition.operands):
        word, other = words[number], words[1 - number]
        picks = len(word) == 1 and other.count(word) == 1 and output == other.replace(word, "")
        index = _picked(problem, access) if picks and not access.ranges else None
        if index is not None:
            operands = (definition.operands[1 - number], index)
            return Definition(definition.domain, "take", operands, {"axis": other.index(word)}, definition.at)
    return None


def _picked(problem: Problem, access: Access) -> Access | None:
    """The read of the numbers whose one-hot vectors a read gives."""
    graph = problem.graph

    def found(read: Access, op: str) -> Definition | None:
        return only(graph, read.source, op) if read == graph[read.source].here else None

    cast = found(access, "cast")
    equal = found(cast.operands[0], "eq") if cast is not None else None
    if equal is None:
        return None
    for chosen, counted in (equal.operands, equal.operands[::-1]):
        reshaped, counts = found(chosen, "reshape"), found(counted, "iota")
        if reshaped is None or counts is None:
            continue
        index = graph[reshaped.operands[0].source]
        known = index.dims and not index.shape and problem.is_metadata(index.name)
        if not known or reshaped.operands[0] != index.here:
            continue
        numbers = metadata_grid(problem, index, problem.ordered(index.symbols))
        if numbers.min() >= 0 and numbers.max() < problem.number(counts.attributes["length"]):
            return index.here
    return None
