"""Operations along axes: reductions, arguments of extrema, cumulative reductions, linear scans, sorting, transforms.

An axis of unknown length is masked with the monoid's identity where elements beyond it would take part. A forward
cumulative reduction needs no mask: an element depends on those before it only; a linear scan begins where its factor
is made zero, beyond the garbage. Arguments of extrema need none but the identity either: of equal elements the first
wins, and garbage comes last.

The Fourier transform is XLA's where the length is known now, else a convolution of fixed size. Bluestein (1970): with
`w[j] = exp(-pi i j^2 / n)` the transform is `w[k] * sum((x[j] w[j]) * conj(w[k - j]))`, a convolution, which
transforms of any fixed size of at least twice the capacity compute. The squares are taken modulo 2n in whole numbers,
so that no digits of the angles are lost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
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
    apart,
    as_index,
    fit,
    is_inside,
    is_static,
    masked,
    positions,
)
from polyrhythm.compiler.backends.jax.target import on_cpu
from polyrhythm.compiler.ir import dtypes

Array = jax.Array

MOST_ELEMENTS = 2**19
"""The most elements of which a sum over rows is a product with ones. Larger ones are bound by memory either way."""

_CUMULATIVE = {"sum": lax.cumsum, "prod": lax.cumprod, "max": lax.cummax, "min": lax.cummin}
_CUMULATIVE |= {"any": lax.cummax, "all": lax.cummin}


def widened(operand: Padded) -> Padded:
    """The operand in the dtype in which it is accumulated."""
    wide = dtypes.accumulator(operand.array.dtype)
    return replace(operand, array=lax.convert_element_type(operand.array, wide))


def _fitted(operand: Padded, reduced: Sequence[int], result: Result) -> Padded:
    """The operand with the capacities of the result along the axes that stay."""
    kept = iter(result.capacities)
    capacities = [n if axis in reduced else next(kept) for axis, n in enumerate(operand.array.shape)]
    return replace(operand, array=fit(operand.array, capacities))


def _reduce(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    monoid, axes = attributes["monoid"], tuple(attributes["axes"])
    x = widened(_fitted(operands[0], axes, result))
    start = dtypes.identity(monoid, x.array.dtype)
    if axes:
        array = x.array if x.zeros and monoid == "sum" else masked(x, axes, start)
        if monoid == "sum" and attributes.get("is_array") and _is_sum_of_rows(array, axes):
            return lax.convert_element_type(_sum_of_rows(array, len(axes)), result.dtype)
        if monoid in ("max", "min") and dtypes.is_float(array.dtype) and (on_cpu() or jax.device_count() > 1):
            return lax.convert_element_type(_extreme(array, monoid, axes), result.dtype)
        return lax.convert_element_type(lax.reduce(array, start, COMBINE[monoid], axes), result.dtype)
    return fit(operands[0].array, result.capacities)


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _extreme(array: Array, monoid: str, axes: tuple[int, ...]) -> Array:
    """The greatest or least of floats on XLA's CPU, which hands 4096 or more to a library (YNNPACK) that drops NaN.

    A reduction that compares by itself stays with XLA. JAX cannot differentiate one, but knows how for the plain one.
    Between devices only the plain one can be, and drops NaN there too, so with several of them integers are compared.
    """
    if jax.device_count() > 1:
        start = np.array(dtypes.identity(monoid, array.dtype))
        ordered = lax.reduce(_ordered(array, monoid), _ordered(start, monoid), COMBINE[monoid], axes)
        return _unordered(ordered, array.dtype)
    before = lax.ge if monoid == "max" else lax.le

    def first(x: Array, y: Array) -> Array:
        return lax.select(before(x, y) | lax.ne(x, x), x, y)

    reduced: Array = lax.reduce(array, dtypes.identity(monoid, array.dtype), first, axes)
    return reduced


def _ordered(array: Any, monoid: str) -> Array:
    """Integers in the order of floats; NaN is what wins."""
    kind = np.dtype(f"int{8 * array.dtype.itemsize}")
    limits = np.iinfo(kind)
    bits = lax.bitcast_convert_type(array, kind)
    turned = lax.select(bits < 0, bits ^ kind.type(limits.max), bits)
    return lax.select(array != array, lax.full_like(bits, limits.max if monoid == "max" else limits.min), turned)


def _unordered(ordered: Array, dtype: np.dtype) -> Array:
    """The floats of such integers: the largest and the least of these are the bits of a NaN."""
    limits = np.iinfo(ordered.dtype)
    return lax.bitcast_convert_type(lax.select(ordered < 0, ordered ^ ordered.dtype.type(limits.max), ordered), dtype)


@_extreme.defjvp
def _extreme_jvp(monoid: str, axes: tuple[int, ...], primals: Any, tangents: Any) -> tuple[Array, Array]:
    start = dtypes.identity(monoid, primals[0].dtype)
    tangent = jax.jvp(lambda x: lax.reduce(x, start, COMBINE[monoid], axes), primals, tangents)[1]
    return _extreme(*primals, monoid, axes), tangent


def _is_sum_of_rows(array: Array, axes: tuple[int, ...]) -> bool:
    """Whether a sum is over the first axes and leaves some, of an array that stays near."""
    first = tuple(sorted(axes)) == tuple(range(len(axes)))
    several = math.prod(array.shape[len(axes) :]) > 1
    return first and several and dtypes.is_float(array.dtype) and 0 < array.size <= MOST_ELEMENTS


def _sum_of_rows(array: Array, count: int) -> Array:
    """The sum over the first axes, as a product with ones, for which XLA has the faster loop if the array is there."""
    rows = math.prod(array.shape[:count])
    flat = lax.reshape(array, (rows, math.prod(array.shape[count:])))
    made = lax.dot_general(lax.full((rows,), 1, array.dtype), flat, (((0,), (0,)), ((), ())))
    return lax.reshape(made, array.shape[count:])


def _argreduce(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    which, axis = attributes["which"], attributes["axis"]
    x = widened(_fitted(operands[0], (axis,), result))
    if 0 in x.array.shape:
        return result.zeros()
    array = masked(x, (axis,), dtypes.identity(which, x.array.dtype))
    if array.dtype == dtypes.BOOL:
        array = lax.convert_element_type(array, dtypes.INT8)
    return (lax.argmax if which == "max" else lax.argmin)(array, axis, dtypes.INT32)


def _cumulative(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    monoid, axis, reverse = attributes["monoid"], attributes["axis"], attributes["reverse"]
    x = widened(Padded(fit(operands[0].array, result.capacities), operands[0].lengths))
    start = dtypes.identity(monoid, x.array.dtype)
    array = masked(x, (axis,) if reverse else (), start)
    if array.dtype == dtypes.BOOL:
        array = lax.convert_element_type(array, dtypes.INT8)
    array = apart(array, start)
    return lax.convert_element_type(_CUMULATIVE[monoid](array, axis, reverse=reverse), result.dtype)


def _linear_scan(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    axis, reverse = attributes["axis"], attributes["reverse"]
    a, b = (widened(Padded(fit(x.array, result.capacities), x.lengths)) for x in operands)
    if result.is_empty:
        return result.zeros()
    place = positions(a.array.shape, axis)
    last = jnp.broadcast_to(as_index(a.lengths[axis] - 1), place.shape)
    goes_on = lax.lt(place, last) if reverse else lax.gt(place, lax.full_like(place, 0))
    factors = lax.select(goes_on, a.array, lax.full_like(a.array, 0))
    elements = masked(b, (axis,), 0) if reverse else b.array

    def step(value: Array, pair: tuple[Array, ...]) -> tuple[Array, Array]:
        value = pair[0] * value + pair[1]
        return value, value

    along = tuple(lax.transpose(x, (axis, *(i for i in range(x.ndim) if i != axis))) for x in (factors, elements))
    _, found = lax.scan(step, lax.full_like(along[1][0], 0), along, reverse=reverse)
    back = (*range(1, axis + 1), 0, *range(axis + 1, found.ndim))
    return lax.convert_element_type(lax.transpose(found, back), result.dtype)


def _argsort(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    axis = attributes["axis"]
    x = widened(Padded(fit(operands[0].array, result.capacities), operands[0].lengths))
    key = x.array
    if attributes["descending"]:
        # The keys are reversed, not the result: equal elements stay in index order and NaN stays last.
        key = lax.neg(key) if dtypes.is_float(key.dtype) else lax.bitwise_not(key)
    inside = is_inside(key.shape, x.lengths, (axis,))
    # Not a value that sorts last but a key of its own: garbage must come after infinity and NaN.
    garbage = None if inside is None else lax.bitwise_not(inside)
    if key.dtype.itemsize <= 4 and on_cpu():
        return _packed_order(key, garbage, axis)
    keys = [key] if garbage is None else [lax.convert_element_type(garbage, np.uint8), key]
    return lax.sort((*keys, positions(key.shape, axis)), axis, is_stable=True, num_keys=len(keys))[-1]


def _packed_order(key: Array, garbage: Array | None, axis: int) -> Array:
    """The order of keys of up to 32 bits, found by sorting one array: garbage, key and position in 64 bits.

    XLA sorts a single array of numbers four times as fast as keys with their positions.
    """
    with jax.enable_x64(True):
        word = partial(lax.convert_element_type, new_dtype=np.uint64)
        packed = word(_as_unsigned(key)) << np.uint64(31) | word(positions(key.shape, axis))
        if garbage is not None:
            packed |= word(garbage) << np.uint64(63)
        found = lax.sort(packed, axis, is_stable=False)
        return lax.convert_element_type(found & np.uint64(2**31 - 1), np.int32)


def _as_unsigned(key: Array) -> Array:
    """Numbers of 32 bits in the order of some keys; all NaN are one, and so are the zeros."""
    if dtypes.is_float(key.dtype):
        bits = lax.bitcast_convert_type(lax.select(key != key, lax.full_like(key, np.nan), key), np.int32)
        bits = lax.select(bits == np.int32(-(2**31)), lax.full_like(bits, 0), bits)
        key = bits ^ ((bits >> np.int32(31)) & np.int32(2**31 - 1))
    if key.dtype.kind in "bu":
        return lax.convert_element_type(key, np.uint32)
    return lax.bitcast_convert_type(lax.convert_element_type(key, np.int32), np.uint32) ^ np.uint32(2**31)


def _fft(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    (x,) = operands
    array = fit(masked(x, (x.array.ndim - 1,), 0), result.capacities)
    if result.is_empty:
        return result.zeros()
    length, inverse = x.lengths[-1], attributes["inverse"]
    if is_static(length) and length == array.shape[-1]:
        found = (jnp.fft.ifft if inverse else jnp.fft.fft)(array)
    elif inverse:
        found = lax.conj(_bluestein(lax.conj(array), length)) / lax.convert_element_type(
            jnp.maximum(as_index(length), 1), dtypes.part(np.dtype(array.dtype))
        )
    else:
        found = _bluestein(array, length)
    return lax.convert_element_type(found, result.dtype)


def _bluestein(x: Array, length: Length) -> Array:
    capacity, real = x.shape[-1], dtypes.part(np.dtype(x.dtype))
    size = 1 << (2 * capacity - 1).bit_length()
    with jax.enable_x64(True):
        n = lax.convert_element_type(jnp.maximum(as_index(length), 1), np.uint64)
        places = lax.iota(np.uint64, capacity)
        part = (places * places) % (n * np.uint64(2))
        angle = lax.convert_element_type(part, np.float64) / lax.convert_element_type(n, np.float64) * np.pi
        turned = lax.convert_element_type(angle, real)
    chirp = lax.complex(jnp.cos(turned), -jnp.sin(turned))
    back = lax.conj(chirp)
    around = jnp.concatenate([back, jnp.zeros(size - 2 * capacity + 1, x.dtype), back[:0:-1]])
    spectrum = jnp.fft.fft(x * chirp, size) * jnp.fft.fft(around)
    return jnp.fft.ifft(spectrum)[..., :capacity] * chirp


IMPLEMENTATIONS: dict[str, Implementation] = {
    "reduce": _reduce,
    "argreduce": _argreduce,
    "cumulative": _cumulative,
    "linear_scan": _linear_scan,
    "argsort": _argsort,
    "fft": _fft,
}
