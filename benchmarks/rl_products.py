"""`python -m benchmarks.rl_products`: what an iteration of PPO takes at least, in XLA and in torch.

Only the matrix products of an iteration, those of the steps and those of the updates, forward and backward, for 32
environments, 250 steps and two networks of 2 x 64: no activation, no loss, no optimiser beyond the weights that must
change so that nothing is computed once for all. The two take turns in one process. A system whose products these are
cannot be faster, whatever it does about everything else.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from benchmarks.rl import ACTIONS, SHAPE

ENVS, STEPS, HIDDEN, UPDATES, BATCH, ROUNDS = 32, 250, (64, 64), 16, 2000, 15
RATE = 1e-6


def weights() -> list[list[np.ndarray]]:
    """The matrices of the policy and of the value, (in, out)."""
    random = np.random.default_rng(0)
    sizes = [(*SHAPE, *HIDDEN, last) for last in (ACTIONS, 1)]
    return [[random.normal(size=s).astype("float32") / s[0] for s in pairwise(one)] for one in sizes]


def updated(x: Any, network: list[Any]) -> list[Any]:
    """The products of one update of one network; works on arrays of JAX and of torch."""
    seen = [x]
    for w in network:
        seen.append(seen[-1] @ w)
    slope, found = seen.pop(), []
    for number in reversed(range(len(network))):
        found.append(network[number] - RATE * (seen[number].T @ slope))
        slope = slope @ network[number].T if number else slope
    return found[::-1]


def in_jax() -> Callable[[], Any]:
    """One iteration in one `jit`."""
    x, start = jnp.ones((BATCH, *SHAPE)), jnp.ones((ENVS, *SHAPE))

    @jax.jit
    def run(networks: list[list[jax.Array]]) -> Any:
        def step(_: Any, state: jax.Array) -> jax.Array:
            y = state
            for w in networks[0]:
                y = y @ w
            return state + RATE * y.mean()

        state = lax.fori_loop(0, STEPS, step, start)
        return lax.fori_loop(0, UPDATES, lambda _, now: [updated(x + state[0], one) for one in now], networks)

    networks = jax.tree.map(jnp.asarray, weights())
    return lambda: jax.block_until_ready(run(networks))


def in_torch() -> Callable[[], Any]:
    """The same, operation by operation."""
    x, start = torch.ones(BATCH, *SHAPE), torch.ones(ENVS, *SHAPE)
    networks = [[torch.from_numpy(w) for w in one] for one in weights()]

    @torch.inference_mode()
    def run() -> Any:
        now, state = networks, start
        for _ in range(STEPS):
            y = state
            for w in now[0]:
                y = y @ w
            state = state + RATE * y.mean()
        for _ in range(UPDATES):
            now = [updated(x + state[0], one) for one in now]
        return now

    return run


def main() -> None:
    """Compare, measure, report."""
    ways = {"JAX, one jit": in_jax(), "torch": in_torch()}
    for one, other in zip(*(way() for way in ways.values()), strict=True):
        for w, same in zip(one, other, strict=True):
            np.testing.assert_allclose(w, same, rtol=1e-3, atol=1e-5)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            times[name].append(1e3 * (time.perf_counter() - began))
    for name, found in times.items():
        print(f"{name}: {statistics.median(found):.1f} ms, fastest {min(found):.1f}")


if __name__ == "__main__":
    main()
