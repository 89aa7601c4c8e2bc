"""Twin delayed deterministic policy gradient (Fujimoto et al., 2018), and DDPG (Lillicrap et al., 2016).

Two critics and the lesser of their targets, noise on the actions of the targets, and an actor that is updated less
often. DDPG is the same with one critic, no such noise and no delay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from polyrhythm import optim
from polyrhythm.language.functions import clip, normal, value, where
from polyrhythm.language.gradient import detach, grad
from polyrhythm.language.index import dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.optim.states import bound_of, mapped
from polyrhythm.rl.actors import ActorAndCritics, DeterministicActor
from polyrhythm.rl.replay import Replay, Transitions
from polyrhythm.rl.running import Source
from polyrhythm.rl.spaces import Space, Spaces
from polyrhythm.rl.training import OffPolicy, Training, check, mean_of
from polyrhythm.rl.values import Critics, least, polyak, squared_errors, weights_after


@dataclass(frozen=True)
class Settings(OffPolicy):
    """What there is to choose. Noise is in halves of the width of the actions."""

    exploration_noise: float = 0.1
    target_noise: float = 0.2
    noise_clip: float = 0.5
    policy_delay: int = 2
    """The actor and the targets are updated with every so many updates of the critics."""


@dataclass(frozen=True)
class DDPGSettings(Settings):
    """TD3 without what it added; the model has one critic."""

    target_noise: float = 0.0
    policy_delay: int = 1


class DeterministicActorCritic(ActorAndCritics):
    """What TD3 trains: an actor and critics; DDPG has one critic.

    >>> from polyrhythm import rl
    >>> len(DeterministicActorCritic((3,), rl.Box((1,), -2.0, 2.0), (4,), critics=1).critics.networks)
    1
    """

    def __init__(
        self,
        observations: Spaces,
        actions: Space,
        hidden: tuple[int, ...] = (256, 256),
        rng: Any = None,
        critics: int = 2,
    ) -> None:
        self.actor = DeterministicActor(observations, actions, hidden, rng)
        self.critics = Critics(observations, actions, hidden, rng, critics)

    def act(self, observation: Any, along: Any = None) -> Tensor:
        """The action without noise."""
        return self.actor(observation)


def critic_loss(critics: Critics, targets: Critics, batch: Transitions, following: Tensor) -> Tensor:
    """`(Q(s, a) - r - gamma min Q'(s', a')) ** 2`, of all critics; `following` is a'."""
    wanted = detach(batch.reward + batch.discount * least(targets(batch.following, following)))
    return squared_errors(critics(batch.observation, batch.action), wanted, batch.weight)


def actor_loss(critics: Critics, actor: DeterministicActor, batch: Transitions) -> Tensor:
    """`-Q(s, pi(s))`, by the first critic."""
    return -mean_of(critics(batch.observation, actor(batch.observation))[0], batch.weight)


def td3(source: Source, model: DeterministicActorCritic, settings: Settings = Settings()) -> Training:  # noqa: B008
    """Train an actor and critics: one program, whose iterations are a bound of the call.

    >>> from polyrhythm import rl
    >>> swings = rl.Arrays(rl.Pendulum(), 1)
    >>> training = td3(swings, DeterministicActorCritic(swings.observations, swings.actions, (4,)))
    >>> sorted(training.outputs)
    ['actor_loss', 'critic_loss', 'episodes', 'return', 'weights']
    """
    check(source, model, "an rl.DeterministicActorCritic", "actor", "critics")
    i, _ = dim("i")
    t, last = dim("t")
    u, updates = dim("u")
    rows, limits = settings.steps * source.count, model.actor.limits
    early = value(i) < settings.learning_starts // rows
    done = value(i) * value(bound_of(u)) + value(u)
    waits = early | (done % settings.policy_delay != 0)
    first = {"actor": model.actor.parameters("actor."), "critics": model.critics.parameters("critics.")}
    weights = optim.over(u, first, outer=i)
    targets = polyak(u, first, weights, settings.tau, i, skip=waits)

    acting = model.actor.using(mapped(lambda w: w[{u: 0, i: i}], weights["actor"]))

    def act(seen: Any) -> Tensor:
        noise = normal((source.count, limits.size), dims=(i, t), name="exploration")
        drawn = limits.clipped(acting(seen) + settings.exploration_noise * limits.half * noise)
        return where(early, limits.random(source.count, (i, t)), drawn)

    steps = source.run(i, t, act)
    replay = Replay(i, t, u, steps, source.count, settings.steps, settings.buffer_size)
    batch = replay.transitions(replay.uniform(settings.batch_size), settings.gamma)
    actor, critics = model.actor.using(weights["actor"]), model.critics.using(weights["critics"])
    following = model.actor.using(targets["actor"])(batch.following)
    if settings.target_noise:
        noise = settings.target_noise * normal((settings.batch_size, limits.size), dims=(i, u), name="target noise")
        following = limits.clipped(following + limits.half * clip(noise, -settings.noise_clip, settings.noise_clip))

    found = critic_loss(critics, model.critics.using(targets["critics"]), batch, following)
    gradients = grad(found, weights["critics"])
    optim.adam(u, weights["critics"], gradients, settings.critic_learning_rate, outer=i, skip=early)
    moved = model.critics.using(mapped(lambda w: detach(w[{u: u + 1}]), weights["critics"]))
    wanted = actor_loss(moved, actor, batch)
    optim.adam(u, weights["actor"], grad(wanted, weights["actor"]), settings.learning_rate, outer=i, skip=waits)

    whole = {u: slice(0, updates)}
    figures = {"critic_loss": found[whole].mean(), "actor_loss": wanted[whole].mean()}
    after = weights_after(i, u, weights)
    return Training.of(i, t, steps, after, figures, {last: settings.steps, updates: settings.updates})


def ddpg(
    source: Source,
    model: DeterministicActorCritic,
    settings: Settings = DDPGSettings(),  # noqa: B008
) -> Training:
    """Deep deterministic policy gradient: TD3 by other settings.

    >>> from polyrhythm import rl
    >>> swings = rl.Arrays(rl.Pendulum(), 1)
    >>> training = ddpg(swings, DeterministicActorCritic(swings.observations, swings.actions, (4,), critics=1))
    >>> "critic_loss" in training.outputs
    True
    """
    return td3(source, model, settings)
