"""Gradients through recurrent networks, attention and training, against `jax.grad` of the same programs by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.ir.graph import Graph
from tests.compiler.gradients.differences import by_differences, close

BATCH, STEPS, FEATURES, HIDDEN, HEADS = 2, 5, 3, 4, 2
RATE = 0.1

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """A loss over batch and time, its weights, and the same loss in JAX."""

    loss: pr.Tensor
    weights: dict[str, pr.Tensor]
    by_hand: Callable[[Mapping[str, Any], Any], Any]


def weight(name: str, *shape: int) -> pr.Tensor:
    return pr.input(name, shape, (), "float64")


def data() -> tuple[pr.Tensor, pr.Dim, pr.Dim, Any]:
    b, _ = pr.dim("b")
    t, T = pr.dim("t")
    return pr.input("x", (FEATURES,), (b, t), "float64"), b, t, T


def state(b: pr.Dim, t: pr.Dim, T: Any) -> pr.Tensor:
    h = pr.recurrent((HIDDEN,), (b, (t, T + 1)), "float64")
    h[b, 0] = 0.0
    return h


def rnn() -> Model:
    x, b, t, T = data()
    w = {"wx": weight("wx", FEATURES, HIDDEN), "wh": weight("wh", HIDDEN, HIDDEN), "bias": weight("bias", HIDDEN)}
    h = state(b, t, T)
    h[b, t + 1] = pr.tanh(x @ w["wx"] + h @ w["wh"] + w["bias"])

    def by_hand(w: Mapping[str, Any], x: Any) -> Any:
        def step(h: Any, x: Any) -> tuple[Any, Any]:
            h = jnp.tanh(x @ w["wx"] + h @ w["wh"] + w["bias"])
            return h, (h**2).sum()

        return jax.lax.scan(step, jnp.zeros((BATCH, HIDDEN)), x.swapaxes(0, 1))[1].sum()

    return Model((h[b, t + 1] ** 2).sum(), w, by_hand)


def lstm() -> Model:
    x, b, t, T = data()
    size = 4 * HIDDEN
    w = {"wx": weight("wx", FEATURES, size), "wh": weight("wh", HIDDEN, size), "bias": weight("bias", size)}
    h, c = state(b, t, T), state(b, t, T)
    into, forget, cell, out = pr.split(x @ w["wx"] + h @ w["wh"] + w["bias"], 4)
    c[b, t + 1] = pr.sigmoid(forget) * c + pr.sigmoid(into) * pr.tanh(cell)
    h[b, t + 1] = pr.sigmoid(out) * pr.tanh(c[b, t + 1])

    def by_hand(w: Mapping[str, Any], x: Any) -> Any:
        def step(carry: Any, x: Any) -> tuple[Any, Any]:
            h, c = carry
            into, forget, cell, out = jnp.split(x @ w["wx"] + h @ w["wh"] + w["bias"], 4, axis=-1)
            c = jax.nn.sigmoid(forget) * c + jax.nn.sigmoid(into) * jnp.tanh(cell)
            h = jax.nn.sigmoid(out) * jnp.tanh(c)
            return (h, c), (h**2).sum()

        zero = jnp.zeros((BATCH, HIDDEN))
        return jax.lax.scan(step, (zero, zero), x.swapaxes(0, 1))[1].sum()

    return Model((h[b, t + 1] ** 2).sum(), w, by_hand)


def gru() -> Model:
    x, b, t, T = data()
    size = 3 * HIDDEN
    w = {"wx": weight("wx", FEATURES, size), "wh": weight("wh", HIDDEN, size)}
    h = state(b, t, T)
    reset, update, new = pr.split(x @ w["wx"], 3)
    reset_h, update_h, new_h = pr.split(h @ w["wh"], 3)
    z = pr.sigmoid(update + update_h)
    n = pr.tanh(new + pr.sigmoid(reset + reset_h) * new_h)
    h[b, t + 1] = (1.0 - z) * n + z * h

    def by_hand(w: Mapping[str, Any], x: Any) -> Any:
        def step(h: Any, x: Any) -> tuple[Any, Any]:
            reset, update, new = jnp.split(x @ w["wx"], 3, axis=-1)
            reset_h, update_h, new_h = jnp.split(h @ w["wh"], 3, axis=-1)
            z = jax.nn.sigmoid(update + update_h)
            h = (1.0 - z) * jnp.tanh(new + jax.nn.sigmoid(reset + reset_h) * new_h) + z * h
            return h, (h**2).sum()

        return jax.lax.scan(step, jnp.zeros((BATCH, HIDDEN)), x.swapaxes(0, 1))[1].sum()

    return Model((h[b, t + 1] ** 2).sum(), w, by_hand)


def bidirectional() -> Model:
    x, b, t, T = data()
    w = {"wx": weight("wx", FEATURES, HIDDEN), "wh": weight("wh", HIDDEN, HIDDEN)}
    forwards = state(b, t, T)
    forwards[b, t + 1] = pr.tanh(x @ w["wx"] + forwards @ w["wh"])
    backwards = pr.recurrent((HIDDEN,), (b, (t, T + 1)), "float64")
    backwards[b, T] = 0.0
    backwards[b, t] = pr.tanh(x @ w["wx"] + backwards[b, t + 1] @ w["wh"])

    def by_hand(w: Mapping[str, Any], x: Any) -> Any:
        def step(h: Any, x: Any) -> tuple[Any, Any]:
            h = jnp.tanh(x @ w["wx"] + h @ w["wh"])
            return h, h

        zero, x = jnp.zeros((BATCH, HIDDEN)), x.swapaxes(0, 1)
        return (jax.lax.scan(step, zero, x)[1] * jax.lax.scan(step, zero, x, reverse=True)[1]).sum()

    return Model((forwards[b, t + 1] * backwards).sum(), w, by_hand)


def attention() -> Model:
    x, b, t, _ = data()
    w = {name: weight(name, FEATURES, HEADS * HIDDEN) for name in ("wq", "wk", "wv")}
    w["wo"] = weight("wo", HEADS * HIDDEN, FEATURES)
    q, k, v = ((x @ w[name]).reshape(HEADS, HIDDEN) for name in ("wq", "wk", "wv"))
    scores = pr.einsum("hd,shd->hs", q, k[b, 0 : t + 1]) / HIDDEN**0.5
    mixed = pr.einsum("hs,shd->hd", pr.softmax(scores), v[b, 0 : t + 1])
    y = mixed.reshape(HEADS * HIDDEN) @ w["wo"]

    def by_hand(w: Mapping[str, Any], x: Any) -> Any:
        q, k, v = ((x @ w[name]).reshape(BATCH, STEPS, HEADS, HIDDEN) for name in ("wq", "wk", "wv"))
        scores = jnp.einsum("bthd,bshd->bhts", q, k) / HIDDEN**0.5
        scores = jnp.where(jnp.tril(jnp.ones((STEPS, STEPS), bool)), scores, -jnp.inf)
        mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)
        return ((mixed.reshape(BATCH, STEPS, -1) @ w["wo"]) ** 2).sum()

    return Model((y**2).sum(), w, by_hand)


MODELS: dict[str, Callable[[], Model]] = {
    "rnn": rnn,
    "lstm": lstm,
    "gru": gru,
    "bidirectional": bidirectional,
    "attention": attention,
}


def arrays(model: Model) -> Arrays:
    random = np.random.default_rng(3)
    shapes = {name: tuple(int(n) for n in tensor.shape) for name, tensor in model.weights.items()}
    return {
        "x": random.normal(size=(BATCH, STEPS, FEATURES)),
        **{name: random.normal(size=shape) / 2 for name, shape in shapes.items()},
    }


def expected_gradients(model: Model, given: Arrays) -> Arrays:
    with jax.enable_x64(True):
        weights = {name: jnp.asarray(given[name]) for name in model.weights}
        found = jax.grad(model.by_hand)(weights, jnp.asarray(given["x"]))
        return {name: np.asarray(value) for name, value in found.items()}


@pytest.mark.parametrize("name", MODELS)
def test_weight_gradients(name: str) -> None:
    model = MODELS[name]()
    given = arrays(model)
    found = pr.evaluate(pr.grad(model.loss, model.weights), given)
    for key, expected in expected_gradients(model, given).items():
        np.testing.assert_allclose(found[key], expected, rtol=1e-10, atol=1e-12, err_msg=key)


@pytest.mark.parametrize("name", MODELS)
def test_weight_gradients_by_differences(name: str) -> None:
    """The slope along a random direction of all weights."""
    model = MODELS[name]()
    given = arrays(model)
    random = np.random.default_rng(8)
    direction = {key: random.normal(size=given[key].shape) for key in model.weights}

    def loss(by: float) -> float:
        moved = {key: given[key] + by * direction[key] for key in model.weights}
        return float(np.sum(pr.evaluate(model.loss, {**given, **moved})))

    found = pr.evaluate(pr.grad(model.loss, model.weights), given)
    slope = sum(float((found[key] * direction[key]).sum()) for key in model.weights)
    np.testing.assert_allclose(slope, (loss(1e-6) - loss(-1e-6)) / 2e-6, rtol=1e-6)


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize(
    "name", [n if n in ("lstm", "attention") else pytest.param(n, marks=pytest.mark.slow) for n in MODELS]
)
def test_compiled_gradients(name: str, backend: str) -> None:
    model = MODELS[name]()
    given = arrays(model)
    found = pr.compile(pr.grad(model.loss, model.weights), backend=backend)(**given)
    for key, expected in expected_gradients(model, given).items():
        np.testing.assert_allclose(found[key], expected, rtol=2e-4, atol=1e-5, err_msg=key)


def contractions(graph: Graph, output: str) -> list[tuple[str, int]]:
    """The terms an output is the sum of, copies followed: the operation, and how many ranges of steps it reads."""
    found, waiting = [], [output]
    while waiting:
        for definition in graph[waiting.pop()].definitions:
            if definition.op in ("copy", "broadcast", "add"):
                waiting.extend(access.source for access in definition.operands)
            else:
                found.append((definition.op, max((len(access.ranges) for access in definition.operands), default=0)))
    return found


@pytest.mark.parametrize("name", MODELS)
def test_weight_gradients_are_one_contraction_over_batch_and_time(name: str) -> None:
    model = MODELS[name]()
    matrices = [tensor for tensor in model.weights.values() if tensor.rank == 2]
    graph = pr.compile([pr.grad(model.loss, tensor) for tensor in matrices], backend="numpy").compiled.graph
    parts = 2 if name == "bidirectional" else 1
    for output, tensor in zip(graph.outputs, matrices, strict=True):
        assert contractions(graph, output) == [("einsum", 2)] * parts
        # Products of single steps have the shape of the weights: there are none.
        assert not [node.name for node in graph if node.dims and node.shape == tensor.type.shape]


def test_gradients_of_a_training_run() -> None:
    i, I = pr.dim("i")
    x, b, t, T = data()
    goal = pr.input("goal", (HIDDEN,), (b, t), "float64")
    first = {"wx": weight("wx", FEATURES, HIDDEN), "wh": weight("wh", HIDDEN, HIDDEN)}
    w = {n: pr.recurrent(tuple(map(int, f.shape)), ((i, I + 1),), "float64") for n, f in first.items()}
    h = pr.recurrent((HIDDEN,), (i, b, (t, T + 1)), "float64")
    h[i, b, 0] = 0.0
    h[i, b, t + 1] = pr.tanh(x @ w["wx"] + h @ w["wh"])
    loss = ((h[i, b, t + 1] - goal) ** 2).sum()
    slopes = pr.grad(loss, w)
    for name, tensor in w.items():
        tensor[0] = first[name]
        tensor[i + 1] = tensor - RATE * slopes[name][i]
    random = np.random.default_rng(5)
    given: Arrays = {
        "x": random.normal(size=(BATCH, STEPS, FEATURES)),
        "goal": random.normal(size=(BATCH, STEPS, HIDDEN)) / 2,
        "wx": random.normal(size=(FEATURES, HIDDEN)),
        "wh": random.normal(size=(HIDDEN, HIDDEN)),
    }
    with jax.enable_x64(True):

        def by_hand(weights: Mapping[str, Any]) -> Any:
            def step(h: Any, now: Any) -> tuple[Any, Any]:
                h = jnp.tanh(now[0] @ weights["wx"] + h @ weights["wh"])
                return h, ((h - now[1]) ** 2).sum()

            sequence = (given["x"].swapaxes(0, 1), given["goal"].swapaxes(0, 1))
            return jax.lax.scan(step, jnp.zeros((BATCH, HIDDEN)), sequence)[1].sum()

        expected = [{name: jnp.asarray(given[name]) for name in first}]
        for _ in range(4):
            now = jax.grad(by_hand)(expected[-1])
            expected.append({name: expected[-1][name] - RATE * now[name] for name in first})
    for name in first:
        wanted = np.stack([np.asarray(step[name]) for step in expected])
        found = pr.evaluate(w, given, {I: 4})[name]
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-11)
    for backend in ("numpy", "jax"):
        found = pr.compile(w, backend=backend)(**given, bounds={I: 4})
        for name in first:
            wanted = np.stack([np.asarray(step[name]) for step in expected])
            np.testing.assert_allclose(found[name], wanted, rtol=1e-3, atol=1e-4)


def test_a_gradient_through_a_training_step() -> None:
    i, I = pr.dim("i")
    x = pr.input("x", (2,), (), "float64")
    rate = pr.input("rate", (), (), "float64")
    w = pr.recurrent((2,), ((i, I + 1),), "float64")
    w[0] = 1.0
    w[i + 1] = w - rate * pr.grad(((w * x).sum() - 1.0) ** 2, w)[i]
    final = ((w[I] * x).sum() - 2.0) ** 2
    given = {"x": np.array([0.4, 0.7]), "rate": 0.3}
    found = pr.evaluate(pr.grad(final, rate), given, {I: 3})
    close(found, by_differences(final, given, "rate", {I: 3}))


def test_two_losses_that_read_each_others_updates() -> None:
    """Each is differentiated by its own weight; the other one's update is a value, behind detach or a leaf."""
    u, U = pr.dim("u")
    actor, critic = (pr.recurrent((), ((u, U + 1),)) for _ in range(2))
    actor[0], critic[0] = 1.0, 2.0
    critic_loss = pr.square(critic - pr.detach(actor) * actor) * 0.5
    critic[u + 1] = critic - 0.1 * pr.grad(critic_loss, critic)
    actor_loss = actor * actor * pr.detach(critic[u + 1])
    actor[u + 1] = actor - 0.1 * pr.grad(actor_loss, actor)
    a, c, wanted = 1.0, 2.0, [(1.0, 2.0)]
    for _ in range(3):
        c = c - 0.1 * (c - a * a)
        a = a - 0.1 * 2 * a * c
        wanted.append((a, c))
    for run in (pr.evaluate, lambda x, bounds: pr.compile(x, backend="numpy")(bounds=bounds)):
        found = run((actor, critic), bounds={U: 3})
        np.testing.assert_allclose(np.stack(found, -1), wanted, rtol=1e-5)
