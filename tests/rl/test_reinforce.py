"""REINFORCE keeps what its returns look ahead to, and no more; what its gradients see; and A2C and REINFORCE learn."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import gymnasium
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
    made = rl.reinforce(lamps, rl.ActorCritic(lamps.observations, lamps.actions, ()), rl.ReinforceSettings(n=n))
    return pr.compile(made.outputs, backend="numpy"), made


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


@pytest.mark.parametrize("n", [None, 1, pytest.param(4, marks=pytest.mark.slow)])
def test_loops_and_observations(n: int | None, golden: Callable[[str, str], None]) -> None:
    """The loops, and how many steps are kept of what has the size of an observation."""
    program, _ = training(n)
    loops = [line for line in program.schedule.splitlines() if line.lstrip().startswith("for ")]
    lines = [line for line in str(program.memory).splitlines() if f"{SIZE}]" in line and "of t)" in line]
    parts = Counter(f"{line.split()[0]} {line[line.index('[') :].split('): ')[0]})" for line in lines)
    golden(f"reinforce_{n or 'all'}", "\n".join([*loops, "", *(f"{parts[one]} x {one}" for one in sorted(parts))]))


class Opaque(rl.Pendulum):
    """A pendulum through which no gradient passes."""

    def step(self, state: Any, action: pr.Tensor) -> Any:
        after, reward, terminated = super().step(state, action)
        return {name: pr.detach(part) for name, part in after.items()}, pr.detach(reward), terminated


def test_gradients_do_not_pass_through_the_environment() -> None:
    """Actions of a pendulum are real numbers, and what follows is differentiable; the algorithm must not use that."""

    def weights(environment: rl.Pendulum) -> dict[str, np.ndarray]:
        swings = rl.Arrays(environment, 2)
        model = rl.ActorCritic(swings.observations, swings.actions, (3,), np.random.default_rng(0))
        made = rl.reinforce(swings, model, rl.ReinforceSettings(steps=5, n=1, learning_rate=0.05))
        program = pr.compile(made.outputs, bounds=made.bounds, backend="numpy")
        found: dict[str, np.ndarray] = program(bounds={made.iterations: 3})["weights"]
        return found

    expected = weights(Opaque())
    for name, found in weights(rl.Pendulum()).items():
        assert np.array_equal(found, expected[name]), name


def test_actions_of_gymnasium_may_be_real_numbers() -> None:
    made = gymnasium.make_vec("Pendulum-v1", 2, vectorization_mode="sync")
    swings = rl.Gym(made, seed=1)
    model = rl.ActorCritic(swings.observations, swings.actions, (3,), np.random.default_rng(0))
    training = rl.reinforce(swings, model, rl.ReinforceSettings(steps=4, n=1, learning_rate=0.05))
    program = pr.compile(training.outputs, bounds=training.bounds, backend="numpy")
    found = program(bounds={training.iterations: 2})["weights"]
    assert all(np.isfinite(w).all() for w in found.values())
    assert any((found[name] != w).any() for name, w in model.weights().items())


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["reinforce", "a2c"])
def test_learns_to_balance(algorithm: str) -> None:
    carts = rl.Arrays(rl.CartPole(), 8)
    model = rl.ActorCritic(carts.observations, carts.actions, (32,), np.random.default_rng(0))
    if algorithm == "reinforce":
        training, iterations = rl.reinforce(carts, model, rl.ReinforceSettings(steps=128, learning_rate=1e-2)), 60
    else:
        training, iterations = rl.a2c(carts, model, rl.A2CSettings(steps=16, learning_rate=3e-3)), 400
    program = pr.compile(training.outputs, bounds=training.bounds)
    result = program(bounds={training.iterations: iterations})
    ended = result["return"][result["episodes"] > 0]
    assert ended[-8:].mean() > 2.0 * ended[:4].mean()


@pytest.mark.slow
def test_bytes_follow_from_what_the_returns_look_ahead() -> None:
    """Observations of 768 numbers: a rollout with Monte Carlo, a few steps with TD, however many there are."""
    images = rl.Arrays(rl.Synthetic((768,), 100, 4), 2)
    peaks = {}
    for n, steps in ((None, 4_000), (1, 400), (1, 4_000)):
        model = rl.ActorCritic(images.observations, images.actions, (16,), np.random.default_rng(0))
        training = rl.reinforce(images, model, rl.ReinforceSettings(steps=steps, n=n))
        program = pr.compile(training.outputs, bounds=training.bounds)
        peaks[n, steps] = program.memory.peak({str(training.iterations): 2})
    assert peaks[1, 4_000] == peaks[1, 400]
    assert peaks[1, 4_000] * 16 < peaks[None, 4_000]
