"""The checker refuses exactly the programs that the brute force finds invalid, and its counterexamples are real."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, given, seed, settings

from tests.fuzz.mutate import judge, mutants
from tests.fuzz.program import Program


def test_programs_made_wrong() -> None:
    verdicts: Counter[str] = Counter()

    @seed(3)
    @settings(max_examples=80, derandomize=False, database=None, suppress_health_check=list(HealthCheck))
    @given(mutants())
    def examples(drawn: tuple[Program, str]) -> None:
        verdicts[judge(drawn[0])] += 1

    examples()
    print(verdicts)
    for verdict in ("GapError", "OverlapError", "OutOfRangeError", "valid"):
        assert verdicts[verdict] >= 3, verdicts
