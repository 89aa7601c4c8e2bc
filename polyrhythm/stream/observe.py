"""Observed sizes: reads the values of shape symbols off the tokens of a run.

Metrics are evaluated with routing counts and lengths by name. Where a run decides them (a dynamic dispatch, a ragged
address stream), the run itself says what they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polyrhythm.stream.dims import Dim, Shape
from polyrhythm.stream.expr import Expr, Symbol
from polyrhythm.stream.tokens import Token, decode


def _symbol(expr: Expr | None) -> Symbol | None:
    """The symbol that an expression consists of, or None."""
    if expr is None or len(expr.terms) != 1:
        return None
    monomial, coefficient = expr.terms[0]
    is_symbol = coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol)
    return monomial[0] if is_symbol else None  # type: ignore[return-value]


def _named(dim: Dim) -> Symbol | None:
    return _symbol(dim.total if dim.is_ragged else dim.size)


def named_symbols(shape: Shape) -> set[Symbol]:
    """The symbols that are dims by themselves, whose values a run can observe.

    >>> from polyrhythm.stream.dims import dynamic, static
    >>> named_symbols((dynamic("n"), static(2)))
    {Symbol(name='n', size=None)}
    """
    return {symbol for dim in shape if (symbol := _named(dim)) is not None}


def dim_sizes(nested: Sequence[Any], depth: int) -> list[list[int]]:
    """For every dim, outermost first, its sizes at all outer indices.

    >>> dim_sizes([[1, 2], [3]], 2)
    [[2], [2, 1]]
    """
    sizes = [[len(nested)]]
    members: list[Any] = list(nested)
    for _ in range(depth - 1):
        sizes.append([len(member) for member in members])
        members = [item for member in members for item in member]
    return sizes


def observed_bindings(logs: Sequence[tuple[Shape, list[list[Token]]]]) -> dict[str, Any]:
    """The values of all symbols that are dims by themselves, from the tokens of each copy of each stream.

    >>> from polyrhythm.stream.dims import dynamic
    >>> observed_bindings([((dynamic("n"),), [[("x", 0), ("y", 0)]])])
    {'n': 2}
    """
    bindings: dict[str, Any] = {}
    for shape, copies in logs:
        sizes = [dim_sizes(decode(tokens, len(shape) - 1), len(shape)) for tokens in copies]
        for position, dim in enumerate(shape):
            name = _named(dim)
            if name is None or name.name in bindings:
                continue
            values = [sum(s[position]) if dim.is_ragged else max(s[position], default=0) for s in sizes]
            if dim.is_ragged:
                largest = max((max(s[position], default=0) for s in sizes), default=0)
                bindings.setdefault(f"max({dim.name})", largest)
            bindings[name.name] = values[0] if name.size is None else np.array(values)
    return bindings
