"""The checker refuses exactly the programs that the brute force finds invalid, and its counterexamples are real."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, seed, settings

from tests.fuzz.brute import Brute
from tests.fuzz.mutate import KINDS, MUTATIONS, judge, mutants
from tests.fuzz.program import Apply, Arith, DimDecl, Int, Let, Literal, Name, Program, Read, Slice, Sym, Value


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


def test_ranges_of_products_with_python_numbers_are_floats() -> None:
    i = Sym("i")
    quarters = Let("h", Apply("*", (Value(i), Literal(0.25))))
    sums = Apply("sum", (Read(Name("h"), (Slice(Int(0), Arith("+", i, Int(1))),)),), (0,))
    program = Program((DimDecl("i"),), lets=(quarters,), outputs=(("o", sums),), bounds=(("I", 3),))
    values = [float(Brute(program, {}, {"I": 3}).at(sums, {"i": step}).v) for step in range(3)]
    assert values == [0.0, 0.25, 0.75]
