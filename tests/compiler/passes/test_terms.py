"""Sums of sums and of contractions with the reader are running results, term by term."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr

t, T = pr.dim("t")
x, y, v = pr.input("x", (), (t,)), pr.input("y", (), (t,)), pr.input("v", (3,), (t,))
w = pr.input("w", (3, 2), (t,))

RANGES: dict[str, Callable[[pr.Tensor], pr.Tensor]] = {"grows": lambda a: a[0 : t + 1], "shrinks": lambda a: a[t:T]}
Reduction = Callable[[Callable[[pr.Tensor], pr.Tensor]], pr.Tensor]
DIRECT: dict[str, Reduction] = {
    "difference": lambda near: ((near(x) - y) * near(y)).sum(0),
    "square of a distance": lambda near: pr.square(near(x) - y).sum(0),
    "scalar product": lambda near: (near(v) @ v).sum(0),
    "weighted scalar product": lambda near: ((near(v) @ v - x) * near(y)).sum(0),
    "matrix": lambda near: (pr.einsum("sk,ka->sa", near(v), w) * near(y).unsqueeze(1)).sum(0),
    "quotient": lambda near: ((near(x) + y) / (2.0 + y * y)).sum(0),
    "negated": lambda near: (near(y) - (near(x) + x) * x).sum(0),
}
SLOPES: dict[str, Reduction] = {
    "pooled": lambda near: pr.softmax(near(x), 0) @ near(v),
    "pooled scores": lambda near: (pr.softmax(near(x) * 2.0, 0) * near(x)).sum(0),
    "pooled distances": lambda near: (pr.softmax(near(x), 0) * (near(y) - y)).sum(0),
    "entropy": lambda near: -(pr.softmax(near(x), 0) * pr.log_softmax(near(x), 0)).sum(0),
    "matrices": lambda near: pr.einsum("s,ska->ka", pr.softmax(near(x), 0), near(w)),
    "scalar product": lambda near: ((near(v) @ v) * near(y)).sum(0),
}
FREE = {"matrix"}
"""Reductions that stay as they are: a result of every pair is wanted."""


def given(steps: int, names: set[str]) -> dict[str, Any]:
    random = np.random.default_rng(steps)
    every = {
        "x": random.normal(size=steps),
        "y": random.normal(size=steps),
        "v": random.normal(size=(steps, 3)),
        "w": random.normal(size=(steps, 3, 2)),
    }
    return {name: value.astype("float32") for name, value in every.items() if name in names}


def running(program: pr.Program) -> list[str]:
    return [note.rule for note in program.compiled.notes if note.by == "ranges" and not note.refused]


@pytest.mark.parametrize("way", RANGES)
@pytest.mark.parametrize("backend", ["jax", "numpy"])
def test_equal_to_the_oracle(way: str, backend: str) -> None:
    outputs = {name: made(RANGES[way]) for name, made in DIRECT.items()}
    program = pr.compile(outputs, backend=backend)
    for name, output in outputs.items():
        assert bool(running(pr.compile(output, backend="numpy"))) or name in FREE, name
    for steps in (0, 1, 16, 17, 18, 30):
        inputs = given(steps, {"x", "y", "v", "w"})
        want, found = pr.evaluate(outputs, inputs), program(**inputs)
        for name in outputs:
            np.testing.assert_allclose(found[name], want[name], rtol=1e-4, atol=1e-4, err_msg=f"{name} at {steps}")


@pytest.mark.parametrize("way", RANGES)
@pytest.mark.parametrize("name", SLOPES)
def test_gradients(name: str, way: str) -> None:
    value = SLOPES[name](RANGES[way])
    loss = pr.square(value)[0:T].sum()
    leaves = {"x": x, "y": y, "v": v, "w": w}
    gradients = dict(zip(leaves, pr.grad(loss, list(leaves.values())), strict=True))
    program = pr.compile(gradients, backend="jax" if way == "grows" else "numpy")
    for steps in (1, 17, 29):
        inputs = given(steps, set(program.compiled.graph.inputs))
        want, found = pr.evaluate(gradients, inputs, {T: steps}), program(**inputs, bounds={T: steps})
        for leaf in gradients:
            np.testing.assert_allclose(found[leaf], want[leaf], rtol=2e-4, atol=2e-5, err_msg=f"{leaf} at {steps}")


def test_scores_that_are_not_finite() -> None:
    """A step that is masked out has no share, whatever its value; where all are, the result is that of the oracle."""
    pooled = pr.softmax(x[0 : t + 1], 0) @ v[0 : t + 1]
    loss = pr.square(pr.where(t >= 2, pooled, 0.0))[0:T].sum()
    gradients = pr.grad(loss, [x, v])
    program = pr.compile(gradients)
    inputs = given(24, {"x", "v"})
    inputs["x"][[2, 5, 11, 23]] = -np.inf
    for found, want in zip(program(**inputs), pr.evaluate(gradients, inputs), strict=True):
        np.testing.assert_allclose(found, want, rtol=2e-4, atol=2e-5)


def test_terms_that_nearly_cancel() -> None:
    """What is left of them is exact to the rounding of their sums, as it is where the recurrence is written by hand."""
    pooled = (pr.softmax(x[0 : t + 1], 0) * y[0 : t + 1]).sum(0)
    inputs, far = given(300, {"x", "y"}), 1000.0
    inputs["y"] += np.float32(far)
    scores, values = inputs["x"].astype("float64"), inputs["y"].astype("float64")
    want = np.zeros(300)
    for step in range(300):
        share = np.exp(scores[: step + 1] - scores[: step + 1].max())
        share /= share.sum()
        want[: step + 1] += share * (values[: step + 1] - share @ values[: step + 1])
    found = np.asarray(pr.compile(pr.grad(pooled[0:T].sum(), x))(**inputs))
    assert np.abs(found - want).max() <= 100 * far * np.finfo("float32").eps
