"""Reading through a read: ranges of steps become ranges only along what they move by a constant."""

from __future__ import annotations

import pytest

from polyrhythm.compiler.ir.graph import Access, Range
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.passes.access import composed

T = Symbol("T", "bound")
t = Symbol("t", "dim")
STEPS = (Range(Term(1), Term.of(T) - 1, 1),)


def test_a_range_is_moved_and_stretched() -> None:
    found = composed(Access("x", (Term.of(t) * 2 + 3,)), (t,), STEPS)
    assert found == (Access("x", (Range(Term(5), Term.of(T) - 1, 2),)), [0])


@pytest.mark.parametrize("step", [Term.of(t) // 2, Term.of(t) + Term.of(t) // 2])
def test_steps_at_uneven_distances_are_no_range(step: Term) -> None:
    assert composed(Access("x", (step,)), (t,), STEPS) is None
