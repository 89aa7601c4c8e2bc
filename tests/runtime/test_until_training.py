"""Training runs that stop early: on a loss, a gradient, a validation score, or when nothing gets better."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import errors, optim

Form = tuple[dict[str, pr.Tensor], dict[pr.Dim, pr.Tensor]]

i, I = pr.dim("i")
k, K = pr.dim("k")
x, y, first = pr.input("x", (8, 3)), pr.input("y", (8,)), pr.input("first", (3,))
parts, goals = pr.input("parts", (4, 3), (k,)), pr.input("goals", (4,), (k,))


def given() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    made = random.normal(size=(8, 3)).astype("float32")
    wanted = (made @ np.array([1, -2, 0.5])).astype("float32")
    whole = {"x": made, "y": wanted, "first": np.zeros(3, "float32")}
    return whole | {"parts": made.reshape(2, 4, 3), "goals": wanted.reshape(2, 4)}


def by_hand(rate: float = 0.1) -> tuple[pr.Recurrent, pr.Tensor]:
    w = pr.recurrent((3,), ((i, I + 1),))
    w[0] = first
    loss = ((x @ w - y) ** 2).mean(0)
    w[i + 1] = w - rate * pr.grad(loss, w)
    return w, loss


def trained(optimiser: Any = optim.adam) -> tuple[pr.Tensor, pr.Tensor]:
    params = optim.over(i, {"w": first})
    loss = ((x @ params["w"] - y) ** 2).mean(0)
    optimiser(i, params, pr.grad(loss, params), rate=0.2)
    return params["w"], loss


def on_the_loss() -> Form:
    w, loss = by_hand()
    return {"w": w[I], "loss": loss[{i: slice(0, I)}]}, {i: loss < 0.1}


def on_the_loss_of_an_optimiser() -> Form:
    w, loss = trained()
    return {"w": w, "loss": loss[{i: slice(0, I)}]}, {i: loss < 0.1}


def on_the_next_loss() -> Form:
    w, loss = trained(optim.sgd)
    return {"w": w}, {i: loss[i + 1] < 0.1}


def on_the_gradient() -> Form:
    w = pr.recurrent((3,), ((i, I + 1),))
    w[0] = first
    slope = pr.grad(((x @ w - y) ** 2).mean(0), w)
    w[i + 1] = w - 0.1 * slope
    return {"w": w[I]}, {i: (slope * slope).sum(0) < 0.1}


def on_the_step() -> Form:
    w, _ = by_hand()
    return {"w": w[I]}, {i: pr.abs(w[i + 1] - w).max(0) < 0.05}


def on_a_score() -> Form:
    w, _ = by_hand()
    score = pr.abs(x @ w[i + 1] - y).max(0)
    return {"w": w[I], "score": score}, {i: score < 0.3}


def on_patience() -> Form:
    w, loss = by_hand(0.5)
    best = pr.recurrent((), (i,))
    best[0] = loss[0]
    best[i + 1] = pr.minimum(best, loss[i + 1])
    return {"w": w[I], "best": best}, {i: pr.where(i >= 3, best[pr.max(0, i - 3)] - best < 0.01, False)}


def on_a_window_of_an_average() -> Form:
    """Micro-batches, an optimiser, an average of the weights, and patience over the last four scores."""
    params = optim.over(i, {"w": first, "b": 0.0})
    losses = ((parts @ params["w"] + params["b"] - goals) ** 2).mean(0)
    loss = losses[{k: slice(0, K)}].mean(0)
    optim.adam(i, params, pr.grad(loss, params), rate=0.2)
    average = optim.over(i, {"w": first})
    average["w"][i + 1] = 0.8 * average["w"] + 0.2 * params["w"][i + 1]
    score = ((x @ average["w"] - y) ** 2).mean(0)
    stale = (score - pr.window(score, i, 4).min(0) >= 0) & (pr.value(i) >= 4)
    return {"average": average["w"][I], "score": score[{i: slice(0, I)}]}, {i: stale}


def through_a_recurrence() -> Form:
    """The gradient leads through the steps of a recurrence inside every iteration."""
    params = optim.over(i, {"w": first})
    h = pr.recurrent((3,), (i, k))
    h[i, 0] = pr.tanh(params["w"] + parts[0].axes[0])
    h[i, k + 1] = pr.tanh(h * params["w"] + parts[k + 1].axes[0])
    loss = ((h[i, K - 1] - 0.5) ** 2).mean(0)
    optim.sgd(i, params, pr.grad(loss, params), rate=1.0)
    return {"w": params["w"][I], "loss": loss}, {i: loss < 0.15}


FORMS: list[Callable[[], Form]] = [
    on_the_loss,
    on_the_loss_of_an_optimiser,
    on_the_next_loss,
    on_the_gradient,
    on_the_step,
    on_a_score,
    on_patience,
    on_a_window_of_an_average,
    through_a_recurrence,
]


def inputs_of(outputs: dict[str, pr.Tensor], until: dict[pr.Dim, pr.Tensor]) -> dict[str, Any]:
    names = pr.compile(outputs, until=until, backend="numpy").compiled.graph.inputs
    return {name: array for name, array in given().items() if name in names}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_a_run_stops_early(form: Callable[[], Form]) -> None:
    outputs, until = form()
    inputs = inputs_of(outputs, until)
    want = pr.evaluate(outputs, inputs, {I: 60}, until)
    for backend in ("numpy", "torch"):
        have = pr.compile(outputs, until=until, backend=backend)(**inputs, bounds={I: 60})
        for name in outputs:
            np.testing.assert_allclose(have[name], want[name], 1e-4, 1e-5)


@pytest.mark.parametrize("form", [on_the_loss_of_an_optimiser, on_a_window_of_an_average, through_a_recurrence])
def test_a_run_stops_early_on_jax(form: Callable[[], Form]) -> None:
    outputs, until = form()
    inputs = inputs_of(outputs, until)
    want = pr.compile(outputs, until=until, backend="numpy")(**inputs, bounds={I: 60})
    have = pr.compile(outputs, until=until)(**inputs, bounds={I: 60})
    for name in outputs:
        np.testing.assert_allclose(have[name], want[name], 1e-4, 1e-5)


def test_the_loss_by_a_plain_loop() -> None:
    outputs, until = on_the_loss()
    inputs = given()
    w = np.zeros(3)
    losses: list[float] = []
    while not losses or losses[-1] >= 0.1:
        error = inputs["x"] @ w - inputs["y"]
        losses.append((error**2).mean())
        w = w - 0.1 * 2 * (inputs["x"].T @ error) / 8
    have = pr.compile(outputs, until=until, backend="numpy")(**inputs_of(outputs, until), bounds={I: 60})
    np.testing.assert_allclose(have["loss"], losses, 1e-4)
    np.testing.assert_allclose(have["w"], w, 1e-4)


def test_an_iteration_that_ends_at_a_step_of_its_own() -> None:
    """Each iteration goes on until a value is large enough, and the next begins with what it ended with."""
    t, T = pr.dim("t")
    start = pr.input("start", ())
    w = pr.recurrent((), ((i, I + 1),))
    z = pr.recurrent((), (i, t))
    z[i, 0] = w
    z[i, t + 1] = 1.5 * z
    w[0] = start
    w[i + 1] = w + 0.1 * z[i, T - 1]
    slope = pr.grad(z[i, 0:T].sum(0)[0:I].sum(0), start)
    outputs = {"w": w, "z": z, "slope": slope}
    rows, ends, value = [], [1.0], 1.0
    for _ in range(4):
        row = [value]
        while row[-1] <= 5 and len(row) < 8:
            row.append(1.5 * row[-1])
        value += 0.1 * row[-1]
        rows.append(row)
        ends.append(value)
    want = pr.evaluate(outputs, {"start": np.float32(1)}, {I: 4, T: 8}, {t: z > 5})
    assert want["z"].lengths.tolist() == [len(row) for row in rows]
    np.testing.assert_allclose(want["w"], ends, 1e-5)
    for backend in ("numpy", "torch", "jax"):
        have = pr.compile(outputs, until={t: z > 5}, backend=backend)(start=np.float32(1), bounds={I: 4, T: 8})
        assert have["z"].lengths.tolist() == want["z"].lengths.tolist()
        for name in ("w", "slope"):
            np.testing.assert_allclose(have[name], want[name], 1e-5)


def test_a_condition_that_looks_at_its_length_names_what_does() -> None:
    w, loss = by_hand()
    mean = loss[{i: slice(0, I)}].mean(0)
    with pytest.raises(errors.UntilError, match=r"depends on I, the length it decides, through .*mean") as caught:
        pr.compile(w, until={i: loss < mean}, backend="numpy")
    assert "mean = loss" in str(caught.value)
