"""Conditions on differences of symbols, decided by shortest paths: most of what is asked of integer sets.

`t >= 0`, `t <= T - 2` and `j < i` each limit the difference of two symbols, or of one and zero. Such limits have
integer solutions exactly if no cycle of them is negative, and the least value of a difference is a shortest path.
Parts of another form can only take solutions away: where the limits have none, the whole has none, and where the other
parts hold at one, it has one. Of a few alternatives each is tried. Where all that decides nothing, isl is asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from polyrhythm.compiler.ir.conditions import Compare, Condition, Junction, parts_of, spread
from polyrhythm.compiler.ir.terms import Symbol, Term, ordered

Node = Symbol | None
"""A symbol, or zero."""
MOST_ALTERNATIVES = 8
"""How many alternatives are tried: of parts of which one must hold, as of `t < 0 or t < T`."""
Limit = tuple[Node, Node, int]
"""`(a, b, n)`: b is at most a + n."""


def satisfiable(condition: Condition) -> bool | None:
    """Whether some integers satisfy a condition; None where that is not seen here.

    >>> from polyrhythm.compiler.ir.conditions import conjunction, eq, ge, lt, ne
    >>> t, T = Term.of(Symbol("t", "dim")), Term.of(Symbol("T", "bound"))
    >>> inside = conjunction(ge(t, 0), lt(t, T))
    >>> satisfiable(inside), satisfiable(conjunction(inside, ne(t, 0))), satisfiable(conjunction(inside, lt(T, 1)))
    (True, True, False)
    >>> satisfiable(conjunction(inside, eq(t * 2, T * 2 - 1))), satisfiable(conjunction(inside, eq(t * 3, T * 2 - 1)))
    (False, None)
    """
    symbols = ordered(condition.symbols)
    far: dict[Node, int] = {s: 5 * n + (3 if s.kind == "dim" else 100) for n, s in enumerate(symbols, 1)}
    return _satisfiable({**far, None: 0}, *_limits(condition), MOST_ALTERNATIVES)


def _satisfiable(
    start: dict[Node, int], limits: list[Limit], others: list[Condition], alternatives: int
) -> bool | None:
    """The same of limits and other parts, one of which is an alternative after the other if that takes few steps."""
    values = _settled(dict(start), limits)
    if values is None:
        return False
    zero = values[None]
    if all(part.evaluate(lambda symbol: values[symbol] - zero) for part in others):
        return True
    first = others[0]
    if not all(isinstance(part, Junction) for part in others) or not isinstance(first, Junction):
        return None
    if len(first.parts) > alternatives:
        return None
    found: bool | None = False
    rest = [part for part in others if part is not first]
    for part in first.parts:
        more_limits, more_others = _limits(part)
        branch = _satisfiable(start, limits + more_limits, rest + more_others, alternatives // len(first.parts))
        if branch:
            return True
        found = None if branch is None else found
    return found


def least_difference(term: Term, condition: Condition) -> tuple[int | None] | None:
    """The least value of a term where a condition holds somewhere, None without a limit; None where not seen here.

    >>> from polyrhythm.compiler.ir.conditions import conjunction, ge, lt
    >>> t, T = Term.of(Symbol("t", "dim")), Term.of(Symbol("T", "bound"))
    >>> inside = conjunction(ge(t, 2), lt(t, T))
    >>> least_difference(T + 1, inside), least_difference(t - T, inside), least_difference(T + t, inside)
    ((4,), (None,), None)
    """
    limit = _limit(term)
    limits, others = _limits(condition)
    if limit is None or others:
        return None
    start, end, constant = limit
    far = None
    distances: dict[Node, int | None] = {None: far, start: 0, end: far, **dict.fromkeys(condition.symbols, far)}
    distances[start] = 0
    for _ in distances:
        for a, b, most in limits:
            so_far, known = distances[a], distances[b]
            if so_far is not None and (known is None or known > so_far + most):
                distances[b] = so_far + most
    found = distances[end]
    return (None,) if found is None else (constant - found,)


def _settled(values: dict[Node, int], limits: Iterable[Limit]) -> dict[Node, int] | None:
    """The values lowered until all limits hold; None where they would fall for ever."""
    for _ in range(len(values) + 1):
        settled = True
        for a, b, most in limits:
            limit = values[a] + most
            if values[b] > limit:
                values[b] = limit
                settled = False
        if settled:
            return values
    return None


def _limits(condition: Condition) -> tuple[list[Limit], list[Condition]]:
    """The parts of a condition that limit a difference, and the others."""
    limits: list[Limit] = []
    others: list[Condition] = []
    for part in (simple for whole in parts_of(condition) for simple in parts_of(spread(whole))):
        found = _limits_of(part) if isinstance(part, Compare) else ()
        limits += found
        if not found:
            others.append(part)
    return limits, others


@lru_cache(1 << 15)
def _limits_of(part: Compare) -> tuple[Limit, ...]:
    limit = _limit(part.term) if part.relation != "!=" else None
    if limit is None:
        return ()
    a, b, most = limit
    return (limit,) if part.relation == ">=" else (limit, (b, a, -most))


def _limit(term: Term) -> Limit | None:
    """What a term of the form `a - b + n` says where it is at least zero."""
    nodes: dict[int, Symbol] = {}
    for monomial, coefficient in term.monomials:
        atom = monomial[0]
        if len(monomial) > 1 or abs(coefficient) > 1 or coefficient in nodes or not isinstance(atom, Symbol):
            return None
        nodes[coefficient] = atom
    return (nodes.get(1), nodes.get(-1), term.constant) if nodes else None
