"""Filtering and smoothing: a Kalman filter, and the forward-backward algorithm of a hidden Markov model."""

from __future__ import annotations

import numpy as np

import polyrhythm as pr
from tests.programs.case import EDGES, Arrays, Bounds, Built, Case, steps

STATES = 3


def build_kalman() -> Built:
    """Position and velocity from noisy positions; the mean and the covariance are two tensors of one recurrence."""
    t, _ = pr.dim("t")
    z = pr.input("z", (), (t,))
    move = pr.constant([[1.0, 1.0], [0.0, 1.0]])
    mean = pr.recurrent((2,), (t,))
    spread = pr.recurrent((2, 2), (t,))
    expected = pr.where(t > 0, move @ mean[pr.max(0, t - 1)], 0.0)
    loose = pr.where(t > 0, move @ spread[pr.max(0, t - 1)] @ move.transpose() + 0.1 * pr.eye(2), pr.eye(2))
    gain = loose.axes[:, 0] / (loose.axes[0, 0] + 0.5)
    mean[t] = expected + gain * (z - expected.axes[0])
    spread[t] = loose - pr.outer(gain, loose.axes[0])
    return Built({"mean": mean, "spread": spread})


def kalman(inputs: Arrays, bounds: Bounds) -> Arrays:
    z, T = inputs["z"].astype("float64"), bounds["T"]
    move = np.array([[1.0, 1.0], [0.0, 1.0]])
    means, spreads = np.zeros((T, 2)), np.zeros((T, 2, 2))
    mean, loose = np.zeros(2), np.eye(2)
    for t in range(T):
        if t > 0:
            mean = move @ means[t - 1]
            loose = move @ spreads[t - 1] @ move.T + 0.1 * np.eye(2)
        gain = loose[:, 0] / (loose[0, 0] + 0.5)
        means[t] = mean + gain * (z[t] - mean[0])
        spreads[t] = loose - np.outer(gain, loose[0])
    return {"mean": means, "spread": spreads}


def build_hmm() -> Built:
    t, T = pr.dim("t")
    seen = pr.input("seen", (), (t,), "int32")
    log_start = pr.input("log_start", (STATES,))
    log_move = pr.input("log_move", (STATES, STATES))
    log_show = pr.input("log_show", (STATES, 4))
    shown = pr.take(log_show, seen, axis=1)
    forward = pr.recurrent((STATES,), (t,))
    forward[0] = log_start + shown[0]
    forward[t + 1] = (forward.unsqueeze(1) + log_move).logsumexp(0) + shown[t + 1]
    backward = pr.recurrent((STATES,), (t,))
    backward[T - 1] = 0.0
    backward[t < T - 1] = (log_move + shown[t + 1] + backward[t + 1]).logsumexp(1)
    return Built({"posterior": (forward + backward).softmax(), "evidence": forward[T - 1].logsumexp()})


def hmm(inputs: Arrays, bounds: Bounds) -> Arrays:
    start, move, show = (np.exp(inputs[k].astype("float64")) for k in ("log_start", "log_move", "log_show"))
    seen, T = inputs["seen"], bounds["T"]
    forward, backward = np.zeros((T, STATES)), np.ones((T, STATES))
    for t in range(T):
        before = start if t == 0 else forward[t - 1] @ move
        forward[t] = before * show[:, seen[t]]
    for t in reversed(range(T - 1)):
        backward[t] = move @ (show[:, seen[t + 1]] * backward[t + 1])
    joint = forward * backward
    return {"posterior": joint / joint.sum(1, keepdims=True), "evidence": np.log(forward[T - 1].sum())}


def hmm_inputs(rng: np.random.Generator, bounds: Bounds) -> Arrays:
    def rows(*shape: int) -> np.ndarray:
        p = rng.random(shape)
        return np.log(p / p.sum(-1, keepdims=True)).astype("float32")

    return {
        "seen": rng.integers(0, 4, bounds["T"], "int32"),
        "log_start": rows(STATES),
        "log_move": rows(STATES, STATES),
        "log_show": rows(STATES, 4),
    }


CASES = [
    Case(
        "kalman",
        build_kalman,
        lambda rng, bounds: {"z": rng.normal(size=bounds["T"]).astype("float32")},
        steps(*EDGES),
        kalman,
    ),
    Case("hmm", build_hmm, hmm_inputs, steps(*EDGES[1:]), hmm),
]
