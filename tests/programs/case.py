"""What a hand-written program is: how to build it, what to call it with, and its answer by other means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

import polyrhythm as pr

Bounds = Mapping[str, int]
Arrays = dict[str, Any]


@dataclass(frozen=True)
class Built:
    """A program as the user hands it to the compiler.

    `log` is what its host functions leave behind; a run fills it, so it is emptied before each one.
    """

    outputs: dict[str, pr.Tensor]
    until: Mapping[pr.Dim, pr.Tensor] | None = None
    effects: tuple[pr.Tensor, ...] = ()
    log: list[Any] | None = None


@dataclass(frozen=True)
class Case:
    """A program with its answer from plain NumPy loops.

    `given` names the bounds that no input tells. `reference` gets the inputs as they were passed and every bound, and
    returns one array per output, a `pr.Ragged` for a ragged one, and under "log" what the host functions saw.
    """

    name: str
    build: Callable[[], Built]
    make_inputs: Callable[[np.random.Generator, Bounds], Arrays]
    bounds: tuple[Bounds, ...]
    reference: Callable[[Arrays, Bounds], Arrays]
    given: tuple[str, ...] = ()
    tolerance: float = field(default=1e-5)

    @cached_property
    def built(self) -> Built:
        """The program, built once."""
        return self.build()

    def inputs(self, bounds: Bounds) -> Arrays:
        """The same inputs every time for the same bounds."""
        return self.make_inputs(np.random.default_rng(sum(bounds.values()) + 1), bounds)

    def call_bounds(self, bounds: Bounds) -> dict[str, int]:
        """The bounds that must be passed at the call."""
        return {name: bounds[name] for name in self.given}

    def check(self, outputs: Arrays, inputs: Arrays, bounds: Bounds) -> None:
        """Compare outputs with the reference: integers exactly, floats relative to the magnitude of the answer."""
        expected = self.reference(inputs, bounds)
        logged = expected.pop("log", None)
        assert outputs.keys() == expected.keys()
        for key, want in expected.items():
            compare(outputs[key], want, f"{self.name}[{key}] at {dict(bounds)}", self.tolerance)
        if self.built.log is not None:
            assert self.built.log == logged, f"{self.name}: calls at {dict(bounds)}"


def compare(have: Any, want: Any, where: str, tolerance: float) -> None:
    """Equal shapes, and equal values up to a tolerance for floats."""
    if isinstance(want, pr.Ragged):
        assert isinstance(have, pr.Ragged), where
        np.testing.assert_array_equal(have.lengths, want.lengths, where)
        assert len(have.values) == len(want.values), where
        for row, (one, other, length) in enumerate(zip(have.values, want.values, want.lengths, strict=True)):
            compare(one[:length], other[:length], f"{where} row {row}", tolerance)
        return
    assert isinstance(have, np.ndarray), f"{where}: {type(have)}"
    want = np.asarray(want)
    assert have.shape == want.shape, f"{where}: shape {have.shape} instead of {want.shape}"
    if have.dtype.kind == "f":
        scale = max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0)))
        np.testing.assert_allclose(have, want, rtol=0, atol=tolerance * scale, err_msg=where)
    else:
        assert want.dtype.kind in "iub", f"{where}: integers expected, the reference has {want.dtype}"
        np.testing.assert_array_equal(have, want, where)


def steps(*values: int, name: str = "T", **others: int) -> tuple[Bounds, ...]:
    """Bounds that differ in one dim."""
    return tuple({name: value, **others} for value in values)


EDGES = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17)
"""Numbers of steps around nothing, one, and the edges of tiles."""
