"""Small values of a program with host functions, kept together: one array per dtype.

Every array that goes into a dispatch or comes out of it costs about as much as a small step. So the variables that
live between regions share one array per dtype, a *pack*, with the small operands of a host call behind them and
its small results behind those.

A host function is called on the host: operands are cut to their lengths and copied: they are the function's own. Its
results are checked and brought to their capacities.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from polyrhythm.compiler.backends.jax.trace.lowering import Lowering
from polyrhythm.compiler.backends.python.runs import checked_results
from polyrhythm.compiler.ir.graph import HostFunction
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.loops.ir import Block, For, LoopProgram, walk

MOST_BYTES = 1024
"""Larger values are arrays of their own: a pack is copied at every step."""


@dataclass(frozen=True)
class Spot:
    """Where a value is: in the pack of a dtype, from which element to which; or an array of its own."""

    pack: np.dtype | None
    where: slice
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Pack:
    """The variables of a dtype, and where operands and results of host calls begin."""

    dtype: np.dtype
    entries: Mapping[str, Spot]
    operands: int
    results: int
    size: int

    def unpacked(self, pack: jax.Array) -> dict[str, jax.Array]:
        """The variables in a pack."""
        return {name: pack[spot.where].reshape(spot.shape) for name, spot in self.entries.items()}

    def packed(self, old: jax.Array, new: Mapping[str, jax.Array], operands: Sequence[jax.Array]) -> jax.Array:
        """A pack with some variables replaced, and the operands of a call."""
        parts: list[jax.Array] = []
        done = 0
        for name, spot in self.entries.items():
            if name in new:
                parts += [old[done : spot.where.start], new[name].ravel()]
                done = spot.where.stop
        if operands:
            parts += [old[done : self.operands], *(operand.ravel() for operand in operands)]
            done = self.operands + sum(operand.size for operand in operands)
        parts = [part for part in (*parts, old[done:]) if part.size]
        return jnp.concatenate(parts) if parts else old

    def join(self, state: Mapping[str, jax.Array]) -> np.ndarray:
        """The pack of the variables in a state."""
        made = np.zeros(self.size, self.dtype)
        for name, spot in self.entries.items():
            made[spot.where] = np.asarray(state[name]).ravel()
        return made

    def split(self, pack: jax.Array | np.ndarray, state: dict[str, jax.Array]) -> None:
        """Put the variables of a pack back into a state."""
        values = np.asarray(pack)
        for name, spot in self.entries.items():
            state[name] = jax.device_put(values[spot.where].reshape(spot.shape).copy())


Packs = Mapping[np.dtype, Pack]


def make_packs(program: LoopProgram, capacities: Mapping[Symbol, int]) -> Packs:
    """The packs of a program, by dtype."""
    sizes = Lowering(program, capacities, {}, None)
    variables = {n: (sizes.room(p), p.type.dtype) for n, p in program.places.items() if p.kind == "variable"}
    calls = []
    for item in walk(program.body):
        if isinstance(item, For):
            sizes.note_range(item)  # a length may depend on the counters around the call
        elif isinstance(item, Block) and item.host:
            calls.append(HostCall(item, sizes))
    rooms = [*variables.values(), *(room for call in calls for room in (*call.takes, *call.gives))]
    made = {}
    for kind in dict.fromkeys(dtype for shape, dtype in rooms if _small((shape, dtype))):
        own = {name: room for name, room in variables.items() if room[1] == kind and _small(room)}
        spots = dict(zip(own, _placed(own.values(), {kind: 0}), strict=True))
        operands = sum(_size(room) for room in own.values())
        results = operands + max((_total(call.takes, kind) for call in calls), default=0)
        size = results + max((_total(call.gives, kind) for call in calls), default=0)
        made[kind] = Pack(kind, spots, operands, results, size)
    return made


def operand_spots(packs: Packs, call: HostCall) -> list[Spot]:
    """Where the operands of a call are."""
    return list(_placed(call.takes, {kind: pack.operands for kind, pack in packs.items()}))


def result_spots(packs: Packs, call: HostCall) -> list[Spot]:
    """Where the results of a call are."""
    return list(_placed(call.gives, {kind: pack.results for kind, pack in packs.items()}))


def _placed(rooms: Iterable[Room], first: Mapping[np.dtype, int]) -> Iterator[Spot]:
    """One value after the other in the pack of its dtype."""
    ends = dict(first)
    for room in rooms:
        shape, dtype = room
        if _small(room):
            start, ends[dtype] = ends[dtype], ends[dtype] + _size(room)
            yield Spot(dtype, slice(start, ends[dtype]), shape)
        else:
            yield Spot(None, slice(0), shape)


def _small(room: Room) -> bool:
    return _size(room) * room[1].itemsize <= MOST_BYTES


def _size(room: Room) -> int:
    return math.prod(room[0])


def _total(rooms: Sequence[Room], kind: np.dtype) -> int:
    return sum(_size(room) for room in rooms if room[1] == kind and _small(room))


Room = tuple[tuple[int, ...], np.dtype]
"""The shape of a value at its capacity, and its dtype."""


class HostCall:
    """One call of a host function: what it takes and gives."""

    def __init__(self, block: Block, sizes: Lowering) -> None:
        self.block = block
        compute = next(c for c in block.body if c.op == "host")
        self.function: HostFunction = compute.attributes["function"]
        types = compute.kinds(block.types)
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
        sizes = ([n.evaluate(symbols.__getitem__) for n in shape] for shape in self.operands)
        return [array[tuple(map(slice, size))] for array, size in zip(operands, sizes, strict=True)]

    def checked(self, returned: Any, symbols: Mapping[Symbol, int]) -> Any:
        """What the function returned, as declared and at capacity."""
        results = (returned,) if self.function.single else tuple(returned)
        shapes = [tuple(n.evaluate(symbols.__getitem__) for n in shape) for shape in self.results]
        arrays = checked_results(self.function, results, shapes)
        grown = [_grown(array, room) for array, (room, _) in zip(arrays, self.gives, strict=True)]
        return grown[0] if self.function.single else grown


def _grown(array: np.ndarray, room: tuple[int, ...]) -> np.ndarray:
    if array.shape == room:
        return array
    return np.pad(array, [(0, n - m) for n, m in zip(room, array.shape, strict=True)])
