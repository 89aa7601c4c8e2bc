"""The checker against brute force: it accepts no program that is wrong at small bounds.

Compiled programs are changed at random, and run on expressions at all bounds from 0 to 6 (`simulate.py`). Whatever
is wrong there must be rejected. A change that does no harm may be rejected too: computing twice, or a point that
does not exist, is refused though nobody reads it, and some faults need larger bounds.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from polyrhythm.compiler.ir.conditions import negation
from polyrhythm.compiler.ir.graph import Graph
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.legality import IllegalProgramError, check_program
from polyrhythm.compiler.loops.ir import Block, Compute, Item, LoopProgram, mapped
from polyrhythm.compiler.loops.show import show
from tests.compiler.legality.mutants import mutant
from tests.compiler.loops.cases import BUILDERS, made
from tests.compiler.loops.simulate import wrong

QUICK = (
    "fibonacci",
    "filter",
    "even_odd",
    "windowed_attention",
    "n_step_returns",
    "td_lambda_returns",
    "common_subsequence",
    "clockwork",
    "generation",
    "logs",
    "nested_logs",
    "counting",
    "delayed_stop",
)
MOST = {0: 1, 1: 6, 2: 6, 3: 4}
"""The largest bound to try, by the number of bounds."""


@pytest.fixture(autouse=True)
def _deep_recursion() -> None:
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 20_000))


def most(graph: Graph) -> int:
    return MOST.get(sum(symbol.kind != "dim" for symbol in graph.symbols), 2)


def judged(graph: Graph, program: LoopProgram, count: int, seed: str) -> Counter[str]:
    """Change a program many times; how often it was rejected or accepted, rightly or not."""
    random = Random(seed)
    seen: Counter[str] = Counter()
    while seen.total() < count:
        found = mutant(program, random)
        if found is None:
            continue
        name, changed = found
        try:
            check_program(graph, changed)
            verdict = "accepted"
        except IllegalProgramError:
            verdict = "rejected"
        fault = wrong(graph, changed, most(graph))
        assert verdict == "rejected" or fault is None, f"{name}: {fault}\n{show(changed)}"
        seen[f"{'right' if fault is None else 'wrong'} {verdict}"] += 1
    return seen


@pytest.mark.parametrize("name", QUICK)
def test_wrong_programs_are_rejected(name: str) -> None:
    found = made(name)
    assert wrong(*found, most(found[0])) is None
    seen = judged(*found, count=12, seed=name)
    assert seen["wrong rejected"] >= 5, seen


@pytest.mark.parametrize("by", [-1, 1, None])
def test_another_choice_is_rejected(by: int | None) -> None:
    """A guarded read that chooses at other steps, one earlier, one later or all others, is wrong, and refused."""
    graph, program = made("n_step_returns")

    def otherwise(compute: Compute) -> Compute:
        if compute.op != "choose":
            return compute
        condition = compute.attributes["condition"]
        moved = {s: Term.of(s) + (by or 0) for s in condition.symbols if s.kind == "dim"}
        other = negation(condition) if by is None else condition.substitute(moved)
        return replace(compute, attributes={**compute.attributes, "condition": other})

    def in_item(item: Item) -> Item:
        if isinstance(item, Block):
            return replace(item, body=tuple(map(otherwise, item.body)))
        return item

    changed = replace(program, body=mapped(program.body, in_item))
    assert changed != program
    assert wrong(graph, changed, most(graph)) is not None
    with pytest.raises(IllegalProgramError):
        check_program(graph, changed)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDERS)
def test_many_wrong_programs_are_rejected(name: str) -> None:
    found = made(name)
    assert wrong(*found, most(found[0])) is None
    seen = judged(*found, count=100, seed=f"slow {name}")
    print(name, dict(seen))
