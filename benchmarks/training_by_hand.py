"""The same training as an expert writes it in JAX: one `jit` around a scan over iterations.

The LSTM multiplies its inputs before the scan over time; the transformer attends with all steps at once under a mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.training_models import RATE

Weights = dict[str, jax.Array]
Loss = Callable[[Weights, jax.Array, jax.Array], jax.Array]

BETAS, EPSILON = (0.9, 0.999), 1e-8


def surprise(scores: jax.Array, following: jax.Array) -> jax.Array:
    """The mean surprise at the letters that follow."""
    picked = jnp.take_along_axis(jax.nn.log_softmax(scores), following[..., None], -1)
    return -picked.mean()


def lstm_loss(segment: int | None = None) -> Loss:
    """Letters by (T, batch); states are computed again in segments if asked for."""

    def loss(weights: Weights, now: jax.Array, following: jax.Array) -> jax.Array:
        bias = weights["lstm.bias_ih_l0"] + weights["lstm.bias_hh_l0"]
        into_gates, recurrent = weights["lstm.weight_ih_l0"].T, weights["lstm.weight_hh_l0"].T

        def step(carry: tuple[jax.Array, jax.Array], given: jax.Array) -> Any:
            h, c = carry
            into, forget, cell, out = jnp.split(given + h @ recurrent, 4, -1)
            c = jax.nn.sigmoid(forget) * c + jax.nn.sigmoid(into) * jnp.tanh(cell)
            h = jax.nn.sigmoid(out) * jnp.tanh(c)
            return (h, c), h

        def stretch(carry: tuple[jax.Array, jax.Array], letters: tuple[jax.Array, jax.Array]) -> Any:
            """Some steps: the states after them, and their surprise."""
            given = weights["embed.weight"][letters[0]] @ into_gates + bias
            carry, h = lax.scan(step, carry, given)
            return carry, surprise(h @ weights["head.weight"].T + weights["head.bias"], letters[1])

        zero = jnp.zeros((now.shape[1], recurrent.shape[0]))
        if segment is None:
            return stretch((zero, zero), (now, following))[1]
        pieces = tuple(letters.reshape(-1, segment, now.shape[1]) for letters in (now, following))
        return lax.scan(jax.checkpoint(stretch), (zero, zero), pieces)[1].mean()

    return loss


def _normed(x: jax.Array, weight: jax.Array) -> jax.Array:
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


def _turned(x: jax.Array) -> jax.Array:
    """Rotary positions for an array by (batch, heads, T, depth)."""
    size = x.shape[-1]
    speeds = (10000.0 ** (-np.arange(0, size, 2) / size)).astype(np.float32)
    angles = jnp.arange(x.shape[-2], dtype=jnp.float32)[:, None] * speeds
    first, second = jnp.split(x, 2, -1)
    turn, lift = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([first * turn - second * lift, second * turn + first * lift], -1)


def transformer_loss(heads: int, remat: bool = False) -> Loss:
    """Letters by (batch, T)."""

    def block(weights: Weights, x: jax.Array, mask: jax.Array) -> jax.Array:
        batch, steps, width = x.shape

        def by_head(name: str, y: jax.Array) -> jax.Array:
            out = y @ weights[f"self_attn.{name}_proj.weight"].T
            return out.reshape(batch, steps, heads, -1).transpose(0, 2, 1, 3)

        y = _normed(x, weights["input_layernorm.weight"])
        q, k, v = (by_head(name, y) for name in "qkv")
        scores = jnp.einsum("bhtd,bhsd->bhts", _turned(q), _turned(k)) * (width // heads) ** -0.5
        mixed = jnp.einsum("bhts,bhsd->bhtd", jax.nn.softmax(jnp.where(mask, scores, -jnp.inf)), v)
        x = x + mixed.transpose(0, 2, 1, 3).reshape(batch, steps, width) @ weights["self_attn.o_proj.weight"].T
        y = _normed(x, weights["post_attention_layernorm.weight"])
        gate, up = (y @ weights[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        return x + (jax.nn.silu(gate) * up) @ weights["mlp.down_proj.weight"].T

    def loss(weights: Weights, now: jax.Array, following: jax.Array) -> jax.Array:
        x = weights["embed.weight"][now]
        mask = jnp.tril(jnp.ones((now.shape[1], now.shape[1]), bool))
        layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("layers."))
        for n in range(layers):
            own = {k.removeprefix(f"layers.{n}."): w for k, w in weights.items() if k.startswith(f"layers.{n}.")}
            x = (jax.checkpoint(block) if remat else block)(own, x, mask)
        return surprise(_normed(x, weights["norm.weight"]) @ weights["head.weight"].T, following)

    return loss


def trained(loss: Loss) -> Callable[..., dict[str, Any]]:
    """Iterations of Adam on batches with the iterations first; the loss of each and the last weights."""

    def iteration(carry: tuple[Any, ...], batch: tuple[jax.Array, ...]) -> Any:
        weights, first, second, count = carry
        value, slopes = jax.value_and_grad(loss)(weights, *batch)
        first = jax.tree.map(lambda m, g: BETAS[0] * m + (1 - BETAS[0]) * g, first, slopes)
        second = jax.tree.map(lambda v, g: BETAS[1] * v + (1 - BETAS[1]) * g * g, second, slopes)
        count = count + 1
        one, two = 1 - BETAS[0] ** count, 1 - BETAS[1] ** count
        weights = jax.tree.map(
            lambda w, m, v: w - RATE * (m / one) / (jnp.sqrt(v / two) + EPSILON), weights, first, second
        )
        return (weights, first, second, count), value

    @jax.jit
    def run(weights: Weights, now: jax.Array, following: jax.Array) -> dict[str, Any]:
        zeros = jax.tree.map(jnp.zeros_like, weights)
        start = (weights, zeros, zeros, jnp.float32(0))
        (weights, *_), losses = lax.scan(iteration, start, (now, following))
        return {"loss": losses, "weights": weights}

    return run
