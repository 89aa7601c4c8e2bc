"""Data-dependent indexing: gathers that clamp to the actual length, scatters that drop what lies outside it.

Axes along which the indices vary together with the operand are batch axes of the gather or scatter; an axis of
which the indices know nothing is moved whole. Updates beyond the length of the indices' axes are given an index outside
the base, which drops them; garbage along the other axes lands in the garbage of the base. On a CPU XLA scatters
one update at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from polyrhythm.compiler.backends.jax.ops.padded import (
    INT32_MAX,
    Implementation,
    Length,
    Padded,
    Result,
    as_index,
    fit,
    is_inside,
    is_one,
    is_static,
)
from polyrhythm.compiler.backends.jax.products import rows
from polyrhythm.compiler.ir import dtypes

Array = jax.Array

PAIRS_PER_PLACE = 4
"""Updates are compared with each other where that takes no more comparisons than so many for each place of the base."""


def _indices32(indices: Array) -> Array:
    """The indices as int32; those that do not fit stay larger than any length, or negative."""
    dtype = indices.dtype
    if dtype.itemsize > 4 or dtype == dtypes.UINT32:
        low = dtype.type(0 if dtype.kind == "u" else -1)
        indices = lax.clamp(low, indices, dtype.type(INT32_MAX))
    return lax.convert_element_type(indices, np.int32)


def clamped(indices: Array, length: Length) -> Array:
    """The indices as int32, inside of an axis."""
    last = lax.sub(as_index(length), np.int32(1))
    return lax.max(
        lax.min(_indices32(indices), jnp.broadcast_to(last, indices.shape)), lax.full_like(indices, 0, np.int32)
    )


def _unless_empty(taken: Array, length: Length) -> Array:
    """Zeros if the axis that was read has no elements."""
    if is_static(length):
        return taken
    return lax.select(jnp.broadcast_to(lax.gt(length, np.int32(0)), taken.shape), taken, lax.full_like(taken, 0))


def _take(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    x, indices = operands
    axis, rank = attributes["axis"], indices.array.ndim
    capacities, length = result.capacities, x.lengths[axis]
    array = fit(x.array, (*capacities[:axis], x.array.shape[axis], *capacities[axis + rank :]))
    chosen = fit(indices.array, capacities[axis : axis + rank])
    if 0 in array.shape or result.is_empty:
        return result.zeros()
    if axis == 0 and rows.pays(array):
        return _unless_empty(rows.taken(array, clamped(chosen, length)), length)
    offsets = (*range(axis), *range(axis + rank, len(capacities)))
    dimensions = lax.GatherDimensionNumbers(offsets, (axis,), (axis,))
    sizes = (*array.shape[:axis], 1, *array.shape[axis + 1 :])
    taken = lax.gather(
        array, clamped(chosen, length)[..., None], dimensions, sizes, mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS
    )
    return _unless_empty(taken, length)


def _take_along(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    x, indices = operands
    axis, rank, length = attributes["axis"], x.array.ndim, x.lengths[attributes["axis"]]
    others = [i for i in range(rank) if i != axis]
    moved = [i for i in others if is_one(indices.lengths[i])]
    # Where only the indices vary, the operand's axis of length one vanishes.
    vanished = [i for i in others if i not in moved and is_one(x.lengths[i])]
    capacities = list(result.capacities)
    own = [x.array.shape[i] if i == axis or is_one(x.lengths[i]) else capacities[i] for i in range(rank)]
    array = lax.squeeze(fit(x.array, own), vanished)
    chosen = fit(indices.array, [1 if i in moved else capacities[i] for i in range(rank)])
    chosen = lax.squeeze(chosen, moved)
    if 0 in array.shape or result.is_empty:
        return result.zeros()
    axes_of_x = [i for i in range(rank) if i not in vanished]
    axes_of_indices = [i for i in range(rank) if i not in moved]
    batch = [i for i in others if i not in moved and i not in vanished]
    along = axes_of_x.index(axis)
    dimensions = lax.GatherDimensionNumbers(
        tuple(moved),
        (along,),
        (along,),
        tuple(axes_of_x.index(i) for i in batch),
        tuple(axes_of_indices.index(i) for i in batch),
    )
    sizes = [array.shape[k] if i in moved else 1 for k, i in enumerate(axes_of_x)]
    taken = lax.gather(
        array, clamped(chosen, length)[..., None], dimensions, sizes, mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS
    )
    return _unless_empty(taken, length)


def _targets(indices: Array, lengths: Sequence[Length], axes: Sequence[int], length: Length, capacity: int) -> Array:
    """Where updates go: outside the base if their index is, or if they are garbage along some axes."""
    chosen = _indices32(indices)
    lengths = [as_index(n) if is_static(n) and n < size else n for n, size in zip(lengths, chosen.shape, strict=True)]
    limit = jnp.broadcast_to(as_index(length), chosen.shape)
    inside = lax.bitwise_and(lax.ge(chosen, lax.full_like(chosen, 0)), lax.lt(chosen, limit))
    real = is_inside(chosen.shape, lengths, axes)
    inside = inside if real is None else lax.bitwise_and(inside, real)
    return lax.select(inside, chosen, lax.full_like(chosen, capacity))[..., None]


def _evenly(indices: Padded) -> tuple[int, ...]:
    """For how many updates there is room: every device has as many, unless there is one.

    Where devices have different numbers of them, and others have the same ones, XLA's partitioner adds them up once for
    each of those.
    """
    ways = 1 if _is_one_row(indices) else jax.device_count()
    return tuple(n if n == 1 else -(-n // ways) * ways for n in indices.array.shape)


def _scattered(base: Array, targets: Array, updates: Array, dimensions: lax.ScatterDimensionNumbers) -> Array:
    wide = dtypes.accumulator(base.dtype)
    total = lax.scatter_add(
        lax.convert_element_type(base, wide),
        targets,
        lax.convert_element_type(updates, wide),
        dimensions,
        mode=lax.GatherScatterMode.FILL_OR_DROP,
    )
    return lax.convert_element_type(total, base.dtype)


def _scatter_add(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    base, indices, updates = operands
    axis, rank = attributes["axis"], indices.array.ndim
    array, capacities = fit(base.array, result.capacities), result.capacities
    if result.is_empty or 0 in indices.array.shape or 0 in updates.array.shape:
        return array
    rows = _evenly(indices)
    values = fit(updates.array, (*capacities[:axis], *rows, *capacities[axis + 1 :]))
    targets = _targets(fit(indices.array, rows), indices.lengths, range(rank), base.lengths[axis], capacities[axis])
    if _is_one_row(indices):
        wide = dtypes.accumulator(array.dtype)
        before, change = (lax.convert_element_type(x, wide) for x in (array, values))
        total = _one_row(before, change, targets, axis, lax.add)
        return lax.convert_element_type(total, array.dtype)
    windows = (*range(axis), *range(axis + rank, values.ndim))
    return _scattered(array, targets, values, lax.ScatterDimensionNumbers(windows, (axis,), (axis,)))


def _scatter(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    base, indices, updates = operands
    axis, rank, mode = attributes["axis"], indices.array.ndim, attributes["mode"]
    array, capacities = fit(base.array, result.capacities), result.capacities
    if result.is_empty or 0 in indices.array.shape or 0 in updates.array.shape:
        return array
    rows = _evenly(indices)
    values = fit(updates.array, (*capacities[:axis], *rows, *capacities[axis + 1 :]))
    targets = _targets(fit(indices.array, rows), indices.lengths, range(rank), base.lengths[axis], capacities[axis])
    if _is_one_row(indices):
        combine: Any = {"set": lambda _, new: new, "max": jnp.maximum, "min": jnp.minimum}[mode]
        return _one_row(array, values, targets, axis, combine)
    if mode == "set" and rank == 0:
        return _put(array, indices.array, values, axis, base.lengths[axis])
    if mode == "set" and not attributes["unique"]:
        if targets.size**2 > PAIRS_PER_PLACE * capacities[axis]:
            return _last_put(array, targets, values, axis)
        targets = _without_earlier(targets, capacities[axis])
    windows = (*range(axis), *range(axis + rank, values.ndim))
    dimensions = lax.ScatterDimensionNumbers(windows, (axis,), (axis,))
    combine = {"set": lax.scatter, "max": lax.scatter_max, "min": lax.scatter_min}[mode]
    wide = dtypes.INT8 if array.dtype == dtypes.BOOL else array.dtype
    array, values = (lax.convert_element_type(x, wide) for x in (array, values))
    found = combine(array, targets, values, dimensions, mode=lax.GatherScatterMode.FILL_OR_DROP)
    return lax.convert_element_type(found, result.dtype)


def _is_one_row(indices: Padded) -> bool:
    """Whether there is one update, and more than one device that may have parts of the base.

    A device tries it where the base is not its own. XLA then reads what is there in order to write it back, and where
    the base is a slice as well, it makes one slice of both that reads elsewhere: rows change that nobody writes.
    """
    return indices.array.size == 1 and jax.device_count() > 1


def _one_row(array: Array, values: Array, targets: Array, axis: int, combine: Any) -> Array:
    """One update, where positions are the target: what no device has to look up."""
    row = lax.reshape(values, (*array.shape[:axis], 1, *array.shape[axis + 1 :]))
    here = lax.broadcasted_iota(np.int32, array.shape, axis) == lax.reshape(targets, ())
    return lax.select(here, combine(array, jnp.broadcast_to(row, array.shape)), array)


def _put(array: Array, index: Array, value: Array, axis: int, length: Length) -> Array:
    """One row in its place; XLA does it without a copy."""
    place = _indices32(index)
    row = lax.expand_dims(value, (axis,))
    now = lax.dynamic_index_in_dim(array, place, axis)
    inside = lax.bitwise_and(lax.ge(place, np.int32(0)), lax.lt(place, as_index(length)))
    chosen = lax.select(jnp.broadcast_to(inside, row.shape), row, now)
    written: Array = lax.dynamic_update_index_in_dim(array, chosen, place, axis)
    return written


def _without_earlier(targets: Array, outside: int) -> Array:
    """The targets of updates, but outside the base for those that a later one overwrites."""
    count = targets.size
    flat = lax.reshape(targets, (count,))
    same = lax.eq(lax.broadcast_in_dim(flat, (count, count), (0,)), lax.broadcast_in_dim(flat, (count, count), (1,)))
    later = np.triu(np.ones((count, count), bool), 1)
    again = jnp.any(lax.bitwise_and(same, later), axis=1)
    return lax.reshape(lax.select(again, lax.full_like(flat, outside), flat), targets.shape)


def _last_put(array: Array, targets: Array, values: Array, axis: int) -> Array:
    """For each position the last of its updates: XLA does not say which of several it keeps."""
    count = targets.size
    rest = (*array.shape[:axis], count, *array.shape[axis + 1 :])
    order = lax.iota(np.int32, count)
    none = lax.full((array.shape[axis],), np.int32(-1))
    dimensions = lax.ScatterDimensionNumbers((), (0,), (0,))
    drop = lax.GatherScatterMode.FILL_OR_DROP
    last = lax.scatter_max(none, lax.reshape(targets, (count, 1)), order, dimensions, mode=drop)
    taken = jnp.take(lax.reshape(values, rest), lax.max(last, lax.full_like(last, 0)), axis, mode="clip")
    written = lax.broadcast_in_dim(last >= 0, array.shape, (axis,))
    return lax.select(written, taken, array)


def _scatter_along(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    base, indices, updates = operands
    axis, rank = attributes["axis"], base.array.ndim
    array, capacities = fit(base.array, result.capacities), list(result.capacities)
    if result.is_empty or 0 in indices.array.shape or 0 in updates.array.shape:
        return array
    moved = [i for i in range(rank) if i != axis and is_one(indices.lengths[i])]
    count = _evenly(indices)[axis]
    values = fit(updates.array, [count if i == axis else capacities[i] for i in range(rank)])
    chosen = fit(indices.array, [count if i == axis else 1 if i in moved else capacities[i] for i in range(rank)])
    targets = _targets(chosen, indices.lengths, (axis,), base.lengths[axis], capacities[axis])
    axes_of_indices = [i for i in range(rank) if i not in moved]
    batch = [i for i in axes_of_indices if i != axis]
    dimensions = lax.ScatterDimensionNumbers(
        tuple(moved), (axis,), (axis,), tuple(batch), tuple(axes_of_indices.index(i) for i in batch)
    )
    return _scattered(array, lax.squeeze(targets, moved), values, dimensions)


IMPLEMENTATIONS: dict[str, Implementation] = {
    "take": _take,
    "take_along": _take_along,
    "scatter": _scatter,
    "scatter_add": _scatter_add,
    "scatter_along": _scatter_along,
}
