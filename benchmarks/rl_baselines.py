"""PPO and DQN of stable-baselines3 and of sbx, in `rl.Synthetic` all at once or in Gymnasium's one after the other."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from benchmarks.rl_torch import Lamps
from polyrhythm.rl.dqn import Settings as DQNSettings
from polyrhythm.rl.ppo import Settings


class ManyLamps(VecEnv):
    """`rl.Synthetic` in NumPy, as a vector environment of theirs."""

    def __init__(self, envs: int, shape: tuple[int, ...], length: int, actions: int) -> None:
        self.lamps = Lamps(envs, shape, length, actions)
        super().__init__(envs, gymnasium.spaces.Box(-2, 2, shape, np.float32), gymnasium.spaces.Discrete(actions))

    def reset(self) -> np.ndarray:
        """Begin all anew."""
        self.lamps.lights, self.lamps.age = self.lamps.fresh(), np.zeros(self.num_envs, int)
        return self.lamps.lights

    def step_async(self, actions: np.ndarray) -> None:
        """Remember what to do."""
        self.chosen = actions

    def step_wait(self) -> Any:
        """Do it; what an episode ended with is in the infos."""
        after, reward, ended = self.lamps.step(self.chosen)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for number in np.flatnonzero(ended):
            infos[number] = {"terminal_observation": after[number], "TimeLimit.truncated": True}
        return self.lamps.lights, reward, ended, infos

    def close(self) -> None:
        """Nothing is open."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """None of them has any."""
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Nothing to set."""

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Nothing to call."""
        return [None] * self.num_envs

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """None is."""
        return [False] * self.num_envs


def cartpoles(envs: int) -> VecEnv:
    """Gymnasium's, each stepped in Python."""
    return DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * envs)


def trainer(environments: VecEnv, hidden: tuple[int, ...], s: Settings, system: str) -> Callable[[int], Any]:
    """A function that makes so many iterations of PPO."""
    rows = environments.num_envs * s.steps
    options: dict[str, Any] = {"clip_range_vf": s.clip_range, "device": "cpu"} if system != "sbx" else {}
    model = _library(system).PPO(
        "MlpPolicy",
        environments,
        learning_rate=s.learning_rate,
        n_steps=s.steps,
        batch_size=rows // s.minibatches,
        n_epochs=s.epochs,
        gamma=s.gamma,
        gae_lambda=s.gae_lambda,
        clip_range=s.clip_range,
        ent_coef=s.entropy_coef,
        vf_coef=s.value_coef,
        max_grad_norm=s.max_grad_norm,
        policy_kwargs={"net_arch": list(hidden)},
        **options,
    )
    return lambda count: model.learn(count * rows, reset_num_timesteps=False)


def dqn_trainer(environments: VecEnv, hidden: tuple[int, ...], s: DQNSettings, system: str) -> Callable[[int], Any]:
    """A function that makes so many iterations of DQN; theirs is not double."""
    rows = environments.num_envs * s.steps
    model = _library(system).DQN(
        "MlpPolicy",
        environments,
        learning_rate=s.learning_rate,
        buffer_size=s.buffer_size,
        learning_starts=0,
        batch_size=s.batch_size,
        gamma=s.gamma,
        train_freq=s.steps,
        gradient_steps=s.updates,
        target_update_interval=s.target_update * s.steps,
        policy_kwargs={"net_arch": list(hidden)},
    )
    return lambda count: model.learn(count * rows, reset_num_timesteps=False)


def _library(system: str) -> Any:
    return importlib.import_module("sbx" if system == "sbx" else "stable_baselines3")
