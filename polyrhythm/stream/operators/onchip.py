"""On-chip operators: collect groups into buffers, and stream buffers back, as often as needed.

An element costs one cycle in either direction; the cost of writing is charged where the tile was produced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from polyrhythm.stream.dims import Shape, cardinality, ragged, static
from polyrhythm.stream.engine import Process, Steps
from polyrhythm.stream.errors import ElementMismatch, ShapeMismatch
from polyrhythm.stream.expr import Expr, as_expr, symbol
from polyrhythm.stream.graph import Node, Operator, Port, Stream, make
from polyrhythm.stream.operators.common import affine_walk, follow, require_rank, require_tile
from polyrhythm.stream.tokens import EMPTY, Token
from polyrhythm.stream.types import Buffer, BufferValue


@dataclass(frozen=True)
class Bufferize(Operator):
    """Collects every group of rank b and sends a handle to it."""

    rank: int = 1

    def on_chip(self, node: Node, paper: bool) -> Expr:
        """The element being written, and the buffer twice: one is filled while the other is read."""
        buffer = node.outputs[0].element
        return node.inputs[0].element.nbytes + 2 * buffer.nbytes

    def run(self, process: Process) -> Steps:
        """A group is open once it has content; a bare stop above it closes nothing of rank b."""
        channel, out, rank = process.inputs[0][0], process.outputs[0][0], self.rank
        tokens: list[Token] = []
        while (token := (yield from process.get(channel))) is not None:
            value, level = token
            if value is not EMPTY:
                process.work(process.hardware.element_cycles)
            if level < rank:
                tokens.append(token)
            elif value is not EMPTY or tokens or level == rank:
                if value is not EMPTY:
                    tokens.append((value, rank))
                yield from process.put(out, BufferValue(tokens), level - rank)
                tokens = []
            else:
                yield from process.put(out, EMPTY, level - rank)


@dataclass(frozen=True)
class Streamify(Operator):
    """Streams a buffer back: `repeat` times by itself, or once for every element of a reference stream.

    `view` is an affine walk over a buffer of static shape: (sizes, strides).
    """

    repeat: tuple[int, ...] = ()
    depth: int = 1
    repeat_rank: int | None = None
    view: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def on_chip(self, node: Node, paper: bool) -> Expr:
        """The buffer and the tile being read; the paper counts both at the producer."""
        buffer = node.inputs[0].element
        assert isinstance(buffer, Buffer)
        return as_expr(0) if paper else buffer.nbytes + buffer.element.nbytes

    def run(self, process: Process) -> Steps:
        """Without a reference every buffer is sent by itself; with one, until the reference closes its rank."""
        if self.repeat_rank is None:
            yield from self._by_itself(process)
        else:
            yield from follow(process, self.repeat_rank, lambda *token: self._again(process, *token))

    def _by_itself(self, process: Process) -> Steps:
        channel, out = process.inputs[0][0], process.outputs[0][0]
        shift = self.depth + len(self.repeat)
        while (token := (yield from process.get(channel))) is not None:
            value, level = token
            if value is EMPTY:
                yield from process.put(out, EMPTY, level + shift)
                continue
            for _, finished in affine_walk(self.repeat, (0,) * len(self.repeat)):
                last = finished == len(self.repeat)
                yield from self._send(process, value, self.depth + finished + (level if last else 0))

    def _again(self, process: Process, buffer: Any, level: int) -> Iterable[None]:
        if buffer is EMPTY:
            return process.put(process.outputs[0][0], EMPTY, level + self.depth)
        return self._send(process, buffer, level + self.depth)

    def _send(self, process: Process, buffer: BufferValue, final_level: int) -> Steps:
        out = process.outputs[0][0]
        sent_any = False
        for value, level, last in self._tokens(buffer):
            if value is not EMPTY:
                process.work(process.hardware.element_cycles)
            sent_any = True
            rides = last and value is not EMPTY
            yield from process.put(out, value, final_level if rides else level)
            if last and not rides:
                yield from process.put(out, EMPTY, final_level)
        if not sent_any:
            yield from process.put(out, EMPTY, self.depth)
            if final_level > self.depth:
                yield from process.put(out, EMPTY, final_level)

    def _tokens(self, buffer: BufferValue) -> Iterator[tuple[object, int, bool]]:
        """Tokens of one reading, and whether each is the last."""
        if self.view is None:
            for position, (value, level) in enumerate(buffer.tokens):
                yield value, level, position == len(buffer.tokens) - 1
            return
        elements = [value for value, _ in buffer.tokens if value is not EMPTY]
        for index, level in affine_walk(*self.view):
            yield elements[index], level, level == len(self.view[0])


def bufferize(stream: Stream, rank: int, *, name: str | None = None) -> Stream:
    """Collect the inner `rank` dims into buffers.

    >>> from polyrhythm.stream import source
    >>> print(bufferize(source("x", [[1, 2]], (static(1), static(2))), 1))
    bufferize: [1] of buffer[2] of tile[1,1] f32
    """
    require_rank("bufferize", stream, 1, rank)
    element = require_tile("bufferize", stream)
    inner = stream.shape[len(stream.shape) - rank :]
    bad = [dim for dim in inner[1:] if not dim.is_static]
    if bad:
        raise ShapeMismatch(
            f"bufferize: the inner dim {bad[0]} is not static", fix="only the outermost dim of a buffer may be dynamic"
        )
    port = Port(stream.shape[: len(stream.shape) - rank], Buffer(element, inner), stream.copies)
    return make(Bufferize(rank), (stream,), (port,), name)[0]


def streamify(
    stream: Stream,
    repeat: Sequence[int] = (),
    *,
    view: tuple[Sequence[int], Sequence[int]] | None = None,
    name: str | None = None,
) -> Stream:
    """Stream every buffer, repeated along new dims of the given sizes; `view` walks it by (sizes, strides).

    >>> from polyrhythm.stream import source
    >>> held = bufferize(source("x", [[1, 2]], (static(1), static(2))), 1)
    >>> print(streamify(held, (3,)))
    streamify: [1, 3, 2] of tile[1,1] f32
    """
    buffer = _buffer("streamify", stream)
    inner: Shape = buffer.shape
    affine = None
    if any(size < 1 for size in repeat):
        raise ShapeMismatch(f"streamify: repeat {tuple(repeat)}", fix="repeat at least once")
    if view is not None:
        if not all(dim.is_static for dim in buffer.shape):
            raise ShapeMismatch(
                f"streamify: a view of {buffer}", fix="a view needs a buffer of static shape; leave it out otherwise"
            )
        affine = (tuple(view[0]), tuple(view[1]))
        ends = [(size - 1) * step for size, step in zip(*affine, strict=True)]
        held = cardinality(buffer.shape).constant or 0
        if sum(end for end in ends if end < 0) < 0 or sum(end for end in ends if end > 0) >= held:
            raise ShapeMismatch(
                f"streamify: a view of sizes {affine[0]}, strides {affine[1]} leaves the {held} elements of {buffer}",
                fix="choose sizes and strides that stay inside the buffer",
            )
        inner = tuple(map(static, view[0]))
    shape = (*stream.shape, *map(static, repeat), *_scaled(inner, prod(repeat)))
    operator = Streamify(tuple(repeat), len(inner), None, affine)
    return make(operator, (stream,), (Port(shape, buffer.element, stream.copies),), name)[0]


def streamify_by(stream: Stream, ref: Stream, rank: int, *, name: str | None = None) -> Stream:
    """Stream a buffer once for every element of `ref`, moving on when `ref` closes a group of `rank`.

    The buffers have `rank` inner dims of size 1 and otherwise the outer dims of `ref`.

    >>> from polyrhythm.stream import promote, source
    >>> held = bufferize(source("x", [[1, 2]], (static(1), static(2))), 1)
    >>> ref = source("ref", [[0, 0, 0]], (static(1), static(3)))
    >>> print(streamify_by(promote(held, 0), ref, 1))
    streamify: [1, 3, 2] of tile[1,1] f32
    """
    buffer = _buffer("streamify_by", stream)
    require_repeatable("streamify_by", stream, ref, rank)
    sizes = [dim.size.constant for dim in ref.shape[len(ref.shape) - rank :]]
    times = None if None in sizes else prod(size for size in sizes if size is not None)
    shape = (*ref.shape, *_scaled(buffer.shape, times))
    operator = Streamify((), len(buffer.shape), rank, None)
    return make(operator, (stream, ref), (Port(shape, buffer.element, stream.copies),), name)[0]


def require_repeatable(operation: str, stream: Stream, ref: Stream, rank: int) -> None:
    """Inner `rank` dims of size 1, and the outer dims of `ref`."""
    require_rank(operation, ref, 0, rank)
    outer = len(ref.shape) - rank
    ones = all(dim.size.constant == 1 for dim in stream.shape[outer:])
    if stream.rank != ref.rank or not ones or stream.shape[:outer] != ref.shape[:outer] or stream.copies != ref.copies:
        raise ShapeMismatch(
            f"{operation}: {stream} cannot follow {ref} over its inner {rank} dims",
            fix="the repeated stream needs inner dims of size 1 (promote) and the outer dims of the reference",
        )


def _buffer(operation: str, stream: Stream) -> Buffer:
    if not isinstance(stream.element, Buffer):
        raise ElementMismatch(f"{operation}: {stream} carries no buffers", fix="bufferize the stream first")
    return stream.element


def _scaled(inner: Shape, times: int | None) -> Shape:
    """The dims of a buffer that is sent several times; a ragged total is multiplied where that number is known."""
    names = {dim: f"repeat({dim.name})" for dim in inner}
    return tuple(
        d if d.total is None else ragged(names[d], symbol(f"total({names[d]})") if times is None else d.total * times)
        for d in inner
    )
