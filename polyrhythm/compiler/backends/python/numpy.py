"""The NumPy backend: generated Python over preallocated arrays, for debugging and for machines with nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from polyrhythm.compiler.backends.python.direct import numpy_words
from polyrhythm.compiler.backends.python.emit import generate
from polyrhythm.compiler.backends.python.runs import PythonBackend, Runtime
from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.loops.ir import LoopProgram


class _Runtime(Runtime):
    joined = np.concatenate
    placed = np.asarray
    to_numpy = np.array

    @staticmethod
    def new(shape: Sequence[int], dtype: str) -> np.ndarray:
        return np.zeros([max(0, n) for n in shape], dtypes.parse(dtype))

    @staticmethod
    def own(value: np.ndarray) -> np.ndarray:
        """A value that no later store can change: a view of a buffer is copied."""
        return np.array(value) if value.base is not None else np.asarray(value)

    @staticmethod
    def picked(start: int, length: int, step: int, ring: int | None) -> Any:
        if ring:
            return (start + np.arange(length) * step) % ring
        stop = start + length * step
        return slice(start, stop if stop >= 0 else None, step)


class NumpyBackend(PythonBackend):
    """Runs a Loop IR program with NumPy."""

    library, runtime = "numpy", _Runtime

    def __init__(self, program: LoopProgram, checked: bool = False) -> None:
        implementations = {name: op.numpy for name, op in TABLE.items()}
        super().__init__(program, generate(program, implementations, checked, words=numpy_words()))

    def computing(self) -> AbstractContextManager[Any]:
        """NumPy does not warn: what has no answer is NaN."""
        return np.errstate(all="ignore")
