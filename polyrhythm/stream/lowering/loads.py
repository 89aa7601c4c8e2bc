"""Inputs: where they lie in off-chip memory, and how their tiles are walked.

An input lies row-major, dims first, then the axes of its value: the last axis in memory is the columns of a matrix,
all others together its rows. A tile is a box: all of the axes of the value, and chunks of tiled dims.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.ir.graph import Node
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.stream.dims import Dim, Shape, ragged, static
from polyrhythm.stream.errors import AccessNotStreamable
from polyrhythm.stream.graph import Stream
from polyrhythm.stream.lowering.grids import metadata_grid
from polyrhythm.stream.lowering.problem import Problem
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
    rectangle,
    regular_length,
)
from polyrhythm.stream.operators.offchip import OffChip, linear_load
from polyrhythm.stream.operators.structure import source
from polyrhythm.stream.types import Tile


def load_of(
    problem: Problem,
    node: Node,
    name: str,
    inside: Mapping[Symbol, int],
    slab: Symbol | None = None,
    walk: Collection[Symbol | None] = (),
) -> Load:
    """How an input is read: `inside` gives the chunk of each tiled dim.

    One dim may count slabs. Some are walked even if a single tile holds all of them.
    """
    dims = [symbol for symbol in node.symbols if symbol is not slab]
    axes: list[Axis] = [*dims, *range(len(node.shape))]
    lengths = [problem.extent(node, symbol) for symbol in dims] + [problem.number(n) for n in node.shape]
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
    strides = [prod(counts[place + 1 :]) for place in range(len(axes))]
    walked = [
        place for place, chunk in enumerate(chunks) if chunk is None or chunk < lengths[place] or axes[place] in walk
    ]
    walked.sort(key=lambda place: problem.order.index(axes[place]))
    slabs = 1 if slab is None else problem.extent(node, slab)
    data = problem.arrays[name]
    kind = problem.storage if node.dtype.kind == "f" else data_type(node.dtype)
    matrix = None if data is None else _matrix(data, node, slab, rows, cols)
    first = 0 if slab is None else node.symbols.index(slab)
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


def _matrix(data: np.ndarray, node: Node, slab: Symbol | None, rows: int, cols: int) -> np.ndarray:
    if slab is None:
        return data.reshape(rows, cols)
    moved = np.moveaxis(data, node.symbols.index(slab), 0)
    return moved.reshape(len(moved), rows, cols)


def loaded(load: Load) -> Value:
    """The tensor as a stream of its own, read once in the order of its axes."""
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
    counts = {symbol: problem.extent(node, symbol) // chunks.get(symbol, 1) for symbol in dims}
    walked = tuple(symbol for symbol in dims if counts[symbol] > 1 or symbol not in chunks)
    sizes = tuple(counts[symbol] for symbol in walked)
    lengths = tuple(problem.number(n) for n in node.shape)
    block = Block((*chunks, *range(len(lengths))), (*chunks.values(), *lengths))
    rows, cols = block.sides
    assert rows is not None

    whole = None
    if levels is None and not lengths:
        full = [problem.extent(node, symbol) for symbol in dims]
        whole = np.broadcast_to(metadata_grid(problem, node, dims), full)

    def value(at: Mapping[Symbol, int]) -> np.ndarray:
        return problem.metadata(node.name, at) if whole is None else whole[tuple(at[symbol] for symbol in dims)]

    def tile(point: Point) -> np.ndarray:
        first = {symbol: at * chunks.get(symbol, 1) for symbol, at in zip(walked, point, strict=True)}
        offsets = [dict(zip(chunks, at, strict=True)) for at in np.ndindex(*chunks.values())]
        values = [value({s: first.get(s, 0) + offset.get(s, 0) for s in dims}) for offset in offsets]
        return np.array(values).reshape(rows, cols)

    nested = nest(levels if levels is not None else rectangle(sizes), tile)
    shape = (static(1), *dims_of(levels, sizes, node.name))
    stream = source(node.name, [nested], shape, Tile(rows, cols, data_type(node.dtype)))
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
