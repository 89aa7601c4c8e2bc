"""Cutting a fused loop so that no statement needs a guard: prologue, steady state, epilogue.

The members of a loop are active on different ranges of its counter. The loop is cut at the ends of those ranges, in the
order they have for large bounds: those declared first are the smallest, or the largest if only that cuts cleanly
(`large_bounds`; names do not matter). That every member meets all of its iterations for small bounds too is proved;
where the proof fails the loop stays whole. Guards that remain are added by the builder, for whatever the range of a
piece does not imply. A member that is active only at both ends of a loop, as what is defined at the borders of a
stencil is, has two ranges, and what lies in between is left out.

Where a piece of an iteration or two does nearly all that the piece beside it does, and that is much, the two stay
together, and the little that differs gets a guard: code is compiled once instead of twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import Condition, conjunction, disjunction, ge, lt
from polyrhythm.compiler.ir.sets import proves, simplified_term
from polyrhythm.compiler.ir.terms import Symbol, Term, maximum, minimum

Span = tuple[Term, Term]
"""Values of a counter: the first, and the one after the last."""

Ranges = Mapping[str, Sequence[Span]]
"""The spans of the counter in which each member of a loop is active, from early to late."""

LARGE, APART = 10_007, 31
"""A large bound, and how far apart two of them are."""

MOST_SEGMENTS = 12

LARGE_BODY = 40
"""Operations of a body from which on one or two iterations are guarded instead of peeled."""

FEW_ITERATIONS = 2
"""Iterations that are guarded instead of peeled if the body is large."""


IDLE_ITERATIONS = 1_000
"""Idle iterations, at large bounds, from which on a loop is cut in two."""


@dataclass(frozen=True)
class Segment:
    """Iterations from `first` to before `end`, and the members that are active in them."""

    first: Term
    end: Term
    active: tuple[str, ...]

    def holds(self, counter: Symbol) -> Condition:
        return conjunction(ge(Term.of(counter), self.first), lt(Term.of(counter), self.end))


def cut(
    counter: Symbol,
    ranges: Ranges,
    given: Condition,
    nominal: Mapping[Symbol, int],
    weights: Mapping[str, int] | None = None,
) -> list[Segment]:
    """The pieces of a loop in order; one piece with every member in it where it cannot be cut.

    `weights` tells how many operations each member has.
    """
    segments = clean_cut(counter, ranges, given, nominal)
    if segments is not None:
        return _merged(segments, nominal, weights or {})
    first, end = hull([span for spans in ranges.values() for span in spans], given)
    return [Segment(first, end, tuple(ranges))]


def clean_cut(counter: Symbol, ranges: Ranges, given: Condition, nominal: Mapping[Symbol, int]) -> list[Segment] | None:
    """The pieces of a loop in order, or None where that is not proved right or makes too many."""
    ranges = {name: [(first, maximum(first, end)) for first, end in spans] for name, spans in ranges.items()}
    segments = _segments(ranges, given, nominal)
    right = len(segments) <= MOST_SEGMENTS and _right(counter, ranges, segments, given)
    return segments if right else None


def hull(spans: Sequence[Span], given: Condition) -> Span:
    """The span from the first of some spans to the last."""
    first = minimum(*(first for first, _ in spans))
    end = maximum(*(end for _, end in spans))
    return simplified_term(first, given), simplified_term(end, given)


def apart(spans: Sequence[Span], given: Condition, nominal: Mapping[Symbol, int]) -> list[Span]:
    """Some spans in order, as one wherever no long gap is between them."""
    groups: list[list[Span]] = []
    last = 0
    for span in sorted(spans, key=lambda span: nominal_value(span[0], nominal)):
        if groups and nominal_value(span[0], nominal) - last < IDLE_ITERATIONS:
            groups[-1].append(span)
        else:
            groups.append([span])
        last = max(nominal_value(end, nominal) for group in groups for _, end in group)
    return [hull(group, given) for group in groups]


def nominal_value(term: Term, nominal: Mapping[Symbol, int]) -> int:
    """The value of a term when bounds are large."""
    return term.evaluate(lambda symbol: nominal.get(symbol, LARGE))


def large_bounds(bounds: Sequence[Symbol]) -> dict[Symbol, int]:
    """A large value for each bound, growing in the order given; well below that of a bound it may not exceed.

    >>> P, Q = Symbol("P", "bound"), Symbol("Q", "bound")
    >>> large_bounds([P, Q])[P] < large_bounds([P, Q])[Q], large_bounds([Q, P])[P] < large_bounds([Q, P])[Q]
    (True, False)
    """
    place = {bound: APART * number for number, bound in enumerate(bounds)}

    def large(bound: Symbol) -> int:
        limits = [large(limit) // 4 for limit in bound.max.symbols] if bound.max is not None else []
        return min([LARGE, *limits]) + place.get(bound, 0)

    return {bound: large(bound) for bound in bounds}


def _segments(ranges: Ranges, given: Condition, nominal: Mapping[Symbol, int]) -> list[Segment]:
    values = {term: nominal_value(term, nominal) for spans in ranges.values() for ends in spans for term in ends}
    cuts: dict[int, Term] = {}
    for term, value in values.items():
        if value not in cuts or term.is_constant:
            cuts[value] = term
    places = sorted(cuts)
    segments = []
    first = cuts[places[0]]
    for low, high in pairwise(places):
        # For small bounds the cuts may come in another order: no piece begins before the one before it ended.
        end = simplified_term(maximum(first, cuts[high]), given)
        active = tuple(
            name
            for name, spans in ranges.items()
            if any(values[start] <= low and values[stop] >= high for start, stop in spans)
        )
        if active:
            segments.append(Segment(first, end, active))
        first = end
    return segments


def _merged(segments: Sequence[Segment], nominal: Mapping[Symbol, int], weights: Mapping[str, int]) -> list[Segment]:
    """The pieces, those that do much the same in few iterations joined to their neighbours."""
    merged: list[Segment] = []
    for segment in segments:
        before = merged[-1] if merged else None
        if before is not None and _alike(before, segment, nominal, weights):
            active = (*before.active, *(name for name in segment.active if name not in before.active))
            merged[-1] = Segment(before.first, segment.end, active)
        else:
            merged.append(segment)
    return merged


def _alike(a: Segment, b: Segment, nominal: Mapping[Symbol, int], weights: Mapping[str, int]) -> bool:
    shortest = min(nominal_value(s.end, nominal) - nominal_value(s.first, nominal) for s in (a, b))
    shared = sum(weights.get(name, 0) for name in a.active if name in b.active)
    apart = sum(weights.get(name, 0) for name in {*a.active} ^ {*b.active})
    return a.end is b.first and shortest <= FEW_ITERATIONS and shared >= LARGE_BODY and 4 * apart <= shared


def _right(counter: Symbol, ranges: Ranges, segments: Sequence[Segment], given: Condition) -> bool:
    """Whether every member meets all of its iterations, and the pieces come in order."""
    for name, (first, end) in ((name, span) for name, spans in ranges.items() for span in spans):
        own = conjunction(given, ge(Term.of(counter), first), lt(Term.of(counter), end))
        covered = disjunction(*(s.holds(counter) for s in segments if name in s.active))
        if not proves(own, covered):
            return False
    other = Symbol(counter.name, "dim", serial=serials.ANOTHER)
    for number, early in enumerate(segments):
        for late in segments[number + 1 :]:
            both = conjunction(given, early.holds(counter), late.holds(other))
            if not proves(both, lt(Term.of(counter), Term.of(other))):
                return False
    return True
