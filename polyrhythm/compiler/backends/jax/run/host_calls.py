"""Calling a host function from a program on JAX.

Operands are cut to their lengths and copied: they are the function's own. Its results are checked and brought to
their capacities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from polyrhythm.compiler.backends.jax.trace.lowering import Lowering
from polyrhythm.compiler.backends.python.numpy import checked_results
from polyrhythm.compiler.ir.graph import HostFunction
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.loops.ir import Block, Compute, Load

Room = tuple[tuple[int, ...], np.dtype]
"""The shape of a value at its capacity, and its dtype."""


class HostCall:
    """One call of a host function: what it takes and gives."""

    def __init__(self, block: Block, sizes: Lowering) -> None:
        self.block = block
        compute = next(c for c in block.body if c.op == "host")
        self.function: HostFunction = compute.attributes["function"]
        types = _types(block, compute)
        self.operands = [t.shape for t in types]
        self.results: list[tuple[Term, ...]] = list(compute.attributes["shapes"])
        dtypes = [result.dtype for result in self.function.results]

        def room(shape: Sequence[Term]) -> tuple[int, ...]:
            return tuple(sizes.capacity(n) for n in shape)

        self.takes: list[Room] = [(room(t.shape), t.dtype) for t in types]
        self.gives: list[Room] = [(room(shape), dtype) for shape, dtype in zip(self.results, dtypes, strict=True)]
        shapes = (*self.operands, *self.results)
        self.symbols = tuple(dict.fromkeys(s for shape in shapes for n in shape for s in n.symbols))

    def cut(self, operands: Sequence[np.ndarray], symbols: Mapping[Symbol, int]) -> list[np.ndarray]:
        """The operands at their lengths."""
        lookup = symbols.__getitem__
        return [_cut(array, shape, lookup) for array, shape in zip(operands, self.operands, strict=True)]

    def checked(self, returned: Any, symbols: Mapping[Symbol, int]) -> Any:
        """What the function returned, as declared and at capacity."""
        results = (returned,) if self.function.single else tuple(returned)
        shapes = [tuple(n.evaluate(symbols.__getitem__) for n in shape) for shape in self.results]
        arrays = checked_results(self.function, results, shapes)
        grown = [_grown(array, room) for array, (room, _) in zip(arrays, self.gives, strict=True)]
        return grown[0] if self.function.single else grown


def _types(block: Block, call: Compute) -> list[TensorType]:
    """The types of a call's operands."""
    made = {compute.result: compute.type for compute in block.body}
    return [o.type if isinstance(o, Load) else made[o.name] for o in call.operands]


def _cut(array: np.ndarray, shape: Sequence[Term], lookup: Callable[[Symbol], int]) -> np.ndarray:
    return array[tuple(slice(0, n.evaluate(lookup)) for n in shape)]


def _grown(array: np.ndarray, room: tuple[int, ...]) -> np.ndarray:
    if array.shape == room:
        return array
    return np.pad(array, [(0, n - m) for n, m in zip(room, array.shape, strict=True)])
