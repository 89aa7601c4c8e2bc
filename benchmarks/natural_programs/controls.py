"""Loops of many operations on few numbers: a cascade of second-order filters and a controlled plant, with gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import polyrhythm as pr
from benchmarks.natural_programs import Natural, normal

SECTIONS, PLANTS, STEP = 4, 8, 0.05


def filters() -> Any:
    """Sections in direct form 2, transposed, and the gradient of the error by their coefficients."""
    t, T = pr.dim("t")
    x, target, c = pr.input("x", (), (t,)), pr.input("target", (), (t,)), pr.input("c", (SECTIONS, 5))
    v: Any = x
    for section in range(SECTIONS):
        b0, b1, b2, a1, a2 = (c.axes[section, k] for k in range(5))
        near, far = pr.recurrent((), (t,)), pr.recurrent((), (t,))
        y = b0 * v + near
        near[0], far[0] = 0.0, 0.0
        near[t + 1] = b1 * v - a1 * y + far
        far[t + 1] = b2 * v - a2 * y
        v = y
    loss = ((v - target) ** 2)[0:T].mean(0)
    return {"loss": loss, "c": pr.grad(loss, c)}


def peer_filters(x: Any, target: Any, c: Any) -> Any:
    def loss(c: Any) -> Any:
        def step(z: Any, v: Any) -> Any:
            states = []
            for section in range(SECTIONS):
                b0, b1, b2, a1, a2 = c[section]
                y = b0 * v + z[section, 0]
                states.append(jnp.stack([b1 * v - a1 * y + z[section, 1], b2 * v - a2 * y]))
                v = y
            return jnp.stack(states), v

        _, y = lax.scan(step, jnp.zeros((SECTIONS, 2)), x)
        return ((y - target) ** 2).mean()

    value, gradient = jax.value_and_grad(loss)(c)
    return {"loss": value, "c": gradient}


def controller() -> Any:
    """A plant under proportional, integral and derivative control, and the gradient of the error by the gains."""
    t, T = pr.dim("t")
    wished, gains = pr.input("wished", (PLANTS,), (t,)), pr.input("gains", (3,))
    x, v, total = (pr.recurrent((PLANTS,), ((t, T + 1),)) for _ in range(3))
    error = wished - x
    before = pr.where(t > 0, error[t - 1], 0.0)
    total[0], v[0], x[0] = 0.0, 0.0, 0.0
    total[t + 1] = total + STEP * error
    p, i, d = (gains.axes[k] for k in range(3))
    u = p * error + i * total[t + 1] + d * (error - before) / STEP
    v[t + 1] = v + STEP * (pr.tanh(u) - 0.5 * v - pr.sin(x))
    x[t + 1] = x + STEP * v[t + 1]
    loss = (error * error).mean(0)[0:T].mean(0)
    return {"loss": loss, "gains": pr.grad(loss, gains)}


def peer_controller(wished: Any, gains: Any) -> Any:
    def loss(gains: Any) -> Any:
        def step(state: Any, goal: Any) -> Any:
            x, v, total, before, cost = state
            error = goal - x
            total = total + STEP * error
            u = gains[0] * error + gains[1] * total + gains[2] * (error - before) / STEP
            v = v + STEP * (jnp.tanh(u) - 0.5 * v - jnp.sin(x))
            return (x + STEP * v, v, total, error, cost + (error * error).mean()), None

        zero = jnp.zeros(PLANTS)
        return lax.scan(step, (zero, zero, zero, zero, 0.0), wished)[0][-1] / wished.shape[0]

    value, gradient = jax.value_and_grad(loss)(gains)
    return {"loss": value, "gains": gradient}


ROWS = [
    Natural(
        "second-order filters, gradient",
        filters,
        lambda n: {
            "x": normal(0, n),
            "target": normal(1, n),
            "c": np.float32([0.5, 0.2, 0.1, -0.3, 0.1]) + normal(2, SECTIONS, 5, scale=0.05),
        },
        peer_filters,
        2048,
    ),
    Natural(
        "control loop, gradient",
        controller,
        lambda n: {"wished": 1 + normal(0, n, PLANTS, scale=0.1), "gains": np.float32([1.0, 0.2, 0.1])},
        peer_controller,
        1024,
        tolerance=1e-3,
    ),
]
