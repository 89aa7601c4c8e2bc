"""The torch backend: generated Python over preallocated tensors.

Host functions get NumPy arrays, as on every backend. Gradients are not recorded: they are the compiler's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

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
from polyrhythm.compiler.backends.python.numpy import checked_results
from polyrhythm.compiler.backends.torch.ops import IMPLEMENTATIONS, TORCH_DTYPES, from_numpy, to_numpy
from polyrhythm.compiler.backends.torch.ops.carriers import NUMPY_DTYPES
from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.graph import HostFunction
from polyrhythm.compiler.loops.ir import LoopProgram

Tensor = torch.Tensor


class TorchBackend:
    """Runs a Loop IR program with torch; its blocks through `torch.compile` if a compiler of torch's is named."""

    def __init__(self, program: LoopProgram, checked: bool = False, compiler: str | None = None) -> None:
        check_libraries(program, "torch")
        self.program = program
        self.source: Source = generate(program, IMPLEMENTATIONS, checked, compiler is not None)
        given = {n: from_numpy(v) for n, v in self.source.constants.items() if isinstance(v, np.ndarray)}
        # A block that cannot be compiled whole is an error, never run in another way.
        compiled = partial(torch.compile, fullgraph=True, dynamic=True, backend=compiler or "inductor")
        self._steps = loaded(self.source, "<polyrhythm torch>", compiled=compiled, **given)

    def start(
        self,
        inputs: Mapping[str, Any],
        bounds: Mapping[str, int],
        seed: int,
        check: Check | None = None,
        begin: Begin = START,
    ) -> tuple[Run, Iterator[Position]]:
        """A run that goes on whenever its next position is asked for; it may begin where another was stopped."""
        bounds = {**bounds, **begin.found}
        run = Run(self.program, bounds, check, begin)
        return run, _without_gradients(self._steps(as_tensors(inputs), bounds, seed, _Runtime, run))

    def run(
        self, inputs: Mapping[str, Any], bounds: Mapping[str, int], seed: int
    ) -> tuple[list[Tensor], dict[str, int]]:
        """The outputs, and the bounds found while running."""
        run, positions = self.start(inputs, bounds, seed)
        deque(positions, maxlen=0)
        return cut(self.program, run, bounds), run.found


def as_tensors(inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """The inputs as tensors without history; NumPy arrays share their memory with them if they can be written."""
    return {n: v.detach() if isinstance(v, Tensor) else from_numpy(v) for n, v in inputs.items()}


def _without_gradients(positions: Iterator[Position]) -> Iterator[Position]:
    """Torch records nothing while the program runs, and again what it did before in between."""
    while True:
        with torch.no_grad():
            try:
                position = next(positions)
            except StopIteration:
                return
        yield position


class _Runtime:
    """What generated code calls besides the operations."""

    @staticmethod
    def new(shape: Sequence[int], dtype: str) -> Tensor:
        return torch.zeros([max(0, n) for n in shape], dtype=TORCH_DTYPES[dtypes.parse(dtype)])

    @staticmethod
    def own(value: Tensor) -> Tensor:
        """A value that no later store can change: a view of a buffer is copied."""
        return value.clone() if value._is_view() else value

    @staticmethod
    def load(tensor: Tensor, entries: Sequence[Any], trimmed: Sequence[int]) -> Tensor:
        """Select slots axis by axis, then cut the value's own axes to their lengths."""
        empty = empty_read(tensor.shape, entries, trimmed)
        if empty is not None:
            return tensor.new_zeros(empty)
        axis = 0
        for entry in entries:
            if not isinstance(entry, tuple):
                tensor = tensor.select(axis, entry)
                continue
            start, length, step, ring = entry
            if ring is None and step > 0:
                stop = start + max(0, length - 1) * step + 1 if length > 0 else start
                tensor = tensor[(slice(None),) * axis + (slice(start, stop, step),)]
            else:
                picked = start + torch.arange(max(0, length)) * step
                tensor = tensor[(slice(None),) * axis + (picked % ring if ring else picked,)]
            axis += 1
        if trimmed:
            tensor = tensor[(slice(None),) * axis + tuple(slice(0, n) for n in trimmed)]
        return tensor

    @staticmethod
    def store(tensor: Tensor, index: Sequence[int], value: Tensor) -> None:
        inside: Any = (*index, *map(slice, value.shape))
        tensor[inside] = value

    @staticmethod
    def call(function: HostFunction, operands: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
        returned = function.call(*(to_numpy(o, NUMPY_DTYPES[o.dtype]).copy() for o in operands))
        results = (returned,) if function.single else tuple(returned)
        return [from_numpy(array) for array in checked_results(function, results, shapes)]
