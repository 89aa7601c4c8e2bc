"""Sliding windows over padded arrays.

What lies beyond the length of an axis is replaced by zeros, or by the monoid's identity, and so acts as the padding
that a window meets there anyway. The input is moved to where its padding ends, on an axis just long enough
for as many windows as the result has room for; then no window is partial. A window whose length is known only at run
time is walked over position by position; a kernel of such a length is filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    as_index,
    fit,
    fit_axis,
    is_static,
    masked,
    shifted,
)
from polyrhythm.compiler.backends.jax.ops.reductions import widened
from polyrhythm.compiler.backends.jax.ops.reshape import reshaped
from polyrhythm.compiler.ir import dtypes

Array = jax.Array


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
        ones = (1,) * kept
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


IMPLEMENTATIONS: dict[str, Implementation] = {"conv": _conv, "reduce_window": _reduce_window}
