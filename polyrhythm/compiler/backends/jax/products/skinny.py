"""Products of a few rows with a matrix that all of them share, as when a few texts are decoded at once.

A matrix stored (out, in) is multiplied by our own kernel (`choose.py`). Where that does not take it, for lack of a
compiler or because there are too many rows, XLA's product takes about twice as long as the same product with the matrix
first; measured, and it seems that the matrix is rearranged at every call. For very few rows of a matrix that fits a
core's cache, so many products with one row each are faster still. XLA's simplifier would turn the product back to spare
the transposing of its result, if there were no barrier between the two.
"""

from __future__ import annotations

import math
from typing import Any

import jax
from jax import lax
from jax.custom_batching import custom_vmap

from polyrhythm.compiler.backends.jax.products import choose, kernel
from polyrhythm.compiler.backends.jax.target import on_cpu
from polyrhythm.compiler.ir import dtypes

Array = jax.Array

MOST_ROWS = 32
"""With more, the usual product is as fast."""

SMALL = 2**13
"""A matrix of fewer elements is multiplied as it comes, since the barrier costs more than it saves."""

ONE_BY_ONE = 3, 2**18
"""So many rows, and a matrix of so many elements, are multiplied row by row."""


@custom_vmap
def product(rows: Array, matrix: Array) -> Array:
    """The product of (*lanes, in) and (*out, in), of shape (*lanes, *out)."""
    *lanes, size = rows.shape
    count = math.prod(lanes)
    if not on_cpu():
        return _dot(rows, matrix)
    if matrix.size >= choose.LEAST and kernel.takes(count, matrix.dtype):
        last = ((rows.ndim - 1,), (matrix.ndim - 1,))
        return choose.product(rows, matrix, (last, ((), ())), dtypes.accumulator(matrix.dtype))
    is_one_by_one = count <= ONE_BY_ONE[0] and matrix.size <= ONE_BY_ONE[1]
    if not 2 <= count <= MOST_ROWS or (matrix.size < SMALL and not is_one_by_one):
        return _dot(rows, matrix)
    flat = lax.reshape(rows, (count, size))
    if is_one_by_one:
        made = jax.numpy.stack([_dot(matrix, row) for row in flat])
    else:
        first = lax.optimization_barrier(_dot(matrix, flat))
        made = lax.transpose(first, (first.ndim - 1, *range(first.ndim - 1)))
    return lax.reshape(made, (*lanes, *matrix.shape[:-1]))


@product.def_vmap
def _mapped(size: int, batched: Any, rows: Array, matrix: Array) -> tuple[Array, bool]:
    """Lanes that share the matrix are more rows, lanes that share the rows more of the matrix, others a batch."""
    if batched == [True, False]:
        return product(rows, matrix), True
    if batched == [False, True]:
        # With the shared rows first XLA would transpose what the lanes have made.
        made = _dot(matrix, rows)
        lanes = rows.ndim - 1
        return lax.transpose(made, (0, *range(made.ndim - lanes, made.ndim), *range(1, made.ndim - lanes))), True
    last = ((rows.ndim - 1,), (matrix.ndim - 1,))
    return choose.product(rows, matrix, (last, ((0,), (0,))), dtypes.accumulator(matrix.dtype)), True


def _dot(a: Array, b: Array) -> Array:
    """The product of two arrays, both contracted over their last axis."""
    wide = dtypes.accumulator(a.dtype)
    return lax.dot_general(a, b, (((a.ndim - 1,), (b.ndim - 1,)), ((), ())), preferred_element_type=wide)
