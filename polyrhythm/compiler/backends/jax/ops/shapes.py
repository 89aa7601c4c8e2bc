"""Operations that move elements: transpose, broadcast, concat, pad, slice.

None masks, except `pad`, whose fill begins where the operand ends. A slice whose start is traced is a dynamic slice.
XLA moves a start that leaves too little room, which would shift the data, so an axis is lengthened first where the
capacity of the slice may reach beyond it; where the length of the slice is static it never does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from polyrhythm.compiler.backends.jax.ops.padded import (
    Implementation,
    Length,
    Padded,
    Result,
    aligned,
    as_index,
    dynamic_axes,
    fit,
    fit_axis,
    is_static,
    masked,
    scalar,
    shifted,
)

Array = jax.Array


def _transpose(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    return fit(lax.transpose(operands[0].array, attributes["axes"]), result.capacities)


def _broadcast(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    return aligned(operands[0], result.capacities)


def _choose(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    holds = attributes["condition"]
    if isinstance(holds, (bool, np.bool_)):
        return aligned(operands[0 if holds else 1], result.capacities)
    a, b = (aligned(operand, result.capacities) for operand in operands)
    return lax.select(holds, a, b)


def _concat(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    axis, capacities = attributes["axis"], list(result.capacities)
    parts = []
    for operand in operands:
        capacities[axis] = operand.array.shape[axis]
        parts.append((fit(operand.array, capacities), operand.lengths[axis]))
    # Up to and including the first part of unknown length, parts stand where their capacities put them.
    first = next((k for k, (_, length) in enumerate(parts) if not is_static(length)), len(parts) - 1) + 1
    joined = lax.concatenate([array for array, _ in parts[:first]], axis)
    if first == len(parts):
        return fit_axis(joined, axis, result.capacities[axis])
    # Each later part overwrites the garbage that the one before it left. The offset is at most the sum of the
    # capacities before, so there is always room.
    buffer = fit_axis(joined, axis, sum(array.shape[axis] for array, _ in parts))
    offset: Length = sum((length for _, length in parts[:first]), 0)
    for array, length in parts[first:]:
        starts = [as_index(offset) if i == axis else np.int32(0) for i in range(array.ndim)]
        buffer = lax.dynamic_update_slice(buffer, array, starts, allow_negative_indices=False)
        offset = offset + length
    return fit_axis(buffer, axis, result.capacities[axis])


def _pad(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    (x,) = operands
    before, after, value = attributes["before"], attributes["after"], attributes["value"]

    def is_kept(axis: int) -> bool:
        return all(is_static(n) and n == 0 for n in (before[axis], after[axis]))

    changed = [axis for axis in range(x.array.ndim) if not is_kept(axis)]
    kept = [x.array.shape[axis] if axis in changed else n for axis, n in enumerate(result.capacities)]
    # The fill also takes the place of the operand's own garbage: it may lie inside the result.
    array = masked(Padded(fit(x.array, kept), x.lengths), changed, value)
    static = [axis for axis in changed if is_static(before[axis])]
    if static:
        amounts = [(0, 0, 0)] * array.ndim
        for axis in static:
            amounts[axis] = (before[axis], result.capacities[axis] - before[axis] - array.shape[axis], 0)
        array = lax.pad(array, scalar(value, array.dtype), amounts)
    for axis in changed:
        if axis not in static:
            array = shifted(array, axis, before[axis], result.capacities[axis], value)
    return array


def _slice(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    array = operands[0].array
    starts, steps = list(attributes["starts"]), list(attributes["steps"])
    if result.is_empty or 0 in array.shape:
        return result.zeros()
    # Counted from the other end, a negative step is a positive one.
    backward = [axis for axis, step in enumerate(steps) if step < 0]
    for axis in backward:
        starts[axis], steps[axis] = array.shape[axis] - 1 - starts[axis], -steps[axis]
    array = lax.rev(array, backward) if backward else array
    spans = [(n - 1) * step + 1 for n, step in zip(result.capacities, steps, strict=True)]
    array = _cut_dynamic(array, starts, spans, result.lengths)
    dynamic = dynamic_axes(starts)
    begin, end = [0] * array.ndim, list(array.shape)
    for axis in range(array.ndim):
        if axis not in dynamic:
            # A start outside is that of a slice that turns out to be empty.
            begin[axis] = min(max(starts[axis], 0), array.shape[axis] - 1)
            end[axis] = min(begin[axis] + spans[axis], array.shape[axis])
    if begin != [0] * array.ndim or end != list(array.shape) or set(steps) != {1}:
        array = lax.slice(array, begin, end, steps)
    return fit(array, result.capacities)


def _cut_dynamic(array: Array, starts: Sequence[Length], spans: Sequence[int], lengths: Sequence[Length]) -> Array:
    """Cut `spans` elements from `starts` along the axes whose start is traced; other axes stay whole."""
    dynamic = dynamic_axes(starts)
    if not dynamic:
        return array
    shape = list(array.shape)
    for axis in dynamic:
        if not is_static(lengths[axis]) or spans[axis] > shape[axis]:
            shape[axis] += spans[axis]
    whole = fit(array, shape)
    sizes = [spans[axis] if axis in dynamic else n for axis, n in enumerate(shape)]
    begin = [
        # In range by our own doing: XLA goes wrong where it merges slices and relies on their clamping.
        lax.clamp(np.int32(0), as_index(starts[axis]), np.int32(shape[axis] - sizes[axis]))
        if axis in dynamic
        else np.int32(0)
        for axis in range(array.ndim)
    ]
    return lax.dynamic_slice(whole, begin, sizes, allow_negative_indices=False)


IMPLEMENTATIONS: dict[str, Implementation] = {
    "transpose": _transpose,
    "copy": _broadcast,
    "broadcast": _broadcast,
    "choose": _choose,
    "concat": _concat,
    "pad": _pad,
    "slice": _slice,
}
