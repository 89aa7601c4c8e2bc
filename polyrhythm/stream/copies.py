"""Expressions over the copies of a replicated node: sums, maxima, interleaving, and sizes that vary.

A replicated node has one set of formulae for all its copies. What is the same in all copies is a plain expression, what
differs is an indexed one. Joining copies adds counts up; the size of their elements then varies within one stream.
"""

from __future__ import annotations

from collections.abc import Iterable

from polyrhythm.stream.expr import (
    Concatenation,
    Expr,
    ExprLike,
    Largest,
    Pick,
    Sum,
    Varying,
    as_expr,
    from_atom,
    is_indexed,
)


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
            result = result + factor * from_atom(Sum(Expr(((inside, 1),)), count, parts))
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
    return from_atom(Largest(value, count, parts))


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
    result = as_expr(0)
    for monomial, coefficient in as_expr(argument).terms:
        product = as_expr(coefficient)
        for atom in monomial:
            if isinstance(atom, Varying) and by and atom.by == by:
                product = product * atom.each
            else:
                product = product * concatenate([from_atom(atom)] * targets, copies)
        result = result + product
    return result


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
