"""Ten programs large enough that arrays, not Python objects, are what they need memory for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import polyrhythm as pr


@dataclass(frozen=True)
class Sized:
    """A program with inputs and bounds to run it at."""

    outputs: dict[str, pr.Tensor]
    inputs: dict[str, np.ndarray]
    bounds: dict[str, int]


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape, scale=0.1).astype("float32")


WIDE = 200_000


def ema() -> Sized:
    t, T = pr.dim("t")
    x = pr.input("x", (WIDE,), (t,))
    y = pr.recurrent((WIDE,), (t,))
    y[0] = x[0]
    y[t + 1] = 0.9 * y + 0.1 * x[t + 1]
    return Sized({"last": y[T - 1], "y": y}, {"x": _normal(12, WIDE)}, {"T": 12})


def taps() -> Sized:
    t, _ = pr.dim("t")
    x = pr.input("x", (WIDE,), (t,))
    y = pr.tanh(x)[pr.max(0, t - 3) : t + 1].sum(0)
    return Sized({"y": y}, {"x": _normal(12, WIDE)}, {"T": 12})


def lstm() -> Sized:
    batch, hidden = 32, 128
    t, T = pr.dim("t")
    x = pr.input("x", (batch, hidden), (t,))
    wx, wh = pr.input("wx", (hidden, 4 * hidden)), pr.input("wh", (hidden, 4 * hidden))
    h = pr.recurrent((batch, hidden), ((t, T + 1),))
    c = pr.recurrent((batch, hidden), ((t, T + 1),))
    into, forget, cell, out = pr.split(x @ wx + h @ wh, 4, axis=1)
    h[0] = 0.0
    c[0] = 0.0
    c[t + 1] = pr.sigmoid(forget) * c + pr.sigmoid(into) * pr.tanh(cell)
    h[t + 1] = pr.sigmoid(out) * pr.tanh(c[t + 1])
    weights = _normal(hidden, 4 * hidden)
    inputs = {"x": _normal(60, batch, hidden), "wx": weights, "wh": weights}
    return Sized({"h": h[t + 1], "c": c[T]}, inputs, {"T": 60})


def _projections(size: int) -> tuple[list[pr.Tensor], dict[str, np.ndarray]]:
    names = ("wq", "wk", "wv")
    return [pr.input(name, (size, size)) for name in names], {name: _normal(size, size) for name in names}


def window() -> Sized:
    rows, size, w = 512, 64, 8
    t, _ = pr.dim("t")
    x = pr.input("x", (rows, size), (t,))
    (wq, wk, wv), arrays = _projections(size)
    near = slice(pr.max(0, t - w + 1), t + 1)
    shares = pr.softmax(((x @ wk)[near] * (x @ wq)).sum(2), 0)
    y = (shares.axes[:, :, None] * (x @ wv)[near]).sum(0)
    return Sized({"y": y}, {"x": _normal(24, rows, size), **arrays}, {"T": 24})


def decode(size: int = 1024, steps: int = 250, stride: int = 1) -> Sized:
    words = 200
    t, _ = pr.dim("t")
    past = slice(0, t + 1) if stride == 1 else slice(t % stride, t + 1, stride)
    embedding = pr.input("embedding", (words, size))
    (wq, wk, wv), arrays = _projections(size)
    token = pr.recurrent((), (t,), "int32")
    x = pr.one_hot(token, words) @ embedding
    shares = pr.softmax((x @ wk)[past] @ (x @ wq), 0)
    token[0] = 1
    token[t + 1] = (embedding @ (shares @ (x @ wv)[past])).argmax().cast("int32")
    return Sized({"tokens": token}, {"embedding": _normal(words, size), **arrays}, {"T": steps})


def _reinforce(monte_carlo: bool) -> Sized:
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    noise = pr.input("noise", (WIDE,), (i, t))
    weights = pr.recurrent((WIDE,), ((i, I + 1),))
    seen = pr.recurrent((WIDE,), (i, (t, T + 1)))
    action = pr.tanh((weights * seen).sum())
    reward = -(action * action)
    seen[i, 0] = 1.0
    seen[i, t + 1] = 0.9 * seen + action * noise
    gain = reward[i, t:T].sum(0) if monte_carlo else reward + 0.9 * (weights * seen).sum()[i, t + 1]
    gradient = pr.recurrent((WIDE,), (i, (t, T + 1)))
    gradient[i, 0] = 0.0
    gradient[i, t + 1] = gradient + gain * seen
    weights[0] = 0.1
    weights[i + 1] = weights + 0.1 * gradient[i, T]
    return Sized({"weights": weights[I]}, {"noise": _normal(2, 10, WIDE)}, {"I": 2, "T": 10})


def edit_distance() -> Sized:
    """Many pairs of words at once."""
    pairs = 100_000
    i, I = pr.dim("i")
    j, J = pr.dim("j")
    a = pr.input("a", (pairs,), (i,), "int32")
    b = pr.input("b", (pairs,), (j,), "int32")
    d = pr.recurrent((pairs,), ((i, I + 1), (j, J + 1)), "int32")
    d[i == 0] = pr.value(j)
    d[(j == 0) & (i > 0)] = pr.value(i)
    d[i + 1, j + 1] = pr.minimum(d + pr.where(a == b, 0, 1), pr.minimum(d[i, j + 1], d[i + 1, j]) + 1)
    letters = np.random.default_rng(0).integers(0, 3, (8, pairs), "int32")
    return Sized({"distance": d[I, J]}, {"a": letters[:6], "b": letters}, {"I": 6, "J": 8})


def bidirectional() -> Sized:
    t, T = pr.dim("t")
    x = pr.input("x", (WIDE,), (t,))
    forwards = pr.recurrent((WIDE,), ((t, T + 1),))
    forwards[0] = 0.0
    forwards[t + 1] = pr.tanh(x + forwards)
    backwards = pr.recurrent((WIDE,), ((t, T + 1),))
    backwards[T] = 0.0
    backwards[t] = pr.tanh(x + backwards[t + 1])
    return Sized({"y": (forwards[t + 1] * backwards).sum()}, {"x": _normal(12, WIDE)}, {"T": 12})


def gae() -> Sized:
    t, T = pr.dim("t")
    r = pr.input("r", (WIDE,), (t,))
    v = pr.input("v", (WIDE,), ((t, T + 1),))
    advantage = pr.recurrent((WIDE,), ((t, T + 1),))
    advantage[T] = 0.0
    advantage[t] = r + 0.9 * v[t + 1] - v + 0.7 * advantage[t + 1]
    return Sized({"targets": advantage[t] + v}, {"r": _normal(12, WIDE), "v": _normal(13, WIDE)}, {"T": 12})


PROGRAMS: dict[str, Callable[[], Sized]] = {
    "ema": ema,
    "taps": taps,
    "lstm": lstm,
    "window": window,
    "decode": decode,
    "decode_every_other": lambda: decode(512, 500, 2),
    "reinforce_monte_carlo": lambda: _reinforce(True),
    "reinforce_td": lambda: _reinforce(False),
    "edit_distance": edit_distance,
    "bidirectional": bidirectional,
    "gae": gae,
}
