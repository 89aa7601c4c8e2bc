"""Guards: neighbours under the same one are one part, and loops inside are seen to be independent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.ir.conditions import conjunction, ge
from polyrhythm.compiler.ir.terms import ZERO, Symbol, Term
from polyrhythm.compiler.loops.guards import joined
from polyrhythm.compiler.loops.ir import Block, For, If, Item, LoopProgram, walk

I, T = (Symbol(name, "bound") for name in "IT")
t, s = (Symbol(name, "dim", serial=-12) for name in "ts")
SOME = ge(Term.of(I), 1)


def block(name: str) -> Block:
    return Block(name, (), ())


def together(*items: Item, found: tuple[Symbol, ...] = ()) -> tuple[Item, ...]:
    return joined(LoopProgram({}, {}, (), items, (I, T), found)).body


def loop(counter: Symbol, *body: Item) -> For:
    return For(counter, ZERO, Term.of(T), body, parallel=True)


def test_neighbours_under_the_same_guard() -> None:
    late = conjunction(SOME, ge(Term.of(t), 2))
    items = (If(SOME, (block("a"),)), If(SOME, (loop(t, block("b")),)), If(late, (block("c"),)), block("d"))
    found = together(loop(s, *items))
    assert found == (loop(s, If(SOME, (block("a"), loop(t, block("b")))), *items[2:]),)


def test_a_bound_that_is_found_may_change() -> None:
    two = (If(SOME, (block("a"),)), If(SOME, (block("b"),)))
    assert together(*two, found=(I,)) == two
    assert together(*two) == (If(SOME, (block("a"), block("b"))),)


@pytest.mark.parametrize("iterations", [0, 1, 3])
def test_a_training_loop(iterations: int) -> None:
    """Its first iteration is guarded by there being one, and is done all at once like the others."""
    i, bound = pr.dim("i")
    b, B = pr.dim("b")
    x = pr.input("x", (2,), (i, b))
    w = pr.recurrent((2,), ((i, bound + 1),))
    loss = (pr.tanh(x * w) * x)[{b: slice(0, B)}].sum()
    w[0] = pr.input("start", (2,))
    w[i + 1] = w - 0.1 * pr.grad(loss, w)
    program = pr.compile({"last": w[bound], "loss": loss})
    for item in walk(program.backend.program.body):
        if isinstance(item, For) and item.parallel:
            assert not any(isinstance(inner, If) for inner in walk(item.body))
    given: dict[str, Any] = {
        "x": np.random.default_rng(0).normal(size=(iterations, 3, 2)).astype("float32"),
        "start": np.ones(2, "float32"),
    }
    expected = pr.evaluate({"last": w[bound], "loss": loss}, given)
    found = program(**given)
    for name in expected:
        np.testing.assert_allclose(np.asarray(found[name]), expected[name], rtol=1e-5)
