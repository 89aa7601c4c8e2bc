"""Slices at a place that all lanes share stay slices.

JAX maps a slice that is read or stored at a computed place to a gather or scatter, even where the place is the same for
all lanes. XLA makes of such a scatter a choice between the array before and after, whole, in every iteration: a loop
over T steps that stores one of them at a time would take time in T squared. Here the lanes are one more axis of the
slice, from 0 on; only where each lane has a place of its own it is a gather or scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from polyrhythm.compiler.backends.jax.trace.scope import Scalar, int32

ZERO = int32(0)


def put(array: jax.Array, slot: jax.Array, start: Sequence[jax.Array]) -> jax.Array:
    """An array with other contents of a slot."""
    updated: jax.Array = _updated(array, slot, *start)
    return updated


def put_along(array: jax.Array, rows: jax.Array, at: jax.Array, axis: int) -> jax.Array:
    """An array with other rows of an axis."""
    return put(array, rows, [int32(at) if number == axis else ZERO for number in range(array.ndim)])


def taken(array: jax.Array, sizes: Sequence[int], start: Sequence[jax.Array]) -> jax.Array:
    """A slot of an array."""

    def plain(array: jax.Array, *start: jax.Array) -> jax.Array:
        return lax.dynamic_slice(array, start, sizes, allow_negative_indices=False)

    mapped = custom_vmap(plain)

    @mapped.def_vmap
    def _(size: int, batched: Sequence[bool], array: jax.Array, *start: jax.Array) -> tuple[jax.Array, bool]:
        if any(batched[1:]):
            return _mapped(plain, batched)(array, *start), True
        return taken(array, (size, *sizes), (ZERO, *start)), True

    found: jax.Array = _linear(mapped, plain, 1)(array, *start)
    return found


def taken_along(array: jax.Array, at: Scalar, count: int, axis: int) -> jax.Array:
    """Some rows of an axis."""
    sizes = [count if number == axis else size for number, size in enumerate(array.shape)]
    return taken(array, sizes, [int32(at) if number == axis else ZERO for number in range(array.ndim)])


def taken_at(array: jax.Array, index: Scalar, axis: int) -> jax.Array:
    """One slot of an axis; of an empty axis, zeros, which are never used."""
    if array.shape[axis] == 0:
        return jnp.zeros((*array.shape[:axis], *array.shape[axis + 1 :]), array.dtype)
    if isinstance(index, int):
        index = min(max(index, 0), array.shape[axis] - 1)
        return lax.index_in_dim(array, index, axis, keepdims=False)
    return lax.squeeze(taken_along(array, index, 1, axis), [axis])


def _plain(array: jax.Array, slot: jax.Array, *start: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice(array, slot, start, allow_negative_indices=False)


def _linear(function: Callable[..., jax.Array], plain: Callable[..., jax.Array], count: int) -> Callable[..., Any]:
    """A function that is linear in its first operands, for JAX to differentiate: it does not know how by itself."""
    known = jax.custom_jvp(function)

    @known.defjvp
    def _(primals: Sequence[jax.Array], tangents: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
        return known(*primals), plain(*tangents[:count], *primals[count:])

    return known


_mapped_update = custom_vmap(_plain)
_updated = _linear(_mapped_update, _plain, 2)


@_mapped_update.def_vmap
def _(
    size: int, batched: Sequence[bool], array: jax.Array, slot: jax.Array, *start: jax.Array
) -> tuple[jax.Array, bool]:
    if any(batched[2:]):
        return _mapped(_plain, batched)(array, slot, *start), True
    array, slot = (
        each if own else jnp.broadcast_to(each, (size, *each.shape))
        for each, own in zip((array, slot), batched, strict=False)
    )
    return put(array, slot, (ZERO, *start)), True


def _mapped(function: Callable[..., jax.Array], batched: Sequence[bool]) -> Callable[..., jax.Array]:
    return jax.vmap(function, [0 if own else None for own in batched])
