"""`python -m benchmarks constants`: what other values of the compiler's constants cost.

Each constant is set to a smaller and a larger value, and a program that it matters for is compiled with each; all take
turns. A ratio is the time with the constant as it is over the time with the other value: above 1.1 in a quiet process,
the other value is better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from unittest.mock import patch

import jax.numpy as jnp
import numpy as np

import polyrhythm as pr
from benchmarks.harness import OURS, Fact, Result, Way, race


@dataclass(frozen=True)
class Constant:
    """A constant, other values of it, and a program with its inputs."""

    module: str
    name: str
    others: tuple[int, ...]
    made: Callable[[], Any]
    shape: tuple[int, ...]
    budget: str | None = None

    @property
    def value(self) -> int:
        """What it is now."""
        return int(getattr(import_module(self.module), self.name))


def filtered(width: int) -> Callable[[], Any]:
    """The mean over all steps of a filter over the last values of a computed signal."""

    def made() -> Any:
        t, T = pr.dim("t")
        x = pr.input("x", (width,), (t,))
        y = pr.tanh(x * 1.5)
        z = sum((pr.where(t >= k, y[t - k], 0.0) * (1.0 / (k + 1)) for k in range(1, 5)), y)
        return pr.exp(z)[0:T].sum(0)

    return made


def window(steps: int) -> Callable[[], Any]:
    """The mean of the last steps, fewer at the start."""

    def made() -> Any:
        t, _ = pr.dim("t")
        return pr.window(pr.input("x", (8,), (t,)), t, steps).mean(0)

    return made


def outer() -> Any:
    """The mean of the outer products of a recurrence with itself."""
    t, T = pr.dim("t")
    x = pr.input("x", (16,), (t,))
    y = pr.recurrent((16,), (t,))
    y[0] = x[0]
    y[t + 1] = pr.tanh(0.9 * y + x[t + 1])
    return (y.axes[:, None] * y.axes[None, :])[0:T].mean(0)


def delayed(steps: int) -> Callable[[], Any]:
    """Each step with one before it, guarded at the edge."""

    def made() -> Any:
        t, _ = pr.dim("t")
        x = pr.input("x", (32,), (t,))
        return pr.tanh(x) * pr.where(t >= steps, pr.exp(x)[t - steps], 0.0)

    return made


TILES, PASSES = "polyrhythm.compiler.schedule.tiles", "polyrhythm.compiler.passes"

CONSTANTS = (
    Constant(TILES, "STEPS", (32, 1024), filtered(32), (40_000, 32), "200MB"),
    Constant(TILES, "BYTES", (1 << 17, 1 << 23), filtered(1024), (4_000, 1024), "200MB"),
    Constant(TILES, "FEWEST", (2, 128), filtered(8192), (500, 8192), "200MB"),
    Constant(f"{PASSES}.predicate", "EDGE", (4, 1024), delayed(48), (40_000, 32)),
    Constant(f"{PASSES}.accumulate", "SHARE", (4, 256), outer, (4_000, 16)),
    Constant(f"{PASSES}.accumulate", "FEW", (2, 128), outer, (4_000, 16)),
    Constant(f"{PASSES}.ranges", "FEW", (2, 128), window(64), (20_000, 8)),
)


def run(quick: bool) -> list[Result | Fact]:
    """A race for each constant."""
    return list(_races(3 if quick else 15))


def _races(rounds: int) -> Iterator[Result]:
    random = np.random.default_rng(0)
    for constant in CONSTANTS:
        x = jnp.asarray(random.normal(size=constant.shape).astype("float32"))
        ways: dict[str, Way] = {OURS: _way(constant, constant.value, x)}
        ways |= {str(value): _way(constant, value, x) for value in constant.others}
        module = constant.module.rsplit(".", 1)[-1]
        yield race(f"{module}.{constant.name} = {constant.value}", ways, rounds=rounds, tolerance=1e-3)


def _way(constant: Constant, value: int, x: Any) -> Way:
    with patch.object(import_module(constant.module), constant.name, value):
        program = pr.compile(constant.made(), memory_budget=constant.budget)
    return lambda: program(x=x)
