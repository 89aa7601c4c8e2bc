"""Deep Q-learning (Mnih et al., 2015) and what became of it, as one program.

`Settings` choose double Q-learning (van Hasselt et al., 2016), n-step returns and prioritised replay (Schaul et al.,
2016); a dueling network is a matter of the model. The replay is a window of the past, the target network a recurrence
that is renewed now and then. `value_based` is the run; other losses, such as those of C51 and QR-DQN, are given to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from polyrhythm import optim
from polyrhythm.language.functions import abs, argmax, maximum, one_hot, randint, square, uniform, value, where
from polyrhythm.language.gradient import detach, grad
from polyrhythm.language.index import Dim, dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.optim.states import mapped
from polyrhythm.rl.replay import Replay, Transitions, prioritised
from polyrhythm.rl.running import Source
from polyrhythm.rl.settings import Checked
from polyrhythm.rl.training import Training, check
from polyrhythm.rl.values import QNetwork, copied


@dataclass(frozen=True)
class Settings(Checked):
    """What there is to choose, with the customary choices. Steps are those of all environments together."""

    steps: int = 4
    """Steps of each environment per iteration."""
    updates: int = 1
    """Updates per iteration."""
    batch_size: int = 128
    learning_rate: float = 1e-3
    gamma: float = 0.99
    buffer_size: int = 20_000
    learning_starts: int = 1_000
    target_update: int = 200
    """Updates after which the target network is renewed."""
    exploration_initial: float = 1.0
    exploration_final: float = 0.05
    exploration_steps: int = 20_000
    """Steps in which the share of random actions falls from the initial to the final one."""
    double: bool = True
    n_step: int = 1
    huber: bool = False
    max_grad_norm: float = 10.0
    prioritized: bool = False
    priority_alpha: float = 0.6
    priority_beta: float = 0.4
    priority_beta_steps: int | None = None
    """Steps in which `priority_beta` rises to 1; None keeps it."""


class Loss(NamedTuple):
    """One number for each row, and its error, by which a prioritised replay draws it again."""

    each: Tensor
    error: Tensor


LossOf = Callable[[QNetwork, QNetwork, Transitions], Loss]
"""A loss of the network, given that of the targets and what was drawn."""


def td_loss(network: QNetwork, target: QNetwork, batch: Transitions, double: bool = True, huber: bool = False) -> Loss:
    """`(r + gamma max_a Q'(s', a) - Q(s, a)) ** 2`, linear beyond 1 if `huber`.

    >>> import polyrhythm as pr
    >>> from polyrhythm import rl
    >>> q, seen, ones = QNetwork((3,), rl.Discrete(2), ()), pr.ones((5, 3)), pr.ones((5,))
    >>> pr.evaluate(td_loss(q, q, Transitions(seen, pr.zeros((5,), "int32"), ones, seen, 0.0 * ones)).each).shape
    (5,)
    """
    count = network.actions.n
    following = target(batch.following)
    chooser = network(batch.following) if double else following
    best = (following * one_hot(argmax(chooser, -1), count)).sum(-1)
    wanted = detach(batch.reward + batch.discount * best)
    error = (network(batch.observation) * one_hot(batch.action, count)).sum(-1) - wanted
    return Loss(_huber(error) if huber else square(error), error)


def dqn(source: Source, model: QNetwork, settings: Settings = Settings()) -> Training:  # noqa: B008 (it is frozen)
    """Train a network of action values: one program, whose iterations are a bound of the call.

    >>> from polyrhythm import rl
    >>> carts = rl.Arrays(rl.CartPole(), 2)
    >>> training = dqn(carts, rl.QNetwork(carts.observations, carts.actions, (4,)))
    >>> sorted(training.outputs)
    ['episodes', 'exploration', 'loss', 'return', 'value', 'weights']
    """

    def loss_of(network: QNetwork, target: QNetwork, batch: Transitions) -> Loss:
        return td_loss(network, target, batch, settings.double, settings.huber)

    return value_based(source, model, settings, loss_of)


def value_based(source: Source, model: QNetwork, settings: Settings, loss_of: LossOf) -> Training:
    """Act greedily by the values of a network, now and then at random, and learn from replayed transitions."""
    check(source, model, "an rl.QNetwork", "values")
    i, _ = dim("i")
    t, last = dim("t")
    u, updates = dim("u")
    rows = settings.steps * source.count
    first = model.parameters()
    weights = optim.over(u, first, outer=i)
    target = copied(u, first, weights, settings.target_update, outer=i)

    acting = model.using(mapped(lambda w: w[{u: 0, i: i}], weights))
    iterations_of_exploring = max(1, settings.exploration_steps // rows)
    epsilon = optim.linear(i, settings.exploration_initial, settings.exploration_final, iterations_of_exploring)
    found: list[Tensor] = []

    def act(seen: Any) -> Tensor:
        found[:] = [acting.values(seen)]
        return explore(i, t, found[0], epsilon, source.count)

    steps = source.run(i, t, act)
    replay = Replay(i, t, u, steps, source.count, settings.steps, settings.buffer_size, settings.n_step)
    drawn = None
    if settings.prioritized:
        beta: Any = settings.priority_beta
        if settings.priority_beta_steps is not None:
            beta = optim.linear(i, beta, 1.0, max(1, settings.priority_beta_steps // rows))
        drawn = prioritised(replay, settings.batch_size, settings.priority_alpha, beta)
        batch = replay.transitions(drawn.rows, settings.gamma, drawn.weight)
    else:
        batch = replay.transitions(replay.uniform(settings.batch_size), settings.gamma)

    found_loss = loss_of(model.using(weights), model.using(target), batch)
    if drawn is not None:
        drawn.update(abs(found_loss.error) + 1e-6)
    loss = found_loss.each.mean()
    if batch.weight is not None:  # the weights of a prioritised replay are of the rows that count
        loss = (batch.weight * found_loss.each).sum() / maximum((batch.weight > 0.0).cast("float32").sum(), 1.0)
    gradients = optim.clip_by_global_norm(u, grad(loss, weights), settings.max_grad_norm, outer=i)
    early = value(i) < max(settings.learning_starts // rows, replay.first)
    optim.adam(u, weights, gradients, settings.learning_rate, outer=i, skip=early)

    figures = {"exploration": epsilon, "loss": loss[{u: slice(0, updates)}].mean()}
    figures["value"] = found[0].max(-1)[{t: slice(0, settings.steps)}].mean()
    after = {name: w[{u: updates, i: i}] for name, w in weights.items()}
    return Training.of(i, t, steps, after, figures, {last: settings.steps, updates: settings.updates})


def explore(i: Dim, t: Dim, values: Tensor, epsilon: Tensor, count: int) -> Tensor:
    """The best action, but a random one with probability `epsilon`."""
    chance = uniform((count,), dims=(i, t), name="exploration")
    random = randint((count,), 0, int(values.shape[-1]), dims=(i, t), name="random actions")
    return where(chance < epsilon, random, argmax(values, -1))


def _huber(error: Tensor) -> Tensor:
    """Half the square up to 1, linear beyond."""
    size = abs(error)
    return where(size <= 1.0, 0.5 * square(error), size - 0.5)
