"""The units of a program: where a run can stop and go on.

A unit is an outermost loop, or a block outside of all loops. A *position* is a unit and the next iteration of it:
every unit before is done, and so are the iterations before. A run that is held at a position can say which steps of
an output are final (`frontier`: nothing to come stores to an earlier step) and which steps of an input the next
iterations read (`needed`). Both are found by interval arithmetic, so they hold always; where they are not the
tightest, a step comes out later, or an item is asked for earlier, than it could.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import TRUE, Condition, conjunction
from polyrhythm.compiler.ir.intervals import Interval, interval
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.loops.ir import Block, For, If, Item, LoopProgram, Steps, Stop, sites

Lookup = Callable[[Symbol], int]

NEXT = Symbol("next", "dim", serial=serials.NEXT)
"""The next iteration of a unit."""

LAST = Symbol("last", "dim", serial=serials.LAST)
"""The last iteration that is about to run."""

NEVER = 2**62
"""A step that no output reaches."""


@dataclass(frozen=True)
class Unit:
    """An outermost loop or block, and the condition under which it runs at all."""

    item: For | Block
    condition: Condition = TRUE

    @property
    def loop(self) -> For | None:
        return self.item if isinstance(self.item, For) else None

    @property
    def name(self) -> str:
        return str(self.item.counter) if isinstance(self.item, For) else self.item.name

    def iterations(self, lookup: Lookup) -> range:
        """The values of the counter; a block counts as one iteration."""
        if not self.condition.evaluate(lookup):
            return range(0)
        if isinstance(self.item, Block):
            return range(1)
        return range(self.item.first.evaluate(lookup), self.item.end.evaluate(lookup))


def units(items: tuple[Item, ...], condition: Condition = TRUE) -> tuple[Unit, ...]:
    """The units of a program, in order."""
    found: list[Unit] = []
    for item in items:
        if isinstance(item, If):
            found.extend(units(item.body, conjunction(condition, item.condition)))
        else:
            found.append(Unit(item, condition))
    return tuple(found)


@dataclass(frozen=True)
class Marks:
    """Where one place stands at every position: a term of `next` (and `last`) inside each unit, one before each.

    `conditions` say whether the units run at all: loops may be there twice, for small bounds and for others.
    """

    inside: tuple[tuple[Term, ...], ...]
    before: tuple[tuple[Term, ...], ...]
    conditions: tuple[Condition, ...]


def _marks(
    program: LoopProgram, steps: Callable[[Block], Iterator[Term]], end: int, last: Symbol | None = None
) -> Marks:
    """The lowest (`end` 0) or the highest (1) of some steps of each block, from `next` to `last`, and in all."""
    inside, before, every = [], [], units(program.body)
    for unit in every:
        own: list[Term] = []
        ahead: list[Term] = []
        for block, ranges in _visit(unit):
            between, everywhere = _while(unit, ranges, last), _closed(ranges)
            for step in steps(block):
                own.append(interval(step, between)[end])
                ahead.append(interval(step, everywhere)[end])
        inside.append(tuple(dict.fromkeys(own)))
        before.append(tuple(dict.fromkeys(ahead)))
    return Marks(tuple(inside), tuple(before), tuple(unit.condition for unit in every))


def frontier_marks(program: LoopProgram, place: str, axis: int) -> Marks:
    """The lowest steps that each unit still stores to, along one axis of a place."""
    return _marks(program, lambda block: (s.index[axis] for s in block.stores if s.place == place), 0)


def frontier(marks: Marks, unit: int, after: int, lookup: Lookup) -> int:
    """The first step that is not final, when iterations of a unit before `after` are done."""
    lowest = NEVER
    for term in marks.inside[unit] if unit < len(marks.inside) else ():
        lowest = min(lowest, term.evaluate(_with(lookup, {NEXT: after})))
    for terms, condition in zip(marks.before[unit + 1 :], marks.conditions[unit + 1 :], strict=True):
        for term in terms if condition.evaluate(lookup) else ():
            lowest = min(lowest, term.evaluate(lookup))
    return lowest


def needed_marks(program: LoopProgram, place: str) -> Marks:
    """The highest steps that each unit reads along the first axis of a place, from iteration `next` to `last`."""
    return _marks(program, lambda block: _read(block, place), 1, LAST)


def needed(marks: Marks, unit: int, first: int, last: int, lookup: Lookup) -> int:
    """How many leading steps iterations `first` to `last` of a unit read."""
    find = _with(lookup, {NEXT: first, LAST: last})
    return max((term.evaluate(find) + 1 for term in marks.inside[unit]), default=0)


def lowest_marks(program: LoopProgram, place: str) -> Marks:
    """The lowest steps that each unit reads along the first axis of a place: from `next` to `last`, and in all."""
    return _marks(program, lambda block: _read(block, place), 0, LAST)


def lowest(marks: Marks, unit: int, first: int, last: int, lookup: Lookup) -> int:
    """The lowest step that iterations `first` to `last` of a unit read; `NEVER` if they read none."""
    find = _with(lookup, {NEXT: first, LAST: last})
    return min((term.evaluate(find) for term in marks.inside[unit]), default=NEVER)


def still(marks: Marks, unit: int, iterations: range, lookup: Lookup) -> int:
    """The lowest step that the iterations of a unit which are left, or a later unit, read."""
    own = lowest(marks, unit, iterations.start, iterations.stop - 1, lookup) if iterations else NEVER
    return min([own, *(term.evaluate(lookup) for terms in marks.before[unit + 1 :] for term in terms)])


def stops(program: LoopProgram) -> Iterator[tuple[int, Stop]]:
    """The units that may end early, and how."""
    for number, unit in enumerate(units(program.body)):
        if unit.loop is not None and unit.loop.stop is not None:
            yield number, unit.loop.stop


def _read(block: Block, place: str) -> Iterator[Term]:
    """The first and last step of every read of a place."""
    for entry in (load.index[0] for load in block.loads if load.place == place):
        if isinstance(entry, Steps):
            yield entry.start
            yield entry.start + (entry.length - 1) * entry.step
        else:
            yield entry


def _visit(unit: Unit) -> Iterator[tuple[Block, dict[Symbol, Interval]]]:
    """Every block of a unit with the ranges of the counters around it, outer loops first.

    The pieces of a loop share its counter, so the ranges belong to the block.
    """

    for site in sites((unit.item,)):
        yield site.block, {loop.counter: (loop.first, loop.end - 1) for loop in site.loops}


def _while(unit: Unit, ranges: Mapping[Symbol, Interval], last: Symbol | None) -> dict[Symbol, Interval]:
    """The ranges of the counters while the unit's own goes from `next` to `last`, or to its end."""
    if unit.loop is None:
        return _closed(ranges)
    end = Term.of(last) if last is not None else unit.loop.end - 1
    return _closed({**ranges, unit.loop.counter: (Term.of(NEXT), end)})


def _closed(raw: Mapping[Symbol, Interval]) -> dict[Symbol, Interval]:
    """Ranges without counters in their ends; outer loops come first."""
    closed: dict[Symbol, Interval] = {}
    for counter, (first, last) in raw.items():
        closed[counter] = (interval(first, closed)[0], interval(last, closed)[1])
    return closed


def lookup_of(bounds: Mapping[str, int]) -> Lookup:
    """The value of each bound by its name."""
    return lambda symbol: bounds[symbol.name]


def _with(lookup: Lookup, more: Mapping[Symbol, int]) -> Lookup:
    return lambda symbol: more[symbol] if symbol in more else lookup(symbol)
