"""Statistics of the past and the future as slices, discounted sums, clamped delays, pointers, means over a loop."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import polyrhythm as pr
from benchmarks.natural_programs import Natural, normal

WIDTH, GAMMA, DELAY = 8, 0.99, 3


def statistics() -> Any:
    """The mean, largest and smallest of all steps so far, and of those to come."""
    t, T = pr.dim("t")
    x = pr.input("x", (WIDTH,), (t,))
    return {"mean": x[0 : t + 1].mean(0), "max": x[0 : t + 1].max(0), "least": x[t:T].min(0)}


def peer_statistics(x: Any) -> Any:
    count = jnp.arange(1, x.shape[0] + 1, dtype=x.dtype)[:, None]
    least = lax.cummin(x, axis=0, reverse=True)
    return {"mean": jnp.cumsum(x, 0) / count, "max": lax.cummax(x, axis=0), "least": least}


def mean_gradient() -> Any:
    """The gradient of a loss of running means."""
    t, T = pr.dim("t")
    x = pr.input("x", (WIDTH,), (t,))
    return {"x": pr.grad(pr.square(x[0 : t + 1].mean(0))[0:T].sum(), x)}


def peer_mean_gradient(x: Any) -> Any:
    count = jnp.arange(1, x.shape[0] + 1, dtype=x.dtype)[:, None]
    return {"x": jax.grad(lambda x: jnp.square(jnp.cumsum(x, 0) / count).sum())(x)}


def returns() -> Any:
    """Discounted returns as the papers write them."""
    t, T = pr.dim("t")
    r = pr.input("r", (), (t,))
    return {"returns": (r[t:T] * GAMMA ** pr.arange(T - t)).sum(0)}


def peer_returns(r: Any) -> Any:
    def step(later: Any, reward: Any) -> Any:
        here = reward + GAMMA * later
        return here, here

    return {"returns": lax.scan(step, jnp.float32(0), r, reverse=True)[1]}


def clamped() -> Any:
    """The gradient of a delay that is limited at the first step."""
    t, T = pr.dim("t")
    u = pr.input("u", (WIDTH,), (t,))
    w = pr.input("w", (WIDTH,), (t,))
    return {"u": pr.grad(pr.square(u[pr.max(0, t - DELAY)] * w)[0:T].sum(), u)}


def peer_clamped(u: Any, w: Any) -> Any:
    def loss(u: Any) -> Any:
        first = jnp.broadcast_to(u[:1], (DELAY, u.shape[1]))
        return jnp.square(jnp.concatenate([first, u])[: u.shape[0]] * w).sum()

    return {"u": jax.grad(loss)(u)}


def pointers() -> Any:
    """Each step reads one of its own past, at a given place; the gradient by the inputs."""
    t, T = pr.dim("t")
    x = pr.input("x", (WIDTH,), (t,))
    place = pr.input("place", (), (t,), "int32")
    h = pr.recurrent((WIDTH,), ((t, T + 1),))
    h[0] = 0.5
    h[t + 1] = pr.tanh(pr.take(h[0 : t + 1], place, 0) * 0.9 + x)
    return {"x": pr.grad(pr.square(h)[0 : T + 1].sum(), x)}


def peer_pointers(x: Any, place: Any) -> Any:
    def loss(x: Any) -> Any:
        def step(past: Any, at: Any) -> Any:
            t, x, place = at
            return past.at[t + 1].set(jnp.tanh(past[place] * 0.9 + x)), None

        past = jnp.zeros((x.shape[0] + 1, WIDTH)).at[0].set(0.5)
        return jnp.square(lax.scan(step, past, (jnp.arange(x.shape[0]), x, place))[0]).sum()

    return {"x": jax.grad(loss)(x)}


def loop_mean() -> Any:
    """The mean and the largest of a recurrence, of which nothing else is wanted."""
    t, T = pr.dim("t")
    y = pr.recurrent((64,), (t,))
    y[0] = pr.input("x", (64,))
    y[t + 1] = pr.tanh(y * 0.9 + 0.1)
    return {"mean": y[0:T].mean(0), "max": y[0:T].max(0)}


def peer_loop_mean(x: Any, steps: int) -> Any:
    def step(_: Any, state: Any) -> Any:
        y, total, most = state
        y = jnp.tanh(y * 0.9 + 0.1)
        return y, total + y, jnp.maximum(most, y)

    _, total, most = lax.fori_loop(1, steps, step, (x, x, x))
    return {"mean": total / steps, "max": most}


def _places(steps: int) -> np.ndarray:
    return np.random.default_rng(2).integers(0, np.arange(1, steps + 1)).astype("int32")


ROWS = [
    Natural("prefix statistics", statistics, lambda n: {"x": normal(0, n, WIDTH)}, peer_statistics, 8192),
    Natural("prefix means, gradient", mean_gradient, lambda n: {"x": normal(0, n, WIDTH)}, peer_mean_gradient, 8192),
    Natural("discounted returns as slices", returns, lambda n: {"r": normal(0, n)}, peer_returns, 8192),
    Natural(
        "clamped delay, gradient",
        clamped,
        lambda n: {"u": normal(0, n, WIDTH), "w": normal(1, n, WIDTH)},
        peer_clamped,
        8192,
    ),
    Natural(
        "pointers into one's own past, gradient",
        pointers,
        lambda n: {"x": normal(0, n, WIDTH), "place": _places(n)},
        peer_pointers,
        512,
        reason="the forward loop copies the buffer of all steps, which it stores as the state and for the gradient",
    ),
    Natural(
        "mean over a loop",
        loop_mean,
        lambda n: {"x": normal(0, 64)},
        peer_loop_mean,
        10_000,
        bounds=lambda n: {"T": n},
        counted=True,
        reason="XLA asks at every step whether a loop goes on whose length it does not know",
    ),
]
