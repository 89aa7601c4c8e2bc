"""Products with windows that slide: each lane multiplies a window of its own of matrices that all lanes share.

In attention to the last C steps every query reads C keys, and the next query the same but one. Done at once, XLA would
copy the window of each: the keys of all, C times as large. The kernel reads each window where it lies instead. As with
other products (`choose.py`), what it becomes is decided when it is lowered: where the kernel is not for it, the windows
are copied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import batching

from polyrhythm.compiler.backends.jax.products import choose, kernel
from polyrhythm.compiler.backends.jax.products.choose import Dimensions, free
from polyrhythm.compiler.backends.jax.products.primitive import primitive

Array = jax.Array


def product(a: Array, whole: Array, start: Array, dimensions: Dimensions, dtype: Any, axis: int, size: int) -> Array:
    """The product of an array with a window of another, so many slots of an axis of it from a start on."""
    starts = lax.reshape(jnp.asarray(start, np.int32), ())
    how = {"dimensions": dimensions, "dtype": jnp.dtype(dtype), "axis": axis, "size": size, "lanes": 0}
    made: Array = _product.bind(a, whole, starts, **how)
    return made


def _computed(
    a: Array, whole: Array, starts: Array, *, dimensions: Dimensions, dtype: Any, axis: int, size: int, lanes: int
) -> Array:
    """The product by the kernel, if windows lie in matrices as it takes them; else of copies."""
    (over_a, over_b), (batch_a, batch_b) = dimensions
    own_a, rest = free(a.ndim - lanes, over_a, batch_a), free(whole.ndim, batch_b)
    across, along = rest == (axis, *sorted(over_b)), (axis,) == over_b and axis == rest[0]
    rows, count = math.prod(a.shape[lanes + i] for i in own_a), math.prod(starts.shape)
    copied = count * whole.size // whole.shape[axis] * size
    fits = a.dtype == whole.dtype and dtype == jnp.float32 and (across or along)
    if not (lanes and fits and copied >= choose.LEAST_BATCH and kernel.takes(rows, whole.dtype)):
        how = {"dimensions": dimensions, "dtype": dtype, "axis": axis, "size": size, "lanes": lanes}
        return _copied(a, whole, starts, **how)
    # Contracted axes are in the order in which they lie in the matrix.
    over_a = tuple(i for _, i in sorted(zip(over_b, over_a, strict=True)))
    batch = [whole.shape[i] for i in batch_b]
    left = lax.transpose(a, (*range(lanes), *(lanes + i for i in (*batch_a, *own_a, *over_a))))
    left = lax.reshape(left, (count * math.prod(batch), rows, math.prod(a.shape[lanes + i] for i in over_a)))
    one_step = math.prod(whole.shape[i] for i in rest[1:])
    matrices = lax.reshape(lax.transpose(whole, (*batch_b, *rest)), (math.prod(batch), whole.shape[axis], one_step))
    made = kernel.of_windows(left, matrices, lax.reshape(starts, (count,)), size, along=along)
    own_b = [whole.shape[i] for i in rest[1:]] if along else [size]
    return lax.reshape(made, (*starts.shape, *batch, *(a.shape[lanes + i] for i in own_a), *own_b))


def _copied(
    a: Array, whole: Array, starts: Array, *, dimensions: Dimensions, dtype: Any, axis: int, size: int, lanes: int
) -> Array:
    """The product with copies of the windows, which may be our kernel's for few rows."""

    def one(a: Array, start: Array) -> Array:
        return choose.product(a, _window(whole, start, size, axis), dimensions, dtype)

    for _ in range(lanes):
        one = jax.vmap(one)
    return one(a, starts)


def _plain(
    a: Array, whole: Array, starts: Array, *, dimensions: Dimensions, dtype: Any, axis: int, size: int, lanes: int
) -> Array:
    """The same by XLA alone, for other devices and for derivatives."""

    def one(a: Array, start: Array) -> Array:
        return lax.dot_general(a, _window(whole, start, size, axis), dimensions, preferred_element_type=dtype)

    for _ in range(lanes):
        one = jax.vmap(one)
    return one(a, starts)


def _window(whole: Array, start: Array, size: int, axis: int) -> Array:
    return lax.dynamic_slice_in_dim(whole, start, size, axis, allow_negative_indices=False)


def _shape(
    a: Any, whole: Any, starts: Any, *, dimensions: Dimensions, dtype: Any, axis: int, size: int, lanes: int
) -> Any:
    (over_a, over_b), (batch_a, batch_b) = dimensions
    batch = [whole.shape[i] for i in batch_b]
    own = [a.shape[lanes + i] for i in free(a.ndim - lanes, over_a, batch_a)]
    own += [size if i == axis else whole.shape[i] for i in free(whole.ndim, over_b, batch_b)]
    return jax.core.ShapedArray((*starts.shape, *batch, *own), dtype)


def _mapped(values: Sequence[Array], given: Sequence[int | None], *, lanes: int, **how: Any) -> tuple[Array, int]:
    """One more axis of lanes, if each of them has its own window of the same array."""
    a, whole, starts = values
    of_a, of_whole, of_starts = given
    if of_a is None or of_starts is None or of_whole is not None:
        copied: Any = partial(_copied, lanes=lanes, **how)
        return jax.vmap(copied, in_axes=tuple(given))(a, whole, starts), 0
    a, starts = jnp.moveaxis(a, of_a, 0), jnp.moveaxis(starts, of_starts, 0)
    return _product.bind(a, whole, starts, lanes=lanes + 1, **how), 0


_product = primitive("polyrhythm_windows", _computed, _plain, _shape, linear=2)
batching.primitive_batchers[_product] = _mapped
