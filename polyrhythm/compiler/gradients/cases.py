"""Reads at clamped, divided and wrapped steps, as reads whose steps are linear.

A read at `max(0, t - 3)` is one at 0 where t < 3 and one at t - 3 elsewhere: cases that exclude each other and cover
all points, so the gradient of the read is the sum over them, and each is a shifted copy or one sum. A read at `t % 3`
is one at `t - 3 * q` with `q = t // 3`: the quotient is one more unknown, which conditions tie to t. Both are exact,
and the contributions summed for a point are those of the steps that read it, not of all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from polyrhythm.compiler.ir.conditions import TRUE, Condition, conjunction, ge, gt, lt, negation
from polyrhythm.compiler.ir.graph import Access, NodeDim
from polyrhythm.compiler.ir.sets import proves
from polyrhythm.compiler.ir.terms import (
    ZERO,
    Atom,
    Extremum,
    FloorDiv,
    Symbol,
    Term,
    maximum,
    minimum,
    product,
)

MOST_CASES = 8
"""A read in more cases than these is left as it is: the graph would grow by as many parts."""


def by_cases(access: Access, most: int = MOST_CASES) -> Iterator[tuple[Condition, Access]]:
    """A read as reads without `min` and `max` in their points, each where its arguments win.

    Of equal arguments the first wins, so that no point is read in two cases.
    """
    found = next((f for step in access.steps if isinstance(step, Term) for f in _extrema(step)), None)
    if found is None or len(found.arguments) > most:
        yield TRUE, access
        return
    better = gt if found.which == "max" else lt
    for number, term in enumerate(found.arguments):
        wins = conjunction(
            *(better(term, other) for other in found.arguments[:number]),
            *(negation(better(other, term)) for other in found.arguments[number + 1 :]),
        )
        steps = (replaced(step, {found: term}) if isinstance(step, Term) else step for step in access.steps)
        for condition, read in by_cases(Access(access.source, tuple(steps)), most // len(found.arguments)):
            yield conjunction(wins, condition), read


def _extrema(term: Term) -> Iterator[Extremum]:
    """The extrema of a term, the innermost first."""
    for monomial, _ in term.monomials:
        for atom in monomial:
            if isinstance(atom, FloorDiv):
                yield from _extrema(atom.dividend)
            elif isinstance(atom, Extremum):
                for argument in atom.arguments:
                    yield from _extrema(argument)
                yield atom


def replaced(term: Term, instead: dict[Atom, Term]) -> Term:
    """A term with atoms replaced, wherever they occur."""
    total = Term(term.constant)
    for monomial, factor in term.monomials:
        total = total + product([_replaced_atom(atom, instead) for atom in monomial]) * factor
    return total


def _replaced_atom(atom: Atom, instead: dict[Atom, Term]) -> Term:
    if atom in instead:
        return instead[atom]
    if isinstance(atom, FloorDiv):
        return replaced(atom.dividend, instead) // atom.divisor
    if isinstance(atom, Extremum):
        choose = minimum if atom.which == "min" else maximum
        return choose(*(replaced(argument, instead) for argument in atom.arguments))
    return Term.of(atom)


def with_quotients(
    equations: Sequence[tuple[Term, Term]],
    dims: Sequence[NodeDim],
    known: Condition,
    fresh: Callable[[Symbol], Symbol],
) -> tuple[list[tuple[Term, Term]], list[NodeDim], list[Condition]]:
    """Equations with an unknown for each remainder of their unknowns, the dims of these, and what holds of them.

    Only where an unknown occurs both inside a quotient and beside it: `t // 3` alone is a range of steps as it is.
    """
    found, added, conditions = list(equations), list[NodeDim](), list[Condition]()
    extents = {dim.symbol: dim.extent for dim in dims}
    for read, _ in equations:
        for division in _divisions(read):
            dividend, divisor = division.dividend, division.divisor
            unknown = dividend.symbols & extents.keys()
            largest = {s: extents[s] - 1 if dividend.coefficient(s) > 0 else ZERO for s in unknown}
            greatest = dividend.substitute(largest)
            if not any(read.coefficient(s) for s in unknown) or not all(dividend.linear_in(s) for s in unknown):
                continue
            if greatest.symbols & extents.keys() or not proves(known, ge(dividend, 0)):
                continue
            quotient = fresh(min(unknown, key=Symbol.sort_key))
            remainder = dividend - Term.of(quotient) * divisor
            added.append(NodeDim(quotient, greatest // divisor + 1))
            conditions += [ge(remainder, 0), lt(remainder, divisor)]
            found = [(replaced(term, {division: Term.of(quotient)}), wanted) for term, wanted in found]
    return found, added, conditions


def _divisions(term: Term) -> list[FloorDiv]:
    return [m[0] for m, _ in term.monomials if len(m) == 1 and isinstance(m[0], FloorDiv)]
