"""Operations that move elements: transpose, broadcast, concat, pad, slice, reshape, sliding windows.

None masks, except `pad`, whose fill begins where the operand ends. A slice whose start is traced is a dynamic slice.
XLA moves a start that leaves too little room, which would shift the data, so an axis is lengthened first where the
capacity of the slice may reach beyond it; where the length of the slice is static it never does.

Reshape: elements are numbered by the actual lengths, memory by the capacities, so a reshape is free only where the
two agree. They do as long as each axis of unknown length has the same static axes before it on both sides: then that
part of the shape is a batch of its own. A last such axis may change its length (`(T, 4)` to `(4*T,)`), because what
is used of it is the beginning of what is stored. Everything else is a gather through the numbers of the elements,
which costs a division for each axis and element.

Windows: what lies beyond the length of an axis is replaced by zeros, or by the monoid's identity, and so acts as the
padding that a window meets there anyway. The input is moved to where its padding ends, on an axis just long enough
for as many windows as the result has room for; then no window is partial. A window whose length is known only at run
time is walked over position by position; a kernel of such a length is filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from polyrhythm.compiler.backends.jax.ops.monoids import COMBINE
from polyrhythm.compiler.backends.jax.ops.padded import (
    Implementation,
    Length,
    Padded,
    Result,
    aligned,
    apart,
    as_index,
    check_countable,
    dynamic_axes,
    fit,
    fit_axis,
    is_static,
    masked,
    positions,
    scalar,
    shifted,
)
from polyrhythm.compiler.backends.jax.ops.reductions import widened
from polyrhythm.compiler.ir import dtypes

Array = jax.Array


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
    is_kept = [all(is_static(n) and n == 0 for n in around) for around in zip(before, after, strict=True)]
    changed = [axis for axis, kept in enumerate(is_kept) if not kept]
    kept = [x.array.shape[axis] if axis in changed else n for axis, n in enumerate(result.capacities)]
    # The fill also takes the place of the operand's own garbage: it may lie inside the result.
    array = masked(Padded(fit(x.array, kept), x.lengths), changed, value)
    static = [axis for axis in changed if is_static(before[axis])]
    if static:
        amounts = [(0, 0, 0)] * array.ndim
        for axis in static:
            amounts[axis] = (before[axis], result.capacities[axis] - before[axis] - array.shape[axis], 0)
        fill = scalar(value, array.dtype)
        array = lax.pad(apart(array, fill), fill, amounts)
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


def reshaped(x: Padded, result: Result) -> Array:
    """The elements of x in another shape."""
    if result.is_empty or 0 in x.array.shape:
        return result.zeros()
    batches = _batches(x, result)
    if batches is None:
        return _looked_up(x, result)
    before, after = batches
    return lax.reshape(fit(lax.reshape(x.array, before), after), result.capacities)


def _batches(x: Padded, result: Result) -> tuple[list[int], list[int]] | None:
    """The capacities of both shapes with static axes joined, of one rank; None if they do not correspond."""
    before, after = [], []
    old, new = (
        list(zip(x.array.shape, x.lengths, strict=True)),
        list(zip(result.capacities, result.lengths, strict=True)),
    )
    while True:
        left, right = _static_prefix(old), _static_prefix(new)
        n, m = prod(c for c, _ in old[:left]), prod(c for c, _ in new[:right])
        old, new = old[left:], new[right:]
        if n != m:
            return None
        before.append(n)
        after.append(m)
        if not old and not new:
            return before, after
        if not old or not new:
            return None
        if len(dynamic_axes(length for _, length in old)) == len(dynamic_axes(length for _, length in new)) == 1:
            return [*before, prod(c for c, _ in old)], [*after, prod(c for c, _ in new)]
        if old[0][1] is not new[0][1]:
            return None
        before.append(old[0][0])
        after.append(new[0][0])
        old, new = old[1:], new[1:]


def _static_prefix(axes: Sequence[tuple[int, Length]]) -> int:
    return next((k for k, (_, length) in enumerate(axes) if not is_static(length)), len(axes))


def element_numbers(capacities: Sequence[int], lengths: Sequence[Length]) -> Array:
    """The row-major number of each element, counted by the lengths."""
    if all(map(is_static, lengths[1:])):
        return lax.reshape(lax.iota(np.int32, prod(capacities)), tuple(capacities))
    number = positions(capacities, 0)
    for axis, length in enumerate(lengths[1:], 1):
        number = number * as_index(length) + positions(capacities, axis)
    return number


def _looked_up(x: Padded, result: Result) -> Array:
    """The reshape of x by looking up each element by its number."""
    check_countable("reshape", x.array.shape, result.capacities)
    number = element_numbers(result.capacities, result.lengths)
    place, stride = jnp.zeros_like(number), 1
    for length, capacity in zip(reversed(x.lengths), reversed(x.array.shape), strict=True):
        # An empty axis has no elements to look up; garbage needs some divisor.
        divisor = jnp.broadcast_to(lax.max(as_index(length), np.int32(1)), number.shape)
        place = place + lax.rem(number, divisor) * np.int32(stride)
        number, stride = lax.div(number, divisor), stride * capacity
    dimensions = lax.GatherDimensionNumbers((), (0,), (0,))
    flat = lax.reshape(x.array, (x.array.size,))
    return lax.gather(flat, place[..., None], dimensions, (1,), mode="clip")


def _conv(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    x, w = operands
    groups = attributes["groups"]
    if result.is_empty or 0 in x.array.shape or 0 in w.array.shape:
        return result.zeros()
    if groups > 1 and not (is_static(x.lengths[1]) and is_static(w.lengths[0])):
        return _conv_of_dynamic_groups(x, w, attributes, result)
    if groups == 1:
        channels = min(x.array.shape[1], w.array.shape[1])
        x = Padded(fit_axis(x.array, 1, channels), x.lengths)
        w = Padded(fit_axis(w.array, 1, channels), w.lengths)
    x = Padded(fit_axis(x.array, 0, result.capacities[0]), x.lengths)
    w = Padded(fit_axis(w.array, 0, result.capacities[1]), w.lengths)
    return lax.convert_element_type(_conv_of_channels(x, w, attributes, result.capacities[2:]), result.dtype)


def _conv_of_channels(x: Padded, w: Padded, attributes: Mapping[str, Any], counts: Sequence[int]) -> Array:
    """The convolution, accumulated, for channels whose capacities fit."""
    wide = dtypes.accumulator(x.array.dtype)
    if dtypes.kind(wide) == "int" and wide.itemsize < 4:
        # Sums wrap all the same when they are cut to the narrow type afterwards.
        wide = dtypes.INT32
        x, w = (Padded(lax.convert_element_type(p.array, wide), p.lengths) for p in (x, w))
    axes = range(1, x.array.ndim)
    array, weights = masked(x, axes, 0), masked(w, axes, 0)
    settings = zip(counts, attributes["stride"], attributes["dilation"], attributes["padding"], strict=True)
    for axis, (count, stride, dilation, (low, _)) in enumerate(settings, 2):
        extent = (count - 1) * stride + (weights.shape[axis] - 1) * dilation + 1
        array = shifted(array, axis, low, extent, 0)
    return lax.conv_general_dilated(
        array,
        weights,
        attributes["stride"],
        [(0, 0)] * len(counts),
        rhs_dilation=attributes["dilation"],
        feature_group_count=attributes["groups"],
        preferred_element_type=wide,
    )


def _conv_of_dynamic_groups(x: Padded, w: Padded, attributes: Mapping[str, Any], result: Result) -> Array:
    """The convolution where the groups of channels do not begin at multiples of a static number.

    Each group gets a capacity of its own, so that they do; the result is put together again by its lengths.
    """
    groups, dtype = attributes["groups"], x.array.dtype
    outputs, outputs_capacity = _quotient(w.lengths[0], groups), w.array.shape[0] // groups
    batch, spatial = result.capacities[0], x.array.shape[2:]
    inputs, inputs_capacity = w.lengths[1], w.array.shape[1]
    split_x = Result((batch, groups, inputs_capacity, *spatial), (x.lengths[0], groups, inputs, *x.lengths[2:]), dtype)
    split_w = Result((groups, outputs_capacity, *w.array.shape[1:]), (groups, outputs, *w.lengths[1:]), dtype)
    grouped_x = masked(Padded(reshaped(x, split_x), split_x.lengths), (2,), 0)
    grouped_w = reshaped(w, split_w)
    flat_x = lax.reshape(grouped_x, (batch, groups * inputs_capacity, *spatial))
    flat_w = lax.reshape(grouped_w, (groups * outputs_capacity, *w.array.shape[1:]))
    counts = result.capacities[2:]
    array = _conv_of_channels(
        Padded(flat_x, (x.lengths[0], groups * inputs_capacity, *x.lengths[2:])),
        Padded(flat_w, (groups * outputs_capacity, *w.lengths[1:])),
        attributes,
        counts,
    )
    array = lax.reshape(lax.convert_element_type(array, dtype), (batch, groups, outputs_capacity, *counts))
    lengths = (result.lengths[0], groups, outputs, *result.lengths[2:])
    return reshaped(Padded(array, lengths), result)


def _quotient(length: Length, groups: int) -> Length:
    return length // groups if is_static(length) else lax.div(length, np.int32(groups))


def _reduce_window(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    window, stride, padding = (tuple(attributes[name]) for name in ("window", "stride", "padding"))
    kept = operands[0].array.ndim - len(window)
    capacities = (*result.capacities[:kept], *operands[0].array.shape[kept:])
    x = widened(Padded(fit(operands[0].array, capacities), operands[0].lengths))
    combine, start = COMBINE[attributes["monoid"]], dtypes.identity(attributes["monoid"], x.array.dtype)
    if result.is_empty or 0 in x.array.shape:
        return lax.full(result.capacities, start.astype(result.dtype))
    if all(map(is_static, window)):
        array = masked(x, range(kept, x.array.ndim), start)
        settings = zip(result.capacities[kept:], window, stride, padding, strict=True)
        for axis, (count, size, step, (low, _)) in enumerate(settings, kept):
            array = shifted(array, axis, low, (count - 1) * step + size, start)
        ones, array = (1,) * kept, apart(array, start)
        array = lax.reduce_window(array, start, combine, (*ones, *window), (*ones, *stride), "VALID")
        return lax.convert_element_type(array, result.dtype)
    total = lax.fori_loop(
        np.int32(0),
        _product(window),
        lambda position, total: combine(total, _elements_at(position, x, start, attributes, result)),
        lax.full(result.capacities, start),
    )
    return lax.convert_element_type(total, result.dtype)


def _product(window: Sequence[Length]) -> Array:
    count = as_index(1)
    for length in window:
        count = lax.mul(count, as_index(length))
    return count


def _elements_at(position: Array, x: Padded, start: np.ndarray, attributes: Mapping[str, Any], result: Result) -> Array:
    """The elements that all windows have at one of their positions, given by its number."""
    window, stride, padding = (tuple(attributes[name]) for name in ("window", "stride", "padding"))
    kept, array = x.array.ndim - len(window), x.array
    for axis in reversed(range(kept, x.array.ndim)):
        size, (low, _) = as_index(window[axis - kept]), padding[axis - kept]
        offset, position = lax.rem(position, size), lax.div(position, size)
        place = lax.iota(np.int32, result.capacities[axis]) * np.int32(stride[axis - kept]) + (offset - as_index(low))
        inside = (place >= 0) & (place < as_index(x.lengths[axis]))
        array = jnp.take(array, jnp.where(inside, place, np.int32(0)), axis, mode="clip")
        inside = lax.broadcast_in_dim(inside, array.shape, (axis,))
        array = lax.select(inside, array, lax.full_like(array, start))
    return array


IMPLEMENTATIONS: dict[str, Implementation] = {
    "transpose": lambda operands, attributes, result: fit(
        lax.transpose(operands[0].array, attributes["axes"]), result.capacities
    ),
    "copy": _broadcast,
    "broadcast": _broadcast,
    "choose": _choose,
    "concat": _concat,
    "pad": _pad,
    "slice": _slice,
    "reshape": lambda operands, attributes, result: reshaped(operands[0], result),
    "conv": _conv,
    "reduce_window": _reduce_window,
}
