"""Programs as someone writes them who has read `docs/language.md` only, each beside the JAX of an expert.

A module of this package has `ROWS`. A row is independent of all others, so that a module is one subject.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import polyrhythm as pr

Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Natural:
    """A program and its peer.

    `outputs` makes the program: its outputs, perhaps with options of `pr.compile`. `given` are its inputs for a number
    of steps, `peer` returns the same leaves from the same arrays, by name, and is told the steps if no array has them.
    `bounds` are those that no input tells. `reason` says why a row is known to miss a target.
    """

    name: str
    outputs: Callable[[], Any]
    given: Callable[[int], Arrays]
    peer: Callable[..., Any]
    steps: int
    bounds: Callable[[int], Mapping[str, int]] = field(default=lambda steps: {})
    counted: bool = False
    tolerance: float = 1e-4
    reason: str = ""

    def compiled(self) -> pr.Program:
        """The program."""
        made = self.outputs()
        outputs, options = made if isinstance(made, tuple) else (made, {})
        return pr.compile(outputs, **options)

    def peer_of(self, steps: int) -> Callable[..., Any]:
        """The peer for a number of steps, to be jitted."""
        return functools.partial(self.peer, steps=steps) if self.counted else self.peer


def rows() -> dict[str, Natural]:
    """All rows by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return {row.name: row for module in modules for row in module.ROWS}


def normal(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Random numbers for an input."""
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype("float32")
