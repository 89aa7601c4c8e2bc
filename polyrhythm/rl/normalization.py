"""Normalised observations and rewards: running statistics as recurrences, part of the program and of its checkpoints.

Means and variances are those of all steps of all environments so far, combined as Chan et al. (1979) do, and equal to
Gymnasium's wrappers `NormalizeObservation` and `NormalizeReward`. Returns are reported as the environment has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from polyrhythm.errors import DeclarationError
from polyrhythm.language.functions import clip, constant, ones, sign, sqrt, square, zeros
from polyrhythm.language.index import Dim
from polyrhythm.language.recurrent import Recurrent
from polyrhythm.language.tensor import Tensor
from polyrhythm.optim.states import bound_of
from polyrhythm.rl.running import Source, Steps, carried, totals
from polyrhythm.rl.spaces import Box, Space, Spaces


class _Around:
    """Environments around others, of which they pass on what they do not change."""

    source: Source

    @property
    def observations(self) -> Spaces:
        """As they are."""
        return self.source.observations

    @property
    def actions(self) -> Space:
        """As they are."""
        return self.source.actions

    @property
    def count(self) -> int:
        """As many."""
        return self.source.count


@dataclass
class Normalized(_Around):
    """Environments whose observations and rewards are normalised on the way.

    >>> import polyrhythm as pr
    >>> from polyrhythm import rl
    >>> i, I = pr.dim("i")
    >>> t, T = pr.dim("t")
    >>> swings = Normalized(rl.Arrays(rl.Pendulum(), 4))
    >>> steps = swings.run(i, t, lambda seen: seen.axes[:, 0:1])
    >>> bool(abs(pr.evaluate(steps.observation[{t: T}], bounds={I: 1, T: 50})).max() < 10)
    True
    """

    source: Source
    observation: bool = True
    reward: bool = True
    gamma: float = 0.99
    clip: float = 10.0
    epsilon: float = 1e-8
    _dims: tuple[Dim, ...] = ()
    statistics: dict[str, Recurrent] = field(default_factory=dict)
    """What was made by the last `run`, over iterations and steps: to be applied where the agent is used."""

    @property
    def observations(self) -> Spaces:
        """Of the same shape, as floats."""
        space = self.source.observations
        if not self.observation:
            return space
        if not isinstance(space, Box):
            raise DeclarationError(f"{space} cannot be normalised", fix="normalise observations that are one Box")
        return Box(space.shape)

    def run(self, i: Dim, t: Dim, act: Callable[[Any], Tensor]) -> Steps:
        """Act by normalised observations."""
        self._dims = i, t
        scale: list[Callable[[Tensor], Tensor]] = []

        def acted(seen: Tensor) -> Tensor:
            if not self.observation:
                scale.append(lambda x: x)
                return act(seen)
            floats = seen.cast("float32")
            mean, variance = self._running(i, t, "observation", floats, 0)
            scale.append(lambda x: self._scaled(x.cast("float32"), mean, variance))
            return act(scale[0](floats))

        steps = self.source.run(i, t, acted)
        seen, following = scale[0](steps.observation), scale[0](steps.following)
        reward = steps.reward
        if self.reward:
            now = totals(i, t, steps, steps.reward, self.gamma)
            _, variance = self._running(i, t, "return", now, 0)
            reward = clip(steps.reward / sqrt(variance + self.epsilon), -self.clip, self.clip)
        raw = steps.reward if steps.raw_reward is None else steps.raw_reward
        return steps._replace(observation=seen, following=following, reward=reward, raw_reward=raw)

    def after(self) -> dict[str, Tensor]:
        """The statistics after each iteration, over i."""
        _, t = self._dims
        return {name: tensor[{t: bound_of(t)}] for name, tensor in self.statistics.items()}

    def final(self) -> dict[str, Tensor]:
        """The statistics after the last step of all."""
        i, _ = self._dims
        return {name: tensor[{i: bound_of(i) - 1}] for name, tensor in self.after().items()}

    def applied(self, observation: Tensor, statistics: Mapping[str, Tensor]) -> Tensor:
        """Observations normalised by statistics that no longer change, as a trained agent sees them."""
        if not self.observation:
            return observation
        mean, variance = (statistics[f"observation_{name}"] for name in ("mean", "variance"))
        return self._scaled(observation.cast("float32"), mean, variance)

    def _scaled(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return clip((x - mean) / sqrt(variance + self.epsilon), -self.clip, self.clip)

    def _running(self, i: Dim, t: Dim, what: str, x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """Mean and variance of all rows of x up to this step; before the first, 0 and 1 with next to no weight."""
        shape = x.shape[1:]
        mean = carried(i, t, zeros(shape), f"{what} mean")
        variance = carried(i, t, ones(shape), f"{what} variance")
        count = carried(i, t, constant(1e-4), f"{what} count")
        rows = float(int(x.shape[0]))
        own = x.mean(axis)
        spread = square(x - own).mean(axis)
        total, delta = count + rows, own - mean
        share = rows / total
        after = mean + delta * share
        both = variance * (1.0 - share) + spread * share + square(delta) * (count / total) * share
        mean[i, t + 1], variance[i, t + 1], count[i, t + 1] = after, both, total
        self.statistics |= {f"{what}_mean": mean, f"{what}_variance": variance}
        return after, both


@dataclass(frozen=True)
class ClippedReward(_Around):
    """Environments whose rewards are learnt from by their sign alone, as in Atari's games (Mnih et al., 2015).

    >>> import polyrhythm as pr
    >>> from polyrhythm import rl
    >>> i, I = pr.dim("i")
    >>> t, T = pr.dim("t")
    >>> steps = ClippedReward(rl.Arrays(rl.Pendulum(), 1)).run(i, t, lambda seen: seen.axes[:, 0:1])
    >>> pr.evaluate(steps.reward[{t: slice(0, T)}], bounds={I: 1, T: 2}).tolist()
    [[[-1.0], [-1.0]]]
    """

    source: Source

    def run(self, i: Dim, t: Dim, act: Callable[[Any], Tensor]) -> Steps:
        """Act, and keep the sign of what is rewarded."""
        steps = self.source.run(i, t, act)
        raw = steps.reward if steps.raw_reward is None else steps.raw_reward
        return steps._replace(reward=sign(steps.reward), raw_reward=raw)
