"""Cutting a loop: pieces come in order, and together they hold every iteration of every member, at any bound."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

import pytest

import polyrhythm as pr
from polyrhythm.compiler.ir.conditions import ge
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.loops.segments import Segment, apart, cut
from polyrhythm.compiler.loops.show import show
from polyrhythm.compiler.pipeline import compile_tensors

COUNTER = Symbol("t", "dim", serial=-11)
BOUND = Symbol("T", "bound")
T = Term.of(BOUND)
GIVEN = ge(T, 0)

Ranges = dict[str, list[tuple[Term, Term]]]


def pieces(segments: list[Segment], bound: int) -> list[tuple[range, tuple[str, ...]]]:
    """The iterations of each piece at a bound, and who is active in them."""
    return [(range(at(s.first, bound), at(s.end, bound)), s.active) for s in segments]


def at(term: Term, bound: int) -> int:
    return term.evaluate(lambda _: bound)


def check(ranges: Ranges, segments: list[Segment], least: int = 0) -> None:
    for bound in range(least, 9):
        found = pieces(segments, bound)
        visited = [step for steps, _ in found for step in steps]
        assert visited == sorted(set(visited)), f"T={bound}: pieces overlap or go back: {found}"
        for name, (first, end) in ((name, span) for name, spans in ranges.items() for span in spans):
            own = range(at(first, bound), at(end, bound))
            met = {step for steps, active in found if name in active for step in steps}
            assert met.issuperset(own), f"T={bound}: {name} misses {set(own) - met}"


def test_prologue_steady_state_epilogue() -> None:
    ranges = {"act": [(Term(0), T)], "learn": [(Term(2), T + 2)]}
    segments = cut(COUNTER, ranges, GIVEN, {})
    assert [s.active for s in segments] == [("act",), ("act", "learn"), ("learn",)]
    assert [(str(s.first), str(s.end)) for s in segments] == [("0", "2"), ("2", "max(2, T)"), ("max(2, T)", "T + 2")]
    check(ranges, segments)


def test_one_range_is_one_piece() -> None:
    ranges = {"a": [(Term(0), T)], "b": [(Term(0), T)]}
    (segment,) = cut(COUNTER, ranges, GIVEN, {})
    assert segment.active == ("a", "b")


def test_a_member_of_one_iteration() -> None:
    ranges = {"first": [(Term(-1), Term(0))], "rest": [(Term(0), T)]}
    segments = cut(COUNTER, ranges, GIVEN, {})
    assert [s.active for s in segments] == [("first",), ("rest",)]
    check(ranges, segments)


@pytest.mark.parametrize("seed", range(60))
def test_random_ranges(seed: int) -> None:
    random = Random(seed)
    ranges: Ranges = {}
    for number in range(random.randint(1, 4)):
        first = random.choice([Term(random.randint(-2, 3)), T - random.randint(-1, 3), -T + random.randint(0, 2)])
        length = random.choice([Term(random.randint(0, 2)), T, T + random.randint(-2, 2)])
        ranges[f"b{number}"] = [(first, first + length)]
    check(ranges, cut(COUNTER, ranges, GIVEN, {}))


def test_much_code_is_not_written_twice_for_one_iteration() -> None:
    ranges = {"body": [(Term(0), T)], "next": [(Term(0), T - 1)]}
    apart = cut(COUNTER, ranges, GIVEN, {}, {"body": 39, "next": 1})
    assert [s.active for s in apart] == [("body", "next"), ("body",)]
    (together,) = cut(COUNTER, ranges, GIVEN, {}, {"body": 40, "next": 10})
    assert set(together.active) == {"body", "next"}
    check(ranges, [together])
    assert len(cut(COUNTER, ranges, GIVEN, {}, {"body": 40, "next": 11})) == 2


def test_long_pieces_stay_apart() -> None:
    ranges = {"body": [(Term(0), T + T)], "next": [(Term(0), T)]}
    assert len(cut(COUNTER, ranges, GIVEN, {}, {"body": 1000, "next": 1})) == 2


def test_a_member_at_both_ends_is_left_out_in_between() -> None:
    ranges = {"borders": [(Term(0), Term(1)), (T - 1, T)]}
    segments = cut(COUNTER, ranges, ge(T, 1), {})
    assert [(str(s.first), str(s.end)) for s in segments] == [("0", "1"), ("max(1, T - 1)", "T")]
    check(ranges, segments, 1)
    (whole,) = cut(COUNTER, ranges, GIVEN, {})  # without a step, the last one would be the one before the first
    check(ranges, [whole])


def test_spans_with_a_short_gap_are_one() -> None:
    spans = [(T - 1, T), (Term(0), Term(1)), (Term(3), Term(4))]
    assert apart(spans, GIVEN, {}) == [(Term(0), Term(4)), (T - 1, T)]


def two_recurrences(first: str, second: str) -> list[pr.Tensor]:
    """The second follows the first and goes on when that has ended, or ends before it."""
    (a, A), (b, B) = pr.dim(first), pr.dim(second)
    x, y = pr.input("x", (), (a,)), pr.input("y", (), (b,))
    u, v = pr.recurrent((), (a,)), pr.recurrent((), (b,))
    u[0] = x[0]
    u[a + 1] = u + x[a + 1]
    v[0] = y[0]
    v[b + 1] = v + y[b + 1] + u[pr.min(b, A - 1)]
    return [v[B - 1], u[A - 1]]


def two_marks(first: str, second: str) -> list[pr.Tensor]:
    """Definitions that begin and end at free sizes."""
    t, T = pr.dim("t")
    P, Q = pr.size(first), pr.size(second)
    x = pr.input("x", (), (t,))
    u = pr.recurrent((), (t,))
    u[t < P] = x
    u[(t >= P) & (t < P + Q)] = u[t - 1] + 1
    u[pr.otherwise] = u[t - 1] * x
    return [u[0:T].sum(0)]


@pytest.mark.parametrize("build", [two_recurrences, two_marks])
def test_names_decide_nothing(build: Callable[[str, str], list[pr.Tensor]]) -> None:
    """A bound was given a large value made from the letters of its name, and loops were cut in the order of these."""
    found = set()
    for names in [("p", "q"), ("q", "p"), ("a", "z"), ("z", "a"), ("zz", "b"), ("b", "zz")]:
        text = show(compile_tensors(build(*names)).loops)
        for name, other in zip(names, ("first", "second"), strict=True):
            text = re.sub(rf"\b{name}\b", f"<{other}>", re.sub(rf"\b{name.upper()}\b", f"<{other.upper()}>", text))
        # A conjunction or an extremum names its parts in alphabetical order.
        found.add(tuple("".join(sorted(line)) for line in text.splitlines()))
    assert len(found) == 1
