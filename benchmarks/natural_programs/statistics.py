"""Sliding and online statistics, weights by what came before, a hidden Markov model, returns by a recurrence."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import polyrhythm as pr
from benchmarks.natural_programs import Natural, normal

WIDTH, WINDOW, STATES, ROWS_AT_ONCE, GAMMA, LAMBDA = 8, 32, 16, 8, 0.99, 0.95


def sliding() -> Any:
    """The mean, largest and smallest of the last steps."""
    t, _ = pr.dim("t")
    near = pr.window(pr.input("x", (WIDTH,), (t,)), t, WINDOW)
    return {"mean": near.mean(0), "max": near.max(0), "min": near.min(0)}


def peer_sliding(x: Any) -> Any:
    def over(combine: Any, identity: float) -> Any:
        return lax.reduce_window(x, identity, combine, (WINDOW, 1), (1, 1), ((WINDOW - 1, 0), (0, 0)))

    count = jnp.minimum(jnp.arange(1, x.shape[0] + 1, dtype=x.dtype), WINDOW)[:, None]
    return {
        "mean": over(lax.add, 0.0) / count,
        "max": over(lax.max, -jnp.inf),
        "min": over(lax.min, jnp.inf),
    }


def pooled() -> Any:
    """The average of all steps so far, weighted by the softmax of a score; and the logarithm of its normaliser."""
    t, _ = pr.dim("t")
    x, score = pr.input("x", (WIDTH,), (t,)), pr.input("score", (), (t,))
    return {"mean": pr.softmax(score[0 : t + 1], 0) @ x[0 : t + 1], "norm": pr.logsumexp(score[0 : t + 1], 0)}


def peer_pooled(x: Any, score: Any) -> Any:
    def step(carry: Any, now: Any) -> Any:
        peak, total, mean = carry
        x, score = now
        high = jnp.maximum(peak, score)
        kept, weight = jnp.exp(peak - high), jnp.exp(score - high)
        total, mean = total * kept + weight, mean * kept + weight * x
        return (high, total, mean), (mean / total, jnp.log(total) + high)

    start = jnp.float32(-jnp.inf), jnp.float32(0), jnp.zeros(x.shape[1])
    _, (mean, norm) = lax.scan(step, start, (x, score))
    return {"mean": mean, "norm": norm}


def online() -> Any:
    """Mean and variance of all steps so far, by Welford's recurrence."""
    t, _ = pr.dim("t")
    x = pr.input("x", (WIDTH,), (t,))
    mean, square = pr.recurrent((WIDTH,), (t,)), pr.recurrent((WIDTH,), (t,))
    mean[0] = x[0]
    mean[t + 1] = mean + (x[t + 1] - mean) / pr.cast(pr.value(t + 2), "float32")
    square[0] = 0.0
    square[t + 1] = square + (x[t + 1] - mean) * (x[t + 1] - mean[t + 1])
    return {"mean": mean, "variance": square / pr.cast(pr.value(t + 1), "float32")}


def peer_online(x: Any) -> Any:
    def step(carry: Any, now: Any) -> Any:
        mean, square = carry
        x, n = now
        new = mean + (x - mean) / n
        square = square + (x - mean) * (x - new)
        return (new, square), (new, square / n)

    start = jnp.zeros(x.shape[1]), jnp.zeros(x.shape[1])
    _, (mean, variance) = lax.scan(step, start, (x, jnp.arange(1.0, x.shape[0] + 1)))
    return {"mean": mean, "variance": variance}


def hidden_markov() -> Any:
    """The likelihood of a batch of sequences by the forward algorithm, and its gradient."""
    t, T = pr.dim("t", min=1)
    emitted = pr.input("emitted", (ROWS_AT_ONCE, STATES), (t,))
    moves = pr.input("moves", (STATES, STATES))
    logits = pr.log_softmax(moves, 1)
    alpha = pr.recurrent((ROWS_AT_ONCE, STATES), (t,))
    alpha[0] = emitted[0]
    alpha[t + 1] = pr.logsumexp(alpha.unsqueeze(2) + logits, 1) + emitted[t + 1]
    loss = -pr.logsumexp(alpha[T - 1], 1).mean()
    return {"loss": loss, "moves": pr.grad(loss, moves)}


def peer_hidden_markov(emitted: Any, moves: Any) -> Any:
    def loss(moves: Any) -> Any:
        logits = jax.nn.log_softmax(moves, 1)

        def step(alpha: Any, now: Any) -> Any:
            return jax.nn.logsumexp(alpha[:, :, None] + logits, 1) + now, None

        alpha, _ = lax.scan(step, emitted[0], emitted[1:])
        return -jax.nn.logsumexp(alpha, 1).mean()

    value, gradient = jax.value_and_grad(loss)(moves)
    return {"loss": value, "moves": gradient}


def lambda_returns() -> Any:
    """Lambda returns from the last step back."""
    t, T = pr.dim("t", min=1)
    r, v = pr.input("r", (WIDTH,), (t,)), pr.input("v", (WIDTH,), (t,))
    g = pr.recurrent((WIDTH,), (t,))
    g[T - 1] = r[T - 1] + GAMMA * v[T - 1]
    g[t < T - 1] = r + GAMMA * ((1 - LAMBDA) * v + LAMBDA * g[t + 1])
    return {"returns": g}


def peer_lambda_returns(r: Any, v: Any) -> Any:
    def step(later: Any, now: Any) -> Any:
        r, v = now
        here = r + GAMMA * ((1 - LAMBDA) * v + LAMBDA * later)
        return here, here

    return {"returns": lax.scan(step, v[-1], (r, v), reverse=True)[1]}


ROWS = (
    Natural("sliding statistics", sliding, lambda n: {"x": normal(0, n, WIDTH)}, peer_sliding, 8192),
    Natural(
        "softmax of the past",
        pooled,
        lambda n: {"x": normal(0, n, WIDTH), "score": normal(1, n)},
        peer_pooled,
        4096,
    ),
    Natural("online statistics", online, lambda n: {"x": normal(0, n, WIDTH)}, peer_online, 8192),
    Natural(
        "hidden Markov model, gradient",
        hidden_markov,
        lambda n: {"emitted": normal(0, n, ROWS_AT_ONCE, STATES), "moves": normal(1, STATES, STATES)},
        peer_hidden_markov,
        256,
    ),
    Natural(
        "lambda returns",
        lambda_returns,
        lambda n: {"r": normal(0, n, WIDTH), "v": normal(1, n, WIDTH)},
        peer_lambda_returns,
        8192,
    ),
)
