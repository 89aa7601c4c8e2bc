"""Products that may be ours: a `dot_general` that becomes our kernel for few rows where that is faster.

A few texts decoded at once are a few rows times each weight. Their attention is two more products for each step: a few
rows for each head of each text, times all keys so far, which lie in a buffer of some capacity. How many rows there are,
and what of a batch shares a matrix, is known only when all loops done at once have added their lanes. So the product is
a primitive of its own: a lane adds axes to it as it would to a `dot_general`, and what it becomes is decided when it is
lowered. The length in use of one axis of the matrices goes along. It spares work and means nothing else: what lies
beyond it is masked already, or garbage that nobody reads. JAX differentiates such a product as it does a `dot_general`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import batching

from polyrhythm.compiler.backends.jax.products import kernel
from polyrhythm.compiler.backends.jax.products.primitive import primitive

Array = jax.Array
Axes = tuple[int, ...]
Dimensions = tuple[tuple[Axes, Axes], tuple[Axes, Axes]]
"""As `dot_general` has them: the contracted axes of both operands, and their batch axes."""

LEAST_BATCH = 2**16
"""A batch of matrices, or one of which a part is in use, is left to XLA if it has fewer elements in all."""

LEAST = 2**14
"""And so is any other matrix with fewer elements."""

MOST_ALONG = 2**18
"""And a matrix (in, out) with more: XLA reads it faster, and as fast if there is only one row."""


def product(a: Array, b: Array, dimensions: Dimensions, dtype: Any, length: tuple[int, Any] | None = None) -> Array:
    """The product of two arrays; `length` is an axis of b and how much of it is in use."""
    batch = len(dimensions[1][0])
    axis, value = length if length is not None else (None, jnp.int32(0))
    lengths = lax.reshape(jnp.asarray(value, np.int32), (1,) * batch)
    made: Array = _product.bind(a, b, lengths, dimensions=dimensions, dtype=jnp.dtype(dtype), axis=axis)
    return made


def free(rank: int, *used: Axes) -> Axes:
    """The axes that are neither contracted nor of the batch."""
    return tuple(axis for axis in range(rank) if not any(axis in some for some in used))


def _computed(a: Array, b: Array, lengths: Array, *, dimensions: Dimensions, dtype: Any, axis: int | None) -> Array:
    """The product by our kernel if it takes the rows and the matrices as they lie, else by XLA."""
    (over_a, over_b), (batch_a, batch_b) = dimensions
    own_a = free(a.ndim, over_a, batch_a)
    rest = free(b.ndim, batch_b)
    across = rest[len(rest) - len(over_b) :] == tuple(sorted(over_b))
    along = not across and rest[: len(over_b)] == tuple(sorted(over_b))
    rows = math.prod(a.shape[i] for i in own_a)
    fits = a.dtype == b.dtype and dtype == jnp.float32 and (along or across)
    if not b.size:
        pays = False
    elif batch_b or axis is not None:
        pays = b.size >= LEAST_BATCH
    else:
        pays = b.size >= LEAST and (across or (rows > 1 and b.size <= MOST_ALONG))
    if not (fits and pays and kernel.takes(rows, b.dtype)):
        return _plain(a, b, lengths, dimensions=dimensions, dtype=dtype)
    # Contracted axes are in the order in which they lie in the matrix.
    over_a = tuple(i for _, i in sorted(zip(over_b, over_a, strict=True)))
    count = math.prod(b.shape[i] for i in batch_b)
    inner = math.prod(b.shape[i] for i in over_b)
    outer = math.prod(b.shape[i] for i in rest if i not in over_b)
    left = lax.reshape(lax.transpose(a, (*batch_a, *own_a, *over_a)), (count, rows, inner))
    right = lax.transpose(b, (*batch_b, *rest))
    used = None
    if axis == rest[0] and (axis in over_b) == along:
        used = lengths * np.int32((inner if along else outer) // b.shape[axis])
        sizes = (1,) * len(batch_b) if lengths.size == 1 else tuple(b.shape[i] for i in batch_b)
        used = lax.reshape(jnp.broadcast_to(used, sizes), (math.prod(sizes),))
    made = kernel.product(left, right, used, outer=outer, along=along)
    own_b = [b.shape[i] for i in rest if i not in over_b]
    return lax.reshape(made, (*(b.shape[i] for i in batch_b), *(a.shape[i] for i in own_a), *own_b))


def _shape(a: Any, b: Any, lengths: Any, *, dimensions: Dimensions, dtype: Any, axis: int | None) -> Any:
    (over_a, over_b), (batch_a, batch_b) = dimensions
    batch = [a.shape[i] for i in batch_a]
    own = [a.shape[i] for i in free(a.ndim, over_a, batch_a)] + [b.shape[i] for i in free(b.ndim, over_b, batch_b)]
    return jax.core.ShapedArray((*batch, *own), dtype)


def _mapped(
    values: Sequence[Array], lanes: Sequence[int | None], *, dimensions: Dimensions, dtype: Any, axis: int | None
) -> tuple[Array, int | None]:
    """One more axis: of the batch if both operands have it, else of the one that has it."""
    (a, b, lengths), (of_a, of_b, of_lengths) = values, lanes
    (over_a, over_b), (batch_a, batch_b) = dimensions
    over = _past(over_a, of_a), _past(over_b, of_b)
    batch = _past(batch_a, of_a), _past(batch_b, of_b)
    axis = None if axis is None else _past((axis,), of_b)[0]
    if of_a is not None and of_b is not None:
        batch = (of_a, *batch[0]), (of_b, *batch[1])
        lengths = lax.expand_dims(lengths, (0,)) if of_lengths is None else jnp.moveaxis(lengths, of_lengths, 0)
        place: int | None = 0
    else:
        if of_lengths is not None:  # lanes that share a matrix, each up to its own length, need the longest
            lengths, axis = jnp.zeros((1,) * len(batch_a), np.int32), None
        if of_a is not None:
            place = len(batch_a) + free(a.ndim, over[0], batch[0]).index(of_a)
        elif of_b is not None:
            own = len(free(a.ndim, over[0], batch[0]))
            place = len(batch_a) + own + free(b.ndim, over[1], batch[1]).index(of_b)
        else:
            place = None
    made = _product.bind(a, b, lengths, dimensions=(over, batch), dtype=dtype, axis=axis)
    return made, place


def _past(axes: Axes, lane: int | None) -> Axes:
    """Axes where they are once there is one more."""
    return axes if lane is None else tuple(axis + (axis >= lane) for axis in axes)


def _plain(a: Array, b: Array, _: Array, *, dimensions: Dimensions, dtype: Any, axis: int | None = None) -> Array:
    return lax.dot_general(a, b, dimensions, preferred_element_type=dtype)


_product = primitive("polyrhythm_product", _computed, _plain, _shape, linear=2)
batching.primitive_batchers[_product] = _mapped
