"""Plain sequences: Fibonacci, moving averages, prefix sums, filters, mutual recursion, chains that data ends."""

from __future__ import annotations

import numpy as np

import polyrhythm as pr
from tests.programs.case import EDGES, Arrays, Bounds, Built, Case, steps


def scalars(rng: np.random.Generator, bounds: Bounds) -> Arrays:
    """One number per step."""
    return {"x": rng.normal(size=bounds["T"]).astype("float32")}


def integers(rng: np.random.Generator, bounds: Bounds) -> Arrays:
    """One small integer per step."""
    return {"x": rng.integers(-9, 9, bounds["T"], "int32")}


def nothing(rng: np.random.Generator, bounds: Bounds) -> Arrays:
    """No inputs."""
    return {}


def build_fibonacci() -> Built:
    t, _ = pr.dim("t")
    y = pr.recurrent((), (t,), "int32")
    y[0] = 0
    y[1] = 1
    y[t + 2] = y[t + 1] + y
    return Built({"y": y})


def fibonacci(inputs: Arrays, bounds: Bounds) -> Arrays:
    y, a, b = [], 0, 1
    for _ in range(bounds["T"]):
        y.append(a)
        a, b = b, a + b
    return {"y": np.array(y, "int32")}


def build_ema() -> Built:
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    y = pr.recurrent((3,), (t,))
    y[0] = x[0]
    y[t + 1] = 0.9 * y + 0.1 * x[t + 1]
    return Built({"y": y, "last": y[T - 1], "mean": y[0:T].mean(0)})


def ema(inputs: Arrays, bounds: Bounds) -> Arrays:
    x = inputs["x"].astype("float64")
    y = [x[0]]
    for step in x[1:]:
        y.append(0.9 * y[-1] + 0.1 * step)
    return {"y": np.array(y), "last": y[-1], "mean": np.mean(y, axis=0)}


def build_prefix_sums() -> Built:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,), "int32")
    forwards = pr.recurrent((), ((t, T + 1),), "int32")
    forwards[0] = 0
    forwards[t + 1] = forwards + x
    backwards = pr.recurrent((), (t,), "int32")
    backwards[t == T - 1] = x
    backwards[t < T - 1] = backwards[t + 1] + x
    mirrored = pr.recurrent((), (t,), "int32")
    mirrored[T - 1 - t] = pr.where(t > 0, mirrored[pr.min(T - t, T - 1)], 0) + x[T - 1 - t]
    return Built({"forwards": forwards, "backwards": backwards, "mirrored": mirrored, "slices": x[t:T].sum()})


def prefix_sums(inputs: Arrays, bounds: Bounds) -> Arrays:
    x, T = inputs["x"], bounds["T"]
    forwards = np.array([sum(x[:k]) for k in range(T + 1)], "int32")
    backwards = np.array([sum(x[k:]) for k in range(T)], "int32")
    return {"forwards": forwards, "backwards": backwards, "mirrored": backwards, "slices": backwards}


def build_filter() -> Built:
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,))
    taps = pr.constant([0.5, 0.25, -0.125, 1.0])
    recent = pr.window(x, t, 4)
    y = (recent * taps.axes[4 - pr.min(4, t + 1) :]).sum(0)
    feedback = pr.recurrent((), (t,))
    feedback[t < 2] = x
    feedback[t + 2] = x[t + 2] + 0.5 * feedback[t + 1] - 0.25 * feedback
    return Built({"y": y, "feedback": feedback, "seen": pr.value(pr.min(4, t + 1))})


def filtered(inputs: Arrays, bounds: Bounds) -> Arrays:
    x, T = inputs["x"].astype("float64"), bounds["T"]
    taps = [0.5, 0.25, -0.125, 1.0]
    y, feedback = np.zeros(T), np.zeros(T)
    for t in range(T):
        for k in range(4):
            if t - 3 + k >= 0:
                y[t] += taps[k] * x[t - 3 + k]
        feedback[t] = x[t] if t < 2 else x[t] + 0.5 * feedback[t - 1] - 0.25 * feedback[t - 2]
    return {"y": y, "feedback": feedback, "seen": np.array([min(4, t + 1) for t in range(T)], "int32")}


def build_mutual() -> Built:
    """Hofstadter's female and male sequences need data-dependent reads; this pair of rotations does not."""
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,), "int32")
    a = pr.recurrent((), (t,), "int32")
    b = pr.recurrent((), (t,), "int32")
    c = pr.recurrent((), (t,), "int32")
    a[0] = 1
    a[t + 1] = b + x[t + 1]
    b[t] = c - a
    c[t] = pr.where(t > 0, a[pr.max(0, t - 1)] * 2, x)
    return Built({"a": a, "b": b, "c": c})


def mutual(inputs: Arrays, bounds: Bounds) -> Arrays:
    x = inputs["x"]
    a: list[int] = []
    b: list[int] = []
    c: list[int] = []
    for t in range(bounds["T"]):
        a.append(1 if t == 0 else b[t - 1] + x[t])
        c.append(a[t - 1] * 2 if t > 0 else x[t])
        b.append(c[t] - a[t])
    return {"a": np.array(a, "int32"), "b": np.array(b, "int32"), "c": np.array(c, "int32")}


def build_even_odd() -> Built:
    """Two definitions by parity: even steps read even ones, odd steps read only even ones."""
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,), "int32")
    y = pr.recurrent((), (t,), "int32")
    y[t % 2 == 0] = pr.where(t >= 2, y[pr.max(0, t - 2)], 0) + x
    y[t % 2 == 1] = y[t - 1] * 10 + pr.where(t >= 3, y[pr.max(0, t - 3)], 0)
    return Built({"y": y})


def even_odd(inputs: Arrays, bounds: Bounds) -> Arrays:
    x, T = inputs["x"], bounds["T"]
    y = np.zeros(T, "int32")
    for t in range(T):
        if t % 2 == 0:
            y[t] = x[t] + (y[t - 2] if t >= 2 else 0)
        else:
            y[t] = y[t - 1] * 10 + (y[t - 3] if t >= 3 else 0)
    return {"y": y}


def build_collatz() -> Built:
    t, T = pr.dim("t")
    start = pr.input("start", (), (), "int32")
    n = pr.recurrent((), (t,), "int32")
    n[0] = start
    n[t + 1] = pr.where(n % 2 == 0, n // 2, 3 * n + 1)
    return Built({"chain": n, "steps": pr.value(T), "peak": n[0:T].max(0)}, until={t: n == 1})


def collatz(inputs: Arrays, bounds: Bounds) -> Arrays:
    n = int(inputs["start"])
    chain = [n]
    while n != 1 and len(chain) < bounds["T"]:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        chain.append(n)
    return {"chain": np.array(chain, "int32"), "steps": np.int32(len(chain)), "peak": np.int32(max(chain))}


CASES = [
    Case("fibonacci", build_fibonacci, nothing, steps(*EDGES, 40), fibonacci, ("T",)),
    Case(
        "ema",
        build_ema,
        lambda rng, bounds: {"x": rng.normal(size=(bounds["T"], 3)).astype("float32")},
        steps(*EDGES[1:]),
        ema,
    ),
    Case("prefix_sums", build_prefix_sums, integers, steps(*EDGES), prefix_sums),
    Case("filter", build_filter, scalars, steps(*EDGES), filtered),
    Case("mutual", build_mutual, integers, steps(*EDGES), mutual),
    Case("even_odd", build_even_odd, integers, steps(*EDGES), even_odd),
    Case(
        "collatz",
        build_collatz,
        lambda rng, bounds: {"start": np.int32(rng.integers(2, 30))},
        steps(1, 2, 7, 8, 200),
        collatz,
        ("T",),
    ),
]
