"""Matrix factorisations and linear systems, over the last two axes; leading axes are batches of matrices.

An operation has one result, so what belongs together is one array: `eigh` is the eigenvalues as a row on top of the
eigenvectors, `svd` of a tall matrix has the singular values as its first row, then the rows of V, then those of U, and
`slogdet` is the sign and the logarithm. `qr` is Q alone, since `R = Q.T @ A`. Signs of vectors are arbitrary in the
mathematics; they are fixed here by `oriented`, so that every backend finds the same.

What has no answer is NaN, never an exception: the factor of a matrix that is not positive definite, the solution of a
singular system. Symmetric matrices are given whole. Derivatives: Giles, "Collected matrix derivative results for
forward and reverse mode" (2008), and Walter and Lehmann for qr (2010); where eigenvalues are equal, what would be
divided by their difference is left out. The 16-bit floats are computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import Condition, ge
from polyrhythm.compiler.ir.ops.checks import check_kind, check_same_dtype, same_length, show
from polyrhythm.compiler.ir.ops.record import OPAQUE, PARALLEL, Attributes, Gradients, Op, Signature
from polyrhythm.compiler.ir.sets import proves
from polyrhythm.compiler.ir.terms import ONE, ZERO, Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.errors import ShapeError

if TYPE_CHECKING:
    from polyrhythm.compiler.ir.values import Step, Value

Types = tuple[TensorType, ...]


def orientation(length: int, dtype: np.dtype) -> np.ndarray:
    """Weights whose product with a vector tells its sign: no vector that comes up in practice is orthogonal to them."""
    return (1 + (0.6180339887498949 * np.arange(1, length + 1)) % 1).astype(dtype)


# Type rules


def _check_matrix(name: str, x: TensorType) -> None:
    check_kind(name, x, ("float",))
    if x.rank < 2:
        raise ShapeError(f"{name}: a value of shape {show(x.shape)} is no matrix", fix="give it two axes or more")


def _check_square(name: str, x: TensorType, given: Condition) -> None:
    _check_matrix(name, x)
    if not same_length(x.shape[-2], x.shape[-1], given):
        raise ShapeError(f"{name}: a matrix of shape {show(x.shape)} is not square", fix="give it a square matrix")


def _cholesky_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    _check_square("cholesky", operands[0], given)
    return operands[0]


def _solving(name: str) -> Callable[[Types, Attributes, Condition], TensorType]:
    def type_rule(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
        a, b = operands
        _check_square(name, a, given)
        _check_matrix(name, b)
        check_same_dtype(name, a, b)
        if a.rank != b.rank or not all(
            same_length(m, n, given) for m, n in zip(a.shape[:-1], b.shape[:-1], strict=True)
        ):
            raise ShapeError(
                f"{name}: a matrix of shape {show(a.shape)} and right sides of shape {show(b.shape)} do not fit",
                fix="give as many right rows as the matrix has, and the same leading axes",
            )
        return b

    return type_rule


def _slogdet_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    _check_square("slogdet", operands[0], given)
    return TensorType((*operands[0].shape[:-2], Term(2)), operands[0].dtype)


def _check_tall(name: str, x: TensorType, given: Condition) -> None:
    _check_matrix(name, x)
    rows, columns = x.shape[-2:]
    if not (rows is columns or proves(given, ge(rows, columns))):
        raise ShapeError(
            f"{name}: it cannot be shown that a matrix of shape {show(x.shape)} has as many rows as columns",
            fix="transpose it, or slice one axis to the length of the other",
        )


def _qr_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    _check_tall("qr", operands[0], given)
    return operands[0]


def _eigh_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    (x,) = operands
    _check_square("eigh", x, given)
    return TensorType((*x.shape[:-2], x.shape[-2] + 1, x.shape[-1]), x.dtype)


def _svd_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    (x,) = operands
    _check_tall("svd", x, given)
    rows, columns = x.shape[-2:]
    return TensorType((*x.shape[:-2], rows + columns + 1, columns), x.dtype)


# Signatures: batches are parallel, and so are the right sides of a system


def _matrix_signature(operands: Types, attributes: Attributes) -> Signature:
    rank = operands[0].rank
    result = (*range(rank - 2), rank, rank + 1)
    return Signature((tuple(range(rank)),), result, (*[PARALLEL] * (rank - 2), *[OPAQUE] * 4))


def _slogdet_signature(operands: Types, attributes: Attributes) -> Signature:
    rank = operands[0].rank
    return Signature((tuple(range(rank)),), (*range(rank - 2), rank), (*[PARALLEL] * (rank - 2), *[OPAQUE] * 3))


def _solving_signature(operands: Types, attributes: Attributes) -> Signature:
    rank = operands[0].rank
    batch = tuple(range(rank - 2))
    right = (*batch, rank, rank + 1)
    return Signature(
        (tuple(range(rank)), right),
        (*batch, rank + 2, rank + 1),
        (*[PARALLEL] * (rank - 2), OPAQUE, OPAQUE, OPAQUE, PARALLEL, OPAQUE),
    )


# NumPy


def _wide(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """The function in the dtype of the accumulator, matrix by matrix where one of them has no answer."""

    def compute(*arrays: np.ndarray, **attributes: Any) -> np.ndarray:
        dtype = arrays[0].dtype
        wide = [array.astype(dtypes.accumulator(dtype), copy=False) for array in arrays]
        with np.errstate(all="ignore"):
            return _computed(function, wide, attributes).astype(dtype, copy=False)

    return compute


def _computed(function: Callable[..., np.ndarray], arrays: list[np.ndarray], attributes: dict[str, Any]) -> np.ndarray:
    try:
        return function(*arrays, **attributes)
    except np.linalg.LinAlgError:
        if arrays[0].ndim > 2:
            return np.stack([_computed(function, list(parts), attributes) for parts in zip(*arrays, strict=True)])
    # The identity has an answer, whose shape is that of the one which does not exist.
    first = np.eye(*arrays[0].shape, dtype=arrays[0].dtype)
    return np.full_like(function(first, *arrays[1:], **attributes), np.nan)


def _triangular_solve(a: np.ndarray, b: np.ndarray, lower: bool, transposed: bool) -> np.ndarray:
    matrix = np.swapaxes(a, -2, -1) if transposed else a
    order = range(a.shape[-1]) if lower != transposed else reversed(range(a.shape[-1]))
    result = np.array(b)
    done: list[int] = []
    for row in order:
        known = np.einsum("...k,...kc->...c", matrix[..., row, done], result[..., done, :])
        result[..., row, :] = (result[..., row, :] - known) / matrix[..., row, row, None]
        done.append(row)
    return result


def _slogdet(x: np.ndarray) -> np.ndarray:
    return np.stack(np.linalg.slogdet(x), -1)


def _signs(vectors: np.ndarray) -> np.ndarray:
    weights = orientation(vectors.shape[-2], vectors.dtype)
    return np.where(np.einsum("i,...ij->...j", weights, vectors) < 0, -1, 1).astype(vectors.dtype)[..., None, :]


def _eigh(x: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(x)
    return np.concatenate([values[..., None, :], vectors * _signs(vectors)], -2)


def _svd(x: np.ndarray) -> np.ndarray:
    u, s, v = np.linalg.svd(x, full_matrices=False)
    right = np.swapaxes(v, -2, -1)
    signs = _signs(right)
    return np.concatenate([s[..., None, :], right * signs, u * signs], -2)


# Derivatives


def _product(a: Value, b: Value, left: bool = False, right: bool = False) -> Value:
    """The product of two batches of matrices, the first transposed if `left` and the second if `right`."""
    batch = ascii_lowercase[: len(a.shape) - 2]
    first, second = ("yx" if left else "xy"), ("zy" if right else "yz")
    return a.apply("einsum", b, spec=f"{batch}{first},{batch}{second}->{batch}xz")


def _transposed(x: Value) -> Value:
    rank = len(x.shape)
    return x.apply("transpose", axes=(*range(rank - 2), rank - 1, rank - 2))


def _places(x: Value) -> tuple[Value, Value]:
    """The row and the column of each element of a matrix."""
    rows, columns = x.shape[-2:]
    down = x.space.apply("iota", length=rows).apply("reshape", shape=(rows, ONE))
    return down, x.space.apply("iota", length=columns)


def _lower(x: Value, strictly: bool = False) -> Value:
    rows, columns = _places(x)
    return x.where(columns.apply("lt" if strictly else "le", rows))


def _diagonal(x: Value) -> Value:
    rows, columns = _places(x)
    return x.where(columns.apply("eq", rows))


def _identity(like: Value) -> Value:
    return _diagonal(like.space.constant(1, like.dtype, like.shape))


def _triangular(a: Value, b: Value, lower: bool, transposed: bool = False) -> Value:
    return a.apply("triangular_solve", b, lower=lower, transposed=transposed)


def _rows(x: Value, start: Term, count: Term) -> Value:
    """Some rows of a batch of matrices."""
    return x.part(len(x.shape) - 2, start, count)


def _cholesky_vjp(s: Step) -> Gradients:
    half = _lower(_product(s.y, s.g, left=True))
    half = half - _diagonal(half) * 0.5
    first = _triangular(s.y, half, lower=True, transposed=True)
    whole = _transposed(_triangular(s.y, _transposed(first), lower=True, transposed=True))
    return [(whole + _transposed(whole)) * 0.5]


def _triangular_solve_vjp(s: Step) -> Gradients:
    a, _ = s.x
    lower, transposed = s["lower"], s["transposed"]
    right = _triangular(a, s.g, lower, not transposed)
    if not s.wanted[0]:
        return [None, right]
    whole = -(_product(s.y, right, right=True) if transposed else _product(right, s.y, right=True))
    return [_lower(whole) if lower else whole - _lower(whole, strictly=True), right]


def _solve_vjp(s: Step) -> Gradients:
    right = _transposed(s.x[0]).apply("solve", s.g)
    return [-_product(right, s.y, right=True) if s.wanted[0] else None, right]


def _slogdet_vjp(s: Step) -> Gradients:
    (a,) = s.x
    batch = a.shape[:-2]
    g = s.g.part(len(batch), ONE, ONE).apply("reshape", shape=(*batch, ONE, ONE))
    return [_transposed(a).apply("solve", _identity(a)) * g]


def _qr_vjp(s: Step) -> Gradients:
    """The gradient of Q alone; that of `R = Q.T @ A` comes back through the product."""
    upper = _product(s.y, s.x[0], left=True)
    upper = upper - _lower(upper, strictly=True)
    inner = -_product(s.g, s.y, left=True)
    copied = _lower(inner) + _transposed(_lower(inner, strictly=True))
    whole = s.g + _product(s.y, copied)
    return [_transposed(_triangular(upper, _transposed(whole), lower=False))]


def _gaps(values: Value) -> Value:
    """`1 / (v[j] - v[i])`, and 0 where both are equal, for the row vectors of a batch."""
    gap = values - _transposed(values)
    same = gap.apply("eq", gap.zeros())
    return (1 / gap.where(same.apply("not"), 1)).where(same.apply("not"))


def _eigh_vjp(s: Step) -> Gradients:
    (a,) = s.x
    n = a.shape[-1]
    values, vectors = _rows(s.y, ZERO, ONE), _rows(s.y, ONE, n)
    g_values, g_vectors = _rows(s.g, ZERO, ONE), _rows(s.g, ONE, n)
    inner = _product(vectors, g_vectors, left=True) * _gaps(values) + _identity(a) * g_values
    whole = _product(_product(vectors, inner), vectors, right=True)
    return [(whole + _transposed(whole)) * 0.5]


def _svd_vjp(s: Step) -> Gradients:
    (a,) = s.x
    m, n = a.shape[-2:]
    sizes, v, u = _rows(s.y, ZERO, ONE), _rows(s.y, ONE, n), _rows(s.y, n + 1, m)
    g_sizes, g_v, g_u = _rows(s.g, ZERO, ONE), _rows(s.g, ONE, n), _rows(s.g, n + 1, m)
    gaps = _gaps(sizes * sizes)
    inner_u, inner_v = _product(u, g_u, left=True), _product(v, g_v, left=True)
    around = gaps * (inner_u - _transposed(inner_u)) * sizes
    around = around + _transposed(sizes) * gaps * (inner_v - _transposed(inner_v))
    nothing = sizes.apply("eq", sizes.zeros())
    inverse = (1 / sizes.where(nothing.apply("not"), 1)).where(nothing.apply("not"))
    beside = (g_u - _product(u, inner_u)) * inverse
    middle = around + _diagonal(around.zeros() + 1) * g_sizes
    return [_product(_product(u, middle) + beside, v, right=True)]


OPS: tuple[Op, ...] = (
    Op("cholesky", _cholesky_type, _wide(np.linalg.cholesky), _matrix_signature, vjp=_cholesky_vjp, heavy=True),
    Op(
        "triangular_solve",
        _solving("triangular_solve"),
        _wide(_triangular_solve),
        _solving_signature,
        vjp=_triangular_solve_vjp,
        heavy=True,
    ),
    Op("solve", _solving("solve"), _wide(np.linalg.solve), _solving_signature, vjp=_solve_vjp, heavy=True),
    Op("slogdet", _slogdet_type, _wide(_slogdet), _slogdet_signature, vjp=_slogdet_vjp, heavy=True),
    Op("qr", _qr_type, _wide(lambda x: np.linalg.qr(x)[0]), _matrix_signature, vjp=_qr_vjp, heavy=True),
    Op("eigh", _eigh_type, _wide(_eigh), _matrix_signature, vjp=_eigh_vjp, heavy=True),
    Op("svd", _svd_type, _wide(_svd), _matrix_signature, vjp=_svd_vjp, heavy=True),
)
