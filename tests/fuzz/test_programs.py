"""Random programs against the brute force: a fixed number, the same ones every time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis.strategies import SearchStrategy

from tests.fuzz.check import COUNTS, check, drawn
from tests.fuzz.features import features, table
from tests.fuzz.program import Program
from tests.fuzz.programs import programs, small_programs
from tests.fuzz.special import aligned, begun, hosted, paired, ragged, recalled, running, stopped, swept
from tests.fuzz.spellings import check_spellings

# Features that at least so many of 160 programs of a lane have; the numbers are about half of what is usual.
OFTEN = {
    "recursion": 80,
    "index condition": 80,
    "constant point": 60,
    "past point": 50,
    "left point": 50,
    "range": 60,
    "clamped point": 40,
    "read by name": 40,
    "left shifted": 40,
    "1 dims": 40,
    "2 dims": 40,
    "bound 4": 40,
    "op where": 30,
    "op cast": 30,
    "dynamic sum": 20,
    "future point": 30,
    "point from the end": 25,
    "left whole": 25,
    "left otherwise": 20,
    "left condition": 20,
    "index as a value": 20,
    "prefix range": 20,
    "suffix range": 15,
    "extent T + 1": 15,
    "axes": 15,
    "left mirrored": 15,
    "recursion over a range": 15,
}
SOMETIMES = (
    "3 dims",
    "4 dims",
    "bound 0",
    "bound 1",
    "bound 2",
    "bound 3",
    "bound 5",
    "bound 9",
    "mirrored point",
    "strided point",
    "point // or %",
    "point by another dim",
    "chained views",
    "indexed expression",
    "window range",
    "clamped window range",
    "constant range",
    "full range",
    "strided range",
    "negative step",
    "two slices",
    "window",
    "left of two dims",
    "left strided",
    "left point from the end",
    "recursion along two dims",
    "mutual recursion",
    "dynamic max",
    "dynamic min",
    "dynamic cumsum",
    "dynamic concat",
    "dynamic pad",
    "dynamic flip",
    "dynamic @",
    "dynamic transpose",
    "dynamic reshape",
    "op stack",
    "op concat",
    "op flip",
    "op reshape",
    "op take",
    "op one_hot",
    "op transpose",
)
IN_LANE = {
    "int": ("dynamic argmax", "dynamic sort", "dynamic prod", "dynamic any", "dynamic all", "op %", "op ^"),
    "float": ("dynamic mean", "dynamic logsumexp", "dynamic softmax", "op tanh", "op exp", "op /"),
}


@pytest.mark.parametrize("lane", ["int", "float"])
def test_every_feature_occurs(lane: str) -> None:
    """Drawn only, not evaluated. From many seeds, for programs of one seed resemble each other."""
    seen: Counter[str] = Counter()
    for number in range(8):

        @seed(number)
        @settings(max_examples=20, derandomize=False, database=None, suppress_health_check=list(HealthCheck))
        @given(programs(lane))
        def examples(program: Program) -> None:
            seen.update(features(program))

        examples()
    print(table(seen, 160))
    floors = {**OFTEN, **dict.fromkeys((*SOMETIMES, *IN_LANE[lane]), 1)}
    rare = {name: seen[name] for name, floor in floors.items() if seen[name] < floor}
    assert not rare, f"too rare: {rare}"


def run(strategy: SearchStrategy[Program], count: int, number: int) -> Counter[str]:
    """Check so many programs; how often each feature occurred."""
    seen: Counter[str] = Counter()
    total = 0

    def example(program: Program) -> None:
        nonlocal total
        total += 1
        seen.update(features(program) if check(program) else ["not shown to progress"])

    drawn(strategy, example, count, number)
    print(table(seen, total))
    assert total >= count
    assert seen["not shown to progress"] <= count // 20
    return seen


@pytest.mark.parametrize("lane", ["int", "float"])
def test_random_programs(lane: str) -> None:
    before = COUNTS.copy()
    run(programs(lane), 20, 1100)
    ran = {backend: COUNTS[f"{backend} ran"] - before[f"{backend} ran"] for backend in ("numpy", "torch", "jax")}
    print(f"compiled and run: {ran}")
    assert ran["numpy"] >= 16
    assert min(ran.values()) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("lane", ["int", "float"])
def test_two_spellings(lane: str) -> None:
    drawn(small_programs(lane), check_spellings, 30, 4)


@pytest.mark.parametrize(
    ("strategy", "feature", "count"),
    [
        (ragged, "ragged extent", 20),
        (stopped, "until", 20),
        (hosted, "effect", 20),
        (paired, "point by another dim", 20),
        (swept, "clamped point", 20),
        (aligned, "index condition", 20),
        (running, "prefix range", 25),
        (recalled, "recursion over a range", 20),
        pytest.param(begun, "until by a recurrence", 40, marks=pytest.mark.slow),
    ],
)
def test_special_programs(strategy: Callable[[], Any], feature: str, count: int) -> None:
    assert run(strategy(), count, 5)[feature] >= 5
