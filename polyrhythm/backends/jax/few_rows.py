"""Products of a few rows with a matrix that all of them share, as when a few texts are decoded at once.

For two to some dozens of rows and a matrix stored (out, in), XLA's product takes about twice as long as the same
product with the matrix first; measured, and it seems that the matrix is rearranged at every call. For very few rows of
a matrix that fits a core's cache, so many products with one row each are faster still. XLA's simplifier would turn the
product back to spare the transposing of its result, if there were no barrier between the two.
"""

from __future__ import annotations

import math
from typing import Any

import jax
from jax import lax
from jax.custom_batching import custom_vmap

from polyrhythm.ir import dtypes

Array = jax.Array

MOST_ROWS = 32
"""With more, the usual product is as fast."""

ONE_BY_ONE = 4, 2**18
"""So many rows, and a matrix of so many elements, are multiplied row by row."""


@custom_vmap
def product(rows: Array, matrix: Array) -> Array:
    """The product of (*lanes, in) and (*out, in), of shape (*lanes, *out)."""
    *lanes, size = rows.shape
    if not 2 <= math.prod(lanes) <= MOST_ROWS:
        return _dot(rows, matrix)
    flat = lax.reshape(rows, (math.prod(lanes), size))
    if len(flat) <= ONE_BY_ONE[0] and matrix.size <= ONE_BY_ONE[1]:
        made = jax.numpy.stack([_dot(matrix, row) for row in flat])
    else:
        first = lax.optimization_barrier(_dot(matrix, flat))
        made = lax.transpose(first, (first.ndim - 1, *range(first.ndim - 1)))
    return lax.reshape(made, (*lanes, *matrix.shape[:-1]))


@product.def_vmap
def _mapped(size: int, batched: Any, rows: Array, matrix: Array) -> tuple[Array, bool]:
    """What lanes do not share is left to XLA; lanes that share the matrix are more rows."""
    if batched == [True, False]:
        return product(rows, matrix), True
    return jax.vmap(_dot, [0 if own else None for own in batched], axis_size=size)(rows, matrix), True


def _dot(a: Array, b: Array) -> Array:
    """The product of two arrays, both contracted over their last axis."""
    wide = dtypes.accumulator(a.dtype)
    return lax.dot_general(a, b, (((a.ndim - 1,), (b.ndim - 1,)), ((), ())), preferred_element_type=wide)
