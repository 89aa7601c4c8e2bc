"""Replay: a window of the past, from which transitions are drawn.

Nothing is written to a buffer. What an update reads, `pr.window(x, i, W)`, are the last W iterations; the compiler has
a ring of that many of each tensor, and a draw reads its rows from there. Priorities are a recurrence over updates.

A row is one step of one environment. Transitions of n steps are made when they are drawn: n rewards, or fewer where the
episode ends, and the discount of what follows, which is zero after a terminated step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from polyrhythm import optim
from polyrhythm.errors import DeclarationError
from polyrhythm.language.functions import (
    arange,
    as_tensor,
    cumsum,
    maximum,
    minimum,
    ones,
    randint,
    reshape,
    scatter_add,
    searchsorted,
    take,
    uniform,
    value,
    where,
    zeros,
)
from polyrhythm.language.gradient import detach
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor, window
from polyrhythm.optim.states import mapped
from polyrhythm.rl.running import Steps


class Transitions(NamedTuple):
    """What was drawn: one row each."""

    observation: Any
    action: Tensor
    reward: Tensor
    """The discounted sum of the rewards of n steps, or of those to the end of the episode."""
    following: Any
    discount: Tensor
    """How much the value of what follows counts: `gamma ** n`, 0 where the episode was terminated."""
    weight: Tensor | None = None
    """How much a row counts in the loss; None if all count the same."""


@dataclass(frozen=True)
class Replay:
    """The last `capacity` steps of all environments, of iterations of `steps` steps each.

    >>> import polyrhythm as pr
    >>> from polyrhythm import rl
    >>> i, I = pr.dim("i")
    >>> t, T = pr.dim("t")
    >>> u, U = pr.dim("u")
    >>> carts = rl.Arrays(rl.CartPole(), 2)
    >>> acted = carts.run(i, t, lambda seen: (seen.axes[:, 2] > 0).cast("int32"))
    >>> replay = Replay(i, t, u, acted, count=2, steps=5, capacity=40)
    >>> drawn = replay.transitions(replay.uniform(3), gamma=0.9)
    >>> pr.evaluate(drawn.reward, bounds={I: 1, T: 5, U: 1}).tolist()
    [[[1.0, 1.0, 1.0]]]
    """

    i: Dim
    t: Dim
    u: Dim
    acted: Steps
    count: int
    steps: int
    capacity: int
    n: int = 1

    def __post_init__(self) -> None:
        if self.n > 1 and self.acted.which is not None:
            raise DeclarationError(
                f"transitions of {self.n} steps need steps that follow each other; these are of those that were ready",
                fix="take n_step=1, or environments that wait for each other: rl.Gym(rl.threaded(...))",
            )
        least = self.rows * (self.first + 1)
        if self.capacity < least:
            raise DeclarationError(
                f"a replay of {self.capacity} steps has no transition of {self.n} steps: iterations have {self.rows}",
                fix=f"make the buffer {least} or larger, or iterations shorter",
            )

    @property
    def first(self) -> int:
        """The first iteration after which there is a transition of n steps."""
        return (self.n - 1) // self.steps

    @property
    def rows(self) -> int:
        """The rows of one iteration."""
        return self.steps * self.count

    @property
    def iterations(self) -> int:
        """How many iterations are remembered at most."""
        return self.capacity // self.rows

    @property
    def length(self) -> Tensor:
        """How many steps of each environment there are to begin a transition with, by now."""
        return maximum(minimum(value(self.i) + 1, self.iterations) * self.steps - (self.n - 1), 1)

    def uniform(self, batch: int) -> Tensor:
        """Rows, all equally likely."""
        dims = (self.i, self.u)
        step = randint((batch,), 0, self.length, dims=dims, name="replayed steps")
        return step * self.count + randint((batch,), 0, self.count, dims=dims, name="replayed environments")

    def read(self, tensor: Tensor, rows: Tensor) -> Tensor:
        """Some rows of a tensor over i and t."""
        whole = window(detach(tensor)[{self.t: slice(0, self.steps)}], self.i, self.iterations)
        return take(reshape(whole, (-1, *tensor.shape[1:])), rows, 0)

    def transitions(self, rows: Tensor, gamma: float, weight: Tensor | None = None) -> Transitions:
        """What began at some rows, over n steps."""
        acted = self.acted
        reward, discount = zeros(rows.shape), zeros(rows.shape)
        going, last = ones(rows.shape, "bool"), rows
        for k in range(self.n):
            row = rows + k * self.count
            terminated, truncated = self.read(acted.terminated, row), self.read(acted.truncated, row)
            reward = reward + where(going, gamma**k * self.read(acted.reward, row), 0.0)
            last = where(going, row, last)
            discount = where(going, gamma ** (k + 1) * (1.0 - terminated.cast("float32")), discount)
            going = going & ~(terminated | truncated)
        if acted.valid is not None:
            valid = self.read(acted.valid, rows).cast("float32")
            weight = valid if weight is None else valid * weight
        read: Callable[[Tensor], Tensor] = lambda x: self.read(x, rows)  # noqa: E731
        following = mapped(lambda x: self.read(x, last), acted.following)
        return Transitions(mapped(read, acted.observation), read(acted.action), reward, following, discount, weight)


class Drawn(NamedTuple):
    """Rows drawn by their priorities."""

    rows: Tensor
    weight: Tensor
    """`(N P) ** -beta`, over the greatest: undoes that some rows are drawn more often than others."""
    update: Callable[[Tensor], None]
    """To be called with the new priorities of the rows, such as absolute errors."""


def prioritised(replay: Replay, batch: int, alpha: float, beta: float | Tensor) -> Drawn:
    """Rows drawn in proportion to their priority to the power `alpha` (Schaul et al., 2016).

    New rows have the greatest priority so far. Priorities stand in slots: iteration j has those of `j % W`.
    """
    i, u, rows, iterations = replay.i, replay.u, replay.rows, replay.iterations
    size = rows * iterations
    kept = optim.over(u, zeros((size,)), outer=i)
    greatest = optim.over(u, 1.0, outer=i)
    slot = arange(size)
    fresh = (slot // rows == value(i % iterations)) & (value(u) == 0)
    priority = where(fresh, greatest, kept)
    # The row of each slot in the window, and whether n steps follow it there.
    ages = (value(i) - slot // rows + iterations * rows) % iterations
    oldest = maximum(value(i) - (iterations - 1), 0)
    row = (value(i) - ages - oldest) * rows + slot % rows
    possible = where(row // replay.count < replay.length, priority, 0.0)
    running = cumsum(possible, 0)
    total = running.axes[-1]
    mark = uniform((batch,), dims=(i, u), name="priorities") * total
    chosen = minimum(searchsorted(running, mark, "right"), size - 1)
    weight = importance(possible, chosen, beta)

    def update(new: Tensor) -> None:
        powers = detach(new) ** alpha
        seen = scatter_add(zeros((size,)), chosen, ones((batch,)))
        # A row that was drawn twice has one error: the mean of its entries is that.
        sums = scatter_add(zeros((size,)), chosen, powers)
        kept[u + 1] = where(seen > 0.0, sums / maximum(seen, 1.0), priority)
        greatest[u + 1] = maximum(greatest, powers.max())

    return Drawn(where(weight > 0.0, take(row, chosen, 0), 0), detach(weight), update)


def importance(priority: Tensor, chosen: Tensor, beta: float | Tensor) -> Tensor:
    """`(N P) ** -beta` of rows drawn by their priority, over the greatest.

    Cumulative sums are rounded, and may rise at a row of priority 0: one that is drawn by that counts for nothing.

    >>> import polyrhythm as pr
    >>> pr.evaluate(importance(pr.constant([1.0, 0.0, 2.0]), pr.constant([0, 1, 2]), 1.0)).tolist()
    [1.0, 0.0, 0.5]
    """
    probability = take(priority, chosen, 0) / priority.sum()
    count, possible = (priority > 0.0).cast("float32").sum(), probability > 0.0
    weight = where(possible, where(possible, count * probability, 1.0) ** -as_tensor(beta), 0.0)
    return weight / maximum(weight.max(), 1e-30)
