"""Lengths as values: index terms and conditions of a row's length, computed by ordinary operations.

In the rectangular graph the length of a row is a number that is read, not a symbol: `S - 1` becomes the value of
`lengths[b]` less one. Terms without such a length stay terms. Every ragged bound also has a plain bound, the longest
row, which takes its place where storage and loops are sized.

What a caller must know of a program with rows of different lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from polyrhythm.compiler.ir.conditions import Compare, Condition, Junction
from polyrhythm.compiler.ir.graph import Access
from polyrhythm.compiler.ir.intervals import interval
from polyrhythm.compiler.ir.terms import Atom, FloorDiv, Symbol, Term
from polyrhythm.compiler.ir.values import Space, Value
from polyrhythm.source import Source


@dataclass(frozen=True)
class Longest:
    """The bound that is the longest row of a ragged dim, and where the lengths come from.

    `given` names the input that has the lengths, if one has; otherwise `output` is the number of the output in which
    the program returns them, so that they can be checked.
    """

    bound: Symbol  # the ragged bound
    longest: Symbol
    lengths: Access
    given: str | None
    output: int | None
    at: Source | None = field(default=None, compare=False)


@dataclass(frozen=True)
class OutputRows:
    """Which axis of an output has rows of different lengths, and the number of the output that has the lengths.

    With `cut` all rows have the one length that was found, and the axis is merely cut to it.
    """

    axis: int
    lengths: int
    cut: bool = False


@dataclass(frozen=True)
class Rows:
    """The ragged bounds of a program and its ragged outputs; the first `count` outputs are the user's."""

    count: int
    longest: tuple[Longest, ...] = ()
    outputs: dict[int, OutputRows] = field(default_factory=dict)
    names: frozenset[str] = frozenset()  # ragged inputs


__all__ = ["Longest", "OutputRows", "Rows"]


INT32 = np.dtype("int32")


@dataclass(frozen=True)
class Lengths:
    """The bounds that are data: `longest` is the plain bound of each, `reads` where its value is at a point."""

    longest: Mapping[Symbol, Symbol]
    reads: Mapping[Symbol, Access]

    def vary(self, symbols: Iterable[Symbol]) -> bool:
        """Whether a length that is data is among some symbols."""
        return any(symbol in self.reads for symbol in symbols)

    def widest(self, term: Term) -> Term:
        """The most that a length can be for any row: of the longest row where it grows with the row."""
        if not self.vary(term.symbols):
            return term
        ranges = {s: (Term(s.min), Term.of(self.longest[s])) for s in term.symbols if s in self.reads}
        return interval(term, ranges)[1]

    def value(self, space: Space, term: Term) -> Value:
        """A term as a value at the current point."""
        if not self.vary(term.symbols):
            return space.apply("index", value=term)
        plain = [(m, c) for m, c in term.monomials if not self.vary(Term(0, ((m, c),)).symbols)]
        total = space.apply("index", value=Term(term.constant, tuple(plain))) if plain or term.constant else None
        for monomial, coefficient in term.monomials:
            if (monomial, coefficient) in plain:
                continue
            part = self._atom(space, monomial[0])
            for atom in monomial[1:]:
                part = part * self._atom(space, atom)
            part = part if coefficient == 1 else part * coefficient
            total = part if total is None else total + part
        assert total is not None
        return total

    def _atom(self, space: Space, atom: Atom) -> Value:
        if isinstance(atom, Symbol):
            if atom not in self.reads:
                return space.apply("index", value=Term.of(atom))
            return space.read(self.reads[atom]).cast(INT32)
        if isinstance(atom, FloorDiv):
            return self.value(space, atom.dividend).apply("floordiv", space.constant(atom.divisor, INT32))
        first, *rest = (self.value(space, argument) for argument in atom.arguments)
        for other in rest:
            first = first.apply("minimum" if atom.which == "min" else "maximum", other)
        return first

    def truth(self, space: Space, condition: Condition) -> Value:
        """A condition as a truth value at the current point."""
        if not self.vary(condition.symbols):
            return space.apply("index", value=condition)
        if isinstance(condition, Compare):
            zero = space.constant(0, INT32)
            value = self.value(space, condition.term)
            return {
                ">=": lambda: zero.apply("le", value),
                "==": lambda: value.apply("eq", zero),
                "!=": lambda: value.apply("ne", zero),
            }[condition.relation]()
        assert isinstance(condition, Junction)
        first, *rest = (self.truth(space, part) for part in condition.parts)
        for other in rest:
            first = first.apply(condition.word, other)
        return first

    def inside(self, space: Space, length: Term, size: Term) -> Value:
        """Which of `size` positions lie before a length."""
        return space.apply("iota", length=size).apply("lt", self.value(space, length))


def masked(lengths: Lengths, value: Value, axis: int, length: Term, fill: Value | int | float) -> Value:
    """A value with what lies beyond a length along an axis replaced: once for all steps that read the same."""
    rank, space = len(value.shape), value.space
    read = value.access.symbols | length.symbols
    used = read.union(*(s.over for s in read), *(lengths.reads[s].symbols for s in read if s in lengths.reads))
    dims = tuple(dim for dim in space.dims if dim.symbol in used)
    narrow = replace(space, dims=dims) if not isinstance(fill, Value) else space
    inside = lengths.inside(narrow, length, value.shape[axis])
    if rank > 1:
        shape = tuple(value.shape[axis] if i == axis else Term(1) for i in range(rank))
        inside = inside.apply("reshape", shape=shape)
    chosen = Value(narrow, value.access, value.type).where(inside, fill)
    return space.read(chosen.access)


__all__ = ["INT32", "Lengths", "masked"]
