"""Linear algebra over the last two axes, as `pr.linalg`; leading axes are batches of matrices and broadcast.

The lengths of the axes may be dynamic. What has no answer is NaN, not an exception: the Cholesky factor of a matrix
that is not positive definite, the solution of a singular system. Functions of symmetric matrices take the mean of the
matrix and its transposed, as JAX does. Vectors that are determined up to their sign have the same sign on every
backend; those of equal eigenvalues, and their gradients, are not determined.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from polyrhythm.compiler.ir.conditions import ge
from polyrhythm.compiler.ir.ops.checks import broadcast_shapes, show
from polyrhythm.compiler.ir.sets import proves
from polyrhythm.compiler.ir.terms import ONE, Term, minimum
from polyrhythm.errors import ShapeError
from polyrhythm.language.functions.arithmetic import where
from polyrhythm.language.functions.creation import eye, triu
from polyrhythm.language.functions.elementwise import abs, exp
from polyrhythm.language.functions.linalg import matmul
from polyrhythm.language.functions.reductions import max as greatest
from polyrhythm.language.functions.reductions import min as least
from polyrhythm.language.functions.reductions import norm as vector_norm
from polyrhythm.language.functions.reductions import sum
from polyrhythm.language.functions.shapes import squeeze, swapaxes, unsqueeze
from polyrhythm.language.functions.spatial import Axes
from polyrhythm.language.functions.support import TensorLike, as_float, promoted_floats
from polyrhythm.language.naming import name_results
from polyrhythm.language.tensor import Tensor, apply, domain, shaped

# fmt: off
__all__ = [
    "cholesky", "det", "eigh", "eigvalsh", "inv", "matrix_norm", "norm", "qr", "slogdet", "solve", "svd", "svdvals",
    "triangular_solve",
]
# fmt: on


def cholesky(a: TensorLike) -> Tensor:
    """The lower triangle L with `L @ L.mT == a`, of a symmetric positive definite matrix; NaN if it is not.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.linalg.cholesky(pr.constant([[4.0, 2.0], [2.0, 5.0]])))
    array([[2., 0.],
           [1., 2.]], dtype=float32)
    """
    return apply("cholesky", _symmetric("cholesky", a))


def solve(a: TensorLike, b: TensorLike) -> Tensor:
    """x with `a @ x == b`; b is a vector, or a matrix of one right side per column. NaN if a is singular.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.linalg.solve(pr.constant([[2.0, 0.0], [0.0, 4.0]]), pr.constant([2.0, 2.0])))
    array([1. , 0.5], dtype=float32)
    """
    return _solved("solve", a, b)


def triangular_solve(a: TensorLike, b: TensorLike, lower: bool = True, transpose: bool = False) -> Tensor:
    """As `solve`, for the lower or upper triangle of a, or with `transpose` for that triangle transposed.

    >>> import polyrhythm as pr
    >>> a = pr.constant([[2.0, 9.0], [1.0, 4.0]])
    >>> pr.evaluate(pr.linalg.triangular_solve(a, pr.constant([2.0, 5.0])))
    array([1., 1.], dtype=float32)
    """
    return _solved("triangular_solve", a, b, lower=lower, transposed=transpose)


def inv(a: TensorLike) -> Tensor:
    """The inverse; NaN if there is none.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.linalg.inv(pr.constant([[2.0, 0.0], [0.0, 4.0]])))
    array([[0.5 , 0.  ],
           [0.  , 0.25]], dtype=float32)
    """
    operand = _matrix("inv", a)
    return solve(operand, eye(operand.shape[-1], dtype=operand.dtype))


def slogdet(a: TensorLike) -> tuple[Tensor, Tensor]:
    """The sign of the determinant and the logarithm of its magnitude.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.linalg.slogdet(pr.constant([[0.0, 1.0], [1.0, 0.0]])))
    (array(-1., dtype=float32), array(0., dtype=float32))
    """
    both = apply("slogdet", _matrix("slogdet", a))
    return Axes(both)[..., 0], Axes(both)[..., 1]


def det(a: TensorLike) -> Tensor:
    """The determinant; up to three rows as the sum of products, whose gradient is right where it is zero too.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.linalg.det(pr.constant([[1.0, 2.0], [3.0, 4.0]])))
    array(-2., dtype=float32)
    """
    operand = _matrix("det", a)
    rows, columns = operand.type.shape[-2:]
    if rows is columns and rows.is_constant and 1 <= rows.constant <= 3:
        return _minor(operand, list(range(rows.constant)), 0)
    sign, logarithm = slogdet(operand)
    nothing = sign == 0
    return where(nothing, 0, sign * exp(where(nothing, 0, logarithm)))


def qr(a: TensorLike) -> tuple[Tensor, Tensor]:
    """Q with orthonormal columns and an upper triangle R with `Q @ R == a`, in the reduced form.

    >>> import polyrhythm as pr
    >>> q, r = pr.evaluate(pr.linalg.qr(pr.constant([[3.0, 1.0], [4.0, 2.0]])))
    >>> (q @ r).round(4).tolist(), float(r[1, 0])
    ([[3.0, 1.0], [4.0, 2.0]], 0.0)
    """
    operand = _matrix("qr", a)
    rows, columns = operand.type.shape[-2:]
    tall = operand
    if not _at_least(operand, rows, columns):
        lead = operand.type.shape[:-2]
        tall = apply(
            "slice",
            operand,
            starts=(Term(0),) * operand.rank,
            lengths=(*lead, rows, rows if _at_least(operand, columns, rows) else minimum(rows, columns)),
            steps=(1,) * operand.rank,
        )
    q = apply("qr", tall)
    return q, triu(matmul(swapaxes(q, -2, -1), operand))


def eigh(a: TensorLike) -> tuple[Tensor, Tensor]:
    """The eigenvalues of a symmetric matrix, ascending, and its eigenvectors as columns.

    >>> import polyrhythm as pr
    >>> values, vectors = pr.evaluate(pr.linalg.eigh(pr.constant([[2.0, 1.0], [1.0, 2.0]])))
    >>> values.round(4).tolist(), vectors.shape
    ([1.0, 3.0], (2, 2))
    """
    both = apply("eigh", _symmetric("eigh", a))
    return Axes(both)[..., 0, :], Axes(both)[..., 1:, :]


def eigvalsh(a: TensorLike) -> Tensor:
    """The eigenvalues of a symmetric matrix, ascending.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.linalg.eigvalsh(pr.constant([[1.0, 0.0], [0.0, 3.0]])))
    array([1., 3.], dtype=float32)
    """
    return eigh(a)[0]


def svd(a: TensorLike) -> tuple[Tensor, Tensor, Tensor]:
    """U, the singular values s in descending order, and V transposed, with `U * s @ Vt == a`, in the reduced form.

    Of two dynamic lengths the compiler must know which is greater.

    >>> import polyrhythm as pr
    >>> u, s, vt = pr.evaluate(pr.linalg.svd(pr.constant([[3.0, 0.0], [0.0, 4.0]])))
    >>> s.tolist(), (u * s @ vt).round(4).tolist()
    ([4.0, 3.0], [[3.0, 0.0], [0.0, 4.0]])
    """
    operand = _matrix("svd", a)
    rows, columns = operand.type.shape[-2:]
    if not _at_least(operand, rows, columns) and _at_least(operand, columns, rows):
        v, s, ut = svd(swapaxes(operand, -2, -1))
        return swapaxes(ut, -2, -1), s, swapaxes(v, -2, -1)
    packed = Axes(apply("svd", operand))
    width = operand.shape[-1]
    return packed[..., width + 1 :, :], packed[..., 0, :], swapaxes(packed[..., 1 : width + 1, :], -2, -1)


def svdvals(a: TensorLike) -> Tensor:
    """The singular values, in descending order.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.linalg.svdvals(pr.constant([[3.0, 0.0], [0.0, -4.0]])))
    array([4., 3.], dtype=float32)
    """
    return svd(a)[1]


def norm(x: TensorLike, order: float | str | None = None, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The norm of a vector along an axis; without one, of a vector or of a matrix (`matrix_norm`), as in NumPy.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.linalg.norm(pr.constant([3.0, 4.0])))
    array(5., dtype=float32)
    """
    operand = as_float(x)
    if axis is None and order is not None and operand.rank >= 2:
        return matrix_norm(operand, order, keepdims)  # type: ignore[arg-type]
    if isinstance(order, str):
        raise ShapeError(f"the norm {order!r} is one of matrices", fix="give it a matrix, and no axis")
    return vector_norm(operand, axis, keepdims, 2 if order is None else order)


def matrix_norm(a: TensorLike, order: Literal["fro", "nuc"] | float = "fro", keepdims: bool = False) -> Tensor:
    """The norm of a matrix: "fro" of its elements, "nuc", 2 and -2 of its singular values, 1 and inf of sums.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.linalg.matrix_norm(pr.constant([[1.0, -2.0], [0.0, 4.0]]), 1))
    array(6., dtype=float32)
    """
    operand = _matrix("matrix_norm", a)
    if order == "fro":
        found = vector_norm(operand, (-2, -1))
    elif order in ("nuc", 2, -2):
        values = svdvals(operand)
        found = sum(values, -1) if order == "nuc" else greatest(values, -1) if order == 2 else least(values, -1)
    elif order in (1, -1, math.inf, -math.inf):
        sums = sum(abs(operand), -2 if order in (1, -1) else -1)
        found = greatest(sums, -1) if order in (1, math.inf) else least(sums, -1)
    else:
        raise ShapeError(f"there is no matrix norm {order!r}", fix='write "fro", "nuc", 1, -1, 2, -2, inf or -inf')
    return unsqueeze(found, (-2, -1)) if keepdims else found


def _matrix(name: str, x: TensorLike) -> Tensor:
    operand = as_float(x)
    if operand.rank < 2:
        raise ShapeError(
            f"{name} of a value of shape {show(operand.type.shape)}",
            fix="give it a matrix: two axes or more",
        )
    return operand


def _symmetric(name: str, x: TensorLike) -> Tensor:
    operand = _matrix(name, x)
    return (operand + swapaxes(operand, -2, -1)) * 0.5


def _solved(op: str, a: TensorLike, b: TensorLike, **attributes: Any) -> Tensor:
    (left, right), _ = promoted_floats(_matrix(op, a), b)
    if right.rank == 0:
        raise ShapeError(
            f"{op} with a scalar right side", fix="give it a vector, or a matrix of one right side per column"
        )
    vector = right.rank == 1
    right = unsqueeze(right, -1) if vector else right
    batch = broadcast_shapes(op, [left.type.shape[:-2], right.type.shape[:-2]], domain((*left.spans, *right.spans)))
    left, right = (shaped(x, (*batch, *x.type.shape[-2:])) for x in (left, right))
    found = apply(op, left, right, **attributes)
    return squeeze(found, -1) if vector else found


def _at_least(x: Tensor, a: Term, b: Term) -> bool:
    """Whether a length is known to be at least another."""
    return a is b or (b is ONE and a is ONE) or proves(domain(x.spans), ge(a, b))


def _minor(x: Tensor, columns: list[int], row: int) -> Tensor:
    """The determinant of the rows from one on and some columns, expanded along the first."""
    entries = [Axes(x)[..., row, column] for column in columns]
    if len(columns) == 1:
        return entries[0]
    parts = [
        entry * _minor(x, [c for c in columns if c != column], row + 1)
        for entry, column in zip(entries, columns, strict=True)
    ]
    total = parts[0]
    for number, part in enumerate(parts[1:], 1):
        total = total - part if number % 2 else total + part
    return total


name_results(globals(), __all__)
