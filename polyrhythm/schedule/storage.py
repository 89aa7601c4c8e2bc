"""Where every value is kept: each dim of a stored tensor is folded to as few slots as its lifetimes allow.

Two points of a tensor *conflict* when the second is written before the first has been read for the last time.
Along each dim, in order, the number of slots is one more than the largest distance between conflicting points that
agree on the dims before it (successive modulo, Lefebvre and Feautrier). One slot means that the dim needs no index
at all; a distance without a bound means that all its steps are kept. A tensor that needs one slot along every dim is
a *variable*: it lives in a register of the loop. The others are *buffers*. A buffer is written before anything is
read in the same iteration, because that is how a functional backend updates in place, so what is still to be read
in that iteration counts as alive.

Outputs are kept whole. Inputs come from outside and are not planned here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from polyrhythm.ir.conditions import FALSE, Condition, conjunction, eq
from polyrhythm.ir.graph import Graph, Node, Range
from polyrhythm.ir.sets import facts, solutions
from polyrhythm.ir.terms import Symbol, Term
from polyrhythm.schedule.blocks import Block, stored_reads
from polyrhythm.schedule.dependences import positioned
from polyrhythm.schedule.scheduler import Item
from polyrhythm.schedule.times import Time, at, earlier, times


@dataclass(frozen=True)
class Slots:
    """How one dim is kept: all steps (`count` is the extent), or `count` of them in turn.

    A dim of which ranges are read stays an axis even with a single slot.
    """

    symbol: Symbol
    count: Term
    whole: bool
    ranged: bool = False

    @property
    def is_axis(self) -> bool:
        """Whether the storage has an axis for the dim."""
        return self.whole or self.ranged or self.count.constant != 1

    def index(self, step: Term) -> Term:
        """The slot of a step."""
        return step if self.whole else step % self.count.constant

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
    when = times(items)
    writers = _writers(graph, blocks)
    lives: dict[str, list[_Life]] = {}
    ranged: dict[str, set[Symbol]] = {}
    for reader in blocks.values():
        for read in stored_reads(graph, reader):
            node = graph[read.access.source]
            entries = node.steps(read.access)
            ranged.setdefault(node.name, set()).update(s for s, e in entries.items() if isinstance(e, Range))
            steps, known = positioned(entries)
            for writer in writers.get(node.name, ()):
                condition = conjunction(reader.domain, known, writer.domain.substitute(steps))
                lives.setdefault(node.name, []).append(_Life(writer, reader, condition, steps))
    kept = {*graph.outputs, *graph.effects}
    wanted = {*kept, *graph.until.values(), *(access.source for access in graph.lengths.values())}
    plan = {}
    for name in writers:
        node = graph[name]
        if name in kept:
            slots = tuple(Slots(dim.symbol, dim.extent, True) for dim in node.dims)
            plan[name] = Storage(name, slots, "output")
        elif name in lives or name in wanted:
            plan[name] = _folded(node, lives.get(name, []), writers[name], when, ranged.get(name, set()))
    return plan


def _writers(graph: Graph, blocks: Mapping[str, Block]) -> dict[str, list[Block]]:
    found: dict[str, list[Block]] = {}
    for block in blocks.values():
        for statement in block.statements:
            current = tuple(Term.of(s) for s in graph[statement.node].symbols)
            if statement.steps == current:
                found.setdefault(statement.node, []).append(block)
    return found


def _folded(
    node: Node, lives: Sequence[_Life], writers: Sequence[Block], when: Mapping[str, Time], ranged: set[Symbol]
) -> Storage:
    for write_first in (False, True):
        conflicts = [c for life in lives for c in _conflicts(node, life, writers, when, write_first)]
        slots = tuple(replace(s, ranged=s.symbol in ranged) for s in _successive_modulo(node, conflicts))
        storage = Storage(node.name, slots, _reason(node, lives, slots))
        if storage.is_variable:
            break
    return storage


def _successive_modulo(node: Node, conflicts: Sequence[Condition]) -> tuple[Slots, ...]:
    """Fold one dim after the other; what agrees on a folded dim must still differ on a later one."""
    slots: list[Slots] = []
    for dim in node.dims:
        first, second = _first(dim.symbol), _second(dim.symbol)
        reach = _reach(conflicts, Term.of(second) - Term.of(first))
        if reach is None:
            slots.append(Slots(dim.symbol, dim.extent, True))
        else:
            slots.append(Slots(dim.symbol, Term(reach + 1), False))
        agree = eq(Term.of(first), Term.of(second))
        conflicts = [c for c in (conjunction(c, agree) for c in conflicts) if c is not FALSE]
    return tuple(slots)


def _reach(conflicts: Sequence[Condition], distance: Term) -> int | None:
    """The largest distance, either way, over all conflicts; None when it has no bound."""
    value = Symbol("distance", "dim", serial=-2)
    largest = 0
    for conflict in conflicts:
        for sign in (1, -1):
            apart = solutions(conjunction(conflict, eq(Term.of(value), distance * sign)))
            if apart.is_empty:
                continue
            reach = apart.largest_value(Term.of(value))
            if reach is None:
                return None
            largest = max(largest, reach)
    return largest


def _conflicts(
    node: Node, life: _Life, writers: Sequence[Block], when: Mapping[str, Time], write_first: bool
) -> Iterator[Condition]:
    """Conditions on two points (first, second) of the node: second is written while first is still to be read."""
    first = {s: Term.of(_first(s)) for s in node.symbols}
    second = {s: Term.of(_second(s)) for s in node.symbols}
    read_at = when[life.reader.name]
    known = [life.condition, *(eq(first[s], life.steps[s]) for s in node.symbols)]
    for other in writers:
        written_first = at(when[life.writer.name], first)
        written_second = at(when[other.name], second)
        base = conjunction(*known, other.domain.substitute(second))
        still_read = list(earlier(written_second, read_at))
        if write_first:
            # Everything written in an iteration counts as written at its start.
            shared = _shared_loops(written_second, read_at)
            still_read.append(_equal(written_second, read_at, shared))
        for after in earlier(written_first, written_second):
            for before in still_read:
                condition = conjunction(base, after, before)
                condition = conjunction(condition, facts(condition.symbols))
                if condition is not FALSE and not solutions(condition).is_empty:
                    yield condition


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
    return Symbol(symbol.name, "dim", serial=-6)


def _second(symbol: Symbol) -> Symbol:
    return Symbol(symbol.name, "dim", serial=-7)


def _reason(node: Node, lives: Sequence[_Life], slots: Sequence[Slots]) -> str:
    """Why a tensor needs what it needs, in a few words."""
    readers = sorted({life.reader.name for life in lives})
    names = ", ".join(readers[:3]) + (", ..." if len(readers) > 3 else "")
    if any(slot.whole for slot in slots):
        return f"read by {names} after later steps have been written"
    if all(slot.count.constant == 1 for slot in slots):
        return f"read by {names} before the next step is written"
    return f"read by {names} up to {max(s.count.constant for s in slots) - 1} steps later"
