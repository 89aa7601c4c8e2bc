"""Random programs without a random choice of the passes; a fixed number, the same ones every time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st

from tests.fuzz.check import COUNTS, Mismatch, drawn
from tests.fuzz.mutate import rightly_refused
from tests.fuzz.programs import programs
from tests.fuzz.subsets import FIRED, Case, check_gradients, check_subset, subsets

EXAMPLES, WITH_GRADIENTS = 25, 16


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


def test_any_subset_of_the_passes_with_gradients() -> None:
    verdicts: Counter[str] = Counter()

    def example(case: Case) -> None:
        verdicts[check_gradients(case)] += 1

    drawn(st.tuples(programs("float"), subsets()), example, WITH_GRADIENTS, 2900, 5)
    print(dict(verdicts))
    assert verdicts["compared"] >= WITH_GRADIENTS // 3
    assert verdicts["not shown to progress"] <= WITH_GRADIENTS // 10
