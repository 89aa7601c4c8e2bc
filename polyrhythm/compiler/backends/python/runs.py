"""Running generated Python: what the NumPy and torch backends share beside the text itself.

A run goes on whenever its next position is asked for, and can be stopped and begun again at any of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from polyrhythm.compiler.analysis.calls import check_found
from polyrhythm.compiler.backends.libraries import check_libraries
from polyrhythm.compiler.backends.python.draws import Draws
from polyrhythm.compiler.backends.python.emit import Position, Source
from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.graph import HostFunction
from polyrhythm.compiler.loops.ir import Compute, LoopProgram, output_shapes
from polyrhythm.compiler.loops.spilling import SpillFile
from polyrhythm.errors import HostError

Check = Callable[[Compute, Any, tuple[Any, ...], tuple[int, ...]], None]


@dataclass(frozen=True)
class Begin:
    """Where a run goes on that was stopped: the position, the places that matter there, and the bounds found."""

    position: Position
    places: Mapping[str, Any]
    found: Mapping[str, int]


START = Begin((-1, 0), {}, {})
"""The beginning of a program."""


@dataclass
class Run:
    """One run of a program while it goes on: its outputs as far as they are computed, and the bounds found."""

    program: LoopProgram
    bounds: dict[str, int]
    """All that are known; those that the program finds change when it does."""
    check: Check | None = None
    begin: Begin = START
    alone: bool = False
    """Whether it is done from the beginning to the end, and nobody looks at it meanwhile."""
    outputs: list[Any] = field(default_factory=list)
    kept: Callable[[], dict[str, Any]] = dict
    """What every place holds now; None where nothing was stored yet."""

    @property
    def found(self) -> dict[str, int]:
        """The bounds that the program finds itself, as far as it has."""
        return {s.name: self.bounds[s.name] for s in self.program.found}

    def ended(self, bound: str, length: int) -> int:
        """A loop has ended early and so found a length."""
        self.bounds[bound] = length
        check_found(self.program.bounds, self.bounds, bound)
        return length

    def step(self, number: int, axis: int, step: int, shape: tuple[int, ...]) -> Any:
        """One step of an output, at the lengths that its other axes have; a view."""
        index: list[Any] = [slice(n) for n in shape]
        index[axis] = step
        return self.outputs[number][(*index, ...)]


class Runtime:
    """What generated code calls besides the operations, with the arrays of a library."""

    joined: ClassVar[Any]  # arrays side by side along an axis
    placed: ClassVar[Any]  # an array of NumPy as one of the library
    to_numpy: ClassVar[Any]  # a copy of an array of the library
    new: ClassVar[Any]  # zeros, of a shape and a dtype
    own: ClassVar[Any]  # a value that no later store can change: a view of a buffer is copied
    picked: ClassVar[Any]  # the index of slots from a start, so many, with a step, perhaps round a ring

    @classmethod
    def draws(cls) -> Draws:
        return Draws(cls.placed)

    @classmethod
    def filed(cls, file: SpillFile, shape: Sequence[int], dtype: str) -> Any:
        return cls.placed(file.array(tuple(max(0, n) for n in shape), dtypes.parse(dtype)))

    @classmethod
    def load(cls, array: Any, entries: Sequence[Any], trimmed: Sequence[int]) -> Any:
        """Select slots axis by axis, then cut the value's own axes to their lengths; only what goes round is copied."""
        empty = empty_read(array.shape, entries, trimmed)
        if empty is not None:
            return cls.new(empty, str(array.dtype).removeprefix("torch."))
        axis = 0
        for entry in entries:
            before = (slice(None),) * axis
            if not isinstance(entry, tuple):
                array = array[(*before, entry)]
                continue
            start, length, step, ring = entry
            if ring and step == 1 and length <= ring:
                parts = [array[(*before, slice(*part))] for part in ring_parts(start, length, ring)]
                array = parts[0] if len(parts) == 1 else cls.joined(parts, axis)
            else:
                array = array[(*before, cls.picked(start, length, step, ring))]
            axis += 1
        return array[(slice(None),) * axis + tuple(slice(0, n) for n in trimmed)] if trimmed else array

    @staticmethod
    def has_nan(array: Any) -> bool:
        """Whether an array has one; also where infinities of both signs meet."""
        total = array.sum().item()
        return bool(total != total)

    @staticmethod
    def store(array: Any, index: Sequence[int], value: Any) -> None:
        array[(*index, *map(slice, value.shape))] = value

    @classmethod
    def call(cls, function: HostFunction, operands: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Any]:
        with np.errstate(all="warn", under="ignore"):
            returned = function.call(*map(cls.to_numpy, operands))
        results = (returned,) if function.single else tuple(returned)
        return [cls.placed(array) for array in checked_results(function, results, shapes)]


class PythonBackend:
    """Runs a Loop IR program as generated Python; a subclass says with which library."""

    library: ClassVar[str]
    runtime: ClassVar[type[Runtime]]
    computing: Callable[[], AbstractContextManager[Any]]  # how the library is set while a program computes

    def __init__(self, program: LoopProgram, source: Source, **given: Any) -> None:
        check_libraries(program, self.library)
        self.program, self.source = program, source
        self._steps = source.loaded(f"<polyrhythm {self.library}>", **given)

    def arrays(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Arrays as the library takes them."""
        return given

    def start(
        self,
        inputs: Mapping[str, Any],
        bounds: Mapping[str, int],
        seed: int,
        check: Check | None = None,
        begin: Begin = START,
        alone: bool = False,
    ) -> tuple[Run, Iterator[Position]]:
        """A run that goes on whenever its next position is asked for; it may begin where another was stopped.

        One that is `alone` is done inside of `computing`, from the beginning to the end.
        """
        begin = replace(begin, places=self.arrays(begin.places))
        run = Run(self.program, {**bounds, **begin.found}, check, begin, alone)
        positions = self._steps(self.arrays(inputs), run.bounds, seed, self.runtime, run)
        return run, positions if alone else stepped(self.computing, positions)

    def run(self, inputs: Mapping[str, Any], bounds: Mapping[str, int], seed: int) -> tuple[list[Any], dict[str, int]]:
        """The outputs, and the bounds found while running."""
        run, positions = self.start(inputs, bounds, seed, alone=True)
        with self.computing():
            deque(positions, maxlen=0)
        return cut(self.program, run, bounds), run.found


def stepped(computing: Callable[[], AbstractContextManager[Any]], positions: Iterator[Position]) -> Iterator[Position]:
    """A program that goes on whenever it is asked to; in between the library does as before."""
    while True:
        with computing():
            try:
                position = next(positions)
            except StopIteration:
                return
        yield position


def cut(program: LoopProgram, run: Run, bounds: Mapping[str, int]) -> list[Any]:
    """The outputs of a finished run, at the lengths it found."""
    shapes = output_shapes(program, {**bounds, **run.found})
    return [o[(*map(slice, shape), ...)] for o, shape in zip(run.outputs, shapes, strict=True)]


def empty_read(shape: Sequence[int], entries: Sequence[Any], trimmed: Sequence[int]) -> list[int] | None:
    """The shape of a read of which a range is empty; None otherwise. Its points may then lie anywhere."""
    lengths = [max(0, entry[1]) for entry in entries if isinstance(entry, tuple)]
    if all(lengths):
        return None
    return [*lengths, *(trimmed or shape[len(entries) :])]


def ring_parts(start: int, length: int, ring: int) -> list[tuple[int, int]]:
    """The slices that some slots of a ring are, no more than it has: one, or two where they go round.

    >>> ring_parts(5, 3, 4), ring_parts(7, 3, 4)
    ([(1, 4)], [(3, 4), (0, 2)])
    """
    first = start % ring
    if first + length <= ring:
        return [(first, first + length)]
    return [(first, ring), (0, first + length - ring)]


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
