"""REINFORCE (Williams, 1992) with a baseline, as one program.

The compiler adds up the gradients of the steps as soon as the return of each is known. What a return looks ahead is
then all that is stored: a whole rollout with Monte Carlo, n steps with n-step returns, one with TD.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyrhythm import optim
from polyrhythm.language.functions import maximum, square
from polyrhythm.language.gradient import detach, grad
from polyrhythm.language.index import dim
from polyrhythm.optim.states import mapped
from polyrhythm.rl.policies import ActorCritic
from polyrhythm.rl.returns import monte_carlo, n_step
from polyrhythm.rl.running import Source
from polyrhythm.rl.settings import Checked
from polyrhythm.rl.training import Training, check


@dataclass(frozen=True)
class Settings(Checked):
    """What there is to choose."""

    steps: int = 128
    n: int | None = None
    """How many rewards a return takes before the value of where they led; None for all: Monte Carlo. 1 is TD."""
    learning_rate: float = 1e-3
    gamma: float = 0.99
    value_coef: float = 0.5


def reinforce(source: Source, model: ActorCritic, settings: Settings = Settings()) -> Training:  # noqa: B008
    """Train a model in some environments, with one update after each iteration.

    >>> from polyrhythm import rl
    >>> lamps = rl.Arrays(rl.Synthetic((3,), length=4), 2)
    >>> training = reinforce(lamps, rl.ActorCritic(lamps.observations, lamps.actions, (4,)), Settings(steps=8))
    >>> sorted(training.outputs)
    ['episodes', 'return', 'weights']
    """
    check(source, model, "an rl.ActorCritic", "get_value", in_order=True)
    i, _ = dim("i")
    t, last = dim("t")
    weights = optim.over(i, model.parameters())
    acting = model.using(weights)
    steps = source.run(i, t, lambda seen: acting(seen)[0].sample((i, t), name="actions"))
    policy, value = acting(mapped(detach, steps.observation))
    ends = steps.terminated, steps.truncated
    if settings.n is None:
        gain = monte_carlo(t, steps.reward, *ends, settings.gamma)
    else:
        gain = n_step(t, steps.reward, acting.get_value(steps.following), *ends, settings.gamma, settings.n)
    gain = detach(gain)
    losses = settings.value_coef * square(value - gain) - detach(gain - value) * policy.log_prob(detach(steps.action))
    loss = losses[i, 0:last].mean()
    if steps.valid is not None:
        counts = steps.valid.cast("float32")
        loss = (losses * counts)[i, 0:last].sum() / maximum(counts[i, 0:last].sum(), 1.0)
    optim.adam(i, weights, grad(loss, weights), settings.learning_rate)
    after = {name: w[{i: i + 1}] for name, w in weights.items()}
    return Training.of(i, t, steps, after, {}, {last: settings.steps})
