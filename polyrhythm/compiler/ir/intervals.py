"""Upper and lower bounds of terms by interval arithmetic.

Used to size what varies: the capacity of an axis of length `t + 1` is the largest value it takes, `T`. The bounds hold
always; they need not be the tightest. A `min` or `max` is taken out of its sum first, so that the length
`t + 1 - max(0, t - 3)` of a window is at most 4.
"""

from __future__ import annotations

from collections.abc import Mapping

from polyrhythm.compiler.ir.terms import ZERO, Atom, Extremum, FloorDiv, Symbol, Term, maximum, minimum

Interval = tuple[Term, Term]
"""The least and the greatest value, as terms of bounds and sizes."""


def interval(term: Term, ranges: Mapping[Symbol, Interval]) -> Interval:
    """Between which values a term lies, given those of some symbols; other symbols stand for themselves.

    >>> t, T = Symbol("t", "dim"), Term.of(Symbol("T", "bound"))
    >>> low, high = interval(T - Term.of(t), {t: (ZERO, T - 1)})
    >>> str(low), str(high)
    ('1', 'T')
    >>> _, longest = interval(Term.of(t) + 1 - maximum(ZERO, Term.of(t) - 3), {t: (ZERO, T - 1)})
    >>> str(longest)
    'min(4, T)'
    """
    for monomial, coefficient in term.monomials:
        atom = monomial[0]
        if len(monomial) == 1 and isinstance(atom, Extremum) and _varies(atom, ranges):
            rest = term - Term(0, ((monomial, coefficient),))
            branches = [interval(rest + argument * coefficient, ranges) for argument in atom.arguments]
            choose = maximum if (atom.which == "max") == (coefficient > 0) else minimum
            return choose(*(low for low, _ in branches)), choose(*(high for _, high in branches))
    low = high = Term(term.constant)
    for monomial, coefficient in term.monomials:
        least, greatest = Term(1), Term(1)
        for atom in monomial:
            small, large = _atom(atom, ranges)
            if len(monomial) > 1:  # products are of lengths, which are not negative
                small, large = maximum(ZERO, small), maximum(ZERO, large)
            least, greatest = least * small, greatest * large
        if coefficient < 0:
            least, greatest = greatest, least
        low, high = low + least * coefficient, high + greatest * coefficient
    return low, high


def most(term: Term, capacities: Mapping[Symbol, int]) -> int:
    """The most a length can be when each of its bounds is anything up to a capacity.

    >>> P, T = Symbol("P", "bound"), Symbol("T", "bound")
    >>> most(Term.of(T) - Term.of(P) + 1, {P: 8, T: 8})
    9
    """
    ranges = {symbol: (ZERO, Term(capacities[symbol])) for symbol in term.symbols}
    return max(0, interval(term, ranges)[1].constant)


def _varies(atom: Extremum, ranges: Mapping[Symbol, Interval]) -> bool:
    return any(not argument.symbols.isdisjoint(ranges) for argument in atom.arguments)


def _atom(atom: Atom, ranges: Mapping[Symbol, Interval]) -> Interval:
    if isinstance(atom, Symbol):
        return ranges.get(atom, (Term.of(atom), Term.of(atom)))
    if isinstance(atom, FloorDiv):
        low, high = interval(atom.dividend, ranges)
        return low // atom.divisor, high // atom.divisor
    assert isinstance(atom, Extremum)
    choose = minimum if atom.which == "min" else maximum
    lows, highs = zip(*(interval(argument, ranges) for argument in atom.arguments), strict=True)
    return choose(*lows), choose(*highs)
