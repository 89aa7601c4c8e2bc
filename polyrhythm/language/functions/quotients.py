"""Exact division of symbolic sizes, for the length that `reshape` works out.

A size is a product of lengths, each an integer polynomial over symbols. Equal factors cancel first, which settles
most cases (`(T, 4) -> (-1, T)`); what remains is divided as polynomials.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from polyrhythm.compiler.ir.terms import ZERO, Monomial, Term, product


def divided(lengths: Iterable[Term], by: Iterable[Term]) -> Term | None:
    """The quotient of two products of lengths, or None where it is not a polynomial.

    >>> from polyrhythm.compiler.ir.terms import Symbol
    >>> T = Term.of(Symbol("T", "bound"))
    >>> str(divided([T + 1, Term(6)], [Term(2), T + 1])), divided([T], [Term(2)])
    ('3', None)
    """
    above, below = Counter(lengths), Counter(by)
    common = above & below
    rest, divisor = product((above - common).elements()), product((below - common).elements())
    if divisor is ZERO:
        return None
    quotient = ZERO
    lead, factor = _leading(divisor)
    while rest is not ZERO:
        monomial, coefficient = _leading(rest)
        left = Counter(monomial)
        left.subtract(lead)
        if coefficient % factor or min(left.values(), default=0) < 0:
            return None
        atoms = tuple(sorted(left.elements(), key=lambda atom: atom.sort_key()))
        step = Term(0, ((atoms, coefficient // factor),)) if atoms else Term(coefficient // factor)
        quotient, rest = quotient + step, rest - step * divisor
    return quotient


def _leading(term: Term) -> tuple[Monomial, int]:
    """The monomial that comes first in an order that products respect: by degree, then by powers of the atoms."""
    entries = [*term.monomials, ((), term.constant)] if term.constant else list(term.monomials)
    atoms = sorted({atom.sort_key() for monomial, _ in entries for atom in monomial})
    return max(entries, key=lambda entry: (len(entry[0]), _powers(entry[0], atoms)))


def _powers(monomial: Monomial, atoms: list[str]) -> list[int]:
    powers = Counter(atom.sort_key() for atom in monomial)
    return [powers[atom] for atom in atoms]
