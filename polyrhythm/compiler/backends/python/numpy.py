"""The NumPy backend: generated Python over preallocated arrays, for debugging and for machines with nothing else."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from polyrhythm.compiler.backends.libraries import check_libraries
from polyrhythm.compiler.backends.python.emit import (
    START,
    Begin,
    Check,
    Position,
    Run,
    Source,
    cut,
    empty_read,
    generate,
    loaded,
)
from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.graph import HostFunction
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.loops.ir import LoopProgram
from polyrhythm.compiler.loops.spilling import SpillFile
from polyrhythm.errors import HostError


class NumpyBackend:
    """Runs a Loop IR program with NumPy."""

    def __init__(self, program: LoopProgram, checked: bool = False) -> None:
        check_libraries(program, "numpy")
        self.program = program
        self.source: Source = generate(program, {name: op.numpy for name, op in TABLE.items()}, checked)
        self._steps = loaded(self.source, "<polyrhythm numpy>")

    def start(
        self,
        inputs: Mapping[str, np.ndarray],
        bounds: Mapping[str, int],
        seed: int,
        check: Check | None = None,
        begin: Begin = START,
    ) -> tuple[Run, Iterator[Position]]:
        """A run that goes on whenever its next position is asked for; it may begin where another was stopped."""
        bounds = {**bounds, **begin.found}
        run = Run(self.program, bounds, check, begin)
        return run, self._steps(inputs, bounds, seed, _Runtime, run)

    def run(
        self, inputs: Mapping[str, np.ndarray], bounds: Mapping[str, int], seed: int
    ) -> tuple[list[np.ndarray], dict[str, int]]:
        """The outputs, and the bounds found while running."""
        run, positions = self.start(inputs, bounds, seed)
        deque(positions, maxlen=0)
        return cut(self.program, run, bounds), run.found


class _Runtime:
    """What generated code calls besides the operations."""

    @staticmethod
    def new(shape: Sequence[int], dtype: str) -> np.ndarray:
        return np.zeros([max(0, n) for n in shape], dtypes.parse(dtype))

    @staticmethod
    def filed(file: SpillFile, shape: Sequence[int], dtype: str) -> np.ndarray:
        return file.array(tuple(max(0, n) for n in shape), dtypes.parse(dtype))

    @staticmethod
    def own(value: np.ndarray) -> np.ndarray:
        """A value that no later store can change: a view of a buffer is copied."""
        return np.array(value) if value.base is not None else value

    @staticmethod
    def load(array: np.ndarray, entries: Sequence[Any], trimmed: Sequence[int]) -> np.ndarray:
        """Select slots axis by axis, then cut the value's own axes to their lengths; a copy only of a ring."""
        empty = empty_read(array.shape, entries, trimmed)
        if empty is not None:
            return np.zeros(empty, array.dtype)
        axis = 0
        for entry in entries:
            before = (slice(None),) * axis
            if not isinstance(entry, tuple):
                array = array[(*before, entry)]
                continue
            start, length, step, ring = entry
            if ring:
                array = array[(*before, (start + np.arange(max(0, length)) * step) % ring)]
            else:
                stop = start + max(0, length) * step
                array = array[(*before, slice(start, stop if stop >= 0 else None, step) if length > 0 else slice(0))]
            axis += 1
        if trimmed:
            array = array[(slice(None),) * axis + tuple(slice(0, n) for n in trimmed)]
        return array

    @staticmethod
    def store(array: np.ndarray, index: Sequence[int], value: np.ndarray) -> None:
        inside: Any = (*index, *map(slice, value.shape))
        array[inside] = value

    @staticmethod
    def call(function: HostFunction, operands: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]) -> Any:
        returned = function.call(*(np.array(operand) for operand in operands))
        results = (returned,) if function.single else tuple(returned)
        return checked_results(function, results, shapes)


def checked_results(
    function: HostFunction, returned: Sequence[Any], shapes: Sequence[tuple[int, ...]]
) -> list[np.ndarray]:
    """What a host function returned, as arrays of the declared types."""
    if len(returned) != len(function.results):
        raise HostError(
            f"the host function {function.name} returned {len(returned)} values instead of {len(function.results)}",
            fix="return one array per declared shape",
        )
    arrays = []
    for value, declared, shape in zip(returned, function.results, shapes, strict=True):
        array = np.asarray(value)
        if array.shape != tuple(shape) or not np.can_cast(array.dtype, declared.dtype, "same_kind"):
            raise HostError(
                f"the host function {function.name} returned {array.dtype}{list(array.shape)} "
                f"where {declared.dtype}{list(shape)} was declared",
                fix="return the declared shape and dtype, or declare what is returned",
            )
        arrays.append(array.astype(declared.dtype))
    return arrays
