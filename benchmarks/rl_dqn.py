"""DQN by an expert in JAX, and in torch as CleanRL writes it: CartPole, uniform replay, double Q-learning.

In JAX one `jit` makes an iteration: `scan` over steps and updates, a ring buffer that is updated in place, donated. In
torch a Python loop steps Gymnasium's vector environment.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from benchmarks.rl_jax import Weights, cartpole
from polyrhythm.rl.dqn import Settings

NAMES = ("observation", "action", "reward", "following", "terminated")


def values(w: Weights, x: Any) -> Any:
    """The network of `rl.QNetwork`, by JAX or torch."""
    relu = torch.relu if isinstance(x, torch.Tensor) else jax.nn.relu
    for layer in range(len(w) // 2):
        x = (relu(x) if layer else x) @ w[f"advantage.layers.{layer}.weight"].T + w[f"advantage.layers.{layer}.bias"]
    return x


def loss(w: Weights, slow: Weights, batch: dict[str, Any], s: Settings) -> Any:
    """In JAX."""
    best = values(w, batch["following"]).argmax(-1)
    after = jnp.take_along_axis(values(slow, batch["following"]), best[:, None], 1)[:, 0]
    wanted = jax.lax.stop_gradient(batch["reward"] + s.gamma * (1.0 - batch["terminated"]) * after)
    q = jnp.take_along_axis(values(w, batch["observation"]), batch["action"][:, None], 1)[:, 0]
    return ((q - wanted) ** 2).mean()


def jax_trainer(weights: Weights, envs: int, s: Settings) -> Any:
    """A function of a state that makes one iteration, and the first state."""
    step = cartpole(500)
    optimiser = optax.chain(optax.clip_by_global_norm(s.max_grad_norm), optax.adam(s.learning_rate))
    rows, size = envs * s.steps, s.buffer_size // (envs * s.steps) * (envs * s.steps)

    @partial(jax.jit, donate_argnums=0)
    def iteration(run: Any) -> Any:
        w, slow, moments, state, buffer, done, key = run
        key, acting, drawing = jax.random.split(key, 3)
        share = jnp.clip(done * rows / s.exploration_steps, 0.0, 1.0)
        epsilon = s.exploration_initial + share * (s.exploration_final - s.exploration_initial)

        def act(state: Any, key: Any) -> Any:
            choose, explore, begin = jax.random.split(key, 3)
            best = values(w, state[0]).argmax(-1)
            action = jnp.where(
                jax.random.uniform(explore, (envs,)) < epsilon, jax.random.randint(choose, (envs,), 0, 2), best
            )
            after, (following, reward, terminated, _) = step(state, action, begin)
            return after, (state[0], action, reward, following, terminated.astype(jnp.float32))

        state, kept = jax.lax.scan(act, state, jax.random.split(acting, s.steps))
        start = done * rows % size
        buffer = {
            name: jax.lax.dynamic_update_slice_in_dim(buffer[name], new.reshape(rows, *new.shape[2:]), start, 0)
            for name, new in zip(NAMES, kept, strict=True)
        }

        def update(carry: Any, drawn: Any) -> Any:
            w, slow, moments = carry
            key, number = drawn
            chosen = jax.random.randint(key, (s.batch_size,), 0, jnp.minimum((done + 1) * rows, size))
            now, slopes = jax.value_and_grad(loss)(w, slow, {name: a[chosen] for name, a in buffer.items()}, s)
            changes, moments = optimiser.update(slopes, moments)
            w = optax.apply_updates(w, changes)
            renewed = number % s.target_update == 0
            return (w, jax.tree.map(lambda a, b: jnp.where(renewed, a, b), w, slow), moments), now

        numbers = done * s.updates + 1 + jnp.arange(s.updates)
        (w, slow, moments), losses = jax.lax.scan(
            update, (w, slow, moments), (jax.random.split(drawing, s.updates), numbers)
        )
        return (w, slow, moments, state, buffer, done + 1, key), losses.mean()

    w = {name: jnp.asarray(a) for name, a in weights.items()}
    seen = jnp.zeros((envs, 4))
    rest = {"observation": (4,), "action": (), "reward": (), "following": (4,), "terminated": ()}
    buffer = {n: jnp.zeros((size, *rest[n]), jnp.int32 if n == "action" else jnp.float32) for n in NAMES}
    state = (seen, jnp.zeros(envs, jnp.int32))
    slow = jax.tree.map(jnp.copy, w)
    return iteration, (w, slow, optimiser.init(w), state, buffer, jnp.int32(0), jax.random.key(0))


def torch_loss(w: Weights, slow: Weights, batch: dict[str, torch.Tensor], s: Settings) -> torch.Tensor:
    """As CleanRL writes it."""
    with torch.no_grad():
        best = values(w, batch["following"]).argmax(-1, keepdim=True)
        after = values(slow, batch["following"]).gather(1, best)[:, 0]
        wanted = batch["reward"] + s.gamma * (1.0 - batch["terminated"]) * after
    q = values(w, batch["observation"]).gather(1, batch["action"].long()[:, None])[:, 0]
    return torch.nn.functional.mse_loss(q, wanted)


def torch_trainer(weights: Weights, envs: int, s: Settings) -> Any:
    """A function that makes one iteration."""
    made = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * envs, autoreset_mode=AutoresetMode.SAME_STEP)
    seen, _ = made.reset(seed=0)
    random, size = np.random.default_rng(0), s.buffer_size
    w = {name: torch.tensor(a, requires_grad=True) for name, a in weights.items()}
    slow = {name: a.detach().clone() for name, a in w.items()}
    optimiser = torch.optim.Adam(w.values(), lr=s.learning_rate)
    buffer: dict[str, np.ndarray] = {
        name: np.zeros((size, 4) if name in ("observation", "following") else size, np.float32) for name in NAMES
    }
    count = updates = 0

    def iteration() -> None:
        nonlocal seen, count, updates
        for _ in range(s.steps):
            share = min(1.0, count / s.exploration_steps)
            epsilon = s.exploration_initial + share * (s.exploration_final - s.exploration_initial)
            with torch.no_grad():
                best = values(w, torch.from_numpy(seen)).argmax(-1).numpy()
            action = np.where(random.random(envs) < epsilon, random.integers(0, 2, envs), best)
            after, reward, terminated, truncated, infos = made.step(action)
            following = after.copy()
            for k in np.flatnonzero(terminated | truncated):
                following[k] = infos["final_obs"][k]
            places = (count + np.arange(envs)) % size
            for name, new in zip(NAMES, (seen, action, reward, following, terminated), strict=True):
                buffer[name][places] = new
            seen, count = after, count + envs
        for _ in range(s.updates):
            chosen, updates = random.integers(0, min(count, size), s.batch_size), updates + 1
            optimiser.zero_grad()
            torch_loss(w, slow, {name: torch.from_numpy(a[chosen]) for name, a in buffer.items()}, s).backward()
            torch.nn.utils.clip_grad_norm_(w.values(), s.max_grad_norm)
            optimiser.step()
            if updates % s.target_update == 0:
                for name, a in w.items():
                    slow[name] = a.detach().clone()

    return iteration
