"""A value that is another at the edges has one definition with guarded reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.front_end import completed
from polyrhythm.compiler.ir.graph import Graph
from polyrhythm.compiler.passes.notes import Notes
from polyrhythm.compiler.passes.predicate import EDGE, predicate
from polyrhythm.compiler.trace import trace
from tests.compiler.ir.parse import parse
from tests.compiler.ir.verify import GrammarError, verify

t, T = pr.dim("t")
x = pr.input("x", (2,), (t,))
u = pr.tanh(x)


def checked(output: pr.Tensor) -> Graph:
    return completed(trace([output]))


def chosen(outputs: Any, compiled_loops: bool = True) -> list[str]:
    """The conditions of the guarded reads of a program."""
    graph = predicate(checked(outputs), Notes(compiled_loops=compiled_loops))
    verify(graph)
    found = [d for node in graph for d in node.definitions if d.op == "choose"]
    return [str(d.attributes["condition"]) for d in found]


def test_an_edge_is_a_guarded_read() -> None:
    assert chosen(pr.where(t >= 2, u[t - 2], 0.0)) == ["t >= 2"]
    assert chosen(pr.where(t < 2, 0.0, u[pr.max(0, t - 2)])) == ["t >= 2"]
    assert chosen(pr.where(t + 1 < T, u[t + 1], u)) == ["t <= T - 2"]


def test_what_is_no_edge_stays_in_pieces() -> None:
    P = pr.size("P", max=T)
    assert chosen(pr.where(t < P, u, 0.0)) == []
    assert chosen(pr.where(t > EDGE, u[t - EDGE], 0.0)) == []
    assert chosen(pr.where(t >= EDGE, u[t - EDGE], 0.0)) == [f"t >= {EDGE}"]
    assert chosen(pr.where(t >= 2, u[t - 2], 0.0), compiled_loops=False) == []


def test_values_of_other_lengths_stay_in_pieces() -> None:
    """Two steps have the shape of the window only where it is full."""
    graph = parse("""
bound T
dim t < T

x: f32 over t < T = input(name="x")
two: f32[2] over t < T = broadcast(x[t], shape=[2])
one: f32[1] over t < T = broadcast(x[t], shape=[1])
y: f32[t - max(0, t - 1) + 1] over t < T
  when t >= 1: copy(two[t])
  when t == 0: copy(one[t])
output y
""")
    verify(graph)
    after = predicate(graph, Notes())
    verify(after)
    assert len(after["y"].definitions) == 2


def test_a_recurrence_and_what_it_reads_stay_in_pieces() -> None:
    h = pr.recurrent((2,), (t,))
    h[t] = pr.tanh(x + pr.where(t >= 1, h[t - 1], 0.0))
    assert chosen(h) == []


def sweep(below: bool) -> pr.Tensor:
    """A row is made of the one before; its borders are along the other dim, or both along the same."""
    n, N = pr.dim("n")
    y = pr.recurrent((2,), ((n, N + 1), t))
    y[0] = x
    beside = pr.where(t >= 1, y[n, t - 1], 0.0)
    if below:
        beside = beside + pr.where(n >= 1, y[pr.max(0, n - 1), t], 1.0)
    y[n + 1, t] = pr.tanh(y + beside)
    return y


def test_edges_of_a_sweep_are_guarded_along_the_dim_that_runs_at_once() -> None:
    assert chosen(sweep(False)) == ["t >= 1"]
    assert chosen(sweep(True)) == ["t >= 1"]
    assert chosen(pr.grad(pr.square(sweep(False))[{t: slice(0, T)}].sum((0, 1))[1], x)) != []


def test_both_ends_are_an_edge() -> None:
    assert chosen(pr.where((t >= 1) & (t + 1 < T), u[pr.max(t - 1, 0)], 3.0)) == ["t <= T - 2 and t >= 1"]


@pytest.mark.parametrize("below", [False, True])
def test_sweeps_are_equal_to_the_oracle(below: bool) -> None:
    y = sweep(below)
    loss = pr.square(y)[y.dims[0], 0:T].sum((0, 1))[{y.dims[0]: 2}]
    outputs = {"y": y, "x": pr.grad(loss, x)}
    program = pr.compile(outputs)
    for steps in (1, 2, 5):
        given: dict[str, Any] = {"x": np.random.default_rng(steps).normal(size=(steps, 2)).astype("float32")}
        want = pr.evaluate(outputs, given, bounds={"N": 3})
        for name, found in program(bounds={"N": 3}, **given).items():
            np.testing.assert_allclose(found, want[name], rtol=1e-4, atol=1e-5)


def test_a_length_that_is_found_makes_no_edge() -> None:
    y = pr.recurrent((), (t,))
    y[0] = 1.0
    y[t + 1] = 2 * y
    outputs = {"y": pr.where(t + 1 < T, pr.tanh(y)[t + 1], 0.0)}
    program = pr.compile(outputs, until={t: y > 20})
    want = pr.evaluate(outputs, until={t: y > 20}, bounds={T: 9})["y"]
    np.testing.assert_allclose(program(bounds={T: 9})["y"], want, atol=1e-6)


def test_the_grammar_sees_a_guard_the_wrong_way() -> None:
    graph = predicate(checked(pr.where(t >= 2, u[t - 2], 0.0)), Notes(compiled_loops=True))
    (node,) = (node for node in graph if any(d.op == "choose" for d in node.definitions))
    (definition,) = node.definitions
    turned = replace(definition, operands=definition.operands[::-1])
    with pytest.raises(GrammarError, match="reads where"):
        verify(replace(graph, nodes={**graph.nodes, node.name: replace(node, definitions=(turned,))}))


EDGES = {
    "shift": lambda: pr.where(t >= 2, u[t - 2], 0.0) * u,
    "ahead": lambda: pr.where(t + 2 < T, u[t + 2], u[T - 1]),
    "nested": lambda: pr.where(t >= 1, pr.where(t >= 2, u[pr.max(0, t - 2)], 1.0)[t - 1], 2.0) + u,
    "both ends": lambda: pr.where((t >= 1) & (t + 1 < T), u[pr.max(t - 1, 0)] * u, 3.0),
    "clamped": lambda: u[pr.max(0, t - 3)] * u[pr.min(T - 1, t + 1)],
    "twice": lambda: (lambda v: pr.where(t >= 2, v[t - 2], 0.0) + v)(pr.sin(pr.where(t >= 1, u[t - 1], 0.5) + u)),
}


@pytest.mark.parametrize("backend", ["jax", "numpy", "torch"])
@pytest.mark.parametrize("name", EDGES)
def test_results_and_gradients_are_those_of_the_oracle(name: str, backend: str) -> None:
    value = EDGES[name]()
    outputs = {"y": value, "gradient": pr.grad((value**2)[0:T].sum((0, 1)), x)}
    program = pr.compile(outputs, backend=backend)
    for steps in (0, 1, 2, 3, 4, 9):
        inputs: dict[str, Any] = {"x": np.random.default_rng(steps).normal(size=(steps, 2)).astype("float32")}
        want, have = pr.evaluate(outputs, inputs), program(**inputs)
        for key in want:
            np.testing.assert_allclose(have[key], want[key], atol=1e-5, err_msg=f"{key} at T = {steps}")


def test_a_long_edge_inside_a_recurrence_is_guarded_and_its_loop_is_one() -> None:
    """Dilated reads of a recurrence: four edges would be four copies of its body."""
    d = pr.input("d", (), (t,))
    h = pr.recurrent((), ((t, T + 1),))
    h[0] = pr.constant(0.5)
    level = h + d
    for k in (2, 4, 8):
        level = pr.tanh(level + 0.5 * pr.where(t >= k, level[pr.max(0, t - k)], 0.0))
    h[t + 1] = level
    loss = (h[0 : T + 1] ** 2).sum(0)
    assert sorted(chosen(loss)) == ["t >= 2", "t >= 4", "t >= 8"]
    program = pr.compile([h[T], pr.grad(loss, d)])
    for steps in (1, 3, 5, 20):
        given: dict[str, Any] = {"d": np.linspace(-1, 1, steps, dtype=np.float32)}
        for got, wanted in zip(program(**given), pr.evaluate([h[T], pr.grad(loss, d)], given), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
