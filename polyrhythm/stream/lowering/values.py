"""Values on their way through the lowering: a stream, and what its dims and its tiles stand for.

An *axis* is a dim of the program or an axis of the value at one step. Every axis of a value is walked by the stream
(one position an element), or lies inside the tile, or both: then the stream walks chunks of it. The outermost dim of
a stream is its *lead*: one entry for the whole program, the members of a branch, or the entries dealt to a region.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.stream.dims import Shape, static
from polyrhythm.stream.expr import ceil_div
from polyrhythm.stream.functions import TileShape
from polyrhythm.stream.graph import Stream
from polyrhythm.stream.operators.offchip import OffChip
from polyrhythm.stream.types import BOOL, F16, F32, F64, U32, U64, DataType

Axis = Symbol | int | str
Point = tuple[int, ...]
Levels = tuple[tuple[Point, ...], ...]

PACKED = "packed"
"""The axis of the members of a branch that lie in one tile."""


@dataclass(frozen=True)
class Lead:
    """The outermost dim of streams: `dims` of the program that it stands for, and how many copies there are."""

    name: str
    dims: frozenset[Symbol]
    shape: Shape
    copies: int = 1


ROOT = Lead("program", frozenset(), (static(1),))


@dataclass(frozen=True)
class Block:
    """The array inside a tile: its axes, outermost first, and their lengths; None for as many as there are.

    >>> Block((0, 1, 2), (2, 3, 4)).sides
    (6, 4)
    >>> Block((PACKED, 0), (None, 8)).sides
    (None, 8)
    """

    axes: tuple[Axis, ...] = ()
    lengths: tuple[int | None, ...] = ()

    @property
    def sides(self) -> tuple[int | None, int]:
        """Rows and columns of the tile. A single axis of the value is a row, a single dim a column."""
        if not self.axes:
            return 1, 1
        lengths = (*self.lengths, 1) if len(self.axes) == 1 and not isinstance(self.axes[0], int) else self.lengths
        first, *middle, last = (1, *lengths) if len(lengths) == 1 else lengths
        assert last is not None
        return (None if first is None else first * prod(known_lengths(middle))), last

    @property
    def fixed_sides(self) -> tuple[int, int]:
        """Rows and columns of a tile whose lengths are all known."""
        rows, cols = self.sides
        assert rows is not None
        return rows, cols

    @property
    def rest(self) -> int:
        """Rows for every entry of a first axis of unknown length."""
        return prod(known_lengths(self.lengths[1:-1]))

    def array(self, data: np.ndarray) -> np.ndarray:
        """The data of a tile in the shape of the block."""
        return data.reshape([-1 if length is None else length for length in self.lengths])

    def length(self, axis: Axis) -> int | None:
        """The length of one axis inside the tile."""
        return self.lengths[self.axes.index(axis)]

    def renamed(self, names: Mapping[Axis, Axis]) -> Block:
        """The block with other names for its axes."""
        return Block(tuple(names.get(axis, axis) for axis in self.axes), self.lengths)


@dataclass(frozen=True)
class Fused:
    """Functions of one stream that wait to become one Map.

    `compute` takes the array of an element and those of the metadata that goes with it; `flops` counts for an element
    of the result. What only moves elements is `free`: whoever reads it does that too.
    """

    compute: Callable[..., np.ndarray]
    flops: int
    name: str
    block: Block
    metadata: tuple[Value, ...] = ()
    made: list[Stream] = field(default_factory=list)

    @property
    def free(self) -> bool:
        """Whether it only moves elements."""
        return self.flops == 0 and not self.metadata


@dataclass(frozen=True, eq=False)
class Value:
    """A value as a stream below a lead: `axes` are its dims, `sizes` their lengths (None: ragged), `block` its tiles.

    `levels` lists the points where they do not fill a rectangle: the prefixes of every length. What is still to be
    computed of each tile of `base` is `fused`. `ones` counts inner dims of size 1 that the stream has in addition.
    """

    lead: Lead
    base: Stream
    axes: tuple[Axis, ...]
    sizes: tuple[int | None, ...]
    block: Block
    dtype: np.dtype
    levels: Levels | None = None
    fused: Fused | None = None
    metadata: bool = False
    ones: int = 0

    def size(self, axis: Axis) -> int | None:
        """Positions of the stream along an axis."""
        return self.sizes[self.axes.index(axis)]

    @property
    def streamed(self) -> tuple[int, ...]:
        """The axes of the value that the stream walks."""
        return tuple(axis for axis in self.axes if isinstance(axis, int))

    @property
    def inside(self) -> Block:
        """The block of the value itself, once what is fused has been computed."""
        return self.fused.block if self.fused is not None else self.block

    def prefixes(self) -> Levels:
        """The points, level by level; those of the rectangle where nothing else is said."""
        return self.levels if self.levels is not None else rectangle(self.sizes)


@dataclass(frozen=True, eq=False)
class Load:
    """A tensor in off-chip memory that is read where it is wanted: its tiles, and the step along each axis in tiles.

    `branch` is the lead whose copies each read their own slab.
    """

    tensor: OffChip
    tile: tuple[int, int]
    axes: tuple[Axis, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    block: Block
    dtype: np.dtype
    branch: Lead | None = None
    made: list[Stream] = field(default_factory=list)

    @property
    def inside(self) -> Block:
        """What the tiles hold, as that of a value."""
        return self.block


Operand = Value | Load | np.ndarray


def rectangle(sizes: Sequence[int | None]) -> Levels:
    """The prefixes of all points of a rectangle.

    >>> rectangle((1, 2))
    (((0,),), ((0, 0), (0, 1)))
    """
    known = known_lengths(sizes)
    return tuple(tuple(np.ndindex(*known[: depth + 1])) for depth in range(len(known)))


def known_lengths(lengths: Sequence[int | None]) -> list[int]:
    """Lengths none of which depends on data."""
    known = [length for length in lengths if length is not None]
    assert len(known) == len(lengths), "a ragged dim has no length that is known"
    return known


def prefixes(points: Iterable[Point], depth: int) -> Levels:
    """The prefixes of some points, level by level."""
    found = list(points)
    return tuple(tuple(dict.fromkeys(point[: place + 1] for point in found)) for place in range(depth))


def reach(levels: Levels) -> tuple[int, ...]:
    """How far some points go along each axis."""
    return tuple(1 + max((point[-1] for point in level), default=-1) for level in levels)


def irregular(levels: Levels | None, sizes: Sequence[int | None]) -> Levels | None:
    """The points, or None where they are all of a rectangle.

    >>> irregular((((0,), (1,)),), (2,)) is None
    True
    """
    return None if levels is None or (None not in sizes and levels == rectangle(sizes)) else levels


def tile_sides(block: Block, sides: Sequence[TileShape], blocks: Sequence[Block]) -> TileShape:
    """The sides of a tile with a block, from those of the operands where its first axis has no known length.

    >>> tile_sides(Block((PACKED, 0), (None, 3)), [(5, 8)], [Block((PACKED, 0), (None, 8))])
    (5, 3)
    """
    rows, cols = block.sides
    if rows is not None:
        return rows, cols
    return packed_rows(sides, blocks) * block.rest, cols


def packed_rows(sides: Sequence[TileShape], blocks: Sequence[Block]) -> Any:
    """How many entries an axis of unknown length has, from the sides of the operands."""
    for (rows, _), block in zip(sides, blocks, strict=True):
        if block.lengths and block.lengths[0] is None:
            return rows // block.rest if isinstance(rows, int) else ceil_div(rows, block.rest)
    raise AssertionError("no operand has the packed axis")


_TYPES = {"float32": F32, "float64": F64, "float16": F16, "bool": BOOL, "int64": U64, "uint64": U64}


def data_type(dtype: np.dtype) -> DataType:
    """The accelerator's type for a NumPy type, by its bytes.

    >>> data_type(np.dtype("float32")).nbytes
    4
    """
    return _TYPES.get(dtype.name, F16 if dtype.itemsize == 2 else U32)


def child_table(levels: Levels) -> dict[Point, list[Point]]:
    """The longer prefixes that continue each prefix, from the empty one on."""
    children: dict[Point, list[Point]] = {(): []}
    for level in levels:
        for prefix in level:
            children[prefix[:-1]].append(prefix)
            children.setdefault(prefix, [])
    return children


def regular_length(levels: Levels, place: int) -> int | None:
    """The length of an axis, if it is the same at every point of the axes before it.

    >>> regular_length((((0,), (1,)), ((0, 0), (1, 0), (1, 1))), 1) is None
    True
    """
    before = len(levels[place - 1]) if place else 1
    counts: dict[Point, int] = {}
    for prefix in levels[place]:
        counts[prefix[:-1]] = counts.get(prefix[:-1], 0) + 1
    regular = len(counts) == before and len(set(counts.values())) == 1
    return next(iter(counts.values())) if regular else None
