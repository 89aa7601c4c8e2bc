"""REINFORCE (Williams, 1992) with a baseline, as one program.

The gradients of the steps are added up as soon as the return of each is known. What a return looks ahead is then all
that is kept: a whole rollout with Monte Carlo, n steps with n-step returns, one with TD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from polyrhythm import optim
from polyrhythm.language.functions import maximum, square
from polyrhythm.language.gradient import detach, grad
from polyrhythm.language.index import Dim, dim
from polyrhythm.language.recurrent import Recurrent, recurrent
from polyrhythm.language.tensor import Tensor
from polyrhythm.optim.states import bound_of, mapped
from polyrhythm.rl.policies import ActorCritic
from polyrhythm.rl.returns import monte_carlo, n_step
from polyrhythm.rl.running import Source, episodes
from polyrhythm.rl.training import Training


@dataclass(frozen=True)
class Settings:
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
    >>> training = reinforce(lamps, rl.ActorCritic(lamps.observation_shape, lamps.actions, (4,)), Settings(steps=8))
    >>> sorted(training.outputs)
    ['episodes', 'return', 'weights']
    """
    i, iterations = dim("i")
    t, last = dim("t")
    weights = optim.over(i, model.parameters())
    current = mapped(lambda w: _at_each_step(w, i, t), weights)
    acting = model.using(current)
    steps = source.run(i, t, lambda seen: acting(seen)[0].sample((i, t), name="actions"))
    policy, value = acting(detach(steps.observation))
    ends = steps.terminated, steps.truncated
    if settings.n is None:
        gain = monte_carlo(t, steps.reward, *ends, settings.gamma)
    else:
        gain = n_step(t, steps.reward, acting.get_value(steps.following), *ends, settings.gamma, settings.n)
    gain = detach(gain)
    losses = settings.value_coef * square(value - gain) - detach(gain - value) * policy.log_prob(detach(steps.action))
    scale: Any = 1.0 / (settings.steps * source.count)
    if steps.valid is not None:
        counts = steps.valid.cast("float32")
        losses, scale = losses * counts, 1.0 / maximum(_added_up(counts.sum(), i, t), 1.0)
    gradients = mapped(lambda g: _added_up(g, i, t) * scale, grad(losses.sum(), current))
    optim.adam(i, weights, gradients, settings.learning_rate)
    count, score = episodes(i, t, steps)
    outputs: dict[str, Any] = {"return": score, "episodes": count}
    outputs["weights"] = {name: w[{i: iterations}] for name, w in weights.items()}
    return Training(i, iterations, outputs, {last: settings.steps}, steps)


def _at_each_step(weight: Tensor, i: Dim, t: Dim) -> Recurrent:
    """The weight of an iteration at each of its steps, so that there is a gradient for each."""
    tensor = recurrent(weight.shape, (i, t), weight.dtype)
    tensor[i, t] = weight
    return tensor


def _added_up(gradient: Tensor, i: Dim, t: Dim) -> Tensor:
    total = recurrent(gradient.shape, (i, (t, bound_of(t) + 1)), gradient.dtype)
    total[i, 0] = 0.0
    total[i, t + 1] = total + gradient
    return total[{i: i, t: bound_of(t)}]
