"""Loops whose buffers can grow while they run.

A loop over t that reads `k[0:t+1]` at every step works on the whole capacity of its buffers, also while little of
it is in use: that costs time, because masks cover what is not there, and memory. Such a loop is run as a sequence of
stretches, each with buffers twice as large as those before.

Legal for a bound T when nothing in the body of the loop mentions it. Then iteration t is the same for every T, and
since the program has been proved right for all bounds, it stays inside buffers sized for any T = c that has this
iteration. Guards such as `t <= T - 2` may occur: an iteration in which they hold at c is the same as at any
larger bound. What comes before the loop must be the same at c as well, or be a *companion*: a loop that makes a table
of all steps from inputs alone. It goes as far as the capacity does, and on when that grows. What comes after the loop
runs when T itself, or what an early end has made of it, fits.

It pays when what is read with a growing length is large: the least capacity is such that a step reads what the cost
model says is worth growing for (`worthwhile` in `cost.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from polyrhythm.compiler.ir.conditions import Compare, Condition, conjunction, ge, lt, parts_of
from polyrhythm.compiler.ir.sets import facts, largest
from polyrhythm.compiler.ir.terms import Atom, FloorDiv, Symbol, Term
from polyrhythm.compiler.loops.cost import LEAST, worthwhile
from polyrhythm.compiler.loops.ir import Block, For, If, Item, LoopProgram, Steps, blocks_of, mentioned, walk
from polyrhythm.compiler.loops.liveness import live_before, written
from polyrhythm.compiler.loops.units import Unit, lookup_of, units

NOMINAL_STEPS = 16
"""Steps: what a bound counts for in the estimate of bytes that growing saves."""


@dataclass(frozen=True)
class Stretch:
    """Iterations of the loop from `first` to before `end`, with buffers of a capacity."""

    capacity: int
    first: int
    end: int


@dataclass(frozen=True)
class Growth:
    """The loop of a program whose buffers grow with a bound; `unit` is its number among the units.

    At a capacity c the iterations before `end` at c are possible, and those before `c + margin` for each of `margins`.
    `companions` are the numbers and loops of the units that grow with it.
    """

    unit: int
    loop: For
    bound: Symbol
    least: int
    margins: tuple[int, ...]
    unchanged: tuple[Term | Condition, ...]  # what must have the same value at a capacity as at the bound
    facts: tuple[Condition, ...]  # what must hold at a capacity
    companions: Mapping[int, For] = field(default_factory=dict)

    def capacities(self, bounds: Mapping[str, int], largest: int) -> list[int]:
        """The capacities that a run goes through, ending with the one that the bound needs."""
        found = []
        capacity = self.least
        while capacity < largest:
            if self._fits(capacity, bounds):
                found.append(capacity)
            capacity *= 2
        return [*found, largest]

    def reach(self, capacity: int, bounds: Mapping[str, int], largest: int) -> int:
        """The iterations before this one are possible at a capacity."""
        end = self.loop.end.evaluate(lookup_of(bounds))
        if capacity >= largest:
            return end
        return min(end, *(limit.evaluate(lookup_of(bounds)) for limit in self.limits(Term(capacity))))

    def limits(self, capacity: Term) -> tuple[Term, ...]:
        """The iterations before all of these are possible at a capacity."""
        return self.loop.end.substitute({self.bound: capacity}), *(capacity + margin for margin in self.margins)

    def companion_end(self, loop: For, capacity: int, bounds: Mapping[str, int], largest: int) -> int:
        """How far a companion goes at a capacity."""
        now = bounds if capacity >= largest else {**bounds, self.bound.name: capacity}
        return max(loop.first.evaluate(lookup_of(bounds)), loop.end.evaluate(lookup_of(now)))

    def companion_spans(
        self, before: int | None, capacity: int, bounds: Mapping[str, int], largest: int
    ) -> dict[int, range]:
        """The iterations of each companion that are new at a capacity, after another or none."""
        spans = {}
        for number, loop in self.companions.items():
            first = loop.first.evaluate(lookup_of(bounds))
            first = first if before is None else self.companion_end(loop, before, bounds, largest)
            spans[number] = range(first, self.companion_end(loop, capacity, bounds, largest))
        return spans

    def stretches(self, bounds: Mapping[str, int], largest: int) -> list[Stretch]:
        """How a whole run goes; at least one stretch, perhaps without iterations."""
        first = self.loop.first.evaluate(lookup_of(bounds))
        found = []
        for capacity in self.capacities(bounds, largest):
            end = self.reach(capacity, bounds, largest)
            if end > first or capacity == largest:
                found.append(Stretch(capacity, first, max(first, end)))
                first = max(first, end)
        return found

    def _fits(self, capacity: int, bounds: Mapping[str, int]) -> bool:
        now, then = lookup_of(bounds), lookup_of({**bounds, self.bound.name: capacity})
        same = all(part.evaluate(now) == part.evaluate(then) for part in self.unchanged)
        return same and all(fact.evaluate(then) for fact in self.facts)


def with_growth(program: LoopProgram) -> LoopProgram:
    """The program with the loop whose buffers grow, if there is one; the last of the passes."""
    return replace(program, growth=find_growth(program))


def find_growth(program: LoopProgram) -> Growth | None:
    """The first loop of a program whose buffers can grow, if it pays."""
    every = units(program.body) if all(place.spill is None for place in program.places.values()) else ()
    for number in range(len(every)):
        for bound in program.bounds:
            found = _growth(program, every, number, bound)
            if found is not None:
                return found
    return None


def _growth(program: LoopProgram, every: Sequence[Unit], number: int, bound: Symbol) -> Growth | None:
    loop = every[number].loop
    if loop is None or loop.parallel or bound not in loop.end.symbols or bound in loop.first.symbols:
        return None
    if not _stops_first(every, number, bound):
        return None
    companions = {n: unit.loop for n, unit in enumerate(every[:number]) if _accompanies(program, every, n, bound)}
    margins = _margins(loop, bound)
    unchanged = _unchanged([u for n, u in enumerate(every[:number]) if n not in companions], bound)
    if margins is None or unchanged is None or not _monotone(loop.end, bound):
        return None
    sizes = (length for place in program.places.values() for length in place.whole)
    if not all(_monotone(length, bound) for length in sizes):
        return None
    read = _growing_bytes(program, loop, bound)
    if read == 0:
        return None
    least = max(LEAST, 1 << (-(-worthwhile(program.machine) // read) - 1).bit_length())
    conditions = [every[n].condition for n in (*companions, number)]
    unchanged = (*unchanged, *_mentioning(conditions, bound))
    known = tuple(_facts(program, bound))
    growing = {n: companion for n, companion in companions.items() if companion is not None}
    return Growth(number, loop, bound, least, margins, unchanged, known, growing)


def _stops_first(every: Sequence[Unit], number: int, bound: Symbol) -> bool:
    """Whether the only loops that end early are outermost, not after the one in question, and end the same bound."""
    for place, unit in enumerate(every):
        for item in walk((unit.item,)):
            stops = isinstance(item, For) and item.stop is not None
            if stops and (item is not unit.item or place > number or item.stop.bound is not bound):  # type: ignore[union-attr]
                return False
    return True


def _accompanies(program: LoopProgram, every: Sequence[Unit], number: int, bound: Symbol) -> bool:
    """Whether a unit makes a table of all steps from inputs, which nobody writes after it."""
    loop = every[number].loop
    if loop is None or loop.stop is not None or any(block.host for block in blocks_of(loop.body)):
        return False
    if bound not in loop.end.symbols or bound in loop.first.symbols or not _monotone(loop.end, bound):
        return False
    own = written(loop.body)
    later = written(tuple(unit.item for unit in every[number + 1 :]))
    made = {name for name in own if program.places[name].kind != "output"}
    read = live_before(loop.body, set(), program) - own
    inputs = all(program.places[name].kind == "input" for name in read)
    return inputs and made == own and not own & later and _margins(loop, bound) == ()


def _margins(loop: For, bound: Symbol) -> tuple[int, ...] | None:
    """How far before a capacity the guards of a loop let it run; None if its body depends on the bound otherwise."""
    found: set[int] = set()
    guards = [part for item in walk(loop.body) if isinstance(item, If) for part in parts_of(item.condition)]
    for part in _mentioning(guards, bound):
        if not isinstance(part, Compare) or part.relation != ">=":
            return None
        rest = part.term - Term.of(bound) + Term.of(loop.counter)
        if not rest.is_constant:
            return None
        found.add(rest.constant + 1)  # it holds for t <= T + rest
    if bound in _computed(loop) or any(_mentioning(_limits(loop.body), bound)):
        return None
    return tuple(sorted(found))


def _unchanged(before: Sequence[Unit], bound: Symbol) -> tuple[Term | Condition, ...] | None:
    """What tells that units run at a capacity as they do at the bound; None if that cannot be told from bounds."""
    found: list[Term | Condition] = [unit.condition for unit in before]
    for unit in before:
        if bound in _computed(unit.item):
            return None
        found += _limits((unit.item,))
        found += [item.condition for item in walk((unit.item,)) if isinstance(item, If)]
    mentioning = _mentioning(found, bound)
    return None if any(s.kind == "dim" for part in mentioning for s in part.symbols) else tuple(mentioning)


def _computed(item: For | Block) -> set[Symbol]:
    """The symbols of all blocks of a unit, and of what ends it early."""
    stop = item.stop if isinstance(item, For) else None
    return mentioned((*blocks_of((item,)), *((stop.done, stop.length) if stop else ())))


def _limits(items: tuple[Item, ...]) -> list[Term]:
    """The ends of the loops among some items."""
    return [term for item in walk(items) if isinstance(item, For) for term in (item.first, item.end)]


def _mentioning(
    parts: Iterator[Term | Condition] | Sequence[Term | Condition], bound: Symbol
) -> list[Term | Condition]:
    return [part for part in parts if bound in part.symbols]


def _monotone(term: Term, symbol: Symbol) -> bool:
    """Whether a term surely does not fall when a symbol grows."""
    for monomial, coefficient in term.monomials:
        parts = [_parts_of(atom) for atom in monomial]
        if not any(atom is symbol for atom in monomial) and not any(
            symbol in part.symbols for inner in parts for part in inner
        ):
            continue
        if coefficient < 0 or len(monomial) > 1 or not all(_monotone(part, symbol) for part in parts[0]):
            return False
    return True


def _parts_of(atom: Atom) -> tuple[Term, ...]:
    if isinstance(atom, Symbol):
        return ()
    return (atom.dividend,) if isinstance(atom, FloorDiv) else atom.arguments


def _growing_bytes(program: LoopProgram, loop: For, bound: Symbol) -> int:
    """The bytes that a step reads for each step there has been, by reads whose length grows with the counter."""
    total = 0
    for load in {load for block in blocks_of(loop.body) for load in block.loads}:
        place = program.places[load.place]
        for axis, entry in enumerate(load.index):
            sized = bound in place.slots[axis].symbols
            if isinstance(entry, Steps) and sized and _grows(entry.length, loop):
                size = place.type.dtype.itemsize
                for other, length in enumerate(place.whole):
                    picked = other < len(load.index) and isinstance(load.index[other], Term)
                    if other != axis and not picked:
                        size *= max(1, length.constant) if length.is_constant else NOMINAL_STEPS
                total += size
    return total


def _grows(length: Term, loop: For) -> bool:
    """Whether a length grows with the iterations of a loop, without limit."""
    if loop.counter not in length.symbols:
        return False
    counter = Term.of(loop.counter)
    return largest(length, conjunction(ge(counter, loop.first), lt(counter, loop.end))) is None


def _facts(program: LoopProgram, bound: Symbol) -> Iterator[Condition]:
    """What is known of the bounds and mentions one of them."""
    known = facts(frozenset(program.bounds))
    yield from (part for part in parts_of(known) if bound in part.symbols)
    yield from (r.condition for r in program.requirements if bound in r.condition.symbols)
