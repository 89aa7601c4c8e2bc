"""The lowering of buffers that a loop keeps apart by remainder (see `loops/stride_split.py`).

The loop carries one array for each remainder. What is read is the beginning of one of them. Which one is known only at
the step, so what uses it is traced once for each remainder, and a switch chooses. A store is a masked one to each
array. It is not done where a call does few iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from polyrhythm.compiler.loops.ir import Block, Compute, Load, Local, Steps


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


def _loads(block: Block) -> list[tuple[Compute, Load]]:
    return [(compute, load) for compute in block.body for load in compute.loads]


def _locals(compute: Compute) -> list[str]:
    return [operand.name for operand in compute.operands if isinstance(operand, Local)]


jax.tree_util.register_dataclass(Residues, ["arrays"], ["at"])
