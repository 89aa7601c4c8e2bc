"""Policies: networks that say how to act and what a state is worth, and the distributions actions are drawn from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from polyrhythm.language.functions import (
    as_tensor,
    categorical,
    exp,
    log_softmax,
    normal,
    one_hot,
    reshape,
    square,
    tanh,
)
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.nn.layers import MLP
from polyrhythm.nn.module import Module, Weight
from polyrhythm.rl.environments import Continuous, Discrete


class Distribution(Protocol):
    """What actions are drawn from: one per leading index."""

    def sample(self, dims: Sequence[Dim], name: str | None = None) -> Tensor:
        """Actions, drawn anew at each step of the dims."""

    def log_prob(self, action: Tensor) -> Tensor:
        """The logarithm of how likely an action is."""

    def entropy(self) -> Tensor:
        """How open the choice is."""


@dataclass(frozen=True)
class Categorical:
    """One of several actions.

    >>> import polyrhythm as pr
    >>> coin = Categorical(pr.zeros((2,)))
    >>> pr.evaluate(coin.log_prob(pr.constant(1))).round(4), pr.evaluate(coin.entropy()).round(4)
    (np.float32(-0.6931), np.float32(0.6931))
    """

    logits: Tensor

    def sample(self, dims: Sequence[Dim], name: str | None = None) -> Tensor:
        """By one uniform number each."""
        return categorical(self.logits, dims=dims, name=name)

    def log_prob(self, action: Tensor) -> Tensor:
        """The entry of the action, taken by a product with zeros and a one, which has a cheap gradient."""
        chosen = one_hot(action, int(self.logits.shape[-1]))
        return (log_softmax(self.logits, -1) * chosen).sum(-1)

    def entropy(self) -> Tensor:
        """`-sum(p log p)`."""
        logarithms = log_softmax(self.logits, -1)
        return -(exp(logarithms) * logarithms).sum(-1)


@dataclass(frozen=True)
class Normal:
    """A vector of independent normal numbers.

    >>> import polyrhythm as pr
    >>> bell = Normal(pr.zeros((2,)), pr.zeros((2,)))
    >>> pr.evaluate(bell.log_prob(pr.zeros((2,)))).round(4), pr.evaluate(bell.entropy()).round(4)
    (np.float32(-1.8379), np.float32(2.8379))
    """

    mean: Tensor
    log_std: Tensor

    def sample(self, dims: Sequence[Dim], name: str | None = None) -> Tensor:
        """The mean and some noise."""
        return self.mean + exp(self.log_std) * normal(self.mean.shape, dims=dims, name=name)

    def log_prob(self, action: Tensor) -> Tensor:
        """The sum over the vector."""
        scaled = (action - self.mean) * exp(-self.log_std)
        return (-0.5 * square(scaled) - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> Tensor:
        """It depends on the deviations only; one number per leading index."""
        return (self.log_std + 0.0 * self.mean + 0.5 * (1 + math.log(2 * math.pi))).sum(-1)


class ActorCritic(Module):
    """Two networks of one shape: one for the policy, one for the value.

    Weights are orthogonal, as PPO is commonly begun: the last layer of the policy small, so that at first all actions
    are about as likely.

    >>> import polyrhythm as pr
    >>> model = ActorCritic((4,), Discrete(2), (8,))
    >>> policy, value = model(pr.zeros((5, 4)))
    >>> policy.logits.shape, value.shape
    ((5, 2), (5,))
    """

    def __init__(
        self,
        observation_shape: Sequence[int],
        actions: Discrete | Continuous,
        hidden: Sequence[int] = (64, 64),
        rng: np.random.Generator | None = None,
    ) -> None:
        self.size, self.discrete = math.prod(observation_shape), isinstance(actions, Discrete)
        self.axes = len(observation_shape)
        outputs = actions.count if isinstance(actions, Discrete) else actions.size
        self.policy = _network([self.size, *hidden, outputs], 0.01, rng)
        self.value = _network([self.size, *hidden, 1], 1.0, rng)
        if not self.discrete:
            self.log_std: Weight = np.zeros(outputs, np.float32)

    def __call__(self, observation: Tensor) -> tuple[Distribution, Tensor]:
        """The distribution of actions and the value, for each leading index of the observations."""
        seen = self._flat(observation)
        outputs = self.policy(seen)
        policy: Distribution = Categorical(outputs) if self.discrete else Normal(outputs, as_tensor(self.log_std))
        return policy, self.value(seen).axes[..., 0]

    def get_value(self, observation: Tensor) -> Tensor:
        """The value alone."""
        return self.value(self._flat(observation)).axes[..., 0]

    def _flat(self, observation: Tensor) -> Tensor:
        if self.axes == 1:
            return observation
        leading = observation.shape[: len(observation.shape) - self.axes]
        return reshape(observation, (*leading, self.size))


def _network(sizes: Sequence[int], last: float, rng: np.random.Generator | None) -> MLP:
    network = MLP(sizes, tanh, rng=rng)
    for layer in network.layers:
        gain = last if layer is network.layers[-1] else math.sqrt(2)
        layer.weight = orthogonal(tuple(layer.weight.shape), gain, rng)
        layer.bias = np.zeros(layer.weight.shape[0], np.float32)
    return network


def orthogonal(shape: tuple[int, int], gain: float, rng: np.random.Generator | None = None) -> np.ndarray:
    """A matrix with orthogonal rows, or columns if it has more rows (Saxe et al., 2014), times a number.

    >>> w = orthogonal((2, 3), 2.0)
    >>> bool(np.allclose(w @ w.T, 4 * np.eye(2), atol=1e-5))
    True
    """
    drawn = (rng or np.random.default_rng()).normal(size=(max(shape), min(shape)))
    q, r = np.linalg.qr(drawn)
    q *= np.sign(np.diag(r))
    return (gain * (q if shape[0] >= shape[1] else q.T)).astype(np.float32)
