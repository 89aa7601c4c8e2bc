"""Gradients of reads of one's own past by data: one table, added to step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.front_end import completed
from polyrhythm.compiler.ir.text import show
from polyrhythm.compiler.passes import optimised
from polyrhythm.compiler.trace import trace
from tests.compiler.gradients.differences import check

t, T = pr.dim("t")
x = pr.input("x", (3,), (t,), "float64")
index = pr.input("index", (), (t,), "int32")


def pointers() -> pr.Tensor:
    """Each step reads an earlier one, at a place that is given."""
    h = pr.recurrent((3,), ((t, T + 1),), "float64", name="h")
    h[0] = 0.5
    h[t + 1] = pr.tanh(pr.take(h[0 : t + 1], index, 0) * 0.9 + x)
    return h


def given(steps: int) -> dict[str, Any]:
    """Places before the first and after the last step so far are among them: they are clamped."""
    random = np.random.default_rng(steps)
    places = [random.integers(-1, k + 2) for k in range(steps)]
    return {"x": random.normal(size=(steps, 3)), "index": np.array(places, "int32")}


@pytest.mark.parametrize("steps", [0, 1, 2, 6])
def test_equal_to_differences(steps: int) -> None:
    h = pointers()
    check((h * h).sum(), x, "x", given(steps), {T: steps})


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_one_table_gives_the_same(backend: str) -> None:
    gradient = pr.grad(pr.square(pointers())[0 : T + 1].sum(), x)
    program = pr.compile(gradient, backend=backend)
    assert [note.rule for note in program.compiled.notes if note.by == "tables"] == ["one-table"]
    for steps in (0, 1, 2, 7):
        want = pr.evaluate(gradient, given(steps), {T: steps})
        np.testing.assert_allclose(program(**given(steps), bounds={T: steps}), want, rtol=1e-9, atol=1e-12)


def test_bytes_grow_with_the_steps() -> None:
    program = pr.compile(pr.grad(pr.square(pointers())[0 : T + 1].sum(), x))
    assert program.memory.peak({T: 20_000}) <= 2.1 * program.memory.peak({T: 10_000})


def test_the_past_of_an_input() -> None:
    """Several places at each step; the updates do not depend on the result."""
    places = pr.input("places", (2,), (t,), "int32")
    loss = pr.square(pr.take(x[0 : t + 1], places, 0)).sum()
    values: Any = {
        "x": np.random.default_rng(0).normal(size=(5, 3)),
        "places": np.array([[0, 0], [1, 0]] * 2 + [[4, 2]]),
    }
    values["places"] = values["places"].astype("int32")
    check(loss, x, "x", values)
    gradient = pr.grad(loss[0:T].sum(), x)
    np.testing.assert_allclose(pr.compile(gradient)(**values), pr.evaluate(gradient, values), rtol=1e-9)


def test_before_and_after(golden: Callable[[str, str], None]) -> None:
    graph = completed(trace([pr.grad(pointers()[T].sum(), x)]))
    stages: dict[str, str] = {}
    optimised(graph, inspect=lambda name, part: stages.update({name: show(part)}))
    golden("before", stages["contract"])
    golden("after", stages["tables"])
