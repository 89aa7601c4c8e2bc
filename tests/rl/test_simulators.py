"""Atari's games, MuJoCo's and Box2D's environments. `make simulators` installs them and runs these tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import rl
from polyrhythm.rl.logs import Row
from polyrhythm.rl.presets import source
from polyrhythm.rl.simulators import environments, imported, one
from polyrhythm.rl.train import train

pytestmark = pytest.mark.slow


def test_atari_with_its_usual_wrappers() -> None:
    """Pixels stay uint8 up to the network; what is learnt from is the sign of a reward, what is returned is its sum."""
    pytest.importorskip("ale_py")
    games = source("ALE/Pong-v5", 2, seed=0)
    assert isinstance(games, rl.ClippedReward)
    assert games.observations == rl.Box((4, 84, 84), 0, 255, "uint8")
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    steps = games.run(i, t, lambda seen: (seen.axes[:, 0, 0, 0] * 0).cast("int32"))
    assert steps.raw_reward is not None
    assert steps.observation.dtype == np.uint8
    parts = [x[{t: slice(0, T)}] for x in (steps.reward, steps.raw_reward)]
    learnt, raw = pr.compile(parts, backend="numpy")(bounds={I: 1, T: 120})
    np.testing.assert_array_equal(learnt, np.sign(raw))
    assert (raw < 0).any()  # who does nothing loses points


def test_a_life_of_an_atari_game_is_an_episode() -> None:
    """Its end is terminal, but the game goes on with the next; where agents are evaluated it is not."""
    pytest.importorskip("ale_py")
    gymnasium = imported()
    game, whole = (one(gymnasium, "ALE/Breakout-v5", training) for training in (True, False))
    for env in (game, whole):
        env.reset(seed=1)
    lives = [game.unwrapped.ale.lives()]
    while lives[-1] > 0 and len(lives) < 10:
        terminated = False
        while not terminated:
            *_, terminated, truncated, _ = game.step(0)
            assert not truncated
        lives.append(game.unwrapped.ale.lives())
        if lives[-1]:
            game.reset()
            assert game.unwrapped.ale.lives() == lives[-1]
    assert lives == [5, 4, 3, 2, 1, 0]
    game.reset()
    assert game.unwrapped.ale.lives() == 5
    while whole.unwrapped.ale.lives() == 5:
        *_, terminated, _, _ = whole.step(1)
    assert not terminated


def rollout(env: Any, steps: int, seed: int) -> list[np.ndarray]:
    random, found = np.random.default_rng(seed), []
    for _ in range(steps):
        found += env.step(random.uniform(-1, 1, (env.count, *env.actions.shape)).astype(np.float32))
    return found


@pytest.mark.parametrize("name", ["HalfCheetah-v5", "Ant-v5", "Hopper-v5"])
def test_mujoco_goes_on_where_it_was_saved(name: str) -> None:
    pytest.importorskip("mujoco")
    first, other = environments(name, 2, seed=3), environments(name, 2, seed=3)
    first.reset()
    rollout(first, 40, 0)
    saved = {key: np.array(value) for key, value in first.save().items()}
    wanted = rollout(first, 60, 1)
    other.reset()
    rollout(other, 7, 2)
    other.restore(saved)
    for found, want in zip(rollout(other, 60, 1), wanted, strict=True):
        np.testing.assert_array_equal(found, want)


def test_mujoco_is_normalised_for_on_policy_algorithms_and_resumed_exactly(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    assert isinstance(source("HalfCheetah-v5", 1, algorithm="ppo"), rl.Normalized)
    assert isinstance(source("HalfCheetah-v5", 1, algorithm="sac"), rl.Gym)

    class Stopped(Exception):
        """As if it had been killed."""

    def learn(folder: str, stop: int | None = None) -> dict[str, Any]:
        def show(row: Row) -> None:
            if row["iteration"] == stop:
                raise Stopped

        options: dict[str, Any] = {"hidden": (8,), "steps": 64, "backend": "numpy", "show": show, "every": 2}
        swings = source("HalfCheetah-v5", 2, seed=1)
        return train("ppo", swings, 5, checkpoint=str(tmp_path / folder), **options)

    whole = learn("whole")
    with pytest.raises(Stopped):
        learn("parts", 3)
    found = learn("parts")
    for kind in ("weights", "statistics"):
        for name, array in whole[kind].items():
            np.testing.assert_array_equal(found[kind][name], array, err_msg=name)


def test_what_forgets_its_state_is_not_saved() -> None:
    pytest.importorskip("Box2D")
    with pytest.raises(pr.errors.UnsupportedError, match="forgets where it was"):
        environments("LunarLander-v3", 1).save()
