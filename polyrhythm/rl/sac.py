"""Soft actor-critic (Haarnoja et al., 2018) with automatic temperature, for continuous and for discrete actions.

Each update moves the temperature, then the critics, then the actor by the critics just moved, and at last the targets.
With several choices of action (Christodoulou, 2019) expectations over actions are sums instead of draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from polyrhythm import optim
from polyrhythm.language.functions import exp, log_softmax, one_hot, randint, softmax, value, where
from polyrhythm.language.gradient import detach, grad
from polyrhythm.language.index import dim
from polyrhythm.language.inputs import parameter
from polyrhythm.language.tensor import Tensor
from polyrhythm.optim.states import mapped
from polyrhythm.rl.actors import ActorAndCritics, StochasticActor
from polyrhythm.rl.distributions import Categorical, SquashedNormal
from polyrhythm.rl.replay import Replay, Transitions
from polyrhythm.rl.running import Source
from polyrhythm.rl.spaces import Discrete, Space, Spaces
from polyrhythm.rl.training import OffPolicy, Training, check, mean_of
from polyrhythm.rl.values import Critics, least, polyak, squared_errors, weights_after


@dataclass(frozen=True)
class Settings(OffPolicy):
    """What there is to choose."""

    temperature: float | None = None
    """The weight of the entropy; None learns it."""
    target_entropy: float | None = None
    """What a learnt temperature keeps the entropy at; None takes minus the size of an action, or 0.89 of the most."""


class SoftActorCritic(ActorAndCritics):
    """What SAC trains: an actor and two critics.

    >>> from polyrhythm import rl
    >>> sorted(SoftActorCritic((3,), rl.Box((1,), -2.0, 2.0), (4,)).weights())[0]
    'actor.network.layers.0.bias'
    """

    def __init__(
        self, observations: Spaces, actions: Space, hidden: tuple[int, ...] = (256, 256), rng: Any = None
    ) -> None:
        self.actor = StochasticActor(observations, actions, hidden, rng)
        self.critics = Critics(observations, actions, hidden, rng)

    def act(self, observation: Any, along: Any = None) -> Tensor:
        """The action without noise."""
        return self.actor(observation).mode()


class Choice(NamedTuple):
    """How a policy acts: a draw and how likely it is, or the probabilities of all choices."""

    action: Tensor | None
    probabilities: Tensor | None
    log_prob: Tensor

    def mean(self, x: Tensor) -> Tensor:
        """What is expected of x: one number per row; of all choices the sum by their probabilities."""
        return x if self.probabilities is None else (self.probabilities * x).sum(-1)


def choice(policy: Categorical | SquashedNormal, dims: Any, name: str) -> Choice:
    """How a distribution acts."""
    if isinstance(policy, Categorical):
        return Choice(None, softmax(policy.logits, -1), log_softmax(policy.logits, -1))
    action, log_prob = policy.sample_and_log_prob(dims, name)
    return Choice(action, None, log_prob)


def critic_loss(critics: Critics, targets: Critics, batch: Transitions, following: Choice, alpha: Tensor) -> Tensor:
    """`(Q(s, a) - r - gamma E[min Q'(s', a') - alpha log pi(a' | s')]) ** 2`, of both critics."""
    q = least(targets(batch.following, following.action))
    after = following.mean(q - alpha * following.log_prob)
    wanted = detach(batch.reward + batch.discount * after)
    values = critics(batch.observation, None if critics.discrete else batch.action)
    if critics.discrete:
        values = [(v * one_hot(batch.action, int(v.shape[-1]))).sum(-1) for v in values]
    return squared_errors(values, wanted, batch.weight)


def actor_loss(critics: Critics, batch: Transitions, acted: Choice, alpha: Tensor) -> Tensor:
    """`E[alpha log pi(a | s) - min Q(s, a)]`."""
    q = least(critics(batch.observation, acted.action))
    return mean_of(acted.mean(alpha * acted.log_prob - q), batch.weight)


def temperature_loss(log_alpha: Tensor, acted: Choice, target_entropy: float, weight: Tensor | None = None) -> Tensor:
    """`-log alpha E[log pi(a | s) + target]`: the temperature rises while there is too little entropy."""
    lack = detach(acted.mean(acted.log_prob + target_entropy))
    return -mean_of(log_alpha * lack, weight)


def sac(source: Source, model: SoftActorCritic, settings: Settings = Settings()) -> Training:  # noqa: B008
    """Train an actor and critics: one program, whose iterations are a bound of the call.

    >>> from polyrhythm import rl
    >>> swings = rl.Arrays(rl.Pendulum(), 1)
    >>> training = sac(swings, SoftActorCritic(swings.observations, swings.actions, (4,)))
    >>> sorted(training.outputs)
    ['actor_loss', 'critic_loss', 'entropy', 'episodes', 'return', 'temperature', 'weights']
    """
    check(source, model, "an rl.SoftActorCritic", "actor", "critics")
    i, _ = dim("i")
    t, last = dim("t")
    u, updates = dim("u")
    rows, dims = settings.steps * source.count, (i, u)
    early = value(i) < settings.learning_starts // rows
    first = {"actor": model.actor.parameters("actor."), "critics": model.critics.parameters("critics.")}
    first["log_alpha"] = parameter("log_alpha", (), np.float32(math.log(settings.temperature or 1.0)))
    weights = optim.over(u, first, outer=i)
    targets = polyak(u, first["critics"], weights["critics"], settings.tau, i, skip=early)

    acting = model.actor.using(mapped(lambda w: w[{u: 0, i: i}], weights["actor"]))

    def act(seen: Any) -> Tensor:
        drawn = acting(seen).sample((i, t), name="actions")
        if isinstance(source.actions, Discrete):
            random = randint((source.count,), 0, source.actions.n, dims=(i, t), name="random actions")
        else:
            assert model.actor.limits is not None
            random = model.actor.limits.random(source.count, (i, t))
        return where(early, random, drawn)

    steps = source.run(i, t, act)
    replay = Replay(i, t, u, steps, source.count, settings.steps, settings.buffer_size)
    batch = replay.transitions(replay.uniform(settings.batch_size), settings.gamma)
    actor, critics = model.actor.using(weights["actor"]), model.critics.using(weights["critics"])
    acted = choice(actor(batch.observation), dims, "replayed actions")
    following = choice(actor(batch.following), dims, "following actions")

    alpha = detach(exp(weights["log_alpha"]))
    rate, options = settings.learning_rate, {"outer": i, "skip": early}
    if settings.temperature is None:
        goal = temperature_loss(weights["log_alpha"], acted, target_entropy(source.actions, settings), batch.weight)
        optim.adam(u, weights["log_alpha"], grad(goal, weights["log_alpha"]), rate, **options)  # type: ignore[arg-type]
    else:
        weights["log_alpha"][u + 1] = weights["log_alpha"]
    found = critic_loss(critics, model.critics.using(targets), batch, following, alpha)
    gradients = grad(found, weights["critics"])
    optim.adam(u, weights["critics"], gradients, settings.critic_learning_rate, **options)  # type: ignore[arg-type]
    moved = model.critics.using(mapped(lambda w: detach(w[{u: u + 1}]), weights["critics"]))
    wanted = actor_loss(moved, batch, acted, alpha)
    optim.adam(u, weights["actor"], grad(wanted, weights["actor"]), rate, **options)  # type: ignore[arg-type]

    figures = {"critic_loss": found, "actor_loss": wanted, "temperature": alpha}
    figures["entropy"] = -acted.mean(acted.log_prob).mean()
    figures = {name: figure[{u: slice(0, updates)}].mean() for name, figure in figures.items()}
    after = weights_after(i, u, weights)
    return Training.of(i, t, steps, after, figures, {last: settings.steps, updates: settings.updates})


def target_entropy(actions: Space, settings: Settings) -> float:
    """The entropy that a learnt temperature keeps.

    >>> from polyrhythm import rl
    >>> target_entropy(rl.Box((3,)), Settings())
    -3.0
    """
    if settings.target_entropy is not None:
        return settings.target_entropy
    return 0.89 * math.log(actions.n) if isinstance(actions, Discrete) else -float(math.prod(actions.shape))
