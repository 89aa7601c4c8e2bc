"""When every instance of every block runs: its iterations, and its time as a vector compared lexicographically.

A block may occur several times in a program, because loops are cut into pieces. The instances of one occurrence are
the integer points between the limits of the loops around it at which its guards hold. The time of an instance
alternates the position among siblings with the value of the counter of the next loop. Two instances are compared on
what their times have in common; positions of different items differ there at the latest.

A loop that may stop early gives further *scenarios*: the program as it runs when the loop stops in a given piece.
There a bound T has two values: T while that piece and everything before it runs, and its final value, a symbol of
its own, after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import FALSE, TRUE, Condition, conjunction, eq, ge, le, lt
from polyrhythm.compiler.ir.sets import solutions
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.legality.prover import Values
from polyrhythm.compiler.loops.ir import Block, For, If, Item, LoopProgram, Stop

Time = tuple[int | Term, ...]


@dataclass(frozen=True, eq=False)
class Occurrence:
    """A block at one place of the program. `values` says what the symbols of its code stand for there."""

    block: Block
    loops: tuple[tuple[Symbol, Term], ...]
    counters: tuple[Symbol, ...]
    domain: Condition
    time: Time
    values: Mapping[Symbol, Term]
    parallel: tuple[int, ...] = ()  # where the counters of parallel loops stand in the time
    around: tuple[For, ...] = ()

    def role(self, serial: int) -> dict[Symbol, Term]:
        """The counters under other names, for a second instance beside the first."""
        return {c: Term.of(renamed(c, serial)) for c in self.counters}

    def shown(self, at: Values, solved: Mapping[Symbol, Term] | None = None) -> str:
        """One instance in words: the block and the values of its counters."""
        counts = (f"{c} = {evaluated(value.substitute(solved or {}), at)}" for c, value in self.loops)
        return f"{self.block.name}{' at ' if self.loops else ''}{', '.join(counts)}"


@cache
def renamed(counter: Symbol, serial: int) -> Symbol:
    return Symbol(counter.name, "dim", serial=serial + counter.serial - serials.PROVED)


@dataclass(frozen=True, eq=False)
class StopLoop:
    """A loop that may stop early: its iterations, and the time at which each looks at the condition."""

    stop: Stop
    number: int
    counter: Term
    counters: tuple[Symbol, ...]
    domain: Condition
    time: Time
    values: Mapping[Symbol, Term]
    nested: bool


@dataclass(frozen=True)
class Scenario:
    """How a run ends: for each bound found early, its final value and the loop, by number, that finds it."""

    ends: Mapping[Symbol, tuple[Symbol, int]] = field(default_factory=dict)

    @property
    def final(self) -> dict[Symbol, Term]:
        """What the symbols of the graph stand for."""
        return {bound: Term.of(end) for bound, (end, _) in self.ends.items()}

    def known(self, symbols: Iterable[Symbol]) -> Condition:
        """What is known of the ends: a run that leaves a symbol above its maximum is refused."""
        limits = [conjunction(ge(Term.of(e), 1), le(Term.of(e), Term.of(b))) for b, (e, _) in self.ends.items()]
        for symbol in symbols:
            if symbol.max is not None and self.ends.keys() & symbol.max.symbols:
                limits.append(le(Term.of(symbol), symbol.max.substitute(self.final)))
        return conjunction(*limits)


def final_value(bound: Symbol) -> Symbol:
    """The symbol of what a bound becomes when its loop stops early."""
    return Symbol(f"{bound.name}_found", "bound", max=bound.max, serial=serials.FOUND, min=bound.min)


class Walk:
    """The occurrences and the stopping loops of a program in one scenario."""

    def __init__(self, program: LoopProgram, scenario: Scenario | None = None) -> None:
        self.scenario = scenario or Scenario()
        self.occurrences: list[Occurrence] = []
        self.stops: list[StopLoop] = []
        self._symbols = program.bounds
        self._number = 0
        self._lasts = _lasts(program)
        self._items(program.body, _Around())

    @property
    def found(self) -> Condition:
        """What is known of the final value of a bound: it is a length that the loop which found it has tried."""
        known: list[Condition] = [self.scenario.known(self._symbols)]
        for stop in self.stops:
            final, number = self.scenario.ends.get(stop.stop.bound, (None, None))
            if final is not None and number == stop.number:
                tried = conjunction(stop.domain, eq(stop.stop.length.substitute(stop.values), Term.of(final)))
                known.append(solutions(tried).without(stop.counters).condition())
        return conjunction(*known)

    def _items(self, items: tuple[Item, ...], around: _Around) -> None:
        for position, item in enumerate(items):
            number, self._number = self._number, self._number + 1
            values = {**around.values, **self._bounds(number)}
            here = replace(around, time=(*around.time, position), values=values)
            if isinstance(item, If):
                holds = conjunction(here.domain, item.condition.substitute(values))
                self._items(item.body, replace(here, domain=holds))
            elif isinstance(item, For):
                self._loop(item, number, here)
            else:
                counters = _counters(here)
                self.occurrences.append(
                    Occurrence(item, here.loops, counters, here.domain, here.time, values, here.parallel, here.around)
                )

    def _bounds(self, number: int) -> dict[Symbol, Term]:
        """What the bounds stand for at an item: their final values once the loop that finds them has ended."""
        ends = self.scenario.ends.items()
        return {bound: Term.of(end) for bound, (end, loop) in ends if number > self._lasts[loop]}

    def _loop(self, loop: For, number: int, here: _Around) -> None:
        first, end = loop.first.substitute(here.values), loop.end.substitute(here.values)
        domain = here.domain
        if (end - first) is Term(1):
            counter = first
        else:
            symbol = Symbol(loop.counter.name, "dim", serial=serials.PROVED - len(here.loops))
            counter = Term.of(symbol)
            domain = conjunction(domain, ge(counter, first), lt(counter, end))
        values = {**here.values, loop.counter: counter}
        if loop.stop is not None:
            for bound, (final, stops) in self.scenario.ends.items():
                if stops == number:
                    assert bound is loop.stop.bound
                    domain = conjunction(domain, le(loop.stop.length.substitute(values), Term.of(final)))
        loops, time = (*here.loops, (loop.counter, counter)), (*here.time, counter)
        parallel = (*here.parallel, len(here.time)) if loop.parallel else here.parallel
        inside = _Around(loops, domain, time, values, parallel, (*here.around, loop))
        if loop.stop is not None:
            nested = any(value.symbols & set(_counters(here)) for _, value in here.loops)
            looks = (*time, len(loop.body))
            self.stops.append(StopLoop(loop.stop, number, counter, _counters(inside), domain, looks, values, nested))
        self._items(loop.body, inside)


@dataclass(frozen=True)
class _Around:
    """What encloses an item."""

    loops: tuple[tuple[Symbol, Term], ...] = ()
    domain: Condition = TRUE
    time: Time = ()
    values: Mapping[Symbol, Term] = field(default_factory=dict)
    parallel: tuple[int, ...] = ()
    around: tuple[For, ...] = ()


def _counters(around: _Around) -> tuple[Symbol, ...]:
    """The counters that still vary: a loop of one iteration has its value in place of the counter."""
    found = (s for _, value in around.loops for s in value.symbols if serials.WRITER < s.serial <= serials.PROVED)
    return tuple(dict.fromkeys(found))


def _lasts(program: LoopProgram) -> dict[int, int]:
    """For each item by number, the number of the last item inside it."""
    lasts: dict[int, int] = {}

    def visit(items: tuple[Item, ...], number: int) -> int:
        for item in items:
            own = number
            number = visit(item.body, own + 1) if not isinstance(item, Block) else own + 1
            lasts[own] = number - 1
        return number

    visit(program.body, 0)
    return lasts


def substituted(time: Time, values: Mapping[Symbol, Term]) -> Time:
    """A time with symbols replaced."""
    return tuple(entry if isinstance(entry, int) else entry.substitute(values) for entry in time)


def before(early: Time, late: Time) -> Iterator[Condition]:
    """Conditions, one per level, that together say: `early` comes strictly before `late`."""
    equal: Condition = TRUE
    for a, b in zip(early, late, strict=False):
        less, same = _compared(a, b)
        if (earlier := conjunction(equal, less)) is not FALSE:
            yield earlier
        equal = conjunction(equal, same)
        if equal is FALSE:
            return


def between(early: Time, middle: Time, late: Time) -> Iterator[Condition]:
    """Conditions that together say: `middle` comes strictly after `early` and strictly before `late`."""
    equal: Condition = TRUE
    for level, (a, x, b) in enumerate(zip(early, middle, late, strict=False)):
        if a is not b or isinstance(a, int):  # between equal counters there is no other
            after, until = _compared(a, x), _compared(x, b)
            rest = slice(level + 1, None)
            if after[0] is not FALSE and until[0] is not FALSE:
                yield conjunction(equal, after[0], until[0])
            if after[0] is not FALSE and until[1] is not FALSE:
                for condition in before(middle[rest], late[rest]):
                    yield conjunction(equal, after[0], until[1], condition)
            if after[1] is not FALSE and until[0] is not FALSE:
                for condition in before(early[rest], middle[rest]):
                    yield conjunction(equal, after[1], until[0], condition)
        equal = conjunction(equal, _compared(a, x)[1], _compared(x, b)[1])
        if equal is FALSE:
            return


def carried(early: Time, late: Time, level: int) -> Condition:
    """The condition that two instances are in different iterations of a loop, inside one iteration of those around it.

    `level` is where the counter of the loop stands in both times; the earlier instance comes first.
    """
    same: Condition = TRUE
    for a, b in zip(early[:level], late[:level], strict=True):
        same = conjunction(same, _compared(a, b)[1])
        if same is FALSE:  # they are in different places of the program: what follows cannot be compared
            return FALSE
    return conjunction(same, _compared(early[level], late[level])[0])


def _compared(a: int | Term, b: int | Term) -> tuple[Condition, Condition]:
    """The conditions that one entry of a time is less than another, and that they are equal."""
    if isinstance(a, int) and isinstance(b, int):
        return (TRUE if a < b else FALSE), (TRUE if a == b else FALSE)
    assert isinstance(a, Term)
    assert isinstance(b, Term)
    return lt(a, b), eq(a, b)


def evaluated(term: Term, at: Values) -> int:
    """The value of a term at a witness; what the witness does not mention does not matter."""
    return term.evaluate(lambda symbol: at.get(symbol, 0))
