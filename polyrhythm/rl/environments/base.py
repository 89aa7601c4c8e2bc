"""What an array environment is: ordinary functions of tensors, with an axis of environments, compiled.

An environment has a *state*, a dict of tensors whose first axis counts the environments. `reset` draws states,
`step` goes on from one by an action, `observe` says what an agent sees of it. They know nothing of episodes: `advance`
counts their steps, ends them, and begins the next at once, so that a program needs no branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from polyrhythm.language.functions import TensorLike, as_tensor, reshape, where, zeros
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.rl.spaces import Box, Space

State = dict[str, Tensor]
AGE = "age"
"""In the state of running environments: how many steps the current episode has had."""


class Environment(Protocol):
    """What an array environment is."""

    @property
    def observations(self) -> Box:
        """What an agent sees of one environment."""

    @property
    def actions(self) -> Space:
        """What an action is."""

    @property
    def limit(self) -> int:
        """After how many steps an episode is truncated."""

    def reset(self, count: int, dims: Sequence[Dim] = (), name: str | None = None) -> State:
        """So many fresh states, drawn anew at each step of the dims."""

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """The state after an action, the reward, and whether the episode is terminated."""

    def observe(self, state: State) -> Tensor:
        """What an agent sees."""


class Advance(NamedTuple):
    """What one step of running environments gives."""

    state: State
    """From where to go on: of the next episode, if one has ended."""
    following: Tensor
    """The observation that the action led to; at an end the final one."""
    reward: Tensor
    terminated: Tensor
    truncated: Tensor


def begin(environment: Environment, count: int, dims: Sequence[Dim] = (), name: str | None = None) -> State:
    """So many running environments, at the start of their first episodes.

    >>> import polyrhythm as pr
    >>> from polyrhythm.rl import CartPole
    >>> {key: value.shape for key, value in begin(CartPole(), 2).items()}
    {'physics': (2, 4), 'age': (2,)}
    """
    return {**environment.reset(count, dims, name), AGE: zeros((count,), "int32")}


def advance(environment: Environment, state: State, action: Tensor, fresh: State) -> Advance:
    """One step of running environments. Those whose episode ends go on from `fresh`, states that `reset` has drawn.

    >>> import polyrhythm as pr
    >>> from polyrhythm.rl import Synthetic
    >>> lamps = Synthetic((2,), length=3)
    >>> state = begin(lamps, 1) | {"age": pr.constant([2])}
    >>> done = advance(lamps, state, pr.constant([0]), lamps.reset(1))
    >>> pr.evaluate((done.truncated, done.state["age"]))
    (array([ True]), array([0], dtype=int32))
    """
    age = state[AGE] + 1
    after, reward, terminated = environment.step({k: v for k, v in state.items() if k != AGE}, action)
    truncated = age >= environment.limit
    ended = terminated | truncated
    going = {name: where(like(ended, value), fresh[name], value) for name, value in after.items()}
    going[AGE] = where(ended, 0, age)
    return Advance(going, environment.observe(after), reward, terminated, truncated)


def like(per_environment: TensorLike, value: Tensor) -> Tensor:
    """One number per environment, as an operand for something with more axes.

    >>> import polyrhythm as pr
    >>> like(pr.ones((2,)), pr.ones((2, 3, 4))).shape
    (2, 1, 1)
    """
    tensor = as_tensor(per_environment)
    return reshape(tensor, (*tensor.shape, *[1] * (len(value.shape) - len(tensor.shape))))
