"""REINFORCE keeps what its returns look ahead to, and no more; and A2C and REINFORCE learn."""

from __future__ import annotations

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import rl

SIZE, ENVS, ITERATIONS = 1000, 2, 3
OBSERVATIONS = ENVS * SIZE * 4  # bytes of one step


def kept(n: int | None, *lengths: int) -> list[int]:
    """The bytes that a program keeps, for rollouts of some lengths."""
    lamps = rl.Arrays(rl.Synthetic((SIZE,), length=5), ENVS)
    training = rl.reinforce(
        lamps, rl.ActorCritic(lamps.observation_shape, lamps.actions, ()), rl.ReinforceSettings(n=n)
    )
    program = pr.compile(training.outputs, backend="numpy", progress=False)
    (t,) = training.bounds
    return [program.memory.kept({t: length, training.iterations: ITERATIONS}) for length in lengths]


def test_monte_carlo_keeps_a_rollout() -> None:
    short, long = kept(None, 100, 200)
    assert OBSERVATIONS <= (long - short) / 100 < 3 * OBSERVATIONS


def test_td_keeps_one_step() -> None:
    short, long = kept(1, 100, 200)
    assert (long - short) / 100 < 0.01 * OBSERVATIONS


@pytest.mark.slow
def test_n_steps_keep_n() -> None:
    short, long = kept(4, 100, 200)
    assert (long - short) / 100 < 0.01 * OBSERVATIONS
    (more,) = kept(8, 100)
    assert 3.5 * OBSERVATIONS < more - short < 12 * OBSERVATIONS


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["reinforce", "a2c"])
def test_learns_to_balance(algorithm: str) -> None:
    carts = rl.Arrays(rl.CartPole(), 8)
    model = rl.ActorCritic(carts.observation_shape, carts.actions, (32,), np.random.default_rng(0))
    if algorithm == "reinforce":
        training, iterations = rl.reinforce(carts, model, rl.ReinforceSettings(steps=128, rate=1e-2)), 60
    else:
        training, iterations = rl.a2c(carts, model, rl.A2CSettings(steps=16, rate=3e-3)), 400
    program = pr.compile(training.outputs, bounds=training.bounds, progress=False)
    result = program(bounds={training.iterations: iterations})
    ended = result["return"][result["episodes"] > 0]
    assert ended[-8:].mean() > 2.0 * ended[:4].mean()
