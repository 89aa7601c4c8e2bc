"""Reads of a few steps before: token shift, causal convolutions in three spellings, and a selective scan behind one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import polyrhythm as pr
from benchmarks.natural_programs import Natural, normal

BATCH, WIDTH, TAPS, LAYERS = 4, 32, 4, 3


def token_shift() -> Any:
    """A layer that mixes each token with the one before, and its gradient."""
    t, T = pr.dim("t")
    x = pr.input("x", (BATCH, WIDTH), (t,))
    mix = pr.input("mix", (WIDTH,))
    w, v = pr.input("w", (WIDTH, WIDTH)), pr.input("v", (WIDTH, WIDTH))
    u = pr.tanh(x @ w)
    before = pr.where(t >= 1, u[t - 1], 0.0)
    y = (u * mix + before * (1.0 - mix)) @ v
    loss = (y * y)[0:T].mean((0, 1, 2))
    return {"loss": loss, **dict(zip("abc", pr.grad(loss, [w, v, mix]), strict=True))}


def peer_token_shift(x: Any, mix: Any, w: Any, v: Any) -> Any:
    def loss(w: Any, v: Any, mix: Any) -> Any:
        u = jnp.tanh(x @ w)
        before = jnp.pad(u, ((1, 0), (0, 0), (0, 0)))[:-1]
        y = (u * mix + before * (1.0 - mix)) @ v
        return (y * y).mean()

    value, (a, b, c) = jax.value_and_grad(loss, (0, 1, 2))(w, v, mix)
    return {"loss": value, "a": a, "b": b, "c": c}


def _tap(spelling: str, u: pr.Tensor, t: pr.Dim, k: int) -> pr.Tensor:
    if k == 0:
        return u
    return pr.where(t >= k, u[t - k], 0.0) if spelling == "shift" else u[pr.max(0, t - k)]


def convolutions(spelling: str) -> Any:
    """A stack of causal depthwise convolutions with a nonlinearity between, and its gradient."""
    t, T = pr.dim("t")
    x = pr.input("x", (BATCH, WIDTH), (t,))
    w = pr.input("w", (LAYERS, TAPS, WIDTH))
    u = x
    for layer in range(LAYERS):
        if spelling == "window":
            near = pr.window(u, t, TAPS)  # (up to TAPS, BATCH, WIDTH)
            filters = pr.flip(w.axes[layer], 0).axes[pr.max(0, TAPS - 1 - t) :]
            u = pr.tanh((near * filters.unsqueeze(1)).sum(0))
        else:
            u = pr.tanh(sum(w.axes[layer, k] * _tap(spelling, u, t, k) for k in range(TAPS)))
    loss = (u * u)[0:T].mean((0, 1, 2))
    return {"loss": loss, "w": pr.grad(loss, w)}


def peer_convolutions(clamp: bool) -> Any:
    def run(x: Any, w: Any) -> Any:
        def loss(w: Any) -> Any:
            u = x
            for layer in range(LAYERS):
                first = jnp.broadcast_to(u[:1], (TAPS - 1, *u.shape[1:])) if clamp else jnp.zeros_like(u[: TAPS - 1])
                padded = jnp.concatenate([first, u])
                u = jnp.tanh(sum(w[layer, k] * padded[TAPS - 1 - k : TAPS - 1 - k + x.shape[0]] for k in range(TAPS)))
            return (u * u).mean()

        value, gradient = jax.value_and_grad(loss)(w)
        return {"loss": value, "w": gradient}

    return run


STATE, INNER = 8, 32


def selective_scan() -> Any:
    """A Mamba-like layer: projections, a causal convolution, gates, a recurrence whose decay is data; its gradient."""
    t, T = pr.dim("t")
    x = pr.input("x", (BATCH, WIDTH), (t,))
    given = {
        "inp": (WIDTH, 2 * INNER),
        "conv": (TAPS, INNER),
        "dt": (INNER, INNER),
        "bc": (INNER, 2 * STATE),
        "a": (INNER, STATE),
        "out": (INNER, WIDTH),
    }
    p = {name: pr.input(name, shape) for name, shape in given.items()}
    z = x @ p["inp"]
    u, gate = z.axes[:, :INNER], z.axes[:, INNER:]
    u = pr.silu(sum(p["conv"].axes[k] * _tap("shift", u, t, k) for k in range(TAPS)))
    delta = pr.softplus(u @ p["dt"])
    bc = u @ p["bc"]
    b, c = bc.axes[:, :STATE], bc.axes[:, STATE:]
    decay = pr.exp(-delta.unsqueeze(2) * pr.exp(p["a"]))
    drive = (delta * u).unsqueeze(2) * b.unsqueeze(1)
    h = pr.recurrent((BATCH, INNER, STATE), (t,))
    h[0] = drive[0]
    h[t + 1] = decay[t + 1] * h + drive[t + 1]
    y = ((h * c.unsqueeze(1)).sum(2) * pr.silu(gate)) @ p["out"]
    loss = (y * y)[0:T].mean((0, 1, 2))
    names = list(p)
    return {"loss": loss, **dict(zip(names, pr.grad(loss, [p[n] for n in names]), strict=True))}


def peer_selective_scan(x: Any, **p: Any) -> Any:
    def loss(p: Any) -> Any:
        z = x @ p["inp"]
        u, gate = z[..., :INNER], z[..., INNER:]
        padded = jnp.pad(u, ((TAPS - 1, 0), (0, 0), (0, 0)))
        u = jax.nn.silu(sum(p["conv"][k] * padded[TAPS - 1 - k : TAPS - 1 - k + x.shape[0]] for k in range(TAPS)))
        delta = jax.nn.softplus(u @ p["dt"])
        bc = u @ p["bc"]
        b, c = bc[..., :STATE], bc[..., STATE:]

        def step(h: Any, now: Any) -> Any:
            delta, u, b, c = now
            decay = jnp.exp(-delta[:, :, None] * jnp.exp(p["a"]))
            h = decay * h + (delta * u)[:, :, None] * b[:, None]
            return h, (h * c[:, None]).sum(2)

        _, y = jax.lax.scan(step, jnp.zeros((BATCH, INNER, STATE)), (delta, u, b, c))
        y = (y * jax.nn.silu(gate)) @ p["out"]
        return (y * y).mean()

    value, gradients = jax.value_and_grad(loss)(p)
    return {"loss": value, **gradients}


def _scan_inputs(steps: int) -> dict[str, np.ndarray]:
    return {
        "x": normal(0, steps, BATCH, WIDTH),
        "inp": normal(1, WIDTH, 2 * INNER, scale=0.2),
        "conv": normal(2, TAPS, INNER, scale=0.5),
        "dt": normal(3, INNER, INNER, scale=0.2),
        "bc": normal(4, INNER, 2 * STATE, scale=0.2),
        "a": normal(5, INNER, STATE, scale=0.3),
        "out": normal(6, INNER, WIDTH, scale=0.2),
    }


def _conv_inputs(steps: int) -> dict[str, np.ndarray]:
    return {"x": normal(0, steps, BATCH, WIDTH), "w": normal(1, LAYERS, TAPS, WIDTH, scale=0.5)}


ROWS = (
    Natural(
        "token shift, gradient",
        token_shift,
        lambda n: {
            "x": normal(0, n, BATCH, WIDTH),
            "mix": normal(1, WIDTH),
            "w": normal(2, WIDTH, WIDTH, scale=0.2),
            "v": normal(3, WIDTH, WIDTH, scale=0.2),
        },
        peer_token_shift,
        2048,
    ),
    Natural(
        "convolutions by shifts, gradient",
        lambda: convolutions("shift"),
        _conv_inputs,
        peer_convolutions(clamp=False),
        2048,
    ),
    Natural(
        "convolutions by clamps, gradient",
        lambda: convolutions("clamp"),
        _conv_inputs,
        peer_convolutions(clamp=True),
        2048,
    ),
    Natural(
        "convolutions by windows, gradient",
        lambda: convolutions("window"),
        _conv_inputs,
        peer_convolutions(clamp=False),
        2048,
    ),
    Natural("selective scan, gradient", selective_scan, _scan_inputs, peer_selective_scan, 512),
)
