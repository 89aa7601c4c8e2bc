"""Environments by name with their usual wrappers, and settings that are known to learn.

Atari games get the wrappers of DQN and IMPALA: no-op starts, four frames per action, 84 x 84 grey pixels, four of them
stacked, rewards by their sign. MuJoCo's get running normalisation of observations and rewards. Names of array
environments are those of Gymnasium where it has the same.
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
from polyrhythm.rl.gym import Gym
from polyrhythm.rl.normalization import Normalized
from polyrhythm.rl.running import Arrays, Source
from polyrhythm.rl.threads import threaded

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

MUJOCO = (
    *("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum", "InvertedPendulum"),
    *("Pusher", "Reacher", "Swimmer", "Walker2d"),
)

SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("ppo", "Pendulum-v1"): {"gamma": 0.9, "epochs": 10, "learning_rate": 1e-3, "entropy_coef": 0.0},
    ("ppo", "MountainCarContinuous-v0"): {"gamma": 0.999, "epochs": 10, "entropy_coef": 0.0},
    ("sac", "Pendulum-v1"): {"learning_rate": 1e-3, "buffer_size": 20_000},
    ("td3", "Pendulum-v1"): {"learning_rate": 1e-3, "buffer_size": 20_000},
    ("ddpg", "Pendulum-v1"): {"learning_rate": 1e-3, "buffer_size": 20_000},
}
"""What differs from the settings of an algorithm in some environment."""

MUJOCO_PPO: dict[str, Any] = {
    "steps": 2048,
    "minibatches": 32,
    "epochs": 10,
    "learning_rate": 3e-4,
    "entropy_coef": 0.0,
    "clip_value": False,
}
ATARI_PPO: dict[str, Any] = {"steps": 128, "learning_rate": 2.5e-4, "clip_range": 0.1}


def settings_for(algorithm: str, name: str) -> dict[str, Any]:
    """What differs from an algorithm's settings in an environment.

    >>> settings_for("ppo", "Pendulum-v1")["gamma"]
    0.9
    """
    if algorithm == "ppo" and _is_mujoco(name):
        return MUJOCO_PPO
    if algorithm == "ppo" and name.startswith("ALE/"):
        return ATARI_PPO
    return SETTINGS.get((algorithm, name), {})


def source(name: str, count: int, compiled: bool = False, seed: int = 0, threads: bool = False) -> Source:
    """So many environments of a name: part of the program, or Gymnasium's with their usual wrappers.

    >>> source("CartPole-v1", 3, compiled=True).observations.shape
    (4,)
    """
    if compiled:
        if name not in COMPILED:
            raise DeclarationError(
                f"there is no array environment {name!r}; there are {', '.join(COMPILED)}",
                fix="use Gymnasium's: leave --compiled out",
            )
        return Arrays(COMPILED[name](), count)
    if name in COMPILED and name in ("Breakout-MinAtar", "Catch", "GridWorld", "Recall"):
        raise DeclarationError(
            f"Gymnasium has no environment {name!r}", fix="it is an array environment: add --compiled"
        )
    gymnasium = _gymnasium()
    makers = [lambda: _one(gymnasium, name)] * count
    try:
        if threads:
            made = threaded(makers)
        else:
            mode = gymnasium.vector.AutoresetMode.SAME_STEP
            made = gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode)
    except (gymnasium.error.Error, ImportError, ModuleNotFoundError) as error:
        raise _refused(gymnasium, name, error) from error
    made.spec = gymnasium.spec(name)
    environments = Gym(made, seed)
    return Normalized(environments) if _is_mujoco(name) else environments


def _one(gymnasium: Any, name: str, **options: Any) -> Any:
    """One environment with its wrappers."""
    if not name.startswith("ALE/"):
        return gymnasium.make(name, **options)
    wrappers = gymnasium.wrappers
    game = wrappers.AtariPreprocessing(gymnasium.make(name, frameskip=1, **options), noop_max=30, frame_skip=4)
    return wrappers.TransformReward(
        wrappers.FrameStackObservation(game, 4), lambda reward: float((reward > 0) - (reward < 0))
    )


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError as error:
        raise DeclarationError(
            f"Gymnasium is needed: {error}", fix="pip install 'polyrhythm[rl]', or use --compiled"
        ) from error
    try:
        import ale_py

        gymnasium.register_envs(ale_py)
    except ImportError:
        pass
    return gymnasium


def _refused(gymnasium: Any, name: str, error: Exception) -> DeclarationError:
    """What is missing: a package that the environment needs, or the environment."""
    needs = {"mujoco": _is_mujoco(name), "ale-py": name.startswith("ALE/"), "box2d": "Box2D" in str(error)}
    for package, needed in needs.items():
        if needed:
            extra = {"mujoco": "mujoco", "ale-py": "atari", "box2d": "box2d"}[package]
            return DeclarationError(
                f"{name} needs {package}, which is not installed: {error}",
                fix=f"pip install 'polyrhythm[{extra}]'",
            )
    near = [known for known in gymnasium.registry if known.lower().startswith(name.split("-")[0].lower())]
    hint = f"did you mean {', '.join(near[:3])}?" if near else "check the name"
    return DeclarationError(f"Gymnasium has no environment {name!r}: {error}", fix=hint)


def _is_mujoco(name: str) -> bool:
    return name.split("-")[0] in MUJOCO
