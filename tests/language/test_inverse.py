"""Solving left sides: compared with a search over a box for random integer matrices."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.language.inverse import Collision, Inverse, invert

UNKNOWNS = [Symbol(name, "dim") for name in "uvw"]
POINT = [Symbol(name, "dim") for name in "xyz"]
BOUND = Symbol("T", "bound")
SIZE = 3  # the value of the bound


def entries_of(matrix: list[list[int]], constants: list[int], bounds: list[int]) -> list[Term]:
    entries = []
    for row, constant, times in zip(matrix, constants, bounds, strict=True):
        entry = Term(constant) + Term.of(BOUND) * times
        for weight, unknown in zip(row, UNKNOWNS, strict=False):
            entry = entry + Term.of(unknown) * weight
        entries.append(entry)
    return entries


@st.composite
def left_sides(draw: st.DrawFn) -> tuple[list[Term], int]:
    """Up to three entries in up to three unknowns, and the number of unknowns."""
    count = draw(st.integers(1, 3))
    unknowns = draw(st.integers(0, count))
    weights = st.lists(st.integers(-3, 3), min_size=unknowns, max_size=unknowns)
    matrix = draw(st.lists(weights, min_size=count, max_size=count))
    small = st.lists(st.integers(-2, 2), min_size=count, max_size=count)
    return entries_of(matrix, draw(small), draw(small)), unknowns


def at(entries: list[Term], steps: tuple[int, ...]) -> tuple[int, ...]:
    table = {**dict(zip(UNKNOWNS, steps, strict=False)), BOUND: SIZE}
    return tuple(entry.evaluate(table.__getitem__) for entry in entries)


@settings(max_examples=100)
@given(left_sides())
def test_the_inverse_is_exact(side: tuple[list[Term], int]) -> None:
    entries, count = side
    unknowns, point = UNKNOWNS[:count], POINT[: len(entries)]
    found = invert(entries, unknowns, point)
    if isinstance(found, Collision):
        assert any(found.move.values())
        start = (1,) * count
        moved = tuple(1 + found.move.get(unknown, 0) for unknown in unknowns)
        assert moved != start
        assert at(entries, start) == at(entries, moved)
        return
    assert isinstance(found, Inverse)
    hit = {at(entries, steps): steps for steps in product(range(-4, 5), repeat=count)}
    assert len(hit) == 9**count, "injective, since no collision was reported"
    for place, steps in hit.items():
        table = {**dict(zip(point, place, strict=True)), BOUND: SIZE}
        assert found.condition.evaluate(table.__getitem__)
        assert tuple(found.steps[u].evaluate(table.__getitem__) for u in unknowns) == steps
    # And the converse: wherever the condition holds, the steps lead to that very point.
    for place in product(range(-3, 4), repeat=len(entries)):
        table = {**dict(zip(point, place, strict=True)), BOUND: SIZE}
        if found.condition.evaluate(table.__getitem__):
            steps = tuple(found.steps[u].evaluate(table.__getitem__) for u in unknowns)
            assert at(entries, steps) == place
        else:
            assert place not in hit


@pytest.mark.parametrize(
    ("matrix", "collides"),
    [
        ([[1]], False),
        ([[0]], True),
        ([[2]], False),
        ([[1, 1], [1, -1]], False),
        ([[1, 1], [2, 2]], True),
        ([[2, 1], [1, 1]], False),
        ([[0, 1], [1, 0]], False),
        ([[1, 2, 3], [4, 5, 6], [7, 8, 9]], True),
        ([[1, 1]], True),
    ],
)
def test_collisions_are_those_of_singular_matrices(matrix: list[list[int]], collides: bool) -> None:
    zeros = [0] * len(matrix)
    found = invert(entries_of(matrix, zeros, zeros), UNKNOWNS[: len(matrix[0])], POINT[: len(matrix)])
    assert isinstance(found, Collision) == collides


def test_a_constant_is_a_condition_on_the_point() -> None:
    found = invert([Term(3)], [], POINT[:1])
    assert isinstance(found, Inverse)
    assert [k for k in range(6) if found.condition.evaluate({POINT[0]: k}.__getitem__)] == [3]
