"""Solving the left side of a definition.

`y[f(s)] = rhs` defines y at every point p = f(s). To know the value at p the map f is inverted: each step
symbol s becomes an affine expression of p divided by an integer, and p must satisfy divisibility and consistency
conditions. f must be affine and injective; of one that is not, a move that changes nothing is returned.

The method is Gaussian elimination over the rationals on the coefficient matrix of the step symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from polyrhythm.compiler.ir.conditions import Condition, conjunction, eq
from polyrhythm.compiler.ir.terms import Symbol, Term

Row = list[Fraction]


@dataclass(frozen=True)
class Inverse:
    """Each step symbol as a term of the point, and what the point must satisfy to be hit at all."""

    steps: dict[Symbol, Term]
    condition: Condition


@dataclass(frozen=True)
class Collision:
    """Moving every step symbol by these amounts leaves the point where it is."""

    move: dict[Symbol, int]


def invert(entries: Sequence[Term], unknowns: Sequence[Symbol], point: Sequence[Symbol]) -> Inverse | Collision:
    """Solve `point == entries` for the unknowns.

    Each entry is affine in the unknowns; whatever else it contains is a constant here.

    >>> s, p = Symbol("s", "dim"), Symbol("p", "dim")
    >>> found = invert([Term.of(s) * 2 + 1], [s], [p])
    >>> str(found.steps[s]), str(found.condition)
    ('(p + 1)//2 - 1', '(p + 1) % 2 == 0')
    """
    # Row k says: sum_j matrix[k][j] * unknown_j == sum_i mix[k][i] * rhs_i with rhs_i = point_i - constant_i.
    matrix = [[Fraction(entry.coefficient(u)) for u in unknowns] for entry in entries]
    mix = [[Fraction(int(i == k)) for i in range(len(entries))] for k in range(len(entries))]
    pivots: list[int] = []
    for column in range(len(unknowns)):
        row = next((k for k in range(len(pivots), len(entries)) if matrix[k][column]), None)
        if row is None:
            return Collision(_null_move(matrix, pivots, column, unknowns))
        place = len(pivots)
        for rows in (matrix, mix):
            rows[place], rows[row] = rows[row], rows[place]
        factor = matrix[place][column]
        matrix[place] = [value / factor for value in matrix[place]]
        mix[place] = [value / factor for value in mix[place]]
        for k in range(len(entries)):
            if k != place and matrix[k][column]:
                times = matrix[k][column]
                matrix[k] = _minus(matrix[k], matrix[place], times)
                mix[k] = _minus(mix[k], mix[place], times)
        pivots.append(column)

    zero = {unknown: Term(0) for unknown in unknowns}
    rhs = [Term.of(p) - entry.substitute(zero) for p, entry in zip(point, entries, strict=True)]
    steps: dict[Symbol, Term] = {}
    conditions: list[Condition] = []
    for k, weights in enumerate(mix):
        scale = lcm(*(weight.denominator for weight in weights))
        total = Term(0)
        for weight, side in zip(weights, rhs, strict=True):
            total = total + side * int(weight * scale)
        if k < len(unknowns):
            steps[unknowns[pivots[k]]] = total // scale
            conditions.append(eq(total % scale, 0))
        else:
            conditions.append(eq(total, 0))
    return Inverse(steps, conjunction(*conditions))


def _minus(row: Row, other: Row, times: Fraction) -> Row:
    return [a - times * b for a, b in zip(row, other, strict=True)]


def _null_move(matrix: list[Row], pivots: list[int], free: int, unknowns: Sequence[Symbol]) -> dict[Symbol, int]:
    """An integer vector of the kernel: the free unknown moves, the solved ones follow."""
    weights = {free: Fraction(1)} | {column: -matrix[k][free] for k, column in enumerate(pivots)}
    scale = lcm(*(weight.denominator for weight in weights.values()))
    return {unknowns[column]: int(weight * scale) for column, weight in weights.items() if weight}
