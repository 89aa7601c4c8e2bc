"""Gymnasium's classic control problems, operation by operation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from polyrhythm.language.functions import abs, clip, cos, ones, sin, stack, uniform, where, zeros
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.rl.environments.base import State
from polyrhythm.rl.spaces import Box, Discrete


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
    observations = Box((4,))
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
    observations = Box((3,), (-1.0, -1.0, -8.0), (1.0, 1.0, 8.0))
    actions = Box((1,), -2.0, 2.0)

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
class MountainCar:
    """Gymnasium's MountainCar-v0: rock a weak car out of a valley, pushing left (0), not at all (1) or right (2).

    >>> import polyrhythm as pr
    >>> state, reward, terminated = MountainCar().step({"physics": pr.constant([[0.49, 0.07]])}, pr.constant([2]))
    >>> pr.evaluate((reward, terminated))
    (array([-1.], dtype=float32), array([ True]))
    """

    limit: int = 200
    dtype: str = "float32"
    observations = Box((2,), (-1.2, -0.07), (0.6, 0.07))
    actions = Discrete(3)

    def reset(self, count: int, dims: Sequence[Dim] = (), name: str | None = None) -> State:
        """At rest, near the bottom."""
        return {"physics": _parked(count, dims, self.dtype, name)}

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """Every step costs 1; ended at the flag, 0.5."""
        physics = _driven(state["physics"], (action.cast(self.dtype) - 1.0) * 0.001)
        terminated = (physics.axes[:, 0] >= 0.5) & (physics.axes[:, 1] >= 0.0)
        return {"physics": physics}, -ones(action.shape, self.dtype), terminated

    def observe(self, state: State) -> Tensor:
        """Position and speed."""
        return state["physics"]


@dataclass(frozen=True)
class MountainCarContinuous:
    """Gymnasium's MountainCarContinuous-v0: the same with a force from -1 to 1, whose square costs.

    >>> import polyrhythm as pr
    >>> car = MountainCarContinuous()
    >>> _, reward, _ = car.step({"physics": pr.constant([[0.44, 0.07]])}, pr.constant([[1.0]]))
    >>> pr.evaluate(reward).round(2).tolist()
    [99.9000015258789]
    """

    limit: int = 999
    dtype: str = "float32"
    observations = Box((2,), (-1.2, -0.07), (0.6, 0.07))
    actions = Box((1,), -1.0, 1.0)

    def reset(self, count: int, dims: Sequence[Dim] = (), name: str | None = None) -> State:
        """At rest, near the bottom."""
        return {"physics": _parked(count, dims, self.dtype, name)}

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """100 for the flag, 0.45, where the episode ends."""
        push = action.axes[:, 0]
        physics = _driven(state["physics"], clip(push, -1.0, 1.0) * 0.0015)
        terminated = (physics.axes[:, 0] >= 0.45) & (physics.axes[:, 1] >= 0.0)
        return {"physics": physics}, where(terminated, 100.0, 0.0) - 0.1 * (push * push), terminated

    def observe(self, state: State) -> Tensor:
        """Position and speed."""
        return state["physics"]


@dataclass(frozen=True)
class Acrobot:
    """Gymnasium's Acrobot-v1: swing the lower of two links above the bar by a torque of -1, 0 or 1 between them.

    >>> import polyrhythm as pr
    >>> state, reward, terminated = Acrobot().step({"physics": pr.zeros((1, 4))}, pr.constant([2]))
    >>> pr.evaluate((reward, terminated))
    (array([-1.], dtype=float32), array([False]))
    """

    limit: int = 500
    dtype: str = "float32"
    observations = Box(
        (6,), (-1.0, -1.0, -1.0, -1.0, -4 * math.pi, -9 * math.pi), (1.0, 1.0, 1.0, 1.0, 4 * math.pi, 9 * math.pi)
    )
    actions = Discrete(3)

    def reset(self, count: int, dims: Sequence[Dim] = (), name: str | None = None) -> State:
        """Hanging down, all angles and speeds close to zero."""
        return {"physics": uniform((count, 4), -0.1, 0.1, dims=dims, dtype=self.dtype, name=name)}

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """One step of Runge and Kutta of 0.2 s. Every step costs 1, but for the last."""
        torque, y, h = action.cast(self.dtype) - 1.0, state["physics"], 0.2
        k1 = _acrobot_slope(y, torque)
        k2 = _acrobot_slope(y + (h / 2) * k1, torque)
        k3 = _acrobot_slope(y + (h / 2) * k2, torque)
        k4 = _acrobot_slope(y + h * k3, torque)
        y = y + (h / 6) * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
        first, second = _wrapped(y.axes[:, 0]), _wrapped(y.axes[:, 1])
        speeds = clip(y.axes[:, 2], -4 * math.pi, 4 * math.pi), clip(y.axes[:, 3], -9 * math.pi, 9 * math.pi)
        terminated = -cos(first) - cos(second + first) > 1.0
        reward = where(terminated, 0.0, -1.0).cast(self.dtype)
        return {"physics": stack([first, second, *speeds], 1)}, reward, terminated

    def observe(self, state: State) -> Tensor:
        """The angles as points on circles, and the speeds."""
        first, second, *speeds = (state["physics"].axes[:, k] for k in range(4))
        return stack([cos(first), sin(first), cos(second), sin(second), *speeds], 1)


def _parked(count: int, dims: Sequence[Dim], dtype: str, name: str | None) -> Tensor:
    place = uniform((count,), -0.6, -0.4, dims=dims, dtype=dtype, name=name)
    return stack([place, 0.0 * place], 1)


def _driven(physics: Tensor, push: Tensor) -> Tensor:
    """A car after a step in the valley; the wall on the left stops it."""
    place, speed = physics.axes[:, 0], physics.axes[:, 1]
    speed = clip(speed + (push + cos(3.0 * place) * -0.0025), -0.07, 0.07)
    place = clip(place + speed, -1.2, 0.6)
    return stack([place, where((place <= -1.2) & (speed < 0.0), 0.0, speed)], 1)


def _acrobot_slope(y: Tensor, torque: Tensor) -> Tensor:
    """How the angles and speeds change: both links of length and mass 1, centres in their middles, inertia 1."""
    first, second, spin1, spin2 = (y.axes[:, k] for k in range(4))
    d1 = 0.25 + (1.25 + cos(second)) + 2.0
    d2 = 0.25 + 0.5 * cos(second) + 1.0
    phi2 = 0.5 * 9.8 * cos(first + second - math.pi / 2)
    phi1 = -0.5 * spin2 * spin2 * sin(second) - spin2 * spin1 * sin(second)
    phi1 = phi1 + 1.5 * 9.8 * cos(first - math.pi / 2) + phi2
    faster2 = (torque + d2 / d1 * phi1 - 0.5 * spin1 * spin1 * sin(second) - phi2) / (1.25 - d2 * d2 / d1)
    return stack([spin1, spin2, -(d2 * faster2 + phi1) / d1, faster2], 1)


def _wrapped(angle: Tensor) -> Tensor:
    """An angle from -pi to pi; a step turns it less than once around."""
    angle = where(angle > math.pi, angle - 2 * math.pi, angle)
    return where(angle < -math.pi, angle + 2 * math.pi, angle)
