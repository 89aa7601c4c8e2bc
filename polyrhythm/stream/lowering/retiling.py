"""Between tiles of different sizes: steps of a dim are taken out of tiles one by one, or packed into them.

Operations may have tiles of their own (`on=`), entries are dealt out step by step, and branches take steps one by one.
What crosses such a border is unpacked and packed again. Rows only change their tile, so no value does; no time passes
but that of the elements, and a packed tile is held on chip.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.stream.dims import static
from polyrhythm.stream.errors import AccessNotStreamable
from polyrhythm.stream.lowering.accesses import aligned
from polyrhythm.stream.lowering.fusing import materialised
from polyrhythm.stream.lowering.packing import pack_rows
from polyrhythm.stream.lowering.problem import Problem
from polyrhythm.stream.lowering.values import ROOT, Axis, Block, Value, data_type
from polyrhythm.stream.operators.higher import accum, flat_map
from polyrhythm.stream.operators.shapes import flatten, reshape
from polyrhythm.stream.tokens import Token
from polyrhythm.stream.types import TileValue, tile_type


def retiled(value: Value, symbol: Symbol, chunk: int | None, problem: Problem) -> Value:
    """A value of the whole program with `chunk` steps of a dim in a tile; None for single steps, outside the tile."""
    have = value.inside.length(symbol) if symbol in value.inside.axes else None
    if have == chunk or (have is None and symbol not in value.axes):
        return value
    if value.levels is not None or None in value.sizes or value.lead is not ROOT:
        raise AccessNotStreamable(
            f"{value.base.name} has a length that differs from step to step, so its tiles cannot be changed",
            fix=f"give all of its operations the same tile of {symbol}",
        )
    if have is not None:
        value = _unpacked(value, symbol, have, problem)
    return value if chunk is None else _packed(value, symbol, chunk)


def _last(value: Value, symbol: Symbol) -> Value:
    """A value whose innermost walked axis is a dim."""
    order: tuple[Axis, ...] = (*(axis for axis in value.axes if axis is not symbol), symbol)
    return aligned(value, order, tuple(map(value.size, order)), None)


def _unpacked(value: Value, symbol: Symbol, have: int, problem: Problem) -> Value:
    inside = value.inside
    if inside.axes[0] is not symbol:
        raise AccessNotStreamable(
            f"{value.base.name} has tiles whose rows are not those of {symbol}",
            fix=f"give all of its operations the same tile of {symbol}",
        )
    value = _last(value, symbol) if symbol in value.axes else value
    block = Block(inside.axes[1:], inside.lengths[1:])
    rows, cols = block.sides
    assert rows is not None
    each = rows

    def expand(tile: TileValue, copy: int) -> Sequence[Token]:
        def part(at: int) -> Any:
            return None if tile.data is None else tile.data.reshape(have * each, cols)[at * each : (at + 1) * each]

        nbytes = tile.nbytes // have
        return [(TileValue(each, cols, nbytes, data=part(at)), int(at == have - 1)) for at in range(have)]

    stream = materialised(value)
    kind = tile_type(rows, cols, data_type(value.dtype))
    # The steps of a tile are a dim of their own, which joins that of the tiles.
    stream = flat_map(expand, stream, (stream.shape[-1], static(have)), kind, name=f"steps of {value.base.name}")
    axes, sizes = value.axes, value.sizes
    if symbol in value.axes:
        stream = flatten(stream, 0, 1)
        sizes = (*sizes[:-1], (sizes[-1] or 0) * have)
    else:
        axes, sizes = (*axes, symbol), (*sizes, have)
    found = Value(ROOT, stream, axes, sizes, block, value.dtype)
    order: tuple[Axis, ...] = (*problem.ordered(a for a in axes if isinstance(a, Symbol)), *found.streamed)
    return aligned(found, order, tuple(map(found.size, order)), None)


def _packed(value: Value, symbol: Symbol, chunk: int) -> Value:
    value = _last(value, symbol)
    count = (value.sizes[-1] or 0) // chunk
    stream = materialised(value)
    if count > 1:
        stream = reshape(stream, 0, chunk)
    block = Block((symbol, *value.inside.axes), (chunk, *value.inside.lengths))
    stream = accum(pack_rows(value.inside, value.dtype), stream, rank=1, name=f"tiles of {value.base.name}")
    axes, sizes = value.axes[:-1], value.sizes[:-1]
    if count > 1:
        axes, sizes = (*axes, symbol), (*sizes, count)
    return Value(ROOT, stream, axes, sizes, block, value.dtype)
