"""What is not on the cycle of a recurrence runs before or after it, all steps at once; edges of loops are masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.loops.ir import For, blocks_of, walk

WIDTH = 4


def smoothed() -> tuple[dict[str, pr.Tensor], pr.Bound]:
    """A recurrence that reads softmaxes, and its gradient, which goes on into theirs."""
    t, T = pr.dim("t")
    x = pr.input("x", (WIDTH,), (t,), "float64")
    shares = pr.softmax(x)
    h = pr.recurrent((WIDTH,), (t,), "float64")
    h[0] = shares[0]
    h[t + 1] = pr.tanh(0.5 * h + shares[t + 1])
    return {"h": h, "x": pr.grad(pr.square(h)[0:T].sum((0, 1)), x)}, T


def _serial(program: pr.Program) -> set[str]:
    """The operations in loops that go step by step."""
    loops = [item for item in walk(program.compiled.loops.body) if isinstance(item, For) and not item.parallel]
    return {compute.op for loop in loops for block in blocks_of(loop.body) for compute in block.body}


@pytest.mark.parametrize("without", [(), ("distribute",)])
def test_reductions_stay_out_of_a_recurrence(without: tuple[str, ...]) -> None:
    outputs, T = smoothed()
    with pr.settings(without=without):
        program = pr.compile(outputs)
    assert ("reduce" in _serial(program)) == bool(without)
    assert any(note.by == "distribute" for note in program.compiled.notes) == (not without)
    for steps in (0, 1, 2, 6):
        given: dict[str, Any] = {"x": np.random.default_rng(steps).normal(size=(steps, WIDTH))}
        want = pr.evaluate(outputs, given, {T: steps})
        for name, found in program(**given, bounds={T: steps}).items():
            np.testing.assert_allclose(found, want[name], rtol=1e-9, atol=1e-12)


def test_under_a_budget_memory_comes_first() -> None:
    t, T = pr.dim("t", min=1)
    x = pr.input("x", (WIDTH,), (t,))
    h = pr.recurrent((WIDTH,), (t,))
    shares = pr.softmax(x)
    h[0] = shares[0]
    h[t + 1] = pr.tanh(0.5 * h + shares[t + 1])
    last = {"h": h[T - 1]}
    assert "reduce" not in _serial(pr.compile(last))
    assert "reduce" in _serial(pr.compile(last, memory_budget="64MB"))


@pytest.mark.parametrize(("rows", "stays"), [(1, True), (8, True), (64, False)])
def test_a_product_of_many_rows_is_not_stored_for_all_steps(rows: int, stays: bool) -> None:
    """What would pass leaves the cache: writing and reading it takes longer than starting the product at each step."""
    t, T = pr.dim("t")
    x, w = pr.input("x", (rows, 64), (t,)), pr.input("w", (64, 256))
    h = pr.recurrent((rows, 256), ((t, T + 1),))
    h[0] = 0.0
    h[t + 1] = pr.tanh(h + x @ w)
    program = pr.compile({"h": h[t + 1]})
    assert ("einsum" not in _serial(program)) == stays
    random = np.random.default_rng(0)
    given: dict[str, Any] = {"x": random.normal(size=(3, rows, 64)), "w": random.normal(size=(64, 256)) / 8}
    given = {name: array.astype("float32") for name, array in given.items()}
    np.testing.assert_allclose(program(**given)["h"], pr.evaluate({"h": h[t + 1]}, given)["h"], rtol=1e-3, atol=1e-5)


def test_what_is_read_at_the_same_step_stays_out_too() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (WIDTH,), (t,), "float64")
    h = pr.recurrent((WIDTH,), ((t, T + 1),), "float64")
    h[0] = 0.0
    h[t + 1] = pr.tanh(0.5 * h + pr.softmax(x))
    program = pr.compile({"h": h})
    assert "reduce" not in _serial(program)
    given: dict[str, Any] = {"x": np.random.default_rng(0).normal(size=(5, WIDTH))}
    np.testing.assert_allclose(program(**given)["h"], pr.evaluate({"h": h}, given)["h"], rtol=1e-12)


@pytest.mark.parametrize("without", [(), ("mask",)])
def test_one_vectorised_loop_with_a_mask_at_its_edge(without: tuple[str, ...]) -> None:
    """At the first step nothing is read of the step before; what the mask hides there would not be finite."""
    t, T = pr.dim("t")
    x = pr.input("x", (WIDTH,), (t,), "float64")
    before = pr.softmax(x[t - 1] / pr.value(t), 0) @ x[t - 1]
    later = pr.log(pr.square(x[t + 1]).sum())
    y = pr.where(t >= 1, before, 0.25) + pr.where(t + 1 < T, later, -1.0)
    outputs = {"y": y, "x": pr.grad(pr.square(y)[0:T].sum(), x)}
    with pr.settings(without=without):
        program = pr.compile(outputs)
    for steps in (0, 1, 2, 3, 9):
        given: dict[str, Any] = {"x": np.random.default_rng(steps).normal(size=(steps, WIDTH))}
        want = pr.evaluate(outputs, given, {T: steps})
        for name, found in program(**given, bounds={T: steps}).items():
            np.testing.assert_allclose(found, want[name], rtol=1e-9, atol=1e-12, err_msg=f"{name} {steps}")


def test_masks_save_a_copy_of_the_body() -> None:
    s, _ = pr.dim("s")
    j, J = pr.dim("j")
    x = pr.input("x", (WIDTH,), (s, j))
    seen = pr.softmax(x[s - 1, 0:J] @ x, 0) @ x[s - 1, 0:J]
    y = pr.tanh(x + pr.where(s >= 1, seen, 0.0))

    def softmaxes(without: tuple[str, ...]) -> int:
        with pr.settings(without=without):
            loops = pr.compile({"y": y}).compiled.loops
        return sum(compute.op == "tanh" for block in blocks_of(loops.body) for compute in block.body)

    assert softmaxes(()) == 1
    assert softmaxes(("mask",)) == 2
