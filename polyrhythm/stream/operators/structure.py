"""Sources and the bookkeeping that costs nothing: stacks, feedback loops, restated shapes.

A source holds what is on chip before the run: routing decisions, request lengths, test data. Stacking, unstacking,
restating and feeding back only rename channels; they have no process and take no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from polyrhythm.stream.dims import Shape, pick_shape, shape_text, stack_shapes
from polyrhythm.stream.engine import Process, Steps
from polyrhythm.stream.errors import DataMismatch, ElementMismatch, ShapeMismatch
from polyrhythm.stream.graph import Broadcast, Node, Operator, Port, Stream, make
from polyrhythm.stream.metrics import dim_sizes
from polyrhythm.stream.tokens import EMPTY, Token, decode, encode
from polyrhythm.stream.types import F32, Element, Selector, SelectorValue, Tile, TileValue, Tuple


@dataclass(frozen=True)
class Source(Operator):
    """Sends tokens that are on chip from the start, as fast as they are taken."""

    tokens: tuple[tuple[Token, ...], ...] = ()

    def run(self, process: Process) -> Steps:
        """Send every token of this copy."""
        for value, level in self.tokens[process.copy]:
            yield from process.put(process.outputs[0][0], value, level)


class Renaming(Operator):
    """Has no process and takes no time."""

    virtual: ClassVar[bool] = True


class Stack(Renaming):
    """Several streams seen as the copies of one."""


class Unstack(Renaming):
    """The copies of a stream, given back as several streams."""


class Restate(Renaming):
    """The same stream under a shape that the user knows to be equal."""


@dataclass(frozen=True, eq=False)
class Feedback(Renaming):
    """A stream that is read before it is produced; `connected` holds its source once there is one."""

    initial: tuple[Token, ...] = ()
    connected: list[Stream] = field(default_factory=list)


_NUMBER = Tile(1, 1, F32)


def as_value(item: Any, element: Element) -> Any:
    """A run-time value from what a user writes: a number, an array, a tuple of targets.

    >>> as_value((1, 3), Selector("routing", 4))
    SelectorValue(1, 3)
    """
    if isinstance(item, TileValue | SelectorValue):
        return item
    if isinstance(element, Selector):
        return SelectorValue(tuple(sorted(int(target) for target in item)), element.targets)
    if isinstance(element, Tuple):
        return tuple(as_value(part, kind) for part, kind in zip(item, element.parts, strict=True))
    array = np.atleast_2d(np.asarray(item))
    bytes_each = element.dtype.nbytes if hasattr(element, "dtype") else array.itemsize
    return TileValue(array.shape[0], array.shape[1], array.size * bytes_each, data=array)


def source(
    name: str,
    nested: Sequence[Any],
    shape: Shape,
    element: Element = _NUMBER,
    copies: int = 1,
    role: str = "",
) -> Stream:
    """A stream of values that are on chip before the run; one nested list a copy when there are copies.

    >>> from polyrhythm.stream import static
    >>> print(source("lengths", [3, 5], (static(2),)))
    lengths: [2] of tile[1,1] f32
    """
    rank = len(shape) - 1
    per_copy = [nested] if copies == 1 else list(nested)
    if len(per_copy) != copies:
        raise ShapeMismatch(
            f"source {name}: {len(per_copy)} lists for {copies} copies", fix="give one nested list for each copy"
        )
    tokens = tuple(
        tuple((value if value is EMPTY else as_value(value, element), level) for value, level in encode(part, rank))
        for part in per_copy
    )
    return make(Source(tokens), (), (Port(shape, element, copies, role),), name, copies)[0]


def check_source(node: Node) -> None:
    """What a source sends has the shape that it declares, and its elements their type."""
    assert isinstance(node.operator, Source)
    shape, element = node.outputs[0].shape, node.outputs[0].element
    for tokens in node.operator.tokens:
        found = dim_sizes(decode(tokens, len(shape) - 1), len(shape))
        for place, (dim, sizes) in enumerate(zip(shape, found, strict=True)):
            known = dim.size.constant
            if not dim.is_ragged and (len(set(sizes)) > 1 or (known is not None and sizes and sizes[0] != known)):
                wrong = next((size for size in sizes if size != known), sizes[0])
                raise _wrong_data(node, f"its shape is {shape_text(shape)}, and dim {place} has {wrong} entries")
        if isinstance(element, Tile):
            for value, _ in tokens:
                if isinstance(value, TileValue) and (value.rows, value.cols) != (element.rows, element.cols):
                    raise _wrong_data(node, f"it carries {element}, and a tile is {value.rows} x {value.cols}")


def _wrong_data(node: Node, what: str) -> DataMismatch:
    return DataMismatch(f"source {node.name}: {what}", fix="declare the shape that the data has", at=node.source)


def stack(streams: Sequence[Stream], name: str | None = None) -> Stream:
    """Several streams of one element type as the interleaved copies of one.

    >>> from polyrhythm.stream import static
    >>> stack([source("a", [1], (static(1),)), source("b", [2], (static(1),))]).copies
    2
    """
    first = streams[0]
    for other in streams[1:]:
        if other.element != first.element or other.rank != first.rank or other.copies != first.copies:
            raise ElementMismatch(
                f"stack: {first.name} is {first}, {other.name} is {other}",
                fix="streams that are stacked need one element type, one rank and equally many copies",
            )
    copies = first.copies * len(streams)
    shape = stack_shapes([stream.shape for stream in streams], first.copies)
    return make(Stack(), streams, (Port(shape, first.element, copies, first.role),), name, copies)[0]


def unstack(stream: Stream, count: int, name: str | None = None) -> tuple[Stream, ...]:
    """The inverse of `stack`: `count` streams, the j-th holding the copies j, j + count, ...

    >>> from polyrhythm.stream import static
    >>> len(unstack(source("a", [[1], [2]], (static(1),), copies=2), 2))
    2
    """
    copies = stream.copies // count
    if copies * count != stream.copies:
        raise ShapeMismatch(
            f"unstack: {stream.copies} copies into {count} streams", fix="count must divide the number of copies"
        )
    ports = [
        Port(pick_shape(stream.shape, index, count, copies), stream.element, copies, stream.role)
        for index in range(count)
    ]
    return make(Unstack(), (stream,), ports, name, copies)


def restate(stream: Stream, shape: Shape, element: Element | None = None, role: str | None = None) -> Stream:
    """The same stream under a shape (or element type, or role) that the user knows to be right.

    >>> from polyrhythm.stream import dynamic, static
    >>> print(restate(source("a", [1, 2], (dynamic("n"),)), (static(2),)))
    a: [2] of tile[1,1] f32
    """
    if len(shape) != len(stream.shape):
        raise ShapeMismatch(
            f"restate: {shape_text(stream.shape)} as {shape_text(shape)}", fix="only sizes can be restated, not ranks"
        )
    port = Port(shape, element or stream.element, stream.copies, stream.role if role is None else role)
    return make(Restate(), (stream,), (port,), stream.name)[0]


def replicate(stream: Stream, copies: int, name: str | None = None) -> Stream:
    """One stream sent to `copies` copies of whatever reads the result.

    >>> from polyrhythm.stream import static
    >>> replicate(source("a", [1], (static(1),)), 4).copies
    4
    """
    port = Port(stream.shape, stream.element, stream.copies * copies, stream.role)
    return make(Broadcast(), (stream,), (port,), name or f"replicate {stream.name}")[0]


@dataclass(frozen=True)
class Loop:
    """A loop: `stream` can be read at once, and `connect` names its producer later.

    >>> from polyrhythm.stream import static, dynamic
    >>> loop = feedback("credits", (dynamic("n"),), Tile(1, 1, F32), initial=[0.0])
    >>> loop.connect(loop.stream)
    """

    stream: Stream

    def connect(self, producer: Stream) -> None:
        """Close the loop; element type, rank and copies must agree with what was promised."""
        promised = self.stream
        same = producer.element == promised.element and producer.copies == promised.copies
        if not same or producer.rank != promised.rank:
            raise ShapeMismatch(
                f"feedback {promised.name}: promised {promised}, connected to {producer}",
                fix="give feedback() the element type, rank and copies of the stream that closes the loop",
            )
        assert isinstance(promised.node.operator, Feedback)
        promised.node.operator.connected[:] = [producer]


def feedback(
    name: str,
    shape: Shape,
    element: Element,
    initial: Sequence[Any] = (),
    copies: int = 1,
    role: str = "",
) -> Loop:
    """A stream that is read before it is produced, primed with `initial` elements in every copy.

    >>> from polyrhythm.stream import dynamic
    >>> print(feedback("credits", (dynamic("n"),), Tile(1, 1, F32), initial=[0.0]).stream)
    credits: [n] of tile[1,1] f32
    """
    tokens = tuple((as_value(item, element), 0) for item in initial)
    port = Port(shape, element, copies, role)
    return Loop(make(Feedback(tokens), (), (port,), name, copies)[0])
