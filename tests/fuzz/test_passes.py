"""Random programs without a random choice of the passes; a fixed number, the same ones every time."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.check import COUNTS, Mismatch
from tests.fuzz.mutate import rightly_refused
from tests.fuzz.programs import programs
from tests.fuzz.subsets import FIRED, Case, check_gradients, check_subset, subsets

EXAMPLES, WITH_GRADIENTS = 25, 20


@pytest.mark.parametrize("lane", ["int", "float"])
def test_any_subset_of_the_passes(lane: str) -> None:
    before, fired = COUNTS.copy(), FIRED.copy()

    @seed(23)
    @settings(
        max_examples=EXAMPLES,
        derandomize=False,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.tuples(programs(lane), subsets()))
    def examples(case: Case) -> None:
        try:
            check_subset(case)
        except Mismatch as error:
            if not rightly_refused(case[0], error):
                raise

    examples()
    ran = {backend: COUNTS[f"{backend} ran"] - before[f"{backend} ran"] for backend in ("numpy", "torch", "jax")}
    print(f"compiled and run: {ran}; rules that applied: {dict(FIRED - fired)}")
    assert ran["numpy"] >= EXAMPLES // 5
    assert min(ran.values()) >= 1
    assert len(FIRED - fired) >= 8


def test_any_subset_of_the_passes_with_gradients() -> None:
    fired, compared = FIRED.copy(), 0

    @seed(31)
    @settings(
        max_examples=WITH_GRADIENTS,
        derandomize=False,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.tuples(programs("float"), subsets()))
    def examples(case: Case) -> None:
        nonlocal compared
        compared += check_gradients(case)

    examples()
    print(f"compared: {compared}; rules that applied: {dict(FIRED - fired)}")
    assert compared >= WITH_GRADIENTS // 4
