"""The JAX backend: one XLA program per set of capacities."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from polyrhythm.backends.jax.lowering import Lowering, seed_words, sizing_bounds
from polyrhythm.backends.jax.regions import Driver, has_host
from polyrhythm.ir.terms import Symbol
from polyrhythm.loops.ir import LoopProgram, blocks_of, output_shapes


@dataclass
class Compilation:
    """One compilation by XLA: for which capacities, why, and how long it took."""

    capacities: dict[str, int]
    reason: str
    seconds: float


@dataclass
class JaxBackend:
    """Runs a Loop IR program as XLA programs."""

    program: LoopProgram
    compilations: list[Compilation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sizing = sorted(sizing_bounds(self.program), key=lambda s: s.name)
        self.others = [s for s in self.program.bounds if s not in self.sizing]
        self.wide = _needs_wide(self.program)
        self.host = has_host(self.program.body)
        self._compiled: dict[tuple[int, ...], Any] = {}

    def run(self, inputs: Mapping[str, Any], bounds: Mapping[str, int], seed: int) -> tuple[list[Any], dict[str, int]]:
        """The outputs, and the bounds found while running."""
        capacities = {s: capacity(bounds[s.name]) for s in self.sizing}
        with _precision(self.wide):
            padded = {}
            for given, name in self.program.inputs.items():
                place = self.program.places[name]
                shape = tuple(n.evaluate(capacities.__getitem__) for n in place.whole)
                padded[name] = _padded(inputs[given], shape)
            values = np.array([bounds[s.name] for s in self.program.bounds], np.int32)
            if self.host:
                given_bounds = {s: bounds[s.name] for s in self.program.bounds}
                outputs, ends = self._driver(capacities).run(padded, given_bounds, seed_words(seed))
                ended = {s.name: value for s, value in ends.items()}
            else:
                compiled = self._compile(capacities, padded)
                outputs, found = compiled(padded, values, seed_words(seed))
                ended = {s.name: int(value) for s, value in zip(self.program.found, found, strict=True)}
        shapes = output_shapes(self.program, {**bounds, **ended})
        return [_cut(o, shape) for o, shape in zip(outputs, shapes, strict=True)], ended

    def _driver(self, capacities: Mapping[Symbol, int]) -> Driver:
        key = tuple(capacities[s] for s in self.sizing)
        if key not in self._compiled:
            names = {s.name: n for s, n in capacities.items()}

            def note() -> None:
                self.compilations.append(Compilation(names, "a region between host calls", 0.0))

            self._compiled[key] = Driver(self.program, capacities, note)
        return self._compiled[key]  # type: ignore[no-any-return]

    def _compile(self, capacities: Mapping[Symbol, int], inputs: Mapping[str, jax.Array]) -> Any:
        key = tuple(capacities[s] for s in self.sizing)
        if key not in self._compiled:
            started = time.perf_counter()
            traced = jax.jit(lambda i, b, s: self._trace(capacities, i, b, s))
            words = jax.ShapeDtypeStruct((2,), np.uint32)
            values = jax.ShapeDtypeStruct((len(self.program.bounds),), np.int32)
            self._compiled[key] = traced.lower(dict(inputs), values, words).compile()
            names = {s.name: n for s, n in capacities.items()}
            reason = "first call" if not self.compilations else f"new capacities {names}"
            self.compilations.append(Compilation(names, reason, time.perf_counter() - started))
        return self._compiled[key]

    def _trace(
        self, capacities: Mapping[Symbol, int], inputs: Mapping[str, jax.Array], values: jax.Array, seed: jax.Array
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        symbols: dict[Symbol, Any] = {s: values[i] for i, s in enumerate(self.program.bounds)}
        return Lowering(self.program, capacities, symbols, seed).run(inputs)


def capacity(value: int) -> int:
    """The power of two that holds a bound.

    >>> [capacity(n) for n in (0, 1, 2, 3, 8, 9)]
    [0, 1, 2, 4, 8, 16]
    """
    return 0 if value == 0 else 1 << (value - 1).bit_length()


def _padded(array: np.ndarray, shape: tuple[int, ...]) -> jax.Array:
    """An input at its capacity. NumPy does the copy: in JAX it would compile anew for every length."""
    if array.shape != shape:
        room = np.zeros(shape, array.dtype)
        room[tuple(map(slice, array.shape))] = array
        array = room
    return jax.device_put(array)


def _cut(array: jax.Array, shape: tuple[int, ...]) -> Any:
    """An output cut to its shape, without compiling for every length."""
    return array if array.shape == shape else np.asarray(array)[tuple(map(slice, shape))]


def _needs_wide(program: LoopProgram) -> bool:
    """Whether any value has 64-bit elements."""
    kinds = [place.type.dtype for place in program.places.values()]
    kinds += [compute.type.dtype for block in blocks_of(program.body) for compute in block.body]
    return any(dtype.itemsize == 8 for dtype in kinds)


def _precision(wide: bool) -> contextlib.AbstractContextManager[Any]:
    return jax.enable_x64(True) if wide else jax.enable_x64(False)
