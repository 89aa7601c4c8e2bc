"""Groups of blocks while they are scheduled, and the order they are in.

A group is one block, or blocks that share a loop. An `Order` keeps groups sorted while they are joined: who reads from
whom is known, so that one moves only behind what it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.reads import reaches
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.compiler.schedule.blocks import Block
from polyrhythm.compiler.schedule.dependences import Dependence
from polyrhythm.compiler.schedule.shifts import Ranking

COMBINED = Symbol("rank", "dim", serial=serials.COUNTER)
"""In place of the dim of a loop along none."""


@dataclass(frozen=True)
class Way:
    """A dim along which a group may be a loop, the rankings the loop may follow, and the steps of a tile, if tiled."""

    dims: dict[str, Symbol | None]
    candidates: list[Ranking]
    tile: int = 0

    @property
    def symbol(self) -> Symbol:
        """The dim of the first member that has one; nobody's if the loop counts combinations of dims."""
        return next((dim for dim in self.dims.values() if dim is not None), COMBINED)


@dataclass(eq=False)
class Group:
    """Blocks that share a loop, with the ways it can be one, best first; or one block alone, without any."""

    members: list[str]
    ways: list[Way] = field(default_factory=list)

    @property
    def is_loop(self) -> bool:
        return bool(self.ways)


def is_apart(group: Group, blocks: Mapping[str, Block], symbol: Symbol) -> bool:
    """Whether a loop has what should run before or after a recurrence."""
    return any(symbol in blocks[name].apart for name in group.members)


def is_early(group: Group, blocks: Mapping[str, Block], symbol: Symbol) -> bool:
    """Whether a loop has what should run with what it reads."""
    return any(symbol in blocks[name].early for name in group.members)


@dataclass(frozen=True)
class Joint:
    """How two loops go through their steps, and how they do as one."""

    early: Ranking
    late: Ranking
    both: Ranking


class Order:
    """Groups in an order of execution, and for each those it reads from, which come before it."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.before: dict[Group, set[Group]] = {}

    def add(self, group: Group, readers: set[Group]) -> None:
        """Note who reads from a group."""
        self.before.setdefault(group, set())
        for reader in readers - {group}:
            self.before[reader].add(group)

    def needed(self, first: int, last: int) -> set[Group]:
        """Those from a first to a last group that must come before the last. All on the way to them lie between."""
        between = set(self.groups[first:last])
        found: set[Group] = set()
        waiting = [self.groups[last]] if between else []
        while waiting:
            further = (self.before[waiting.pop()] & between) - found
            found |= further
            waiting += further
        return found

    def put(self, first: int, last: int, needed: set[Group]) -> None:
        """Move the last of some groups to the first place, behind all it needs of them."""
        *rest, group = self.groups[first : last + 1]
        early, late = [g for g in rest if g in needed], [g for g in rest if g not in needed]
        self.groups[first : last + 1] = [*early, group, *late]

    def join(self, early: int, late: int, needed: set[Group]) -> None:
        """Take out a group that is part of a later one now. All that the later one needs comes before both."""
        gone, group = self.groups.pop(early), self.groups[late - 1]
        self.put(early, late - 1, needed)
        self.before[group] |= self.before.pop(gone)
        for others in self.before.values():
            if gone in others:
                others.remove(gone)
                others.add(group)
        self.before[group].discard(group)


def old_before_new(order: Order, settled: Sequence[Dependence]) -> list[Group]:
    """Reorder so that a value of an earlier iteration is read before its successor is written, where that is possible.

    A value then needs one place instead of two.
    """
    place = {name: group for group in order.groups for name in group.members}
    before = order.before
    for d in settled:
        reader, writer = place[d.reader], place[d.source]
        if reader is not writer and not reaches(before, reader, writer):
            before[writer].add(reader)
    after: dict[Group, list[Group]] = {group: [] for group in order.groups}
    for group, needed in before.items():
        for other in needed:
            after[other].append(group)
    number = {group: n for n, group in enumerate(order.groups)}
    waiting = {group: len(before[group]) for group in order.groups}
    ready = [n for n, group in enumerate(order.groups) if not before[group]]  # a sorted list is a heap
    found = []
    while ready:
        found.append(order.groups[heappop(ready)])
        for group in after[found[-1]]:
            waiting[group] -= 1
            if not waiting[group]:
                heappush(ready, number[group])
    return found
