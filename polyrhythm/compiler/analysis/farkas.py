"""Rankings by linear programming, where none that the reads suggest fits.

By Farkas' lemma an affine function is nowhere negative on a polyhedron exactly if it is a nonnegative combination of
its constraints. So the affine rankings of some statements, over all their dims and the bounds, are the solutions of
linear inequalities in their coefficients and one multiplier per constraint of each read (Feautrier, "Some efficient
solutions to the affine scheduling problem, part II", 1992).

These solutions form a cone. One with as many positive multipliers as possible decreases wherever any ranking does.
Rankings taken one inside the other therefore never lead into a dead end: a ranking leaves reads to the next level, and
whatever settles all the reads settles those left. If rankings exist that together settle everything, then
taking such a one at each level finds some.

The programs are solved in floating point, and the ranks are integers. Nobody trusts them: a ranking counts only after
`Component.left_open` has proved it exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import lcm
from typing import Any, Generic

import numpy as np

from polyrhythm.compiler.analysis.ranks import Component, Dims, Need, Vertex
from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import conjunction, eq
from polyrhythm.compiler.ir.sets import Row, points
from polyrhythm.compiler.ir.terms import Symbol, Term, ordered

DIM, BOUND, CONSTANT = 1.0, 2.0, 0.01
"""What a coefficient costs: steps come before bounds, and shifts are found anew by whoever uses the ranks."""

LARGEST = 720
"""The largest denominator of a coefficient."""


def all_rankings(component: Component[Vertex]) -> Iterator[dict[Vertex, Term]]:
    """Rankings along each dim, which each statement may follow by a dim of its own; then along any combination."""
    for symbol in component.symbols:
        yield from component.rankings(symbol, by_others=True)
    yield from farkas_rankings(component)


def farkas_rankings(component: Component[Vertex]) -> Iterator[dict[Vertex, Term]]:
    """Rankings over any of the dims that settle as much as can be: the whole of some reads first, then parts."""
    problem = _Problem(component)
    found = problem.most_positive()
    if found is None:
        return
    whole = {number for number in found if number in problem.constants}
    for positive in (whole, found) if whole != found else (found,):
        ranks = problem.smallest(positive) if positive else None
        if ranks is not None:
            yield ranks


class _Problem(Generic[Vertex]):
    """The inequalities of all rankings: a variable per coefficient, then one per multiplier.

    A coefficient belongs to a statement and a dim or a bound; or it is its constant (None).
    """

    def __init__(self, component: Component[Vertex]) -> None:
        dims = component.dims
        bounds = ordered({s for need in component.needs for s in need.condition.symbols if s.kind != "dim"})
        bounds = tuple(s for s in bounds if s.serial != serials.ELSEWHERE)
        self.members = component.members
        self.unknowns: dict[tuple[Vertex, Symbol | None], int] = {}
        for vertex in component.members:
            fitting = (bound for bound in bounds if set(bound.over) <= set(dims[vertex]))
            for symbol in (*dims[vertex], *fitting, None):
                self.unknowns[vertex, symbol] = len(self.unknowns)
        self.signed: list[bool] = []  # which multipliers are of inequalities
        self.constants: set[int] = set()  # those of "one is positive": the read is settled everywhere
        self.entries: list[tuple[int, int, float]] = []  # of the equations: row, variable, coefficient
        self.sides: list[float] = []
        for need in component.needs:
            self._read(need, [s for v, s in self.unknowns if v == need.reader], dims)

    def _read(self, need: Need[Vertex], own: Sequence[Symbol | None], dims: Dims[Vertex]) -> None:
        """The equations of a read: its distance is a combination of the constraints of where it happens."""
        there = {s: Symbol(f"at{n}", "dim", serial=serials.TARGET) for n, s in enumerate(need.steps)}
        condition = conjunction(need.condition, *(eq(Term.of(there[s]), step) for s, step in need.steps.items()))
        symbols = {*condition.symbols, *(s for s in own if s is not None), *there.values(), *dims[need.source]}
        distance: dict[Symbol | None, list[tuple[int, float]]] = {}
        for (vertex, symbol), variable in self.unknowns.items():
            if vertex == need.reader:
                distance.setdefault(symbol, []).append((variable, 1.0))
            if vertex == need.source:
                column = None if symbol is None else there.get(symbol, symbol)
                distance.setdefault(column, []).append((variable, -1.0))
        columns = ordered(symbols | {s for s in distance if s is not None})
        for part in points(condition, columns).rows():
            self._combination(distance, part, need.gap)

    def _combination(
        self, distance: Mapping[Symbol | None, Sequence[tuple[int, float]]], part: Sequence[Row], gap: int
    ) -> None:
        first = len(self.unknowns) + len(self.signed)
        self.constants.add(first)
        self.signed += [True, *(not equality for equality, _ in part)]
        by_key: dict[Symbol | int | None, list[tuple[int, float]]] = {None: [(first, -1.0)]}
        for number, (_, row) in enumerate(part, first + 1):
            for key, value in row.items():
                by_key.setdefault(key, []).append((number, -float(value)))
        for symbol, pairs in distance.items():
            by_key.setdefault(symbol, []).extend(pairs)
        for key, pairs in by_key.items():
            row_number = len(self.sides)
            self.entries += [(row_number, variable, value) for variable, value in pairs]
            self.sides.append(float(gap) if key is None else 0.0)

    def most_positive(self) -> set[int] | None:
        """The multipliers that can be positive, which all can be together; None where there is no ranking."""
        # Each multiplier in two parts, of which the second is at most one: as much of those as possible.
        count, multipliers = len(self.unknowns), len(self.signed)
        parts = {count + n: count + multipliers + at for at, n in enumerate(np.flatnonzero(self.signed).tolist())}
        entries = [*self.entries, *((r, parts[v], x) for r, v, x in self.entries if v in parts)]
        least = [*[None] * count, *(0.0 if signed else None for signed in self.signed), *[0.0] * len(parts)]
        found = self._solved(entries, [*[0.0] * (count + multipliers), *[-1.0] * len(parts)], least)
        return None if found is None else {v for v, part in parts.items() if found[part] > 0.5}

    def smallest(self, positive: set[int]) -> dict[Vertex, Term] | None:
        """A ranking with small integers in which some multipliers are positive."""
        # Each coefficient as the difference of two that are not negative, so that its size has a cost.
        count, multipliers = len(self.unknowns), len(self.signed)
        entries = [*self.entries, *((r, count + multipliers + v, -x) for r, v, x in self.entries if v < count)]
        least = [float(n in positive) if signed else None for n, signed in enumerate(self.signed, count)]
        cost = [CONSTANT if s is None else DIM if s.kind == "dim" else BOUND for _, s in self.unknowns]
        found = self._solved(entries, [*cost, *[0.0] * multipliers, *cost], [*[0.0] * count, *least, *[0.0] * count])
        if found is None:
            return None
        values = [Fraction(x).limit_denominator(LARGEST) for x in found[:count] - found[count + multipliers :]]
        scale = lcm(*(value.denominator for value in values))
        ranks = dict.fromkeys(self.members, Term(0))
        for (vertex, symbol), value in zip(self.unknowns, values, strict=True):
            ranks[vertex] = ranks[vertex] + (Term(1) if symbol is None else Term.of(symbol)) * int(value * scale)
        return ranks

    def _solved(
        self, entries: Sequence[tuple[int, int, float]], cost: Sequence[float], least: Sequence[float | None]
    ) -> Any:
        """Values of all variables, at least so large, that cost as little as possible; None where there are none."""
        from scipy.optimize import linprog
        from scipy.sparse import coo_array

        rows, variables, values = zip(*entries, strict=True)
        matrix = coo_array((values, (rows, variables)), shape=(len(self.sides), len(cost))).tocsr()
        most = [1.0 if price < 0 else None for price in cost]
        solved = linprog(cost, A_eq=matrix, b_eq=self.sides, bounds=list(zip(least, most, strict=True)))
        return solved.x if solved.success else None
