"""Random programs without a random choice of the passes; a fixed number, the same ones every time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st

from tests.fuzz.check import COUNTS, Mismatch, drawn
from tests.fuzz.mutate import rightly_refused
from tests.fuzz.program import Program
from tests.fuzz.programs import programs
from tests.fuzz.special import ragged, stopped
from tests.fuzz.subsets import FIRED, Case, check_gradients, check_lengths, check_subset, subsets

EXAMPLES = 18


@pytest.mark.parametrize("lane", ["int", "float"])
def test_any_subset_of_the_passes(lane: str) -> None:
    before, fired = COUNTS.copy(), FIRED.copy()

    def example(case: Case) -> None:
        try:
            check_subset(case)
        except Mismatch as error:
            if not rightly_refused(case[0], error):
                raise

    drawn(st.tuples(programs(lane), subsets()), example, EXAMPLES, 2300, 5)
    ran = {backend: COUNTS[f"{backend} ran"] - before[f"{backend} ran"] for backend in ("numpy", "torch", "jax")}
    print(f"compiled and run: {ran}; rules that applied: {dict(FIRED - fired)}")
    assert ran["numpy"] >= EXAMPLES // 5
    assert min(ran.values()) >= 1
    assert len(FIRED - fired) >= 8


@pytest.mark.parametrize("count", [6, pytest.param(40, marks=pytest.mark.slow)])
def test_any_subset_of_the_passes_with_gradients(count: int) -> None:
    verdicts: Counter[str] = Counter()

    def example(case: Case) -> None:
        verdicts[check_gradients(case)] += 1

    drawn(st.tuples(programs("float"), subsets()), example, count, 2910, 5)
    print(dict(verdicts))
    assert verdicts["compared"] >= count // 3
    assert verdicts["not shown to progress"] <= max(1, count // 10)


def test_gradients_over_rows_with_lengths_of_their_own() -> None:
    verdicts: Counter[str] = Counter()

    def example(program: Program) -> None:
        verdicts[check_lengths(program)] += 1

    drawn(st.one_of(ragged("float32"), stopped("float32")), example, 12, 40, 4)
    assert verdicts["compared"] >= 6
