"""What the operators share: checks when a program is built, token helpers when it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

from polyrhythm.stream.dims import Shape, shape_text
from polyrhythm.stream.engine import Channel, Process, Steps
from polyrhythm.stream.errors import DataMismatch, ElementMismatch, RankOutOfRange, ShapeMismatch, StopMismatch
from polyrhythm.stream.graph import Stream
from polyrhythm.stream.tokens import EMPTY
from polyrhythm.stream.types import DynTile, MatrixType, SelectorValue, Tile, TileValue

ONE_FOR_ONE = frozenset({"map", "zip", "broadcast", "eager_merge", "scan"})
"""Operators that send an element for each that they take from each of their inputs."""


def require_equal_shapes(operation: str, first: Stream, *others: Stream) -> None:
    """All streams must have one shape and one number of copies."""
    for other in others:
        if other.shape != first.shape or other.copies != first.copies:
            raise ShapeMismatch(
                f"{operation}: stream {first.name} has shape {_described(first)}, "
                f"stream {other.name} has shape {_described(other)}",
                fix="bring both to one shape (expand, flatten, reshape), or restate the shape you know to be right",
            )


def require_prefix(operation: str, part: Stream, prefix: Shape, whole: Stream) -> None:
    """The dims `prefix` of one stream must be the outer dims of another, in equally many copies."""
    if whole.shape[: len(prefix)] != prefix or part.copies != whole.copies:
        raise ShapeMismatch(
            f"{operation}: stream {part.name} has shape {_described(part)}, "
            f"which does not fit the outer dims of stream {whole.name} with shape {_described(whole)}",
            fix="build both from one control stream, or restate the shape you know to be right",
        )


def require_rank(operation: str, stream: Stream, low: int, high: int) -> None:
    """Dims `low` to `high`, counted from the innermost, must exist."""
    if not 0 <= low <= high <= stream.rank:
        raise RankOutOfRange(
            f"{operation}: dims {low} to {high} of a stream of shape {shape_text(stream.shape)}",
            fix=f"dims are counted from the innermost, 0, to the outermost, {stream.rank}",
        )


def require_tile(operation: str, stream: Stream) -> MatrixType:
    """The elements must be tiles."""
    if not isinstance(stream.element, Tile | DynTile):
        raise ElementMismatch(
            f"{operation}: stream {stream.name} carries {stream.element}, and tiles are needed",
            fix="take the tile out of the tuple or stream the buffer first",
        )
    return stream.element


def require_static_tile(operation: str, stream: Stream) -> Tile:
    """The elements must be tiles of fixed shape."""
    element = require_tile(operation, stream)
    if not isinstance(element, Tile):
        raise ElementMismatch(
            f"{operation}: stream {stream.name} carries {element}, whose shape is dynamic",
            fix="bring the rows out with flat_map, or pad to a static tile with reshape",
        )
    return element


def _described(stream: Stream) -> str:
    return shape_text(stream.shape) + (f" x{stream.copies}" if stream.copies > 1 else "")


def row_major(sizes: Sequence[int]) -> tuple[int, ...]:
    """The step along each of some axes, the last of which lie next to each other.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(prod(sizes[place + 1 :]) for place in range(len(sizes)))


def affine_walk(shape: Sequence[int], stride: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Positions of an affine walk, row-major, each with the number of inner dims that finish there.

    >>> list(affine_walk((2, 2), (0, 1)))
    [(0, 0), (1, 1), (0, 0), (1, 2)]
    """
    for index in product(*map(range, shape)):
        last = [at + 1 == size for at, size in zip(index, shape, strict=True)]
        level = next((k for k, ends in enumerate(reversed(last)) if not ends), len(shape))
        yield sum(i * s for i, s in zip(index, stride, strict=True)), level


def load_cycles(process: Process, value: Any) -> int:
    """Cycles to read an operand from on-chip memory; nothing when it comes straight from a FIFO."""
    if type(value) is tuple:
        return sum(load_cycles(process, part) for part in value)
    return -(-value.nbytes // process.hardware.on_chip_bandwidth) if value.from_memory else 0


def store_cycles(process: Process, nbytes: int) -> int:
    """Cycles to write a result back to on-chip memory."""
    return -(-nbytes // process.hardware.on_chip_bandwidth)


def moved(process: Process, value: Any, write_back: bool) -> tuple[Any, int]:
    """A routed value, and the cycles of routing it: read it, switch, write it back if asked to."""
    cycles = load_cycles(process, value) + process.hardware.switch_cycles
    if write_back:
        cycles += store_cycles(process, value.nbytes)
    if type(value) is TileValue and value.from_memory != write_back:
        value = TileValue(value.rows, value.cols, value.nbytes, value.valid, write_back, value.data)
    return value, cycles


def chosen_targets(process: Process, selector: SelectorValue, count: int, hot: int | None) -> tuple[int, ...]:
    """The targets that a selector names: each of them exists, is named once, and there are as many as declared."""
    targets = selector.targets
    wrong = ""
    if targets and (min(targets) < 0 or max(targets) >= count):
        wrong = f"there are {count} targets"
    elif len(set(targets)) < len(targets):
        wrong = "a target is named twice"
    elif hot is not None and len(targets) != hot:
        wrong = f"the selector is declared to name {hot}"
    if wrong:
        raise DataMismatch(
            f"{process.name}: a selector names the targets {targets}, and {wrong}",
            fix=f"name different targets from 0 to {count - 1}, as many as Selector(..., hot) says",
            at=process.node.source,
        )
    return targets


def get_together(process: Process, channels: Sequence[Channel], endless: Sequence[bool]) -> Steps:
    """The next token of streams that advance together: (values, level), or None at the end.

    A stop may arrive as a bare token on one stream and ride on the element of another, so the stream with the lower
    level is read on. `endless` marks feedback streams, whose left-over tokens are no mistake.
    """
    head = channels[0]
    first = process.take(head) if head.items else (yield from process.get(head))
    if len(channels) == 1:
        return first if first is None else ((first[0],), first[1])
    if first is None:
        for channel, feedback in zip(channels[1:], endless[1:], strict=True):
            if not feedback and (yield from process.get(channel)) is not None:
                raise _mismatch(process, channels)
        return None
    values = [first[0]]
    level = first[1]
    levels = [level]
    for channel in channels[1:]:
        token = process.take(channel) if channel.items else (yield from process.get(channel))
        if token is None or (token[0] is EMPTY) != (first[0] is EMPTY):
            raise _mismatch(process, channels)
        values.append(token[0])
        levels.append(token[1])
        if token[1] > level:
            level = token[1]
    for index, channel in enumerate(channels):
        while levels[index] < level:
            token = yield from process.get(channel)
            if token is None or token[0] is not EMPTY or token[1] > level:
                raise _mismatch(process, channels)
            levels[index] = token[1]
    return values, level


def _mismatch(process: Process, channels: Sequence[Channel]) -> StopMismatch:
    names = " and ".join(channel.name for channel in channels)
    return StopMismatch(
        f"{process.name}: the streams {names} close different dims",
        fix="the restated or expanded shapes of the two inputs differ at run time; derive both from one stream",
        at=process.node.source,
    )


def endless_inputs(process: Process) -> list[bool]:
    """Which inputs may end with tokens left over: those that come from a primed feedback loop, one for one."""
    return [is_feedback(stream) for stream in process.node.inputs]


def is_feedback(stream: Stream) -> bool:
    """Whether a stream is a feedback loop, or made of such streams alone, an element for each of theirs."""
    node = stream.node
    if hasattr(node.operator, "connected"):
        return True
    one_for_one = node.operator.virtual or node.operator.label in ONE_FOR_ONE
    return one_for_one and bool(node.inputs) and all(map(is_feedback, node.inputs))


def next_element(process: Process, channel: Channel) -> Steps:
    """The next token that carries an element, or None; bare stops of outer dims are skipped."""
    token = yield from process.get(channel)
    while token is not None and token[0] is EMPTY:
        token = yield from process.get(channel)
    return token


def follow(process: Process, rank: int, send: Callable[[Any, int], Iterable[None]]) -> Steps:
    """Send an element of the first input for every element of the second, until that closes a group of `rank`.

    Its slot is freed only then. Bare stops of the second are sent as they are.
    """
    data, ref = process.inputs[0][0], process.inputs[1][0]
    is_open = False
    while (token := process.take(ref) if ref.items else (yield from process.get(ref))) is not None:
        value, level = token
        head: Any = token
        if value is not EMPTY:
            while (head := (yield from process.peek(data))) is not None and head[0] is EMPTY:
                yield from process.get(data)
            if head is None:
                raise StopMismatch(
                    f"{process.name}: the reference goes on after the data ended",
                    fix="the outer dims of data and reference must be equal at run time",
                    at=process.node.source,
                )
        yield from send(head[0], level)
        closes = level >= rank and (value is not EMPTY or is_open or level == rank)
        if closes:
            yield from next_element(process, data)
        is_open = not closes and (is_open or level < rank)
