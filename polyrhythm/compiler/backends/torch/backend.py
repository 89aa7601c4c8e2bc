"""The torch backend: generated Python over preallocated tensors.

Host functions get NumPy arrays, as on every backend. Gradients are not recorded: they are the compiler's business.
Everything lies on one device, torch's default one unless another is named; a linear scan goes through NumPy and back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
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
from polyrhythm.compiler.backends.torch.ops.carriers import NUMPY_DTYPES, placed
from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.graph import HostFunction
from polyrhythm.compiler.loops.ir import LoopProgram
from polyrhythm.compiler.loops.spilling import SpillFile

Tensor = torch.Tensor


class TorchBackend:
    """Runs a Loop IR program with torch; its blocks through `torch.compile` if a compiler of torch's is named."""

    def __init__(
        self, program: LoopProgram, checked: bool = False, compiler: str | None = None, device: Any = None
    ) -> None:
        check_libraries(program, "torch")
        self.program = program
        self.device = torch.get_default_device() if device is None else torch.device(device)
        self.source: Source = generate(program, IMPLEMENTATIONS, checked, compiler is not None)
        arrays = {n: v for n, v in self.source.constants.items() if isinstance(v, np.ndarray)}
        # A block that cannot be compiled whole is an error, never run in another way.
        compiled = partial(torch.compile, fullgraph=True, dynamic=True, backend=compiler or "inductor")
        self._steps = loaded(self.source, "<polyrhythm torch>", compiled=compiled, **self.tensors(arrays))

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
        run = Run(self.program, bounds, check, replace(begin, places=self.tensors(begin.places)))
        return run, _stepped(self._steps(self.tensors(inputs), bounds, seed, _Runtime, run), self.device)

    def run(
        self, inputs: Mapping[str, Any], bounds: Mapping[str, int], seed: int
    ) -> tuple[list[Tensor], dict[str, int]]:
        """The outputs, and the bounds found while running."""
        run, positions = self.start(inputs, bounds, seed)
        deque(positions, maxlen=0)
        return cut(self.program, run, bounds), run.found

    def tensors(self, arrays: Mapping[str, Any]) -> dict[str, Tensor]:
        """Arrays on the device, without history; those of NumPy that can be written share their memory on a CPU."""
        found = {n: v.detach() if isinstance(v, Tensor) else from_numpy(v) for n, v in arrays.items()}
        return {name: tensor.to(self.device) for name, tensor in found.items()}


def check_device(device: Any) -> str | None:
    """What is wrong with a device, if something is."""
    try:
        torch.empty(0, device=torch.device(device))
    except (AssertionError, RuntimeError, TypeError) as error:
        return str(error).splitlines()[0]
    return None


def _stepped(positions: Iterator[Position], device: torch.device) -> Iterator[Position]:
    """Torch makes tensors on the device and records nothing while the program runs, and does as before in between."""
    elsewhere = device != torch.get_default_device()
    while True:
        with torch.no_grad(), device if elsewhere else nullcontext():
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
    def filed(file: SpillFile, shape: Sequence[int], dtype: str) -> Tensor:
        return from_numpy(file.array(tuple(max(0, n) for n in shape), dtypes.parse(dtype)))

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
        return [placed(array) for array in checked_results(function, results, shapes)]
