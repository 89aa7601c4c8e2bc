"""Symbolic integer expressions: what shapes, traffic, memory and work are written in.

An expression is a polynomial with integer coefficients over *atoms*: symbols bound by name when the metric is
evaluated, rounded-up quotients, the indicator "is positive", and sums over the copies of a replicated node.
Polynomials are kept in one normal form, so two expressions are equal exactly when their normal forms are; that is
all the algebra that shapes need, and the reason a computer-algebra package would be too much here.

A symbol may be *indexed*: `tokens[i]`, one value for each copy of a replicated node. An indexed expression
evaluates to an array; `polyrhythm.stream.expr` sums, joins and splits such expressions.

Expressions over the copies of a replicated node: sums, maxima, interleaving, and sizes that vary.

A replicated node has one set of formulae for all its copies. What is the same in all copies is a plain expression, what
differs is an indexed one. Joining copies adds counts up; the size of their elements then varies within one stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, Union

import numpy as np

from polyrhythm.stream.errors import UnboundSymbol

Number = Union[int, "np.ndarray"]
Bindings = Mapping[str, Union[int, Sequence[int], "np.ndarray"]]
ExprLike = Union[int, "Expr"]


@dataclass(frozen=True)
class Symbol:
    """A named unknown; `size` copies of it when indexed, one when None."""

    name: str
    size: int | None = None

    def __str__(self) -> str:
        return self.name if self.size is None else f"{self.name}[i]"


@dataclass(frozen=True)
class CeilDiv:
    """The quotient rounded up."""

    numerator: Expr
    denominator: Expr

    def __str__(self) -> str:
        return f"ceil(({self.numerator})/{self.denominator})"


@dataclass(frozen=True)
class Positive:
    """1 where the argument is positive, else 0."""

    argument: Expr

    def __str__(self) -> str:
        return f"[{self.argument} > 0]"


@dataclass(frozen=True)
class Folded:
    """The sum or the maximum of `count` indexed values in `parts` consecutive groups; one group gives a number."""

    how: Literal["sum", "max"]
    argument: Expr
    count: int
    parts: int

    def __str__(self) -> str:
        where = "i" if self.parts == 1 or self.how == "max" else f"i in group of {self.count // self.parts}"
        return f"{self.how}_{where}({self.argument})"


@dataclass(frozen=True)
class Varying:
    """A size that differs between the elements of one stream: its largest value, and its sum over `count` of them.

    Memory must hold the largest, so that is its value; work adds up, so `summed` uses the sum. Copies with
    elements of size `each` were joined by the selector named `by`; where it parts them, their sizes are known again.
    """

    largest: Expr
    sum_of_sizes: Expr
    count: Expr
    each: Expr
    by: str

    def __str__(self) -> str:
        return str(self.largest)


@dataclass(frozen=True)
class Concatenation:
    """The copies of several expressions, interleaved: entry i of part j is entry i * len(parts) + j."""

    parts: tuple[Expr, ...]
    copies: int

    def __str__(self) -> str:
        return "(" + ", ".join(map(str, self.parts)) + ")[i]"


@dataclass(frozen=True)
class Pick:
    """Every `step`-th entry of an indexed expression, from `index` on; one number when `copies` is 1."""

    argument: Expr
    index: int
    step: int
    copies: int

    def __str__(self) -> str:
        return f"({self.argument})[{self.index}::{self.step}]"


Atom = Symbol | CeilDiv | Positive | Folded | Varying | Concatenation | Pick
Monomial = tuple[Atom, ...]


@dataclass(frozen=True)
class Expr:
    """A polynomial in normal form: sorted (monomial, coefficient) pairs without zeros.

    >>> n = symbol("n")
    >>> print(2 * n * n + 3 - n * 2 * n)
    3
    >>> (n + 1) * (n + 1) == n * n + 2 * n + 1
    True
    """

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: ExprLike) -> Expr:
        collected = dict(self.terms)
        for monomial, coefficient in as_expr(other).terms:
            collected[monomial] = collected.get(monomial, 0) + coefficient
        return _normal(collected)

    def __mul__(self, other: ExprLike) -> Expr:
        collected: dict[Monomial, int] = {}
        for left, left_coefficient in self.terms:
            for right, right_coefficient in as_expr(other).terms:
                monomial = _monomial(left + right)
                collected[monomial] = collected.get(monomial, 0) + left_coefficient * right_coefficient
        return _normal(collected)

    def __sub__(self, other: ExprLike) -> Expr:
        return self + as_expr(other) * -1

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: ExprLike) -> Expr:
        return as_expr(other) - self

    @property
    def constant(self) -> int | None:
        """The value when no atom occurs, else None.

        >>> (symbol("n") - symbol("n") + 4).constant
        4
        """
        return sum(value for _, value in self.terms) if all(not monomial for monomial, _ in self.terms) else None

    def __str__(self) -> str:
        return " + ".join(_term_text(monomial, coefficient) for monomial, coefficient in self.terms) or "0"

    def symbols(self) -> frozenset[Symbol]:
        """Every symbol that occurs.

        >>> sorted(s.name for s in (symbol("n") * ceil_div(symbol("m"), 4)).symbols())
        ['m', 'n']
        """
        atoms = [atom for monomial, _ in self.terms for atom in monomial]
        inner = [child.symbols() for atom in atoms for child in _children(atom)]
        return frozenset(atom for atom in atoms if isinstance(atom, Symbol)).union(*inner)

    @property
    def indexed(self) -> bool:
        """Whether the value differs between the copies of a replicated node.

        >>> symbol("tokens", 8).indexed, symbol("batch").indexed
        (True, False)
        """
        return any(is_indexed(atom) for monomial, _ in self.terms for atom in monomial)

    def evaluate(self, bindings: Bindings) -> Number:
        """The value with every symbol replaced by its binding; an array when indexed.

        >>> (2 * symbol("n") + 1).evaluate({"n": 5})
        11
        >>> ceil_div(symbol("tokens", 3), 4).evaluate({"tokens": [0, 4, 5]}).tolist()
        [0, 1, 2]
        """
        factors = ([_evaluate_atom(atom, bindings) for atom in monomial] for monomial, _ in self.terms)
        return sum(prod(own, start=value) for own, (_, value) in zip(factors, self.terms, strict=True))


def as_expr(value: ExprLike) -> Expr:
    """An expression from an int or an expression.

    >>> as_expr(3).constant
    3
    """
    if isinstance(value, Expr):
        return value
    return Expr((((), int(value)),)) if value else Expr(())


def symbol(name: str, size: int | None = None) -> Expr:
    """A named unknown, indexed when there are several.

    >>> print(symbol("tokens", 8), symbol("tokens", 1))
    tokens[i] tokens
    """
    return from_atom(Symbol(name, None if size == 1 else size))


def ceil_div(numerator: ExprLike, denominator: ExprLike) -> Expr:
    """The quotient rounded up.

    >>> ceil_div(7, 2).constant
    4
    """
    top, bottom = as_expr(numerator), as_expr(denominator)
    if bottom.constant == 1:
        return top
    if top.constant is not None and bottom.constant is not None:
        return as_expr(-(-top.constant // bottom.constant))
    if bottom.constant and all(coefficient % bottom.constant == 0 for _, coefficient in top.terms):
        return Expr(tuple((monomial, coefficient // bottom.constant) for monomial, coefficient in top.terms))
    return from_atom(CeilDiv(top, bottom))


def positive(argument: ExprLike) -> Expr:
    """1 where the argument is positive, else 0. Sizes are never negative, so factors may be dropped.

    >>> print(positive(3 * ceil_div(symbol("n"), 16)))
    [n > 0]
    """
    value = as_expr(argument)
    if value.constant is not None:
        return as_expr(int(value.constant > 0))
    if len(value.terms) == 1 and value.terms[0][1] > 0:
        factors = sorted({_positive_core(atom) for atom in value.terms[0][0]}, key=str)
        return prod((from_atom(Positive(core)) for core in factors), start=as_expr(1))
    return from_atom(Positive(value))


def from_atom(atom: Atom) -> Expr:
    """The expression that consists of one atom."""
    return Expr((((atom,), 1),))


def _normal(collected: dict[Monomial, int]) -> Expr:
    kept = [(monomial, value) for monomial, value in collected.items() if value]
    return Expr(tuple(sorted(kept, key=lambda term: (len(term[0]), tuple(map(str, term[0]))))))


def _monomial(atoms: Monomial) -> Monomial:
    """Sorted atoms; an indicator is dropped beside what it indicates, and counted once."""
    cores = {_positive_core(atom) for atom in atoms if not isinstance(atom, Positive)}
    kept: list[Atom] = []
    for atom in atoms:
        if isinstance(atom, Positive) and (atom.argument in cores or atom in kept):
            continue
        kept.append(atom)
    return tuple(sorted(kept, key=str))


def _positive_core(atom: Atom) -> Expr:
    """The simplest expression that is positive exactly when the atom is."""
    if isinstance(atom, Positive):
        return atom.argument
    if isinstance(atom, CeilDiv) and len(atom.numerator.terms) == 1:
        monomial, coefficient = atom.numerator.terms[0]
        if coefficient > 0 and len(monomial) == 1:
            return _positive_core(monomial[0])
    return from_atom(atom)


def _term_text(monomial: Monomial, coefficient: int) -> str:
    factors = [str(atom) for atom in monomial]
    if coefficient != 1 or not factors:
        factors.insert(0, str(coefficient))
    return "*".join(factors)


def _children(atom: Atom) -> list[Expr]:
    parts = [part for value in vars(atom).values() for part in (value if isinstance(value, tuple) else (value,))]
    return [part for part in parts if isinstance(part, Expr)]


def is_indexed(atom: Atom) -> bool:
    """Whether the value of an atom differs between copies."""
    if isinstance(atom, Symbol):
        return atom.size is not None
    if isinstance(atom, Pick | Folded):
        return (atom.copies if isinstance(atom, Pick) else atom.parts) > 1
    if isinstance(atom, Varying):
        return atom.largest.indexed
    return isinstance(atom, Concatenation) or any(child.indexed for child in _children(atom))


def _evaluate_atom(atom: Atom, bindings: Bindings) -> Number:
    if isinstance(atom, Symbol):
        if atom.name not in bindings:
            raise UnboundSymbol(
                f"the symbol {atom.name} has no value", fix=f"add {atom.name!r} to the bindings of evaluate"
            )
        value = bindings[atom.name]
        return np.asarray(value, dtype=np.int64) if atom.size is not None else int(np.asarray(value).item())
    if isinstance(atom, CeilDiv):
        return -(-atom.numerator.evaluate(bindings) // atom.denominator.evaluate(bindings))
    if isinstance(atom, Varying):
        return atom.largest.evaluate(bindings)
    if isinstance(atom, Positive):
        value = atom.argument.evaluate(bindings)
        return (value > 0).astype(np.int64) if isinstance(value, np.ndarray) else int(value > 0)
    if isinstance(atom, Concatenation):
        columns = [np.broadcast_to(part.evaluate(bindings), (atom.copies,)) for part in atom.parts]
        return np.stack(columns, axis=1).ravel()
    if isinstance(atom, Pick):
        picked = np.asarray(atom.argument.evaluate(bindings))[atom.index :: atom.step]
        return int(picked[0]) if atom.copies == 1 else picked
    values = np.broadcast_to(np.asarray(atom.argument.evaluate(bindings)), (atom.count,))
    groups = values.reshape(atom.parts, atom.count // atom.parts)
    reduced = groups.max(axis=1) if atom.how == "max" else groups.sum(axis=1)
    return int(reduced[0]) if atom.parts == 1 else reduced


def total(argument: ExprLike, count: int, parts: int = 1) -> Expr:
    """The sum over the copies of a replicated node, in `parts` consecutive groups.

    >>> from polyrhythm.stream.expr import symbol
    >>> total(4, count=8).constant
    32
    >>> total(symbol("n", 4), 4, parts=2).evaluate({"n": [1, 2, 3, 4]}).tolist()
    [3, 7]
    """
    value = as_expr(argument)
    result = as_expr(0)
    for monomial, coefficient in value.terms:
        inside = tuple(atom for atom in monomial if is_indexed(atom))
        outside = tuple(atom for atom in monomial if not is_indexed(atom))
        factor = Expr(((outside, coefficient),))
        if inside and count == parts:
            result = result + factor * Expr(((inside, 1),))
        elif inside:
            result = result + factor * from_atom(Folded("sum", Expr(((inside, 1),)), count, parts))
        else:
            result = result + factor * (count // parts)
    return result


def concatenate(parts: Iterable[ExprLike], copies: int = 1) -> Expr:
    """One indexed expression made of several, interleaved copy by copy; plain when they are all equal.

    >>> from polyrhythm.stream.expr import symbol
    >>> concatenate([symbol("a"), symbol("b")]).evaluate({"a": 1, "b": 2}).tolist()
    [1, 2]
    """
    values = tuple(as_expr(part) for part in parts)
    if all(value == values[0] and not value.indexed for value in values):
        return values[0]
    return from_atom(Concatenation(values, copies))


def pick(argument: ExprLike, index: int, step: int, copies: int = 1) -> Expr:
    """Every `step`-th entry of an indexed expression, from `index` on.

    >>> from polyrhythm.stream.expr import symbol
    >>> pick(symbol("n", 3), 1, 3).evaluate({"n": [5, 6, 7]})
    6
    >>> pick(symbol("n", 4), 1, 2, copies=2).evaluate({"n": [5, 6, 7, 8]}).tolist()
    [6, 8]
    """
    value = as_expr(argument)
    if not value.indexed:
        return value
    if len(value.terms) == 1 and value.terms[0][1] == 1 and len(value.terms[0][0]) == 1:
        atom = value.terms[0][0][0]
        if isinstance(atom, Concatenation) and len(atom.parts) == step:
            return atom.parts[index]
    return from_atom(Pick(value, index, step, copies))


def largest(argument: ExprLike, count: int, parts: int = 1) -> Expr:
    """The largest value in each of `parts` consecutive groups of copies.

    >>> from polyrhythm.stream.expr import symbol
    >>> largest(symbol("n", 4), 4, parts=2).evaluate({"n": [1, 2, 4, 3]}).tolist()
    [2, 4]
    """
    value = as_expr(argument)
    if not value.indexed or count == parts:
        return value
    return from_atom(Folded("max", value, count, parts))


def varying(argument: ExprLike, elements: ExprLike, count: int, parts: int, by: str = "") -> Expr:
    """The size of the elements of streams joined by a selector, where copy i sends `elements` of size `argument`.

    >>> from polyrhythm.stream.expr import symbol
    >>> rows = varying(symbol("n", 4), 1, count=4, parts=2)
    >>> rows.evaluate({"n": [1, 2, 4, 3]}).tolist()
    [2, 4]
    """
    size, each = as_expr(argument), as_expr(elements)
    if not size.indexed or count == parts:
        return size
    sums = total(size * each, count, parts), total(each, count, parts)
    return from_atom(Varying(largest(size, count, parts), *sums, size, by))


def parted(argument: ExprLike, by: str, targets: int, copies: int) -> Expr:
    """A size of elements in each target of a selector: that of their stream, or what it was before they were joined.

    >>> from polyrhythm.stream.expr import symbol
    >>> rows = varying(symbol("n", 4), 1, count=4, parts=2, by="who")
    >>> print(parted(3 * rows, "who", targets=2, copies=2))
    3*n[i]
    """

    def each(atom: Atom) -> Expr:
        was_joined = isinstance(atom, Varying) and by and atom.by == by
        return atom.each if was_joined else concatenate([from_atom(atom)] * targets, copies)  # type: ignore[union-attr]

    terms = as_expr(argument).terms
    return sum((prod(map(each, monomial), start=as_expr(value)) for monomial, value in terms), as_expr(0))


def summed(each: ExprLike, elements: ExprLike) -> Expr:
    """What `elements` elements amount to when one amounts to `each`, exact where a size varies between them.

    >>> from polyrhythm.stream.expr import symbol
    >>> rows = varying(symbol("n", 4), 1, count=4, parts=1)
    >>> print(summed(10 * rows, 12))
    30*sum_i(n[i])
    """
    count = as_expr(elements)
    result = as_expr(0)
    for monomial, coefficient in as_expr(each).terms:
        sizes = [atom for atom in monomial if isinstance(atom, Varying)]
        times = _quotient(count, sizes[0].count) if len(sizes) == 1 else None
        if times is None:
            result = result + Expr(((monomial, coefficient),)) * count
        else:
            others = tuple(atom for atom in monomial if atom is not sizes[0])
            result = result + Expr(((others, coefficient),)) * times * sizes[0].sum_of_sizes
    return result


def _quotient(dividend: Expr, divisor: Expr) -> Expr | None:
    """The quotient when every term of the dividend is a multiple of a divisor of one term, else None."""
    if len(divisor.terms) != 1:
        return None
    atoms, factor = divisor.terms[0]
    quotient = as_expr(0)
    for monomial, coefficient in dividend.terms:
        rest = list(monomial)
        for atom in atoms:
            if atom not in rest:
                return None
            rest.remove(atom)
        if coefficient % factor:
            return None
        quotient = quotient + Expr(((tuple(rest), coefficient // factor),))
    return quotient
