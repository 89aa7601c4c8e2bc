"""Proximal policy optimisation (Schulman et al., 2017), complete, as one program.

Each iteration i acts for T steps in all environments, works out advantages, and then makes U updates: E epochs of M
minibatches, each epoch in a new random order. Parameters are recurrences over updates and iterations: what acts in
iteration i is what it begins with, `weights[0, i]`.
"""

from __future__ import annotations

from collections.abc import Callable
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
from polyrhythm.language.recurrent import recurrent
from polyrhythm.language.tensor import Tensor
from polyrhythm.optim.states import mapped
from polyrhythm.rl.memory import Acting, Along, Learning
from polyrhythm.rl.policies import ActorCritic
from polyrhythm.rl.returns import gae
from polyrhythm.rl.running import Source, Steps
from polyrhythm.rl.spreading import ALONE, Spread
from polyrhythm.rl.training import OnPolicy, Training, check, mean_of


@dataclass(frozen=True)
class Settings(OnPolicy):
    """What there is to choose."""

    epochs: int = 4
    minibatches: int = 4
    anneal_lr: int | None = None
    """Iterations after which the learning rate has fallen to zero along a line; None keeps it."""
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    clip_value: bool = True
    normalize_advantage: bool = True
    target_kl: float | None = None
    """The updates of an iteration end where `approx_kl` is above 1.5 of this; None makes them all."""
    burn_in: int = 0
    """With a policy that remembers: so many first steps of each iteration are read, but not learnt from."""


class Batch(NamedTuple):
    """What an update learns from: one row per step of an environment, or per environment at each step."""

    observation: Any
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


def loss(model: ActorCritic, batch: Batch, settings: Settings, along: Along | None = None) -> Losses:
    """The clipped loss of a batch. Along the steps of a policy that remembers, all of them are one batch.

    >>> import polyrhythm as pr
    >>> from polyrhythm.rl import Discrete
    >>> model, ones = ActorCritic((3,), Discrete(2), (4,)), pr.ones((5,))
    >>> batch = Batch(pr.ones((5, 3)), pr.zeros((5,), "int32"), -ones, ones, ones, ones)
    >>> pr.evaluate(loss(model, batch, Settings()).total).shape
    ()
    """
    policy, new_value = model(batch.observation, along)

    def mean(x: Tensor) -> Tensor:
        if along is None:
            return mean_of(x, batch.weight)
        learnt = {along.t: slice(settings.burn_in, settings.steps)}
        return mean_of(x[learnt], None if batch.weight is None else batch.weight[learnt])

    advantage = batch.advantage
    if settings.normalize_advantage:
        centred = advantage - mean(advantage)
        rows = _rows(batch, settings, along)
        variance = mean(square(centred)) * rows / maximum(rows - 1.0, 1.0)  # one row has none
        advantage = centred / (sqrt(variance) + 1e-8)
    change = policy.log_prob(batch.action) - batch.log_prob
    ratio = exp(change)
    near = clip(ratio, 1.0 - settings.clip_range, 1.0 + settings.clip_range)
    policy_loss = -mean(minimum(ratio * advantage, near * advantage))
    error = square(new_value - batch.target)
    if settings.clip_value:
        moved = batch.value + clip(new_value - batch.value, -settings.clip_range, settings.clip_range)
        error = maximum(error, square(moved - batch.target))
    value_loss = 0.5 * mean(error)
    entropy = mean(policy.entropy())
    total = policy_loss - settings.entropy_coef * entropy + settings.value_coef * value_loss
    approx_kl = mean(ratio - 1.0 - change)
    clip_fraction = mean((abs(ratio - 1.0) > settings.clip_range).cast("float32"))
    return Losses(total, policy_loss, value_loss, entropy, approx_kl, clip_fraction)


def _rows(batch: Batch, settings: Settings, along: Along | None) -> Any:
    """How many rows of a batch count."""
    if batch.weight is None:
        return float(int(batch.advantage.shape[0]) * (1 if along is None else settings.steps - settings.burn_in))
    return (batch.weight if along is None else batch.weight[{along.t: slice(settings.burn_in, settings.steps)}]).sum()


def ppo(
    source: Source,
    model: ActorCritic,
    settings: Settings = Settings(),  # noqa: B008 (it is frozen)
    mesh: Any = None,
) -> Training:
    """Train a model in some environments: one program, whose iterations are a bound of the call.

    With a `mesh` the environments are spread over its first axis, and so are the updates: minibatches are drawn from
    the environments of each device, and gradients summed over devices. Give the mesh to `pr.compile` too:
    `mesh=training.mesh`.

    >>> import polyrhythm as pr
    >>> from polyrhythm import rl
    >>> carts = rl.Arrays(rl.CartPole(), 2)
    >>> model = rl.ActorCritic(carts.observations, carts.actions, (4,))
    >>> training = ppo(carts, model, Settings(steps=4, epochs=2, minibatches=2))
    >>> sorted(training.outputs)
    ['approx_kl', 'clip_fraction', 'entropy', 'episodes', 'policy_loss', 'return', 'value_loss', 'weights']
    """
    check(source, model, "an rl.ActorCritic", "get_value", "remembers", in_order=True)
    _check(source.count, model, settings)
    spread = Spread.over(mesh, source.count, settings, model.remembers)
    i, _ = dim("i")
    t, last = dim("t")
    u, updates = dim("u")
    weights = optim.over(u, model.parameters(), outer=i)
    acting = model.using(mapped(lambda w: w[{u: 0, i: i}], weights))
    steps, rollout, along = _rollout(source, i, t, acting, settings, spread)
    if along is None:
        batch, replayed = _rows_of(i, t, u, rollout, source.count, settings, spread), None
    else:
        batch, replayed = _sequences_of(i, u, rollout, along, source.count, settings)
    losses = loss(model.using(weights), batch, settings, replayed)
    gradients = optim.clip_by_global_norm(u, grad(losses.total, weights), settings.max_grad_norm, outer=i)
    rate: Any = settings.learning_rate
    if settings.anneal_lr is not None:
        rate = optim.linear(i, settings.learning_rate, 0.0, settings.anneal_lr)
    skip = None if settings.target_kl is None else _stopped(i, u, losses.approx_kl > 1.5 * settings.target_kl)
    optim.adam(u, weights, gradients, rate, epsilon=1e-5, outer=i, skip=skip)
    figures = {
        name: part[{u: slice(0, updates)}].mean()
        for name, part in (
            ("policy_loss", losses.policy),
            ("value_loss", losses.value),
            ("entropy", losses.entropy),
            ("approx_kl", losses.approx_kl),
            ("clip_fraction", losses.clip_fraction),
        )
    }
    after = {name: w[{u: updates, i: i}] for name, w in weights.items()}
    bounds = {last: settings.steps, updates: settings.epochs * settings.minibatches}
    return Training.of(i, t, steps, after, figures, bounds, mesh)


def _check(count: int, model: ActorCritic, settings: Settings) -> None:
    """Refuse minibatches that would not be of one size."""
    steps = "" if model.remembers else f"{settings.steps} steps of "
    rows = count if model.remembers else settings.steps * count
    if rows % settings.minibatches:
        raise DeclarationError(
            f"{steps}{count} environments are {rows} rows, which cannot be dealt out to {settings.minibatches} "
            "minibatches of one size",
            fix="change the number of steps, of environments or of minibatches",
        )


def _rollout(
    source: Source, i: Dim, t: Dim, acting: ActorCritic, settings: Settings, spread: Spread
) -> tuple[Steps, Batch, Acting | None]:
    """What was seen and done at each step, and what came of it: constants to the gradient."""
    along = Acting(i, t, source.count) if acting.remembers else None
    found: list[Any] = []

    def act(seen: Any) -> Tensor:
        found[:] = acting(mapped(spread.rows, seen), along)
        return spread.rows(found[0].sample((i, t), name="actions"))

    steps = source.run(i, t, act)
    policy, values = found
    following = acting.get_value(steps.following, along)
    if along is not None:
        along.ended(steps)
    ends = steps.terminated, steps.truncated
    advantage = gae(t, steps.reward, values, following, *ends, settings.gamma, settings.gae_lambda)
    log_prob = policy.log_prob(steps.action)
    weight = None if steps.valid is None else steps.valid.cast("float32")
    batch = Batch(steps.observation, steps.action, log_prob, values, advantage, advantage + values, weight)
    return steps, batch, along


def _rows_of(i: Dim, t: Dim, u: Dim, rollout: Batch, count: int, settings: Settings, spread: Spread = ALONE) -> Batch:
    """The rows of an update: a part of all steps, in the random order of its epoch."""
    rows = settings.steps * count
    if spread.ways > 1:
        picked = spread.chosen(i, u, rows, settings.minibatches)
        return _mapped(lambda x: spread.picked(detach(x)[{t: slice(0, settings.steps)}], picked), rollout)
    chosen = _chosen(i, u, rows, settings.minibatches)

    def gathered(tensor: Tensor) -> Tensor:
        whole = detach(tensor)[{t: slice(0, settings.steps)}]
        return take(reshape(whole, (rows, *tensor.shape[1:])), chosen, 0)

    return _mapped(gathered, rollout)


def _sequences_of(
    i: Dim, u: Dim, rollout: Batch, along: Acting, count: int, settings: Settings
) -> tuple[Batch, Learning]:
    """The environments of an update with all their steps, in the random order of its epoch."""
    chosen = _chosen(i, u, count, settings.minibatches)

    def gathered(tensor: Tensor) -> Tensor:
        return take(detach(tensor), chosen, 0)

    return _mapped(gathered, rollout), Learning(along, u, gathered)


def _chosen(i: Dim, u: Dim, rows: int, parts: int) -> Tensor:
    """Which of so many rows are in the minibatch of an update: in each epoch they are dealt out anew."""
    drawn = permutation(rows, dims=(i, u), name="order")
    order = reshape(drawn[{i: i, u: u // parts * parts}], (parts, rows // parts))
    return take(order, value(u % parts), 0)


def _mapped(gathered: Callable[[Tensor], Tensor], rollout: Batch) -> Batch:
    return Batch(*(None if part is None else mapped(gathered, part) for part in rollout))  # type: ignore[arg-type]


def _stopped(i: Dim, u: Dim, far: Tensor) -> Tensor:
    """Whether an update is left out, since the policy had moved too far there or earlier in the iteration."""
    before = recurrent((), (u, i), "bool")
    before[0] = False
    before[u + 1] = before | far
    return before | far
