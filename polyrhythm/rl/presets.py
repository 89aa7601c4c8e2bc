"""Environments by name, and settings for pairs of an algorithm and an environment; `docs/rl.md` says how they learn.

Names of array environments are those of Gymnasium where it has the same. With on-policy algorithms MuJoCo's
environments get running normalisation of observations and rewards, Atari's games clipped rewards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polyrhythm.errors import DeclarationError
from polyrhythm.rl.environments import (
    Acrobot,
    Breakout,
    CartPole,
    Catch,
    Environment,
    GridWorld,
    MountainCar,
    MountainCarContinuous,
    Pendulum,
    Recall,
)
from polyrhythm.rl.normalization import ClippedReward, Normalized
from polyrhythm.rl.running import Arrays, Source
from polyrhythm.rl.simulators import environments, is_atari, is_mujoco

COMPILED: dict[str, Callable[[], Environment]] = {
    "Acrobot-v1": Acrobot,
    "Breakout-MinAtar": Breakout,
    "CartPole-v1": CartPole,
    "Catch": Catch,
    "GridWorld": GridWorld,
    "MountainCar-v0": MountainCar,
    "MountainCarContinuous-v0": MountainCarContinuous,
    "Pendulum-v1": Pendulum,
    "Recall": Recall,
}
"""The environments that can be part of the program, by name."""

ON_POLICY = ("a2c", "impala", "ppo", "reinforce")

SWING: dict[str, Any] = {"num_envs": 1, "total_steps": 20_000, "steps": 32, "updates": 32}
SWING |= {"learning_rate": 1e-3, "buffer_size": 20_000}
RECALL: dict[str, Any] = {"num_envs": 32, "total_steps": 500_000, "hidden": "32"}
RECALL |= {"steps": 40, "learning_rate": 1e-3, "context": 12}

PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    ("ppo", "CartPole-v1"): {"total_steps": 300_000, "learning_rate": 5e-4},
    ("ppo", "Acrobot-v1"): {"num_envs": 16, "total_steps": 500_000, "learning_rate": 1e-3, "gae_lambda": 0.94},
    ("ppo", "Pendulum-v1"): {
        **{"total_steps": 400_000, "gamma": 0.9, "epochs": 10},
        **{"learning_rate": 1e-3, "entropy_coef": 0.0, "clip_value": False},
    },
    ("ppo", "MountainCarContinuous-v0"): {"gamma": 0.999, "epochs": 10, "entropy_coef": 0.0},
    ("ppo", "Breakout-MinAtar"): {
        **{"num_envs": 64, "total_steps": 1_000_000, "shared": True},
        **{"steps": 32, "minibatches": 8, "learning_rate": 1e-3},
    },
    ("ppo", "LunarLander-v3"): {
        **{"num_envs": 16, "total_steps": 2_000_000, "steps": 256, "minibatches": 64},
        **{"learning_rate": 3e-4, "gamma": 0.999, "gae_lambda": 0.98, "clip_value": False},
    },
    ("ppo", "Recall"): RECALL,
    ("dqn", "CartPole-v1"): {
        **{"total_steps": 150_000, "steps": 2, "batch_size": 64, "buffer_size": 32_000, "n_step": 3, "double": False},
        **{"target_update": 100, "exploration_final": 0.02, "exploration_steps": 16_000},
    },
    ("sac", "Pendulum-v1"): SWING,
    ("td3", "Pendulum-v1"): SWING,
    ("ddpg", "Pendulum-v1"): SWING,
}
"""What differs from the settings of an algorithm in some environment."""

MUJOCO_PPO: dict[str, Any] = {
    **{"num_envs": 1, "total_steps": 1_000_000, "steps": 2048, "minibatches": 32, "epochs": 10},
    **{"learning_rate": 3e-4, "entropy_coef": 0.0, "clip_value": False},
}
ATARI_PPO: dict[str, Any] = {
    **{"total_steps": 10_000_000, "hidden": "", "shared": True},
    **{"steps": 128, "learning_rate": 2.5e-4, "clip_range": 0.1},
}


def preset(algorithm: str, name: str) -> dict[str, Any]:
    """What is to be chosen in an environment: settings, options of the model, and those of the run.

    >>> preset("ppo", "Pendulum-v1")["gamma"]
    0.9
    """
    if algorithm == "ppo" and is_mujoco(name):
        return dict(MUJOCO_PPO)
    if algorithm == "ppo" and is_atari(name):
        return dict(ATARI_PPO)
    return dict(PRESETS.get((algorithm, name), {}))


def source(
    name: str,
    count: int,
    compiled: bool = False,
    seed: int = 0,
    threads: bool = False,
    *,
    algorithm: str = "ppo",
    training: bool = True,
) -> Source:
    """So many environments of a name: part of the program, or Gymnasium's with their usual wrappers.

    >>> source("CartPole-v1", 3, compiled=True).observations.shape
    (4,)
    """
    if compiled:
        if name not in COMPILED:
            near = [known for known in COMPILED if known.lower().split("-")[0] == name.lower().split("-")[0]]
            raise DeclarationError(
                f"there is no array environment {name!r}; there are {', '.join(COMPILED)}",
                fix=f"use {near[0]!r}" if near else "use Gymnasium's: leave --compiled out",
            )
        return Arrays(COMPILED[name](), count)
    if name in COMPILED and name in ("Breakout-MinAtar", "Catch", "GridWorld", "Recall"):
        raise DeclarationError(
            f"Gymnasium has no environment {name!r}", fix="it is an array environment: add --compiled"
        )
    return usual(environments(name, count, seed, threads, training), name, algorithm)


def usual(made: Source, name: str, algorithm: str) -> Source:
    """Environments of a name as an algorithm usually sees them: normalised, with clipped rewards, or as they are."""
    if is_atari(name):
        return ClippedReward(made)
    return Normalized(made) if is_mujoco(name) and algorithm in ON_POLICY else made
