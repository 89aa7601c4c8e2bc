"""An environment of any size with next to no work of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from polyrhythm.language.functions import reshape, uniform, zeros
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.rl.environments.base import State, like
from polyrhythm.rl.spaces import Box, Discrete


@dataclass(frozen=True)
class Synthetic:
    """Observations of any shape, episodes of any length, and next to no work: to measure everything else.

    What is seen moves a little at every step, by the action; the reward is how bright it is.

    >>> import polyrhythm as pr
    >>> lamps = Synthetic((8, 8, 3), length=10, count=4)
    >>> lamps.observe(lamps.reset(5)).shape
    (5, 8, 8, 3)
    """

    shape: tuple[int, ...] = (4,)
    length: int = 100
    count: int = 2

    @property
    def observations(self) -> Box:
        """As asked for."""
        return Box(self.shape)

    @property
    def actions(self) -> Discrete:
        """As many as asked for."""
        return Discrete(self.count)

    @property
    def limit(self) -> int:
        """Episodes end after their length only."""
        return self.length

    def reset(self, count: int, dims: Sequence[Dim] = (), name: str | None = None) -> State:
        """Lights between -1 and 1."""
        return {"lights": uniform((count, *self.shape), -1.0, 1.0, dims=dims, name=name)}

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """All lights decay, and brighten by the action."""
        lights = state["lights"]
        push = (action.cast("float32") + 1.0) * (0.1 / self.count)
        after = 0.9 * lights + like(push, lights)
        flat = reshape(after, (lights.shape[0], math.prod(self.shape)))
        return {"lights": after}, flat.mean(1), zeros(action.shape, "bool")

    def observe(self, state: State) -> Tensor:
        """All there is."""
        return state["lights"]
