"""Tensors made of nothing but numbers: constants, ranges, filled and triangular ones.

They have no dims of their own: like any tensor without dims they broadcast over time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from polyrhythm.compiler.ir import sets
from polyrhythm.compiler.ir.dtypes import COMPLEX64, COMPLEX128, FLOAT32, FLOAT64, INT32, INT64, is_inexact
from polyrhythm.compiler.ir.terms import Term, maximum, minimum
from polyrhythm.compiler.ir.types import Array
from polyrhythm.errors import DTypeError, OperandError, ShapeError
from polyrhythm.language.functions.arithmetic import cast, where
from polyrhythm.language.functions.shapes import broadcast_to, squeeze, unsqueeze
from polyrhythm.language.functions.support import (
    DTypeLike,
    Length,
    TensorLike,
    as_dtype,
    as_number,
    as_tensor,
    cast_to,
    promoted_floats,
)
from polyrhythm.language.index import Condition, Index, Wrapped, index_max, index_of, term_of
from polyrhythm.language.tensor import Tensor, apply

# fmt: off
__all__ = [
    "arange", "constant", "diag", "diagonal", "eye", "full", "full_like", "linspace", "ones", "ones_like", "trace",
    "tril", "triu", "value", "zeros", "zeros_like",
]
# fmt: on


def constant(value: Any, dtype: DTypeLike = None) -> Tensor:
    """A tensor of numbers. Of Python numbers floats become float32 and integers int32; an array keeps its dtype.

    >>> import polyrhythm as pr
    >>> pr.constant([[1, 2], [3, 4]])
    <int32[2, 2] from ...>
    """
    if isinstance(value, Tensor):
        raise OperandError("a constant is made of numbers, not of a tensor", fix="use the tensor itself")
    array = np.asarray(value)
    if dtype is not None:
        array = array.astype(as_dtype(dtype))
    elif not hasattr(value, "dtype") and array.dtype in (FLOAT64, INT64, COMPLEX128):
        narrow = {FLOAT64: FLOAT32, INT64: INT32, COMPLEX128: COMPLEX64}[array.dtype]
        if narrow == INT32 and array.size and (array.min() < -(2**31) or array.max() >= 2**31):
            raise DTypeError("the constant has integers that do not fit int32", fix='say dtype="int64"')
        array = array.astype(narrow)
    return apply("constant", value=Array(array.astype(as_dtype(array.dtype))))


def value(index: Length | Condition | Wrapped) -> Tensor:
    """An index expression as an int32 tensor, or a condition on indices as a boolean one.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> pr.evaluate(pr.value(t) * 0.5, bounds={T: 3})
    array([0. , 0.5, 1. ], dtype=float32)
    """
    if isinstance(index, Wrapped):
        return value(index.index) % value(index.steps)
    return as_tensor(index) if isinstance(index, Condition) else apply("index", value=term_of(index))


def full(shape: Length | Sequence[Length], value: TensorLike, dtype: DTypeLike = None) -> Tensor:
    """One value everywhere; its dtype unless another is given.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.full((2,), 7))
    array([7, 7], dtype=int32)
    """
    return broadcast_to(cast_to(value, as_tensor(value).dtype if dtype is None else as_dtype(dtype)), shape)


def zeros(shape: Length | Sequence[Length], dtype: DTypeLike = "float32") -> Tensor:
    """0 everywhere.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.zeros((2,)))
    array([0., 0.], dtype=float32)
    """
    return full(shape, 0, dtype)


def ones(shape: Length | Sequence[Length], dtype: DTypeLike = "float32") -> Tensor:
    """1 everywhere.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.ones((2,), dtype="int32"))
    array([1, 1], dtype=int32)
    """
    return full(shape, 1, dtype)


def full_like(x: TensorLike, value: TensorLike, dtype: DTypeLike = None) -> Tensor:
    """One value everywhere, in the shape and dtype of x.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.full_like(pr.constant([1.0, 2.0]), 3))
    array([3., 3.], dtype=float32)
    """
    operand = as_tensor(x)
    return full(operand.shape, value, operand.dtype if dtype is None else dtype)


def zeros_like(x: TensorLike, dtype: DTypeLike = None) -> Tensor:
    """0 everywhere, in the shape and dtype of x.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.zeros_like(pr.constant([1, 2])))
    array([0, 0], dtype=int32)
    """
    return full_like(x, 0, dtype)


def ones_like(x: TensorLike, dtype: DTypeLike = None) -> Tensor:
    """1 everywhere, in the shape and dtype of x.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.ones_like(pr.constant([1, 2])))
    array([1, 1], dtype=int32)
    """
    return full_like(x, 1, dtype)


def arange(
    start: Length | float, stop: Length | float | None = None, step: int | float = 1, dtype: DTypeLike = None
) -> Tensor:
    """`start, start + step, ...` up to but without `stop`; of one argument, `0, 1, ...` up to it.

    The bounds may be index expressions.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> pr.arange(t, T).shape
    (max(0, T - t),)
    >>> pr.evaluate(pr.arange(5, 0, -2))
    array([5, 3, 1], dtype=int32)
    """
    first, last = (0, start) if stop is None else (start, stop)
    if step == 0:
        raise DTypeError("arange needs a step other than 0", fix="use a positive or negative step")
    if any(isinstance(n, float) for n in (first, last, step)):
        return _float_range(first, last, step, "float32" if dtype is None else dtype)
    begin = term_of(first)
    positions = apply("iota", length=sets.length(begin, term_of(last), int(step)))
    stretched = positions if step == 1 else positions * int(step)
    shifted = stretched if begin.is_constant and begin.constant == 0 else stretched + cast_to(first, INT32)
    return shifted if dtype is None else cast(shifted, dtype)


def eye(rows: Length, columns: Length | None = None, diagonal: Length = 0, dtype: DTypeLike = "float32") -> Tensor:
    """1 on a diagonal, 0 elsewhere.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.eye(2, 3))
    array([[1., 0., 0.],
           [0., 1., 0.]], dtype=float32)
    """
    width = rows if columns is None else columns
    return cast(unsqueeze(arange(rows), 1) + diagonal == arange(width), dtype)


def linspace(
    start: TensorLike, stop: TensorLike, num: Length, endpoint: bool = True, dtype: DTypeLike = None
) -> Tensor:
    """`num` numbers at equal distances from `start` to `stop`; without `endpoint` the last one is left out.

    They have the dtype of the two ends, float32 where these are integers.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.linspace(0, 1, 5))
    array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    kind = promoted_floats(start, stop)[0][0].dtype if dtype is None else as_dtype(dtype)
    wide = kind if is_inexact(kind) else FLOAT64
    first, last = cast_to(start, wide), cast_to(stop, wide)
    gaps = index_max(1, index_of(term_of(num) - (1 if endpoint else 0)))
    part = cast(arange(num), wide) / cast(value(gaps), wide)
    part = unsqueeze(part, tuple(range(1, 1 + max(first.rank, last.rank))))
    return cast_to(first * (1 - part) + last * part, kind)


def diagonal(x: TensorLike, offset: int = 0) -> Tensor:
    """The diagonal of the last two axes, or one `offset` columns to the right of it.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.diagonal(pr.constant([[1, 2, 3], [4, 5, 6]]), 1))
    array([2, 6], dtype=int32)
    """
    operand = as_tensor(x)
    _places(operand, "diagonal")
    rows, columns = operand.type.shape[-2:]
    down, right = max(0, -offset), max(0, offset)
    length = maximum(Term(0), minimum(rows - down, columns - right))
    lead = operand.type.shape[:-2]
    starts, steps = (*(Term(0) for _ in lead), Term(down), Term(0)), (1,) * operand.rank
    cut = apply("slice", operand, starts=starts, lengths=(*lead, length, columns), steps=steps)
    places = unsqueeze(apply("iota", length=length) + right, 1)
    places = broadcast_to(places, [index_of(n) for n in (*lead, length, Term(1))])
    return squeeze(apply("take_along", cut, places, axis=operand.rank - 1), -1)


def trace(x: TensorLike, offset: int = 0) -> Tensor:
    """The sum of a diagonal of the last two axes.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.trace(pr.constant([[1, 2], [3, 4]])))
    array(5, dtype=int32)
    """
    found = diagonal(x, offset)
    return apply("reduce", found, monoid="sum", axes=(found.rank - 1,))


def diag(x: TensorLike, offset: int = 0) -> Tensor:
    """The matrix with a vector on a diagonal, or the diagonal of a matrix.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.diag(pr.constant([1, 2])))
    array([[1, 0],
           [0, 2]], dtype=int32)
    """
    operand = as_tensor(x)
    if operand.rank != 1:
        return diagonal(operand, offset)
    before, after = (max(0, offset), max(0, -offset))
    padded = apply("pad", operand, before=(Term(before),), after=(Term(after),), value=0)
    size = index_of(padded.type.shape[0])
    here = unsqueeze(arange(size), 1) + offset == arange(size)
    return where(here, padded, cast_to(0, operand.dtype))


def tril(x: TensorLike, diagonal: Length = 0) -> Tensor:
    """x on and below a diagonal of its last two axes, 0 above it.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.tril(pr.ones((2, 3), dtype="int32")))
    array([[1, 0, 0],
           [1, 1, 0]], dtype=int32)
    """
    operand = as_tensor(x)
    rows, columns = _places(operand, "tril")
    return where(columns <= rows + diagonal, operand, cast_to(0, operand.dtype))


def triu(x: TensorLike, diagonal: Length = 0) -> Tensor:
    """x on and above a diagonal of its last two axes, 0 below it.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.triu(pr.ones((2, 3), dtype="int32"), 1))
    array([[0, 1, 1],
           [0, 0, 1]], dtype=int32)
    """
    operand = as_tensor(x)
    rows, columns = _places(operand, "triu")
    return where(columns >= rows + diagonal, operand, cast_to(0, operand.dtype))


def _places(x: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """The row and the column of each element of a matrix."""
    if x.rank < 2:
        raise ShapeError(f"{name} needs at least two axes, not shape {x.shape}", fix="give it a matrix")
    return unsqueeze(arange(x.shape[-2]), 1), arange(x.shape[-1])


def _float_range(first: Length | float, last: Length | float, step: float, dtype: DTypeLike) -> Tensor:
    numbers = [as_number(n) for n in (first, last) if not isinstance(n, Index)]
    if len(numbers) < 2 or None in numbers:
        raise DTypeError(
            "arange of floats needs numbers as bounds",
            fix="count with integers and index expressions, then scale: pr.arange(t, T) * 0.1",
        )
    begin, end = (float(n) for n in numbers if not isinstance(n, (complex, type(None))))
    count = max(0, math.ceil((end - begin) / step))
    return constant(begin + np.arange(count) * step, dtype)
