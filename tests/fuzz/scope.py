"""What is known where an expression stands, decided by trying every point at small bounds.

A scope is a set of step symbols and conditions that hold. Whether a further condition follows is answered by
enumeration: all constants the generator uses are far smaller than the bounds tried, so this is as good as a proof.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from tests.fuzz.program import Arith, Compare, Condition, Extremum, Int, Logic, Not, Span, Sym


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
        return not self.finds(Not(condition))

    def finds(self, condition: Condition) -> bool:
        """Whether a condition holds anywhere in the scope."""
        values = _points(self.bounds, self.spans)
        mask = np.ones(len(next(iter(values.values()))), bool)
        for known in (*self.known, condition):
            mask &= evaluate(known, values)
        return bool(mask.any())


@lru_cache(maxsize=256)
def _points(bounds: tuple[str, ...], spans: tuple[Span, ...]) -> Mapping[str, np.ndarray]:
    """Every point of the spans at every choice of small bounds, one column per symbol."""
    # Small bounds one by one, and some large enough for the difference of `i // 4 - 3` and a short dim to show.
    tried = (0, 1, 2, 3, 4, 5, 6, 7, 9, 12, 17, 24) if len(bounds) < 3 else (0, 1, 2, 3, 4, 5, 6, 9)
    rows = []
    for sizes in product(tried, repeat=len(bounds)):
        by_name = dict(zip(bounds, sizes, strict=True))
        steps = [range(by_name[s.dim.upper()] + s.more) for s in spans]
        rows += [(*sizes, *point) for point in product(*steps)]
    table = np.array(rows, dtype=np.int64).reshape(len(rows), len(bounds) + len(spans))
    return {name: table[:, i] for i, name in enumerate((*bounds, *(s.dim for s in spans)))}


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
            return {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b, "==": a == b, "!=": a != b}[op]
        case Logic(op, left, right):
            a, b = evaluate(left, values), evaluate(right, values)
            return a & b if op == "&" else a | b
        case Not(inner):
            return np.logical_not(evaluate(inner, values))
    raise TypeError(node)
