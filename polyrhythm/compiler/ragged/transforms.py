"""Factorisations and Fourier transforms of rows of which only the first part counts.

A matrix is made part of a larger one that falls apart into it and a trivial one: a square matrix is continued by the
identity, for eigenvalues and singular values by a multiple of it that is greater than any of them, so that what it adds
comes last, or first; for `qr` zeros suffice. The transform of n elements is a convolution with a chirp of its own n
(Bluestein), computed by transforms of twice the longest row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.terms import ONE, ZERO, Term
from polyrhythm.compiler.ir.values import Value
from polyrhythm.compiler.ragged.application import Application, joined, positions


def _alone(use: Application, operand: int) -> Value:
    """A batch of matrices with zeros beyond their rows and columns."""
    rank = len(use.values[operand].shape)
    return use.filled(operand, (rank - 2, rank - 1), 0)


def _continued(use: Application, matrix: Value, first: Term, length: Term, fill: Value | int) -> Value:
    """A matrix with something else on the diagonal that begins in a row, from a column on."""
    rows, columns = matrix.shape[-2:]
    space = use.space
    down = space.apply("iota", length=rows) - space.apply("index", value=first)
    down = down.apply("reshape", shape=(rows, ONE))
    across = space.apply("iota", length=columns)
    beyond = down.apply("eq", across).apply("and", use.lengths.value(space, length).apply("le", across))
    return matrix.where(beyond.apply("not"), fill)


def _square(use: Application) -> Value:
    """A square matrix, continued by the identity where its length is data."""
    rank = use.types[0].rank
    matrix = _alone(use, 0)
    if not (use.varies(0, rank - 1) or use.varies(0, rank - 2)):
        return matrix
    return _continued(use, matrix, ZERO, use.types[0].shape[-1], 1)


def _beyond_all(matrix: Value) -> Value:
    """A number greater than each eigenvalue and singular value of a matrix, and not much greater."""
    rank = len(matrix.shape)
    squares = (matrix * matrix).apply("reduce", monoid="sum", axes=(rank - 2, rank - 1))
    size = squares.apply("sqrt") * 2
    some = size.where(size.apply("ne", size.zeros()), 1)
    return some.apply("reshape", shape=(*matrix.shape[:-2], ONE, ONE))


def _cholesky(use: Application) -> Value:
    return _square(use).apply("cholesky")


def _slogdet(use: Application) -> Value:
    return _square(use).apply("slogdet")


def _solving(use: Application) -> Value:
    rank = use.types[1].rank
    right = use.filled(1, (rank - 2,), 0)
    return _square(use).apply(use.definition.op, right, **use.definition.attributes)


def _qr(use: Application) -> Value:
    return _alone(use, 0).apply("qr")


def _eigh(use: Application) -> Value:
    matrix = _alone(use, 0)
    return _continued(use, matrix, ZERO, use.types[0].shape[-1], _beyond_all(matrix)).apply("eigh")


def _svd(use: Application) -> Value:
    """With columns of different lengths what is added comes first, in rows of its own, and is moved to the end."""
    rank = use.types[0].rank
    matrix = _alone(use, 0)
    if not use.varies(0, rank - 1):
        return matrix.apply("svd")
    (rows, columns), (m, n) = matrix.shape[-2:], use.types[0].shape[-2:]
    longer = matrix.lengthened(rank - 2, ZERO, columns, 0)
    packed = _continued(use, longer, rows, n, _beyond_all(matrix)).apply("svd")
    packed = packed.apply("take", positions(use.lengths, use.space, columns - n, columns, 1), axis=rank - 1)
    parts = [(ZERO, ONE), (ONE, columns), (columns + 1, rows)]
    return joined(use, [packed.part(rank - 2, start, size) for start, size in parts], [ONE, n, m], rank - 2)


def _fft(use: Application) -> Value:
    axis, inverse = use.types[0].rank - 1, use.definition.attributes["inverse"]
    x = use.filled(0, (axis,), 0)
    count = x.shape[axis]
    n = use.lengths.value(use.space, use.types[0].shape[axis]).cast(dtypes.FLOAT64)
    n = n.apply("maximum", use.space.constant(1, n.dtype))
    here = use.space.apply("iota", length=count)
    around = use.space.apply("iota", length=2 * count)
    both = use.space.apply("index", value=2 * count) - around
    chirp = _chirp(here, n, x.dtype, not inverse)
    back = _chirp(around.apply("minimum", both), n, x.dtype, inverse)
    turned = (x * chirp).lengthened(axis, ZERO, count, 0).apply("fft", inverse=False)
    found = (turned * back.apply("fft", inverse=False)).apply("fft", inverse=True)
    result = found.part(axis, ZERO, count) * chirp
    return result / n.cast(x.dtype) if inverse else result


def _chirp(place: Value, n: Value, dtype: np.dtype, falling: bool) -> Value:
    """`exp(-pi i j j / n)` of places j, or its conjugate; the phase is exact, whatever the dtype."""
    wide = place.cast(dtypes.FLOAT64)
    angle = (wide * wide).apply("mod", n * 2) / n * (-np.pi if falling else np.pi)
    part = dtypes.part(dtype)
    return angle.apply("cos").cast(part).apply("complex", angle.apply("sin").cast(part))


RULES: Mapping[str, Callable[[Application], Value]] = {
    "cholesky": _cholesky,
    "triangular_solve": _solving,
    "solve": _solving,
    "slogdet": _slogdet,
    "qr": _qr,
    "eigh": _eigh,
    "svd": _svd,
    "fft": _fft,
}

__all__ = ["RULES"]
