"""The programs that the benchmarks run, as a user writes them."""

from __future__ import annotations

from typing import Any

import numpy as np

import polyrhythm as pr

DECAY = 0.9


def ema(every: bool) -> pr.Tensor:
    """An exponential moving average: all of its values, or the last."""
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))
    y = pr.recurrent((), (t,))
    y[0] = x[0]
    y[t + 1] = DECAY * y + (1 - DECAY) * x[t + 1]
    return y if every else y[T - 1]


def lstm(batch: int, features: int, hidden: int) -> tuple[dict[str, pr.Tensor], pr.Bound]:
    """All hidden states and the last cell of an LSTM; and its number of steps."""
    t, T = pr.dim("t")
    x = pr.input("x", (batch, features), (t,))
    wx = pr.input("wx", (features, 4 * hidden))
    wh = pr.input("wh", (hidden, 4 * hidden))
    bias = pr.input("bias", (4 * hidden,))
    h = pr.recurrent((batch, hidden), ((t, T + 1),))
    c = pr.recurrent((batch, hidden), ((t, T + 1),))
    into, forget, cell, out = pr.split(x @ wx + h @ wh + bias, 4, -1)
    h[0] = 0.0
    c[0] = 0.0
    c[t + 1] = pr.sigmoid(forget) * c + pr.sigmoid(into) * pr.tanh(cell)
    h[t + 1] = pr.sigmoid(out) * pr.tanh(c[t + 1])
    return {"h": h[t + 1], "c": c[T]}, T


def edit_distance() -> pr.Tensor:
    """The distance of two words, point by point."""
    i, I = pr.dim("i")
    j, J = pr.dim("j")
    a = pr.input("a", (), (i,), "int32")
    b = pr.input("b", (), (j,), "int32")
    d = pr.recurrent((), ((i, I + 1), (j, J + 1)), "int32")
    d[i == 0] = pr.value(j)
    d[(j == 0) & (i > 0)] = pr.value(i)
    replaced = d + pr.where(a == b, 0, 1)
    d[i + 1, j + 1] = pr.minimum(replaced, pr.minimum(d[i, j + 1], d[i + 1, j]) + 1)
    return d[I, J]


class Environment:
    """A small Python environment: a damped point pushed by the action, with a reward for being near zero."""

    def reset(self) -> np.ndarray:
        """The first observation."""
        self.state = [1.0, -0.5, 0.25, 0.0]
        return np.array(self.state, "float32")

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.float32]:
        """The next observation and the reward."""
        push, turn = float(action[0]), float(action[1])
        x, y, u, v = self.state
        u, v = 0.95 * u + 0.1 * push - 0.01 * x, 0.95 * v + 0.1 * turn - 0.01 * y
        self.state = [0.99 * x + 0.1 * u, 0.99 * y + 0.1 * v, u, v]
        return np.array(self.state, "float32"), np.float32(-(x * x + y * y))


def episode(environment: Environment, hidden: int) -> dict[str, pr.Tensor]:
    """The total reward and the last observation of a policy network acting on a host environment."""
    t, T = pr.dim("t")
    w1, w2 = pr.input("w1", (4, hidden)), pr.input("w2", (hidden, 2))
    observation = pr.recurrent((4,), ((t, T + 1),))
    total = pr.recurrent((), ((t, T + 1),))
    start = pr.host(environment.reset, [], (4,), effect="environment")
    action = pr.tanh(pr.tanh(observation @ w1) @ w2)
    following, reward = pr.host(environment.step, [action], [(4,), ()], effect="environment")
    observation[0] = start
    observation[t + 1] = following
    total[0] = 0.0
    total[t + 1] = total + reward
    return {"total": total[T], "last": observation[T]}


def decode(heads: int, depth: int, window: int | None) -> pr.Tensor:
    """Attention of each step to all steps before it, or to the last few; keys and values are made in the loop."""
    t, T = pr.dim("t")
    width = heads * depth
    weights = {name: pr.input(name, (width, width)) for name in ("wq", "wk", "wv")}
    first = pr.input("first", (width,))
    x = pr.recurrent((width,), ((t, T + 1),))
    q, k, v = ((x @ weights[name]).reshape(heads, depth) for name in ("wq", "wk", "wv"))
    past: Any = slice(0, t + 1)
    keys, values = (k[past], v[past]) if window is None else (pr.window(k, t, window), pr.window(v, t, window))
    scores = pr.einsum("hd,shd->hs", q, keys) / np.sqrt(depth)
    mixed = pr.einsum("hs,shd->hd", scores.softmax(-1), values).reshape(width)
    x[0] = first
    x[t + 1] = pr.tanh(mixed + 0.5 * x)
    return x[t + 1]
