"""CartPole is solved by PPO, whether it is part of the program or Gymnasium's.

Solved means that the last 100 episodes of training (whole iterations of them, so a few more) have a mean return of 475,
with actions still drawn. The settings are those that CleanRL uses: four environments, 500,000 steps in all.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from polyrhythm.rl.presets import source
from polyrhythm.rl.train import train

ENVIRONMENTS, STEPS, MOST_STEPS = 4, 128, 500_000
EPISODES, SCORE = 100, 475.0


def steps_to_solve(episodes: np.ndarray, scores: np.ndarray, steps: int) -> int | None:
    """After how many steps the last episodes were good enough; `episodes` and `scores` are those of each iteration."""
    for last in range(1, len(episodes) + 1):
        enough = np.flatnonzero(np.cumsum(episodes[:last][::-1]) >= EPISODES)
        if enough.size:
            window = slice(last - 1 - enough[0], last)
            if np.average(scores[window], weights=episodes[window]) >= SCORE:
                return last * steps
    return None


def test_steps_are_counted_until_a_hundred_episodes_are_good() -> None:
    scores = np.array([100.0] * 3 + [500.0] * 30)
    # Five episodes an iteration: 19 good iterations and one at 100 have the mean 480.
    assert steps_to_solve(np.full(33, 5.0), scores, 10) == (3 + 19) * 10
    assert steps_to_solve(np.full(21, 5.0), scores[:21], 10) is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "host"])
def test_cartpole_is_solved(compiled: bool, seed: int) -> None:
    each = ENVIRONMENTS * STEPS
    iterations = MOST_STEPS // each
    began = time.perf_counter()
    environments = source("CartPole-v1", ENVIRONMENTS, compiled, seed)
    result = train("ppo", environments, iterations, seed=seed, steps=STEPS, anneal_lr=iterations)
    found = steps_to_solve(np.asarray(result["episodes"]), np.asarray(result["return"]), each)
    minutes = (time.perf_counter() - began) / 60
    kind = "compiled" if compiled else "host"
    print(f"| {kind} | {seed} | {'not solved' if found is None else f'{found:,}'} | {minutes:.1f} |")
    assert found is not None, f"the best iteration had a mean return of {max(result['return']):.0f}"
