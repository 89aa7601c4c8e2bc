"""What is known where an expression stands, decided by trying every point at small bounds.

A scope is a set of step symbols and conditions that hold. Whether a further condition follows is answered by
enumeration: all constants the generator uses are far smaller than the bounds tried, so this is as good as a proof.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from operator import eq, ge, gt, le, lt, ne
from typing import Any

import numpy as np

from tests.fuzz.program import Arith, Compare, Condition, Extremum, Int, Logic, Not, Span, Sym

COMPARED = {"<": lt, "<=": le, ">": gt, ">=": ge, "==": eq, "!=": ne}


@dataclass(frozen=True)
class Scope:
    """The step symbols an expression may use, and what holds of them. `bounds` are all the bounds of the program."""

    bounds: tuple[str, ...]
    spans: tuple[Span, ...]
    known: tuple[Condition, ...] = ()

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(span.dim for span in self.spans)

    def given(self, *conditions: Condition) -> Scope:
        return Scope(self.bounds, self.spans, (*self.known, *conditions))

    def implies(self, condition: Condition) -> bool:
        """Whether a condition holds wherever the scope does."""
        return bool(np.all(evaluate(condition, _scoped(self))))

    def finds(self, condition: Condition) -> bool:
        """Whether a condition holds anywhere in the scope."""
        values = _scoped(self)
        found = evaluate(condition, values)
        return bool(np.any(found)) and len(next(iter(values.values()))) > 0


@lru_cache(maxsize=32)
def _scoped(scope: Scope) -> Mapping[str, np.ndarray]:
    """The points of a scope."""
    if not scope.known:
        return _points(scope.bounds, scope.spans)
    *before, last = scope.known
    values = _scoped(Scope(scope.bounds, scope.spans, tuple(before)))
    holds = np.broadcast_to(evaluate(last, values), np.shape(next(iter(values.values()))))
    return values if holds.all() else {name: column[holds] for name, column in values.items()}


@lru_cache(maxsize=64)
def _points(bounds: tuple[str, ...], spans: tuple[Span, ...]) -> Mapping[str, np.ndarray]:
    """Every point of the spans at every choice of small bounds, one column per symbol."""
    # Small bounds one by one, and some large enough for the difference of `i // 4 - 3` and a short dim to show.
    tried = (0, 1, 2, 3, 4, 5, 6, 7, 9, 12, 17, 24) if len(bounds) < 3 else (0, 1, 2, 3, 4, 5, 6, 9)
    columns: list[list[np.ndarray]] = [[] for _ in (*bounds, *spans)]
    for sizes in product(tried, repeat=len(bounds)):
        by_name = dict(zip(bounds, sizes, strict=True))
        steps = [np.arange(by_name[s.dim.upper()] + s.more, dtype=np.int32) for s in spans]
        shape = tuple(map(len, steps))
        grids = [*(np.full(shape, size, np.int32) for size in sizes), *np.meshgrid(*steps, indexing="ij")]
        for column, grid in zip(columns, grids, strict=True):
            column.append(grid.ravel())
    names = (*bounds, *(s.dim for s in spans))
    return {name: np.concatenate(column) for name, column in zip(names, columns, strict=True)}


def evaluate(node: Any, values: Mapping[str, np.ndarray]) -> Any:
    """An index or a condition at many points at once."""
    match node:
        case Int(value):
            return value
        case Sym(name):
            return values[name]
        case Arith(op, left, right):
            a, b = evaluate(left, values), evaluate(right, values)
            if op in "+-":
                return a + b if op == "+" else a - b
            return a * b if op == "*" else a // b if op == "//" else a % b
        case Extremum(which, left, right):
            return (np.minimum if which == "min" else np.maximum)(evaluate(left, values), evaluate(right, values))
        case Compare(op, left, right):
            a, b = evaluate(left, values), evaluate(right, values)
            return COMPARED[op](a, b)
        case Logic(op, left, right):
            a, b = evaluate(left, values), evaluate(right, values)
            return a & b if op == "&" else a | b
        case Not(inner):
            return np.logical_not(evaluate(inner, values))
    raise TypeError(node)
