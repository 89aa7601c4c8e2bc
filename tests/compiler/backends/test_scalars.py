"""Index terms and conditions on JAX: right whichever symbols are known while tracing, and known where those are."""

from __future__ import annotations

import itertools
from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.backends.jax.trace.lowering import Lowering
from polyrhythm.compiler.ir.conditions import Condition, conjunction, disjunction, eq, ge, lt, ne
from polyrhythm.compiler.ir.terms import Symbol, Term, maximum, minimum
from polyrhythm.compiler.loops.ir import LoopProgram

X, Y, Z = (Symbol(name, "dim", serial=number) for number, name in enumerate("xyz", 1))
x, y, z = Term.of(X), Term.of(Y), Term.of(Z)

TERMS = {
    "sum": x * 2 - y + 3,
    "minimum": minimum(x, y + 1, Term(2)),
    "maximum": maximum(x - y, z, Term(1)),
    "quotient": (x * 3 - y) // 2,
    "remainder": (x - y * 2) % 3,
    "mixed": minimum(x // 2, maximum(y, z)) - x % 2,
}
CONDITIONS = {
    "at least": ge(x, y),
    "equal": eq(x, 1),
    "different": ne(x + y, 2),
    "and": conjunction(ge(x, 1), ne(y, 0), lt(z, 2)),
    "or": disjunction(eq(x, 0), eq(y, 1), eq(z, 2)),
    "or of and": disjunction(conjunction(ge(x, 1), eq(y, 1)), conjunction(lt(x, 1), eq(z, 0))),
    "and of or": conjunction(disjunction(ge(x, 1), eq(y, 1)), disjunction(lt(x, 1), eq(z, 0))),
}
KNOWN: list[set[Symbol]] = [set(), {X}, {Y, Z}, {X, Y, Z}]


@cache
def program() -> LoopProgram:
    """Any program: what its scalars are does not depend on it."""
    t, _ = pr.dim("t")
    return pr.compile(pr.input("x", (), (t,)) * 2).compiled.loops


def compare(what: Term | Condition, known: set[Symbol]) -> None:
    """Compare with the plain evaluation at every point of a small box; some symbols are arrays, the others numbers."""
    traced = [symbol for symbol in (X, Y, Z) if symbol not in known]
    points = np.array(list(itertools.product(range(3), repeat=len(traced))), np.int32)
    for numbers in itertools.product(range(3), repeat=len(known)):
        fixed = dict(zip(sorted(known, key=str), numbers, strict=True))
        arrays = {symbol: jnp.array(points[:, n]) for n, symbol in enumerate(traced)}
        lowering = Lowering(program(), {}, {**fixed, **arrays}, None)
        found = lowering.scalar(what) if isinstance(what, Term) else lowering.condition(what)
        assert isinstance(found, int) or not what.symbols <= known, "what is known while tracing is a number"
        for point, value in zip(points.tolist(), np.broadcast_to(np.asarray(found), len(points)).tolist(), strict=True):
            at = {**fixed, **dict(zip(traced, point, strict=True))}
            assert value == what.evaluate(at.__getitem__), f"{what} at {at}"


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: "".join(sorted(map(str, known))) or "nothing")
def test_terms(known: set[Symbol]) -> None:
    for term in TERMS.values():
        compare(term, known)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: "".join(sorted(map(str, known))) or "nothing")
def test_conditions(known: set[Symbol]) -> None:
    for condition in CONDITIONS.values():
        compare(condition, known)
