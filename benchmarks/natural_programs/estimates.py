"""Filters and smoothers of hidden states, rendering through a volume, targets of actors, episodes in one row."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import polyrhythm as pr
from benchmarks.natural_programs import Natural, normal

STATES, SEEN, PARTICLES, RAYS, ACTORS = 4, 2, 64, 64, 8
DISCOUNT, DECAY = 0.99, 0.9


def smoother() -> Any:
    """A Kalman filter, and the smoother of Rauch, Tung and Striebel that comes back over what it has left."""
    t, T = pr.dim("t")
    moves, shown = pr.input("moves", (STATES, STATES)), pr.input("shown", (SEEN, STATES))
    seen = pr.input("seen", (SEEN,), (t,))
    mean, spread = pr.recurrent((STATES,), ((t, T + 1),)), pr.recurrent((STATES, STATES), ((t, T + 1),))
    mean[0] = 0.0
    spread[0] = pr.eye(STATES)
    ahead = moves @ mean
    wider = moves @ spread @ pr.transpose(moves) + 0.1 * pr.eye(STATES)
    error = shown @ wider @ pr.transpose(shown) + 0.2 * pr.eye(SEEN)
    gain = pr.transpose(pr.linalg.solve(error, shown @ wider))
    mean[t + 1] = ahead + gain @ (seen - shown @ ahead)
    spread[t + 1] = wider - gain @ shown @ wider
    smooth, sure = pr.recurrent((STATES,), (t,)), pr.recurrent((STATES, STATES), (t,))
    smooth[T - 1] = mean[T]
    sure[T - 1] = spread[T]
    back = pr.transpose(pr.linalg.solve(wider[t + 1], moves @ spread[t + 1]))
    smooth[t < T - 1] = mean[t + 1] + back @ (smooth[t + 1] - ahead[t + 1])
    sure[t < T - 1] = spread[t + 1] + back @ (sure[t + 1] - wider[t + 1]) @ pr.transpose(back)
    return {"mean": smooth, "spread": sure}


def peer_smoother(moves: Any, shown: Any, seen: Any) -> Any:
    def forward(state: Any, seen: Any) -> Any:
        mean, spread = state
        ahead, wider = moves @ mean, moves @ spread @ moves.T + 0.1 * jnp.eye(STATES)
        error = shown @ wider @ shown.T + 0.2 * jnp.eye(SEEN)
        gain = jnp.linalg.solve(error, shown @ wider).T
        state = ahead + gain @ (seen - shown @ ahead), wider - gain @ shown @ wider
        return state, (ahead, wider, *state)

    _, (ahead, wider, mean, spread) = lax.scan(forward, (jnp.zeros(STATES), jnp.eye(STATES)), seen)

    def backward(state: Any, at: Any) -> Any:
        smooth, sure = state
        ahead, wider, mean, spread = at
        back = jnp.linalg.solve(wider, moves @ spread).T
        state = mean + back @ (smooth - ahead), spread + back @ (sure - wider) @ back.T
        return state, state

    last = mean[-1], spread[-1]
    _, found = lax.scan(backward, last, (ahead[1:], wider[1:], mean[:-1], spread[:-1]), reverse=True)
    return {name: jnp.append(x, end[None], 0) for name, x, end in zip(("mean", "spread"), found, last, strict=True)}


def particles() -> Any:
    """A particle filter that draws its particles anew at every step, in strata."""
    t, T = pr.dim("t")
    seen, noise = pr.input("seen", (), (t,)), pr.input("noise", (PARTICLES,), (t,))
    offset = pr.input("offset", (), (t,))
    x = pr.recurrent((PARTICLES,), ((t, T + 1),))
    x[0] = 0.0
    moved = DECAY * x + noise
    score = -0.5 * pr.square(seen - moved)
    weights = pr.softmax(score, 0)
    chosen = pr.searchsorted(pr.cumsum(weights, 0), (pr.arange(PARTICLES) + offset) / PARTICLES)
    x[t + 1] = pr.take(moved, chosen, 0)
    return {"score": pr.logsumexp(score, 0)[0:T].sum(0), "mean": (weights * moved).sum(0)}


def peer_particles(seen: Any, noise: Any, offset: Any) -> Any:
    def step(x: Any, at: Any) -> Any:
        seen, noise, offset = at
        moved = DECAY * x + noise
        score = -0.5 * jnp.square(seen - moved)
        weights = jax.nn.softmax(score)
        marks = (jnp.arange(PARTICLES) + offset) / PARTICLES
        chosen = jnp.clip(jnp.searchsorted(jnp.cumsum(weights), marks), 0, PARTICLES - 1)
        return moved[chosen], (jax.scipy.special.logsumexp(score), (weights * moved).sum())

    _, (score, mean) = lax.scan(step, jnp.zeros(PARTICLES), (seen, noise, offset))
    return {"score": score.sum(), "mean": mean}


def volume() -> Any:
    """Colours seen through what lies before them, which lets through a product over all steps so far; the gradients."""
    t, T = pr.dim("t")
    density, colour = pr.input("density", (RAYS,), (t,)), pr.input("colour", (RAYS, 3), (t,))
    hidden = 1 - pr.exp(-density)
    through = (1 - hidden)[0:t].prod(0)
    picture = ((through * hidden).unsqueeze(-1) * colour)[0:T].sum(0)
    return pr.grad(pr.square(picture).mean(), {"density": density, "colour": colour})


def peer_volume(density: Any, colour: Any) -> Any:
    def loss(density: Any, colour: Any) -> Any:
        through = jnp.exp(density - jnp.cumsum(density, 0))
        weights = through * (1 - jnp.exp(-density))
        return jnp.square((weights[..., None] * colour).sum(0)).mean()

    return dict(zip(("density", "colour"), jax.grad(loss, (0, 1))(density, colour), strict=True))


def vtrace() -> Any:
    """The targets and advantages of IMPALA."""
    t, T = pr.dim("t")
    value, reward = pr.input("value", (ACTORS,), ((t, T + 1),)), pr.input("reward", (ACTORS,), (t,))
    cut = pr.minimum(1.0, pr.input("ratio", (ACTORS,), (t,)))
    target = pr.recurrent((ACTORS,), ((t, T + 1),))
    target[T] = value[T]
    wrong = reward + DISCOUNT * value[t + 1] - value
    target[t] = value + cut * wrong + DISCOUNT * cut * (target[t + 1] - value[t + 1])
    return {"target": target[0:T], "advantage": cut * (reward + DISCOUNT * target[t + 1] - value)}


def peer_vtrace(value: Any, reward: Any, ratio: Any) -> Any:
    cut, after = jnp.minimum(1.0, ratio), value[1:]

    def step(later: Any, at: Any) -> Any:
        wrong, cut = at
        here = wrong + DISCOUNT * cut * later
        return here, here

    wrong = cut * (reward + DISCOUNT * after - value[:-1])
    target = value[:-1] + lax.scan(step, jnp.zeros(ACTORS), (wrong, cut), reverse=True)[1]
    then = jnp.append(target[1:], value[-1:], 0)
    return {"target": target, "advantage": cut * (reward + DISCOUNT * then - value[:-1])}


def episodes() -> Any:
    """Traces and steps since the last end of an episode, of many episodes in one row."""
    t, _ = pr.dim("t")
    x, ended = pr.input("x", (ACTORS,), (t,)), pr.input("ended", (), (t,), "bool")
    trace, since = pr.recurrent((ACTORS,), (t,)), pr.recurrent((), (t,), "int32")
    trace[t] = pr.where(ended, 0.0, DECAY * pr.where(t > 0, trace[t - 1], 0.0)) + x
    since[t] = pr.where(ended, 0, pr.where(t > 0, since[t - 1], 0) + 1)
    return {"trace": trace, "since": since, "so far": ended[0 : t + 1].sum(0)}


def peer_episodes(x: Any, ended: Any) -> Any:
    def step(state: Any, at: Any) -> Any:
        trace, since = state
        x, ended = at
        state = jnp.where(ended, 0.0, DECAY * trace) + x, jnp.where(ended, 0, since + 1)
        return state, state

    _, (trace, since) = lax.scan(step, (jnp.zeros(ACTORS), jnp.int32(0)), (x, ended))
    return {"trace": trace, "since": since, "so far": jnp.cumsum(ended.astype("int32"))}


def _uniform(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(size=shape).astype("float32")


ROWS = [
    Natural(
        "Kalman filter and smoother",
        smoother,
        lambda n: {
            "moves": 0.9 * np.eye(STATES, dtype="float32") + normal(0, STATES, STATES, scale=0.05),
            "shown": normal(1, SEEN, STATES),
            "seen": normal(2, n, SEEN),
        },
        peer_smoother,
        512,
        tolerance=1e-3,
    ),
    Natural(
        "particle filter",
        particles,
        lambda n: {"seen": normal(0, n), "noise": normal(1, n, PARTICLES), "offset": _uniform(2, n)},
        peer_particles,
        512,
        tolerance=5e-2,
        reason="the mean is taken of all steps at once, for which particles and weights of all steps are stored",
    ),
    Natural(
        "volume rendering, gradient",
        volume,
        lambda n: {"density": 0.1 * _uniform(0, n, RAYS), "colour": _uniform(1, n, RAYS, 3)},
        peer_volume,
        512,
        reason="the exponential, what it hides and what it lets through are stored, though each tells the others",
    ),
    Natural(
        "V-trace",
        vtrace,
        lambda n: {
            "value": normal(0, n + 1, ACTORS),
            "reward": normal(1, n, ACTORS),
            "ratio": 2 * _uniform(2, n, ACTORS),
        },
        peer_vtrace,
        8192,
    ),
    Natural(
        "episodes in one row",
        episodes,
        lambda n: {"x": normal(0, n, ACTORS), "ended": _uniform(1, n) < 0.05},
        peer_episodes,
        4096,
    ),
]
