"""Reductions over one, several or all axes, and running reductions along one.

Over an empty axis a reduction gives the identity of its monoid: sum 0, product 1, maximum minus infinity or the
least integer. The mean of nothing is NaN. `max` and `min` of tensors are methods, because `pr.max` and `pr.min`
are those of index expressions.
"""

from __future__ import annotations

import math

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.dtypes import BOOL, INT32
from polyrhythm.compiler.ir.terms import Term, maximum, product
from polyrhythm.errors import AxisError, DTypeError, EmptyAxisError
from polyrhythm.language.functions.arithmetic import cast, clip, equal, multiply, truth, where
from polyrhythm.language.functions.elementwise import abs, exp, isfinite, log, sqrt
from polyrhythm.language.functions.support import (
    Axis,
    TensorLike,
    accumulated,
    as_float,
    as_tensor,
    cast_to,
    one_axis,
    reshaped,
    some_axes,
)
from polyrhythm.language.index import index_of
from polyrhythm.language.tensor import Tensor, apply

# fmt: off
__all__ = [
    "all", "any", "argmax", "argmin", "cummax", "cumprod", "cumsum", "log_softmax", "logsumexp", "mean", "norm",
    "prod", "softmax", "std", "sum", "var",
]
# fmt: on


def sum(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The sum. Integers keep their dtype, booleans are counted as int32.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([[1.0, 2.0], [3.0, 4.0]]).sum(0))
    array([4., 6.], dtype=float32)
    """
    return _reduce("sum", _countable(x), axis, keepdims)


def prod(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The product. Integers keep their dtype, booleans become int32.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([[1.0, 2.0], [3.0, 4.0]]).prod(1))
    array([ 2., 12.], dtype=float32)
    """
    return _reduce("prod", _countable(x), axis, keepdims)


def max(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The greatest element.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([[1, 5], [3, 4]]).max(axis=-1, keepdims=True))
    array([[5],
           [4]], dtype=int32)
    """
    return _reduce("max", as_tensor(x), axis, keepdims)


def min(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The least element.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([[1, 5], [3, 4]]).min(0))
    array([1, 4], dtype=int32)
    """
    return _reduce("min", as_tensor(x), axis, keepdims)


def any(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether at least one element is true, that is, not zero.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([[True, False], [False, False]]).any(1))
    array([ True, False])
    """
    return _reduce("any", truth(x), axis, keepdims)


def all(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether every element is true, that is, not zero.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([[True, False], [True, True]]).all(1))
    array([False,  True])
    """
    return _reduce("all", truth(x), axis, keepdims)


def mean(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The mean; integers give float32.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([[1.0, 2.0], [3.0, 5.0]]).mean(0))
    array([2. , 3.5], dtype=float32)
    """
    operand = as_float(x)
    return cast_to(_mean(accumulated(operand), some_axes(operand, axis), keepdims), operand.dtype)


def var(x: TensorLike, axis: Axis = None, keepdims: bool = False, correction: int = 0) -> Tensor:
    """The variance; `correction=1` divides by one less than the number of elements.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([1.0, 3.0]).var(), ), pr.evaluate(pr.constant([1.0, 3.0]).var(correction=1))
    (array(1., dtype=float32), array(2., dtype=float32))
    """
    operand = as_float(x)
    return cast_to(_variance(operand, axis, keepdims, correction), _size_dtype(operand))


def std(x: TensorLike, axis: Axis = None, keepdims: bool = False, correction: int = 0) -> Tensor:
    """The standard deviation: the root of `var`, with gradient 0 where that is 0.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([1.0, 3.0]).std())
    array(1., dtype=float32)
    """
    operand = as_float(x)
    return cast_to(_safe_root(_variance(operand, axis, keepdims, correction)), _size_dtype(operand))


def norm(x: TensorLike, axis: Axis = None, keepdims: bool = False, order: float = 2) -> Tensor:
    """The length of vectors: of order 2 (the default), 1, or infinity. The gradient at 0 is 0.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.norm(pr.constant([[3.0, 4.0], [0.0, 0.0]]), axis=1))
    array([5., 0.], dtype=float32)
    """
    operand = as_float(x)
    wide = accumulated(operand)
    if order == 2:
        sizes = abs(wide) if wide.dtype.kind == "c" else wide
        result = _safe_root(sum(multiply(sizes, sizes), axis, keepdims))
    elif order == 1:
        result = sum(abs(wide), axis, keepdims)
    elif order == math.inf:
        # The norm of nothing is 0, where the greatest element would be minus infinity.
        result = clip(max(abs(wide), axis, keepdims), low=0)
    else:
        raise DTypeError(f"norm has no order {order!r}", fix="use order 1, 2 or float('inf')")
    return cast_to(result, _size_dtype(operand))


def argmax(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Where the greatest element is, the first of several, as int32; without an axis, in the flattened value.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([[1.0, 5.0], [7.0, 4.0]]).argmax(1))
    array([1, 0], dtype=int32)
    """
    return _argreduce("max", as_tensor(x), axis, keepdims)


def argmin(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Where the least element is, the first of several, as int32; without an axis, in the flattened value.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([[1.0, 5.0], [7.0, 4.0]]).argmin(1))
    array([0, 1], dtype=int32)
    """
    return _argreduce("min", as_tensor(x), axis, keepdims)


def logsumexp(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """`log(sum(exp(x)))` without overflow; minus infinity over an empty axis.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.logsumexp(pr.constant([1000.0, float("-inf")])))
    array(1000., dtype=float32)
    """
    operand = as_float(x)
    shifted, peak = _shifted(accumulated(operand), axis)
    total = sum(exp(shifted), axis, keepdims=True)
    # A sum of zeros has no logarithm; the guard keeps its gradient finite.
    nothing = equal(total, 0)
    result = where(nothing, -math.inf, log(where(nothing, 1, total))) + peak
    result = result if keepdims else _dropped(result, some_axes(operand, axis))
    return cast_to(result, operand.dtype)


def softmax(x: TensorLike, axis: Axis = -1) -> Tensor:
    """`exp(x)` divided by its sum along an axis, without overflow.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.softmax(pr.constant([1000.0, 1000.0, float("-inf")])))
    array([0.5, 0.5, 0. ], dtype=float32)
    """
    operand = as_float(x)
    shifted, _ = _shifted(accumulated(operand), axis)
    weights = exp(shifted)
    return cast_to(weights / sum(weights, axis, keepdims=True), operand.dtype)


def log_softmax(x: TensorLike, axis: Axis = -1) -> Tensor:
    """The logarithm of `softmax`, precise where that is tiny.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.log_softmax(pr.constant([0.0, -1000.0])))
    array([    0., -1000.], dtype=float32)
    """
    operand = as_float(x)
    shifted, _ = _shifted(accumulated(operand), axis)
    return cast_to(shifted - log(sum(exp(shifted), axis, keepdims=True)), operand.dtype)


def cumsum(x: TensorLike, axis: int | None = None, reverse: bool = False) -> Tensor:
    """Running sums along an axis, from its end with `reverse`; without an axis, of the flattened value.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([1, 2, 4]).cumsum(0)), pr.evaluate(pr.constant([1, 2, 4]).cumsum(0, reverse=True))
    (array([1, 3, 7], dtype=int32), array([7, 6, 4], dtype=int32))
    """
    return _cumulative("sum", _countable(x), axis, reverse)


def cumprod(x: TensorLike, axis: int | None = None, reverse: bool = False) -> Tensor:
    """Running products along an axis, from its end with `reverse`; without an axis, of the flattened value.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([1, 2, 4]).cumprod(0))
    array([1, 2, 8], dtype=int32)
    """
    return _cumulative("prod", _countable(x), axis, reverse)


def cummax(x: TensorLike, axis: int | None = None, reverse: bool = False) -> Tensor:
    """Running maxima along an axis, from its end with `reverse`; without an axis, of the flattened value.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([1, 4, 2]).cummax(0))
    array([1, 4, 4], dtype=int32)
    """
    return _cumulative("max", as_tensor(x), axis, reverse)


def flat(x: Tensor) -> Tensor:
    """The elements in one axis, row by row."""
    return reshaped(x, (x.type.size,))


def _reduce(monoid: str, x: Tensor, axis: Axis, keepdims: bool) -> Tensor:
    axes = some_axes(x, axis)
    result = apply("reduce", x, monoid=monoid, axes=axes) if axes else x
    return _kept(result, x, axes) if keepdims else result


def _kept(result: Tensor, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The result of a reduction with the reduced axes back, of length 1."""
    return reshaped(result, tuple(Term(1) if i in axes else length for i, length in enumerate(x.type.shape)))


def _dropped(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return reshaped(x, tuple(length for i, length in enumerate(x.type.shape) if i not in axes))


def _countable(x: TensorLike) -> Tensor:
    operand = as_tensor(x)
    return cast(operand, INT32) if operand.dtype == BOOL else operand


def _count(x: Tensor, axes: tuple[int, ...]) -> Term:
    return product(x.type.shape[axis] for axis in axes)


def _mean(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    return _reduce("sum", x, axes, keepdims) / cast_to(index_of(_count(x, axes)), x.dtype)


def _variance(x: Tensor, axis: Axis, keepdims: bool, correction: int) -> Tensor:
    wide, axes = accumulated(x), some_axes(x, axis)
    spread = wide - _mean(wide, axes, keepdims=True)
    freedom = maximum(Term(0), _count(wide, axes) - correction)
    sizes = abs(spread) if wide.dtype.kind == "c" else spread
    return _reduce("sum", multiply(sizes, sizes), axes, keepdims) / cast_to(index_of(freedom), sizes.dtype)


def _size_dtype(x: Tensor) -> np.dtype:
    """The dtype of magnitudes."""
    return dtypes.part(x.dtype) if x.dtype.kind == "c" else x.dtype


def _safe_root(x: Tensor) -> Tensor:
    """The square root, with gradient 0 at 0."""
    nothing = equal(x, 0)
    return where(nothing, 0, sqrt(where(nothing, 1, x)))


def _shifted(x: Tensor, axis: Axis) -> tuple[Tensor, Tensor]:
    """x less its greatest element along an axis, and that element; an infinite one counts as 0, lest NaN appear.

    What is made of both does not depend on the element, whatever it is: there is nothing to differentiate.
    """
    peak = apply("detach", max(x, axis, keepdims=True))
    peak = where(isfinite(peak), peak, 0)
    return x - peak, peak


def _argreduce(which: str, x: Tensor, axis: int | None, keepdims: bool) -> Tensor:
    operand, place = (flat(x), 0) if axis is None else (x, one_axis(x, axis))
    length = operand.type.shape[place]
    if length.is_constant and length.constant == 0:
        raise EmptyAxisError(
            f"arg{which} over an empty axis has no answer; the shape is {x.shape}",
            fix="give the axis at least one element, for example by concatenating a default",
        )
    result = apply("argreduce", operand, which=which, axis=place)
    if not keepdims:
        return result
    return _kept(result, x, (place,) if axis is not None else tuple(range(x.rank)))


def _cumulative(monoid: str, x: Tensor, axis: int | None, reverse: bool) -> Tensor:
    if axis is None and x.rank == 0:
        raise AxisError("a scalar has no axis to run along", fix="give it an axis, as in x.unsqueeze(0)")
    operand, place = (flat(x), 0) if axis is None else (x, one_axis(x, axis))
    return apply("cumulative", operand, monoid=monoid, axis=place, reverse=reverse)
