"""PPO by an expert in JAX: one `jit` for an iteration, `scan` over steps, epochs and minibatches, donated state."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]

from polyrhythm.rl.ppo import Settings

Weights = dict[str, Any]


def network(w: Weights, name: str, x: Any) -> Any:
    count = sum(key.startswith(f"{name}.") for key in w) // 2
    for layer in range(count):
        x = (jnp.tanh(x) if layer else x) @ w[f"{name}.layers.{layer}.weight"].T + w[f"{name}.layers.{layer}.bias"]
    return x


def loss(w: Weights, batch: tuple[Any, ...], s: Settings) -> Any:
    observation, action, old, value, advantage, target = batch
    logits = jax.nn.log_softmax(network(w, "policy", observation))
    worth = network(w, "value", observation)[:, 0]
    advantage = (advantage - advantage.mean()) / (advantage.std(ddof=1) + 1e-8)
    log_prob = (logits * jax.nn.one_hot(action, logits.shape[-1])).sum(-1)
    ratio = jnp.exp(log_prob - old)
    policy_loss = -jnp.minimum(
        ratio * advantage, jnp.clip(ratio, 1 - s.clip_range, 1 + s.clip_range) * advantage
    ).mean()
    near = value + jnp.clip(worth - value, -s.clip_range, s.clip_range)
    value_loss = 0.5 * jnp.maximum((worth - target) ** 2, (near - target) ** 2).mean()
    entropy = -(jnp.exp(logits) * logits).sum(-1).mean()
    return policy_loss - s.entropy_coef * entropy + s.value_coef * value_loss


def synthetic(shape: tuple[int, ...], length: int, actions: int) -> Any:
    """The rules of `rl.Synthetic`: a function from state, action and key to the next state and what it gives."""

    def step(state: Any, action: Any, key: Any) -> Any:
        lights, age = state
        push = (action.astype(jnp.float32) + 1.0) * (0.1 / actions)
        after = 0.9 * lights + push.reshape(-1, *[1] * len(shape))
        ended = age + 1 >= length
        fresh = jax.random.uniform(key, lights.shape, minval=-1.0, maxval=1.0)
        going = jnp.where(ended.reshape(-1, *[1] * len(shape)), fresh, after)
        going, reward = (going, jnp.where(ended, 0, age + 1)), after.reshape(len(age), -1).mean(1)
        return going, (after, reward, jnp.zeros(len(age), bool), ended)

    return step


def cartpole(limit: int) -> Any:
    """The rules of `rl.CartPole`, in the same form."""

    def step(state: Any, action: Any, key: Any) -> Any:
        physics, age = state
        x, speed, angle, spin = physics.T
        force = jnp.where(action == 1, 10.0, -10.0)
        cosine, sine = jnp.cos(angle), jnp.sin(angle)
        push = (force + 0.05 * spin**2 * sine) / 1.1
        turning = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
        pulling = push - 0.05 * turning * cosine / 1.1
        after = jnp.stack([x + 0.02 * speed, speed + 0.02 * pulling, angle + 0.02 * spin, spin + 0.02 * turning], 1)
        terminated = (abs(after[:, 0]) > 2.4) | (abs(after[:, 2]) > 12 * 2 * jnp.pi / 360)
        ended = terminated | (age + 1 >= limit)
        fresh = jax.random.uniform(key, after.shape, minval=-0.05, maxval=0.05)
        going = jnp.where(ended[:, None], fresh, after), jnp.where(ended, 0, age + 1)
        return going, (after, jnp.ones(len(age)), terminated, ended)

    return step


def trainer(weights: Weights, envs: int, step: Any, shape: tuple[int, ...], actions: int, s: Settings) -> Any:
    """A function of a state that makes one iteration, and the first state."""
    optimiser = optax.chain(optax.clip_by_global_norm(s.max_grad_norm), optax.adam(s.learning_rate, eps=1e-5))
    rows = envs * s.steps

    def acted(carry: Any, key: Any) -> Any:
        w, state = carry
        seen, (choose, begin) = state[0], jax.random.split(key)
        logits = network(w, "policy", seen)
        action = jax.random.categorical(choose, logits)
        log_prob = (jax.nn.log_softmax(logits) * jax.nn.one_hot(action, actions)).sum(-1)
        state, after = step(state, action, begin)
        return (w, state), (seen, action, log_prob, *after)

    @partial(jax.jit, donate_argnums=0)
    def iteration(run: Any) -> Any:
        w, moments, state, key = run
        key, acting, shuffling = jax.random.split(key, 3)
        (_, state), kept = jax.lax.scan(acted, (w, state), jax.random.split(acting, s.steps))
        seen, action, log_prob, following, reward, terminated, ended = kept
        value, after = network(w, "value", seen)[..., 0], network(w, "value", following)[..., 0]
        error = reward + s.gamma * (1.0 - terminated) * after - value

        def back(later: Any, row: Any) -> Any:
            own = row[0] + s.gamma * s.gae_lambda * (1.0 - row[1]) * later
            return own, own

        _, advantage = jax.lax.scan(back, jnp.zeros(envs), (error, ended.astype(jnp.float32)), reverse=True)
        flat = [a.reshape(rows, *a.shape[2:]) for a in (seen, action, log_prob, value, advantage, advantage + value)]

        def update(carry: Any, chosen: Any) -> Any:
            w, moments = carry
            now, slopes = jax.value_and_grad(loss)(w, tuple(a[chosen] for a in flat), s)
            changes, moments = optimiser.update(slopes, moments)
            return (optax.apply_updates(w, changes), moments), now

        # One sort for each epoch; `jax.random.permutation` sorts twice, in case two keys are the same.
        orders = jnp.argsort(jax.random.bits(shuffling, (s.epochs, rows)), axis=-1)
        (w, moments), losses = jax.lax.scan(update, (w, moments), orders.reshape(s.epochs * s.minibatches, -1))
        return (w, moments, state, key), losses.mean()

    key = jax.random.key(0)
    lights = jax.random.uniform(key, (envs, *shape), minval=-0.05, maxval=0.05)
    start = {name: jnp.asarray(a) for name, a in weights.items()}
    return iteration, (start, optimiser.init(start), (lights, jnp.zeros(envs, jnp.int32)), key)
