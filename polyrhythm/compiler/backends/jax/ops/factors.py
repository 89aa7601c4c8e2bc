"""Matrix factorisations and linear systems on padded matrices.

Padding is made part of a larger problem that falls apart into the given one and a trivial one. A square matrix is
continued by the identity; for eigenvalues by a multiple of it that is greater than any, so that what it adds comes
last. For `qr` zeros suffice: a Householder reflection of a column leaves rows of zeros alone. The singular values of a
padded matrix are those of its R, continued like a symmetric one; what it adds comes first there, and is rolled away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from polyrhythm.compiler.backends.jax.ops.padded import (
    Implementation,
    Padded,
    Result,
    as_index,
    fit,
    is_static,
    masked,
    positions,
    shifted,
)
from polyrhythm.compiler.backends.jax.ops.reductions import widened
from polyrhythm.compiler.ir.ops.factors import orientation

Array = jax.Array
Attributes = Mapping[str, Any]


def _matrices(operand: Padded, rows: int, columns: int) -> Padded:
    """The operand with other capacities of its matrices, zeros beyond their lengths."""
    x = widened(operand)
    array = masked(x, (x.array.ndim - 2, x.array.ndim - 1), 0)
    return Padded(fit(array, (*array.shape[:-2], rows, columns)), x.lengths)


def _continued(x: Padded, diagonal: Array | None = None) -> Array:
    """A square matrix with the identity beyond its length, or a multiple of it."""
    array, length = x.array, x.lengths[-1]
    if is_static(length) and length == array.shape[-1]:
        return array
    row, column = positions(array.shape, array.ndim - 2), positions(array.shape, array.ndim - 1)
    beyond = (row == column) & (row >= as_index(length))
    fill = jnp.ones((), array.dtype) if diagonal is None else diagonal[..., None, None]
    return jnp.where(beyond, fill, array)


def _beyond_all(x: Array) -> Array:
    """A number greater than every eigenvalue and singular value of a matrix."""
    return 2 * jnp.sqrt(jnp.sum(x * x, axis=(-2, -1))) + 1


def _square(operand: Padded, size: int) -> Array:
    return _continued(_matrices(operand, size, size))


def _made(function: Callable[[Sequence[Padded], Attributes, Result], Array], empty: bool = False) -> Implementation:
    """The function in the dtype it works in, brought to the batch, capacities and dtype of the result."""

    def apply(operands: Sequence[Padded], attributes: Attributes, result: Result) -> Array:
        if result.is_empty or (not empty and any(0 in operand.array.shape for operand in operands)):
            return result.zeros()
        array = function(operands, attributes, result)
        return lax.convert_element_type(fit(array, result.capacities), result.dtype)

    return apply


def _cholesky(operands: Sequence[Padded], attributes: Attributes, result: Result) -> Array:
    return lax.linalg.cholesky(_square(operands[0], result.capacities[-1]), symmetrize_input=False)


def _right_sides(operands: Sequence[Padded], result: Result) -> tuple[Array, Array]:
    """The matrices of a system and its right sides, of the same batch."""
    rows, columns = result.capacities[-2:]
    a, b = _square(operands[0], rows), widened(operands[1])
    right = fit(masked(b, (b.array.ndim - 2,), 0), (*b.array.shape[:-2], rows, columns))
    batch = result.capacities[:-2]
    return fit(a, (*batch, rows, rows)), fit(right, (*batch, rows, columns))


def _triangular_solve(operands: Sequence[Padded], attributes: Attributes, result: Result) -> Array:
    a, b = _right_sides(operands, result)
    return lax.linalg.triangular_solve(
        a, b, left_side=True, lower=attributes["lower"], transpose_a=attributes["transposed"]
    )


def _solve(operands: Sequence[Padded], attributes: Attributes, result: Result) -> Array:
    a, b = _right_sides(operands, result)
    factors, _, order = lax.linalg.lu(a)
    moved = jnp.take_along_axis(b, order[..., None], axis=-2)
    part = lax.linalg.triangular_solve(factors, moved, left_side=True, lower=True, unit_diagonal=True)
    found = lax.linalg.triangular_solve(factors, part, left_side=True, lower=False)
    singular = jnp.any(jnp.diagonal(factors, axis1=-2, axis2=-1) == 0, axis=-1)
    return jnp.where(singular[..., None, None], jnp.nan, found)


def _slogdet(operands: Sequence[Padded], attributes: Attributes, result: Result) -> Array:
    if 0 in operands[0].array.shape[-2:]:
        return jnp.broadcast_to(np.array([1, 0], result.dtype), result.capacities)
    sign, logarithm = jnp.linalg.slogdet(_square(operands[0], max(operands[0].array.shape[-2:])))
    return jnp.stack([sign, logarithm], -1)


def _qr(operands: Sequence[Padded], attributes: Attributes, result: Result) -> Array:
    rows, columns = result.capacities[-2:]
    x = _matrices(operands[0], rows, min(rows, columns)).array
    q: Array = lax.linalg.qr(x, full_matrices=False)[0]
    return q


def _signs(vectors: Array) -> Array:
    weights = orientation(vectors.shape[-2], np.dtype(vectors.dtype))
    turned = jnp.einsum("i,...ij->...j", weights, vectors, precision=lax.Precision.HIGHEST) < 0
    return jnp.where(turned, -1, 1).astype(vectors.dtype)[..., None, :]


def _eigh(operands: Sequence[Padded], attributes: Attributes, result: Result) -> Array:
    size = result.capacities[-1]
    x = _matrices(operands[0], size, size)
    vectors, values = lax.linalg.eigh(_continued(x, _beyond_all(x.array)), symmetrize_input=False)
    inside = masked(Padded(vectors, x.lengths), (vectors.ndim - 2,), 0)
    return jnp.concatenate([values[..., None, :], inside * _signs(inside)], -2)


def _svd(operands: Sequence[Padded], attributes: Attributes, result: Result) -> Array:
    operand = operands[0]
    rows = operand.array.shape[-2]
    columns = min(rows, result.capacities[-1])
    x = _matrices(operand, rows, columns)
    length = x.lengths[-1]
    if not all(map(is_static, operand.lengths[-2:])) or rows != operand.lengths[-2] or columns != length:
        q, r = lax.linalg.qr(x.array, full_matrices=False)
        square = Padded(masked(Padded(r, (*x.lengths[:-2], length, length)), (r.ndim - 2, r.ndim - 1), 0), x.lengths)
        square = Padded(square.array, (*x.lengths[:-2], length, length))
        u, s, v = lax.linalg.svd(_continued(square, _beyond_all(square.array)), full_matrices=False)
        away = as_index(length) - np.int32(columns)
        u, s, v = jnp.roll(u, away, -1), jnp.roll(s, away, -1), jnp.roll(v, away, -2)
        u = jnp.matmul(q, masked(Padded(u, square.lengths), (u.ndim - 2,), 0), precision=lax.Precision.HIGHEST)
    else:
        u, s, v = lax.linalg.svd(x.array, full_matrices=False)
    right = jnp.swapaxes(v, -2, -1)
    right = masked(Padded(right, (*x.lengths[:-2], length, length)), (right.ndim - 2,), 0)
    signs = _signs(right)
    upper = jnp.concatenate([s[..., None, :], right * signs], -2)
    room, axis = result.capacities[-2], upper.ndim - 2
    begin = 1 + length if is_static(length) else as_index(length) + np.int32(1)
    below = shifted(u * signs, axis, begin, max(room, upper.shape[axis]), 0)
    kept = positions(below.shape, axis) < as_index(begin)
    return jnp.where(kept, fit(upper, below.shape), below)


IMPLEMENTATIONS: dict[str, Implementation] = {
    "cholesky": _made(_cholesky),
    "triangular_solve": _made(_triangular_solve),
    "solve": _made(_solve),
    "slogdet": _made(_slogdet, empty=True),
    "qr": _made(_qr),
    "eigh": _made(_eigh),
    "svd": _made(_svd),
}
