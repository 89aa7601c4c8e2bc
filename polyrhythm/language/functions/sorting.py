"""Functions of order: sorting, the greatest k, places in a sorted vector, quantiles, interpolation.

NaN is sorted last by `sort` and `argsort` and counts as the greatest for `topk`, as it does for `argmax`; a quantile
of values among which there is one is NaN.
"""

from __future__ import annotations

from typing import Literal

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.dtypes import INT32
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.errors import DTypeError, ShapeError
from polyrhythm.language.functions.arithmetic import cast, clip, equal, where
from polyrhythm.language.functions.elementwise import ceil, floor, isnan
from polyrhythm.language.functions.indexing import gather, take
from polyrhythm.language.functions.reductions import any, cumsum, flat, sum
from polyrhythm.language.functions.shapes import concat, transpose, unsqueeze
from polyrhythm.language.functions.support import (
    Length,
    TensorLike,
    accumulated,
    as_float,
    as_tensor,
    cast_to,
    one_axis,
    promoted,
    promoted_floats,
    reshaped,
)
from polyrhythm.language.index import index_of, term_of
from polyrhythm.language.tensor import Tensor, apply

__all__ = ["argsort", "interp", "median", "quantile", "searchsorted", "sort", "topk"]

FEW = 16
"""Up to so many places in a sorted vector of dynamic length are found by comparing with all of it."""

SHORT = 64
"""In longer vectors of known length places are found by bisection, in others by comparing."""


def argsort(x: TensorLike, axis: int = -1, descending: bool = False) -> Tensor:
    """The positions that sort x along an axis, as int32; equal elements keep their order and NaN comes last.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.argsort(pr.constant([3.0, 1.0, 2.0])))
    array([1, 2, 0], dtype=int32)
    """
    operand = as_tensor(x)
    return apply("argsort", operand, axis=one_axis(operand, axis), descending=descending)


def sort(x: TensorLike, axis: int = -1, descending: bool = False) -> Tensor:
    """x sorted along an axis; NaN comes last.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.sort(pr.constant([3.0, 1.0, 2.0]), descending=True))
    array([3., 2., 1.], dtype=float32)
    """
    operand = as_tensor(x)
    return gather(operand, argsort(operand, axis, descending), axis)


def topk(x: TensorLike, k: Length, axis: int = -1) -> tuple[Tensor, Tensor]:
    """The k greatest elements along an axis, in descending order, and their positions; NaN is greater than any.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.topk(pr.constant([3.0, 1.0, 2.0]), 2))
    (array([3., 2.], dtype=float32), array([0, 2], dtype=int32))
    """
    operand = as_tensor(x)
    place, count = one_axis(operand, axis), term_of(k)
    length = operand.type.shape[place]
    if count.is_constant and not 0 <= count.constant <= (length.constant if length.is_constant else count.constant):
        raise ShapeError(f"the top {k} of an axis of length {length}", fix=f"ask for 0 to {length} elements")
    order = argsort(operand, place, descending=True)
    positions = apply(
        "slice",
        order,
        starts=(term_of(0),) * order.rank,
        lengths=tuple(count if i == place else n for i, n in enumerate(order.type.shape)),
        steps=(1,) * order.rank,
    )
    if dtypes.is_float(operand.dtype):
        # NaN are the last of the order, one after the other: turned by their number it begins with them.
        nans = sum(isnan(operand), place, keepdims=True)
        steps = unsqueeze(apply("iota", length=count), tuple(range(1, order.rank - place)))
        steps = unsqueeze(steps, tuple(range(place)))
        turned = steps - nans + where(steps < nans, cast_to(index_of(length), INT32), 0)
        positions = where(nans == 0, positions, gather(order, turned, place))
    return gather(operand, positions, place), positions


def searchsorted(sorted: TensorLike, values: TensorLike, side: Literal["left", "right"] = "left") -> Tensor:
    """Where each value would have to be inserted into a sorted vector: before equal elements, or after them.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.searchsorted(pr.constant([1.0, 2.0, 2.0]), pr.constant([0.5, 2.0, 3.0])))
    array([0, 1, 3], dtype=int32)
    """
    (table, wanted), _ = promoted(sorted, values)
    if table.rank != 1:
        raise ShapeError(f"searchsorted in a value of shape {table.shape}", fix="give it a sorted vector")
    if side not in ("left", "right"):
        raise DTypeError(f"searchsorted knows no side {side!r}", fix='write side="left" or side="right"')
    size, count = wanted.type.size, table.type.shape[0]
    if count.is_constant and count.constant > SHORT:
        return _bisected(table, wanted, side, count.constant)
    if count.is_constant or (size.is_constant and size.constant <= FEW):
        return sum(cast(_is_before(table, unsqueeze(wanted, -1), side), INT32), -1)
    # One stable order of both: the vector's elements that come before a value are those to be counted.
    places = flat(wanted)
    both = concat([table, places] if side == "right" else [places, table])
    order = argsort(both)
    first = count if side == "right" else size
    below = order < cast_to(index_of(first), INT32)
    counted = cumsum(cast(below if side == "right" else ~below, INT32), 0)
    start = count if side == "right" else Term(0)
    own = apply("slice", argsort(order), starts=(start,), lengths=(size,), steps=(1,))
    return reshaped(take(counted, own, 0), wanted.type.shape)


def _is_before(elements: Tensor, values: Tensor, side: str) -> Tensor:
    """Whether elements come before values, which may be NaN, in a sorted vector."""
    unordered = isnan(values)
    if side == "left":
        return (elements < values) | (unordered & ~isnan(elements))
    return (elements <= values) | unordered


def _bisected(table: Tensor, values: Tensor, side: str, count: int) -> Tensor:
    """How many elements of a vector of known length come before each value: bit by bit, from the highest."""
    found = apply("broadcast", cast(as_tensor(0), INT32), shape=values.type.shape)
    step = 1 << count.bit_length() - 1
    while step:
        further = found + step
        inside = further <= count
        found = where(inside & _is_before(take(table, further - 1, 0), values, side), further, found)
        step //= 2
    return found


def quantile(x: TensorLike, q: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """What lies below a share q of the elements along an axis, between two of them by linear interpolation.

    The axes of q come first. Without an axis, of the flattened value; over an empty axis NaN.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.quantile(pr.constant([3.0, 1.0, 2.0, 4.0]), pr.constant([0.0, 0.5, 1.0])))
    array([1. , 2.5, 4. ], dtype=float32)
    """
    given = as_float(x)
    operand, place = (flat(given), 0) if axis is None else (given, one_axis(given, axis))
    wide = accumulated(operand)
    length = index_of(wide.type.shape[place])
    share = cast_to(q, wide.dtype)
    at = share * cast_to(length - 1, wide.dtype)
    ordered = sort(wide, place)
    low, high = (take(ordered, cast(end(at), INT32), place) for end in (floor, ceil))
    # The axes of q stand where the axis was; the weights broadcast from there.
    rest = wide.rank - 1 - place
    part = unsqueeze(at - floor(at), tuple(range(share.rank, share.rank + rest)))
    found = where(part == 0, low, low + (high - low) * part)
    moved = range(place, place + share.rank)
    found = transpose(found, (*moved, *(i for i in range(found.rank) if i not in moved)))
    bad = any(isnan(wide), place) | equal(cast_to(length, INT32), 0)
    found = where(bad, float("nan"), found)
    if keepdims:
        kept = tuple(Term(1) if axis is None or i == place else n for i, n in enumerate(given.type.shape))
        found = reshaped(found, (*share.type.shape, *kept))
    return cast_to(found, given.dtype)


def median(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The middle element along an axis, or the mean of the two in the middle; NaN over an empty axis.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.median(pr.constant([3.0, 1.0, 2.0, 9.0])))
    array(2.5, dtype=float32)
    """
    return quantile(x, 0.5, axis, keepdims)


def interp(x: TensorLike, xp: TensorLike, fp: TensorLike) -> Tensor:
    """The values at x of the line through the points (xp, fp), with xp ascending; constant beyond its ends.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.interp(pr.constant([-1.0, 0.5, 9.0]), pr.constant([0.0, 1.0]), pr.constant([10.0, 20.0])))
    array([10., 15., 20.], dtype=float32)
    """
    (at, places, heights), _ = promoted_floats(x, xp, fp)
    last = cast_to(index_of(places.type.shape[0]), INT32) - 1
    low = clip(searchsorted(places, at, "right") - 1, 0, last)
    high = clip(low + 1, 0, last)
    start, width = take(places, low, 0), take(places, high, 0) - take(places, low, 0)
    flat_part = width == 0
    part = clip(where(flat_part, 0, (at - start) / where(flat_part, 1, width)), 0, 1)
    below = take(heights, low, 0)
    return below + (take(heights, high, 0) - below) * part
