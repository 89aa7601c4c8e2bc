"""Window: every group of a stream read again in another order, as prefixes, sliding windows or shifted steps.

A table says, for each element of the result, which position of the group it is. An element is sent as soon as it has
arrived and everything before it was sent, and kept as long as the table still needs it. So a shifted read is a delay, a
sliding window a ring, a growing prefix a list, and none of them waits for the end of the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyrhythm.stream.dims import Dim, cardinality, ragged, static
from polyrhythm.stream.engine import Process, Steps
from polyrhythm.stream.errors import ShapeMismatch, StopMismatch
from polyrhythm.stream.expr import Expr
from polyrhythm.stream.graph import Node, Operator, Port, Stream, make
from polyrhythm.stream.operators.common import require_rank, require_tile
from polyrhythm.stream.tokens import EMPTY, encode


@dataclass(frozen=True)
class Window(Operator):
    """Sends the elements of every group of rank r at the positions of a table, as a group of rank `depth`.

    `sent` lists the tokens of one group: positions, or EMPTY, and levels. `kept` is the most elements held at once,
    `groups` how many groups there are, where that is known and nothing closes between or after them; else 0.
    """

    rank: int
    depth: int
    sent: tuple[tuple[Any, int], ...]
    kept: int
    groups: int = 0

    def on_chip(self, node: Node, paper: bool) -> Expr:
        """The elements that are held at once."""
        return node.inputs[0].element.nbytes * self.kept

    def run(self, process: Process) -> Steps:
        """One cycle an element; the level of an outer dim follows as a bare stop."""
        channel, out = process.inputs[0][0], process.outputs[0][0]
        last_use = {position: index for index, (position, _) in enumerate(self.sent) if position is not EMPTY}
        held: dict[int, Any] = {}
        groups = arrived = at = 0
        is_open = False
        while True:
            # Empty parts need no element; they can go before any has come, if it is known that there is a group.
            while at < len(self.sent) and (is_open or groups < self.groups):
                position, stop = self.sent[at]
                if position is not EMPTY and position >= arrived:
                    break
                element = EMPTY
                if position is not EMPTY:
                    process.work(process.hardware.element_cycles)
                    element = held.pop(position) if last_use[position] == at else held[position]
                at += 1
                yield from process.put(out, element, stop)
            # After the last group nothing can follow; in a loop, waiting for the end would wait for ourselves.
            if 0 < self.groups == groups or (token := (yield from process.get(channel))) is None:
                return
            value, level = token
            if value is not EMPTY:
                if arrived in last_use:
                    held[arrived] = value
                arrived += 1
            closes = level >= self.rank and (is_open or value is not EMPTY or level == self.rank)
            is_open = is_open or value is not EMPTY or level <= self.rank
            if closes:
                yield from self._finish(process, held, arrived, at)
                held, arrived, at, is_open = {}, 0, 0, False
                groups += 1
            if level > self.rank:
                yield from process.put(out, EMPTY, level - self.rank + self.depth)

    def _finish(self, process: Process, held: dict[int, Any], arrived: int, at: int) -> Steps:
        """Send the rest of a group that is complete."""
        for position, stop in self.sent[at:]:
            if position is not EMPTY and position >= arrived:
                raise StopMismatch(
                    f"{process.name}: a group of {arrived} elements, and position {position} is wanted",
                    fix="the table of a window may only name positions that every group has",
                    at=process.node.source,
                )
            if position is not EMPTY:
                process.work(process.hardware.element_cycles)
            yield from process.put(process.outputs[0][0], EMPTY if position is EMPTY else held[position], stop)


def window(stream: Stream, rank: int, table: Sequence[Any], depth: int, *, name: str | None = None) -> Stream:
    """Read every group of `rank` at the positions of a nested `table` of `depth` dims.

    Positions count the elements of the group, whatever dims they are in. Parts of the table may be empty.

    >>> from polyrhythm.stream import source
    >>> numbers = source("numbers", [[1, 2, 3]], (static(1), static(3)))
    >>> print(window(numbers, 1, [[0, 1], [1, 2]], 2))
    window: [1, 2, 2] of tile[1,1] f32
    >>> print(window(numbers, 1, [[0], [0, 1], [0, 1, 2]], 2))
    window: [1, 3, window(numbers)~] of tile[1,1] f32
    """
    require_rank("window", stream, 1, rank)
    element = require_tile("window", stream)
    outer = stream.shape[: len(stream.shape) - rank]
    sent = tuple(encode([table], depth))
    bad = [position for position, _ in sent if position is not EMPTY and position < 0]
    if bad:
        raise ShapeMismatch(f"window: position {bad[0]}", fix="positions count from 0")
    shape = (*outer, *_table_dims(table, depth, cardinality(outer), f"window({stream.name})"))
    kept = _most_kept([position for position, _ in sent if position is not EMPTY])
    groups = cardinality(outer).constant if len(outer) == 1 else None
    operator = Window(rank, depth, sent, kept, groups or 0)
    return make(operator, (stream,), (Port(shape, element, stream.copies, stream.role),), name)[0]


def _table_dims(table: Sequence[Any], depth: int, groups: Expr, name: str) -> tuple[Dim, ...]:
    """The dims of a nested table: static where all parts are equally long, else ragged with a known total."""
    dims: list[Dim] = []
    parts: list[Any] = [table]
    for level in range(depth):
        lengths = [len(part) for part in parts]
        if len(set(lengths)) == 1:
            dims.append(static(lengths[0]))
        else:
            dims.append(ragged(name if level == depth - 1 else f"{name}.{level}", groups * sum(lengths)))
        parts = [item for part in parts for item in part]
    return tuple(dims)


def _most_kept(positions: list[int]) -> int:
    """The most elements that have arrived and are still needed, at any time."""
    order = np.array(positions, dtype=int)
    read, last = np.unique(order[::-1], return_index=True)
    # An element is there when one that is read has a place at or after its own, until it is read for the last time.
    begins = np.searchsorted(np.maximum.accumulate(order), read)
    changes = np.bincount(begins, minlength=len(order) + 1) - np.bincount(len(order) - last, minlength=len(order) + 1)
    return int(changes.cumsum().max())
