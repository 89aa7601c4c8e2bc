"""What waits to be computed of the tiles of a stream, and when it becomes a Map.

Elementwise operations of one stream are collected in the value and become a single Map when a stream is wanted. What
only moves elements inside a tile never does: whoever reads the value does that too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from polyrhythm.stream.graph import Stream
from polyrhythm.stream.lowering.tiles import map_function
from polyrhythm.stream.lowering.values import Block, Fused, Value, tile_sides
from polyrhythm.stream.operators.higher import map_tiles
from polyrhythm.stream.operators.structure import restate


def materialised(operand: Value) -> Stream:
    """The stream of a value; what is fused becomes a Map, once."""
    fused = operand.fused
    if fused is None:
        return operand.base
    if not fused.made:

        def flops(*sides: Any) -> Any:
            rows, cols = tile_sides(fused.block, sides[:1], [operand.block])
            return fused.flops * rows * cols

        blocks = [operand.block, *(value.inside for value in fused.metadata)]
        cycles = 0 if fused.flops else 1
        function = map_function(fused.name, fused.compute, blocks, fused.block, operand.dtype, flops, None, cycles)
        streams = one_shape([operand.base, *(value.base for value in fused.metadata)])
        fused.made.append(map_tiles(function, *streams, name=fused.name))
    return fused.made[0]


def carried(operand: Value) -> tuple[Stream, Block, Fused | None]:
    """The stream of a value to be repeated or rearranged, and what its readers still have to do with its tiles."""
    if operand.fused is not None and operand.fused.free:
        return operand.base, operand.block, replace(operand.fused, made=[])
    return materialised(operand), operand.inside, None


def as_rows(operand: Value) -> Stream:
    """The stream of a value whose tiles have the sides of its block: a column that is read as a row is turned."""
    stream, block = materialised(operand), operand.inside
    rows, cols = block.sides
    if rows is None or (stream.element.rows, stream.element.cols) == (rows, cols):  # type: ignore[union-attr]
        return stream
    turned = map_function("turn", lambda array: array, [block], block, operand.dtype, lambda *sides: 0, cycles=1)
    return map_tiles(turned, stream, name=f"turn {stream.name}")


def one_shape(streams: list[Stream]) -> list[Stream]:
    """Streams whose points are the same, under one shape."""
    return [streams[0], *(s if s.shape == streams[0].shape else restate(s, streams[0].shape) for s in streams[1:])]
