"""Recurrences that accumulate become batch operations, or are left as they are for a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from tests.compiler.passes.cases import after, operations, rules

X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
Combine = Callable[[pr.Tensor, pr.Tensor], pr.Tensor]
COMBINE: dict[str, Combine] = {
    "sum": lambda a, b: a + b,
    "prod": lambda a, b: b * a,
    "max": pr.maximum,
    "min": lambda a, b: pr.minimum(b, a),
}


def forwards(x: pr.Tensor, t: pr.Dim, combine: Combine) -> pr.Tensor:
    y = pr.recurrent((3,), (t,))
    y[0] = x[0]
    y[t + 1] = combine(y, x[t + 1])
    return y


def backwards(x: pr.Tensor, t: pr.Dim, T: pr.Bound, combine: Combine) -> pr.Tensor:
    y = pr.recurrent((3,), (t,))
    y[T - 1] = x[T - 1] * 2
    y[t < T - 1] = combine(y[t + 1], x)
    return y


@pytest.mark.parametrize("monoid", COMBINE)
@pytest.mark.parametrize("reverse", [False, True])
def test_the_last_step_is_a_reduction(monoid: str, reverse: bool) -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    y = backwards(x, t, T, COMBINE[monoid])[0] if reverse else forwards(x, t, COMBINE[monoid])[T - 1]
    graph, notes = after([y], {"x": X})
    assert "reduction" in rules(notes)
    assert "reduce" in operations(graph)
    assert not any(node.recurrent for node in graph)


@pytest.mark.parametrize("monoid", COMBINE)
@pytest.mark.parametrize("reverse", [False, True])
def test_all_steps_are_a_running_reduction(monoid: str, reverse: bool) -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    y = backwards(x, t, T, COMBINE[monoid]) if reverse else forwards(x, t, COMBINE[monoid])
    graph, notes = after([(y[0:T] * y[0:T]).sum(0)], {"x": X})
    assert f"running-{monoid}" in rules(notes)
    assert "cumulative" in operations(graph)


def discounted(x: pr.Tensor, t: pr.Dim, T: pr.Bound, factor: pr.Tensor | float, reverse: bool) -> pr.Tensor:
    """`y[t] = x[t] + factor * y[t - 1]`, or from the other end."""
    y = pr.recurrent((3,), (t,))
    factor = factor if isinstance(factor, pr.Tensor) else pr.constant(np.float32(factor))
    varies = t.symbol in factor.symbols
    if reverse:
        y[T - 1] = x[T - 1]
        y[t < T - 1] = factor * y[t + 1] + x
    else:
        y[0] = x[0] * 2
        y[t + 1] = x[t + 1] + y * (factor[t + 1] if varies else factor)
    return y


FACTORS: dict[str, Callable[[pr.Tensor], Any]] = {
    "number": lambda w: 0.9,
    "each": lambda w: w,
    "scalar": lambda w: w.sum(0),
}


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_linear_recurrence_is_one_scan(factor: str, reverse: bool) -> None:
    t, T = pr.dim("t")
    x, w = pr.input("x", (3,), (t,)), pr.input("w", (3,), (t,))
    y = discounted(x, t, T, FACTORS[factor](w), reverse)
    graph, notes = after([(y[0:T] * y[0:T]).sum(0), x, w], {"x": X, "w": X})
    assert "linear-scan" in rules(notes)
    assert "linear_scan" in operations(graph)
    assert not any(node.recurrent for node in graph)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("steps", [0, 1, 2, 7])
@pytest.mark.parametrize("reverse", [False, True])
def test_linear_recurrences_of_any_length(backend: str, steps: int, reverse: bool) -> None:
    t, T = pr.dim("t")
    x, w = pr.input("x", (3,), (t,)), pr.input("w", (3,), (t,))
    y, z = discounted(x, t, T, w, reverse), discounted(-x, t, T, w, reverse)
    outputs = {"all": y[0:T] * 2, "end": pr.where(T > 0, z[0 if reverse else T - 1], pr.zeros((3,)))}
    program = pr.compile(outputs, backend=backend)
    assert any(note.rule == "linear-scan" and not note.refused for note in program.compiled.notes)
    rng = np.random.default_rng(steps)
    given: dict[str, Any] = {name: rng.normal(size=(steps, 3)).astype(np.float32) for name in ("x", "w")}
    found = program(**given)
    expected = np.zeros((steps, 3), np.float32)
    order = range(steps)[::-1] if reverse else range(steps)
    before = None
    for k in order:
        own = given["x"][k] * (2 if before is None and not reverse else 1)
        before = expected[k] = own if before is None else own + given["w"][k] * before
    np.testing.assert_allclose(found["all"], 2 * expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["end"], np.zeros(3) if before is None else -before, rtol=1e-5, atol=1e-6)
    oracle = pr.evaluate(outputs, given)
    for name in outputs:
        np.testing.assert_allclose(found[name], oracle[name], rtol=1e-5, atol=1e-6)


def test_a_gradient_reads_the_scan_step_by_step() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    y = discounted(x, t, T, 0.9, reverse=True)
    (slope,) = pr.grad((y[0:T] * y[0:T]).sum(), [x])
    graph, notes = after([slope[0:T] * 2], {"x": X})
    # The way back from the first step on is a circle of plain nodes, whose steps are wanted one by one.
    assert rules(notes).count("linear-scan") == 1
    (scan,) = (d for node in graph for d in node.definitions if d.op == "linear_scan")
    assert scan.attributes["reverse"]


def test_not_where_a_factor_depends_on_the_recurrence() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    y = pr.recurrent((3,), (t,))
    y[0] = x[0]
    y[t + 1] = y * pr.sigmoid(y.sum(0)) + x[t + 1]
    assert reasons([y[T - 1]]) == ["an element depends on the recurrence itself"]


def test_large_factors_do_no_harm() -> None:
    t, T = pr.dim("t")
    x, w = pr.input("x", (3,), (t,)), pr.input("w", (3,), (t,))
    given: dict[str, Any] = {"x": np.zeros((6, 3), np.float32), "w": np.full((6, 3), 1e30, np.float32)}
    program = pr.compile(discounted(x, t, T, w, False)[0:T] * 2, backend="numpy")
    assert (program(**given) == 0).all()


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_stencils_need_no_lifting(steps: int) -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    y = pr.recurrent((3,), (t,))
    y[(t > 0) & (t < T - 1)] = 0.25 * x[t - 1] + 0.5 * x + 0.25 * x[t + 1]
    y[pr.otherwise] = x * 1.0
    program = pr.compile(y, backend="numpy")
    assert all(line.startswith("for all") for line in str(program.schedule).splitlines() if line.startswith("for"))
    given: dict[str, Any] = {"x": X[:1].repeat(steps, 0) * np.arange(1, steps + 1, dtype=np.float32)[:, None]}
    padded = np.pad(given["x"], ((1, 1), (0, 0)))
    expected = 0.25 * padded[:-2] + 0.5 * padded[1:-1] + 0.25 * padded[2:]
    expected[[0, -1]] = given["x"][[0, -1]]
    np.testing.assert_allclose(program(**given), expected, rtol=1e-5, atol=1e-6)


def test_truth_values() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    seen = pr.recurrent((3,), (t,), "bool")
    seen[0] = x[0] > 1
    seen[t + 1] = seen | (x[t + 1] > 1)
    _, notes = after([pr.cast(seen[0:T], "int32").sum(0)], {"x": X})
    assert "running-any" in rules(notes)


def reasons(outputs: list[pr.Tensor]) -> list[str]:
    _, notes = after(outputs, {"x": X})
    assert not {"reduction", "running-sum"} & set(rules(notes))
    return [note.what for note in notes if note.by == "lift"]


def test_not_where_an_element_depends_on_the_recurrence() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    y = pr.recurrent((3,), (t,))
    y[0] = x[0]
    y[t + 1] = y + pr.tanh(y * x[t + 1])
    assert reasons([y[T - 1]]) == ["an element depends on the recurrence itself"]


def test_not_where_elements_are_made_step_by_step() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    y = forwards(pr.tanh(x), t, COMBINE["sum"])
    assert reasons([y[T - 1]]) == ["its elements are made step by step, and all would have to be kept"]


def test_not_where_the_last_step_of_a_linear_recurrence_is_all_that_is_read() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    last = discounted(x, t, T, 0.9, False)[T - 1]
    assert reasons([last]) == ["only its last step is read, and all would have to be kept"]


def test_not_where_steps_are_wanted_one_by_one() -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    assert reasons([forwards(x, t, COMBINE["sum"])]) == ["its steps are wanted one by one"]


def test_not_for_a_backend_that_compiles_loops() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    program = pr.compile(forwards(x, t, COMBINE["sum"])[T - 1])
    assert "lift: refused running-sum" in program.explain(level=2)
    linear = pr.compile(discounted(x, t, T, 0.9, True)[0:T] * 2)
    assert "lift: refused linear-scan" in linear.explain(level=2)
    assert "this backend compiles loops, and steps as fast" in linear.explain(level=2)
    np.testing.assert_allclose(program(x=X), X.sum(0), rtol=1e-5)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_streams_still_come_step_by_step(backend: str) -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    program = pr.compile({"x": x * 2, "y": forwards(x, t, COMBINE["sum"])[T - 1]}, backend=backend)
    assert any(note.rule == "reduction" for note in program.compiled.notes)
    np.testing.assert_allclose(np.asarray(program(x=X)["y"]), X.sum(0), rtol=1e-5)
    steps = list(program.stream(over=t, x=X))
    assert len(steps) == len(X)


def test_it_saves_steps() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    y = forwards(x, t, COMBINE["sum"])[T - 1]
    assert "for" not in pr.compile(y, backend="numpy").schedule
    with pr.settings(without=("lift",)):
        assert "for" in pr.compile(y, backend="numpy").schedule
