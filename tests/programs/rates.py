"""Several rates at once: downsampling, upsampling, dilation, periodic tables, filter banks, and grids with windows."""

from __future__ import annotations

import numpy as np

import polyrhythm as pr
from tests.programs.case import EDGES, Arrays, Bounds, Built, Case, steps


def build_resampling() -> Built:
    t, T = pr.dim("t")
    x = pr.input("x", (), ((t, 2 * T),), "int32")
    up = pr.recurrent((), ((t, 6 * T),), "int32")
    up[pr.otherwise] = x[t // 3]
    return Built({"down": x[2 * t], "pooled": x[2 * t : 2 * t + 2].max(), "up": up, "every": x[0 : 2 * T : 2]})


def resampling(inputs: Arrays, bounds: Bounds) -> Arrays:
    x, T = inputs["x"], bounds["T"]
    down = np.array([x[2 * t] for t in range(T)], "int32")
    pooled = np.array([max(x[2 * t], x[2 * t + 1]) for t in range(T)], "int32")
    up = np.array([x[t // 3] for t in range(6 * T)], "int32")
    return {"down": down, "pooled": pooled, "up": up, "every": down}


def build_dilated() -> Built:
    """A causal convolution with three taps, four steps apart, after a valid one without padding."""
    t, T = pr.dim("t")
    x = pr.input("x", (2,), (t,))
    w = pr.input("w", (3, 2, 2))
    taps = pr.where(t >= 8, x[pr.max(0, t - 8)], 0.0), pr.where(t >= 4, x[pr.max(0, t - 4)], 0.0), x
    y = pr.einsum("ki,kio->o", pr.stack(taps), w)
    valid = pr.where((t >= 2) & (t < T - 2), x[t - 2 : t + 3 : 2].sum(0), -1.0)
    return Built({"y": y, "valid": valid})


def dilated(inputs: Arrays, bounds: Bounds) -> Arrays:
    x, w, T = inputs["x"].astype("float64"), inputs["w"], bounds["T"]
    y, valid = np.zeros((T, 2)), -np.ones((T, 2))
    for t in range(T):
        for k in range(3):
            if t - 4 * (2 - k) >= 0:
                y[t] += x[t - 4 * (2 - k)] @ w[k]
        if 2 <= t < T - 2:
            valid[t] = x[t - 2] + x[t] + x[t + 2]
    return {"y": y, "valid": valid}


def build_periodic() -> Built:
    """A table of seven entries used again and again, and sums over whole periods."""
    t, _ = pr.dim("t")
    k, _ = pr.dim("k")
    table = pr.input("table", (), ((k, 7),), "int32")
    x = pr.input("x", (), (t,), "int32")
    phase = table[t % 7]
    period = x[t - t % 7 : t + 1].sum()
    return Built({"phase": phase, "mixed": x + phase * pr.value(t // 7), "period": period})


def periodic(inputs: Arrays, bounds: Bounds) -> Arrays:
    x, table, T = inputs["x"], inputs["table"], bounds["T"]
    phase = np.array([table[t % 7] for t in range(T)], "int32")
    mixed = np.array([x[t] + table[t % 7] * (t // 7) for t in range(T)], "int32")
    period = np.array([sum(x[t // 7 * 7 : t + 1]) for t in range(T)], "int32")
    return {"phase": phase, "mixed": mixed, "period": period}


def build_filter_bank() -> Built:
    """Split into two half-rate bands, scale one, and put the signal together again."""
    t, T = pr.dim("t")
    x = pr.input("x", (), ((t, 2 * T),))
    low = (x[2 * t] + x[2 * t + 1]) / 2
    high = (x[2 * t] - x[2 * t + 1]) / 2
    y = pr.recurrent((), ((t, 2 * T),))
    y[2 * t] = low + 0.5 * high
    y[2 * t + 1] = low - 0.5 * high
    return Built({"low": low, "high": high, "y": y})


def filter_bank(inputs: Arrays, bounds: Bounds) -> Arrays:
    x, T = inputs["x"].astype("float64"), bounds["T"]
    low, high, y = np.zeros(T), np.zeros(T), np.zeros(2 * T)
    for t in range(T):
        low[t], high[t] = (x[2 * t] + x[2 * t + 1]) / 2, (x[2 * t] - x[2 * t + 1]) / 2
        y[2 * t], y[2 * t + 1] = low[t] + 0.5 * high[t], low[t] - 0.5 * high[t]
    return {"low": low, "high": high, "y": y}


def build_clockwork() -> Built:
    """A fast and a slow recurrence that drive each other: the slow one ticks on every second step."""
    t, T = pr.dim("t")
    x = pr.input("x", (), ((t, 2 * T),), "int32")
    fast = pr.recurrent((), ((t, 2 * T),), "int32")
    slow = pr.recurrent((), (t,), "int32")
    fast[0] = x[0]
    fast[t > 0] = fast[t - 1] + slow[(t - 1) // 2] + x
    slow[0] = 1
    slow[t > 0] = slow[t - 1] - fast[2 * t - 1]
    return Built({"fast": fast, "slow": slow})


def clockwork(inputs: Arrays, bounds: Bounds) -> Arrays:
    x, T = inputs["x"], bounds["T"]
    fast, slow = np.zeros(2 * T, "int32"), np.zeros(T, "int32")
    for t in range(2 * T):
        if t % 2 == 0:
            slow[t // 2] = 1 if t == 0 else slow[t // 2 - 1] - fast[t - 1]
        fast[t] = x[0] if t == 0 else fast[t - 1] + slow[(t - 1) // 2] + x[t]
    return {"fast": fast, "slow": slow}


def build_heat() -> Built:
    """The heat equation on a rod with insulated ends."""
    n, N = pr.dim("n")
    x, X = pr.dim("x")
    start = pr.input("start", (), (x,))
    u = pr.recurrent((), ((n, N + 1), x))
    u[0, x] = start
    u[n + 1, x] = u + 0.25 * (u[n, pr.max(0, x - 1)] - 2 * u + u[n, pr.min(X - 1, x + 1)])
    return Built({"u": u, "total": u[N, 0:X].sum()})


def heat(inputs: Arrays, bounds: Bounds) -> Arrays:
    N, X = bounds["N"], bounds["X"]
    u = np.zeros((N + 1, X))
    u[0] = inputs["start"]
    for n in range(N):
        for x in range(X):
            u[n + 1, x] = u[n, x] + 0.25 * (u[n, max(0, x - 1)] - 2 * u[n, x] + u[n, min(X - 1, x + 1)])
    return {"u": u, "total": u[N].sum()}


def build_life() -> Built:
    """Conway's game of life on a board with edges: a window to both sides in two dims."""
    g, G = pr.dim("g")
    r, R = pr.dim("r")
    c, C = pr.dim("c")
    start = pr.input("start", (), (r, c), "int32")
    board = pr.recurrent((), ((g, G + 1), r, c), "int32")
    around = board[g, pr.max(0, r - 1) : pr.min(R, r + 2), pr.max(0, c - 1) : pr.min(C, c + 2)].sum() - board
    board[0, r, c] = start
    board[g + 1, r, c] = ((around == 3) | ((around == 2) & (board == 1))).cast("int32")
    return Built({"board": board})


def life(inputs: Arrays, bounds: Bounds) -> Arrays:
    G, R, C = bounds["G"], bounds["R"], bounds["C"]
    board = np.zeros((G + 1, R, C), "int32")
    board[0] = inputs["start"]
    for g in range(G):
        for r in range(R):
            for c in range(C):
                near = [(y, x) for y in range(r - 1, r + 2) for x in range(c - 1, c + 2) if (y, x) != (r, c)]
                around = sum(board[g, y, x] for y, x in near if 0 <= y < R and 0 <= x < C)
                board[g + 1, r, c] = around == 3 or (around == 2 and board[g, r, c] == 1)
    return {"board": board}


def twice(rng: np.random.Generator, bounds: Bounds) -> Arrays:
    return {"x": rng.integers(-9, 9, 2 * bounds["T"], "int32")}


CASES = [
    Case("resampling", build_resampling, twice, steps(*EDGES[:7]), resampling),
    Case(
        "dilated_convolution",
        build_dilated,
        lambda rng, bounds: {
            "x": rng.normal(size=(bounds["T"], 2)).astype("float32"),
            "w": rng.normal(size=(3, 2, 2)).astype("float32"),
        },
        steps(*EDGES),
        dilated,
    ),
    Case(
        "periodic_table",
        build_periodic,
        lambda rng, bounds: {
            "x": rng.integers(-9, 9, bounds["T"], "int32"),
            "table": rng.integers(-9, 9, 7, "int32"),
        },
        steps(*EDGES),
        periodic,
    ),
    Case(
        "filter_bank",
        build_filter_bank,
        lambda rng, bounds: {"x": rng.normal(size=2 * bounds["T"]).astype("float32")},
        steps(*EDGES),
        filter_bank,
    ),
    Case("clockwork", build_clockwork, twice, steps(*EDGES), clockwork),
    Case(
        "heat",
        build_heat,
        lambda rng, bounds: {"start": rng.normal(size=bounds["X"]).astype("float32")},
        tuple({"N": n, "X": x} for n, x in [(0, 0), (0, 3), (2, 0), (1, 1), (3, 2), (8, 7), (7, 9)]),
        heat,
        ("N",),
    ),
    Case(
        "life",
        build_life,
        lambda rng, bounds: {"start": rng.integers(0, 2, (bounds["R"], bounds["C"]), "int32")},
        tuple({"G": g, "R": r, "C": c} for g, r, c in [(0, 0, 0), (0, 2, 2), (1, 1, 1), (2, 3, 1), (3, 4, 5)]),
        life,
        ("G",),
    ),
]
