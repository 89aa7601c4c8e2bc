"""Calls of host functions that share an effect run in the order of the language.

That is: lexicographic in the dims of all calls of the effect, in order of first appearance; then as written. A call
that lacks a dim which others have comes before their loop over it if it was written before the first of them, and
after it otherwise. That each call happens exactly once per point is part of completeness, provided all results of a
call are made in one block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import TRUE, Condition, conjunction, eq, lt
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.legality.instances import before, substituted
from polyrhythm.compiler.legality.subject import Computation, Subject, failure, has_effect

Calls = dict[int, list[Computation]]


def check_effects(subject: Subject) -> None:
    """Prove that effects happen in order; raise an IllegalProgramError otherwise."""
    effects: dict[str, Calls] = {}
    for computations in subject.computations.values():
        calls: dict[int, list[Computation]] = {}
        for computation in computations:
            if has_effect(computation):
                calls.setdefault(computation.definition.attributes["call"], []).append(computation)
        for call, made in calls.items():
            _check_whole(subject, call, made)
            effect = made[0].definition.attributes["function"].effect
            effects.setdefault(effect, {}).setdefault(call, []).append(made[0])
            _check_sequential(subject, made[0])
    for effect, found in effects.items():
        order = _Order({call: found[call][0].node.symbols for call in sorted(found)})
        occurrences = [(call, computation) for call, made in found.items() for computation in made]
        for early, one in occurrences:
            for late, other in occurrences:
                _check_order(subject, effect, order, (early, one), (late, other))


def _check_whole(subject: Subject, call: int, made: list[Computation]) -> None:
    """One block makes all results of a call, or it would be called again for the others."""
    wanted = {
        node.name
        for node in subject.graph
        for definition in node.definitions
        if definition.op == "host" and definition.attributes["call"] == call
    }
    if {computation.node.name for computation in made} != wanted:
        at = subject.prover.example(made[0].occurrence.domain)
        what = f"{made[0].compute.attributes['function']} is called for some of its results only"
        raise failure("effects", what, made[0].occurrence, at, made[0].at)


def _check_sequential(subject: Subject, computation: Computation) -> None:
    """No loop around a call with an effect is parallel, unless it has a single iteration."""
    occurrence = computation.occurrence
    for level in occurrence.parallel:
        counter = occurrence.time[level]
        if isinstance(counter, Term) and counter.symbols & set(occurrence.counters):
            at = subject.prover.example(occurrence.domain)
            what = f"{computation.compute.attributes['function']} has an effect and is called in a parallel loop"
            raise failure("parallel", what, occurrence, at, computation.at)


class _Order:
    """The order of the calls of one effect; `dims` gives those of each call, in the order they were written."""

    def __init__(self, dims: Mapping[int, tuple[Symbol, ...]]) -> None:
        self.own = dims
        self.dims = tuple(dict.fromkeys(symbol for symbols in dims.values() for symbol in symbols))
        self.first = {s: next(call for call, symbols in dims.items() if s in symbols) for s in self.dims}

    def precedes(
        self, early: int, here: Mapping[Symbol, Term], late: int, there: Mapping[Symbol, Term]
    ) -> Iterator[Condition]:
        """Conditions that together say: one call at a point comes before another call at another point."""
        equal: Condition = TRUE
        for symbol in self.dims:
            a, b = self._side(early, symbol), self._side(late, symbol)
            if a == b == 0:
                yield conjunction(equal, lt(here[symbol], there[symbol]))
                equal = conjunction(equal, eq(here[symbol], there[symbol]))
            elif a != b:
                if a < b:
                    yield equal
                return
        if early < late:
            yield equal

    def _side(self, call: int, symbol: Symbol) -> int:
        """Whether a call is before the loop over a dim (-1), inside (0), or after it (1)."""
        if symbol in self.own[call]:
            return 0
        return -1 if call < self.first[symbol] else 1


def _check_order(
    subject: Subject, effect: str, order: _Order, early: tuple[int, Computation], late: tuple[int, Computation]
) -> None:
    (first, one), (second, other) = early, late
    roles = other.occurrence.role(serials.WRITER)
    there = {symbol: term.substitute(roles) for symbol, term in other.steps.items()}
    domains = conjunction(one.occurrence.domain, other.occurrence.domain.substitute(roles))
    time = substituted(other.call_time, roles)
    for demanded in order.precedes(first, one.steps, second, there):
        for late_first in before(time, one.call_time):
            if (at := subject.prover.witness(domains, demanded, late_first)) is not None:
                name, instance = other.compute.attributes["function"], other.occurrence.shown(at, roles)
                what = (
                    f"{one.compute.attributes['function']} is called after {name}, against the order of effect {effect}"
                )
                outcome = f"{one.occurrence.shown(at)} must come before {instance}"
                raise failure("effects", what, one.occurrence, at, one.at, outcome)
