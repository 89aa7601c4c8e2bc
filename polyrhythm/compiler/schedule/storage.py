"""Where every value is kept: each dim of a stored tensor is folded to as few slots as its lifetimes allow.

Two points of a tensor *conflict* when the second is written before the first has been read for the last time.
Along each dim, in order, the number of slots is one more than the largest distance between conflicting points that
agree on the dims before it (successive modulo, Lefebvre and Feautrier). The opposite order of the dims gives other
numbers: where an iteration goes on with the last steps of the one before, points of the same step may leave one slot
along the iterations, and not two. The fewer are taken. One slot means that the dim needs no index at all; a distance
without a bound means that all its steps are kept. A tensor that needs one slot along every dim is a *variable*: it
lives in a register of the loop. The others are *buffers*. A buffer is written before anything is read in the same
iteration, because that is how a functional backend updates in place, so what is still to be read in that iteration
counts as alive; but not for what is written later than by whoever reads, if that writes too: its results come
between.

A tensor of many dims with many clamped reads may have more pairs of cases than are worth looking at: after so many
operations on integer sets all its steps are kept, which is always legal. Outputs are kept whole. Inputs come from
outside and are not planned here.

When a block runs, as a vector to be compared lexicographically.

The vector alternates the position among its siblings with the counter of the loop that encloses the next level:
`(2, t + 1, 0)` is the third item of the program, a loop; in its iteration t + 1; the first item of the body. Blocks
at different depths are compared on what they have in common, because their positions differ there at the latest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import FALSE, TRUE, Condition, conjunction, eq, ge, le, lt
from polyrhythm.compiler.ir.graph import Graph, Node, NodeDim, Range
from polyrhythm.compiler.ir.reads import positioned, roots
from polyrhythm.compiler.ir.sets import (
    Points,
    TooManyOperationsError,
    at_most,
    facts,
    least,
    points,
    proves,
    with_facts,
)
from polyrhythm.compiler.ir.terms import Symbol, Term, ordered
from polyrhythm.compiler.schedule.blocks import Block, stored_reads
from polyrhythm.compiler.schedule.scheduler import Item, Loop

Time = tuple[Term, ...]


def times(items: Sequence[Item]) -> dict[str, Time]:
    """The time of every block of a schedule, as terms of the block's own dims."""
    found: dict[str, Time] = {}

    def visit(body: Sequence[Item], prefix: dict[str, Time]) -> None:
        for position, item in enumerate(body):
            if isinstance(item, Loop):
                inner = {}
                for name, member in item.members.items():
                    inner[name] = (*prefix.get(name, ()), Term(position), member.time)
                visit(item.body, inner)
            else:
                found[item] = (*prefix.get(item, ()), Term(position))

    visit(items, {})
    return found


def at(time: Time, steps: Mapping[Symbol, Term]) -> Time:
    """A time with the block's dims replaced."""
    return tuple(term.substitute(steps) for term in time)


def earlier(a: Time, b: Time) -> Iterator[Condition]:
    """Conditions, one per level, that together say: a comes strictly before b."""
    equal: Condition = TRUE
    for x, y in zip(a, b, strict=False):
        yield conjunction(equal, lt(x, y))
        equal = conjunction(equal, eq(x, y))
        if equal is FALSE:
            return


def same(a: Time, b: Time) -> Condition:
    """The condition that two times agree on all levels they share."""
    return conjunction(*(eq(x, y) for x, y in zip(a, b, strict=False)))


OPERATIONS = 20_000_000
"""The operations on integer sets that folding one tensor may take: seconds. Natural programs take under a tenth."""


@dataclass(frozen=True)
class Slots:
    """How one dim is kept: all steps (`count` is the extent, or less where the last have no values), or some in turn.

    A dim of which ranges are read stays an axis even with a single slot. The first step that is ever read has the
    first slot, so that ranges that begin there lie in order.
    """

    symbol: Symbol
    count: Term
    whole: bool
    ranged: bool = False
    first: int = 0

    @property
    def is_axis(self) -> bool:
        """Whether the storage has an axis for the dim."""
        return self.whole or self.ranged or self.count.constant != 1

    def index(self, step: Term) -> Term:
        """The slot of a step."""
        return step if self.whole else (step - self.first) % self.count.constant

    def __str__(self) -> str:
        return f"all {self.count} of {self.symbol}" if self.whole else f"{self.count} of {self.symbol}"


@dataclass(frozen=True)
class Storage:
    """The place of one tensor."""

    node: str
    slots: tuple[Slots, ...]
    why: str

    @property
    def is_variable(self) -> bool:
        return not self.indexed

    @property
    def indexed(self) -> tuple[Slots, ...]:
        """The dims that need an index."""
        return tuple(slot for slot in self.slots if slot.is_axis)


@dataclass(frozen=True)
class _Life:
    """A value written by one block and read by another: where, and at which times."""

    writer: Block
    reader: Block
    condition: Condition  # over the reader's dims and positions
    steps: Mapping[Symbol, Term]  # the point read


def plan_storage(graph: Graph, blocks: Mapping[str, Block], items: Sequence[Item]) -> dict[str, Storage]:
    """The storage of every tensor that is read outside the block that computes it, or wanted from outside."""
    # When each block runs, and which blocks write each tensor.
    when = times(items)
    writers = _writers(graph, blocks)

    # Live ranges: every value that one block writes and another reads, and the dims read as ranges.
    lives: dict[str, dict[object, _Life]] = {}
    ranged: dict[str, set[Symbol]] = {}
    for reader in blocks.values():
        for read in stored_reads(graph, reader):
            node = graph[read.access.source]
            entries = node.steps(read.access)
            ranged.setdefault(node.name, set()).update(s for s, e in entries.items() if isinstance(e, Range))
            steps, known, _ = positioned(entries)
            for writer in writers.get(node.name, ()):
                condition = conjunction(reader.domain, read.where, known, writer.domain.substitute(steps))
                life = _Life(writer, reader, condition, steps)
                lives.setdefault(node.name, {})[writer.name, reader.name, condition, *steps.values()] = life

    # Outputs have a slot for every step; other tensors as many as their live ranges need.
    kept = {*graph.outputs, *graph.effects}
    wanted = roots(graph)
    plan = {}
    for name in writers:
        node = graph[name]
        if name in kept:
            slots = tuple(Slots(dim.symbol, dim.extent, True) for dim in node.dims)
            plan[name] = Storage(name, slots, "output")
        elif name in lives or name in wanted:
            own = list(lives.get(name, {}).values())
            reach = {writer.name: _written(graph, blocks, writer, when) for writer in writers[name]}
            tiles = _tiles(items, {writer.name for writer in writers[name]})
            try:
                with at_most(OPERATIONS):
                    plan[name] = _folded(node, own, writers[name], when, ranged.get(name, set()), reach, tiles)
            except TooManyOperationsError:
                slots = tuple(Slots(d.symbol, d.extent, True, d.symbol in ranged.get(name, set())) for d in node.dims)
                plan[name] = Storage(name, slots, "its live ranges take too long to compare")

    # Tensors that nothing writes, read by ranges that are empty.
    for name in ranged.keys() - writers.keys():
        node = graph[name]
        if not node.is_input:
            # It has no points, so whoever reads it reads a range of none of them, along one dim at least.
            empty = ranged[name]
            slots = tuple(
                Slots(d.symbol, Term(int(d.symbol not in empty)), False, d.symbol in empty) for d in node.dims
            )
            plan[name] = Storage(name, slots, "read over empty ranges only")
    return plan


def _writers(graph: Graph, blocks: Mapping[str, Block]) -> dict[str, list[Block]]:
    found: dict[str, list[Block]] = {}
    for block in blocks.values():
        for statement in block.statements:
            current = tuple(Term.of(s) for s in graph[statement.node].symbols)
            if statement.steps == current:
                found.setdefault(statement.node, []).append(block)
    return found


def _written(graph: Graph, blocks: Mapping[str, Block], writer: Block, when: Mapping[str, Time]) -> Condition:
    """Where a block writes: in its domain, and before a loop has found its length also beyond it."""
    where = writer.domain
    for dim, name in graph.until.items():
        assert dim.bound is not None
        stopper = next(b for b in blocks.values() if any(s.node == name for s in b.statements))
        end, time = when[stopper.name], when[writer.name]
        if dim.bound not in where.symbols or not proves(TRUE, le(time[0], end[0])):
            continue
        limit = Term.of(Symbol(f"{dim.bound}_limit", "bound", serial=serials.LIMIT))
        where = conjunction(where.substitute({dim.bound: limit}), ge(limit, Term.of(dim.bound)))
        if time[0] is end[0] and len(time) > 1:
            where = conjunction(where, le(time[1], end[1].substitute({dim: Term.of(dim.bound) - 1})))
    return where


def _folded(
    node: Node,
    lives: Sequence[_Life],
    writers: Sequence[Block],
    when: Mapping[str, Time],
    ranged: set[Symbol],
    reach: Mapping[str, Condition],
    tiles: Mapping[Symbol, int],
) -> Storage:
    # Pairs of points that may not share a slot: one is written while the other is still to be read.
    overwritten, in_same_iteration = [], []
    for life in lives:
        for writer in writers:
            conflicts = _Conflicts(node, life, writer, when, reach[writer.name])
            overwritten += list(conflicts.overwritten())
            if life.reader is writer or life.reader not in writers:
                in_same_iteration.append(conflicts)

    # The smallest modulus of each dim that keeps those apart.
    slots = _fewest(node, overwritten, ranged, tiles)

    # A buffer is also written in the iteration that reads it, which a variable is not: one more slot if so.
    if any(slot.is_axis for slot in slots):
        same = [points for conflicts in in_same_iteration for points in conflicts.in_same_iteration()]
        slots = _fewest(node, [*overwritten, *same], ranged, tiles)
        slots = tuple(_from_first(slot, lives) if slot.ranged and not slot.whole else slot for slot in slots)
    return Storage(node.name, slots, _reason(node, lives, slots))


def _tiles(items: Sequence[Item], names: set[str]) -> dict[Symbol, int]:
    """The dims of some blocks that loops over tiles follow, and the steps of a tile."""
    found: dict[Symbol, int] = {}
    for item in items:
        if isinstance(item, Loop) and not names.isdisjoint(item.members):
            if item.tile:
                times = (member.time for name, member in item.members.items() if name in names)
                found |= {s: item.tile for time in times for s in time.symbols if s.kind == "dim"}
            found |= _tiles(item.body, names)
    return found


def _fewest(
    node: Node, conflicts: Sequence[Points], ranged: set[Symbol], tiles: Mapping[Symbol, int]
) -> tuple[Slots, ...]:
    """The slots by the order of the dims, or by the opposite order if these are fewer."""
    slots = _successive_modulo(node.dims, node, conflicts, ranged, tiles)
    several = [slot.whole or slot.count.constant > 1 for slot in slots]
    if sum(several) < 2 or slots[several.index(True)].whole:
        return slots
    found = {slot.symbol: slot for slot in _successive_modulo(node.dims[::-1], node, conflicts, ranged, tiles)}
    others = tuple(found[dim.symbol] for dim in node.dims)
    return others if _are_fewer(others, slots) else slots


def _are_fewer(new: Sequence[Slots], old: Sequence[Slots]) -> bool:
    """Whether some slots are fewer than others; of steps whose number is not known, only where no dim has more."""
    if all(slot.count.is_constant for slot in (*new, *old)):
        return math.prod(slot.count.constant for slot in new) < math.prod(slot.count.constant for slot in old)
    pairs = zip(new, old, strict=True)
    return new != old and all(b.whole or (not a.whole and a.count.constant <= b.count.constant) for a, b in pairs)


def _successive_modulo(
    dims: Sequence[NodeDim], node: Node, conflicts: Sequence[Points], ranged: set[Symbol], tiles: Mapping[Symbol, int]
) -> tuple[Slots, ...]:
    """Fold one dim after the other; what agrees on a folded dim must still differ on a later one.

    The ring of a loop over tiles has room for whole tiles, so that those that begin with a slot lie in one piece.
    """
    slots: list[Slots] = []
    for number, dim in enumerate(dims):
        first, second = Term.of(_first(dim.symbol)), Term.of(_second(dim.symbol))
        reach = _reach(conflicts, second - first)
        whole, count = True, dim.extent
        if reach is not None:
            whole = 1 < _steps(node, dim) <= reach + 1  # a ring with a slot for every step is no ring
            if not whole:
                tile = tiles.get(dim.symbol, 1)
                count = Term(-(-(reach + 1) // tile) * tile)
            elif dim.extent.is_constant:
                count = Term(_steps(node, dim))
        slots.append(Slots(dim.symbol, count, whole, dim.symbol in ranged))
        if number + 1 < len(dims):
            agreeing = (c & points(eq(first, second), c.columns) for c in conflicts)
            conflicts = [c for c in agreeing if not c.is_empty]
    return tuple(slots)


def _from_first(slots: Slots, lives: Sequence[_Life]) -> Slots:
    """A ring that begins with the first step that is read."""
    known = ((life.steps[slots.symbol], life.condition) for life in lives)
    found = [least(step, with_facts(condition)) for step, condition in known]
    return replace(slots, first=max(0, min((n for n in found if n is not None), default=0)) if None not in found else 0)


def _steps(node: Node, dim: NodeDim) -> int:
    """How many steps from the first one of a dim on hold all of a node's; 0 where that is not known."""
    last = least(-Term.of(dim.symbol), with_facts(node.points))
    if not dim.extent.is_constant:
        return 0 if last is None else 1 - last  # by a declared `max`
    return dim.extent.constant if last is None else min(dim.extent.constant, 1 - last)


def _reach(conflicts: Sequence[Points], distance: Term) -> int | None:
    """The largest distance, either way, over all conflicts; None when it has no bound."""
    largest = 0
    for conflict in conflicts:
        for way in (distance, -distance):
            reach = conflict.largest_value(way)
            if reach is None:
                return None
            largest = max(largest, reach)
    return largest


class _Conflicts:
    """Points (first, second) of a node: second is written, by `other`, while first is still to be read in a life.

    `where` says where `other` writes.
    """

    def __init__(self, node: Node, life: _Life, other: Block, when: Mapping[str, Time], where: Condition) -> None:
        first = {s: Term.of(_first(s)) for s in node.symbols}
        second = {s: Term.of(_second(s)) for s in node.symbols}
        self.read = when[life.reader.name]
        self.written = at(when[other.name], second)
        reading = conjunction(life.condition, *(eq(first[s], life.steps[s]) for s in node.symbols))
        known = conjunction(reading, where.substitute(second))
        written = at(when[life.writer.name], first)
        mentioned = known.symbols.union(*(term.symbols for term in (*self.read, *self.written, *written)))
        known = conjunction(known, facts(mentioned))
        self.columns = ordered(known.symbols | mentioned)
        # One set per level at which second may be the later one: what follows only intersects these.
        after = earlier(written, self.written)
        self.later = list(self._within(points(known, self.columns), after))

    def overwritten(self) -> Iterator[Points]:
        """Second is written before first is read."""
        before = list(earlier(self.written, self.read))
        for later in self.later:
            yield from self._within(later, before)

    def in_same_iteration(self) -> Iterator[Points]:
        """Second is written in the iteration that reads first. All that is written counts as written at its start."""
        shared = _shared_loops(self.written, self.read)
        for later in self.later:
            yield from self._within(later, [_equal(self.written, self.read, shared)])

    def _within(self, known: Points, conditions: Iterable[Condition]) -> Iterator[Points]:
        for condition in conditions:
            if condition is not FALSE:
                found = known & points(condition, self.columns)
                if not found.is_empty:
                    yield found


def _shared_loops(a: Time, b: Time) -> int:
    """How many leading entries belong to loops that both times are inside of."""
    shared = 0
    for level in range(0, min(len(a), len(b)) - 1, 2):
        if a[level] is not b[level]:
            break
        shared = level + 2
    return shared


def _equal(a: Time, b: Time, shared: int) -> Condition:
    return conjunction(*(eq(x, y) for x, y in zip(a[:shared], b[:shared], strict=True))) if shared else FALSE


def _first(symbol: Symbol) -> Symbol:
    return Symbol(symbol.name, "dim", serial=serials.WRITTEN)


def _second(symbol: Symbol) -> Symbol:
    return Symbol(symbol.name, "dim", serial=serials.READ)


def _reason(node: Node, lives: Sequence[_Life], slots: Sequence[Slots]) -> str:
    """Why a tensor needs what it needs, in a few words."""
    readers = list(dict.fromkeys(life.reader.node for life in lives))
    names = ", ".join(readers[:3]) + (", ..." if len(readers) > 3 else "")
    if any(slot.whole for slot in slots):
        return f"read by {names} after later steps have been written"
    if all(slot.count.constant == 1 for slot in slots):
        return f"read by {names} before the next step is written"
    return f"read by {names} up to {max(s.count.constant for s in slots) - 1} steps later"
