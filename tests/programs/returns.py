"""Returns of reinforcement learning, written as their formulae: Monte Carlo, n-step, TD(lambda), GAE."""

from __future__ import annotations

import numpy as np

import polyrhythm as pr
from tests.programs.case import EDGES, Arrays, Bounds, Built, Case, steps

GAMMA, LAMBDA, N = 0.9, 0.8, 3


def build_monte_carlo() -> Built:
    t, T = pr.dim("t")
    r = pr.input("r", (), (t,))
    discounts = pr.pow(GAMMA, pr.arange(T - t).cast("float32"))
    return Built({"g": (r[t:T] * discounts).sum(0)})


def monte_carlo(inputs: Arrays, bounds: Bounds) -> Arrays:
    r, T = inputs["r"], bounds["T"]
    return {"g": np.array([sum(GAMMA ** (s - t) * r[s] for s in range(t, T)) for t in range(T)])}


def build_n_step() -> Built:
    t, T = pr.dim("t")
    r = pr.input("r", (), (t,))
    v = pr.input("v", (), ((t, T + 1),))
    ahead = r[t : pr.min(t + N, T)]
    discounts = pr.pow(GAMMA, pr.arange(pr.min(N, T - t)).cast("float32"))
    last = pr.where(t + N <= T, GAMMA**N * v[pr.min(t + N, T)], 0.0)
    return Built({"g": (ahead * discounts).sum(0) + last})


def n_step(inputs: Arrays, bounds: Bounds) -> Arrays:
    r, v, T = inputs["r"], inputs["v"], bounds["T"]
    g = np.zeros(T)
    for t in range(T):
        for k in range(N):
            if t + k < T:
                g[t] += GAMMA**k * r[t + k]
        if t + N <= T:
            g[t] += GAMMA**N * v[t + N]
    return {"g": g}


def build_td_lambda() -> Built:
    t, T = pr.dim("t")
    r = pr.input("r", (), (t,))
    v = pr.input("v", (), ((t, T + 1),))
    g = pr.recurrent((), ((t, T + 1),))
    g[T] = v[T]
    g[t] = r + GAMMA * ((1 - LAMBDA) * v[t + 1] + LAMBDA * g[t + 1])
    return Built({"g": g})


def td_lambda(inputs: Arrays, bounds: Bounds) -> Arrays:
    r, v, T = inputs["r"].astype("float64"), inputs["v"].astype("float64"), bounds["T"]
    g = np.zeros(T + 1)
    g[T] = v[T]
    for t in reversed(range(T)):
        g[t] = r[t] + GAMMA * ((1 - LAMBDA) * v[t + 1] + LAMBDA * g[t + 1])
    return {"g": g}


def build_gae() -> Built:
    b, _ = pr.dim("b")
    t, T = pr.dim("t")
    r = pr.input("r", (), (b, t))
    v = pr.input("v", (), (b, (t, T + 1)))
    done = pr.input("done", (), (b, t), "bool")
    alive = 1.0 - done.cast("float32")
    delta = r + GAMMA * alive * v[b, t + 1] - v
    advantage = pr.recurrent((), (b, t))
    advantage[t == T - 1] = delta
    advantage[t < T - 1] = delta + GAMMA * LAMBDA * alive * advantage[b, t + 1]
    return Built({"advantage": advantage, "targets": advantage + v, "mean": advantage[:, :].mean()})


def gae(inputs: Arrays, bounds: Bounds) -> Arrays:
    r, v, done = inputs["r"].astype("float64"), inputs["v"].astype("float64"), inputs["done"]
    B, T = bounds["B"], bounds["T"]
    a = np.zeros((B, T))
    for b in range(B):
        later = 0.0
        for t in reversed(range(T)):
            alive = 0.0 if done[b, t] else 1.0
            later = r[b, t] + GAMMA * alive * v[b, t + 1] - v[b, t] + GAMMA * LAMBDA * alive * later
            a[b, t] = later
    return {"advantage": a, "targets": a + v[:, :T], "mean": a.sum() / a.size if a.size else np.float64("nan")}


def rewards(rng: np.random.Generator, bounds: Bounds) -> Arrays:
    return {"r": rng.normal(size=bounds["T"]).astype("float32")}


def rewards_and_values(rng: np.random.Generator, bounds: Bounds) -> Arrays:
    return rewards(rng, bounds) | {"v": rng.normal(size=bounds["T"] + 1).astype("float32")}


def rollouts(rng: np.random.Generator, bounds: Bounds) -> Arrays:
    B, T = bounds["B"], bounds["T"]
    return {
        "r": rng.normal(size=(B, T)).astype("float32"),
        "v": rng.normal(size=(B, T + 1)).astype("float32"),
        "done": rng.random((B, T)) < 0.2,
    }


CASES = [
    Case("monte_carlo_returns", build_monte_carlo, rewards, steps(*EDGES), monte_carlo),
    Case("n_step_returns", build_n_step, rewards_and_values, steps(*EDGES), n_step),
    Case("td_lambda_returns", build_td_lambda, rewards_and_values, steps(*EDGES), td_lambda),
    Case(
        "gae",
        build_gae,
        rollouts,
        tuple({"B": b, "T": t} for b, t in [(0, 2), (2, 0), (1, 1), (2, 2), (3, 7), (1, 8), (2, 17)]),
        gae,
    ),
]
