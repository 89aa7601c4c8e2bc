"""Batches of sequences of different lengths: sums, recurrences and last elements."""

from __future__ import annotations

import numpy as np

import polyrhythm as pr
from tests.programs.case import Arrays, Bounds, Built, Case

LONGEST = 6


def build_sums() -> Built:
    b, _ = pr.dim("b")
    lengths = pr.input("lengths", (), (b,), "int32")
    t, T = pr.dim("t", extent=lengths, max=LONGEST)
    x = pr.input("x", (2,), (b, t), "int32")
    last = pr.where(T > 0, x[b, T - 1], -1)
    return Built({"sum": x[b, 0:T].sum(0), "last": last, "twice": x * 2, "length": pr.value(T)})


def sums(inputs: Arrays, bounds: Bounds) -> Arrays:
    x, lengths, B = inputs["x"].values, inputs["lengths"], bounds["B"]
    total, last = np.zeros((B, 2), "int32"), -np.ones((B, 2), "int32")
    for b in range(B):
        for t in range(lengths[b]):
            total[b] += x[b, t]
            last[b] = x[b, t]
    return {"sum": total, "last": last, "twice": pr.Ragged(x * 2, lengths), "length": lengths}


def build_recurrence() -> Built:
    """A recurrence forwards and one backwards along each sequence, and the mean over the batch of the ends."""
    b, B = pr.dim("b")
    lengths = pr.input("lengths", (), (b,), "int32")
    t, T = pr.dim("t", extent=lengths, max=LONGEST)
    x = pr.input("x", (), (b, t))
    h = pr.recurrent((), (b, (t, T + 1)))
    h[t == 0] = 1.0
    h[b, t + 1] = 0.5 * h + x
    back = pr.recurrent((), (b, t))
    back[t == T - 1] = x
    back[t < T - 1] = x - back[b, t + 1]
    ends = h[b, T]
    return Built({"ends": ends, "back": back, "mean": ends[0:B].mean(0)})


def recurrence(inputs: Arrays, bounds: Bounds) -> Arrays:
    x, lengths, B = inputs["x"].values.astype("float64"), inputs["lengths"], bounds["B"]
    ends, back = np.ones(B), np.zeros_like(x)
    for b in range(B):
        for t in range(lengths[b]):
            ends[b] = 0.5 * ends[b] + x[b, t]
        for t in reversed(range(lengths[b])):
            back[b, t] = x[b, t] - (back[b, t + 1] if t + 1 < lengths[b] else 0)
    return {"ends": ends, "back": pr.Ragged(back, lengths), "mean": ends.sum() / B if B else np.float64("nan")}


def sequences(rng: np.random.Generator, bounds: Bounds, *shape: int) -> Arrays:
    """Sequences of random lengths; the first is as long as possible, the second empty."""
    lengths = rng.integers(0, LONGEST + 1, bounds["B"], "int32")
    lengths[:2] = [LONGEST, 0][: bounds["B"]]
    return {"lengths": lengths, "x": [rng.integers(-9, 9, (n, *shape), "int32") for n in lengths]}


def sum_inputs(rng: np.random.Generator, bounds: Bounds) -> Arrays:
    made = sequences(rng, bounds, 2)
    rows = pr.Ragged.of(made["x"]) if made["x"] else pr.Ragged(np.zeros((0, 0, 2), "int32"), np.zeros(0, "int64"))
    return made | {"x": rows}


def recurrence_inputs(rng: np.random.Generator, bounds: Bounds) -> Arrays:
    made = sequences(rng, bounds)
    rows = pr.Ragged.of([row.astype("float32") for row in made["x"]])
    return made | {"x": rows if made["x"] else pr.Ragged(np.zeros((0, 0), "float32"), np.zeros(0, "int64"))}


SIZES = tuple({"B": b} for b in (0, 1, 2, 3, 7, 8))

CASES = [
    Case("ragged_sums", build_sums, sum_inputs, SIZES, sums),
    Case("ragged_recurrence", build_recurrence, recurrence_inputs, SIZES, recurrence),
]
