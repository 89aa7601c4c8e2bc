"""REINFORCE keeps what its returns look ahead to, and no more; and A2C and REINFORCE learn."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import rl

SIZE, ENVS, ITERATIONS = 1000, 2, 3
OBSERVATIONS = ENVS * SIZE * 4  # bytes of one step
PYTHON = 150_000  # bytes of Python's own objects, which come and go


@cache
def training(n: int | None) -> tuple[pr.Program, Any]:
    lamps = rl.Arrays(rl.Synthetic((SIZE,), length=5), ENVS)
    made = rl.reinforce(lamps, rl.ActorCritic(lamps.observation_shape, lamps.actions, ()), rl.ReinforceSettings(n=n))
    return pr.compile(made.outputs, backend="numpy", progress=False), made


def kept(n: int | None, *lengths: int) -> list[int]:
    """The bytes that a program keeps, for rollouts of some lengths."""
    program, made = training(n)
    (t,) = made.bounds
    return [program.memory.kept({t: length, made.iterations: ITERATIONS}) for length in lengths]


def allocated(n: int | None, *lengths: int) -> list[int]:
    """The most memory that runs with rollouts of some lengths held at any time."""
    program, made = training(n)
    (t,) = made.bounds
    program(bounds={t: 10, made.iterations: ITERATIONS})  # what a first call makes and keeps is not counted
    found = []
    for length in lengths:
        tracemalloc.start()
        program(bounds={t: length, made.iterations: ITERATIONS})
        found.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return found


@pytest.mark.parametrize("measure", [kept, pytest.param(allocated, marks=pytest.mark.slow)])
def test_monte_carlo_keeps_a_rollout(measure: Callable[..., list[int]]) -> None:
    short, long = measure(None, 100, 200)
    assert OBSERVATIONS <= (long - short) / 100 < 3 * OBSERVATIONS


@pytest.mark.parametrize("measure", [kept, pytest.param(allocated, marks=pytest.mark.slow)])
def test_td_keeps_one_step(measure: Callable[..., list[int]]) -> None:
    short, long = measure(1, 100, 200)
    assert (long - short) / 100 < 0.01 * OBSERVATIONS


@pytest.mark.slow
@pytest.mark.parametrize("measure", [kept, allocated])
def test_n_steps_keep_n(measure: Callable[..., list[int]]) -> None:
    short, long = measure(4, 100, 200)
    assert (long - short) / 100 < 0.01 * OBSERVATIONS
    (more,) = measure(8, 100)
    assert 3.5 * OBSERVATIONS < more - short < 12 * OBSERVATIONS


@pytest.mark.slow
@pytest.mark.parametrize("n", [None, 1, 4])
def test_a_run_allocates_what_is_planned(n: int | None) -> None:
    program, made = training(n)
    (t,) = made.bounds
    for length, found in zip((50, 200), allocated(n, 50, 200), strict=True):
        plan = program.memory.peak({t: length, made.iterations: ITERATIONS})
        assert abs(found - plan) <= 0.05 * plan + PYTHON


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
