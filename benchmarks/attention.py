"""Decoding with attention against a hand-written loop with a preallocated cache."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import polyrhythm as pr
from benchmarks import programs
from benchmarks.harness import Fact, Result, race

HEADS, DEPTH, WINDOW = 4, 64, 128
WIDTH = HEADS * DEPTH


def run(quick: bool) -> list[Result | Fact]:
    """Causal and windowed decoding; `quick` only shows that it runs."""
    steps, rounds = (256, 3) if quick else (1024, 11)
    results: list[Result | Fact] = []
    for window in (None, WINDOW):
        result = decode(steps, window, rounds)
        results.append(result)
        results += [Fact(f"{result.name}: {way}", s / steps * 1e6, "us a step") for way, s in result.seconds.items()]
    return results


def decode(steps: int, window: int | None, rounds: int) -> Result:
    """Each step attends to all before it, or to the last few."""
    rng = np.random.default_rng(0)
    given = {name: jnp.asarray(rng.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5, "float32") for name in ("wq", "wk", "wv")}
    given["first"] = jnp.asarray(rng.normal(size=WIDTH), "float32")
    program = pr.compile(programs.decode(HEADS, DEPTH, window))
    by_hand = jax.jit(lambda first, wq, wk, wv: cached(first, wq, wk, wv, steps, window))
    ways = {
        "ours": lambda: program(bounds={"T": steps}, **given),
        "fori with a cache": lambda: by_hand(**given),
    }
    name = f"{'causal' if window is None else f'window {window}'} decode, T={steps}, {HEADS} x {DEPTH}"
    return race(name, ways, {"fori with a cache": 1.15}, rounds, tolerance=1e-3)


def cached(first: jax.Array, wq: jax.Array, wk: jax.Array, wv: jax.Array, steps: int, window: int | None) -> jax.Array:
    """A cache of keys and values by head, a ring if there is a window; written first, masked, one dot each."""
    room = steps if window is None else window
    slots = jnp.arange(room)

    def step(t: jax.Array, carry: tuple[jax.Array, ...]) -> Any:
        x, keys, values, out = carry
        q, k, v = ((x @ w).reshape(HEADS, DEPTH) for w in (wq, wk, wv))
        keys = lax.dynamic_update_slice(keys, k[:, None], (0, t % room, 0))
        values = lax.dynamic_update_slice(values, v[:, None], (0, t % room, 0))
        scores = jnp.einsum("hd,hsd->hs", q, keys) / np.sqrt(DEPTH)
        scores = jnp.where(slots <= t, scores, -jnp.inf)
        mixed = jnp.einsum("hs,hsd->hd", jax.nn.softmax(scores, -1), values).reshape(WIDTH)
        x = jnp.tanh(mixed + 0.5 * x)
        return x, keys, values, lax.dynamic_update_slice(out, x[None], (t, 0))

    cache = jnp.zeros((HEADS, room, DEPTH))
    return lax.fori_loop(0, steps, step, (first, cache, cache, jnp.zeros((steps, WIDTH))))[-1]
