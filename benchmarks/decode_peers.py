"""Decoders written by hand in JAX, to race against: one as people write them, one by an expert.

Both decode greedily with one model: normalisation first, rotary positions, grouped-query attention, a gated network, as
in Llama. Weights are stacked over layers, (in, out); `random_weights` makes some. `padded` keeps one cache of shape
(layers, batch, heads, T, depth) in one `lax` loop over steps, a rolled loop over layers inside, and masks the full
length. `Expert` uses every trick that is known to pay on this ground: layers unrolled with arrays of their own, weights
(out, in), our kernel for few rows where it pays, one flat batch axis in the cache, buffers fed to the product as they
were updated and read as far as they are filled, a ring for a window, and for full attention one loop for each prefix
that doubles, each with its own grown cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from polyrhythm.compiler.backends.jax.products import kernel

OWN_KERNEL = 2**16
"""Caches of fewer elements are left to XLA."""

FIRST_PREFIX = 512
"""The expert's shortest cache."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder."""

    layers: int = 4
    width: int = 256
    heads: int = 4
    kv_heads: int = 4
    hidden: int = 1024
    vocabulary: int = 512
    batch: int = 1
    window: int | None = None

    @property
    def depth(self) -> int:
        return self.width // self.heads


def random_weights(shape: Shape, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights by name, those of layers stacked along the first axis."""
    rng = np.random.default_rng(seed)

    def normal(*sizes: int, scale: float) -> np.ndarray:
        return (rng.normal(size=sizes) * scale).astype("float32")

    layers, width, hidden, kv = shape.layers, shape.width, shape.hidden, shape.kv_heads * shape.depth
    return {
        "embedding": normal(shape.vocabulary, width, scale=1.0),
        "norm1": np.ones((layers, width), "float32"),
        "wq": normal(layers, width, width, scale=width**-0.5),
        "wk": normal(layers, width, kv, scale=width**-0.5),
        "wv": normal(layers, width, kv, scale=width**-0.5),
        "wo": normal(layers, width, width, scale=width**-0.5),
        "norm2": np.ones((layers, width), "float32"),
        "gate": normal(layers, width, hidden, scale=width**-0.5),
        "up": normal(layers, width, hidden, scale=width**-0.5),
        "down": normal(layers, hidden, width, scale=hidden**-0.5),
        "norm": np.ones((width,), "float32"),
        "head": normal(width, shape.vocabulary, scale=3 * width**-0.5),
    }


def normalised(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Root-mean-square normalisation along the last axis."""
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * weight


def turned(x: jax.Array, t: jax.Array) -> jax.Array:
    """Rotary positions."""
    size = x.shape[-1]
    speeds = (10000.0 ** (-np.arange(0, size, 2) / size)).astype(np.float32)
    angles = t.astype(jnp.float32) * speeds
    turn, lift = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * turn - second * lift, second * turn + first * lift], -1)


def padded(shape: Shape, steps: int) -> Callable[..., jax.Array]:
    """The decoder as people write it: (weights, first tokens of shape (batch,)) to tokens of shape (steps, batch)."""
    batch, kv, group, depth = shape.batch, shape.kv_heads, shape.heads // shape.kv_heads, shape.depth
    places = jnp.arange(steps)

    def layer(carry: Any, weights: Any) -> Any:
        x, t = carry
        w, keys, values = weights
        y = normalised(x, w["norm1"])
        q = turned((y @ w["wq"]).reshape(batch, kv, group, depth), t)
        k = turned((y @ w["wk"]).reshape(batch, kv, depth), t)
        v = (y @ w["wv"]).reshape(batch, kv, depth)
        keys = lax.dynamic_update_slice(keys, k[:, :, None], (0, 0, t, 0))
        values = lax.dynamic_update_slice(values, v[:, :, None], (0, 0, t, 0))
        scores = jnp.einsum("bkgd,bksd->bkgs", q, keys) * depth**-0.5
        seen = places <= t
        if shape.window is not None:
            seen &= places > t - shape.window
        mixed = jnp.einsum("bkgs,bksd->bkgd", jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1), values)
        x = x + mixed.reshape(batch, -1) @ w["wo"]
        y = normalised(x, w["norm2"])
        x = x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]
        return (x, t), (keys, values)

    def run(weights: dict[str, jax.Array], first: jax.Array) -> jax.Array:
        stacked = {n: w for n, w in weights.items() if n not in ("embedding", "norm", "head")}
        cache = jnp.zeros((shape.layers, batch, kv, steps, depth))

        def step(carry: Any, t: jax.Array) -> Any:
            tokens, keys, values = carry
            x = weights["embedding"][tokens]
            (x, _), (keys, values) = lax.scan(layer, (x, t), (stacked, keys, values))
            logits = normalised(x, weights["norm"]) @ weights["head"]
            chosen = jnp.argmax(logits, -1).astype(jnp.int32)
            return (chosen, keys, values), tokens

        return lax.scan(step, (first, cache, cache), jnp.arange(steps))[1]

    return jax.jit(run)


def times(x: jax.Array, weight: jax.Array) -> jax.Array:
    """The product of (batch, in) and (out, in)."""
    if kernel.takes(len(x), x.dtype):
        return kernel.product(x[None], weight)[0]
    return lax.optimization_barrier(weight @ x.T).T  # without the barrier XLA turns the product round again


def attended(q: jax.Array, keys: jax.Array, values: jax.Array, t: jax.Array) -> jax.Array:
    """Attention of q (n, group, depth) over what is filled of keys and values (n, room, depth) after step t."""
    room, scale = keys.shape[1], keys.shape[2] ** -0.5
    own = keys.size >= OWN_KERNEL and kernel.takes(q.shape[1], q.dtype)
    filled = jnp.minimum(t + 1, room)[None]
    scores = kernel.product(q, keys, filled) if own else jnp.einsum("ngd,nsd->ngs", q, keys)
    weights = jax.nn.softmax(jnp.where(jnp.arange(room) <= t, scores * scale, -jnp.inf), -1)
    return kernel.product(weights, values, filled, along=True) if own else jnp.einsum("ngs,nsd->ngd", weights, values)


def _out_in(weight: np.ndarray) -> jax.Array:
    return jnp.asarray(np.ascontiguousarray(weight.T))


class Expert:
    """The decoder by an expert; call it with first tokens of shape (batch,) and a number of steps."""

    def __init__(self, shape: Shape, weights: dict[str, np.ndarray]) -> None:
        self.shape = shape
        names = [n for n in weights if n not in ("embedding", "norm", "head")]
        self.layers = [{n: _out_in(weights[n][k]) for n in names} for k in range(shape.layers)]
        self.ends = {n: jnp.asarray(weights[n]) for n in ("embedding", "norm")} | {"head": _out_in(weights["head"])}
        self.loop = jax.jit(self._loop, donate_argnums=(0,))
        self.grow = jax.jit(_grown, static_argnums=1)

    def __call__(self, first: jax.Array, steps: int) -> jax.Array:
        """Tokens of shape (steps, batch)."""
        flat = self.shape.batch * self.shape.kv_heads
        room = self.shape.window or min(steps, FIRST_PREFIX)
        cache = [jnp.zeros((flat, room, self.shape.depth)) for _ in range(2 * self.shape.layers)]
        tokens = jnp.zeros((steps, self.shape.batch), jnp.int32)
        carry = (jnp.array(first), cache, tokens)
        start = 0
        while start < steps:
            end = steps if self.shape.window is not None else min(room, steps)
            carry = self.loop(carry, self.layers, self.ends, np.int32(start), np.int32(end))
            start = end
            if start < steps:
                room = min(2 * room, steps)
                carry = (carry[0], self.grow(carry[1], room), carry[2])
        return carry[2]

    def _loop(self, carry: Any, layers: Any, ends: Any, start: jax.Array, end: jax.Array) -> Any:
        shape = self.shape
        batch, kv, group, depth = shape.batch, shape.kv_heads, shape.heads // shape.kv_heads, shape.depth
        room = carry[1][0].shape[-2]
        flat = batch * kv

        def step(t: jax.Array, carry: Any) -> Any:
            chosen, cache, tokens = carry
            tokens = lax.dynamic_update_slice(tokens, chosen[None], (t, 0))
            x = ends["embedding"][chosen]
            slot = t % room if shape.window is not None else t
            caches = []
            for number, w in enumerate(layers):
                keys, values = cache[2 * number : 2 * number + 2]
                y = normalised(x, w["norm1"])
                q = turned(times(y, w["wq"]).reshape(batch, kv, group, depth), t)
                k = turned(times(y, w["wk"]).reshape(batch, kv, depth), t)
                v = times(y, w["wv"])
                keys = lax.dynamic_update_slice(keys, k.reshape(flat, 1, depth), (0, slot, 0))
                values = lax.dynamic_update_slice(values, v.reshape(flat, 1, depth), (0, slot, 0))
                mixed = attended(q.reshape(flat, group, depth), keys, values, t)
                x = x + times(mixed.reshape(batch, -1), w["wo"])
                y = normalised(x, w["norm2"])
                x = x + times(jax.nn.silu(times(y, w["gate"])) * times(y, w["up"]), w["down"])
                caches += [keys, values]
            logits = times(normalised(x, ends["norm"]), ends["head"])
            return jnp.argmax(logits, -1).astype(jnp.int32), caches, tokens

        return lax.fori_loop(start, end, step, carry)


def _grown(cache: list[jax.Array], room: int) -> list[jax.Array]:
    """Caches with more room along the axis of steps, the last but one."""
    return [jnp.pad(c, [*[(0, 0)] * (c.ndim - 2), (0, room - c.shape[-2]), (0, 0)]) for c in cache]
