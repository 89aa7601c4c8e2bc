"""Places in pinned memory of the host: arrays there, of which slots are moved to the device and back.

XLA gets a slice or an update of a slice of an array on the host, next to a move: the form for which it makes a copy of
that slice alone, and which it may do beside other work. On a CPU there is one memory: it computes the same and saves
nothing.
"""

from __future__ import annotations

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from polyrhythm.compiler.backends.jax.target import elsewhere
from polyrhythm.compiler.loops.ir import Place
from polyrhythm.compiler.loops.spilling import PINNED_HOST
from polyrhythm.errors import UnsupportedError

HOST, DEVICE = jax.memory.Space.Host, jax.memory.Space.Device

# Zeros that are moved to the host would first be on the device. XLA allocates what slots are moved to where they go.
_zeros = Primitive("polyrhythm_zeros_on_host")
_zeros.def_abstract_eval(lambda *, shape, dtype: jax.core.ShapedArray(shape, dtype, memory_space=HOST))
mlir.register_lowering(_zeros, mlir.lower_fun(lambda *, shape, dtype: jnp.zeros(shape, dtype), multiple_results=False))


def empty(slots: int, place: Place) -> jax.Array:
    """An array of zeros on the host."""
    memories = {memory.kind for memory in jax.local_devices()[0].addressable_memories()}
    if not elsewhere() and PINNED_HOST not in memories:
        raise UnsupportedError(
            f"this device has no {PINNED_HOST} memory, only {', '.join(sorted(memories))}",
            fix="give a folder as spill= of the budget, or leave it out",
        )
    shape = (slots, *(length.constant for length in place.type.shape))
    zeros: jax.Array = _zeros.bind(shape=shape, dtype=place.type.dtype)
    return zeros


def store(array: jax.Array, row: jax.Array, value: jax.Array, mask: Any) -> jax.Array:
    """The array with another slot."""
    if not array.size:
        return array
    if mask is not None:
        value = jnp.where(mask, value, _slot(array, row))
    moved = jax.device_put(value[None], HOST)
    return lax.dynamic_update_slice_in_dim(array, moved, row, 0, allow_negative_indices=False)


def fetch(array: jax.Array, rows: jax.Array, shape: tuple[int, ...], per_slot: int) -> jax.Array:
    """Rows on the device, of which each slot has some."""
    if per_slot == 1 and not rows.ndim:
        return _slot(array, rows)
    row = shape[rows.ndim :]

    def one(number: jax.Array) -> jax.Array:
        parts = _slot(array, number // per_slot).reshape(per_slot, *row)
        part: jax.Array = lax.dynamic_index_in_dim(parts, number % per_slot, 0, keepdims=False)
        return part

    # One after the other: together they would be gathered, which is no move of a slice.
    found: jax.Array = lax.map(one, rows.reshape(prod(rows.shape))).reshape(shape)
    return found


def _slot(array: jax.Array, row: jax.Array) -> jax.Array:
    slot: jax.Array = jax.device_put(lax.dynamic_slice_in_dim(array, row, 1, 0, allow_negative_indices=False), DEVICE)[
        0
    ]
    return slot
