"""Data-dependent indexing: take and its adjoint scatter_add, take_along and its adjoint scatter_along, and scatter.

`scatter` puts updates in the place of elements (of several for one place the last counts), or keeps the greater or the
lesser of both; `unique` promises that no two updates have one place.

Indices are integers of any dtype and never wrap: reading out of range reads the nearest element, writing out of
range writes nothing. (An axis without elements has no nearest one: reading it gives zeros.) Sums of 16-bit
floats are accumulated in float32 and rounded once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import Condition
from polyrhythm.compiler.ir.ops.checks import check_axis, check_kind, check_same_dtype, same_length, show
from polyrhythm.compiler.ir.ops.record import (
    OPAQUE,
    PARALLEL,
    Attributes,
    Gradients,
    Labels,
    Op,
    Signature,
)
from polyrhythm.compiler.ir.terms import ONE, Term, product
from polyrhythm.compiler.ir.types import Shape, TensorType
from polyrhythm.errors import DTypeError, ShapeError

if TYPE_CHECKING:
    from polyrhythm.compiler.ir.values import Step, Value

Types = tuple[TensorType, ...]


def _check_indices(name: str, indices: TensorType) -> None:
    if dtypes.kind(indices.dtype) != "int":
        raise DTypeError(f"{name}: indices must be integers, got {indices.dtype}", fix="cast the indices to int32")


def _positions(indices: np.ndarray) -> np.ndarray:
    """The indices as int64; those too large for it stay larger than any length."""
    if indices.dtype == np.uint64:
        indices = np.minimum(indices, np.uint64(1 << 62))
    return indices.astype(np.int64)


def _taken_shape(x: TensorType, indices: TensorType, axis: int) -> Shape:
    return (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def _take_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    x, indices = operands
    check_axis("take", attributes["axis"], x)
    _check_indices("take", indices)
    return TensorType(_taken_shape(x, indices, attributes["axis"]), x.dtype)


def _take(x: np.ndarray, indices: np.ndarray, axis: int) -> np.ndarray:
    length = x.shape[axis]
    if length == 0:
        return np.zeros((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)
    return np.asarray(np.take(x, np.clip(_positions(indices), 0, length - 1), axis))


def _take_labels(x: TensorType, indices: TensorType, axis: int) -> tuple[Labels, Labels, Labels]:
    """Labels of x, of the indices and of what is taken: axes of x first, then those of the indices."""
    own = tuple(range(x.rank))
    chosen = tuple(range(x.rank, x.rank + indices.rank))
    return own, chosen, (*own[:axis], *chosen, *own[axis + 1 :])


def _take_signature(operands: Types, attributes: Attributes) -> Signature:
    x, indices = operands
    axis = attributes["axis"]
    own, chosen, taken = _take_labels(x, indices, axis)
    roles = [OPAQUE if i == axis else PARALLEL for i in own] + [PARALLEL for _ in chosen]
    return Signature((own, chosen), taken, tuple(roles))


def _scatter_add_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    check_kind("scatter_add", operands[0], ("complex", "int", "float"))
    return _scattered_type("scatter_add", operands, attributes, given)


def _scatter_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    if attributes["mode"] != "set":
        check_kind("scatter", operands[0], ("bool", "int", "float"))
    return _scattered_type("scatter", operands, attributes, given)


def _scattered_type(name: str, operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    base, indices, updates = operands
    axis = attributes["axis"]
    check_axis(name, axis, base)
    _check_indices(name, indices)
    check_same_dtype(name, base, updates)
    expected = _taken_shape(base, indices, axis)
    if len(expected) != updates.rank or not all(
        same_length(a, b, given) for a, b in zip(expected, updates.shape, strict=True)
    ):
        raise ShapeError(
            f"{name}: updates of shape {show(updates.shape)} for a base of shape {show(base.shape)} and indices "
            f"of shape {show(indices.shape)} along axis {axis}",
            fix=f"give updates of shape {show(expected)}",
        )
    return base


def _scatter_add(base: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int) -> np.ndarray:
    wide = dtypes.accumulator(base.dtype)
    result = np.array(np.moveaxis(base, axis, 0), wide)
    with np.errstate(all="ignore"):
        np.add.at(result, *_written(base, indices, updates.astype(wide), axis))
        return np.moveaxis(result.astype(base.dtype, copy=False), 0, axis)


def _written(base: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """The positions that are written along an axis, and for each its update, which lacks that axis."""
    positions = _positions(indices).ravel()
    # The axes of the indices become one leading axis.
    rows = np.moveaxis(updates, range(axis, axis + indices.ndim), range(indices.ndim))
    rows = rows.reshape((positions.size, *base.shape[:axis], *base.shape[axis + 1 :]))
    inside = (positions >= 0) & (positions < base.shape[axis])
    return positions[inside], rows[inside]


def _scatter(
    base: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int, mode: str, unique: bool
) -> np.ndarray:
    wide = dtypes.accumulator(base.dtype)
    result = np.array(np.moveaxis(base, axis, 0), wide)
    positions, rows = _written(base, indices, updates.astype(wide), axis)
    if mode == "set":
        result[positions] = rows
    else:
        with np.errstate(all="ignore"):
            (np.maximum if mode == "max" else np.minimum).at(result, positions, rows)
    return np.moveaxis(result.astype(base.dtype, copy=False), 0, axis)


def _scatter_add_signature(operands: Types, attributes: Attributes) -> Signature:
    base, indices, _ = operands
    axis = attributes["axis"]
    own, chosen, taken = _take_labels(base, indices, axis)
    # Not a reduction over the updates: each partial result would hold the base once more.
    roles = [OPAQUE if i == axis else PARALLEL for i in own] + [OPAQUE for _ in chosen]
    return Signature((own, chosen, taken), own, tuple(roles))


def _fits(length: Term, other: Term, given: Condition) -> bool:
    return length is ONE or other is ONE or same_length(length, other, given)


def _take_along_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    x, indices = operands
    axis = attributes["axis"]
    check_axis("take_along", axis, x)
    _check_indices("take_along", indices)
    if x.rank != indices.rank or not all(
        _fits(x.shape[i], indices.shape[i], given) for i in range(x.rank) if i != axis
    ):
        raise ShapeError(
            f"take_along: indices of shape {show(indices.shape)} do not fit a tensor of shape {show(x.shape)} along "
            f"axis {axis}",
            fix=f"give indices with {x.rank} axes, all but axis {axis} as long as the tensor's or of length 1",
        )
    return TensorType(_along_shape(x, indices, axis), x.dtype)


def _along_shape(x: TensorType, indices: TensorType, axis: int) -> Shape:
    pairs = zip(x.shape, indices.shape, strict=True)
    return tuple(b if i == axis or a is ONE else a for i, (a, b) in enumerate(pairs))


def _take_along(x: np.ndarray, indices: np.ndarray, axis: int) -> np.ndarray:
    others = [
        1 if i == axis else max(n, m) if 0 not in (n, m) else 0
        for i, (n, m) in enumerate(zip(x.shape, indices.shape, strict=True))
    ]
    length, count = x.shape[axis], indices.shape[axis]
    x = np.broadcast_to(x, (*others[:axis], length, *others[axis + 1 :]))
    positions = np.broadcast_to(_positions(indices), (*others[:axis], count, *others[axis + 1 :]))
    if length == 0:
        return np.zeros(positions.shape, x.dtype)
    return np.take_along_axis(x, np.clip(positions, 0, length - 1), axis)


def _take_along_signature(operands: Types, attributes: Attributes) -> Signature:
    x, indices = operands
    axis, rank = attributes["axis"], x.rank
    result = _along_shape(x, indices, axis)
    # Along the axis each index is read alone, wherever it points: label `rank` is the axis of x.
    own = [rank if i == axis else None if n is ONE and result[i] is not ONE else i for i, n in enumerate(x.shape)]
    chosen = [None if i != axis and n is ONE and result[i] is not ONE else i for i, n in enumerate(indices.shape)]
    return Signature((tuple(own), tuple(chosen)), tuple(range(rank)), (*[PARALLEL] * rank, OPAQUE))


def _scatter_along_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    base, indices, updates = operands
    axis = attributes["axis"]
    check_axis("scatter_along", axis, base)
    _check_indices("scatter_along", indices)
    check_same_dtype("scatter_along", base, updates)
    check_kind("scatter_along", base, ("complex", "int", "float"))
    if not (base.rank == indices.rank == updates.rank) or not all(
        same_length(m, n, given) if i == axis else same_length(b, n, given) and (m is ONE or same_length(m, n, given))
        for i, (b, m, n) in enumerate(zip(base.shape, indices.shape, updates.shape, strict=True))
    ):
        raise ShapeError(
            f"scatter_along: base {show(base.shape)}, indices {show(indices.shape)} and updates {show(updates.shape)} "
            f"do not fit along axis {axis}",
            fix=f"make indices and updates equally long along axis {axis}, base and updates along the others, where "
            "indices may have length 1",
        )
    return base


def _scatter_along(base: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int) -> np.ndarray:
    wide = dtypes.accumulator(base.dtype)
    result = np.array(base, wide)
    positions = np.broadcast_to(_positions(indices), updates.shape)
    inside = (positions >= 0) & (positions < base.shape[axis])
    coordinates: list[np.ndarray] = list(np.indices(updates.shape))
    coordinates[axis] = positions
    with np.errstate(all="ignore"):
        np.add.at(result, tuple(c[inside] for c in coordinates), updates[inside].astype(wide))
        return result.astype(base.dtype, copy=False)


def _scatter_along_signature(operands: Types, attributes: Attributes) -> Signature:
    base, indices, updates = operands
    axis, rank = attributes["axis"], base.rank
    own = tuple(range(rank))
    given = tuple(rank if i == axis else i for i in own)
    chosen = tuple(
        None if i != axis and n is ONE and updates.shape[i] is not ONE else given[i]
        for i, n in enumerate(indices.shape)
    )
    roles = [OPAQUE if i == axis else PARALLEL for i in own]
    return Signature((own, chosen, given), own, (*roles, OPAQUE))


def _clamped(indices: Value, n: Term) -> Value:
    last = indices.space.apply("index", value=n - 1).cast(indices.dtype)
    zero = indices.space.constant(0, indices.dtype)
    return indices.apply("minimum", last).apply("maximum", zero)


def _take_vjp(s: Step) -> Gradients:
    x, indices = s.x
    clamped = _clamped(indices, x.shape[s["axis"]])
    base = x.space.constant(0, x.dtype, x.shape)
    return [base.apply("scatter_add", clamped, s.g, axis=s["axis"]), None]


def _take_along_vjp(s: Step) -> Gradients:
    x, indices = s.x
    axis = s["axis"]
    clamped = _clamped(indices, x.shape[axis])
    shape = tuple(indices.shape[i] if i == axis else n for i, n in enumerate(s.g.shape))
    wide = tuple(n if i == axis else s.g.shape[i] for i, n in enumerate(x.shape))
    base = x.space.constant(0, x.dtype, wide)
    found = base.apply("scatter_along", clamped.apply("broadcast", shape=shape), s.g, axis=axis)
    return [found.summed_to(x.shape), None]


def _in_range(indices: Value, n: Term) -> Value:
    zero = indices.space.constant(0, indices.dtype)
    size = indices.space.apply("index", value=n).cast(indices.dtype)
    return zero.apply("le", indices).apply("and", indices.apply("lt", size))


def _scatter_add_vjp(s: Step) -> Gradients:
    base, indices, updates = s.x
    axis = s["axis"]
    read = s.g.apply("take", indices, axis=axis)
    return [s.g, None, read.where(_spread(_in_range(indices, base.shape[axis]), axis, updates))]


def _spread(value: Value, axis: int, like: Value) -> Value:
    """A value per index, repeated along the other axes of the updates."""
    rank = len(value.shape)
    shape = tuple(value.shape[i - axis] if axis <= i < axis + rank else ONE for i in range(len(like.shape)))
    return value.apply("reshape", shape=shape).apply("broadcast", shape=like.shape)


def _scatter_vjp(s: Step) -> Gradients:
    base, indices, updates = s.x
    axis, mode = s["axis"], s["mode"]
    kept = _spread(_in_range(indices, base.shape[axis]), axis, updates)
    if mode == "set":
        nothing = updates.zeros()
        left = s.g.apply("scatter", indices, nothing, axis=axis, mode="set", unique=s["unique"])
        if not s["unique"]:
            kept = kept.apply("and", _spread(_is_last(indices, base.shape[axis]), axis, updates))
        return [left, None, s.g.apply("take", indices, axis=axis).where(kept)]
    # The elements that are equal to the result share its gradient.
    first = s.y.apply("eq", base)
    second = s.y.apply("take", indices, axis=axis).apply("eq", updates).apply("and", kept)
    count = first.cast(base.dtype).apply("scatter_add", indices, second.cast(base.dtype), axis=axis)
    part = s.g / count.where(count.zeros().apply("lt", count), 1)
    return [part.where(first), None, part.apply("take", indices, axis=axis).where(second)]


def _is_last(indices: Value, length: Term) -> Value:
    """Whether an index is the last of those with one position."""
    size = product(indices.shape)
    order = indices.space.apply("iota", length=size).apply("reshape", shape=indices.shape)
    none = indices.space.constant(-1, order.dtype, (length,))
    last = none.apply("scatter", indices, order, axis=0, mode="max", unique=False)
    return last.apply("take", indices, axis=0).apply("eq", order)


def _scatter_along_vjp(s: Step) -> Gradients:
    base, indices, updates = s.x
    axis = s["axis"]
    read = s.g.apply("take_along", indices, axis=axis)
    kept = _in_range(indices, base.shape[axis])
    return [s.g, None, read.where(kept.apply("broadcast", shape=updates.shape)).summed_to(updates.shape)]


OPS: tuple[Op, ...] = (
    Op("take", _take_type, _take, _take_signature, vjp=_take_vjp),
    Op("take_along", _take_along_type, _take_along, _take_along_signature, vjp=_take_along_vjp),
    Op("scatter", _scatter_type, _scatter, _scatter_add_signature, vjp=_scatter_vjp, heavy=True),
    Op("scatter_add", _scatter_add_type, _scatter_add, _scatter_add_signature, vjp=_scatter_add_vjp, heavy=True),
    Op(
        "scatter_along",
        _scatter_along_type,
        _scatter_along,
        _scatter_along_signature,
        vjp=_scatter_along_vjp,
        heavy=True,
    ),
)
