"""Array environments: ordinary functions of tensors, with an axis of environments, compiled into the program.

An environment has a *state*, a dict of tensors whose first axis counts the environments. `reset` draws states,
`step` goes on from one by an action, `observe` says what an agent sees of it. They know nothing of episodes: `advance`
counts their steps, ends them, and begins the next at once, so that a program needs no branch.

The rules of CartPole and Pendulum are Gymnasium's, operation by operation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from polyrhythm.language.functions import (
    TensorLike,
    abs,
    as_tensor,
    clip,
    cos,
    ones,
    reshape,
    sin,
    stack,
    uniform,
    where,
    zeros,
)
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor

State = dict[str, Tensor]
AGE = "age"
"""In the state of running environments: how many steps the current episode has had."""


@dataclass(frozen=True)
class Discrete:
    """Actions that are one of so many."""

    count: int


@dataclass(frozen=True)
class Continuous:
    """Actions that are vectors."""

    size: int


class Environment(Protocol):
    """What an array environment is."""

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """The shape of what an agent sees of one environment."""

    @property
    def actions(self) -> Discrete | Continuous:
        """The kind of its actions."""

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
    >>> {key: value.shape for key, value in begin(CartPole(), 2).items()}
    {'physics': (2, 4), 'age': (2,)}
    """
    return {**environment.reset(count, dims, name), AGE: zeros((count,), "int32")}


def advance(environment: Environment, state: State, action: Tensor, fresh: State) -> Advance:
    """One step of running environments. Those whose episode ends go on from `fresh`, states that `reset` has drawn.

    >>> import polyrhythm as pr
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
    going = {name: where(_like(ended, value), fresh[name], value) for name, value in after.items()}
    going[AGE] = where(ended, 0, age)
    return Advance(going, environment.observe(after), reward, terminated, truncated)


@dataclass(frozen=True)
class CartPole:
    """Gymnasium's CartPole-v1: balance a pole on a cart by pushing it left (0) or right (1).

    >>> import polyrhythm as pr
    >>> cart = CartPole()
    >>> state, reward, terminated = cart.step({"physics": pr.zeros((1, 4))}, pr.constant([1]))
    >>> pr.evaluate(cart.observe(state)).round(4)
    array([[ 0.    ,  0.1951,  0.    , -0.2927]], dtype=float32)
    """

    limit: int = 500
    dtype: str = "float32"
    observation_shape = (4,)
    actions = Discrete(2)

    def reset(self, count: int, dims: Sequence[Dim] = (), name: str | None = None) -> State:
        """Positions, angles and their speeds, all close to zero."""
        return {"physics": uniform((count, 4), -0.05, 0.05, dims=dims, dtype=self.dtype, name=name)}

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """Euler's method with steps of 0.02 s; ended beyond 2.4 m or 12 degrees."""
        x, speed, angle, spin = (state["physics"].axes[:, k] for k in range(4))
        force = where(action == 1, 10.0, -10.0).cast(self.dtype)
        total, pole = 0.1 + 1.0, 0.1 * 0.5
        cosine, sine = cos(angle), sin(angle)
        push = (force + pole * (spin * spin) * sine) / total
        turning = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * (cosine * cosine) / total))
        pulling = push - pole * turning * cosine / total
        parts = [x + 0.02 * speed, speed + 0.02 * pulling, angle + 0.02 * spin, spin + 0.02 * turning]
        terminated = (abs(parts[0]) > 2.4) | (abs(parts[2]) > 12 * 2 * math.pi / 360)
        return {"physics": stack(parts, 1)}, ones(x.shape, self.dtype), terminated

    def observe(self, state: State) -> Tensor:
        """All there is."""
        return state["physics"]


@dataclass(frozen=True)
class Pendulum:
    """Gymnasium's Pendulum-v1: swing a pendulum up, and keep it there, by a torque from -2 to 2. It never terminates.

    >>> import polyrhythm as pr
    >>> pendulum = Pendulum()
    >>> state, reward, _ = pendulum.step({"physics": pr.constant([[0.0, 1.0]])}, pr.constant([[9.0]]))
    >>> pr.evaluate((pendulum.observe(state), reward))[1].round(4).tolist()
    [-0.10400000214576721]
    """

    limit: int = 200
    dtype: str = "float32"
    observation_shape = (3,)
    actions = Continuous(1)

    def reset(self, count: int, dims: Sequence[Dim] = (), name: str | None = None) -> State:
        """Any angle, and a speed of at most 1."""
        drawn = uniform((count, 2), -1.0, 1.0, dims=dims, dtype=self.dtype, name=name)
        return {"physics": stack([math.pi * drawn.axes[:, 0], drawn.axes[:, 1]], 1)}

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """The cost is of the angle from upright, of the speed, and of the torque."""
        angle, speed = state["physics"].axes[:, 0], state["physics"].axes[:, 1]
        torque = clip(action.axes[:, 0], -2.0, 2.0)
        upright = (angle + math.pi) % (2 * math.pi) - math.pi
        cost = upright * upright + 0.1 * (speed * speed) + 0.001 * (torque * torque)
        faster = clip(speed + (15.0 * sin(angle) + 3.0 * torque) * 0.05, -8.0, 8.0)
        return {"physics": stack([angle + faster * 0.05, faster], 1)}, -cost, zeros(angle.shape, "bool")

    def observe(self, state: State) -> Tensor:
        """The angle as a point on the circle, and the speed."""
        angle, speed = state["physics"].axes[:, 0], state["physics"].axes[:, 1]
        return stack([cos(angle), sin(angle), speed], 1)


@dataclass(frozen=True)
class Synthetic:
    """Observations of any shape, episodes of any length, and next to no work: to measure everything else.

    What is seen moves a little at every step, by the action; the reward is how bright it is.

    >>> import polyrhythm as pr
    >>> lamps = Synthetic((8, 8, 3), length=10, count=4)
    >>> lamps.observe(lamps.reset(5)).shape
    (5, 8, 8, 3)
    """

    shape: tuple[int, ...] = (4,)
    length: int = 100
    count: int = 2

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """As asked for."""
        return self.shape

    @property
    def actions(self) -> Discrete:
        """As many as asked for."""
        return Discrete(self.count)

    @property
    def limit(self) -> int:
        """Episodes end after their length only."""
        return self.length

    def reset(self, count: int, dims: Sequence[Dim] = (), name: str | None = None) -> State:
        """Lights between -1 and 1."""
        return {"lights": uniform((count, *self.shape), -1.0, 1.0, dims=dims, name=name)}

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """All lights decay, and brighten by the action."""
        lights = state["lights"]
        push = (action.cast("float32") + 1.0) * (0.1 / self.count)
        after = 0.9 * lights + _like(push, lights)
        flat = reshape(after, (lights.shape[0], math.prod(self.shape)))
        return {"lights": after}, flat.mean(1), zeros(action.shape, "bool")

    def observe(self, state: State) -> Tensor:
        """All there is."""
        return state["lights"]


def _like(per_environment: TensorLike, value: Tensor) -> Tensor:
    """One number per environment, as an operand for something with more axes."""
    tensor = as_tensor(per_environment)
    return reshape(tensor, (*tensor.shape, *[1] * (len(value.shape) - len(tensor.shape))))
