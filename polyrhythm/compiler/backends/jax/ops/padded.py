"""Arrays with axes of unknown length, as XLA can hold them: padded to a static capacity.

XLA knows static shapes only. An axis whose length is known at run time is stored with a *capacity*, a static number
that is at least the length; the length is a traced int32 scalar. What lies beyond the length is garbage, NaN and
infinity included, and may never reach what lies inside. Moving garbage is free and computing with it is harmless as
long as each element is computed alone, so an elementwise operation pays nothing; an operation that combines
elements first masks those beyond the length with its neutral element. Where all lengths are plain integers
nothing is masked: the code is what one would write by hand.

An axis may also *begin* later than at 0: what is read from a step on, `x[t:T]`, is the whole buffer where it lies, with
garbage before the start as well. Moving it would copy it, for every lane of a loop done at once. Operations that
do the same at every position keep the start (`trace/offset_axes.py`); for all others the axis is moved to begin at 0.

All index arithmetic is int32, also when 64-bit types are enabled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from polyrhythm.compiler.backends.jax.ops.ring import Ring
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.errors import PolyrhythmError

Length = int | jax.Array
"""A static length, or a traced int32 scalar."""

INT32_MAX = 2**31 - 1


class IndexRangeError(PolyrhythmError):
    """An operation would have to count more elements than a 32-bit index can.

    It happens where positions depend on lengths known at run time, or for random tensors, of more than two
    thousand million elements. Give the bounds a smaller `max=`, or split the tensor along a dim.
    """


@dataclass(frozen=True)
class Start:
    """Where an axis begins: the position of its first element. Starts of one block with equal terms are equal."""

    term: Term
    value: jax.Array = field(compare=False)


@dataclass(frozen=True)
class Packed:
    """A matrix as codes, their scales and perhaps offsets, of which `dequantize` makes its elements."""

    codes: jax.Array
    factors: tuple[jax.Array, ...]
    dtype: np.dtype


@dataclass(frozen=True)
class Window:
    """What an array is a part of: of `whole`, so many slots of an axis as it has, from `start` on."""

    whole: jax.Array
    axis: int
    start: jax.Array

    def without(self, axes: Sequence[int]) -> Window:
        """The same without some axes of length one."""
        return Window(lax.squeeze(self.whole, axes), self.axis - sum(axis < self.axis for axis in axes), self.start)


@dataclass(frozen=True)
class Padded:
    """A value: its elements in an array whose shape is the capacities, and the lengths in use.

    A length that is an int is static and equals the capacity. `starts` has the axes that do not begin at 0. `zeros` is
    a promise of whoever made the array: what lies outside the lengths is zero, as in a buffer that began so. That
    saves masks in contractions and sums. `shared` is there where many lanes read this one array, each up to a length
    of its own: to mask it would copy it for every lane. It tells whether an array is finite in all lanes. `packed` is
    there where only products read a dequantized matrix: they take it as it lies, or make the array. `ring` is an axis
    of what lanes share that is spread over their devices. `window` is there where each lane reads a part of its own of
    what lanes share.
    """

    array: jax.Array
    lengths: tuple[Length, ...]
    zeros: bool = False
    shared: Callable[[jax.Array], jax.Array] | None = None
    starts: Mapping[int, Start] = field(default_factory=dict)
    packed: Packed | None = None
    ring: Ring | None = None
    window: Window | None = None

    def with_axes(self, array: jax.Array, axes: Sequence[int]) -> Padded:
        """Another array whose axes are some of these, in this order."""
        starts = {new: self.starts[old] for new, old in enumerate(axes) if old in self.starts}
        ring = self.ring.at(axes.index(self.ring.axis)) if self.ring is not None and self.ring.axis in axes else None
        lengths = tuple(self.lengths[axis] for axis in axes)
        return replace(self, array=array, lengths=lengths, starts=starts, ring=ring, window=None)


@dataclass(frozen=True)
class Result:
    """What the result of an operation has to look like."""

    capacities: tuple[int, ...]
    lengths: tuple[Length, ...]
    dtype: np.dtype

    @property
    def is_empty(self) -> bool:
        """Whether there is no room for any element."""
        return 0 in self.capacities

    def zeros(self) -> jax.Array:
        """What stands for a value without elements, or whose elements are all garbage."""
        return jnp.zeros(self.capacities, self.dtype)


Implementation = Callable[[Sequence[Padded], Mapping[str, Any], Result], jax.Array]
"""Computes an array with the capacities and dtype of the result."""


def is_static(length: Length) -> TypeGuard[int]:
    """Whether a length is known now."""
    return isinstance(length, (int, np.integer))


def is_one(length: Length) -> bool:
    """Whether an axis broadcasts: only a static one does, even if the capacity of another is 1."""
    return is_static(length) and length == 1


def dynamic_axes(lengths: Iterable[Length]) -> tuple[int, ...]:
    """The axes that may hold garbage."""
    return tuple(axis for axis, length in enumerate(lengths) if not is_static(length))


def scalar(value: Any, dtype: np.dtype) -> np.ndarray:
    """A constant of exactly this dtype."""
    return np.array(value).astype(dtype)


def fit(array: jax.Array, capacities: Sequence[int]) -> jax.Array:
    """The array brought to other capacities: cut, or lengthened by zeros that nobody reads."""
    if array.shape == tuple(capacities):
        return array
    amounts = [(0, new - old, 0) for old, new in zip(array.shape, capacities, strict=True)]
    return lax.pad(array, scalar(0, array.dtype), amounts)


def fit_axis(array: jax.Array, axis: int, capacity: int) -> jax.Array:
    """The array with another capacity along one axis."""
    return fit(array, (*array.shape[:axis], capacity, *array.shape[axis + 1 :]))


def aligned(operand: Padded, capacities: Sequence[int]) -> jax.Array:
    """The operand broadcast as NumPy does, to the capacities of a result of the same or a higher rank."""
    shift = len(capacities) - operand.array.ndim
    own = [
        1 if is_one(length) else capacity for length, capacity in zip(operand.lengths, capacities[shift:], strict=True)
    ]
    array = fit(operand.array, own)
    if array.shape == tuple(capacities):
        return array
    return lax.broadcast_in_dim(array, tuple(capacities), tuple(range(shift, len(capacities))))


def positions(shape: Sequence[int], axis: int) -> jax.Array:
    """The int32 index along an axis, everywhere in a shape."""
    return lax.broadcasted_iota(np.int32, tuple(shape), axis)


def is_inside(
    shape: Sequence[int], lengths: Sequence[Length], axes: Iterable[int], starts: Mapping[int, Start] | None = None
) -> jax.Array | None:
    """Where all elements lie inside the lengths along some axes; None if they do everywhere."""
    mask = None
    for axis in axes:
        if not is_static(lengths[axis]):
            place, end = positions(shape, axis), lengths[axis]
            if starts and axis in starts:
                end = starts[axis].value + end
            along = lax.lt(place, jnp.broadcast_to(end, tuple(shape)))
            if starts and axis in starts:
                along = lax.bitwise_and(along, lax.ge(place, jnp.broadcast_to(starts[axis].value, tuple(shape))))
            mask = along if mask is None else lax.bitwise_and(mask, along)
    return mask


def masked(operand: Padded, axes: Iterable[int], fill: Any) -> jax.Array:
    """The array with garbage along some axes replaced."""
    array = operand.array
    mask = is_inside(array.shape, operand.lengths, axes, operand.starts)
    if mask is None:
        return array
    return lax.select(mask, array, lax.full_like(array, scalar(fill, array.dtype)))


def apart(array: jax.Array, fill: np.ndarray) -> jax.Array:
    """An array that some value other than zero is put around, or before, as XLA's partitioner may see it.

    It brings the edges of an axis that is spread to the neighbours once for each way to put something around an array,
    and looks only at how much that is: what is to be filled with ones, or begins with the least number as a maximum
    does, would have the zeros of another.
    """
    if fill and jax.device_count() > 1:
        array, _ = lax.optimization_barrier((array, jnp.asarray(fill, array.dtype)))
    return array


def shifted(array: jax.Array, axis: int, offset: Length, capacity: int, fill: Any) -> jax.Array:
    """The array moved along an axis to begin at `offset` of a new axis of some capacity, with `fill` around it.

    What does not find room is cut off.
    """
    value, own = scalar(fill, array.dtype), array.shape[axis]
    if is_static(offset):
        amounts = [(0, 0, 0)] * array.ndim
        amounts[axis] = (offset, capacity - offset - own, 0)
        return lax.pad(apart(array, value), value, amounts)
    # An update that does not fit is moved until it does, which would be wrong: leave room for all of it.
    shape = (*array.shape[:axis], capacity + own, *array.shape[axis + 1 :])
    start = lax.clamp(np.int32(0), as_index(offset), np.int32(capacity))
    starts = [start if i == axis else np.int32(0) for i in range(array.ndim)]
    whole = lax.dynamic_update_slice(lax.full(shape, value), array, starts, allow_negative_indices=False)
    return fit_axis(whole, axis, capacity)


def moved(operand: Padded, axes: Iterable[int]) -> Padded:
    """The operand with some axes moved to begin at 0."""
    array, starts = operand.array, dict(operand.starts)
    for axis in axes:
        if axis in starts:
            size = array.shape[axis]
            places = starts.pop(axis).value + lax.iota(np.int32, size)
            array = jnp.take(array, jnp.clip(places, 0, size - 1), axis=axis, mode="clip")
    return replace(operand, array=array, starts=starts, shared=operand.shared if array is operand.array else None)


def as_index(value: Length) -> jax.Array:
    """An int32 scalar."""
    return jnp.asarray(value, np.int32)


def check_countable(op: str, *shapes: Sequence[int]) -> None:
    """Refuse what int32 positions cannot count."""
    for shape in shapes:
        if np.prod([int(n) for n in shape], dtype=object) > INT32_MAX:
            raise IndexRangeError(
                f"{op}: capacities {tuple(shape)} hold more elements than a 32-bit index counts",
                fix="give the bounds a smaller `max=`, or split the tensor along a dim",
            )
