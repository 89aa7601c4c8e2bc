"""Networks of action values, and the slow copies of weights that off-policy algorithms learn towards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polyrhythm import optim
from polyrhythm.errors import DeclarationError
from polyrhythm.language.functions import (
    argmax,
    concat,
    constant,
    relu,
    reshape,
    softmax,
    square,
    value,
    where,
)
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.nn.module import Module
from polyrhythm.optim.states import bound_of, mapped
from polyrhythm.rl.distributions import flattened
from polyrhythm.rl.networks import Encoder, mlp
from polyrhythm.rl.spaces import Box, Discrete, Space, Spaces
from polyrhythm.rl.training import mean_of


class QNetwork(Module):
    """The value of each of several actions; with `atoms`, so many numbers for each: a distribution of returns.

    The atoms are quantiles, or, with a `support`, logits of as many returns from the least to the greatest.
    `dueling` has two heads: the value of the state, and the advantage of each action over others (Wang et al., 2016).

    >>> import polyrhythm as pr
    >>> from polyrhythm import rl
    >>> QNetwork((4,), rl.Discrete(2), (8,), dueling=True)(pr.zeros((5, 4))).shape
    (5, 2)
    """

    def __init__(
        self,
        observations: Spaces,
        actions: Space,
        hidden: Sequence[int] = (120, 84),
        rng: np.random.Generator | None = None,
        *,
        dueling: bool = False,
        atoms: int | None = None,
        support: tuple[float, float] | None = None,
    ) -> None:
        if not isinstance(actions, Discrete):
            raise DeclarationError(
                f"a network of the value of each action needs one choice of several, not {actions}",
                fix="use rl.sac or rl.td3 with continuous actions, or wrap the environment",
            )
        self.actions, self.atoms, self.dueling, self.support = actions, atoms, dueling, support
        self.encoder = Encoder(observations, rng)
        sizes, each = [self.encoder.size, *hidden], atoms or 1
        self.advantage = mlp([*sizes, actions.n * each], relu, 1.0, rng)
        if dueling:
            self.value = mlp([*sizes, each], relu, 1.0, rng)

    def __call__(self, observation: Any) -> Tensor:
        """A number for each action, or atoms for each, for each leading index."""
        features = self.encoder(observation)
        q = self._by_action(self.advantage(features), self.actions.n)
        if self.dueling:
            axis = -1 if self.atoms is None else -2
            q = self._by_action(self.value(features), 1) + q - q.mean(axis, keepdims=True)
        return q

    def values(self, observation: Any) -> Tensor:
        """The value of each action: of a distribution its mean."""
        found = self(observation)
        if self.atoms is None:
            return found
        return found.mean(-1) if self.support is None else (softmax(found, -1) * constant(self.returns)).sum(-1)

    @property
    def returns(self) -> np.ndarray:
        """The returns that atoms with a support stand for."""
        if self.support is None or self.atoms is None or self.atoms < 2 or self.support[0] >= self.support[1]:
            raise DeclarationError(
                f"a categorical distribution of returns needs atoms from a least to a greatest, not {self.support}",
                fix="make the network by rl.QNetwork(..., atoms=51, support=(0.0, 100.0))",
            )
        return np.linspace(*self.support, self.atoms).astype(np.float32)

    def act(self, observation: Any, along: Any = None) -> Tensor:
        """The best action."""
        return argmax(self.values(observation), -1)

    def _by_action(self, x: Tensor, count: int) -> Tensor:
        return x if self.atoms is None else reshape(x, (*x.shape[:-1], count, self.atoms))


class Critics(Module):
    """Several networks of the value of an observation and a continuous action, or of each of several actions.

    >>> import polyrhythm as pr
    >>> from polyrhythm import rl
    >>> [q.shape for q in Critics((4,), rl.Box((2,)), (8,))(pr.zeros((5, 4)), pr.zeros((5, 2)))]
    [(5,), (5,)]
    """

    def __init__(
        self,
        observations: Spaces,
        actions: Space,
        hidden: Sequence[int] = (256, 256),
        rng: np.random.Generator | None = None,
        count: int = 2,
    ) -> None:
        self.encoders = [Encoder(observations, rng) for _ in range(count)]
        self.discrete = isinstance(actions, Discrete)
        inputs = self.encoders[0].size + (actions.size if isinstance(actions, Box) else 0)
        outputs = actions.n if isinstance(actions, Discrete) else 1
        self.networks = [mlp([inputs, *hidden, outputs], relu, 1.0, rng) for _ in range(count)]

    def __call__(self, observation: Any, action: Tensor | None = None) -> list[Tensor]:
        """The values by each network."""
        found = []
        for encoder, network in zip(self.encoders, self.networks, strict=True):
            features = encoder(observation)
            if action is None:
                found.append(network(features))
            else:
                vectors = flattened(action, 1).cast(features.dtype)
                found.append(network(concat([features, vectors], -1)).axes[..., 0])
        return found


def least(values: Sequence[Tensor]) -> Tensor:
    """The least of several values, element by element: what twin critics agree on (Fujimoto et al., 2018).

    >>> import polyrhythm as pr
    >>> pr.evaluate(least([pr.constant([1.0, 5.0]), pr.constant([2.0, 3.0])])).tolist()
    [1.0, 3.0]
    """
    result = values[0]
    for other in values[1:]:
        result = where(other < result, other, result)
    return result


def squared_errors(values: Sequence[Tensor], wanted: Tensor, weight: Tensor | None = None) -> Tensor:
    """The mean squared error of each critic, added up.

    >>> import polyrhythm as pr
    >>> float(pr.evaluate(squared_errors([pr.constant([1.0, 3.0]), pr.constant([0.0, 0.0])], pr.zeros((2,)))))
    5.0
    """
    errors = [mean_of(square(q - wanted), weight) for q in values]
    return sum(errors[1:], errors[0])


def weights_after(i: Dim, u: Dim, weights: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights of an actor and its critics after each iteration, over i, by their names in the model."""
    named = {k: weights[k] for k in ("actor", "critics")}
    last = {u: bound_of(u), i: i}
    return {f"{k}.{name}": weight[last] for k, part in named.items() for name, weight in part.items()}


def polyak(u: Dim, init: Any, weights: Any, tau: float, outer: Dim, skip: Tensor | None = None) -> Any:
    """A slow copy of weights: after each update it moves by `tau` of the way to them.

    >>> import polyrhythm as pr
    >>> from polyrhythm import optim
    >>> i, I = pr.dim("i")
    >>> u, U = pr.dim("u")
    >>> w = optim.over(u, 0.0, outer=i)
    >>> w[u + 1] = w + 1.0
    >>> pr.evaluate(polyak(u, 0.0, w, 0.5, i), bounds={U: 2, I: 1})[:, 0].tolist()
    [0.0, 0.5, 1.25]
    """
    target = optim.over(u, init, outer=outer)

    def follow(slow: Any, weight: Tensor) -> None:
        moved = slow + tau * (weight[{u: u + 1}] - slow)
        slow[u + 1] = moved if skip is None else where(skip, slow, moved)

    mapped(follow, target, weights)
    return target


def copied(u: Dim, init: Any, weights: Any, every: int, outer: Dim) -> Any:
    """A copy of weights that is renewed after every so many updates.

    >>> import polyrhythm as pr
    >>> from polyrhythm import optim
    >>> i, I = pr.dim("i")
    >>> u, U = pr.dim("u")
    >>> w = optim.over(u, 0.0, outer=i)
    >>> w[u + 1] = w + 1.0
    >>> pr.evaluate(copied(u, 0.0, w, 2, i), bounds={U: 5, I: 1})[:, 0].tolist()
    [0.0, 0.0, 2.0, 2.0, 4.0, 4.0]
    """
    target = optim.over(u, init, outer=outer)
    done = value(outer) * value(bound_of(u)) + value(u) + 1

    def renew(slow: Any, weight: Tensor) -> None:
        slow[u + 1] = where(done % every == 0, weight[{u: u + 1}], slow)

    mapped(renew, target, weights)
    return target
