"""Environments of an agent over the devices of a mesh: acting, and learning from what was seen there.

A permutation of all rows of a rollout would bring every row to every device. So each device deals out the rows of its
own environments to its part of every minibatch, and only gradients are summed over devices. With one device that is a
permutation of all; with several it is another order of learning, the same on any number of devices for one mesh axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from polyrhythm.errors import DeclarationError, UnsupportedError
from polyrhythm.language.functions import argsort, gather, reshape, take, transpose, uniform, value
from polyrhythm.language.index import Dim
from polyrhythm.language.sharding import shard
from polyrhythm.language.tensor import Tensor

if TYPE_CHECKING:
    from polyrhythm.rl.ppo import Settings


@dataclass(frozen=True)
class Spread:
    """Over how many devices environments go, along which axis of the mesh."""

    ways: int = 1
    axis: str = ""

    @staticmethod
    def over(mesh: Any, count: int, settings: Settings, remembers: bool) -> Spread:
        """The first axis of a mesh, if environments and minibatches divide."""
        if mesh is None:
            return ALONE
        axis, ways = next(iter(mesh.shape.items()))
        if remembers:
            raise UnsupportedError(
                "a policy that remembers cannot be spread over devices yet", fix="use one without memory, or no mesh"
            )
        if count % ways or (settings.steps * count // ways) % settings.minibatches:
            raise DeclarationError(
                f"{count} environments of {settings.steps} steps do not divide into {ways} devices with "
                f"{settings.minibatches} minibatches each",
                fix=f"use a multiple of {ways} environments",
            )
        return Spread(ways, axis)

    def rows(self, x: Tensor) -> Tensor:
        """A value with one row for each environment, on its device."""
        return x if self.ways == 1 else shard(x, 0, self.axis)

    def chosen(self, i: Dim, u: Dim, rows: int, parts: int) -> Tensor:
        """Which rows of each device are in the minibatch of an update: in each epoch they are dealt out anew."""
        own = rows // self.ways
        drawn = argsort(uniform((self.ways, own), dims=(i, u), name="order"), 1)
        order = reshape(drawn[{i: i, u: u // parts * parts}], (self.ways, parts, own // parts))
        return take(order, value(u % parts), 1)

    def picked(self, whole: Tensor, chosen: Tensor) -> Tensor:
        """Some rows of each device, of a value over steps and environments; those of all devices after each other."""
        steps, count, *rest = whole.shape
        swapped = transpose(whole, (1, 0, *range(2, 2 + len(rest))))
        rows = shard(reshape(swapped, (self.ways, count // self.ways * steps, *rest)), 0, self.axis)
        index = reshape(chosen, (*chosen.shape, *(1 for _ in rest)))
        return self.rows(reshape(gather(rows, index, 1), (self.ways * chosen.shape[1], *rest)))


ALONE = Spread()
"""One device."""
