"""Learning as one program: truncated back-propagation, imagination, learning to learn, sampling, an ODE that ends."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import polyrhythm as pr
from benchmarks.natural_programs import Natural, normal

BATCH, WIDTH, SEGMENT, RATE = 8, 32, 16, 0.1


def truncated() -> Any:
    """An LSTM trained on segments of one long sequence: one update for each, the state goes on without its gradient."""
    i, I = pr.dim("i")
    t, T = pr.dim("t", min=1)
    x, goal = (pr.input(name, (BATCH, WIDTH), (i, t)) for name in ("x", "goal"))
    first = {"u": (WIDTH, 4 * WIDTH), "v": (WIDTH, 4 * WIDTH), "b": (4 * WIDTH,)}
    w = {name: pr.recurrent(shape, ((i, I + 1),)) for name, shape in first.items()}
    h, c = (pr.recurrent((BATCH, WIDTH), (i, (t, T + 1))) for _ in range(2))
    z = x @ w["u"] + h @ w["v"] + w["b"]
    a, f, o, g = (z.axes[:, k * WIDTH : (k + 1) * WIDTH] for k in range(4))
    cell = pr.sigmoid(f) * c + pr.sigmoid(a) * pr.tanh(g)
    h[0, 0], c[0, 0] = 0.0, 0.0
    h[i + 1, 0], c[i + 1, 0] = pr.detach(h)[i, T], pr.detach(c)[i, T]
    h[i, t + 1], c[i, t + 1] = pr.sigmoid(o) * pr.tanh(cell), cell
    loss = pr.square(h[i, t + 1] - goal)[i, 0:T].mean((0, 1, 2))
    slopes = pr.grad(loss, w)
    for name, weight in w.items():
        weight[0] = pr.input(f"{name}0", first[name])
        weight[i + 1] = weight - RATE * slopes[name]
    return {"loss": loss[0:I], **{name: weight[I] for name, weight in w.items()}}


def peer_truncated(x: Any, goal: Any, u0: Any, v0: Any, b0: Any) -> Any:
    def segment(w: Any, state: Any, x: Any, goal: Any) -> Any:
        u, v, b = w
        ahead = x @ u + b

        def step(state: Any, now: Any) -> Any:
            h, c = state
            a, f, o, g = jnp.split(now + h @ v, 4, 1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(a) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        state, hs = lax.scan(step, state, ahead)
        return jnp.square(hs - goal).mean(), state

    def update(carry: Any, now: Any) -> Any:
        w, state = carry
        (loss, state), slopes = jax.value_and_grad(segment, has_aux=True)(w, state, *now)
        return (jax.tree.map(lambda w, s: w - RATE * s, w, slopes), state), loss

    zero = jnp.zeros((BATCH, WIDTH))
    ((u, v, b), _), loss = lax.scan(update, ((u0, v0, b0), (zero, zero)), (x, goal))
    return {"loss": loss, "u": u, "v": v, "b": b}


HIDDEN, DREAM = 24, 8


def _network(x: Any, w: Any, tanh: Any) -> Any:
    return tanh(x @ w["a"] + w["b"]) @ w["c"]


def _weights(prefix: str, wide: int, out: int) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}a": (wide, HIDDEN), f"{prefix}b": (HIDDEN,), f"{prefix}c": (HIDDEN, out)}


def _descended(i: pr.Dim, I: pr.Bound, shapes: Any) -> dict[str, pr.Recurrent]:
    return {name[1:]: pr.recurrent(shape, ((i, I + 1),)) for name, shape in shapes.items()}


def dreamer() -> Any:
    """A model fitted to transitions, and a policy that follows the gradient of what it earns in the model."""
    i, I = pr.dim("i")
    k, K = pr.dim("k", min=1)
    seen, after, start = (pr.input(name, (BATCH, 2), (i,)) for name in ("seen", "after", "start"))
    tried = pr.input("tried", (BATCH, 1), (i,))
    shapes = {"m": _weights("m", 3, 2), "p": _weights("p", 2, 1)}
    model, policy = _descended(i, I, shapes["m"]), _descended(i, I, shapes["p"])
    error = pr.square(seen + _network(pr.concat([seen, tried], 1), model, pr.tanh) - after).mean()
    dream = pr.recurrent((BATCH, 2), (i, (k, K + 1)))
    action = pr.tanh(_network(dream, policy, pr.tanh))
    frozen = {name: pr.detach(w) for name, w in model.items()}
    dream[i, 0] = start
    dream[i, k + 1] = dream + _network(pr.concat([dream, action], 1), frozen, pr.tanh)
    regret = pr.square(dream[i, k + 1]).mean()[i, 0:K].mean()
    for prefix, weights, loss in (("m", model, error), ("p", policy, regret)):
        slopes = pr.grad(loss, weights)
        for name, w in weights.items():
            w[0] = pr.input(f"{prefix}{name}", shapes[prefix][f"{prefix}{name}"])
            w[i + 1] = w - RATE * slopes[name]
    return {"error": error[0:I], "regret": regret[0:I]}


def peer_dreamer(seen: Any, after: Any, start: Any, tried: Any, **given: Any) -> Any:
    first = [{name: given[prefix + name] for name in "abc"} for prefix in "mp"]

    def error(model: Any, seen: Any, tried: Any, after: Any) -> Any:
        return jnp.square(seen + _network(jnp.concatenate([seen, tried], 1), model, jnp.tanh) - after).mean()

    def regret(policy: Any, model: Any, start: Any) -> Any:
        def step(dream: Any, _: Any) -> Any:
            action = jnp.tanh(_network(dream, policy, jnp.tanh))
            dream = dream + _network(jnp.concatenate([dream, action], 1), model, jnp.tanh)
            return dream, jnp.square(dream).mean()

        return lax.scan(step, start, None, DREAM)[1].mean()

    def update(carry: Any, now: Any) -> Any:
        model, policy = carry
        seen, after, start, tried = now
        wrong, fit = jax.value_and_grad(error)(model, seen, tried, after)
        loss, act = jax.value_and_grad(regret)(policy, model, start)
        return jax.tree.map(lambda w, s: w - RATE * s, (model, policy), (fit, act)), (wrong, loss)

    _, (wrong, loss) = lax.scan(update, tuple(first), (seen, after, start, tried))
    return {"error": wrong, "regret": loss}


def _dreamer_inputs(steps: int) -> dict[str, np.ndarray]:
    shapes = {**_weights("m", 3, 2), **_weights("p", 2, 1)}
    made = {name: normal(n, *shape, scale=0.3) for n, (name, shape) in enumerate(shapes.items())}
    for n, name in enumerate(("seen", "after", "start")):
        made[name] = normal(10 + n, steps, BATCH, 2, scale=0.5)
    return {**made, "tried": normal(14, steps, BATCH, 1)}


TASKS, SHOTS, INNER, SLOW = 8, 8, 3, 0.02


def maml() -> Any:
    """The gradient of what a few steps of gradient descent reach, by where they begin; second derivatives."""
    i, I = pr.dim("i")
    b, B = pr.dim("b")
    u, U = pr.dim("u")
    x, y, x_new, y_new = (pr.input(name, (SHOTS, 1), (i, b)) for name in ("x", "y", "x_new", "y_new"))
    shapes = _weights("w", 1, 1)
    first = _descended(i, I, shapes)
    fast = {name: pr.recurrent(w.shape, (i, b, (u, U + 1))) for name, w in first.items()}
    slopes = pr.grad(pr.square(_network(x, fast, pr.tanh) - y).mean(), fast)
    for name, w in fast.items():
        w[i, b, 0] = first[name]
        w[i, b, u + 1] = w - RATE * slopes[name]
    last = {name: w[{u: U}] for name, w in fast.items()}
    loss = pr.square(_network(x_new, last, pr.tanh) - y_new).mean()[{b: slice(0, B)}].mean()
    outer = pr.grad(loss, first)
    for name, w in first.items():
        w[0] = pr.input(f"w{name}", shapes[f"w{name}"])
        w[i + 1] = w - SLOW * outer[name]
    return {"loss": loss[0:I]}


def peer_maml(x: Any, y: Any, x_new: Any, y_new: Any, **given: Any) -> Any:
    def error(w: Any, x: Any, y: Any) -> Any:
        return jnp.square(_network(x, w, jnp.tanh) - y).mean()

    def task(w: Any, x: Any, y: Any, x_new: Any, y_new: Any) -> Any:
        for _ in range(INNER):
            w = jax.tree.map(lambda w, s: w - RATE * s, w, jax.grad(error)(w, x, y))
        return error(w, x_new, y_new)

    def outer(w: Any, now: Any) -> Any:
        return jax.vmap(task, (None, 0, 0, 0, 0))(w, *now).mean()

    def update(w: Any, now: Any) -> Any:
        loss, slopes = jax.value_and_grad(outer)(w, now)
        return jax.tree.map(lambda w, s: w - SLOW * s, w, slopes), loss

    return {"loss": lax.scan(update, {name: given[f"w{name}"] for name in "abc"}, (x, y, x_new, y_new))[1]}


def _maml_inputs(steps: int) -> dict[str, np.ndarray]:
    made = {name: normal(n, steps, TASKS, SHOTS, 1) for n, name in enumerate(("x", "y", "x_new", "y_new"))}
    return {**made, **{name: normal(9, *shape, scale=0.3) for name, shape in _weights("w", 1, 1).items()}}


POINTS, LEVEL = 64, 0.02


def ddim() -> Any:
    """Sampling from a diffusion model: from noise to points, one step after the other."""
    s, S = pr.dim("s")
    weights = {
        name: pr.input(f"w{name}", shape) for name, shape in zip("abc", _weights("w", 3, 2).values(), strict=True)
    }
    x = pr.recurrent((POINTS, 2), ((s, S + 1),))
    now = pr.exp(-LEVEL * pr.value(S - s).cast("float32"))
    left = pr.exp(-LEVEL * pr.value(S - s - 1).cast("float32"))
    noise = _network(pr.concat([x, pr.broadcast_to(now, (POINTS, 1))], 1), weights, pr.tanh)
    guess = (x - pr.sqrt(1 - now) * noise) / pr.sqrt(now)
    x[0] = pr.input("start", (POINTS, 2))
    x[s + 1] = pr.sqrt(left) * guess + pr.sqrt(1 - left) * noise
    return {"points": x[S]}


def peer_ddim(start: Any, steps: int, **given: Any) -> Any:
    weights = {name: given[f"w{name}"] for name in "abc"}

    def step(s: Any, x: Any) -> Any:
        ahead = (steps - s).astype("float32")
        now, left = jnp.exp(-LEVEL * ahead), jnp.exp(-LEVEL * (ahead - 1))
        noise = _network(jnp.concatenate([x, jnp.broadcast_to(now, (POINTS, 1))], 1), weights, jnp.tanh)
        guess = (x - jnp.sqrt(1 - now) * noise) / jnp.sqrt(now)
        return jnp.sqrt(left) * guess + jnp.sqrt(1 - left) * noise

    return {"points": lax.fori_loop(0, steps, step, start)}


H = 0.02


def runge_kutta() -> Any:
    """A pendulum with friction by the classical method, until all are at rest; where they end, and when."""
    n, N = pr.dim("n", min=1)
    y = pr.recurrent((BATCH, 2), (n,))

    def slope(y: pr.Tensor) -> pr.Tensor:
        angle, speed = y.axes[:, 0], y.axes[:, 1]
        return pr.stack([speed, -pr.sin(angle) - 0.3 * speed], 1)

    a = slope(y)
    b = slope(y + H / 2 * a)
    c = slope(y + H / 2 * b)
    d = slope(y + H * c)
    y[0] = pr.input("y0", (BATCH, 2))
    y[n + 1] = y + H / 6 * (a + 2 * b + 2 * c + d)
    rest = (pr.square(y).sum(1) < 1e-3).all()
    return {"end": y[N - 1], "steps": pr.value(N)}, {"until": {n: rest}}


def peer_runge_kutta(y0: Any, steps: int) -> Any:
    def slope(y: Any) -> Any:
        return jnp.stack([y[:, 1], -jnp.sin(y[:, 0]) - 0.3 * y[:, 1]], 1)

    def step(carry: Any) -> Any:
        n, y = carry
        a = slope(y)
        b = slope(y + H / 2 * a)
        c = slope(y + H / 2 * b)
        d = slope(y + H * c)
        return n + 1, y + H / 6 * (a + 2 * b + 2 * c + d)

    def goes_on(carry: Any) -> Any:
        n, y = carry
        return (n < steps) & ~(jnp.square(y).sum(1) < 1e-3).all()

    n, y = lax.while_loop(goes_on, step, (jnp.int32(1), y0))
    return {"end": y, "steps": n}


ROWS = (
    Natural(
        "LSTM by truncated segments, training",
        truncated,
        lambda n: {
            **{name: normal(k, n, SEGMENT, BATCH, WIDTH) for k, name in enumerate(("x", "goal"))},
            "u0": normal(2, WIDTH, 4 * WIDTH, scale=0.2),
            "v0": normal(3, WIDTH, 4 * WIDTH, scale=0.2),
            "b0": normal(4, 4 * WIDTH, scale=0.1),
        },
        peer_truncated,
        64,
    ),
    Natural(
        "Dreamer, training", dreamer, _dreamer_inputs, peer_dreamer, 128, bounds=lambda n: {"K": DREAM}, tolerance=1e-3
    ),
    Natural("MAML, training", maml, _maml_inputs, peer_maml, 128, bounds=lambda n: {"U": INNER}, tolerance=1e-3),
    Natural(
        "DDIM sampling",
        ddim,
        lambda n: {
            "start": normal(0, POINTS, 2),
            **{name: normal(9, *shape, scale=0.3) for name, shape in _weights("w", 3, 2).items()},
        },
        peer_ddim,
        64,
        bounds=lambda n: {"S": n},
        counted=True,
    ),
    Natural(
        "Runge-Kutta with until",
        runge_kutta,
        lambda n: {"y0": normal(0, BATCH, 2)},
        peer_runge_kutta,
        4096,
        bounds=lambda n: {"N": n},
        counted=True,
    ),
)
