"""Products over rows that two matrices share, as the gradient of a weight is: (rows, m) and (rows, n) to (m, n).

XLA has a fast product for a matrix that is contracted over its last axis with one that is contracted over its first;
contracted over the first axis of both, a slower one is taken, above all where the first matrix is the wider one. So the
smaller operand is transposed before the product, and a barrier keeps XLA from folding that into the product again. If
what is wanted is the transposed result, a second barrier keeps it from exchanging the operands. Time over that of the
plain product, 2,048 rows: 0.29 for 64 x 8, 0.98 (0.59 of the processor) for 64 x 64, 0.71 for 1,024 x 256, 1.05 for
256 x 1,024 (`docs/decisions.md`).
"""

from __future__ import annotations

import math

import jax
from jax import lax

from polyrhythm.compiler.backends.jax.target import on_cpu
from polyrhythm.compiler.ir import dtypes

Array = jax.Array


def is_worth(rows: int, m: int, n: int) -> bool:
    """Whether there are enough rows, on a CPU: with few, writing the result is what takes time."""
    return rows * (m + n) >= m * n and on_cpu()


def product(a: Array, b: Array, shared: int, turned: bool) -> Array:
    """The product over the first `shared` axes of both, of shape (*own of a, *own of b); a is the smaller one.

    `turned` says that the result will be transposed.
    """
    rows = math.prod(a.shape[:shared])
    left, right = (lax.reshape(x, (rows, math.prod(x.shape[shared:]))) for x in (a, b))
    across = lax.optimization_barrier(lax.transpose(left, (1, 0)))
    wide = dtypes.accumulator(a.dtype)
    made = lax.dot_general(across, right, (((1,), (0,)), ((), ())), preferred_element_type=wide)
    made = lax.optimization_barrier(made) if turned else made
    return lax.reshape(made, (*a.shape[shared:], *b.shape[shared:]))
