"""Inputs: where they lie in off-chip memory, and how their tiles are walked.

An input lies row-major, dims first, then the axes of its value: the last axis in memory is the columns of a matrix,
all others together its rows. A tile is a box: all of the axes of the value, and chunks of tiled dims.

Outputs: how they are stored off chip, and how their arrays are read back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.ir.graph import Node
from polyrhythm.compiler.ir.reads import fresh_name
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.stream.dims import Dim, Shape, ragged, static
from polyrhythm.stream.errors import AccessNotStreamable, OperationNotStreamable
from polyrhythm.stream.graph import Node as StreamNode
from polyrhythm.stream.graph import Stream
from polyrhythm.stream.lowering.problem import Problem, metadata_tiles
from polyrhythm.stream.lowering.tiles import materialised
from polyrhythm.stream.lowering.values import (
    ROOT,
    Axis,
    Block,
    Lead,
    Levels,
    Load,
    Point,
    Value,
    child_table,
    data_type,
    known_lengths,
    rectangle,
    regular_length,
)
from polyrhythm.stream.operators.common import require_static_tile, row_major
from polyrhythm.stream.operators.offchip import OffChip, linear_load, linear_store
from polyrhythm.stream.operators.structure import source
from polyrhythm.stream.types import Tile

if TYPE_CHECKING:
    from polyrhythm.stream.lowering.core import Lowering


def load_of(
    problem: Problem,
    node: Node,
    inside: Mapping[Symbol, int],
    slab: Symbol | None = None,
    walk: Collection[Symbol | None] = (),
) -> Load:
    """How an input is read: `inside` gives the chunk of each tiled dim.

    One dim may count slabs. Some are walked even if a single tile holds all of them.
    """
    dims = [symbol for symbol in node.symbols if symbol is not slab]
    axes: list[Axis] = [*dims, *range(len(node.shape))]
    lengths = [*(problem.extent(node, symbol) for symbol in dims), *problem.lengths(node)[len(node.dims) :]]
    chunks = [
        inside.get(axis) if isinstance(axis, Symbol) else length for axis, length in zip(axes, lengths, strict=True)
    ]
    parts = [chunk or 1 for chunk in chunks]
    # Without an axis in the tile, a tile is one number, and the numbers lie below each other.
    boxed = any(chunk is not None for chunk in chunks)
    box = (tuple(lengths), tuple(parts)) if boxed else ((*lengths, 1), (*parts, 1))
    cols, tile_cols = box[0][-1], box[1][-1]
    rows, tile_rows = prod(box[0][:-1]), prod(box[1][:-1])
    counts = [length // part for length, part in zip(*box, strict=True)]
    strides = row_major(counts)
    walked = [
        place for place, chunk in enumerate(chunks) if chunk is None or chunk < lengths[place] or axes[place] in walk
    ]
    walked.sort(key=lambda place: problem.order.index(axes[place]))
    slabs = 1 if slab is None else problem.extent(node, slab)
    name = node.definitions[0].attributes["name"]
    data = problem.arrays[name]
    kind = problem.storage if node.dtype.kind == "f" else data_type(node.dtype)
    first = 0 if slab is None else node.symbols.index(slab)
    matrix = None
    if data is not None:
        matrix = data.reshape(rows, cols) if slab is None else np.moveaxis(data, first, 0).reshape(slabs, rows, cols)
    tensor = OffChip(name, rows, cols, kind, matrix, slabs, "" if slabs == 1 else str(slab), box, first)
    inner = [place for place, chunk in enumerate(chunks) if chunk is not None]
    block = Block(tuple(axes[place] for place in inner), tuple(chunks[place] for place in inner))
    return Load(
        tensor,
        (tile_rows, tile_cols),
        tuple(axes[place] for place in walked),
        tuple(lengths[place] // (chunks[place] or 1) for place in walked),
        tuple(strides[place] for place in walked),
        block,
        node.dtype,
    )


def loaded(load: Load | Value) -> Value:
    """The tensor as a stream of its own, read once in the order of its axes; a value is one already."""
    if isinstance(load, Value):
        return load
    if not load.made:
        load.made.append(linear_load(load.tensor, load.tile, load.sizes, load.strides))
    (stream,) = load.made
    return Value(ROOT, stream, load.axes, load.sizes, load.block, load.dtype)


def loaded_by(
    load: Load, ref: Stream, lead: Lead, axes: tuple[Axis, ...], sizes: tuple[int | None, ...], held: bool = False
) -> Value:
    """The tensor again for every element of a reference stream with the given axes below its lead: read, or held."""
    stream = linear_load(load.tensor, load.tile, load.sizes, load.strides, ref=ref, held=held)
    return Value(lead, stream, (*axes, *load.axes), (*sizes, *load.sizes), load.block, load.dtype)


def metadata_value(problem: Problem, node: Node, inside: Mapping[Symbol, int]) -> Value:
    """Whole numbers that are on chip from the start, as a stream of their own."""
    dims = problem.ordered(node.symbols)
    levels = problem.levels(node)
    chunks = {symbol: inside[symbol] for symbol in dims if symbol in inside}
    if levels is not None and chunks:
        raise AccessNotStreamable(
            f"{described(node)} is wanted at some steps of the tiled dim {next(iter(chunks))} only",
            fix="leave the tile directive for the dim out",
            at=node.at,
        )
    grid = problem.grid(node, chunks)
    walked, sizes = tuple(grid), tuple(grid.values())
    if levels is None:
        tiles, block = metadata_tiles(problem, node, {s: problem.extent(node, s) for s in dims}, chunks)
        tiles = tiles.reshape(*sizes, *tiles.shape[-2:])
        nested = nest(rectangle(sizes), tiles.__getitem__)
    else:
        lengths = [problem.number(n) for n in node.shape]
        block = Block(tuple(range(len(lengths))), tuple(lengths))

        def tile(point: Point) -> np.ndarray:
            return problem.metadata(node.name, dict(zip(dims, point, strict=True))).reshape(block.fixed_sides)

        nested = nest(levels, tile)
    shape = (static(1), *dims_of(levels, sizes, node.name))
    stream = source(node.name, [nested], shape, Tile(*block.fixed_sides, data_type(node.dtype)))
    return Value(ROOT, stream, walked, sizes, block, node.dtype, levels, metadata=True)


def nest(levels: Levels, leaf: Callable[[Point], Any]) -> Any:
    """Nested lists over some points.

    >>> nest(rectangle((2, 1)), sum)
    [[0], [1]]
    """
    children = child_table(levels)

    def build(prefix: Point) -> Any:
        return leaf(prefix) if len(prefix) == len(levels) else [build(child) for child in children[prefix]]

    return build(())


def dims_of(levels: Levels | None, sizes: Sequence[int], name: str) -> Shape:
    """The dims of a stream with given points: static, or ragged with known totals."""
    if levels is None:
        return tuple(static(size) for size in sizes)
    found: list[Dim] = []
    for depth, level in enumerate(levels):
        length = regular_length(levels, depth)
        found.append(static(length) if length is not None else ragged(f"{name}.{depth}", len(level)))
    return tuple(found)


@dataclass(frozen=True)
class Stored:
    """An output in off-chip memory, tile by tile: the array's name and how it is seen as what the caller knows.

    `shape` lists the walked axes, then those of a tile; `order` puts the parts of each axis next to each other.
    """

    name: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    result: tuple[int, ...]
    dtype: np.dtype

    def array(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """The output as the caller knows it, dims leading."""
        tiles = np.asarray(arrays[self.name]).reshape(self.shape)
        return tiles.transpose(self.order).reshape(self.result).astype(self.dtype)


def stored(lowering: Lowering, name: str, number: int) -> tuple[Stored, list[StreamNode | Stream]]:
    """Store an output; the result says where it is, and ends the program."""
    node, operand, dealing = lowering.graph[name], lowering.operands[name], lowering.dealing
    if dealing is not None and name in dealing.nodes and dealing.roots[name] in dealing.updates:
        old = lowering.graph[dealing.updates[dealing.roots[name]]]
        axes: tuple[Axis, ...] = (*old.symbols, *range(len(old.shape)))
        return _view(lowering, node, old.definitions[0].attributes["name"], axes, lowering.problem.lengths(old)), []
    if dealing is not None and isinstance(operand, Value) and operand.lead is dealing.lead and not operand.metadata:
        value = dealing.checked(operand, node)
    else:
        value, dealing = lowering.value(name), None
    if value.levels is not None:
        raise AccessNotStreamable(
            f"{described(node)} has a length that differs from step to step, so it cannot be stored as one array",
            fix="reduce it before it is an output",
            at=node.at,
        )
    # What is dealt out is stored by the number of its entry.
    outer, counts = ((), ()) if dealing is None else (dealing.dims, dealing.counts)
    kept, sizes = require_static_tile("output", materialised(value)), (*counts, *value.sizes)
    hint = f"output {number}" if len(lowering.graph.outputs) > 1 else "output"
    array = fresh_name(hint, lowering.graph.inputs)
    tensor = OffChip(array, kept.rows * prod(known_lengths(sizes)), kept.cols, data_type(node.dtype))
    axes = (*outer, *value.axes, *value.inside.axes)
    view = _view(lowering, node, array, axes, (*sizes, *value.inside.lengths))
    return view, [linear_store(tensor, materialised(value)) if dealing is None else dealing.stored(value, tensor)]


def _view(lowering: Lowering, node: Node, name: str, axes: Sequence[Axis], lengths: Sequence[int | None]) -> Stored:
    """How the tiles of an output are put together; an axis that is walked in chunks is there twice."""
    wanted: tuple[Axis, ...] = (*node.symbols, *range(len(node.shape)))
    result = lowering.problem.lengths(node)
    shape = tuple(length for length in lengths if length is not None)
    order = tuple(place for axis in wanted for place, own in enumerate(axes) if own == axis)
    found = tuple(prod(shape[place] for place, own in enumerate(axes) if own == axis) for axis in wanted)
    if len(shape) != len(axes) or len(order) != len(axes) or found != result:
        raise OperationNotStreamable(
            f"{described(node)} is an output whose tiles do not cover it once",
            fix="leave out the directives for its dims",
            at=node.at,
        )
    return Stored(name, shape, order, result, node.dtype)
