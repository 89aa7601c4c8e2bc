"""Groups of blocks while they are scheduled, and the order they are in.

A group is one block, or blocks that share a loop. An `Order` keeps groups sorted while they are joined: who reads from
whom is known, so that one moves only behind what it needs.

Loop distribution: what is not on the cycle of a recurrence runs before or after it, all steps at once.

A parallel loop can be fused with the recurrence that reads it, or that it reads: then of what passes between them a
step is stored, or a few, and every step starts the operations of both. *Distributed*, it is a vectorised loop of its
own, and all steps of what passes are stored. It is distributed where

- nothing is saved by fusing: what it reads of the recurrence is kept for all steps anyway;
- it has operations that XLA does not compute together with their readers, such as reductions or a recurrence along
  another dim, which each step would start anew, and what passes takes at most `SHARE` times what is stored anyway at
  each step (`tiles.py`): inputs, outputs, what the recurrence leaves for later readers, and what others have left for
  it, as for a gradient; and what would not be stored otherwise takes at most `PASSED` bytes a step for each such
  operation; and it is not between two recurrences, of which the first would have to be stored for it.

Under a memory budget the second does not count.

Two parallel loops are distributed as well where the first makes little of wide values, such as the sum of a row of
weights, and the second waits for all steps of something made of those: fused with the second it would have the wide
values stored for all steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from polyrhythm.compiler.analysis.ranks import FEW_STEPS, most_steps
from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.reads import reached, reaches
from polyrhythm.compiler.ir.sets import least
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.schedule.blocks import Block
from polyrhythm.compiler.schedule.dependences import ByBlock, Dependence
from polyrhythm.compiler.schedule.shifts import Ranking
from polyrhythm.compiler.schedule.tiles import Tiling

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
    """How two loops go through their steps, and how they do as one, and what the late one reads of the early one."""

    early: Ranking
    late: Ranking
    both: Ranking
    dims: dict[str, Symbol | None]
    crossing: Sequence[Dependence]


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
        between, end = set(self.groups[first:last]), self.groups[last]
        return reached(lambda group: self.before[group] & between, [end]) - {end} if between else set()

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


PASSED = 1 << 15
"""Bytes that pass at a step for which it is worth starting an operation less: all steps of them leave the cache."""


def most_steps_of(blocks: Mapping[str, Block], group: Group, symbol: Symbol) -> int | None:
    """The most steps that a member has along a dim; None where there is no limit."""
    steps = [most_steps(blocks[name].domain, symbol) for name in group.members if symbol in blocks[name].dims]
    known = [count for count in steps if count is not None]
    return max(known, default=0) if len(known) == len(steps) else None


def is_kept(blocks: Mapping[str, Block], target: Group, joint: Joint) -> bool:
    """Whether independent steps gain nothing by joining a recurrence: it keeps all that they read of it anyway."""
    along = next((dim for name in target.members if (dim := joint.dims[name]) is not None), None)
    steps = None if along is None else most_steps_of(blocks, target, along)
    if not joint.crossing or (steps is not None and steps <= FEW_STEPS):
        return False
    ranks = joint.both.ranks
    lags = ((ranks[d.source].substitute(d.steps) - ranks[d.reader], d.condition) for d in joint.crossing)
    return all(least(*lag) is None for lag in lags)


def is_cheap_to_keep(
    blocks: Mapping[str, Block],
    tiling: Tiling | None,
    group: Group,
    dependences: ByBlock,
    crossing: Sequence[Dependence],
    kept: Iterable[Block],
) -> bool:
    """Whether what a recurrence reads is better made before it, or what reads it after it, all steps at once.

    All steps of what the blocks `kept` make are stored anyway.
    """
    # A recurrence along another dim counts too: each step would start all its iterations anew.
    started = sum(blocks[n].launches for n in group.members) or len(dependences.circular.intersection(group.members))
    if tiling is None or not tiling.distributes or not started:
        return False
    symbol = group.ways[0].symbol
    if symbol in tiling.untiled or most_steps_of(blocks, group, symbol) is not None:
        return False
    kept = list(kept)
    if not tiling.is_affordable((blocks[d.source] for d in crossing), kept):
        return False
    new = {d.source for d in crossing if not tiling.is_whole(blocks[d.source])} - {block.name for block in kept}
    if sum(tiling.widths.get(name, 0) for name in new) > PASSED * started:
        return False
    # Between two recurrences that could share a loop, what it reads of the one would have to be stored as well.
    after = any(d.source not in group.members for d in crossing)
    if dependences.around(group.members, after) & dependences.circular - set(group.members):
        return False
    tiling.distributed.update({(d.source, d.reader): symbol for d in crossing})
    return True


def left_for_later(
    blocks: Mapping[str, Block], tiling: Tiling | None, group: Group, recurrence: Group, dependences: ByBlock
) -> Iterator[Block]:
    """What a recurrence makes that is read in other loops than that of a group before it."""
    inside = {*group.members, *recurrence.members}
    members = (blocks[name] for name in recurrence.members if tiling is not None)
    return (block for block in members if tiling is not None and tiling.is_read_later(block, inside, dependences))


def left_by_others(
    blocks: Mapping[str, Block], recurrence: Group, joint: Joint, dependences: ByBlock
) -> Iterator[Block]:
    """What a recurrence that goes back through the steps reads of those that went forward, which is all stored."""
    ranks = joint.both.ranks
    back = all((dim := joint.dims[name]) is None or ranks[name].coefficient(dim) < 0 for name in recurrence.members)
    sources = {d.source for name in recurrence.members for d in dependences.into(name)} if back else set()
    return (blocks[name] for name in sorted(sources - set(recurrence.members)))


def lets_go(blocks: Mapping[str, Block], fresh: Group, target: Group, symbol: Symbol, dependences: ByBlock) -> bool:
    """Whether a producer makes little of wide values that end before the loop of its consumers can begin."""
    if any(blocks[name].wide for name in fresh.members):
        return False
    into = (d.source for name in fresh.members for d in dependences.into(name))

    def further(entry: tuple[str, bool]) -> Iterator[tuple[str, bool]]:
        name, waited = entry
        for d in dependences.out_of(name) if not (waited and name in target.members) else ():
            if d.reader not in fresh.members:
                alike = symbol in blocks[d.reader].dims and not reads_without_limit(d, symbol)
                yield d.reader, waited or not alike

    starts = [(name, False) for name in into if blocks[name].wide and name not in fresh.members]
    return any(waited and name in target.members for name, waited in reached(further, starts))


def reads_without_limit(dependence: Dependence, symbol: Symbol) -> bool:
    """Whether a block reads a range along a dim that goes back, or ahead, as far as there are steps."""
    step = dependence.steps.get(symbol)
    if step is None or all(s.kind != "dim" or s is symbol for s in step.symbols):
        return False
    behind = Term.of(symbol) - step
    return any(least(way, dependence.condition) is None for way in (behind, -behind))
