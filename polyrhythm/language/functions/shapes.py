"""Functions that move elements and change shapes. Lengths may be index expressions wherever the mathematics allows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyrhythm.compiler.ir.dtypes import BOOL, INT32
from polyrhythm.compiler.ir.ops.checks import show
from polyrhythm.compiler.ir.terms import ONE, Term, product
from polyrhythm.errors import AxisError, ShapeError
from polyrhythm.language.functions.quotients import divided
from polyrhythm.language.functions.reductions import flat
from polyrhythm.language.functions.spatial import Axes
from polyrhythm.language.functions.support import (
    Axis,
    Length,
    TensorLike,
    as_integers,
    as_tensor,
    as_terms,
    cast_to,
    one_axis,
    promoted,
    reshaped,
    some_axes,
)
from polyrhythm.language.index import Index, index_of, term_of
from polyrhythm.language.tensor import Tensor, apply

# fmt: off
__all__ = [
    "broadcast_to", "concat", "expand", "flatten", "flip", "pad", "repeat", "reshape", "roll", "split",
    "squeeze", "stack", "swapaxes", "tile", "transpose", "unsqueeze",
]
# fmt: on


def reshape(x: TensorLike, *shape: Length | Sequence[Length]) -> Tensor:
    """The elements, row by row, in another shape; one length may be -1 and is worked out.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (4,), (t,))
    >>> x[0:T].reshape(-1, 2).shape
    (2*T, 2)
    """
    operand = as_tensor(x)
    entries = _lengths(shape)
    unknown = [i for i, n in enumerate(entries) if isinstance(n, (int, np.integer)) and n == -1]
    if not unknown:
        return reshaped(operand, as_terms(entries))
    if len(unknown) > 1:
        raise ShapeError(f"the shape {entries} leaves two lengths open", fix="write -1 for at most one length")
    known = as_terms(n for i, n in enumerate(entries) if i != unknown[0])
    missing = divided(operand.type.shape, known)
    if missing is None:
        raise ShapeError(
            f"a value of shape {show(operand.type.shape)} cannot be reshaped to {entries}: "
            f"{operand.type.size} elements do not divide by {product(known)}",
            fix="write the lengths so that their product is the number of elements",
        )
    return reshaped(operand, (*known[: unknown[0]], missing, *known[unknown[0] :]))


def flatten(x: TensorLike, start: int = 0, end: int = -1) -> Tensor:
    """The axes from `start` to `end`, both included, as one.

    >>> import polyrhythm as pr
    >>> pr.zeros((2, 3, 4)).flatten(1).shape
    (2, 12)
    """
    operand = as_tensor(x)
    if not operand.rank:
        return reshaped(operand, (ONE,))
    first, last = one_axis(operand, start), one_axis(operand, end)
    lengths = operand.type.shape
    return reshaped(operand, (*lengths[:first], product(lengths[first : last + 1]), *lengths[last + 1 :]))


def transpose(x: TensorLike, *axes: int | Sequence[int]) -> Tensor:
    """The axes in another order; without one, reversed.

    >>> import polyrhythm as pr
    >>> pr.zeros((2, 3, 4)).transpose(0, 2, 1).shape, pr.zeros((2, 3)).T.shape
    ((2, 4, 3), (3, 2))
    """
    operand = as_tensor(x)
    flat_axes = axes[0] if len(axes) == 1 and isinstance(axes[0], Sequence) else axes
    given = tuple(flat_axes) if axes else tuple(range(operand.rank))[::-1]
    order = tuple(one_axis(operand, axis) for axis in given)  # type: ignore[arg-type]
    if sorted(order) != list(range(operand.rank)):
        raise AxisError(
            f"the axes {given} are not an order of the {operand.rank} axes of shape {show(operand.type.shape)}",
            fix="name every axis once",
        )
    return operand if order == tuple(range(operand.rank)) else apply("transpose", operand, axes=order)


def swapaxes(x: TensorLike, first: int, second: int) -> Tensor:
    """Two axes exchanged.

    >>> import polyrhythm as pr
    >>> pr.zeros((2, 3, 4)).swapaxes(-1, -2).shape
    (2, 4, 3)
    """
    operand = as_tensor(x)
    order = list(range(operand.rank))
    a, b = one_axis(operand, first), one_axis(operand, second)
    order[a], order[b] = b, a
    return transpose(operand, order)


def squeeze(x: TensorLike, axis: Axis = None) -> Tensor:
    """Without some axes of length 1; without all of them if none is named.

    >>> import polyrhythm as pr
    >>> pr.zeros((1, 3, 1)).squeeze(-1).shape, pr.zeros((1, 3, 1)).squeeze().shape
    ((1, 3), (3,))
    """
    operand = as_tensor(x)
    lengths = operand.type.shape
    axes = [i for i, n in enumerate(lengths) if n is ONE] if axis is None else some_axes(operand, axis)
    for i in axes:
        if lengths[i] is not ONE:
            raise ShapeError(
                f"axis {i} of shape {show(lengths)} has length {lengths[i]}, and only length 1 can be squeezed",
                fix="name an axis of length 1, or reduce the axis first",
            )
    return reshaped(operand, tuple(n for i, n in enumerate(lengths) if i not in axes))


def unsqueeze(x: TensorLike, axis: int | Sequence[int]) -> Tensor:
    """With new axes of length 1, at these places of the result.

    >>> import polyrhythm as pr
    >>> pr.zeros((2, 3)).unsqueeze(-1).shape, pr.zeros((2, 3)).unsqueeze((0, 2)).shape
    ((2, 3, 1), (1, 2, 1, 3))
    """
    operand = as_tensor(x)
    count = 1 if isinstance(axis, (int, np.integer)) else len(axis)
    places = some_axes(operand, axis, operand.rank + count)
    lengths = list(operand.type.shape)
    for place in places:
        lengths.insert(place, ONE)
    return reshaped(operand, tuple(lengths))


def expand(x: TensorLike, *shape: Length | Sequence[Length]) -> Tensor:
    """Repeated along axes of length 1, and along new leading axes, to a shape; -1 keeps the length of an axis.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([1, 2]).expand(2, -1))
    array([[1, 2],
           [1, 2]], dtype=int32)
    """
    operand = as_tensor(x)
    entries = _lengths(shape)
    added = len(entries) - operand.rank
    lengths = [
        index_of(operand.type.shape[i - added])
        if isinstance(n, (int, np.integer)) and n == -1 and i >= added >= 0
        else n
        for i, n in enumerate(entries)
    ]
    return broadcast_to(operand, lengths)


def broadcast_to(x: TensorLike, shape: Length | Sequence[Length]) -> Tensor:
    """Repeated along axes of length 1, and along new leading axes, to a shape.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.broadcast_to(1.5, (2,)))
    array([1.5, 1.5], dtype=float32)
    """
    operand, lengths = as_tensor(x), as_terms(shape)
    return operand if operand.type.shape == lengths else apply("broadcast", operand, shape=lengths, weak=operand.weak)


def concat(tensors: Sequence[TensorLike], axis: int = 0) -> Tensor:
    """Tensors one after the other along an axis.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.concat([pr.constant([1, 2]), pr.constant([3])]))
    array([1, 2, 3], dtype=int32)
    """
    operands = _several("concat", tensors)
    if not operands[0].rank:
        raise ShapeError("scalars have no axis to be joined along", fix="use pr.stack")
    place = one_axis(operands[0], axis)
    return operands[0] if len(operands) == 1 else apply("concat", *operands, axis=place)


def stack(tensors: Sequence[TensorLike], axis: int = 0) -> Tensor:
    """Tensors of one shape side by side along a new axis.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.stack([pr.constant([1, 2]), pr.constant([3, 4])], axis=1))
    array([[1, 3],
           [2, 4]], dtype=int32)
    """
    operands = _several("stack", tensors)
    if len({operand.rank for operand in operands}) > 1:
        shapes = ", ".join(show(operand.type.shape) for operand in operands)
        raise ShapeError(f"stack needs tensors of one shape, not {shapes}", fix="broadcast them to one shape first")
    return concat([unsqueeze(operand, axis) for operand in operands], axis)


def split(x: TensorLike, sections: int | Sequence[Length], axis: int = 0) -> tuple[Tensor, ...]:
    """Parts along an axis: so many of equal length, or cut before each of the given positions, as in NumPy.

    >>> import polyrhythm as pr
    >>> [part.shape for part in pr.split(pr.zeros((6, 2)), 3)]
    [(2, 2), (2, 2), (2, 2)]
    >>> [part.shape for part in pr.split(pr.zeros((6,)), [1, 4])]
    [(1,), (3,), (2,)]
    """
    operand = as_tensor(x)
    place = one_axis(operand, axis)
    length = operand.type.shape[place]
    if isinstance(sections, (int, np.integer)):
        part = divided((length,), (Term(int(sections)),)) if sections > 0 else None
        if part is None:
            raise ShapeError(
                f"an axis of length {length} cannot be cut into {sections} equal parts",
                fix="give the positions to cut at, as in pr.split(x, [2, 5])",
            )
        cuts: list[Length | None] = [index_of(part * k) for k in range(sections)]
    else:
        cuts = [0, *sections]
    before = (slice(None),) * place
    return tuple(Axes(operand)[*before, start:stop] for start, stop in zip(cuts, [*cuts[1:], None], strict=True))


def pad(x: TensorLike, widths: Length | Sequence[Length] | Sequence[Sequence[Length]], value: float = 0) -> Tensor:
    """A constant added around: one width for all sides, `(before, after)` for all axes, or one pair per axis.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.pad(pr.constant([1, 2]), (1, 2)))
    array([0, 1, 2, 0, 0], dtype=int32)
    """
    operand = as_tensor(x)
    pairs = _pairs(operand, widths)
    before, after = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
    fill = bool(value) if operand.dtype == BOOL and value in (0, 1) else value
    return apply("pad", operand, before=before, after=after, value=fill)


def flip(x: TensorLike, axis: Axis = None) -> Tensor:
    """Back to front along some axes, or along all.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.flip(pr.constant([1, 2, 3])))
    array([3, 2, 1], dtype=int32)
    """
    operand = as_tensor(x)
    axes = some_axes(operand, axis)
    return Axes(operand)[tuple(slice(None, None, -1 if i in axes else 1) for i in range(operand.rank))]


def roll(x: TensorLike, shift: TensorLike | Sequence[int], axis: Axis = None) -> Tensor:
    """Moved along an axis, or several; what leaves at the end comes back at the start. Without an axis, flattened.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.roll(pr.constant([1, 2, 3]), 1))
    array([3, 1, 2], dtype=int32)
    >>> pr.evaluate(pr.roll(pr.constant([[1, 2], [3, 4]]), (1, 1), axis=(0, 1)))
    array([[4, 3],
           [2, 1]], dtype=int32)
    """
    operand = as_tensor(x)
    if isinstance(axis, Sequence):
        shifts = tuple(shift) if isinstance(shift, Sequence) else (shift,) * len(axis)
        if len(shifts) != len(axis):
            raise ShapeError(f"roll by {len(shifts)} shifts along {len(axis)} axes", fix="give one shift for each axis")
        for distance, along in zip(shifts, axis, strict=True):
            operand = roll(operand, distance, along)
        return operand
    if isinstance(shift, Sequence):
        raise ShapeError("roll by several shifts along one axis", fix="name an axis for each shift, axis=(0, 1)")
    if axis is None:
        return reshaped(roll(flat(operand), shift, 0), operand.type.shape)
    place = one_axis(operand, axis)
    length = operand.type.shape[place]
    if length.is_constant and isinstance(shift, int):
        if shift % max(length.constant, 1) == 0:
            return operand
        start, stop = split(operand, [length.constant - shift % length.constant], place)
        return concat([stop, start], place)
    distance = as_integers(shift, "the shift of roll", INT32)
    positions = (apply("iota", length=length) - distance) % cast_to(index_of(length), INT32)
    return apply("take", operand, positions, axis=place)


def repeat(x: TensorLike, times: Length, axis: int) -> Tensor:
    """Each element several times in a row along an axis.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.repeat(pr.constant([1, 2]), 2, axis=0))
    array([1, 1, 2, 2], dtype=int32)
    """
    operand = as_tensor(x)
    place = one_axis(operand, axis)
    return _repeated(operand, place, place + 1, times)


def tile(x: TensorLike, times: Length | Sequence[Length]) -> Tensor:
    """The whole value several times along its axes, as in NumPy.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.tile(pr.constant([1, 2]), 2))
    array([1, 2, 1, 2], dtype=int32)
    """
    operand = as_tensor(x)
    given = [index_of(term) for term in as_terms(times)]
    counts: list[Length] = [*[1] * (operand.rank - len(given)), *given]
    result = unsqueeze(operand, tuple(range(len(counts) - operand.rank))) if len(counts) > operand.rank else operand
    for axis, count in enumerate(counts):
        result = _repeated(result, axis, axis, count)
    return result


def _repeated(x: Tensor, axis: int, place: int, times: Length) -> Tensor:
    """x with a new axis at `place` of length `times`, merged into `axis`."""
    if term_of(times) is ONE:
        return x
    lengths = x.type.shape
    wide = apply("broadcast", unsqueeze(x, place), shape=(*lengths[:place], *as_terms(times), *lengths[place:]))
    return reshaped(wide, (*lengths[:axis], lengths[axis] * term_of(times), *lengths[axis + 1 :]))


def _lengths(entries: tuple[Length | Sequence[Length], ...]) -> tuple[Length, ...]:
    """`f(2, 3)` and `f((2, 3))` mean the same."""
    if len(entries) == 1 and isinstance(entries[0], Sequence):
        return tuple(entries[0])
    return tuple(entry for entry in entries if not isinstance(entry, Sequence))


def _several(name: str, tensors: Sequence[TensorLike]) -> tuple[Tensor, ...]:
    if isinstance(tensors, (Tensor, np.ndarray)) or not len(tensors):
        raise ShapeError(f"pr.{name} takes a list of at least one tensor", fix=f"write pr.{name}([x, y])")
    return promoted(*tensors)[0]


def _pairs(x: Tensor, widths: Length | Sequence[Length] | Sequence[Sequence[Length]]) -> list[tuple[Term, Term]]:
    whole = (int, np.integer, Index)
    if isinstance(widths, whole):
        pairs = [(widths, widths)] * x.rank
    elif len(widths) == 2 and all(isinstance(n, whole) for n in widths):
        pairs = [tuple(widths)] * x.rank  # type: ignore[list-item]
    else:
        pairs = [tuple(pair) for pair in widths]  # type: ignore[arg-type, misc]
    if len(pairs) != x.rank or any(len(pair) != 2 for pair in pairs):
        raise ShapeError(
            f"the widths {widths} do not give a (before, after) pair for each axis of shape {show(x.type.shape)}",
            fix="write one width, one pair, or one pair per axis, as in pr.pad(x, [(0, 0), (1, 1)])",
        )
    return [(term_of(before), term_of(after)) for before, after in pairs]
