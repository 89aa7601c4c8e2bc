"""IMPALA (Espeholt et al., 2018): an actor that lags behind the learner, corrected by V-trace, as one program.

The lag is an index: iteration i acts with the weights of iteration `i - lag`, which the compiler keeps for as long.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyrhythm import optim
from polyrhythm.language.functions import exp, square
from polyrhythm.language.gradient import detach, grad
from polyrhythm.language.index import dim, index_max
from polyrhythm.optim.states import mapped
from polyrhythm.rl.policies import ActorCritic
from polyrhythm.rl.returns import vtrace
from polyrhythm.rl.running import Source
from polyrhythm.rl.training import OnPolicy, Training, check, mean_of


@dataclass(frozen=True)
class Settings(OnPolicy):
    """What there is to choose."""

    steps: int = 20
    learning_rate: float = 6e-4
    max_grad_norm: float = 40.0
    lag: int = 1
    """By how many iterations the actor is behind; 0 is on policy."""
    lambda_: float = 1.0
    rho_clip: float = 1.0
    c_clip: float = 1.0


def impala(source: Source, model: ActorCritic, settings: Settings = Settings()) -> Training:  # noqa: B008
    """Train a model in some environments, with one update from all steps of each iteration.

    >>> from polyrhythm import rl
    >>> lamps = rl.Arrays(rl.Synthetic((3,), length=4), 2)
    >>> training = impala(lamps, rl.ActorCritic(lamps.observations, lamps.actions, (4,)))
    >>> sorted(training.outputs)
    ['entropy', 'episodes', 'loss', 'ratio', 'return', 'weights']
    """
    check(source, model, "an rl.ActorCritic", "get_value", in_order=True)
    i, _ = dim("i")
    t, last = dim("t")
    weights = optim.over(i, model.parameters())
    behaviour = model.using(mapped(lambda w: w[index_max(0, i - settings.lag)], weights))
    steps = source.run(i, t, lambda seen: behaviour(seen)[0].sample((i, t), name="actions"))

    learner, action = model.using(weights), detach(steps.action)
    policy, value = learner(mapped(detach, steps.observation))
    log_prob = policy.log_prob(action)
    ratio = detach(exp(log_prob - behaviour(steps.observation)[0].log_prob(action)))
    following, ends = detach(learner.get_value(steps.following)), (steps.terminated, steps.truncated)
    trace = vtrace(
        t,
        steps.reward,
        detach(value),
        following,
        ratio,
        *ends,
        settings.gamma,
        settings.lambda_,
        settings.rho_clip,
        settings.c_clip,
    )
    each = settings.value_coef * square(value - detach(trace.target)) - detach(trace.advantage) * log_prob
    each = each - settings.entropy_coef * policy.entropy()
    whole = {t: slice(0, settings.steps)}
    share = None if steps.valid is None else steps.valid.cast("float32")[whole]
    loss = mean_of(each[whole], share)
    gradients = optim.clip_by_global_norm(i, grad(loss, weights), settings.max_grad_norm)
    optim.adam(i, weights, gradients, settings.learning_rate)
    figures = {"loss": loss, "entropy": mean_of(policy.entropy()[whole], share), "ratio": mean_of(ratio[whole], share)}
    after = {name: w[{i: i + 1}] for name, w in weights.items()}
    return Training.of(i, t, steps, after, figures, {last: settings.steps})
