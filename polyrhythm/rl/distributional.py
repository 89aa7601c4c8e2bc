"""Distributions of returns instead of their means: C51 (Bellemare et al., 2017) and QR-DQN (Dabney et al., 2018).

Both are DQN with another loss; the network has so many atoms for each action. With C51 they are logits of fixed
returns, the support of the network, with QR-DQN returns of fixed probabilities.
"""

from __future__ import annotations

import numpy as np

from polyrhythm.errors import DeclarationError
from polyrhythm.language.functions import abs, argmax, clip, constant, log_softmax, one_hot, softmax, square, where
from polyrhythm.language.gradient import detach
from polyrhythm.language.tensor import Tensor
from polyrhythm.rl.dqn import Loss, value_based
from polyrhythm.rl.dqn import Settings as DQNSettings
from polyrhythm.rl.replay import Transitions
from polyrhythm.rl.running import Source
from polyrhythm.rl.training import Training
from polyrhythm.rl.values import QNetwork


def c51_loss(network: QNetwork, target: QNetwork, batch: Transitions) -> Loss:
    """The cross entropy from the distribution after the step, moved, shrunk and projected to the atoms."""
    support = network.returns
    z, width = constant(support), float(support[1] - support[0])
    following = softmax(target(batch.following), -1)
    best = argmax((following * z).sum(-1), -1)
    p = _chosen(following, best)
    moved = clip(batch.reward.axes[:, None] + batch.discount.axes[:, None] * z, float(support[0]), float(support[-1]))
    # An atom between two of the support gives to each as it is close: 1 - |T z_j - z_i| / width, if that is positive.
    closeness = clip(1.0 - abs(moved.axes[:, :, None] - z) / width, 0.0, 1.0)
    wanted = detach((p.axes[:, :, None] * closeness).sum(1))
    found = log_softmax(_chosen(network(batch.observation), batch.action), -1)
    each = -(wanted * found).sum(-1)
    return Loss(each, each)


def c51(source: Source, model: QNetwork, settings: DQNSettings = DQNSettings()) -> Training:  # noqa: B008
    """Train a categorical distribution of returns for each action.

    >>> from polyrhythm import rl
    >>> carts = rl.Arrays(rl.CartPole(), 2)
    >>> training = c51(carts, rl.QNetwork(carts.observations, carts.actions, (4,), atoms=11, support=(0.0, 50.0)))
    >>> "loss" in training.outputs
    True
    """
    _ = model.returns  # refused early if it has none
    return value_based(source, model, settings, c51_loss)


def quantile_loss(network: QNetwork, target: QNetwork, batch: Transitions) -> Loss:
    """The quantile Huber loss between all pairs of atoms before and after the step."""
    atoms = _atoms(network)
    tau = constant(((np.arange(atoms) + 0.5) / atoms).astype(np.float32))
    following = target(batch.following)
    after = _chosen(following, argmax(following.mean(-1), -1))
    wanted = detach(batch.reward.axes[:, None] + batch.discount.axes[:, None] * after)
    found = _chosen(network(batch.observation), batch.action)
    error = wanted.axes[:, None, :] - found.axes[:, :, None]
    size = abs(error)
    huber = where(size <= 1.0, 0.5 * square(error), size - 0.5)
    weight = abs(tau.axes[:, None] - (error < 0.0).cast("float32"))
    return Loss((weight * huber).mean(2).sum(1), wanted.mean(-1) - found.mean(-1))


def qr_dqn(source: Source, model: QNetwork, settings: DQNSettings = DQNSettings()) -> Training:  # noqa: B008
    """Train quantiles of returns for each action.

    >>> from polyrhythm import rl
    >>> carts = rl.Arrays(rl.CartPole(), 2)
    >>> training = qr_dqn(carts, rl.QNetwork(carts.observations, carts.actions, (4,), atoms=7))
    >>> "loss" in training.outputs
    True
    """
    _atoms(model)
    return value_based(source, model, settings, quantile_loss)


def _chosen(x: Tensor, action: Tensor) -> Tensor:
    """Of (rows, actions, atoms) the atoms of one action per row."""
    return (x * one_hot(action, int(x.shape[-2])).axes[:, :, None]).sum(-2)


def _atoms(model: QNetwork) -> int:
    if model.atoms is None or model.atoms < 2:
        raise DeclarationError(
            f"a distribution of returns needs a network with atoms, not {model.atoms}",
            fix="make it by rl.QNetwork(..., atoms=51)",
        )
    return model.atoms
