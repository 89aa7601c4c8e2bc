"""Q-learning from a replay of all transitions so far, drawn at random, with a target network."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import polyrhythm as pr
from benchmarks.natural_programs import Natural, normal

STATE, ACTIONS, BATCH, EVERY, RATE, GAMMA = 4, 2, 16, 32, 0.01, 0.9


def dqn() -> Any:
    """One step of an environment and one update in every iteration."""
    i, I = pr.dim("i")
    noise = pr.input("noise", (STATE,), (i,))
    explore = pr.input("explore", (), (i,), "float32")
    draws = pr.input("draws", (BATCH,), (i,), "float32")
    first = pr.input("first", (STATE, ACTIONS))
    q, target = (pr.recurrent((STATE, ACTIONS), ((i, I + 1),)) for _ in range(2))
    s = pr.recurrent((STATE,), ((i, I + 1),))
    action = pr.where(explore > 0.5, (s @ q).argmax(0).cast("int32"), (noise.axes[0] > 0).cast("int32"))
    s[0] = 0.0
    s[i + 1] = 0.8 * s + 0.1 * noise + 0.2 * action.cast("float32")
    reward = -(s[i + 1] * s[i + 1]).sum()
    at = (draws * (pr.value(i) + 1).cast("float32")).cast("int32")
    states, following = pr.take(s[0 : i + 1], at, 0), pr.take(s[1 : i + 2], at, 0)
    actions, rewards = pr.take(action[0 : i + 1], at, 0), pr.take(reward[0 : i + 1], at, 0)
    goal = rewards + GAMMA * (following @ target).max(1)
    taken = pr.one_hot(actions, ACTIONS)
    error = goal - ((states @ q) * taken).sum(1)
    q[0] = first
    q[i + 1] = q + RATE * states.T @ (error.unsqueeze(1) * taken)
    target[0] = first
    target[i + 1] = pr.where((i + 1) % EVERY == 0, q[i + 1], target)
    return {"q": q[I]}


def peer_dqn(noise: Any, explore: Any, draws: Any, first: Any) -> Any:
    steps = noise.shape[0]

    def body(i: Any, carry: Any) -> Any:
        q, target, s, states, actions, rewards = carry
        action = jnp.where(explore[i] > 0.5, (s @ q).argmax(0).astype("int32"), (noise[i, 0] > 0).astype("int32"))
        after = 0.8 * s + 0.1 * noise[i] + 0.2 * action.astype("float32")
        states = states.at[i + 1].set(after)
        actions = actions.at[i].set(action)
        rewards = rewards.at[i].set(-(after * after).sum())
        at = (draws[i] * (i + 1).astype("float32")).astype("int32")
        goal = rewards[at] + GAMMA * (states[at + 1] @ target).max(1)
        taken = jax.nn.one_hot(actions[at], ACTIONS)
        error = goal - ((states[at] @ q) * taken).sum(1)
        new = q + RATE * states[at].T @ (error[:, None] * taken)
        target = jnp.where((i + 1) % EVERY == 0, new, target)
        return new, target, after, states, actions, rewards

    zero = jnp.zeros(STATE)
    buffers = jnp.zeros((steps + 1, STATE)), jnp.zeros(steps, "int32"), jnp.zeros(steps)
    return {"q": jax.lax.fori_loop(0, steps, body, (first, first, zero, *buffers))[0]}


def _inputs(steps: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "noise": normal(1, steps, STATE),
        "explore": rng.random(steps).astype("float32"),
        "draws": rng.random((steps, BATCH)).astype("float32") * np.float32(0.999),
        "first": normal(2, STATE, ACTIONS),
    }


ROWS = (Natural("DQN, uniform replay", dqn, _inputs, peer_dqn, 2048, tolerance=1e-3),)
