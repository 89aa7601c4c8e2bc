"""Recurrent networks: an RNN and an LSTM over a batch, and a bidirectional RNN."""

from __future__ import annotations

import numpy as np

import polyrhythm as pr
from tests.programs.case import Arrays, Bounds, Built, Case

FEATURES, HIDDEN = 3, 4


def build_rnn() -> Built:
    b, _ = pr.dim("b")
    t, T = pr.dim("t")
    x = pr.input("x", (FEATURES,), (b, t))
    wx = pr.input("wx", (FEATURES, HIDDEN))
    wh = pr.input("wh", (HIDDEN, HIDDEN))
    bias = pr.input("bias", (HIDDEN,))
    h = pr.recurrent((HIDDEN,), (b, (t, T + 1)))
    h[b, 0] = 0.0
    h[b, t + 1] = pr.tanh(x @ wx + h @ wh + bias)
    return Built({"h": h, "last": h[b, T]})


def rnn(inputs: Arrays, bounds: Bounds) -> Arrays:
    x = inputs["x"].astype("float64")
    B, T = bounds["B"], bounds["T"]
    h = np.zeros((B, T + 1, HIDDEN))
    for b in range(B):
        for t in range(T):
            h[b, t + 1] = np.tanh(x[b, t] @ inputs["wx"] + h[b, t] @ inputs["wh"] + inputs["bias"])
    return {"h": h, "last": h[:, T]}


def build_lstm() -> Built:
    b, _ = pr.dim("b")
    t, T = pr.dim("t")
    x = pr.input("x", (FEATURES,), (b, t))
    wx = pr.input("wx", (FEATURES, 4 * HIDDEN))
    wh = pr.input("wh", (HIDDEN, 4 * HIDDEN))
    bias = pr.input("bias", (4 * HIDDEN,))
    h = pr.recurrent((HIDDEN,), (b, (t, T + 1)))
    c = pr.recurrent((HIDDEN,), (b, (t, T + 1)))
    into, forget, cell, out = pr.split(x @ wx + h @ wh + bias, 4)
    h[b, 0] = 0.0
    c[b, 0] = 0.0
    c[b, t + 1] = pr.sigmoid(forget) * c + pr.sigmoid(into) * pr.tanh(cell)
    h[b, t + 1] = pr.sigmoid(out) * pr.tanh(c[b, t + 1])
    return Built({"h": h[b, t + 1], "c": c[b, T]})


def lstm(inputs: Arrays, bounds: Bounds) -> Arrays:
    def sigmoid(z: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-z))

    x = inputs["x"].astype("float64")
    B, T, H = bounds["B"], bounds["T"], HIDDEN
    hs, cs = np.zeros((B, T, H)), np.zeros((B, H))
    for b in range(B):
        h, c = np.zeros(H), np.zeros(H)
        for t in range(T):
            gates = x[b, t] @ inputs["wx"] + h @ inputs["wh"] + inputs["bias"]
            c = sigmoid(gates[H : 2 * H]) * c + sigmoid(gates[:H]) * np.tanh(gates[2 * H : 3 * H])
            h = sigmoid(gates[3 * H :]) * np.tanh(c)
            hs[b, t] = h
        cs[b] = c
    return {"h": hs, "c": cs}


def build_bidirectional() -> Built:
    t, T = pr.dim("t")
    x = pr.input("x", (FEATURES,), (t,))
    wx = pr.input("wx", (FEATURES, HIDDEN))
    wh = pr.input("wh", (HIDDEN, HIDDEN))
    forwards = pr.recurrent((HIDDEN,), ((t, T + 1),))
    forwards[0] = 0.0
    forwards[t + 1] = pr.tanh(x @ wx + forwards @ wh)
    backwards = pr.recurrent((HIDDEN,), ((t, T + 1),))
    backwards[T] = 0.0
    backwards[t] = pr.tanh(x @ wx + backwards[t + 1] @ wh)
    return Built({"y": pr.concat([forwards[t + 1], backwards])})


def bidirectional(inputs: Arrays, bounds: Bounds) -> Arrays:
    x, T = inputs["x"].astype("float64"), bounds["T"]
    y = np.zeros((T, 2 * HIDDEN))
    h = np.zeros(HIDDEN)
    for t in range(T):
        y[t, :HIDDEN] = h = np.tanh(x[t] @ inputs["wx"] + h @ inputs["wh"])
    h = np.zeros(HIDDEN)
    for t in reversed(range(T)):
        y[t, HIDDEN:] = h = np.tanh(x[t] @ inputs["wx"] + h @ inputs["wh"])
    return {"y": y}


def weights(rng: np.random.Generator, gates: int) -> Arrays:
    """The matrices of a cell with some gates."""
    return {
        "wx": rng.normal(size=(FEATURES, gates * HIDDEN)).astype("float32"),
        "wh": rng.normal(size=(HIDDEN, gates * HIDDEN)).astype("float32") / 2,
    }


def batch_inputs(gates: int, rng: np.random.Generator, bounds: Bounds) -> Arrays:
    """Sequences of a batch, with the weights."""
    x = rng.normal(size=(bounds["B"], bounds["T"], FEATURES)).astype("float32")
    return {"x": x, "bias": rng.normal(size=gates * HIDDEN).astype("float32"), **weights(rng, gates)}


BATCHES = tuple({"B": b, "T": t} for b, t in [(0, 3), (1, 0), (1, 1), (2, 2), (1, 7), (3, 8), (2, 17)])

CASES = [
    Case("rnn", build_rnn, lambda rng, bounds: batch_inputs(1, rng, bounds), BATCHES, rnn),
    Case("lstm", build_lstm, lambda rng, bounds: batch_inputs(4, rng, bounds), BATCHES, lstm),
    Case(
        "bidirectional",
        build_bidirectional,
        lambda rng, bounds: {"x": rng.normal(size=(bounds["T"], FEATURES)).astype("float32"), **weights(rng, 1)},
        tuple({"T": t} for t in (0, 1, 2, 7, 8, 9, 17)),
        bidirectional,
    ),
]
