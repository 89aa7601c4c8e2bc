"""Proximal policy optimisation (Schulman et al., 2017), complete, as one program.

Each iteration i acts for T steps in all environments, works out advantages, and then makes U updates: E epochs of M
minibatches, each epoch in a new random order. Parameters are recurrences over updates and iterations: what acts in
iteration i is what it begins with, `weights[0, i]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from polyrhythm import optim
from polyrhythm.errors import DeclarationError
from polyrhythm.language.functions import (
    abs,
    clip,
    exp,
    maximum,
    minimum,
    permutation,
    reshape,
    sqrt,
    square,
    take,
    value,
)
from polyrhythm.language.gradient import detach, grad
from polyrhythm.language.index import Dim, dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.optim.states import mapped
from polyrhythm.rl.policies import ActorCritic
from polyrhythm.rl.returns import gae
from polyrhythm.rl.running import Source, Steps, episodes
from polyrhythm.rl.training import Training, mean_of


@dataclass(frozen=True)
class Settings:
    """What there is to choose, with the customary choices."""

    steps: int = 128
    epochs: int = 4
    minibatches: int = 4
    learning_rate: float = 2.5e-4
    anneal_lr: int | None = None
    """Iterations after which the learning rate has fallen to zero along a line; None keeps it."""
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    clip_value: bool = True
    entropy_coef: float = 0.01
    value_coef: float = 0.5
    max_grad_norm: float = 0.5
    normalize_advantage: bool = True


class Batch(NamedTuple):
    """What an update learns from: one row per step of an environment."""

    observation: Tensor
    action: Tensor
    log_prob: Tensor
    """Of the action, when it was chosen."""
    value: Tensor
    """Of the observation, when it was seen."""
    advantage: Tensor
    target: Tensor
    weight: Tensor | None = None
    """0 for rows that do not count; None if all do."""


class Losses(NamedTuple):
    """The parts of the loss, and how far the policy has moved."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def loss(model: ActorCritic, batch: Batch, settings: Settings) -> Losses:
    """The clipped loss of a batch.

    >>> import polyrhythm as pr
    >>> from polyrhythm.rl.environments import Discrete
    >>> model, ones = ActorCritic((3,), Discrete(2), (4,)), pr.ones((5,))
    >>> batch = Batch(pr.ones((5, 3)), pr.zeros((5,), "int32"), -ones, ones, ones, ones)
    >>> pr.evaluate(loss(model, batch, Settings()).total).shape
    ()
    """
    policy, new_value = model(batch.observation)
    advantage = batch.advantage
    if settings.normalize_advantage:
        centred = advantage - mean_of(advantage, batch.weight)
        rows: Any = float(int(advantage.shape[0])) if batch.weight is None else batch.weight.sum()
        variance = mean_of(square(centred), batch.weight) * rows / maximum(rows - 1.0, 1.0)  # one row has none
        advantage = centred / (sqrt(variance) + 1e-8)
    change = policy.log_prob(batch.action) - batch.log_prob
    ratio = exp(change)
    near = clip(ratio, 1.0 - settings.clip_range, 1.0 + settings.clip_range)
    policy_loss = -mean_of(minimum(ratio * advantage, near * advantage), batch.weight)
    error = square(new_value - batch.target)
    if settings.clip_value:
        moved = batch.value + clip(new_value - batch.value, -settings.clip_range, settings.clip_range)
        error = maximum(error, square(moved - batch.target))
    value_loss = 0.5 * mean_of(error, batch.weight)
    entropy = mean_of(policy.entropy(), batch.weight)
    total = policy_loss - settings.entropy_coef * entropy + settings.value_coef * value_loss
    approx_kl = mean_of(ratio - 1.0 - change, batch.weight)
    clip_fraction = mean_of((abs(ratio - 1.0) > settings.clip_range).cast("float32"), batch.weight)
    return Losses(total, policy_loss, value_loss, entropy, approx_kl, clip_fraction)


def ppo(source: Source, model: ActorCritic, settings: Settings = Settings()) -> Training:  # noqa: B008 (it is frozen)
    """Train a model in some environments: one program, whose iterations are a bound of the call.

    >>> import polyrhythm as pr
    >>> from polyrhythm import rl
    >>> carts = rl.Arrays(rl.CartPole(), 2)
    >>> model = rl.ActorCritic(carts.observation_shape, carts.actions, (4,))
    >>> training = ppo(carts, model, Settings(steps=4, epochs=2, minibatches=2))
    >>> sorted(training.outputs)
    ['approx_kl', 'clip_fraction', 'entropy', 'episodes', 'policy_loss', 'return', 'value_loss', 'weights']
    """
    if settings.steps * source.count % settings.minibatches:
        raise DeclarationError(
            f"{settings.steps} steps of {source.count} environments are {settings.steps * source.count} rows, which "
            f"cannot be dealt out to {settings.minibatches} minibatches of one size",
            fix="change the number of steps, of environments or of minibatches",
        )
    i, iterations = dim("i")
    t, last = dim("t")
    u, updates = dim("u")
    weights = optim.over(u, model.parameters(), outer=i)
    acting = model.using(mapped(lambda w: w[{u: 0, i: i}], weights))
    steps = source.run(i, t, lambda seen: acting(seen)[0].sample((i, t), name="actions"))
    batch = _batch(i, t, u, _rollout(t, acting, steps, settings), source.count, settings)
    losses = loss(model.using(weights), batch, settings)
    gradients = optim.clip_by_global_norm(u, grad(losses.total, weights), settings.max_grad_norm, outer=i)
    rate: Any = settings.learning_rate
    if settings.anneal_lr is not None:
        rate = optim.linear(i, settings.learning_rate, 0.0, settings.anneal_lr)
    optim.adam(u, weights, gradients, rate, epsilon=1e-5, outer=i)
    count, score = episodes(i, t, steps)
    outputs: dict[str, Any] = {"return": score, "episodes": count}
    outputs |= {
        name: part[{u: slice(0, updates)}].mean()
        for name, part in (
            ("policy_loss", losses.policy),
            ("value_loss", losses.value),
            ("entropy", losses.entropy),
            ("approx_kl", losses.approx_kl),
            ("clip_fraction", losses.clip_fraction),
        )
    }
    outputs["weights"] = {name: w[{u: updates, i: iterations - 1}] for name, w in weights.items()}
    bounds = {last: settings.steps, updates: settings.epochs * settings.minibatches}
    return Training(i, iterations, outputs, bounds, steps)


def _rollout(t: Dim, acting: ActorCritic, steps: Steps, settings: Settings) -> Batch:
    """What was seen and done at each step, and what came of it: constants to the gradient."""
    policy, values = acting(steps.observation)
    following = acting.get_value(steps.following)
    ends = steps.terminated, steps.truncated
    advantage = gae(t, steps.reward, values, following, *ends, settings.gamma, settings.gae_lambda)
    log_prob = policy.log_prob(steps.action)
    weight = None if steps.valid is None else steps.valid.cast("float32")
    return Batch(steps.observation, steps.action, log_prob, values, advantage, advantage + values, weight)


def _batch(i: Dim, t: Dim, u: Dim, rollout: Batch, count: int, settings: Settings) -> Batch:
    """The rows of an update: a part of all steps, in the random order of its epoch."""
    rows, parts = settings.steps * count, settings.minibatches
    drawn = permutation(rows, dims=(i, u), name="order")
    order = reshape(drawn[{i: i, u: u // parts * parts}], (parts, rows // parts))
    chosen = take(order, value(u % parts), 0)

    def gathered(tensor: Tensor | None) -> Any:
        if tensor is None:
            return None
        whole = detach(tensor)[{t: slice(0, settings.steps)}]
        return take(reshape(whole, (rows, *tensor.shape[1:])), chosen, 0)

    return Batch(*(gathered(tensor) for tensor in rollout))
