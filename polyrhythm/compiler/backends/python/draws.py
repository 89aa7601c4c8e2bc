"""Random bits of many steps at once: one draw is some hundred operations on words, however few it makes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from polyrhythm.compiler.ir.ops.random import bits_of_steps

ELEMENTS = 2**15
"""About so many elements are drawn at once, at most."""

Step = tuple[int, ...]


class Draws:
    """The random bits of one run. Draws of a site at consecutive steps are made together, twice as many each time."""

    def __init__(self, placed: Callable[[np.ndarray], Any]) -> None:
        self.placed = placed
        self.kept: dict[str, tuple[Step, Step, int, Any]] = {}  # by site: shape, step, how many, and the bits

    def __call__(self, shape: Step, site: str, seed: int, step: Step) -> Any:
        """The bits at a step; without coordinates it is as one that is the only one."""
        found = self.kept.get(site)
        if found is not None and found[0] == shape and found[1][:-1] == step[:-1]:
            ahead = step[-1] - found[1][-1]
            if 0 <= ahead < found[2]:
                return found[3][ahead]
            count = max(1, min(2 * found[2], ELEMENTS // max(1, prod(shape)))) if ahead == found[2] else 1
        else:
            count = 1
        bits = self.placed(bits_of_steps(shape, site, seed, step, count))
        self.kept[site] = shape, step, count, bits
        return bits[0]
