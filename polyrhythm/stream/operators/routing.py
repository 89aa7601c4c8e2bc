"""Routing and merging: Partition, Reassemble, EagerMerge, Parallelize.

Replication is explicit in the copies: a Partition of a stream with C copies to n targets gives C * n copies, target
by target within each copy, and Reassemble and EagerMerge join consecutive copies again.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyrhythm.stream.dims import (
    Shape,
    cardinality,
    dynamic,
    joinable,
    ragged,
    selected_part,
    static,
    total_over,
)
from polyrhythm.stream.engine import Channel, Process, Steps
from polyrhythm.stream.errors import DataMismatch, ElementMismatch, ShapeMismatch
from polyrhythm.stream.expr import as_expr, concatenate, parted, symbol, varying
from polyrhythm.stream.graph import Operator, Port, Stream, make
from polyrhythm.stream.operators.common import (
    chosen_targets,
    load_cycles,
    moved,
    next_element,
    require_prefix,
    require_rank,
)
from polyrhythm.stream.tokens import EMPTY
from polyrhythm.stream.types import DynTile, Element, Selector, SelectorValue, tile_type


@dataclass(frozen=True)
class Partition(Operator):
    """Sends every group of rank r to the targets that its selector names."""

    rank: int = 0
    write_back: bool = False

    def run(self, process: Process) -> Steps:
        """Outer dims are flattened: levels are capped at the rank."""
        data, selectors, rank = process.inputs[0][0], process.inputs[1][0], self.rank
        targets: list[Channel] | None = None
        hot = hot_of(process)
        while (token := process.take(data) if data.items else (yield from process.get(data))) is not None:
            value, level = token
            if value is EMPTY and targets is None and (level > rank or rank == 0):
                continue
            if targets is None:
                found = yield from next_element(process, selectors)
                if found is None:
                    raise _no_selector(process)
                selector = found[0]
                process.work(load_cycles(process, selector))
                named = chosen_targets(process, selector, len(process.outputs[0]), hot)
                targets = [process.outputs[0][target] for target in named]
            if value is not EMPTY:
                value, cycles = moved(process, value, self.write_back)
                process.work(cycles)
            for target in targets:
                yield from process.put(target, value, min(level, rank))
            if level >= rank:
                targets = None


@dataclass(frozen=True)
class Reassemble(Operator):
    """For every selector, one group from each selected input, in the order of their arrival, never interleaved."""

    rank: int = 0
    write_back: bool = False

    def run(self, process: Process) -> Steps:
        """Waits until every selected input has a head element; ties of arrival go to the lowest input."""
        inputs, chosen, out = process.inputs[0], process.inputs[1][0], process.outputs[0][0]
        close, hot = self.rank + 1, hot_of(process)
        while (token := process.take(chosen) if chosen.items else (yield from process.get(chosen))) is not None:
            selector, level = token
            if selector is EMPTY:
                yield from process.put(out, EMPTY, level + close)
                continue
            for target in chosen_targets(process, selector, len(inputs), hot):
                if (yield from process.peek(inputs[target])) is None:
                    raise _ended(process, inputs[target])
            order = sorted(selector.targets, key=lambda target: (inputs[target].items[0][2], target))
            for position, target in enumerate(order):
                last = position == len(order) - 1
                yield from self._one_group(process, inputs[target], close + level if last else self.rank)
            if not order:
                yield from process.put(out, EMPTY, close)
                if level:
                    yield from process.put(out, EMPTY, close + level)

    def _one_group(self, process: Process, channel: Channel, final_level: int) -> Steps:
        out, finished = process.outputs[0][0], False
        while not finished:
            token = process.take(channel) if channel.items else (yield from process.get(channel))
            if token is None:
                raise _ended(process, channel)
            value, level = token
            finished = level >= self.rank
            if value is not EMPTY:
                value, cycles = moved(process, value, self.write_back)
                process.work(cycles)
                yield from process.put(out, value, final_level if finished else level)
                continue
            # A bare stop that only ends the group may rise with it; an empty group must be closed by itself first.
            yield from process.put(out, EMPTY, level)
            if finished and final_level > level:
                yield from process.put(out, EMPTY, final_level)


@dataclass(frozen=True)
class EagerMerge(Operator):
    """Takes whole groups from whichever input arrives first, and says from which."""

    rank: int = 0

    def run(self, process: Process) -> Steps:
        """The choice waits until no other input can still be earlier."""
        inputs, out, chosen = process.inputs[0], process.outputs[0][0], process.outputs[1][0]
        while (index := (yield from process.first_of(inputs))) is not None:
            yield from process.put(chosen, SelectorValue((index,), len(inputs)), 0)
            finished, first = False, True
            while not finished:
                value, level = yield from process.get(inputs[index])
                if not first:
                    process.work(process.hardware.element_cycles)
                first, finished = False, level >= self.rank
                yield from process.put(out, value, level)


@dataclass(frozen=True)
class Parallelize(Operator):
    """Deals groups out in strict rotation, so a slow target holds up the others."""

    rank: int = 0

    def run(self, process: Process) -> Steps:
        """One cycle of latency for every element."""
        channel, targets, turn = process.inputs[0][0], process.outputs[0], 0
        while (token := process.take(channel) if channel.items else (yield from process.get(channel))) is not None:
            value, level = token
            if value is not EMPTY:
                process.work(process.hardware.switch_cycles)
            yield from process.put(targets[turn], value, level)
            if level >= self.rank:
                turn = (turn + 1) % len(targets)


def hot_of(process: Process) -> int | None:
    """How many targets the selectors of a process name, None when that varies."""
    element = process.node.inputs[1].element
    return element.hot if isinstance(element, Selector) else None


def _no_selector(process: Process) -> DataMismatch:
    return DataMismatch(
        f"{process.name}: there are more groups than selectors",
        fix="give one selector for each group",
        at=process.node.source,
    )


def _ended(process: Process, channel: Channel) -> DataMismatch:
    return DataMismatch(
        f"{process.name}: a selector asks for a group of {channel.name}, which has ended",
        fix="join with the selector that the groups were sent by",
        at=process.node.source,
    )


def partition(
    stream: Stream,
    selector: Stream,
    rank: int = 0,
    *,
    write_back: bool = False,
    name: str | None = None,
    role: str = "",
) -> Stream:
    """Route groups of `rank` by a selector; the result has one copy for each target.

    The new outer dim is named after the selector, so two streams routed by one selector keep equal shapes. With
    `write_back` what is routed goes to on-chip memory, and its reader pays for the read.

    >>> from polyrhythm.stream import source
    >>> data = source("data", [1, 2, 3], (static(3),))
    >>> routing = source("routing", [(0,), (1,), (0, 1)], (static(3),), Selector("routing", 2))
    >>> print(partition(data, routing))
    partition: [routing[i]] of tile[1,1] f32 x2
    """
    kind = _selector("partition", selector)
    require_rank("partition", stream, 0, rank)
    require_prefix("partition", selector, selector.shape, stream)
    if len(selector.shape) != len(stream.shape) - rank:
        raise ShapeMismatch(
            f"partition: selector {selector.name} has rank {selector.rank}, and one selector a group of rank {rank} "
            f"of {stream.name} needs rank {stream.rank - rank}",
            fix=f"partition with rank={stream.rank - selector.rank}, or flatten the selector",
        )
    copies = stream.copies * kind.targets
    inner = stream.shape[len(stream.shape) - rank :] if rank else ()
    counts = dynamic(symbol(kind.name, copies))
    shape: Shape = (counts, *selected_part(inner, kind.name, copies))
    port = Port(shape, _spread(stream, kind.targets, kind.name if kind.hot == 1 else ""), copies, role)
    return make(Partition(rank, write_back), (stream, selector), (port,), name)[0]


def reassemble(
    stream: Stream,
    selector: Stream,
    rank: int = 0,
    *,
    write_back: bool = False,
    name: str | None = None,
    role: str = "",
) -> Stream:
    """Join copies again: for every selector a new dim with one group of `rank` from each selected copy.

    The new dim is static when the selector always names equally many, else ragged.

    >>> from polyrhythm.stream import source
    >>> data = source("data", [1, 2], (static(2),))
    >>> routing = source("routing", [(0,), (1,)], (static(2),), Selector("routing", 2, hot=1))
    >>> print(reassemble(partition(data, routing), routing))
    reassemble: [2, 1] of tile[1,1] f32
    """
    kind = _selector("reassemble", selector)
    copies = _joined_copies("reassemble", stream, rank, kind.targets)
    if copies != selector.copies:
        raise ShapeMismatch(
            f"reassemble: {stream.copies} copies of {stream.name} and {kind.targets} targets of {selector.name} "
            f"in {selector.copies} copies",
            fix="there must be one copy for every target of every copy of the selector",
        )
    joined = total_over(stream.shape, stream.copies, copies)
    fresh = f"reassemble({kind.name})"
    count = static(kind.hot) if kind.hot is not None else ragged(fresh, joined[0].size)
    port = Port((*selector.shape, count, *joined[1:]), _joined_element(stream, copies, kind.name), copies, role)
    return make(Reassemble(rank, write_back), (stream, selector), (port,), name, copies)[0]


def eager_merge(
    stream: Stream, rank: int = 0, groups: int = 1, *, selector: str = "merged", name: str | None = None, role: str = ""
) -> tuple[Stream, Stream]:
    """Join consecutive copies into `groups` streams by order of arrival: the data, and who sent each group.

    >>> from polyrhythm.stream import source
    >>> both = source("both", [[1, 2], [3]], (dynamic(symbol("n", 2)),), copies=2)
    >>> data, origin = eager_merge(both)
    >>> print(data)
    eager_merge.0: [sum_i(n[i])] of tile[1,1] f32
    """
    if stream.copies % groups:
        raise ShapeMismatch(
            f"eager_merge: {stream.copies} copies in {groups} groups", fix="groups must divide the number of copies"
        )
    width = stream.copies // groups
    _joined_copies("eager_merge", stream, rank, width)
    shape = total_over(stream.shape, stream.copies, groups)
    data = Port(shape, _joined_element(stream, groups, selector), groups, role)
    origin = Port(shape[:1], Selector(selector, width, 1), groups, role)
    made = make(EagerMerge(rank), (stream,), (data, origin), name, groups)
    return made[0], made[1]


def parallelize_stream(stream: Stream, count: int, *, name: str | None = None, role: str = "") -> Stream:
    """Deal the groups of the outermost dim out to `count` copies in rotation.

    >>> from polyrhythm.stream import source
    >>> print(parallelize_stream(source("x", [1, 2, 3], (static(3),)), 2))
    parallelize: [(2, 1)[i]] of tile[1,1] f32 x2
    """
    outer = stream.shape[0]
    copies = stream.copies * count
    if outer.size.constant is None:
        first = dynamic(symbol(f"deal({outer},{count})", copies))
    else:
        size = outer.size.constant
        first = dynamic(concatenate([as_expr(-(-(size - turn) // count)) for turn in range(count)], stream.copies))
    shape = (first, *selected_part(stream.shape[1:], f"deal{count}", copies))
    port = Port(shape, _spread(stream, count), copies, role)
    return make(Parallelize(stream.rank), (stream,), (port,), name)[0]


def _selector(operation: str, stream: Stream) -> Selector:
    if not isinstance(stream.element, Selector):
        raise ElementMismatch(
            f"{operation}: stream {stream.name} carries {stream.element}, and selectors are needed",
            fix="give the source of the routing the element type Selector(name, targets)",
        )
    return stream.element


def _joined_copies(operation: str, stream: Stream, rank: int, width: int) -> int:
    if stream.rank != rank:
        raise ShapeMismatch(
            f"{operation}: {stream} has rank {stream.rank}, and groups of rank {rank} are joined",
            fix=f"use rank={stream.rank}, or flatten the stream first",
        )
    if not joinable(stream.shape):
        raise ShapeMismatch(
            f"{operation}: inner dims of {stream} differ between the copies", fix="restate the inner dims as ragged"
        )
    return stream.copies // width


def _joined_element(stream: Stream, groups: int, by: str) -> Element:
    """The element type after joining by a selector; the sides of a dynamic tile vary from element to element."""
    element = stream.element
    if isinstance(element, DynTile):
        elements = cardinality(stream.shape)
        rows, cols = (varying(side, elements, stream.copies, groups, by) for side in (element.rows, element.cols))
        return tile_type(rows, cols, element.dtype)
    return element


def _spread(stream: Stream, targets: int, by: str = "") -> Element:
    """The element type in every target of a selector; the shape of a dynamic tile is that of its origin."""
    element = stream.element
    if isinstance(element, DynTile):
        rows, cols = (parted(side, by, targets, stream.copies) for side in (element.rows, element.cols))
        return tile_type(rows, cols, element.dtype)
    return element
