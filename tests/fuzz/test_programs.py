"""Random programs against the brute force: a fixed number, the same ones every time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis.strategies import SearchStrategy

from tests.fuzz.check import check
from tests.fuzz.features import features, table
from tests.fuzz.program import Program
from tests.fuzz.programs import programs
from tests.fuzz.special import hosted, ragged, stopped

# The least number of programs, of 100 of each lane, in which each feature must occur.
FLOORS = {
    "1 dims": 20, "2 dims": 20, "3 dims": 5, "bound 0": 5, "bound 1": 5, "bound 2": 5, "bound 3": 5, "bound 4": 20, "bound 5": 5, "bound 9": 3,
    "past point": 20, "future point": 15, "constant point": 20, "point from the end": 10, "mirrored point": 8, "strided point": 8,
    "point // or %": 8, "clamped point": 15, "point by another dim": 3, "read by name": 15, "chained views": 3, "indexed expression": 5,
    "range": 30, "prefix range": 10, "suffix range": 10, "window range": 5, "clamped window range": 5, "constant range": 3, "full range": 5,
    "strided range": 4, "negative step": 4, "two slices": 2, "window": 1, "index condition": 40, "index as a value": 5, "axes": 5,
    "left point": 20, "left shifted": 20, "left mirrored": 8, "left whole": 15, "left condition": 15, "left otherwise": 15,
    "left of two dims": 4, "left strided": 4, "left point from the end": 8, "extent T + 1": 8, "recursion": 40,
    "recursion along two dims": 3, "recursion over a range": 8, "mutual recursion": 3, "dynamic sum": 15, "dynamic max": 5, "dynamic min": 5,
    "dynamic cumsum": 3, "dynamic concat": 3, "dynamic pad": 3, "dynamic flip": 3, "dynamic @": 1, "dynamic transpose": 2, "op where": 15,
    "op cast": 15, "op stack": 2, "op concat": 3, "op flip": 3, "op reshape": 2, "op take": 2, "op one_hot": 1, "op transpose": 2,
}  # fmt: skip
INT_FLOORS = {
    "dynamic argmax": 1,
    "dynamic sort": 1,
    "dynamic prod": 3,
    "dynamic any": 2,
    "dynamic all": 2,
    "op %": 2,
    "op ^": 3,
}
FLOAT_FLOORS = {"dynamic mean": 2, "dynamic logsumexp": 1, "dynamic softmax": 1, "op tanh": 50, "op exp": 2, "op /": 2}


def run(strategy: SearchStrategy[Program], count: int, number: int) -> Counter[str]:
    """Check so many programs; how often each feature occurred."""
    seen: Counter[str] = Counter()
    total = 0

    @seed(number)
    @settings(max_examples=count, derandomize=False, database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def examples(program: Program) -> None:
        nonlocal total
        check(program)
        total += 1
        seen.update(features(program))

    examples()
    print(table(seen, total))
    assert total >= count
    return seen


@pytest.mark.parametrize("lane", ["int", "float"])
def test_random_programs(lane: str) -> None:
    count = 100
    seen = run(programs(lane), count, 11)
    floors = {**FLOORS, **(INT_FLOORS if lane == "int" else FLOAT_FLOORS)}
    rare = {name: seen[name] for name, floor in floors.items() if seen[name] < floor}
    assert not rare, f"too rare in {count} programs: {rare}"


@pytest.mark.parametrize(("strategy", "feature"), [(ragged, "ragged extent"), (stopped, "until"), (hosted, "effect")])
def test_special_programs(strategy: Callable[[], Any], feature: str) -> None:
    assert run(strategy(), 30, 5)[feature] >= 10
