"""Gymnasium's vector environments as host functions of a program.

Gymnasium begins an episode anew in one of three ways, and what a step returns differs:

| mode | at the end of an episode | afterwards |
|---|---|---|
| next step | the final observation | one step that only resets: its action is ignored, it is not *valid* |
| same step | the first observation of the next episode; the final one is in the infos | nothing special |
| disabled | the final observation | the caller resets, which is done here at once |

Here all three give the same: what to act on next, what the action led to (never the first observation of another
episode), whether it was terminated or truncated, and whether the step was one of an episode at all.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polyrhythm.errors import DeclarationError, UnsupportedError
from polyrhythm.language.index import Dim
from polyrhythm.language.inputs import host
from polyrhythm.language.tensor import Tensor
from polyrhythm.rl.environments import Continuous, Discrete
from polyrhythm.rl.running import Steps, carried
from polyrhythm.runtime.errors import CheckpointMismatchError


class Gym:
    """A vector environment of Gymnasium, seeded once at the start of every run.

    >>> import gymnasium, polyrhythm as pr
    >>> carts = Gym(gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync"), seed=1)
    >>> carts.observation_shape, carts.actions
    ((4,), Discrete(count=2))
    >>> i, I = pr.dim("i")
    >>> t, T = pr.dim("t")
    >>> steps = carts.run(i, t, lambda seen: (seen.axes[:, 2] > 0).cast("int32"))
    >>> pr.compile(steps.reward, backend="numpy")(bounds={I: 1, T: 3})[0].tolist()
    [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
    """

    def __init__(self, environments: Any, seed: int = 0, effect: str = "environments") -> None:
        self.environments, self.seed, self.effect = environments, seed, effect
        mode = environments.metadata.get("autoreset_mode")
        self.mode = str(getattr(mode, "value", mode) or "NextStep").replace("_", "").lower()
        if self.mode not in ("nextstep", "samestep", "disabled"):
            raise DeclarationError(
                f"the vector environment resets itself in the unknown way {mode!r}",
                fix="make it with one of gymnasium.vector.AutoresetMode",
            )
        from gymnasium import spaces  # environments of arrays do without

        space = environments.single_observation_space
        if not isinstance(space, spaces.Box):
            raise DeclarationError(
                f"the observations of the environment are {space}, not arrays of numbers",
                fix="wrap the environment in gymnasium.wrappers.FlattenObservation",
            )
        self.observation_shape: tuple[int, ...] = tuple(int(n) for n in space.shape)
        self.dtype = np.dtype(space.dtype)
        self.actions = _actions(environments.single_action_space)
        self.count = int(environments.num_envs)
        self._resetting = np.zeros(self.count, bool)

    def reset(self) -> np.ndarray:
        """Begin all environments, seeded; what is seen first."""
        observation, _ = self.environments.reset(seed=self.seed)
        self._resetting = np.zeros(self.count, bool)
        return np.array(observation, self.dtype)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, ...]:
        """One step of all: what to act on next, what the action led to, reward, terminated, truncated, valid."""
        space = self.environments.single_action_space
        action = np.asarray(action)
        if isinstance(self.actions, Continuous):
            action = np.clip(action.reshape(self.count, *space.shape), space.low, space.high)
        else:
            action = action + space.start
        observation, reward, terminated, truncated, infos = self.environments.step(action.astype(space.dtype))
        following = np.array(observation, self.dtype)
        ended, valid = np.asarray(terminated) | np.asarray(truncated), ~self._resetting
        observation = following
        if self.mode == "samestep" and ended.any():
            following = following.copy()
            for number in np.flatnonzero(ended):
                following[number] = infos["final_obs"][number]
        elif self.mode == "disabled" and ended.any():
            observation = np.array(self.environments.reset(options={"reset_mask": ended})[0], self.dtype)
        elif self.mode == "nextstep":
            self._resetting = ended
        return observation, following, np.asarray(reward, np.float32), terminated, truncated, valid

    def run(self, i: Dim, t: Dim, act: Callable[[Tensor], Tensor]) -> Steps:
        """Act in all of them: episodes go on from one iteration to the next."""
        shape, flag = (self.count, *self.observation_shape), (self.count,)
        first = host(self.reset, [], shape, self.dtype, (), effect=self.effect)
        observation = carried(i, t, first)
        action = act(observation)
        shapes, kinds = [shape, shape, flag, flag, flag, flag], [self.dtype, self.dtype, "float32", *["bool"] * 3]
        after, following, reward, terminated, truncated, valid = host(
            self.step, [action], shapes, kinds, (i, t), effect=self.effect
        )
        observation[i, t + 1] = after
        used = valid if self.mode == "nextstep" else None
        return Steps(observation, action, following, reward, terminated, truncated, used)

    def save(self) -> Mapping[str, Any]:
        """The state of all environments, for checkpoints. They must be such that Python can pickle them."""
        from gymnasium.utils import EzPickle

        kept = {name: getattr(self.environments, name) for name in _STATE if hasattr(self.environments, name)}
        for one in kept.get("envs", ()):
            if getattr(type(one.unwrapped), "__getstate__", None) is EzPickle.__getstate__:
                raise _not_saved(self._what(), "pickled, it is made anew and forgets where it was")
        try:
            whole = pickle.dumps(kept if "envs" in kept else vars(self.environments))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise _not_saved(self._what(), str(error)) from error
        what = np.frombuffer(self._what().encode(), np.uint8)
        return {"what": what, "environments": np.frombuffer(whole, np.uint8), "resetting": self._resetting}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take up a state that `save` returned."""
        saved = state["what"].tobytes().decode() if "what" in state else "another environment"
        if saved != self._what():
            raise CheckpointMismatchError(
                f"the checkpoint is one of {saved}, but this run is one of {self._what()}",
                fix="give another folder, or train in the environments that the checkpoint is of",
            )
        for name, value in pickle.loads(state["environments"].tobytes()).items():
            setattr(self.environments, name, value)
        self._resetting = np.array(state["resetting"], bool)

    def _what(self) -> str:
        """Which environments these are, and how many."""
        spec = getattr(self.environments, "spec", None)
        name = type(self.environments).__name__ if spec is None else spec.id
        return f"{self.count} of {name!r}, {self.mode}, seed {self.seed}"


def _actions(space: Any) -> Discrete | Continuous:
    """The kind of actions that a space has."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, spaces.Box):
        return Continuous(int(np.prod(space.shape)))
    raise DeclarationError(
        f"the actions of the environment are {space}; known are Discrete and Box",
        fix="wrap the environment so that an action is one of several, or a vector of numbers",
    )


def _not_saved(what: str, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what}: the state cannot be saved: {why}",
        fix="train without checkpoints, or in environments that Python can pickle, or with compiled ones",
    )


_STATE = ("envs", "_env_obs", "_rewards", "_terminations", "_truncations", "_autoreset_envs", "_observations")
"""What Gymnasium's vector environment of several others keeps."""
