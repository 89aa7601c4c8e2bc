"""Learning inside the program: hand-written gradients over three dims, and a policy trained on a host environment."""

from __future__ import annotations

from typing import Any

import numpy as np

import polyrhythm as pr
from tests.programs.case import Arrays, Bounds, Built, Case

RATE = 0.05


def build_training() -> Built:
    """A linear recurrence with two weights, trained by back-propagation through time over a batch."""
    i, I = pr.dim("i")
    b, B = pr.dim("b")
    t, T = pr.dim("t")
    x = pr.input("x", (), (b, t))
    goal = pr.input("goal", (), (b, t))
    keep = pr.recurrent((), ((i, I + 1),))
    gain = pr.recurrent((), ((i, I + 1),))
    h = pr.recurrent((), (b, i, (t, T + 1)))
    h[b, i, 0] = 0.0
    h[b, i, t + 1] = keep * h + gain * x
    error = h[b, i, t + 1] - goal
    later = pr.recurrent((), (b, i, t))  # the gradient of the loss with respect to h at t + 1
    later[t == T - 1] = error
    later[t < T - 1] = error + keep * later[b, i, t + 1]
    keep[0] = 0.5
    keep[i + 1] = keep - RATE * (later * h)[0:B, i, 0:T].sum()
    gain[0] = 0.1
    gain[i + 1] = gain - RATE * (later * x)[{b: slice(0, B), t: slice(0, T)}].sum()
    loss = 0.5 * (error * error)[0:B, i, 0:T].sum()
    return Built({"keep": keep, "gain": gain, "loss": loss})


def training(inputs: Arrays, bounds: Bounds) -> Arrays:
    x, goal = inputs["x"].astype("float64"), inputs["goal"].astype("float64")
    B, T = bounds["B"], bounds["T"]
    keep, gain, losses = [0.5], [0.1], []
    for i in range(bounds["I"]):
        loss, keep_gradient, gain_gradient = 0.0, 0.0, 0.0
        for b in range(B):
            h = [0.0]
            for t in range(T):
                h.append(keep[i] * h[t] + gain[i] * x[b, t])
            later = 0.0
            for t in reversed(range(T)):
                later = h[t + 1] - goal[b, t] + keep[i] * later
                loss += 0.5 * (h[t + 1] - goal[b, t]) ** 2
                keep_gradient += later * h[t]
                gain_gradient += later * x[b, t]
        losses.append(loss)
        keep.append(keep[i] - RATE * keep_gradient)
        gain.append(gain[i] - RATE * gain_gradient)
    return {"keep": np.array(keep), "gain": np.array(gain), "loss": np.array(losses)}


class Walk:
    """An environment: walk left or right from a start that moves every episode; the reward is the position."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.position = 0.0

    def reset(self, episode: int) -> np.float32:
        self.position = 0.25 * float(episode)
        self.log.append(("reset", int(episode)))
        return np.float32(self.position)

    def step(self, right: bool) -> tuple[np.float32, np.float32]:
        self.position += 0.5 if right else -0.5
        self.log.append(("step", bool(right)))
        return np.float32(self.position), np.float32(self.position - 0.1)

    def note(self, total: np.ndarray) -> np.float32:
        self.log.append("end")
        return np.float32(total)


def build_reinforce(monte_carlo: bool) -> Built:
    """REINFORCE with the policy sigmoid(a * position + c), trained by hand-written gradients after every episode."""
    walk = Walk()
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    luck = pr.input("luck", (), (i, t))
    weights = pr.recurrent((2,), ((i, I + 1),))
    position = pr.recurrent((), (i, (t, T + 1)))
    first = pr.host(walk.reset, [pr.value(i)], effect="walk")
    features = pr.stack([position, pr.ones(())])
    chance = pr.sigmoid((weights * features).sum())
    right = luck < chance
    following, reward = pr.host(walk.step, [right], [(), ()], effect="walk")
    position[i, 0] = first
    position[i, t + 1] = following
    noted = pr.host(walk.note, [reward[i, 0:T].sum()], effect="walk")
    credit = reward[i, t:T].sum() if monte_carlo else reward
    gradient = credit * (right.cast("float32") - chance) * features
    weights[0] = 0.0
    weights[i + 1] = weights + 0.1 * gradient[i, 0:T].sum(0)
    return Built({"weights": weights, "position": position}, effects=(noted,), log=walk.log)


def reinforce(monte_carlo: bool, inputs: Arrays, bounds: Bounds) -> Arrays:
    luck = inputs["luck"]
    I, T = bounds["I"], bounds["T"]
    weights, positions = np.zeros((I + 1, 2)), np.zeros((I, T + 1))
    log: list[Any] = []
    for i in range(I):
        log.append(("reset", i))
        positions[i, 0] = 0.25 * i
        rewards, slopes = [], []
        for t in range(T):
            features = np.array([positions[i, t], 1.0])
            chance = 1 / (1 + np.exp(-(weights[i] @ features)))
            right = bool(luck[i, t] < chance)
            log.append(("step", right))
            positions[i, t + 1] = positions[i, t] + (0.5 if right else -0.5)
            rewards.append(positions[i, t + 1] - 0.1)
            slopes.append((right - chance) * features)
        log.append("end")
        weights[i + 1] = weights[i]
        for t in range(T):
            credit = sum(rewards[t:]) if monte_carlo else rewards[t]
            weights[i + 1] += 0.1 * credit * slopes[t]
    return {"weights": weights, "position": positions, "log": log}


def batch(rng: np.random.Generator, bounds: Bounds) -> Arrays:
    shape = (bounds["B"], bounds["T"])
    return {"x": rng.normal(size=shape).astype("float32"), "goal": rng.normal(size=shape).astype("float32") / 2}


def luck(rng: np.random.Generator, bounds: Bounds) -> Arrays:
    return {"luck": rng.random((bounds["I"], bounds["T"]), "float32")}


EPISODES = tuple({"I": i, "T": t} for i, t in [(0, 3), (2, 0), (1, 1), (3, 4), (2, 8)])

CASES = [
    Case(
        "training",
        build_training,
        batch,
        tuple(
            {"I": i, "B": b, "T": t} for i, b, t in [(0, 1, 2), (1, 0, 3), (2, 1, 0), (1, 1, 1), (3, 2, 4), (2, 3, 9)]
        ),
        training,
        ("I",),
    ),
    Case("reinforce", lambda: build_reinforce(True), luck, EPISODES, lambda i, b: reinforce(True, i, b)),
    Case("reinforce_greedy", lambda: build_reinforce(False), luck, EPISODES, lambda i, b: reinforce(False, i, b)),
]
