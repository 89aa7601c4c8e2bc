"""Attention whose spelling is its own: segments with a memory, linear attention, the delta rule."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import polyrhythm as pr
from benchmarks.natural_programs import Natural, normal

WIDTH, SEGMENTS, LAYERS = 32, 4, 2


def transformer_xl() -> Any:
    """Layers that attend to their own segment so far and to all of the one before, without its gradient."""
    s, S = pr.dim("s")
    j, J = pr.dim("j", max=64)
    x = pr.input("x", (WIDTH,), (s, j))
    weights = [pr.input(name, (WIDTH, WIDTH)) for name in ("wq", "wk", "wv", "wo")]
    wq, wk, wv, wo = weights
    h = x
    for _ in range(LAYERS):
        q, k, v = h @ wq, h @ wk, h @ wv
        own = pr.softmax(k[s, 0 : j + 1] @ q * 0.1, 0) @ v[s, 0 : j + 1]
        seen = pr.softmax(pr.detach(k)[s - 1, 0:J] @ q * 0.1, 0) @ pr.detach(v)[s - 1, 0:J]
        h = pr.tanh(h + (own + pr.where(s >= 1, seen, 0.0)) @ wo)
    loss = (h * h)[0:S, 0:J].mean((0, 1, 2))
    return {"loss": loss, "gradients": pr.grad(loss, weights)}


def peer_transformer_xl(x: Any, **weights: Any) -> Any:
    steps = x.shape[1]
    mask = jnp.tril(jnp.ones((steps, steps), bool))

    def loss(weights: Any) -> Any:
        wq, wk, wv, wo = weights
        h = x
        for _ in range(LAYERS):
            q, k, v = h @ wq, h @ wk, h @ wv
            scores = jnp.einsum("sjd,skd->sjk", q, k) * 0.1
            own = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf)) @ v
            before_k, before_v = (jnp.roll(jax.lax.stop_gradient(a), 1, 0) for a in (k, v))
            seen = jax.nn.softmax(jnp.einsum("sjd,skd->sjk", q, before_k) * 0.1) @ before_v
            seen = seen.at[0].set(0.0)
            h = jnp.tanh(h + (own + seen) @ wo)
        return (h * h).mean()

    value, gradients = jax.value_and_grad(loss)([weights[name] for name in ("wq", "wk", "wv", "wo")])
    return {"loss": value, "gradients": gradients}


def _square(*names: str, first: int = 1) -> dict[str, np.ndarray]:
    return {name: normal(first + n, WIDTH, WIDTH, scale=0.2) for n, name in enumerate(names)}


def linear_attention() -> Any:
    """A state of outer products, read by every query; and its gradient."""
    t, T = pr.dim("t")
    x = pr.input("x", (WIDTH,), (t,))
    weights = [pr.input(name, (WIDTH, WIDTH)) for name in ("wq", "wk", "wv")]
    q, k, v = (x @ w for w in weights)
    k = pr.exp(k)
    state = pr.recurrent((WIDTH, WIDTH), (t,))
    state[0] = k[0].unsqueeze(1) * v[0].unsqueeze(0)
    state[t + 1] = state + k[t + 1].unsqueeze(1) * v[t + 1].unsqueeze(0)
    y = q @ state / (pr.value(t) + 1)
    loss = (y * y)[0:T].mean((0, 1))
    return {"loss": loss, "gradients": pr.grad(loss, weights)}


def peer_linear_attention(x: Any, **weights: Any) -> Any:
    def loss(weights: Any) -> Any:
        q, k, v = (x @ w for w in weights)
        k = jnp.exp(k)

        def step(state: Any, now: Any) -> Any:
            q, k, v, n = now
            state = state + k[:, None] * v[None]
            return state, q @ state / n

        _, y = jax.lax.scan(step, jnp.zeros((WIDTH, WIDTH)), (q, k, v, jnp.arange(1.0, x.shape[0] + 1)))
        return (y * y).mean()

    value, gradients = jax.value_and_grad(loss)([weights[name] for name in ("wq", "wk", "wv")])
    return {"loss": value, "gradients": gradients}


def delta_rule() -> Any:
    """A fast weight memory that is corrected towards each value."""
    t, _ = pr.dim("t")
    x = pr.input("x", (WIDTH,), (t,))
    wq, wk, wv = (pr.input(name, (WIDTH, WIDTH)) for name in ("wq", "wk", "wv"))
    k = pr.softmax(x @ wk)
    v, q = x @ wv, x @ wq
    memory = pr.recurrent((WIDTH, WIDTH), (t,))
    memory[0] = k[0].unsqueeze(1) * v[0].unsqueeze(0)
    error = v[t + 1] - k[t + 1] @ memory
    memory[t + 1] = memory + 0.5 * k[t + 1].unsqueeze(1) * error.unsqueeze(0)
    return {"y": q @ memory}


def peer_delta_rule(x: Any, wq: Any, wk: Any, wv: Any) -> Any:
    k, v, q = jax.nn.softmax(x @ wk), x @ wv, x @ wq

    def step(memory: Any, now: Any) -> Any:
        q, k, v = now
        memory = memory + 0.5 * k[:, None] * (v - k @ memory)[None]
        return memory, q @ memory

    first = k[0][:, None] * v[0][None]
    _, y = jax.lax.scan(step, first, (q[1:], k[1:], v[1:]))
    return {"y": jnp.concatenate([(q[0] @ first)[None], y])}


ROWS = (
    Natural(
        "Transformer-XL, gradient",
        transformer_xl,
        lambda n: {"x": normal(0, SEGMENTS, n, WIDTH), **_square("wq", "wk", "wv", "wo")},
        peer_transformer_xl,
        16,
        reason="products over ranges are masked, and have a second way for values that are not finite",
    ),
    Natural(
        "linear attention, gradient",
        linear_attention,
        lambda n: {"x": normal(0, n, WIDTH, scale=0.5), **_square("wq", "wk", "wv")},
        peer_linear_attention,
        512,
    ),
    Natural(
        "delta rule",
        delta_rule,
        lambda n: {"x": normal(0, n, WIDTH), **_square("wq", "wk", "wv")},
        peer_delta_rule,
        1024,
    ),
)
