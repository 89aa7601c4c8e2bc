"""What actions are drawn from: a distribution for each leading index, and the head of a network that makes it.

`sample` draws anew at each step of some dims, `mode` is the likeliest action, `log_prob` and `entropy` have one number
per leading index. Samples of `Normal` and `SquashedNormal` are reparametrised: gradients flow through them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from polyrhythm.language.functions import (
    TensorLike,
    argmax,
    as_tensor,
    bernoulli,
    categorical,
    clip,
    concat,
    exp,
    log,
    log_softmax,
    normal,
    one_hot,
    reshape,
    sigmoid,
    softplus,
    square,
    stack,
    tanh,
    uniform,
    where,
)
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.rl.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space


class Distribution(Protocol):
    """What actions are drawn from: one per leading index."""

    def sample(self, dims: Sequence[Dim], name: str | None = None) -> Tensor:
        """Actions, drawn anew at each step of the dims."""

    def mode(self) -> Tensor:
        """The likeliest actions."""

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

    def mode(self) -> Tensor:
        """The likeliest, the first of several."""
        return argmax(self.logits, -1)

    def log_prob(self, action: Tensor) -> Tensor:
        """The entry of the action, taken by a product with zeros and a one, which has a cheap gradient."""
        chosen = one_hot(action, int(self.logits.shape[-1]))
        return (log_softmax(self.logits, -1) * chosen).sum(-1)

    def entropy(self) -> Tensor:
        """`-sum(p log p)`."""
        logarithms = log_softmax(self.logits, -1)
        return -(exp(logarithms) * logarithms).sum(-1)


@dataclass(frozen=True)
class MultiCategorical:
    """Several independent choices; the logits of all stand side by side.

    >>> import polyrhythm as pr
    >>> pair = MultiCategorical(pr.zeros((5,)), (2, 3))
    >>> pr.evaluate(pair.entropy()).round(4), pr.evaluate(pair.mode()).tolist()
    (np.float32(1.7918), [0, 0])
    """

    logits: Tensor
    nvec: tuple[int, ...]

    @property
    def parts(self) -> list[Categorical]:
        """The choices one by one."""
        ends = np.cumsum(self.nvec).tolist()
        return [Categorical(self.logits.axes[..., end - n : end]) for n, end in zip(self.nvec, ends, strict=True)]

    def sample(self, dims: Sequence[Dim], name: str | None = None) -> Tensor:
        """Each by itself."""
        names = [None if name is None else f"{name} {k}" for k in range(len(self.nvec))]
        return stack([part.sample(dims, n) for part, n in zip(self.parts, names, strict=True)], -1)

    def mode(self) -> Tensor:
        """Each by itself."""
        return stack([part.mode() for part in self.parts], -1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Of independent choices: the sum."""
        return _total([part.log_prob(action.axes[..., k]) for k, part in enumerate(self.parts)])

    def entropy(self) -> Tensor:
        """The sum."""
        return _total([part.entropy() for part in self.parts])


@dataclass(frozen=True)
class Bernoulli:
    """A vector of independent bits.

    >>> import polyrhythm as pr
    >>> bits = Bernoulli(pr.constant([0.0, 2.0]))
    >>> pr.evaluate(bits.log_prob(pr.constant([1, 0]))).round(4), pr.evaluate(bits.mode()).tolist()
    (np.float32(-2.8201), [0, 1])
    """

    logits: Tensor

    def sample(self, dims: Sequence[Dim], name: str | None = None) -> Tensor:
        """Each bit by itself."""
        return bernoulli(sigmoid(self.logits), self.logits.shape, dims=dims, name=name).cast("int32")

    def mode(self) -> Tensor:
        """The bits that are likelier than not."""
        return (self.logits > 0.0).cast("int32")

    def log_prob(self, action: Tensor) -> Tensor:
        """`log sigmoid` of the logits, or of their negative."""
        return -softplus(self.logits * (1.0 - 2.0 * action.cast(self.logits.dtype))).sum(-1)

    def entropy(self) -> Tensor:
        """The sum over the bits."""
        return (softplus(self.logits) - self.logits * sigmoid(self.logits)).sum(-1)


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

    def mode(self) -> Tensor:
        """The mean."""
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """The sum over the vector."""
        scaled = (action - self.mean) * exp(-self.log_std)
        return (-0.5 * square(scaled) - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> Tensor:
        """It depends on the deviations only; one number per leading index."""
        return (self.log_std + 0.0 * self.mean + 0.5 * (1 + math.log(2 * math.pi))).sum(-1)


@dataclass(frozen=True)
class SquashedNormal:
    """A normal vector squashed by tanh to lie between `low` and `high` (Haarnoja et al., 2018).

    >>> import polyrhythm as pr
    >>> bell = SquashedNormal(pr.zeros((1,)), pr.zeros((1,)), -2.0, 2.0)
    >>> pr.evaluate(bell.log_prob(pr.constant([1.0]))).round(4), pr.evaluate(bell.mode()).tolist()
    (np.float32(-1.4753), [0.0])
    """

    mean: Tensor
    log_std: Tensor
    low: TensorLike = -1.0
    high: TensorLike = 1.0

    def sample(self, dims: Sequence[Dim], name: str | None = None) -> Tensor:
        """A squashed normal number each."""
        return self._squashed(self._plain.sample(dims, name))

    def sample_and_log_prob(self, dims: Sequence[Dim], name: str | None = None) -> tuple[Tensor, Tensor]:
        """Actions and how likely they are, without going back through tanh."""
        inner = self._plain.sample(dims, name)
        return self._squashed(inner), self._log_prob(inner)

    def mode(self) -> Tensor:
        """Where the mean goes, as agents are evaluated; the density may be higher elsewhere."""
        return self._squashed(self.mean)

    def log_prob(self, action: Tensor) -> Tensor:
        """By the number that tanh makes the action of; at the limits one close to them."""
        unit = clip((action - self._middle) / self._half, -1.0 + 1e-6, 1.0 - 1e-6)
        return self._log_prob(0.5 * (log(1.0 + unit) - log(1.0 - unit)))

    def entropy(self) -> Tensor:
        """Of the normal numbers: that of the squashed ones has no formula."""
        return self._plain.entropy()

    @property
    def _plain(self) -> Normal:
        return Normal(self.mean, self.log_std)

    @property
    def _half(self) -> Tensor:
        return 0.5 * (as_tensor(self.high) - as_tensor(self.low))

    @property
    def _middle(self) -> Tensor:
        return 0.5 * (as_tensor(self.high) + as_tensor(self.low))

    def _squashed(self, inner: Tensor) -> Tensor:
        return self._middle + self._half * tanh(inner)

    def _log_prob(self, inner: Tensor) -> Tensor:
        # log(1 - tanh(u)^2), in a form that is exact for large u.
        slope = 2.0 * (math.log(2.0) - inner - softplus(-2.0 * inner))
        return self._plain.log_prob(inner) - (slope + log(self._half)).sum(-1)


@dataclass(frozen=True)
class Uniform:
    """A vector of independent numbers, each spread evenly over `low <= u < high`.

    >>> import polyrhythm as pr
    >>> flat = Uniform(pr.zeros((2,)), pr.constant([2.0, 4.0]))
    >>> pr.evaluate(flat.log_prob(pr.ones((2,)))).round(4), pr.evaluate(flat.entropy()).round(4)
    (np.float32(-2.0794), np.float32(2.0794))
    """

    low: Tensor
    high: Tensor

    def sample(self, dims: Sequence[Dim], name: str | None = None) -> Tensor:
        """One number each."""
        shape = (self.low + self.high).shape
        return self.low + (self.high - self.low) * uniform(shape, dims=dims, name=name)

    def mode(self) -> Tensor:
        """The middle: all actions are equally likely."""
        return 0.5 * (self.low + self.high)

    def log_prob(self, action: Tensor) -> Tensor:
        """The sum over the vector; minus infinity outside."""
        inside = (action >= self.low) & (action < self.high)
        return where(inside, -log(self.high - self.low), -math.inf).sum(-1)

    def entropy(self) -> Tensor:
        """The logarithm of the volume."""
        return log(self.high - self.low).sum(-1)


def head_size(actions: Space) -> int:
    """How many outputs of a network a distribution over some actions needs; deviations of a Box are apart.

    >>> head_size(MultiDiscrete((2, 3))), head_size(Box((2, 2)))
    (5, 4)
    """
    if isinstance(actions, MultiDiscrete):
        return sum(actions.nvec)
    return actions.size if isinstance(actions, Box) else actions.n


def distribution(actions: Space, outputs: Tensor, log_std: TensorLike | None = None) -> Distribution:
    """The distribution that the outputs of a network stand for; actions of a Box are vectors, not clipped.

    >>> import polyrhythm as pr
    >>> type(distribution(Discrete(2), pr.zeros((3, 2)))).__name__
    'Categorical'
    """
    if isinstance(actions, Discrete):
        return Categorical(outputs)
    if isinstance(actions, MultiDiscrete):
        return MultiCategorical(outputs, actions.nvec)
    if isinstance(actions, MultiBinary):
        return Bernoulli(outputs)
    assert log_std is not None
    return Normal(outputs, as_tensor(log_std))


def flat_one_hot(indices: Tensor, nvec: Sequence[int]) -> Tensor:
    """Several integers as zeros and ones, side by side.

    >>> import polyrhythm as pr
    >>> pr.evaluate(flat_one_hot(pr.constant([1, 0]), (2, 3))).tolist()
    [0.0, 1.0, 1.0, 0.0, 0.0]
    """
    return concat([one_hot(indices.axes[..., k], n) for k, n in enumerate(nvec)], -1)


def flattened(x: Tensor, axes: int) -> Tensor:
    """The last axes as one.

    >>> import polyrhythm as pr
    >>> flattened(pr.ones((5, 2, 3)), 2).shape
    (5, 6)
    """
    leading = x.shape[: len(x.shape) - axes]
    size = math.prod(int(n) for n in x.shape[len(x.shape) - axes :])
    return x if axes == 1 else reshape(x, (*leading, size))


def _total(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
