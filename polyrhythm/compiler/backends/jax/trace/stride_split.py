"""Buffers that a loop reads with a stride, kept apart by remainder while it runs.

`k[t % 2 : t + 1 : 2]` is every second slot of a buffer. XLA copies them together at every step, before a product can
read them. So a loop that reads a buffer along one axis only in strides of m carries m arrays instead, one for each
remainder: slot s is at s // m of the array s % m. What is read is then the beginning of one of them, and goes into the
product as it lies. Which one is known only at the step, so what uses it is traced once for each remainder, and a switch
chooses. A store is a masked one to each array. Before and after the loop the buffer is one array as ever.

Legal for any reads that begin at one of the first m slots, which is proved (*rows* in `loops/layout.py`); every slot is
in exactly one of the arrays. It costs a copy of the buffer before the loop and one after it, so it is not done where a
call does few iterations, and the room of the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from polyrhythm.compiler.loops.ir import Block, Compute, For, Load, Local, LoopProgram, Steps, sites


@dataclass(frozen=True)
class Stride:
    """How a buffer is read: along an axis of its slots, every so many steps."""

    axis: int
    step: int


@dataclass(frozen=True)
class Residues:
    """A buffer as one array for each remainder; `at` is the axis of the arrays."""

    arrays: tuple[jax.Array, ...]
    at: int

    def stored(self, slot: jax.Array, put: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]) -> Residues:
        """With another value in a slot: `put` stores to an array at a slot of it, where a mask is true."""
        step = len(self.arrays)
        arrays = (put(array, slot // step, slot % step == number) for number, array in enumerate(self.arrays))
        return Residues(tuple(arrays), self.at)


def separated(array: jax.Array, at: int, step: int) -> Residues:
    """An array taken apart along an axis."""
    rest = -array.shape[at] % step
    array = jnp.pad(array, [(0, rest if axis == at else 0) for axis in range(array.ndim)])
    rows = lax.reshape(array, (*array.shape[:at], array.shape[at] // step, step, *array.shape[at + 1 :]))
    return Residues(tuple(lax.index_in_dim(rows, n, at + 1, keepdims=False) for n in range(step)), at)


def together(parts: Residues, size: int) -> jax.Array:
    """The array of all slots, of some size along their axis."""
    rows, at = jnp.stack(parts.arrays, parts.at + 1), parts.at
    array = lax.reshape(rows, (*rows.shape[:at], rows.shape[at] * rows.shape[at + 1], *rows.shape[at + 2 :]))
    return lax.slice_in_dim(array, 0, size, axis=at)


def strides(program: LoopProgram, loop: For) -> dict[str, Stride]:
    """The buffers that a loop is better off with kept apart: products read them, and all reads have one stride."""
    found: dict[str, Stride | None] = {}
    inside = list(sites(loop.body))
    for block in (site.block for site in inside if not site.loops):
        starts = {load: _range(load) for _, load in _loads(block)}
        several = len({(e.start, e.step) for e in starts.values() if e is not None and e.step > 1}) > 1
        for compute, load in _loads(block):
            entry = _range(load)
            if entry is None or several or entry.via != "rows" or compute.op != "einsum":
                found[load.place] = None
            else:
                stride = Stride(load.index.index(entry), entry.step)
                if found.setdefault(load.place, stride) != stride:
                    found[load.place] = None
    inner = [site.block for site in inside if site.loops]
    others = {load.place for block in inner for load in block.loads}
    others |= {store.place for block in inner for store in block.stores}
    return {
        name: stride
        for name, stride in found.items()
        if stride is not None and name not in others and program.places[name].kind == "buffer"
    }


def parted(block: Block, apart: Mapping[str, Residues]) -> tuple[list[Compute], list[Compute], list[Compute]]:
    """The computations before those that use buffers kept apart, those with all between them, and the rest."""
    users = {c.result for c, load in _loads(block) if load.place in apart}
    after, needed = set(users), set(users)
    for compute in block.body:
        if any(name in after for name in _locals(compute)):
            after.add(compute.result)
    for compute in reversed(block.body):
        if compute.result in needed:
            needed.update(_locals(compute))
    before = [c for c in block.body if c.result not in after]
    between = [c for c in block.body if c.result in after and c.result in needed]
    return before, between, [c for c in block.body if c.result in after and c.result not in needed]


def used_later(between: Sequence[Compute], block: Block) -> list[Compute]:
    """Of some computations of a block, those whose results others use or the block stores."""
    own = {compute.result for compute in between}
    used = {name for compute in block.body if compute.result not in own for name in _locals(compute)}
    used |= {store.value for store in block.stores}
    return [compute for compute in between if compute.result in used]


def chosen_by(between: Sequence[Compute], apart: Mapping[str, Residues]) -> Steps:
    """A range of which the start is the remainder that is read; it is the same for all of them."""
    loads = (load for compute in between for load in compute.loads if load.place in apart)
    entry = next(entry for load in loads for entry in load.index if isinstance(entry, Steps))
    return entry


def _range(load: Load) -> Steps | None:
    """The range that a load reads, if it is one with a stride along a single axis."""
    ranges = [entry for entry in load.index if isinstance(entry, Steps)]
    return ranges[0] if len(ranges) == 1 and ranges[0].step > 1 else None


def _loads(block: Block) -> list[tuple[Compute, Load]]:
    return [(compute, load) for compute in block.body for load in compute.loads]


def _locals(compute: Compute) -> list[str]:
    return [operand.name for operand in compute.operands if isinstance(operand, Local)]


jax.tree_util.register_dataclass(Residues, ["arrays"], ["at"])
