"""Attention over the past with its gradient, experts chosen by gates, policy gradients, prioritised replay."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import polyrhythm as pr
from benchmarks.natural_programs import Natural, normal

WIDTH, EXPERTS, HIDDEN, CHOSEN = 32, 8, 64, 2


def attention(products: bool) -> Any:
    """Causal attention of one head, and its gradient."""
    t, T = pr.dim("t")
    x = pr.input("x", (WIDTH,), (t,))
    weights = [pr.input(name, (WIDTH, WIDTH)) for name in ("wq", "wk", "wv")]
    q, k, v = (x @ w for w in weights)
    share = pr.softmax(k[0 : t + 1] @ q * WIDTH**-0.5, 0)
    y = share @ v[0 : t + 1] if products else (share.unsqueeze(1) * v[0 : t + 1]).sum(0)
    loss = pr.square(y)[0:T].mean((0, 1))
    return {"loss": loss, "gradients": pr.grad(loss, weights)}


def peer_attention(x: Any, **weights: Any) -> Any:
    mask = jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool))

    def loss(weights: Any) -> Any:
        q, k, v = (x @ w for w in weights)
        share = jax.nn.softmax(jnp.where(mask, q @ k.T * WIDTH**-0.5, -jnp.inf), 1)
        return jnp.square(share @ v).mean()

    value, gradients = jax.value_and_grad(loss)([weights[name] for name in ("wq", "wk", "wv")])
    return {"loss": value, "gradients": gradients}


def _attention_inputs(steps: int) -> dict[str, np.ndarray]:
    return {
        "x": normal(0, steps, WIDTH),
        **{name: normal(n, WIDTH, WIDTH, scale=0.2) for n, name in enumerate(("wq", "wk", "wv"), 1)},
    }


def routed(taken: bool) -> Any:
    """Each token goes through the two experts that its gates choose: their matrices taken, or all weighted."""
    t, _ = pr.dim("t")
    x = pr.input("x", (WIDTH,), (t,))
    gate = pr.input("gate", (WIDTH, EXPERTS))
    up, down = pr.input("up", (EXPERTS, WIDTH, HIDDEN)), pr.input("down", (EXPERTS, HIDDEN, WIDTH))
    score, which = pr.topk(x @ gate, CHOSEN)
    share = pr.softmax(score)
    if taken:
        hidden = pr.relu(pr.einsum("d,kdh->kh", x, pr.take(up, which, 0)))
        return {"y": pr.einsum("k,kh,khd->d", share, hidden, pr.take(down, which, 0))}
    of_all = (share.unsqueeze(1) * pr.one_hot(which, EXPERTS)).sum(0)
    hidden = pr.relu(pr.einsum("d,edh->eh", x, up))
    return {"y": pr.einsum("e,eh,ehd->d", of_all, hidden, down)}


def peer_routed(x: Any, gate: Any, up: Any, down: Any) -> Any:
    score, which = lax.top_k(x @ gate, CHOSEN)
    share = jax.nn.softmax(score)
    of_all = (share[:, :, None] * jax.nn.one_hot(which, EXPERTS)).sum(1)
    hidden = jax.nn.relu(jnp.einsum("td,edh->teh", x, up)) * of_all[:, :, None]
    return {"y": jnp.einsum("teh,ehd->td", hidden, down)}


def _routed_inputs(steps: int) -> dict[str, np.ndarray]:
    return {
        "x": normal(0, steps, WIDTH),
        "gate": normal(1, WIDTH, EXPERTS),
        "up": normal(2, EXPERTS, WIDTH, HIDDEN, scale=0.2),
        "down": normal(3, EXPERTS, HIDDEN, WIDTH, scale=0.2),
    }


GAMMA, LAMBDA = 0.99, 0.95


def advantages() -> Any:
    """Generalised advantages as their definition: a discounted sum of the errors to come."""
    t, T = pr.dim("t")
    r, v = pr.input("r", (), (t,)), pr.input("v", (), ((t, T + 1),))
    error = r + GAMMA * v[t + 1] - v
    return {"advantage": (error[t:T] * (GAMMA * LAMBDA) ** pr.arange(T - t)).sum(0)}


def peer_advantages(r: Any, v: Any) -> Any:
    def step(later: Any, error: Any) -> Any:
        here = error + GAMMA * LAMBDA * later
        return here, here

    return {"advantage": lax.scan(step, jnp.float32(0), r + GAMMA * v[1:] - v[:-1], reverse=True)[1]}


SEEN, ACTIONS, ITERATIONS, RATE = 64, 4, 4, 0.05


def reinforce(returns: str) -> Any:
    """A policy gradient on an environment of formulae; the returns are all to come, or the next reward and a value."""
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    moves = pr.input("moves", (ACTIONS, SEEN))
    luck = pr.input("luck", (), (i, t))
    w = pr.recurrent((SEEN, ACTIONS), ((i, I + 1),))
    s = pr.recurrent((SEEN,), (i, (t, T + 1)))
    seen = pr.detach(s)
    log_p = pr.log_softmax(seen @ w)
    action = (luck > pr.cumsum(pr.exp(pr.detach(log_p)), 0)).sum(0)
    taken = pr.one_hot(pr.minimum(action, ACTIONS - 1), ACTIONS)
    s[i, 0] = 0.0
    s[i, t + 1] = 0.9 * seen + 0.1 * (pr.detach(taken) @ moves)
    reward = -pr.square(pr.detach(s)[i, t + 1]).sum()
    g = reward[i, t:T].sum(0) if returns == "all" else reward
    loss = (-(log_p * taken).sum() * pr.detach(g))[i, 0:T].mean()
    w[0] = pr.input("w0", (SEEN, ACTIONS))
    w[i + 1] = w - RATE * pr.grad(loss, w)
    return {"w": w[I], "loss": loss[0:I]}


def peer_reinforce(returns: str) -> Any:
    def run(moves: Any, luck: Any, w0: Any) -> Any:
        def update(w: Any, luck: Any) -> Any:
            def act(s: Any, luck: Any) -> Any:
                log_p = jax.nn.log_softmax(s @ w)
                action = (luck > jnp.cumsum(jnp.exp(log_p))).sum()
                taken = jax.nn.one_hot(jnp.minimum(action, ACTIONS - 1), ACTIONS)
                after = 0.9 * s + 0.1 * taken @ moves
                return after, taken, -jnp.square(after).sum()

            def step(s: Any, luck: Any) -> Any:
                after, taken, reward = act(s, luck)
                return after, (s, taken, reward)

            def at_once(carry: Any, luck: Any) -> Any:
                s, total, slope = carry
                after, taken, reward = act(s, luck)
                loss, new = jax.value_and_grad(lambda w: -(jax.nn.log_softmax(s @ w) * taken).sum() * reward)(w)
                return (after, total + loss, slope + new), None

            if returns == "next":
                start = jnp.zeros(SEEN), jnp.float32(0), jnp.zeros_like(w)
                (_, loss, slope), _ = lax.scan(at_once, start, luck)
                loss, slope = loss / luck.shape[0], slope / luck.shape[0]
            else:
                _, (seen, taken, reward) = lax.scan(step, jnp.zeros(SEEN), luck)
                g = jnp.cumsum(reward[::-1])[::-1]

                def objective(w: Any) -> Any:
                    return (-(jax.nn.log_softmax(seen @ w) * taken).sum(1) * g).mean()

                loss, slope = jax.value_and_grad(objective)(w)
            return w - RATE * slope, loss

        w, losses = lax.scan(update, w0, luck)
        return {"w": w, "loss": losses}

    return run


def _policy_inputs(steps: int) -> dict[str, np.ndarray]:
    return {
        "moves": normal(0, ACTIONS, SEEN),
        "luck": np.random.default_rng(1).random((ITERATIONS, steps)).astype("float32"),
        "w0": normal(2, SEEN, ACTIONS, scale=0.1),
    }


STATE, BATCH, PLACES = 4, 16, 512


def prioritised() -> Any:
    """Q-learning that draws what it was most wrong about, from the last transitions."""
    i, I = pr.dim("i")
    noise = pr.input("noise", (STATE,), (i,))
    draws = pr.input("draws", (BATCH,), (i,), "float32")
    q = pr.recurrent((STATE, ACTIONS), ((i, I + 1),))
    s = pr.recurrent((STATE,), ((i, I + 1),))
    priority = pr.recurrent((PLACES,), ((i, I + 1),))
    states, following = (pr.recurrent((PLACES, STATE), ((i, I + 1),)) for _ in range(2))
    rewards = pr.recurrent((PLACES,), ((i, I + 1),))
    s[0], priority[0], states[0], following[0], rewards[0] = 0.0, 0.0, 0.0, 0.0, 0.0
    s[i + 1] = 0.8 * s + 0.1 * noise
    place = pr.value(i % PLACES)
    states[i + 1] = states.at[place].set(s)
    following[i + 1] = following.at[place].set(s[i + 1])
    rewards[i + 1] = rewards.at[place].set(-pr.square(s[i + 1]).sum())
    known = priority.at[place].set(1.0)
    up_to = pr.cumsum(known, 0)
    at = pr.searchsorted(up_to, draws * up_to.axes[PLACES - 1])
    before, after = pr.take(states[i + 1], at, 0), pr.take(following[i + 1], at, 0)
    goal = pr.take(rewards[i + 1], at, 0) + GAMMA * (after @ q).max(1)
    error = goal - (before @ q).max(1)
    taken = pr.one_hot((before @ q).argmax(1), ACTIONS)
    priority[i + 1] = known.at[at].set(pr.abs(error) + 0.01)
    q[0] = pr.input("first", (STATE, ACTIONS))
    q[i + 1] = q + 0.01 * before.T @ (error.unsqueeze(1) * taken)
    return {"q": q[I]}


def peer_prioritised(noise: Any, draws: Any, first: Any) -> Any:
    def step(carry: Any, now: Any) -> Any:
        q, s, priority, states, following, rewards = carry
        i, noise, draws = now
        new = 0.8 * s + 0.1 * noise
        place = i % PLACES
        states, following = states.at[place].set(s), following.at[place].set(new)
        rewards, priority = rewards.at[place].set(-jnp.square(new).sum()), priority.at[place].set(1.0)
        up_to = jnp.cumsum(priority)
        at = jnp.searchsorted(up_to, draws * up_to[-1])
        before, after = states[at], following[at]
        goal = rewards[at] + GAMMA * (after @ q).max(1)
        error = goal - (before @ q).max(1)
        taken = jax.nn.one_hot((before @ q).argmax(1), ACTIONS)
        priority = priority.at[at].set(jnp.abs(error) + 0.01)
        return (q + 0.01 * before.T @ (error[:, None] * taken), new, priority, states, following, rewards), None

    places = jnp.zeros((PLACES, STATE))
    start = first, jnp.zeros(STATE), jnp.zeros(PLACES), places, places, jnp.zeros(PLACES)
    return {"q": lax.scan(step, start, (jnp.arange(noise.shape[0]), noise, draws))[0][0]}


ROWS = (
    Natural("causal attention, gradient", lambda: attention(True), _attention_inputs, peer_attention, 512),
    Natural("causal attention by sums, gradient", lambda: attention(False), _attention_inputs, peer_attention, 512),
    Natural("top-k routing, weighted", lambda: routed(False), _routed_inputs, peer_routed, 512),
    Natural("top-k routing, taken", lambda: routed(True), _routed_inputs, peer_routed, 512),
    Natural(
        "advantages as slices",
        advantages,
        lambda n: {"r": normal(0, n), "v": normal(1, n + 1)},
        peer_advantages,
        8192,
    ),
    Natural("REINFORCE, all returns", lambda: reinforce("all"), _policy_inputs, peer_reinforce("all"), 512),
    Natural("REINFORCE, next reward", lambda: reinforce("next"), _policy_inputs, peer_reinforce("next"), 512),
    Natural(
        "Q-learning, prioritised replay",
        prioritised,
        lambda n: {
            "noise": normal(1, n, STATE),
            "draws": np.random.default_rng(2).random((n, BATCH)).astype("float32"),
            "first": normal(3, STATE, ACTIONS),
        },
        peer_prioritised,
        1024,
        tolerance=1e-3,
    ),
)
