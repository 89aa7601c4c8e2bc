"""Environments that run inside a program: what acting in them over iterations i and steps t gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from polyrhythm.language.functions import maximum, take, where, zeros
from polyrhythm.language.index import Dim
from polyrhythm.language.recurrent import Recurrent, recurrent
from polyrhythm.language.tensor import Tensor
from polyrhythm.optim.states import bound_of
from polyrhythm.rl.environments.base import Environment, advance, begin
from polyrhythm.rl.spaces import Space, Spaces


class Which(NamedTuple):
    """The environments that the rows of a step are of."""

    number: Tensor
    """One for each row, no two alike."""
    everywhere: int
    """How many environments there are."""


class Steps(NamedTuple):
    """What acting gives, over iterations and steps; the first axis of each tensor counts the environments."""

    observation: Any
    """What the agent saw: a tensor, or a dict or tuple of tensors."""
    action: Tensor
    following: Any
    """What the action led to: at the end of an episode its final observation, never the first of the next."""
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor | None = None
    """Where the step was one of an episode; None if all are."""
    raw_reward: Tensor | None = None
    """Rewards as the environment gave them, where `reward` is something else."""
    which: Which | None = None
    """Which environments the rows are of; None if row k is always of environment k."""


class Source(Protocol):
    """Several environments to act in."""

    @property
    def observations(self) -> Spaces:
        """What an agent sees of one environment."""

    @property
    def actions(self) -> Space:
        """What an action is."""

    @property
    def count(self) -> int:
        """How many environments there are."""

    def run(self, i: Dim, t: Dim, act: Callable[[Any], Tensor]) -> Steps:
        """Act in all of them: episodes go on from the last step of an iteration to the first of the next."""


@dataclass(frozen=True)
class Arrays:
    """So many copies of an array environment, compiled into the program.

    >>> import polyrhythm as pr
    >>> from polyrhythm.rl.environments import CartPole
    >>> i, I = pr.dim("i")
    >>> t, T = pr.dim("t")
    >>> steps = Arrays(CartPole(), 3).run(i, t, lambda seen: (seen.axes[:, 2] > 0).cast("int32"))
    >>> pr.evaluate(steps.terminated, bounds={I: 2, T: 40}).any(axis=(0, 1)).tolist()
    [True, True, True]
    """

    environment: Environment
    count: int

    @property
    def observations(self) -> Spaces:
        """The environment's."""
        return self.environment.observations

    @property
    def actions(self) -> Space:
        """The environment's."""
        return self.environment.actions

    def run(self, i: Dim, t: Dim, act: Callable[[Any], Tensor]) -> Steps:
        """Act in all of them."""
        first = begin(self.environment, self.count, name="first episodes")
        state = {name: carried(i, t, value, name) for name, value in first.items()}
        observation = self.environment.observe(state)  # type: ignore[arg-type]
        action = act(observation)
        fresh = self.environment.reset(self.count, (i, t), name="fresh episodes")
        done = advance(self.environment, state, action, fresh)  # type: ignore[arg-type]
        for name, tensor in state.items():
            tensor[i, t + 1] = done.state[name]
        # What an environment gives at every step alike is a tensor over the steps too, as others read it there.
        reward, terminated = (where((i >= 0) & (t >= 0), x, x) for x in (done.reward, done.terminated))
        return Steps(observation, action, done.following, reward, terminated, done.truncated)


def unwrapped(source: Source) -> Any:
    """The environments themselves, without what normalises or clips on the way.

    >>> from polyrhythm import rl
    >>> type(unwrapped(rl.Normalized(rl.Arrays(rl.Pendulum(), 2)))).__name__
    'Arrays'
    """
    while hasattr(source, "source"):
        source = source.source
    return source


def limit_of(source: Source) -> int:
    """The most steps of an episode.

    >>> from polyrhythm import rl
    >>> limit_of(Arrays(rl.Pendulum(), 2))
    200
    """
    bare = unwrapped(source)
    return int(bare.environment.limit if isinstance(bare, Arrays) else bare.limit)


def carried(i: Dim, t: Dim, first: Tensor, name: str | None = None) -> Recurrent:
    """A tensor over iterations and their steps, and one step more, where the next iteration begins.

    What `[i, t + 1]` is remains to be defined.

    >>> import polyrhythm as pr
    >>> i, I = pr.dim("i")
    >>> t, T = pr.dim("t")
    >>> count = carried(i, t, pr.constant(0))
    >>> count[i, t + 1] = count + 1
    >>> pr.evaluate(count, bounds={I: 2, T: 3}).tolist()
    [[0, 1, 2, 3], [3, 4, 5, 6]]
    """
    last = bound_of(t)
    tensor = recurrent(first.shape, (i, (t, last + 1)), first.dtype, name)
    tensor[0, 0] = first
    tensor[i + 1, 0] = tensor[{i: i, t: last}]
    return tensor


def episodes(i: Dim, t: Dim, steps: Steps) -> tuple[Tensor, Tensor]:
    """Over iterations: how many episodes ended, and the mean of their returns (0 if none did).

    >>> import polyrhythm as pr
    >>> from polyrhythm.rl.environments import Synthetic
    >>> i, I = pr.dim("i")
    >>> t, T = pr.dim("t")
    >>> steps = Arrays(Synthetic((1,), length=4), 3).run(i, t, lambda seen: (seen.axes[:, 0] * 0).cast("int32"))
    >>> pr.evaluate(episodes(i, t, steps)[0], bounds={I: 2, T: 6}).tolist()
    [3.0, 6.0]
    """
    whole = slice(0, bound_of(t))
    ended = steps.terminated | steps.truncated
    reward = steps.reward if steps.raw_reward is None else steps.raw_reward
    total = totals(i, t, steps, reward)
    count = ended.cast("float32")[{t: whole}].sum()
    return count, where(ended, total, 0.0)[{t: whole}].sum() / maximum(count, 1.0)


def totals(i: Dim, t: Dim, steps: Steps, x: Tensor, gamma: float = 1.0) -> Tensor:
    """The sum of something over the episode so far, this step included; what was before counts `gamma` times.

    >>> import polyrhythm as pr
    >>> from polyrhythm.rl.environments import Synthetic
    >>> i, I = pr.dim("i")
    >>> t, T = pr.dim("t")
    >>> steps = Arrays(Synthetic((1,), length=2), 1).run(i, t, lambda seen: (seen.axes[:, 0] * 0).cast("int32"))
    >>> found = totals(i, t, steps, steps.reward * 0.0 + 1.0, 0.5)[{t: slice(0, T)}]
    >>> pr.evaluate(found, bounds={I: 1, T: 3}).ravel().tolist()
    [1.0, 1.5, 1.0]
    """
    over = steps.terminated | steps.truncated
    if steps.which is None:
        before = carried(i, t, zeros(x.shape, x.dtype))
        now = x + before if gamma == 1.0 else x + gamma * before
        before[i, t + 1] = where(over, 0.0, now)
        return now
    number, everywhere = steps.which
    before = carried(i, t, zeros((everywhere,), x.dtype))
    now = gamma * take(before, number, 0) + x
    before[i, t + 1] = before.at[number].set(where(over, 0.0, now))
    return now
