"""Proofs about conditions, cheapest first.

A claim that is a part of what is known needs no set at all; the rest is asked of integer sets one comparison at a
time. What the user must fulfil at the call (the requirements of the graph) is used only where a proof fails without
it, so that most sets have few columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from polyrhythm.compiler.ir.conditions import (
    FALSE,
    TRUE,
    Condition,
    conjunction,
    eq,
    ge,
    le,
    negation,
    parts_of,
    spread,
)
from polyrhythm.compiler.ir.sets import Points, facts, points, solutions, with_facts
from polyrhythm.compiler.ir.terms import Symbol, Term, ordered

Values = Mapping[Symbol, int]


@dataclass
class Prover:
    """Answers questions under the requirements of one program; remembers the answers."""

    required: Condition = TRUE
    _impossible: dict[Condition, bool] = field(default_factory=dict)

    def impossible(self, *parts: Condition) -> bool:
        """Whether no integers satisfy all parts."""
        condition = spread(conjunction(*parts))
        if condition is FALSE or condition is TRUE:
            return condition is FALSE
        if condition not in self._impossible:
            known = with_facts(condition)
            empty = known is FALSE or solutions(known).is_empty
            if not empty and self.required is not TRUE:
                empty = solutions(self._with_required(condition)).is_empty
            self._impossible[condition] = empty
        return self._impossible[condition]

    def implied(self, given: Condition, claim: Condition) -> bool:
        """Whether a claim holds wherever `given` does."""
        known = set(parts_of(given))
        return all(part in known or self.impossible(given, negation(part)) for part in parts_of(claim))

    def same(self, a: Term, b: Term, given: Condition) -> bool:
        """Whether two terms have the same value wherever `given` holds."""
        return a is b or self.implied(given, eq(a, b))

    def example(self, *parts: Condition) -> dict[Symbol, int]:
        """The smallest integers that satisfy all parts; there must be some."""
        found = _smallest(solutions(self._with_required(conjunction(*parts))))
        assert found is not None
        return found

    def witness(self, *parts: Condition) -> dict[Symbol, int] | None:
        """The smallest integers that satisfy all parts, if there are any."""
        return None if self.impossible(*parts) else self.example(*parts)

    def violation(self, given: Condition, claim: Condition) -> dict[Symbol, int] | None:
        """The smallest integers at which a claim does not hold although `given` does, if there are any."""
        return None if self.implied(given, claim) else self.example(given, negation(claim))

    def uncovered(self, whole: Condition, pieces: Sequence[Piece]) -> dict[Symbol, int] | None:
        """The smallest point of `whole` that is in no piece, or None where they cover it."""
        if any(not piece.unknowns and self.implied(whole, piece.condition) for piece in pieces[:1]):
            return None
        if self.impossible(whole):
            return None
        mentioned = set(whole.symbols).union(*(piece.condition.symbols - set(piece.unknowns) for piece in pieces))
        full = conjunction(whole, facts(frozenset(mentioned)))
        columns = ordered(full.symbols | mentioned)
        rest = points(spread(full), columns)
        for piece in pieces:
            rest = rest - piece.projected(columns)
            if rest.is_empty:
                return None
        if self.required is not TRUE:
            columns = ordered({*columns, *self.required.symbols})
            rest = rest & points(with_facts(self.required), ordered(self.required.symbols))
        return _smallest(rest)

    def _with_required(self, condition: Condition) -> Condition:
        whole = spread(conjunction(condition, self.required))
        return with_facts(whole)


@dataclass(frozen=True)
class Piece:
    """The points that satisfy a condition for some values of the unknowns."""

    condition: Condition
    unknowns: tuple[Symbol, ...]

    def projected(self, columns: tuple[Symbol, ...]) -> Points:
        return points(spread(self.condition), (*columns, *self.unknowns)).without(self.unknowns)


@dataclass(frozen=True)
class Solution:
    """Some unknowns as terms of the rest; what the equations say besides; and the unknowns that are left."""

    values: Mapping[Symbol, Term]
    left: Condition
    unknowns: tuple[Symbol, ...]


def solve(equations: Iterable[tuple[Term, Term]], unknowns: Iterable[Symbol]) -> Solution:
    """Solve what can be solved by inspection: an unknown that occurs once, alone, with coefficient 1 or -1."""
    return _solve(tuple(equations), tuple(unknowns))


@lru_cache(1 << 14)
def _solve(equations: tuple[tuple[Term, Term], ...], unknowns: tuple[Symbol, ...]) -> Solution:
    open_unknowns = set(unknowns)
    values: dict[Symbol, Term] = {}
    pending = [a - b for a, b in equations if a is not b]
    progress = True
    while progress:
        progress = False
        for number, difference in enumerate(pending):
            term = pending[number] = difference.substitute(values)
            candidates = [s for s in term.symbols if s in open_unknowns]
            if len(candidates) == 1 and term.linear_in(candidates[0]) and abs(term.coefficient(candidates[0])) == 1:
                (symbol,) = candidates
                factor = term.coefficient(symbol)
                values[symbol] = Term.of(symbol) - term * factor
                open_unknowns.discard(symbol)
                pending[number] = Term(0)
                progress = True
    left = conjunction(*(eq(term.substitute(values), 0) for term in pending))
    return Solution(values, left, tuple(s for s in unknowns if s in open_unknowns))


def _smallest(found: Points) -> dict[Symbol, int] | None:
    """The smallest point. Of some sets with remainders isl finds none although there is (islpy 2026.2.2)."""
    try:
        return found.smallest()
    except Exception:
        for size in (4, 8, 16, 32, 64):
            sides = (conjunction(ge(Term.of(c), -size), le(Term.of(c), size)) for c in found.columns)
            inside = (found & points(conjunction(*sides), found.columns)).every()
            if inside:
                return min(inside, key=lambda point: tuple(point.values()))
        raise
