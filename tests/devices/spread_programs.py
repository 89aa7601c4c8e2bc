"""Random programs with a dim that can be spread: every way to read it beside, before, after and across its own step.

Each is a chain of functions of a tensor over t, drawn by a number, so that a failure is repeated by that number alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import polyrhythm as pr

WIDTH = 4
LENGTHS = (1, 2, 3, 5, 7, 8, 12, 16, 17)
Made = tuple[Any, dict[str, Any], dict[Any, int], dict[Any, Any]]
"""The outputs, inputs, bounds, and what is spread over which axes."""


class Maker:
    """Draws one program."""

    def __init__(self, number: int) -> None:
        self.random = random.Random(number)
        self.t, self.T = pr.dim("t")
        self.i, self.I = pr.dim("i")
        self.weights: list[str] = []
        self.stateful = False

    def made(self, axes: tuple[str, ...]) -> Made:
        """A program for a mesh with some axes; the first is for t, the last may be for weights and shapes."""
        other = axes[-1] if len(axes) > 1 else None
        x = pr.input("x", (WIDTH,), (self.t,))
        y: Any = x
        shown = [y]
        for _ in range(self.random.randint(1, 4)):
            y = self.random.choice(STEPS)(self, y)
            if other and self.random.random() < 0.3:
                y = pr.shard(y, -1, other)
            if self.random.random() < 0.3:
                shown.append(y)
        outputs = {f"y{n}": one for n, one in enumerate([*shown[1:], y])}
        if self.random.random() < 0.4:
            loss = (y * y)[{self.t: slice(0, self.T)}].sum()
            outputs["slope"] = pr.grad(loss, x)
        rng = np.random.default_rng(self.random.randint(0, 9))
        length = self.random.choice(LENGTHS)
        inputs = {"x": rng.integers(-4, 5, (length, WIDTH)).astype("float32") / 4}
        inputs |= {name: rng.integers(-2, 3, (WIDTH, WIDTH)).astype("float32") / 4 for name in self.weights}
        if self.random.random() < 0.2:
            inputs["x"].reshape(-1)[self.random.randrange(length * WIDTH)] = self.random.choice([np.nan, np.inf])
        shard: dict[Any, Any] = {self.t: axes if other and self.random.random() < 0.2 else axes[0]}
        for name in self.weights:
            if other and self.random.random() < 0.5 and shard[self.t] != axes:
                shard[name] = self.random.choice([(other, None), (None, other)])
        return outputs, inputs, {self.I: self.random.randint(1, 4)} if self.stateful else {}, shard

    def reduced(self, y: Any) -> Any:
        """Some reduction of a range of steps, which come first."""
        which = self.random.choice(["sum", "mean", "max", "min"])
        return getattr(y, which)(0)


def _beside(m: Maker, y: Any) -> Any:
    k = m.random.choice([1, 1, 2, 3])
    if m.random.random() < 0.5:
        return y + pr.where(m.t >= k, y[{m.t: m.t - k}], m.random.choice([0.0, 1.0]))
    return y - pr.where(m.t + k < m.T, y[{m.t: m.t + k}], y)


def _clamped(m: Maker, y: Any) -> Any:
    k = m.random.choice([1, 2])
    index = m.random.choice([pr.max(m.t - k, 0), pr.min(m.t + k, m.T - 1)])
    return 0.5 * y + y[{m.t: index}]


def _fixed(m: Maker, y: Any) -> Any:
    return y - y[{m.t: m.random.choice([0, m.T - 1])}]


def _turned(m: Maker, y: Any) -> Any:
    return y + 0.5 * y[{m.t: m.T - 1 - m.t}]


def _divided(m: Maker, y: Any) -> Any:
    k = m.random.choice([2, 3])
    return y + 0.5 * y[{m.t: m.random.choice([m.t // k, m.t // k * k])}]


def _prefix(m: Maker, y: Any) -> Any:
    return 0.25 * m.reduced(y[{m.t: slice(0, m.t + 1)}]) + y


def _suffix(m: Maker, y: Any) -> Any:
    return 0.25 * m.reduced(y[{m.t: slice(m.t, m.T)}]) + y


def _window(m: Maker, y: Any) -> Any:
    k = m.random.choice([1, 2, 3])
    before = slice(pr.max(m.t - k, 0), m.t + 1)
    after = slice(m.t, pr.min(m.t + k, m.T))
    return m.reduced(y[{m.t: m.random.choice([before, after])}]) + y


def _whole(m: Maker, y: Any) -> Any:
    return y - 0.25 * m.reduced(y[{m.t: slice(0, m.T)}])


def _attention(m: Maker, y: Any) -> Any:
    stop = m.random.choice([m.t + 1, m.T])
    keys = (y @ _weight(m))[{m.t: slice(0, stop)}]
    return pr.softmax(keys @ y) @ y[{m.t: slice(0, stop)}]


def _weight(m: Maker) -> Any:
    name = f"w{len(m.weights)}"
    m.weights.append(name)
    return pr.input(name, (WIDTH, WIDTH))


def _layer(m: Maker, y: Any) -> Any:
    return pr.tanh(y @ _weight(m))


def _pieces(m: Maker, y: Any) -> Any:
    h = pr.recurrent((WIDTH,), (m.t,))
    if m.random.random() < 0.5:
        h[0] = 0.5 * y[{m.t: 0}]
        h[m.t >= 1] = y[{m.t: m.t - 1}] + y
    else:
        h[m.T - 1] = y[{m.t: 0}]
        h[pr.otherwise] = y[{m.t: m.t + 1}] - y
    return h


def _over_time(m: Maker, y: Any) -> Any:
    m.stateful = True
    h = pr.recurrent((WIDTH,), (m.i, m.t))
    h[0, m.t] = y
    before = pr.where(m.t > 0, h[m.i, m.t - 1], h)
    after = pr.where(m.t < m.T - 1, h[m.i, m.t + 1], 0.0)
    own = m.random.choice([lambda: before, lambda: before + after, lambda: 0.5 * h, lambda: h[m.i, 0 : m.T].mean(0)])()
    h[m.i + 1, m.t] = 0.5 * h + 0.25 * own
    return h[m.I - 1, m.t]


def _random(m: Maker, y: Any) -> Any:
    return y + pr.round(2 * pr.normal((WIDTH,), dims=(m.t,)))


def _position(m: Maker, y: Any) -> Any:
    return y + pr.where(m.t % 2 == 0, pr.value(m.t).cast("float32"), 0.0)


def _chosen(m: Maker, y: Any) -> Any:
    index = pr.argmax(y[{m.t: slice(0, m.T)}].sum(-1), 0)
    return y + pr.take(y[{m.t: slice(0, m.T)}], index, 0)


def _scan(m: Maker, y: Any) -> Any:
    """Running results of one tensor that begin with different values."""
    all, ways = y[{m.t: slice(0, m.T)}], (pr.cumsum, pr.cummax, lambda x, axis: pr.cumprod(pr.tanh(x), axis))
    return sum(way(all, 0).mean(0) for way in m.random.sample(ways, 2)) * 0.25 + y


def _edges(m: Maker, y: Any) -> Any:
    """Different values around one tensor, and pooling, which puts its own."""
    all = y[{m.t: slice(0, m.T)}]
    before, after = (pr.pad(all, [(k, 1 - k), (0, 0)], m.random.choice([0.0, 1.0, -2.0])) for k in (0, 1))
    pool = m.random.choice([pr.max_pool, pr.avg_pool])
    near = pool(pr.transpose(all), 3, 1, 1).sum(-1) if m.random.random() < 0.5 else 0.0
    return y + 0.25 * (before * after).sum(0) + 0.25 * near


def _sorted(m: Maker, y: Any) -> Any:
    return pr.sort(y[{m.t: slice(0, m.T)}], 0).sum(0) * 0.25 + pr.sort(y, -1)


STEPS: tuple[Callable[[Maker, Any], Any], ...] = (
    *(_beside, _clamped, _fixed, _turned, _divided, _prefix, _suffix, _window, _whole, _attention),
    *(_layer, _pieces, _over_time, _random, _position, _chosen, _scan, _edges, _sorted),
)
