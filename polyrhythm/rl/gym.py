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

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from polyrhythm.errors import DeclarationError, HostError, UnsupportedError
from polyrhythm.language.index import Dim
from polyrhythm.language.inputs import host
from polyrhythm.language.tensor import Tensor
from polyrhythm.optim.states import leaves, mapped
from polyrhythm.rl.running import Steps, carried
from polyrhythm.rl.spaces import Box, Space, from_gymnasium
from polyrhythm.runtime.errors import CheckpointMismatchError


class Gym:
    """A vector environment of Gymnasium, seeded once at the start of every run; a single one counts as a vector of one.

    >>> import gymnasium, polyrhythm as pr
    >>> carts = Gym(gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync"), seed=1)
    >>> carts.observations.shape, carts.actions
    ((4,), Discrete(n=2))
    >>> i, I = pr.dim("i")
    >>> t, T = pr.dim("t")
    >>> steps = carts.run(i, t, lambda seen: (seen.axes[:, 2] > 0).cast("int32"))
    >>> pr.compile(steps.reward, backend="numpy")(bounds={I: 1, T: 3})[0].tolist()
    [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
    """

    def __init__(self, environments: Any, seed: int = 0, effect: str = "environments") -> None:
        if not hasattr(environments, "single_observation_space"):
            environments = _vector_of_one(environments)
        self.environments, self.seed, self.effect = environments, seed, effect
        mode = environments.metadata.get("autoreset_mode")
        self.mode = str(getattr(mode, "value", mode) or "NextStep").replace("_", "").lower()
        if self.mode not in ("nextstep", "samestep", "disabled"):
            raise DeclarationError(
                f"the vector environment resets itself in the unknown way {mode!r}",
                fix="make it with one of gymnasium.vector.AutoresetMode",
            )
        self.observations = mapped(_narrow, from_gymnasium(environments.single_observation_space))
        self.actions = _actions(environments.single_action_space)
        self.count = int(environments.num_envs)
        self._starts = mapped(
            np.asarray, _each(environments.single_observation_space, lambda s: getattr(s, "start", 0))
        )
        self._axes = _each(environments.single_observation_space, lambda space: len(space.shape))
        self._resetting = np.zeros(self.count, bool)
        spec = getattr(environments, "spec", None)
        self.limit = int(getattr(spec, "max_episode_steps", None) or 10_000)
        """The most steps of an episode, where Gymnasium knows it."""

    def reset(self) -> list[np.ndarray]:
        """Begin all environments, seeded; what is seen first, the parts of a dict or tuple one by one."""
        observation, _ = self.environments.reset(seed=self.seed)
        self._resetting = np.zeros(self.count, bool)
        return self._parts(observation)

    def step(self, action: np.ndarray) -> list[np.ndarray]:
        """One step of all: what to act on next, what the action led to, reward, terminated, truncated, valid."""
        stepped = self.environments.step(self._action(np.asarray(action)))
        observation, reward, terminated, truncated, infos = stepped
        following = self._parts(observation)
        ended, valid = np.asarray(terminated) | np.asarray(truncated), ~self._resetting
        reward = np.asarray(reward, np.float32)
        if not np.isfinite(reward).all():  # it would soon be in every weight
            k = int(np.argmin(np.isfinite(reward)))
            raise HostError(f"environment {k} gave the reward {reward[k]}", fix="let rewards be finite numbers")
        seen = following
        if self.mode == "samestep" and ended.any():
            following = [part.copy() for part in following]
            for number in np.flatnonzero(ended):
                for part, final in zip(following, self._parts(infos["final_obs"][number]), strict=True):
                    part[number] = final
        elif self.mode == "disabled" and ended.any():
            seen = self._parts(self.environments.reset(options={"reset_mask": ended})[0])
        elif self.mode == "nextstep":
            self._resetting = ended
        return [*seen, *following, reward, terminated, truncated, valid]

    def run(self, i: Dim, t: Dim, act: Callable[[Any], Tensor]) -> Steps:
        """Act in all of them: episodes go on from one iteration to the next."""
        spaces, flag = leaves(self.observations), (self.count,)
        shapes = [(self.count, *space.shape) for space in spaces]
        kinds: list[Any] = [np.dtype(space.dtype) for space in spaces]
        first = host(self.reset, [], shapes, kinds, (), effect=self.effect)
        seen = [carried(i, t, part) for part in first]
        action = act(self._tree(seen))
        found = host(
            self.step,
            [action],
            [*shapes, *shapes, *[flag] * 4],
            [*kinds, *kinds, "float32", *["bool"] * 3],
            (i, t),
            effect=self.effect,
        )
        for part, after in zip(seen, found, strict=False):
            part[i, t + 1] = after
        following = self._tree(found[len(seen) : 2 * len(seen)])
        reward, terminated, truncated, valid = found[2 * len(seen) :]
        used = valid if self.mode == "nextstep" else None
        return Steps(self._tree(seen), action, following, reward, terminated, truncated, used)

    def _action(self, action: np.ndarray) -> np.ndarray:
        """An action as the environments take it: numbers of a Box within its limits, choices from its first."""
        space = self.environments.single_action_space
        action = action.reshape(self.count, *space.shape)
        if isinstance(self.actions, Box):
            action = np.clip(action, space.low, space.high)
        else:
            action = action + getattr(space, "start", 0)
        return action.astype(space.dtype)

    def _parts(self, observation: Any) -> list[np.ndarray]:
        """The leaves of an observation, as arrays that are not overwritten; choices count from 0."""
        parts = mapped(_own, self.observations, self._starts, self._axes, observation)
        return leaves(parts)

    def _tree(self, parts: Sequence[Any]) -> Any:
        """Leaves as the dict or tuple that they are of."""
        rest = iter(parts)
        return mapped(lambda space: next(rest), self.observations)

    def save(self) -> Mapping[str, Any]:
        """The state of all environments, for checkpoints. They must be such that Python can pickle them."""
        from gymnasium.utils import EzPickle

        kept = {name: getattr(self.environments, name) for name in _STATE if hasattr(self.environments, name)}
        for one in kept.get("envs", ()):
            made_anew = getattr(type(one.unwrapped), "__getstate__", None) is EzPickle.__getstate__
            if made_anew and not _is_mujoco(one.unwrapped):
                raise _not_saved(self._what(), "pickled, it is made anew and forgets where it was")
        try:
            whole = _pickled(kept if "envs" in kept else vars(self.environments))
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


def _narrow(space: Space) -> Space:
    """Numbers of 64 bits, as simulators give them, are seen with 32."""
    return replace(space, dtype="float32") if isinstance(space, Box) and space.dtype == "float64" else space


def _actions(space: Any) -> Space:
    """What an action is; one of several parts is refused."""
    actions = from_gymnasium(space)
    if isinstance(actions, (dict, tuple)):
        raise DeclarationError(
            f"the actions of the environment are {space}; known are Box, Discrete, MultiDiscrete and MultiBinary",
            fix="wrap the environment so that an action is one of several, several choices, bits, or numbers",
        )
    return actions


def _each(space: Any, what: Callable[[Any], Any]) -> Any:
    """Something of each part of a space of Gymnasium's."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return {name: _each(part, what) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_each(part, what) for part in space.spaces)
    return what(space)


def _own(space: Space, start: np.ndarray, axes: int, part: Any) -> np.ndarray:
    """A part of an observation as an array that is not overwritten: choices from 0, those of several axes a vector."""
    found = np.array(part - start if start.any() else part, space.dtype)
    return found.reshape((*found.shape[: found.ndim - axes], *space.shape))


def _vector_of_one(environment: Any) -> Any:
    """One environment, not of a vector, as a vector of one."""
    if not hasattr(environment, "observation_space"):
        raise DeclarationError(
            f"{type(environment).__name__} is not an environment of Gymnasium",
            fix='give gymnasium.make_vec("CartPole-v1", 8), or gymnasium.make("CartPole-v1")',
        )
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    return SyncVectorEnv([lambda: environment], autoreset_mode=AutoresetMode.SAME_STEP)


def _is_mujoco(environment: Any) -> bool:
    """Whether an environment is a simulation of MuJoCo, whose model and data can be pickled whole."""
    return type(environment).__module__.startswith("gymnasium.envs.mujoco") and hasattr(environment, "data")


def _pickled(state: Any) -> bytes:
    """A pickle in which MuJoCo's environments are where they were. Their own begins them anew."""

    class Pickler(pickle.Pickler):
        """Takes all attributes but the window."""

        def reducer_override(self, environment: Any) -> Any:
            if not _is_mujoco(environment):
                return NotImplemented
            kept = vars(environment) | {"mujoco_renderer": None}
            return object.__new__, (type(environment),), kept, None, None, _take_up

    stream = io.BytesIO()
    Pickler(stream).dump(state)
    return stream.getvalue()


def _take_up(environment: Any, kept: Mapping[str, Any]) -> None:
    vars(environment).update(kept)


def _not_saved(what: str, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what}: the state cannot be saved: {why}",
        fix="train without checkpoints, or in environments that Python can pickle, or with compiled ones",
    )


_STATE = ("envs", "_env_obs", "_rewards", "_terminations", "_truncations", "_autoreset_envs", "_observations")
"""What Gymnasium's vector environment of several others keeps."""
