"""Shape operators: Flatten, Reshape, Promote, Expand, Repeat, Zip. They compute nothing and rewrite stop levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from polyrhythm.stream.dims import chunked, one_if_any, product, shape_text, static
from polyrhythm.stream.engine import Channel, Process, Steps
from polyrhythm.stream.errors import RankOutOfRange, ShapeMismatch, StopMismatch
from polyrhythm.stream.expr import Expr
from polyrhythm.stream.graph import Node, Operator, Port, Stream, make
from polyrhythm.stream.operators.common import (
    endless_inputs,
    follow,
    get_together,
    require_equal_shapes,
    require_rank,
    require_static_tile,
)
from polyrhythm.stream.operators.onchip import require_repeatable
from polyrhythm.stream.tokens import EMPTY
from polyrhythm.stream.types import Tile, TileValue, Tuple


@dataclass(frozen=True)
class Flatten(Operator):
    """Merges the dims `low` to `high`, counted from the innermost, into one."""

    low: int
    high: int

    def run(self, process: Process) -> Steps:
        """Groups of the ranks between vanish. An empty one that vanished still makes its outer group exist."""
        channel, out, low, high = process.inputs[0][0], process.outputs[0][0], self.low, self.high
        open_below = vanished = sent = False
        while (token := process.take(channel) if channel.items else (yield from process.get(channel))) is not None:
            value, level = token
            if level > high:
                outer = level - (high - low)
                if value is EMPTY and outer > low + 1 and vanished and not sent:
                    yield from process.put(out, EMPTY, low + 1)
                yield from process.put(out, value, outer)
                open_below = vanished = sent = False
            elif value is not EMPTY or level <= low or open_below:
                yield from process.put(out, value, min(level, low))
                open_below, sent = level < low, True
            else:
                vanished = True


@dataclass(frozen=True)
class Reshape(Operator):
    """Splits dim b into chunks; the innermost dim may be padded to whole chunks."""

    dim: int
    chunk: int
    padding: Tile | None = None
    fill: float = 0.0

    def run(self, process: Process) -> Steps:
        """The innermost dim counts elements, an outer one the groups that close."""
        if self.dim == 0:
            yield from self._elements(process)
        else:
            yield from self._groups(process)

    def _elements(self, process: Process) -> Steps:
        channel, out, count = process.inputs[0][0], process.outputs[0][0], 0
        while (token := process.take(channel) if channel.items else (yield from process.get(channel))) is not None:
            value, level = token
            if value is not EMPTY:
                count = (count + 1) % self.chunk
                yield from process.put(out, value, 0 if count else level + 1)
            elif not count:
                yield from process.put(out, EMPTY, level + 1)
            if count and level:
                yield from self._pad(process, out, count, level + 1)
                count = 0
        if count:
            yield from self._pad(process, out, count, 1)

    def _pad(self, process: Process, out: Channel, count: int, level: int) -> Steps:
        if self.padding is None:
            raise StopMismatch(
                f"{process.name}: {count} elements are left for a chunk of {self.chunk}",
                fix="give reshape a padding, or a chunk that divides the dim",
                at=process.node.source,
            )
        pad = self.pad_value(process)
        for position in range(count, self.chunk):
            yield from process.put(out, pad, level if position == self.chunk - 1 else 0)

    def pad_value(self, process: Process) -> TileValue:
        """An element of padding."""
        tile = self.padding
        assert tile is not None
        data = np.full((tile.rows, tile.cols), self.fill) if process.engine.functional else None
        return TileValue(tile.rows, tile.cols, tile.rows * tile.cols * tile.dtype.nbytes, 0, False, data)

    def _groups(self, process: Process) -> Steps:
        channel, out, rank = process.inputs[0][0], process.outputs[0][0], self.dim
        count, is_open = 0, False
        while (token := process.take(channel) if channel.items else (yield from process.get(channel))) is not None:
            value, level = token
            bare = value is EMPTY
            if level < rank:
                is_open = True
                yield from process.put(out, value, level)
                continue
            closes = not bare or is_open or level == rank
            count += closes
            full = count == self.chunk
            if bare and not is_open and level == rank:
                yield from process.put(out, EMPTY, rank)
                if full:
                    yield from process.put(out, EMPTY, rank + 1)
            elif level == rank:
                yield from process.put(out, value, rank + full)
            else:
                if count % self.chunk:
                    raise StopMismatch(
                        f"{process.name}: {count} groups are left for a chunk of {self.chunk}",
                        fix="the chunk must divide the dim; only the innermost dim can be padded",
                        at=process.node.source,
                    )
                yield from process.put(out, value, level + 1)
            is_open = False
            if full:
                count = 0


@dataclass(frozen=True)
class Promote(Operator):
    """Inserts a dim of size 1 below dim `dim`, or outermost: then it is 1, or 0 for an empty stream."""

    dim: int
    outermost: bool

    def run(self, process: Process) -> Steps:
        """An outermost dim closes at the end of the stream, so with a bare stop."""
        channel, out, rank = process.inputs[0][0], process.outputs[0][0], self.dim
        is_open = any_token = False
        while (token := process.take(channel) if channel.items else (yield from process.get(channel))) is not None:
            value, level = token
            any_token = True
            if level < rank or self.outermost:
                is_open = True
                yield from process.put(out, value, level)
                continue
            if value is EMPTY and not is_open and level == rank:
                yield from process.put(out, EMPTY, rank)
            yield from process.put(out, value, level + 1)
            is_open = False
        if self.outermost and any_token:
            yield from process.put(out, EMPTY, rank)


@dataclass(frozen=True)
class Expand(Operator):
    """Repeats every element for as long as a reference stream stays in its group."""

    rank: int

    def on_chip(self, node: Node, paper: bool) -> Expr:
        """The element that is being repeated."""
        return node.outputs[0].element.nbytes

    def run(self, process: Process) -> Steps:
        """The slot of the element is freed when the reference closes its group."""
        out = process.outputs[0][0]
        yield from follow(process, self.rank, lambda value, level: process.put(out, value, level))


@dataclass(frozen=True)
class Repeat(Operator):
    """Sends every element `count` times, as a new innermost dim."""

    count: int

    def on_chip(self, node: Node, paper: bool) -> Expr:
        """The element that is being repeated."""
        return node.outputs[0].element.nbytes

    def run(self, process: Process) -> Steps:
        """One cycle a copy."""
        channel, out = process.inputs[0][0], process.outputs[0][0]
        while (token := process.take(channel) if channel.items else (yield from process.get(channel))) is not None:
            value, level = token
            if value is EMPTY:
                yield from process.put(out, EMPTY, level + 1)
                continue
            for position in range(self.count):
                process.work(process.hardware.element_cycles)
                yield from process.put(out, value, level + 1 if position == self.count - 1 else 0)


@dataclass(frozen=True)
class Zip(Operator):
    """Pairs the elements of equal-shaped streams."""

    def run(self, process: Process) -> Steps:
        """Levels must agree."""
        channels, out = [group[0] for group in process.inputs], process.outputs[0][0]
        endless = endless_inputs(process)
        while (token := (yield from get_together(process, channels, endless))) is not None:
            values, level = token
            value: Any = EMPTY if values[0] is EMPTY else tuple(values)
            yield from process.put(out, value, level)


def flatten(stream: Stream, low: int, high: int, *, name: str | None = None, role: str | None = None) -> Stream:
    """Merge the dims `low` to `high` into one; a ragged dim among them absorbs the others.

    >>> from polyrhythm.stream import source
    >>> print(flatten(source("x", [[1, 2], [3, 4]], (static(2), static(2))), 0, 1))
    flatten: [4] of tile[1,1] f32
    """
    require_rank("flatten", stream, low, high)
    top, bottom = len(stream.shape) - 1 - high, len(stream.shape) - low
    outer, merged, inner = stream.shape[:top], stream.shape[top:bottom], stream.shape[bottom:]
    shape = (*outer, product(outer, merged), *inner)
    port = Port(shape, stream.element, stream.copies, stream.role if role is None else role)
    return make(Flatten(low, high), (stream,), (port,), name)[0]


def reshape(stream: Stream, dim: int, chunk: int, *, pad: float | None = None, name: str | None = None) -> Stream:
    """Split dim `dim`, counted from the innermost, into chunks; `pad` fills the last chunk of the innermost dim.

    >>> from polyrhythm.stream import source
    >>> print(reshape(source("x", [1, 2, 3], (static(3),)), 0, 2, pad=0.0))
    reshape: [2, 2] of tile[1,1] f32
    """
    require_rank("reshape", stream, dim, dim)
    position = len(stream.shape) - 1 - dim
    split = stream.shape[position]
    divides = split.is_static and (split.size.constant or 0) % chunk == 0
    if chunk < 1 or (not divides and (dim > 0 or pad is None)):
        raise ShapeMismatch(
            f"reshape: dim {split} of {shape_text(stream.shape)} in chunks of {chunk}",
            fix="choose a chunk that divides the dim, or pad the innermost dim",
        )
    padding = require_static_tile("reshape", stream) if pad is not None else None
    shape = (*stream.shape[:position], chunked(split, chunk), static(chunk), *stream.shape[position + 1 :])
    operator = Reshape(dim, chunk, padding, pad or 0.0)
    return make(operator, (stream,), (Port(shape, stream.element, stream.copies),), name)[0]


def promote(stream: Stream, dim: int | None = None, *, name: str | None = None) -> Stream:
    """Insert a dim of size 1 at position `dim`, counted from the innermost; outermost when None.

    >>> from polyrhythm.stream import dynamic, source
    >>> print(promote(source("x", [1, 2], (dynamic("n"),))))
    promote: [[n > 0], n] of tile[1,1] f32
    """
    count = len(stream.shape)
    if dim is not None and not 0 <= dim < count:
        raise RankOutOfRange(
            f"promote: position {dim} in {shape_text(stream.shape)}",
            fix="leave the position out for a new outermost dim",
        )
    if dim is None:
        shape = (one_if_any(stream.shape[0]), *stream.shape)
        operator = Promote(count, True)
    else:
        shape = (*stream.shape[: count - dim], static(1), *stream.shape[count - dim :])
        operator = Promote(dim, False)
    return make(operator, (stream,), (Port(shape, stream.element, stream.copies, stream.role),), name)[0]


def expand(stream: Stream, ref: Stream, rank: int, *, name: str | None = None) -> Stream:
    """Repeat elements to the shape of `ref`; the inner `rank` dims of the data have size 1.

    >>> from polyrhythm.stream import source
    >>> ref = source("ref", [[0, 0], [0, 0]], (static(2), static(2)))
    >>> print(expand(promote(source("x", [1, 2], (static(2),)), 0), ref, 1))
    expand: [2, 2] of tile[1,1] f32
    """
    require_repeatable("expand", stream, ref, rank)
    return make(Expand(rank), (stream, ref), (Port(ref.shape, stream.element, stream.copies),), name)[0]


def repeat(stream: Stream, count: int, *, name: str | None = None) -> Stream:
    """Send every element `count` times, as a new innermost dim.

    >>> from polyrhythm.stream import source
    >>> print(repeat(source("x", [1, 2], (static(2),)), 3))
    repeat: [2, 3] of tile[1,1] f32
    """
    if count < 1:
        raise ShapeMismatch(f"repeat: {count} times", fix="repeat at least once")
    port = Port((*stream.shape, static(count)), stream.element, stream.copies)
    return make(Repeat(count), (stream,), (port,), name)[0]


def zip_streams(*streams: Stream, name: str | None = None, role: str = "") -> Stream:
    """Pair the elements of equal-shaped streams.

    >>> from polyrhythm.stream import source
    >>> x = source("x", [1, 2], (static(2),))
    >>> print(zip_streams(x, x))
    zip: [2] of (tile[1,1] f32, tile[1,1] f32)
    """
    require_equal_shapes("zip", *streams)
    element = Tuple(tuple(stream.element for stream in streams))
    return make(Zip(), streams, (Port(streams[0].shape, element, streams[0].copies, role),), name)[0]
