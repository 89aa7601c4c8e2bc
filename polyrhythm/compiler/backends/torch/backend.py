"""The torch backend: generated Python over preallocated tensors.

Host functions get NumPy arrays, as on every backend. Gradients are not recorded: they are the compiler's business.
Everything lies on one device, torch's default one unless another is named; a linear scan goes through NumPy and back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch

from polyrhythm.compiler.backends.python.direct import torch_words
from polyrhythm.compiler.backends.python.emit import generate
from polyrhythm.compiler.backends.python.runs import PythonBackend, Runtime
from polyrhythm.compiler.backends.torch.ops import IMPLEMENTATIONS, TORCH_DTYPES, from_numpy, to_numpy
from polyrhythm.compiler.backends.torch.ops.carriers import NUMPY_DTYPES, placed
from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.loops.ir import LoopProgram

Tensor = torch.Tensor


class _Runtime(Runtime):
    joined = torch.cat
    placed = staticmethod(placed)

    @staticmethod
    def to_numpy(array: Tensor) -> np.ndarray:
        return to_numpy(array, NUMPY_DTYPES[array.dtype]).copy()

    @staticmethod
    def new(shape: Sequence[int], dtype: str) -> Tensor:
        return torch.zeros([max(0, n) for n in shape], dtype=TORCH_DTYPES[dtypes.parse(dtype)])

    @staticmethod
    def own(value: Tensor) -> Tensor:
        """A value that no later store can change: a view of a buffer is copied."""
        return value.clone() if value._is_view() else value

    @staticmethod
    def picked(start: int, length: int, step: int, ring: int | None) -> Any:
        if ring is None and step > 0:
            return slice(start, start + (length - 1) * step + 1, step)
        places = start + torch.arange(length) * step  # torch does not slice backwards
        return places % ring if ring else places


class TorchBackend(PythonBackend):
    """Runs a Loop IR program with torch; its blocks through `torch.compile` if a compiler of torch's is named."""

    library, runtime = "torch", _Runtime

    def __init__(
        self, program: LoopProgram, checked: bool = False, compiler: str | None = None, device: Any = None
    ) -> None:
        self.device = torch.get_default_device() if device is None else torch.device(device)
        words = torch_words() if compiler is None else None
        source = generate(program, IMPLEMENTATIONS, checked, compiler is not None, words)
        constants = {n: v for n, v in source.constants.items() if isinstance(v, np.ndarray)}
        # A block that cannot be compiled whole is an error, never run in another way.
        compiled = partial(torch.compile, fullgraph=True, dynamic=True, backend=compiler or "inductor")
        super().__init__(program, source, compiled=compiled, **self.arrays(constants))

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Torch makes tensors on the device and records nothing."""
        with torch.no_grad(), self.device if self.device != torch.get_default_device() else nullcontext():
            yield

    def arrays(self, given: Mapping[str, Any]) -> dict[str, Tensor]:
        """Arrays on the device, without history; those of NumPy that can be written share their memory on a CPU."""
        found = {n: v.detach() if isinstance(v, Tensor) else from_numpy(v) for n, v in given.items()}
        return {name: tensor.to(self.device) for name, tensor in found.items()}


def check_device(device: Any) -> str | None:
    """What is wrong with a device, if something is."""
    try:
        torch.empty(0, device=torch.device(device))
    except (AssertionError, RuntimeError, TypeError) as error:
        return str(error).splitlines()[0]
    return None
