"""Advantage actor-critic (Mnih et al., 2016), all environments in step, as one program."""

from __future__ import annotations

from dataclasses import dataclass

from polyrhythm import optim
from polyrhythm.language.functions import square
from polyrhythm.language.gradient import detach, grad
from polyrhythm.language.index import dim
from polyrhythm.optim.states import mapped
from polyrhythm.rl.policies import ActorCritic
from polyrhythm.rl.returns import gae
from polyrhythm.rl.running import Source
from polyrhythm.rl.training import OnPolicy, Training, check, mean_of


@dataclass(frozen=True)
class Settings(OnPolicy):
    """What there is to choose."""

    steps: int = 8
    learning_rate: float = 7e-4
    gae_lambda: float = 1.0


def a2c(source: Source, model: ActorCritic, settings: Settings = Settings()) -> Training:  # noqa: B008
    """Train a model in some environments, with one update from all steps of each iteration.

    >>> from polyrhythm import rl
    >>> lamps = rl.Arrays(rl.Synthetic((3,), length=4), 2)
    >>> training = a2c(lamps, rl.ActorCritic(lamps.observations, lamps.actions, (4,)))
    >>> sorted(training.outputs)
    ['entropy', 'episodes', 'loss', 'return', 'weights']
    """
    check(source, model, "an rl.ActorCritic", "get_value", in_order=True)
    i, _ = dim("i")
    t, last = dim("t")
    weights = optim.over(i, model.parameters())
    acting = model.using(weights)
    steps = source.run(i, t, lambda seen: acting(seen)[0].sample((i, t), name="actions"))
    whole = {t: slice(0, settings.steps)}
    policy, value = acting(mapped(lambda seen: detach(seen)[whole], steps.observation))
    ends = steps.terminated, steps.truncated
    before, then = (acting.get_value(seen) for seen in (steps.observation, steps.following))
    advantage = detach(gae(t, steps.reward, before, then, *ends, settings.gamma, settings.gae_lambda))[whole]
    target = advantage + detach(before)[whole]
    each = -advantage * policy.log_prob(detach(steps.action)[whole])
    each = each + settings.value_coef * 0.5 * square(value - target) - settings.entropy_coef * policy.entropy()
    share = None if steps.valid is None else steps.valid.cast("float32")[whole]
    loss, entropy = mean_of(each, share), mean_of(policy.entropy(), share)
    gradients = optim.clip_by_global_norm(i, grad(loss, weights), settings.max_grad_norm)
    optim.rmsprop(i, weights, gradients, settings.learning_rate, epsilon=1e-5)
    after = {name: w[{i: i + 1}] for name, w in weights.items()}
    return Training.of(i, t, steps, after, {"loss": loss, "entropy": entropy}, {last: settings.steps})
