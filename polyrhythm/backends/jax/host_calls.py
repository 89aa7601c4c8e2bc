"""Calling a host function from a program on JAX.

Operands are cut to their lengths and copied: they are the function's own. Handing an array to XLA costs as much as a
small step, so the results are packed into one array per dtype, each at its capacity, and taken apart on the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from polyrhythm.backends.jax.lowering import Lowering
from polyrhythm.backends.numpy import checked_results
from polyrhythm.ir.graph import HostFunction
from polyrhythm.ir.terms import Symbol, Term
from polyrhythm.loops.ir import Block, Compute, Load


class HostCall:
    """One call of a host function: its operands cut to their lengths, its results packed at their capacities."""

    def __init__(self, block: Block, sizes: Lowering) -> None:
        self.block = block
        compute = next(c for c in block.body if c.op == "host")
        self.function: HostFunction = compute.attributes["function"]
        self.operands = _types(block, compute)
        self.results: list[tuple[Term, ...]] = list(compute.attributes["shapes"])
        self.rooms = [tuple(sizes.capacity(n) for n in shape) for shape in self.results]
        self.varies = any(n.symbols for shape in (*self.operands, *self.results) for n in shape)
        self.sizes: dict[np.dtype, int] = {}  # how many elements of each dtype
        self.packing: list[tuple[int, slice, np.dtype, tuple[int, ...]]] = []  # number of the array, where in it
        for result, room in zip(self.function.results, self.rooms, strict=True):
            start = self.sizes.get(result.dtype, 0)
            self.sizes[result.dtype] = start + math.prod(room)
            where = slice(start, start + math.prod(room))
            self.packing.append((list(self.sizes).index(result.dtype), where, result.dtype, room))
        self.empty = [partial(np.empty, size, dtype) for dtype, size in self.sizes.items()]

    def run(self, symbols: Mapping[Symbol, int], operands: Sequence[jax.Array]) -> list[np.ndarray]:
        """Call the function; what it returns, packed."""
        arrays = [np.array(operand) for operand in operands]
        if self.varies:
            lookup = symbols.__getitem__
            arrays = [_cut(array, shape, lookup) for array, shape in zip(arrays, self.operands, strict=True)]
        returned = self.function.call(*arrays)
        results = (returned,) if self.function.single else returned
        if self.varies or not self._as_declared(results):
            shapes = [tuple(n.evaluate(symbols.__getitem__) for n in shape) for shape in self.results]
            results = checked_results(self.function, tuple(results), shapes)
            results = [_grown(array, room) for array, room in zip(results, self.rooms, strict=True)]
        packed = [make() for make in self.empty]
        for value, (number, where, _, _) in zip(results, self.packing):  # noqa: B905, they have been counted
            packed[number][where] = value.ravel() if value.ndim > 1 else value
        return packed

    def _as_declared(self, results: Any) -> bool:
        """Whether results are just as declared, so that nothing else has to be looked at."""
        if type(results) is not tuple or len(results) != len(self.rooms):
            return False
        for value, (_, _, dtype, room) in zip(results, self.packing):  # noqa: B905
            if not isinstance(value, (np.ndarray, np.generic)) or value.dtype != dtype or value.shape != room:
                return False
        return True

    def unpacked(self, packed: Sequence[jax.Array]) -> list[jax.Array]:
        """The results again, one by one."""
        return [packed[number][where].reshape(room) for number, where, _, room in self.packing]


def _types(block: Block, call: Compute) -> list[tuple[Term, ...]]:
    """The shapes of a call's operands."""
    made = {compute.result: compute.type.shape for compute in block.body}
    return [o.type.shape if isinstance(o, Load) else made[o.name] for o in call.operands]


def _cut(array: np.ndarray, shape: Sequence[Term], lookup: Callable[[Symbol], int]) -> np.ndarray:
    return array[tuple(slice(0, n.evaluate(lookup)) for n in shape)]


def _grown(array: np.ndarray, room: tuple[int, ...]) -> np.ndarray:
    if array.shape == room:
        return array
    return np.pad(array, [(0, n - m) for n, m in zip(room, array.shape, strict=True)])
