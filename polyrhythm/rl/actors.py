"""Actors of the off-policy algorithms for continuous actions: squashed normal distributions, and single actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polyrhythm.errors import DeclarationError
from polyrhythm.language.functions import clip, constant, relu, tanh, uniform
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.nn.module import Module
from polyrhythm.rl.distributions import Categorical, SquashedNormal
from polyrhythm.rl.networks import Encoder, mlp
from polyrhythm.rl.spaces import Box, Discrete, Space, Spaces

LOG_STD = (-5.0, 2.0)
"""Between these lie the logarithms of deviations."""


class Limits:
    """Where the actions of a Box lie, as tensors."""

    def __init__(self, actions: Space) -> None:
        if not isinstance(actions, Box) or not actions.bounded:
            raise DeclarationError(
                f"the actions are {actions}, not numbers between limits",
                fix="give the space of actions limits, or use rl.ppo",
            )
        self.size = actions.size
        self.low, self.high = (
            np.broadcast_to(np.asarray(side, np.float32), (actions.size,)) for side in (actions.low, actions.high)
        )

    @property
    def half(self) -> Tensor:
        """Half the width."""
        return constant(np.ascontiguousarray((self.high - self.low) / 2))

    @property
    def middle(self) -> Tensor:
        """The point between."""
        return constant(np.ascontiguousarray((self.high + self.low) / 2))

    def clipped(self, action: Tensor) -> Tensor:
        """Actions inside the limits."""
        return self.middle + self.half * clip((action - self.middle) / self.half, -1.0, 1.0)

    def random(self, count: int, dims: Sequence[Dim]) -> Tensor:
        """Actions spread evenly."""
        return self.middle + self.half * uniform((count, self.size), -1.0, 1.0, dims=dims, name="random actions")


class StochasticActor(Module):
    """A squashed normal distribution of continuous actions, or a categorical one of several choices.

    >>> import polyrhythm as pr
    >>> actor = StochasticActor((4,), Box((2,), -1.0, 3.0), (8,))
    >>> pr.evaluate(actor(pr.zeros((5, 4))).mode()).shape
    (5, 2)
    """

    def __init__(
        self,
        observations: Spaces,
        actions: Space,
        hidden: Sequence[int] = (256, 256),
        rng: np.random.Generator | None = None,
    ) -> None:
        self.actions = actions
        self.limits = None if isinstance(actions, Discrete) else Limits(actions)
        self.encoder = Encoder(observations, rng)
        outputs = actions.n if isinstance(actions, Discrete) else 2 * actions.size  # type: ignore[union-attr]
        self.network = mlp([self.encoder.size, *hidden, outputs], relu, 0.01, rng)

    def __call__(self, observation: Any) -> Categorical | SquashedNormal:
        """The distribution of actions."""
        outputs = self.network(self.encoder(observation))
        if self.limits is None:
            return Categorical(outputs)
        mean, log_std = outputs.axes[..., : self.limits.size], outputs.axes[..., self.limits.size :]
        low, high = LOG_STD
        spread = low + 0.5 * (high - low) * (tanh(log_std) + 1.0)
        middle, half = self.limits.middle, self.limits.half
        return SquashedNormal(mean, spread, middle - half, middle + half)


class ActorAndCritics(Module):
    """What the off-policy algorithms for continuous actions train."""

    actor: Any
    critics: Any

    @property
    def actions(self) -> Space:
        """What an action is."""
        return self.actor.actions


class DeterministicActor(Module):
    """One continuous action for what is seen.

    >>> import polyrhythm as pr
    >>> actor = DeterministicActor((4,), Box((2,), -1.0, 3.0), (8,))
    >>> pr.evaluate(actor(pr.zeros((5, 4)))).shape
    (5, 2)
    """

    def __init__(
        self,
        observations: Spaces,
        actions: Space,
        hidden: Sequence[int] = (256, 256),
        rng: np.random.Generator | None = None,
    ) -> None:
        self.actions, self.limits = actions, Limits(actions)
        self.encoder = Encoder(observations, rng)
        self.network = mlp([self.encoder.size, *hidden, self.limits.size], relu, 0.01, rng)

    def __call__(self, observation: Any) -> Tensor:
        """The action."""
        return self.limits.middle + self.limits.half * tanh(self.network(self.encoder(observation)))
