"""Operations along axes: reductions by a monoid, arguments of extrema, cumulative reductions, linear scans, sorting.

Sums and products of 16-bit floats are accumulated in float32 and rounded once; those of integers keep their dtype
and wrap. Over an empty axis a reduction gives the monoid's identity; an argument of an extremum does not exist
there, and the checks refuse one. NaN wins every maximum and minimum and is sorted last.

A linear scan of factors a and elements b is `y[k] = a[k] * y[k - 1] + b[k]` along an axis, from `y[0] = b[0]`;
reversed it comes from the other end. It is computed step by step, as it is written, so that factors whose product
overflows do no harm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import Condition, ge
from polyrhythm.compiler.ir.ops.checks import (
    check_axis,
    check_kind,
    check_rank,
    check_same_dtype,
    check_same_length,
    same_length,
    show,
)
from polyrhythm.compiler.ir.ops.record import (
    OPAQUE,
    PARALLEL,
    Attributes,
    Claim,
    Gradients,
    Op,
    Role,
    Signature,
    flat,
)
from polyrhythm.compiler.ir.terms import ONE, ZERO
from polyrhythm.compiler.ir.types import Shape, TensorType
from polyrhythm.errors import AxisError, EmptyAxisError

if TYPE_CHECKING:
    from polyrhythm.compiler.ir.values import Step, Value

Types = tuple[TensorType, ...]

COMBINE: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
}
"""How a monoid combines two partial results."""


_NO_ORDER = "complex numbers have no order: compare pr.abs, pr.real or pr.imag of them"


def check_monoid(name: str, monoid: str, operand: TensorType) -> None:
    """Whether a monoid applies to elements of the operand's dtype."""
    assert monoid in COMBINE, f"unknown monoid {monoid}"
    if monoid in ("any", "all"):
        check_kind(name, operand, ("bool",), fix="compare with something first, as in `(x != 0).any()`")
    elif monoid in ("sum", "prod"):
        fix = "cast truth values to an integer dtype, or use any or all"
        check_kind(name, operand, ("complex", "int", "float"), fix=fix)
    else:
        check_kind(name, operand, ("bool", "int", "float"), fix=_NO_ORDER)


def _along(axis: int, rank: int, role: Role, operands: int = 1) -> Signature:
    """Of an operation that does something along one axis, which stays, of operands of the same shape."""
    axes = tuple(range(rank))
    return Signature((axes,) * operands, axes, tuple(role if a == axis else PARALLEL for a in axes))


def _reduce_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    (x,) = operands
    axes = attributes["axes"]
    for axis in axes:
        check_axis("reduce", axis, x)
    if len(set(axes)) != len(axes):
        raise AxisError(f"reduce: axes {axes} name an axis twice", fix="name each axis once")
    check_monoid(f"reduce {attributes['monoid']}", attributes["monoid"], x)
    return TensorType(tuple(n for axis, n in enumerate(x.shape) if axis not in axes), x.dtype)


def _reduce(x: np.ndarray, monoid: str, axes: tuple[int, ...]) -> np.ndarray:
    wide = dtypes.accumulator(x.dtype)
    start = dtypes.identity(monoid, wide)
    with np.errstate(all="ignore"):
        result = COMBINE[monoid].reduce(x.astype(wide, copy=False), axis=axes, dtype=wide, initial=start[()])
        return np.asarray(result).astype(x.dtype, copy=False)


def _reduce_signature(operands: Types, attributes: Attributes) -> Signature:
    axes = range(operands[0].rank)
    reduced = Role("reduce", attributes["monoid"])
    roles = tuple(reduced if axis in attributes["axes"] else PARALLEL for axis in axes)
    return Signature((tuple(axes),), tuple(a for a in axes if a not in attributes["axes"]), roles)


def _argreduce_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    (x,) = operands
    axis, name = attributes["axis"], f"arg{attributes['which']}"
    check_axis(name, axis, x)
    check_kind(name, x, ("bool", "int", "float"), fix=_NO_ORDER)
    # An axis that may be empty is refused, or made a requirement of the bounds, where it is demanded.
    if same_length(x.shape[axis], ZERO, given):
        raise EmptyAxisError(
            f"{name}: axis {axis} of shape {show(x.shape)} is empty, and has no {attributes['which']}",
            fix="take it over an axis with at least one element, for example a slice such as `0:t+1`",
        )
    return TensorType(x.shape[:axis] + x.shape[axis + 1 :], dtypes.INT32)


def _argreduce(x: np.ndarray, which: str, axis: int) -> np.ndarray:
    choose = np.argmax if which == "max" else np.argmin
    return np.asarray(choose(x.astype(dtypes.accumulator(x.dtype), copy=False), axis=axis)).astype(np.int32)


def _argreduce_claims(operands: Types, attributes: Attributes) -> Iterator[Claim]:
    length, which = operands[0].shape[attributes["axis"]], attributes["which"]
    what = f"arg{which} over an axis of length {length}, which may be empty"
    fix = f"take it only where the axis has an element, as in pr.where(condition, x.arg{which}(0), 0)"
    yield Claim(ge(length, 1), EmptyAxisError, what, fix)


def _argreduce_signature(operands: Types, attributes: Attributes) -> Signature:
    axes = range(operands[0].rank)
    roles = tuple(OPAQUE if axis == attributes["axis"] else PARALLEL for axis in axes)
    return Signature((tuple(axes),), tuple(a for a in axes if a != attributes["axis"]), roles)


def _cumulative_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    (x,) = operands
    check_axis("cumulative", attributes["axis"], x)
    check_monoid(f"cumulative {attributes['monoid']}", attributes["monoid"], x)
    return x


def _cumulative(x: np.ndarray, monoid: str, axis: int, reverse: bool) -> np.ndarray:
    wide = dtypes.accumulator(x.dtype)
    values = x.astype(wide, copy=False)
    values = np.flip(values, axis) if reverse else values
    with np.errstate(all="ignore"):
        result = COMBINE[monoid].accumulate(values, axis=axis, dtype=wide).astype(x.dtype, copy=False)
    return np.flip(result, axis) if reverse else result


def _cumulative_signature(operands: Types, attributes: Attributes) -> Signature:
    # Position k of a reversed scan depends on the positions from k on, which no role says.
    role = OPAQUE if attributes["reverse"] else Role("scan", attributes["monoid"])
    return _along(attributes["axis"], operands[0].rank, role)


def _linear_scan_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    a, b = operands
    check_kind("linear_scan", b, ("complex", "int", "float"))
    check_same_dtype("linear_scan", a, b)
    check_axis("linear_scan", attributes["axis"], b)
    check_rank("linear_scan", a, b.rank, f"elements of shape {show(b.shape)} need as many factors; these are")
    for axis in range(b.rank):
        check_same_length("linear_scan", a, axis, b, axis, given)
    return b


def _linear_scan(a: np.ndarray, b: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
    wide = dtypes.accumulator(b.dtype)
    result = np.empty(b.shape, wide)
    order = slice(None, None, -1) if reverse else slice(None)
    factors, elements = (np.moveaxis(x.astype(wide, copy=False), axis, 0)[order] for x in (a, b))
    values = np.moveaxis(result, axis, 0)[order]
    with np.errstate(all="ignore"):
        if values.size == len(values) > 0:  # single numbers are stepped through faster than arrays of one
            values[...] = np.reshape(_numbers(factors.ravel(), elements.ravel()), values.shape)
        else:
            for k in range(len(values)):
                if k == 0:
                    values[k] = elements[k]
                else:
                    np.multiply(factors[k], values[k - 1], out=values[k])
                    values[k] += elements[k]
        return result.astype(b.dtype, copy=False)


def _numbers(factors: np.ndarray, elements: np.ndarray) -> np.ndarray:
    """The linear scan of single numbers, in their own arithmetic."""
    values = list(elements)
    for k, factor in enumerate(factors[1:], 1):
        values[k] = factor * values[k - 1] + values[k]
    return np.array(values, elements.dtype)


def _linear_scan_signature(operands: Types, attributes: Attributes) -> Signature:
    return _along(attributes["axis"], operands[1].rank, OPAQUE, 2)


def _argsort_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    check_axis("argsort", attributes["axis"], operands[0])
    check_kind("argsort", operands[0], ("bool", "int", "float"), fix=_NO_ORDER)
    return TensorType(operands[0].shape, dtypes.INT32)


def _argsort(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    keys = x.astype(dtypes.accumulator(x.dtype), copy=False)
    if descending:
        # Reversing the order of the keys, not of the result, keeps equal elements in index order and NaN last;
        # the complement of an integer reverses the order without overflow.
        keys = np.negative(keys) if dtypes.is_float(keys.dtype) else np.invert(keys)
    return np.argsort(keys, axis=axis, kind="stable").astype(np.int32)


def _argsort_signature(operands: Types, attributes: Attributes) -> Signature:
    return _along(attributes["axis"], operands[0].rank, OPAQUE)


def _spread(value: Value, axes: Sequence[int], shape: Shape) -> Value:
    """Repeat a value along axes that were reduced away."""
    kept = tuple(ONE if axis in axes else n for axis, n in enumerate(shape))
    return value.apply("reshape", shape=kept).apply("broadcast", shape=shape)


def _reduce_vjp(s: Step) -> Gradients:
    (x,) = s.x
    axes, monoid = s["axes"], s["monoid"]
    g = _spread(s.g, axes, x.shape)
    if monoid == "sum":
        return [g]
    if monoid in ("max", "min"):
        equal = x.apply("eq", _spread(s.y, axes, x.shape))
        ties = equal.apply("cast", dtype=x.dtype)
        count = _spread(ties.apply("reduce", monoid="sum", axes=axes), axes, x.shape)
        return [g * ties / count]
    return [g * _others(x, axes)]


def _others(x: Value, axes: Sequence[int]) -> Value:
    """For each element the product of all others along some axes, right also where some are zero."""
    result = None
    for axis in reversed(axes):
        before = _shifted_product(x, axis, reverse=False)
        after = _shifted_product(x, axis, reverse=True)
        here = before * after
        result = here if result is None else result * here
        if axis != axes[0]:
            whole = x.apply("reduce", monoid="prod", axes=(axis,))
            shape = tuple(ONE if i == axis else n for i, n in enumerate(x.shape))
            x = whole.apply("reshape", shape=shape)
    assert result is not None
    return result


def _shifted_product(x: Value, axis: int, reverse: bool) -> Value:
    """The running product without the element itself."""
    before, after = (ZERO, ONE) if reverse else (ONE, ZERO)
    running = x.lengthened(axis, before, after, 1.0).apply("cumulative", monoid="prod", axis=axis, reverse=reverse)
    return running.part(axis, after, x.shape[axis])


def _cumulative_vjp(s: Step) -> Gradients:
    (x,) = s.x
    axis, reverse, monoid = s["axis"], s["reverse"], s["monoid"]

    def back(value: Value) -> Value:
        return value.apply("cumulative", monoid="sum", axis=axis, reverse=not reverse)

    if monoid == "sum":
        return [back(s.g)]
    if monoid == "prod":
        # d y_k / d x_j is y_k / x_j; where x_j is zero only the products up to the next zero count, which is what
        # dividing loses, so those elements are summed by the product that leaves them out.
        zero = x.apply("eq", x.zeros())
        safe = x.where(zero.apply("not"), 1)
        usual = back(s.g * s.y) / safe
        left_out = _product_without_first_zero(x, zero, axis, reverse)
        return [back(s.g * left_out).where(zero.apply("and", _first_zero(zero, axis, reverse)), usual)]
    record = _first_met(x, s.y, axis, reverse)
    return [s.g.zeros().apply("scatter_along", record, s.g, axis=axis)]


def _linear_scan_vjp(s: Step) -> Gradients:
    """From `y[k] = a[k] * y[k - 1] + b[k]`: the gradient of b comes back by `d[k] = g[k] + a[k + 1] * d[k + 1]`."""
    axis, reverse = s["axis"], s["reverse"]
    following = _moved(s.x[0], axis, 1 if reverse else -1)
    back = following.apply("linear_scan", s.g, axis=axis, reverse=not reverse)
    return [back * _moved(s.y, axis, -1 if reverse else 1), back]


def _moved(x: Value, axis: int, by: int) -> Value:
    """The elements one position further along an axis, or back; zero comes in."""
    before, after = (ONE, ZERO) if by > 0 else (ZERO, ONE)
    return x.lengthened(axis, before, after, 0.0).part(axis, after, x.shape[axis])


def _first_zero(zero: Value, axis: int, reverse: bool) -> Value:
    """The first zero met along an axis."""
    count = zero.apply("cast", dtype=np.dtype("int32")).apply("cumulative", monoid="sum", axis=axis, reverse=reverse)
    return count.apply("eq", count.space.constant(1, count.dtype))


def _product_without_first_zero(x: Value, zero: Value, axis: int, reverse: bool) -> Value:
    first = zero.apply("and", _first_zero(zero, axis, reverse))
    product = x.where(first.apply("not"), 1).apply("cumulative", monoid="prod", axis=axis, reverse=reverse)
    count = zero.apply("cast", dtype=np.dtype("int32")).apply("cumulative", monoid="sum", axis=axis, reverse=reverse)
    return product.where(count.apply("eq", count.space.constant(1, count.dtype)))


def _first_met(x: Value, y: Value, axis: int, reverse: bool) -> Value:
    """For each position of a running extremum, where the value it has was first met."""
    n = x.shape[axis]
    before, after = (ZERO, ONE) if reverse else (ONE, ZERO)
    previous = y.lengthened(axis, before, after, 0.0).part(axis, after, n)
    places = x.space.apply("iota", length=n)
    shape = tuple(n if i == axis else ONE for i in range(len(x.shape)))
    places = places.apply("reshape", shape=shape).apply("broadcast", shape=x.shape)
    last = x.space.apply("index", value=n - 1) if reverse else x.space.constant(0, places.dtype)
    new = previous.apply("ne", y)
    edge = places.apply("eq", last.apply("broadcast", shape=x.shape) if reverse else last)
    found = places.where(new.apply("or", edge), x.space.apply("index", value=n) if reverse else -1)
    return found.apply("cumulative", monoid="min" if reverse else "max", axis=axis, reverse=reverse)


OPS: tuple[Op, ...] = (
    Op("reduce", _reduce_type, _reduce, _reduce_signature, vjp=_reduce_vjp),
    Op("argreduce", _argreduce_type, _argreduce, _argreduce_signature, flat, _argreduce_claims),
    Op("cumulative", _cumulative_type, _cumulative, _cumulative_signature, vjp=_cumulative_vjp, heavy=True),
    Op("linear_scan", _linear_scan_type, _linear_scan, _linear_scan_signature, vjp=_linear_scan_vjp, heavy=True),
    Op("argsort", _argsort_type, _argsort, _argsort_signature, vjp=flat, heavy=True),
)
