"""Reshape of padded arrays.

Elements are numbered by the actual lengths, memory by the capacities, so a reshape is free only where the two agree.
They do as long as each axis of unknown length has the same static axes before it on both sides: then that part of
the shape is a batch of its own. A last such axis may change its length (`(T, 4)` to `(4*T,)`), because what is used
of it is the beginning of what is stored. Everything else is a gather through the numbers of the elements, which
costs a division for each axis and element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from polyrhythm.compiler.backends.jax.ops.padded import (
    Implementation,
    Length,
    Padded,
    Result,
    as_index,
    check_countable,
    dynamic_axes,
    fit,
    is_static,
    positions,
)

Array = jax.Array


def _reshape(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    return reshaped(operands[0], result)


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
    old, new = list(zip(x.array.shape, x.lengths, strict=True)), list(zip(*_sizes(result), strict=True))
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


def _sizes(result: Result) -> tuple[tuple[int, ...], tuple[Length, ...]]:
    return result.capacities, result.lengths


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


IMPLEMENTATIONS: dict[str, Implementation] = {"reshape": _reshape}
