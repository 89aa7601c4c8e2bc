"""Conditions on index terms, in negation normal form and hash-consed like the terms themselves.

The leaves compare a term with zero (`>= 0`, `== 0`, `!= 0`); inner nodes are conjunctions and disjunctions of
distinct, sorted parts. There is no negation node: `negation` pushes it to the leaves, where it is exact because
terms are integers (`not x >= 0` is `-x - 1 >= 0`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import gcd
from typing import Literal

from polyrhythm.compiler.ir.terms import Extremum, Interned, Symbol, Term, _sum

Relation = Literal[">=", "==", "!="]


class Condition(Interned):
    """A truth value that depends on index terms.

    >>> t, T = Term.of(Symbol("t", "dim")), Term.of(Symbol("T", "bound"))
    >>> str(conjunction(ge(t, 0), lt(t, T))), str(negation(eq(t, 3)))
    ('t < T and t >= 0', 't != 3')
    """

    __slots__ = ("_symbols",)
    _symbols: frozenset[Symbol]

    @property
    def symbols(self) -> frozenset[Symbol]:
        """Every symbol that occurs."""
        try:
            return self._symbols
        except AttributeError:
            self._symbols = self._find_symbols()
            return self._symbols

    def _find_symbols(self) -> frozenset[Symbol]:
        raise NotImplementedError

    def substitute(self, mapping: Mapping[Symbol, Term]) -> Condition:
        """The condition with symbols replaced, all at once."""
        return self if self.symbols.isdisjoint(mapping) else self._substituted(mapping)

    def _substituted(self, mapping: Mapping[Symbol, Term]) -> Condition:
        raise NotImplementedError

    def evaluate(self, lookup: Callable[[Symbol], int]) -> bool:
        """The truth value, given the value of each symbol."""
        raise NotImplementedError

    def _order(self) -> str:
        """What orders conditions: the text, then the serials of its symbols, which the text does not show."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"Condition({self})"


class Compare(Condition):
    """`term >= 0`, `term == 0` or `term != 0`."""

    _names = ("relation", "term")
    __slots__ = _names
    relation: Relation
    term: Term

    def _find_symbols(self) -> frozenset[Symbol]:
        return self.term.symbols

    def _substituted(self, mapping: Mapping[Symbol, Term]) -> Condition:
        return _compare(self.relation, self.term.substitute(mapping))

    def evaluate(self, lookup: Callable[[Symbol], int]) -> bool:
        value = self.term.evaluate(lookup)
        return value >= 0 if self.relation == ">=" else (value == 0) == (self.relation == "==")

    def _order(self) -> str:
        return f"{self}\0{self.term.sort_key()}"

    def __str__(self) -> str:
        left = _sum(0, [(m, c) for m, c in self.term.monomials if c > 0])
        right = _sum(0, [(m, -c) for m, c in self.term.monomials if c < 0])
        constant = self.term.constant
        if self.relation != ">=":
            whole = str(self.term)
            if "%" in whole:
                return f"{whole} {self.relation} 0"
            if any(s.kind == "dim" for s in right.symbols) and all(s.kind != "dim" for s in left.symbols):
                left, right, constant = right, left, -constant
            return f"{left} {self.relation} {right - constant}"
        if right.is_constant:
            return f"{left} >= {-constant}"
        if left.is_constant:
            return f"{right} <= {constant}"
        return f"{right} < {left}" if constant == -1 else f"{right} <= {left + constant}"


class Junction(Condition):
    """`and` or `or` of distinct conditions; of none it is true or false."""

    _names = ("word", "parts")
    __slots__ = _names
    word: Literal["and", "or"]
    parts: tuple[Condition, ...]

    def _find_symbols(self) -> frozenset[Symbol]:
        return frozenset().union(*(part.symbols for part in self.parts))

    def _substituted(self, mapping: Mapping[Symbol, Term]) -> Condition:
        return _replaced(self, tuple([(symbol, mapping[symbol]) for symbol in self.symbols if symbol in mapping]))

    def evaluate(self, lookup: Callable[[Symbol], int]) -> bool:
        combine = all if self.word == "and" else any
        return combine(part.evaluate(lookup) for part in self.parts)

    def _order(self) -> str:
        return f"{self}\0{' '.join(part.sort_key() for part in self.parts)}"

    def __str__(self) -> str:
        if not self.parts:
            return "true" if self.word == "and" else "false"
        shown = (f"({part})" if isinstance(part, Junction) and part.parts else str(part) for part in self.parts)
        return f" {self.word} ".join(shown)


TRUE: Condition = Junction("and", ())
FALSE: Condition = Junction("or", ())


@lru_cache(1 << 15)
def ge(a: Term | int, b: Term | int) -> Condition:
    """`a >= b`"""
    return _compare(">=", Term.of(a) - Term.of(b))


@lru_cache(1 << 15)
def gt(a: Term | int, b: Term | int) -> Condition:
    """`a > b`"""
    return _compare(">=", Term.of(a) - Term.of(b) - 1)


def le(a: Term | int, b: Term | int) -> Condition:
    """`a <= b`"""
    return ge(b, a)


def lt(a: Term | int, b: Term | int) -> Condition:
    """`a < b`"""
    return gt(b, a)


@lru_cache(1 << 15)
def eq(a: Term | int, b: Term | int) -> Condition:
    """`a == b`"""
    return _compare("==", Term.of(a) - Term.of(b))


@lru_cache(1 << 15)
def ne(a: Term | int, b: Term | int) -> Condition:
    """`a != b`"""
    return _compare("!=", Term.of(a) - Term.of(b))


def conjunction(*parts: Condition) -> Condition:
    """All of the parts hold."""
    return _junction("and", parts)


def parts_of(condition: Condition) -> tuple[Condition, ...]:
    """The conditions that together make up one; of one that always holds, none.

    >>> from polyrhythm.compiler.ir.terms import Symbol
    >>> T = Term.of(Symbol("T", "bound"))
    >>> [str(part) for part in parts_of(conjunction(ge(T, 2), ne(T, 5)))]
    ['T != 5', 'T >= 2']
    """
    return condition.parts if isinstance(condition, Junction) and condition.word == "and" else (condition,)


def disjunction(*parts: Condition) -> Condition:
    """At least one of the parts holds."""
    return _junction("or", parts)


def negation(condition: Condition) -> Condition:
    """The condition does not hold."""
    if isinstance(condition, Compare):
        if condition.relation == ">=":
            return _compare(">=", -condition.term - 1)
        return _compare("!=" if condition.relation == "==" else "==", condition.term)
    assert isinstance(condition, Junction)
    word: Literal["and", "or"] = "or" if condition.word == "and" else "and"
    return _junction(word, tuple([negation(part) for part in condition.parts]))


@lru_cache(1 << 14)
def within(symbol: Symbol, extent: Term) -> Condition:
    """`0 <= symbol < extent`"""
    return conjunction(ge(Term.of(symbol), 0), lt(Term.of(symbol), extent))


@lru_cache(1 << 14)
def spread(condition: Condition) -> Condition:
    """The same condition with inequalities between terms instead of their extrema, which are costly to make sets of.

    >>> from polyrhythm.compiler.ir.terms import Symbol, maximum
    >>> t, T = Term.of(Symbol("t", "dim")), Term.of(Symbol("T", "bound"))
    >>> str(spread(ge(t, maximum(Term(1), T))))
    'T <= t and t >= 1'
    """
    if isinstance(condition, Junction):
        combined = conjunction if condition.word == "and" else disjunction
        return combined(*(spread(part) for part in condition.parts))
    assert isinstance(condition, Compare)
    if condition.relation != ">=":
        return condition
    for monomial, factor in condition.term.monomials:
        atom = monomial[0]
        if len(monomial) == 1 and isinstance(atom, Extremum):
            rest = condition.term - Term(0, ((monomial, factor),))
            both = (atom.which == "min") == (factor > 0)
            combined = conjunction if both else disjunction
            return combined(*(spread(ge(argument * factor + rest, 0)) for argument in atom.arguments))
    return condition


def _compare(relation: Relation, term: Term) -> Condition:
    if not term.monomials:
        holds = {">=": term.constant >= 0, "==": term.constant == 0, "!=": term.constant != 0}[relation]
        return TRUE if holds else FALSE
    common = gcd(*(c for _, c in term.monomials))
    if relation != ">=" and term.constant % common:
        return FALSE if relation == "==" else TRUE
    if relation != ">=" and term.monomials[0][1] < 0:
        common = -common
    if common != 1:
        term = _sum(term.constant // common, [(m, c // common) for m, c in term.monomials])
    return Compare(relation, term)  # type: ignore[no-any-return]


@lru_cache(1 << 15)
def _replaced(junction: Junction, changes: tuple[tuple[Symbol, Term], ...]) -> Condition:
    mapping = dict(changes)
    return _junction(junction.word, tuple([part.substitute(mapping) for part in junction.parts]))


@lru_cache(1 << 15)
def _junction(word: Literal["and", "or"], parts: tuple[Condition, ...]) -> Condition:
    absorbing, neutral = (FALSE, TRUE) if word == "and" else (TRUE, FALSE)
    flat: dict[Condition, None] = {}
    for part in parts:
        inner = part.parts if isinstance(part, Junction) and part.word == word else (part,)
        flat.update(dict.fromkeys(inner))
    if absorbing in flat:
        return absorbing
    flat.pop(neutral, None)
    kept = sorted(flat, key=Condition.sort_key)
    return kept[0] if len(kept) == 1 else Junction(word, tuple(kept))
