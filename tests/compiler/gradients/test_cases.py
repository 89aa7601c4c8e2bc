"""Gradients of clamped, divided and wrapped reads: right at every edge, in bytes that grow with the steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.gradients.cases import by_cases, replaced
from polyrhythm.compiler.ir.conditions import disjunction, ge
from polyrhythm.compiler.ir.graph import Access
from polyrhythm.compiler.ir.sets import solutions
from polyrhythm.compiler.ir.terms import FloorDiv, Symbol, Term, maximum, minimum
from tests.compiler.gradients.differences import check

t, T = pr.dim("t")
x = pr.input("x", (), (t,), "float64")

READS: dict[str, Callable[[], pr.Tensor]] = {
    "clamped below": lambda: x[pr.max(0, t - 3)],
    "clamped above": lambda: x[pr.min(T - 1, t + 3)],
    "clamped twice": lambda: x[pr.max(0, pr.min(T - 1, t + 3) - 2)],
    "clamped from the end": lambda: x[pr.max(0, T - 2 - t)],
    "ties": lambda: x[pr.max(t, T - 1 - t)],
    "three arguments": lambda: x[pr.min(pr.min(t, T - 1 - t), 3)],
    "remainder": lambda: pr.where(t % 3 < T, x[pr.min(t % 3, T - 1)], 0.0),
    "remainder of a sum": lambda: x[pr.min((t + 5) % 4, T - 1)],
    "clamped remainder": lambda: x[pr.max(0, t - 2) % 3],
    "quotient": lambda: x[t // 3],
    "clamped quotient": lambda: x[pr.max(0, t - 1) // 2],
    "back from a remainder": lambda: x[t - t % 3],
    "doubled": lambda: x[pr.min(2 * t, T - 1)],
}
LENGTHS = (0, 1, 2, 3, 4, 9)


@pytest.mark.parametrize("steps", LENGTHS)
@pytest.mark.parametrize("name", READS)
def test_equal_to_differences(name: str, steps: int) -> None:
    values = np.random.default_rng(steps).normal(size=steps)
    check(pr.square(READS[name]()) * x, x, "x", {"x": values}, {T: steps})


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_compiled(backend: str) -> None:
    for name, read in READS.items():
        gradient = pr.grad((pr.square(read()) * x)[0:T].sum(), x)
        program = pr.compile(gradient, backend=backend)
        for steps in LENGTHS:
            values = np.random.default_rng(steps).normal(size=steps)
            want = pr.evaluate(gradient, {"x": values}, {T: steps})
            np.testing.assert_allclose(program(x=values), want, rtol=1e-6, atol=1e-9, err_msg=f"{name} at {steps}")


@pytest.mark.parametrize("name", READS)
def test_bytes_grow_with_the_steps(name: str) -> None:
    program = pr.compile(pr.grad((pr.square(READS[name]()) * x)[0:T].sum(), x))
    assert program.memory.peak({T: 20_000}) <= 2.1 * program.memory.peak({T: 10_000})


@pytest.mark.parametrize("steps", LENGTHS)
def test_inside_the_recurrence_that_made_the_value(steps: int) -> None:
    y = pr.recurrent((), ((t, T + 1),), "float64")
    y[0] = 0.5
    y[t + 1] = pr.tanh(y[pr.max(0, t - 3)] * x + y[t // 2] - y[t - t % 2])
    check(y * y, x, "x", {"x": np.random.default_rng(0).normal(size=steps)}, {T: steps})


def test_a_recurrence_with_clamped_reads_takes_linear_bytes() -> None:
    y = pr.recurrent((), ((t, T + 1),), "float64")
    y[0] = 0.5
    y[t + 1] = pr.tanh(y[pr.max(0, t - 3)] * x)
    program = pr.compile(pr.grad(y[0 : T + 1].sum(), x))
    assert program.memory.peak({T: 20_000}) <= 2.1 * program.memory.peak({T: 10_000})


def test_second_derivatives() -> None:
    inner = pr.grad((x[pr.max(0, t - 2)] ** 3 * x)[0:T].sum(), x)
    check(inner * inner, x, "x", {"x": np.random.default_rng(0).normal(size=5)})


def test_gradients_that_are_not_finite_stay_where_they_are_read() -> None:
    """Infinite and undefined slopes at the clamped step spoil no other."""
    gradient = pr.grad(pr.log(x[pr.max(0, t - 2)])[0:T].sum(), x)
    found = pr.evaluate(gradient, {"x": np.array([0.0, 1.0, np.nan, 2.0, 4.0])})
    np.testing.assert_array_equal(found, [np.inf, 1.0, np.nan, 0.0, 0.0])
    np.testing.assert_array_equal(pr.compile(gradient)(x=np.array([0.0, 1.0, np.nan, 2.0, 4.0])), found)


def test_cases_cover_every_point_once() -> None:
    a, b = Term.of(Symbol("a", "dim")), Term.of(Symbol("b", "dim"))
    read = Access("x", (maximum(Term(0), minimum(a, b - 2), b - a),))
    cases = list(by_cases(read))
    assert len(cases) > 3
    for i in range(-4, 5):
        for j in range(-4, 5):
            at = {a.monomials[0][0][0]: i, b.monomials[0][0][0]: j}
            holding = [step for condition, step in cases if condition.evaluate(at.__getitem__)]
            assert len(holding) == 1
            (step,) = holding[0].steps
            assert isinstance(step, Term)
            assert step.evaluate(at.__getitem__) == max(0, min(i, j - 2), j - i)


def test_a_read_in_too_many_cases_is_left_alone() -> None:
    a, b = Term.of(Symbol("a", "dim")), Term.of(Symbol("b", "dim"))
    read = Access("x", tuple(maximum(Term(0), a - k, b - 2 * k) for k in range(3)))
    cases = list(by_cases(read))
    assert len(cases) <= 8
    whole = disjunction(*(condition for condition, _ in cases))
    assert solutions(whole).same(solutions(disjunction(whole, ge(a, 0), ge(0, a + 1))))


def test_atoms_are_replaced_inside_quotients() -> None:
    a = Symbol("a", "dim")
    half = FloorDiv(Term.of(a), 2)
    term = Term(0, (((half,), 1),)) * 3 + 1
    assert str(replaced(term, {half: Term.of(a) + 2})) == "3*a + 7"
    assert str(replaced(term // 2, {a: Term.of(a) * 2})) == str((Term.of(a) * 3 + 1) // 2)
