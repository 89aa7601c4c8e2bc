"""Operations that move elements and compute none: copy, reshape, transpose, broadcast, concat, pad, slice.

Shapes, paddings, starts and lengths are terms. Whether a slice is in range can depend on the values of bounds;
the type rule refuses what is never in range, `slice_in_range` is the condition to be proved or required, and the
NumPy function refuses at run time: a slice is never cut short silently.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from polyrhythm.compiler.ir import dtypes, sets
from polyrhythm.compiler.ir.conditions import FALSE, TRUE, Condition, conjunction, disjunction, ge, le, lt, negation
from polyrhythm.compiler.ir.ops.checks import (
    broadcast_labels,
    check_axis,
    check_rank,
    check_same_dtype,
    check_same_length,
    same_length,
    show,
    terms,
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
    through,
)
from polyrhythm.compiler.ir.terms import ONE, ZERO, Term, product
from polyrhythm.compiler.ir.types import Shape, TensorType
from polyrhythm.errors import AxisError, DTypeError, OutOfRangeError, ShapeError

if TYPE_CHECKING:
    from polyrhythm.compiler.ir.values import Step, Value

Types = tuple[TensorType, ...]


def check_lengths(name: str, shape: Shape) -> None:
    """Lengths that are plain numbers must not be negative."""
    if any(length.is_constant and length.constant < 0 for length in shape):
        raise ShapeError(f"{name}: shape {show(shape)} has a negative length", fix="give lengths of 0 or more")


def _copy_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    return operands[0]


def _copy_signature(operands: Types, attributes: Attributes) -> Signature:
    axes = tuple(range(operands[0].rank))
    return Signature((axes,), axes, (PARALLEL,) * len(axes))


def _reshape_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    (x,) = operands
    shape = terms(attributes["shape"])
    check_lengths("reshape", shape)
    # Axis by axis first: products of symbols are beyond the integer sets.
    alike = len(shape) == x.rank and all(same_length(a, b, given) for a, b in zip(x.shape, shape, strict=True))
    if not alike and not same_length(x.size, product(shape), given):
        raise ShapeError(
            f"reshape: shape {show(x.shape)} has {x.size} elements, shape {show(shape)} has {product(shape)}",
            fix="give a shape with as many elements",
        )
    return TensorType(shape, x.dtype)


def _reshape(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return x.reshape(shape)


def _reshape_signature(operands: Types, attributes: Attributes) -> Signature:
    """Axes between which the elements before them are as many in both shapes keep their identity.

    Axes of length one hold no element apart from the others and carry no label.
    """
    old, new = operands[0].shape, terms(attributes["shape"])
    before = [axis for axis, length in enumerate(old) if length is not ONE]
    after = [axis for axis, length in enumerate(new) if length is not ONE]
    kept = _kept_axes([old[axis] for axis in before], [new[axis] for axis in after])
    partner = {before[i]: after[j] for i, j in kept}
    labels_new: dict[int, int] = {}
    labels_old: dict[int, int] = {}
    roles: list[Role] = []
    for axis in before:
        labels_old[axis] = len(roles)
        if axis in partner:
            labels_new[partner[axis]] = len(roles)
        roles.append(PARALLEL if axis in partner else OPAQUE)
    for axis in after:
        if axis not in labels_new:
            labels_new[axis] = len(roles)
            roles.append(OPAQUE)
    operand = tuple(labels_old.get(axis) for axis in range(len(old)))
    return Signature((operand,), tuple(labels_new.get(axis) for axis in range(len(new))), tuple(roles))


def _kept_axes(old: list[Term], new: list[Term]) -> list[tuple[int, int]]:
    """Pairs of axes of two shapes of one size that hold the same elements in the same places."""
    if ZERO in old or ZERO in new:
        # All products are alike, but a slice of nothing is nothing: the common prefix is right.
        prefix = next(
            (i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a is not b), min(len(old), len(new))
        )
        return [(i, i) for i in range(prefix)]
    place = {product(new[:j]): j for j in range(len(new))}
    pairs = [(i, place[product(old[:i])]) for i in range(len(old)) if product(old[:i]) in place]
    return [(i, j) for i, j in pairs if old[i] is new[j]]


def _transpose_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    (x,) = operands
    axes = attributes["axes"]
    if sorted(axes) != list(range(x.rank)):
        raise AxisError(
            f"transpose: {axes} is not an order of the axes of a tensor of shape {show(x.shape)}",
            fix=f"name each of the axes {tuple(range(x.rank))} once",
        )
    return TensorType(tuple(x.shape[axis] for axis in axes), x.dtype)


def _transpose_signature(operands: Types, attributes: Attributes) -> Signature:
    rank = operands[0].rank
    return Signature((tuple(range(rank)),), tuple(attributes["axes"]), (PARALLEL,) * rank)


def _broadcast_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    (x,) = operands
    shape = terms(attributes["shape"])
    check_lengths("broadcast", shape)
    shift = len(shape) - x.rank
    if shift < 0 or any(
        length is not ONE and not same_length(length, shape[shift + axis], given) for axis, length in enumerate(x.shape)
    ):
        raise ShapeError(
            f"broadcast: shape {show(x.shape)} does not broadcast to {show(shape)}",
            fix="only axes of length 1 and new leading axes can be repeated",
        )
    return TensorType(shape, x.dtype)


def _broadcast_signature(operands: Types, attributes: Attributes) -> Signature:
    shape = terms(attributes["shape"])
    labels = broadcast_labels(operands[0].shape, shape)
    return Signature((labels,), tuple(range(len(shape))), (PARALLEL,) * len(shape))


def _choose_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    check_same_dtype("choose", *operands)
    kinds = [_broadcast_type((operand,), attributes, given) for operand in operands]
    return kinds[0]


def _choose(a: np.ndarray, b: np.ndarray, condition: bool, shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(a if condition else b, shape)


def _choose_signature(operands: Types, attributes: Attributes) -> Signature:
    shape = terms(attributes["shape"])
    labels = tuple(broadcast_labels(operand.shape, shape) for operand in operands)
    return Signature(labels, tuple(range(len(shape))), (PARALLEL,) * len(shape))


def _concat_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    axis, first = attributes["axis"], operands[0]
    check_axis("concat", axis, first)
    check_same_dtype("concat", *operands)
    for other in operands[1:]:
        if other.rank != first.rank:
            raise ShapeError(
                f"concat: shapes {show(first.shape)} and {show(other.shape)} have different numbers of axes",
                fix="reshape one of them, or stack along a new axis",
            )
        for i in range(first.rank):
            if i != axis:
                check_same_length("concat", first, i, other, i, given)
    length = sum((operand.shape[axis] for operand in operands), ZERO)
    return TensorType((*first.shape[:axis], length, *first.shape[axis + 1 :]), first.dtype)


def _concat(*arrays: np.ndarray, axis: int) -> np.ndarray:
    return np.concatenate(arrays, axis)


def _concat_signature(operands: Types, attributes: Attributes) -> Signature:
    # The joined axis has a label of its own in each operand and in the result: the lengths differ.
    axis, rank = attributes["axis"], operands[0].rank
    labels = [tuple(rank + k if i == axis else i for i in range(rank)) for k in range(len(operands))]
    roles = [OPAQUE if i == axis else PARALLEL for i in range(rank)] + [OPAQUE] * len(operands)
    return Signature(tuple(labels), tuple(range(rank)), tuple(roles))


def _pad_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    (x,) = operands
    before, after = terms(attributes["before"]), terms(attributes["after"])
    for what, amounts in (("before", before), ("after", after)):
        check_rank("pad", x, len(amounts), f"`{what}` is {show(amounts)}")
        if any(amount.is_constant and amount.constant < 0 for amount in amounts):
            raise ShapeError(
                f"pad: `{what}` is {show(amounts)}, with a negative amount", fix="slice to cut off elements"
            )
    value = attributes["value"]
    if not _fits(value, x.dtype):
        raise DTypeError(f"pad: {value!r} is not a value of dtype {x.dtype}", fix="cast the tensor first")
    shape = tuple(a + length + b for a, length, b in zip(before, x.shape, after, strict=True))
    return TensorType(shape, x.dtype)


def _fits(value: bool | int | float, dtype: np.dtype) -> bool:
    """Whether a Python scalar can stand for an element: 0 and 1 are truth values too, numbers need their kind."""
    if dtype == dtypes.BOOL:
        return value in (0, 1)
    kinds: tuple[dtypes.Kind, ...] = ("bool", "int", "float", "complex")
    if kinds.index(dtypes.kind(dtype)) < kinds.index(dtypes.kind(np.asarray(value).dtype)):
        return False
    return dtypes.kind(dtype) != "int" or np.iinfo(dtype).min <= value <= np.iinfo(dtype).max


def _pad(x: np.ndarray, before: tuple[int, ...], after: tuple[int, ...], value: bool | int | float) -> np.ndarray:
    shape = tuple(a + length + b for a, length, b in zip(before, x.shape, after, strict=True))
    result = np.full(shape, np.array(value).astype(x.dtype), x.dtype)
    result[tuple(slice(a, a + length) for a, length in zip(before, x.shape, strict=True))] = x
    return result


def _pad_signature(operands: Types, attributes: Attributes) -> Signature:
    amounts = zip(terms(attributes["before"]), terms(attributes["after"]), strict=True)
    return _partly_kept([a is ZERO and b is ZERO for a, b in amounts])


def slice_in_range(x: TensorType, attributes: Attributes) -> Condition:
    """When a slice lies inside its operand: its first and its last element do, or it is empty.

    >>> from polyrhythm.compiler.ir.terms import Symbol
    >>> T = Term.of(Symbol("T", "bound"))
    >>> x = TensorType((T,), np.dtype("float32"))
    >>> str(slice_in_range(x, {"starts": (T - 1,), "lengths": (ONE,), "steps": (1,)}))
    'T >= 1'
    """
    nonnegative = (ge(length, ZERO) for length in terms(attributes["lengths"]))
    return conjunction(*nonnegative, *(claim.condition for claim in _slice_claims((x,), attributes)))


def _slice_claims(operands: Types, attributes: Attributes) -> Iterator[Claim]:
    starts, lengths = terms(attributes["starts"]), terms(attributes["lengths"])
    for n, start, length, step in zip(operands[0].shape, starts, lengths, attributes["steps"], strict=True):
        last = start + (length - 1) * step
        low, high = (start, last) if step > 0 else (last, start)
        what = f"positions {start} to {last} may lie outside an axis of length {n}"
        fix = "keep the position inside the axis, for example with pr.min and pr.max"
        inside = disjunction(le(length, ZERO), conjunction(ge(low, ZERO), lt(high, n)))
        yield Claim(inside, OutOfRangeError, what, fix)


def _slice_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    (x,) = operands
    starts, lengths, steps = terms(attributes["starts"]), terms(attributes["lengths"]), attributes["steps"]
    for what, entries in (("starts", starts), ("lengths", lengths), ("steps", steps)):
        check_rank("slice", x, len(entries), f"`{what}` is {show(entries)}")
    if 0 in steps:
        raise ShapeError(f"slice: steps {steps} contain 0", fix="step by a number other than 0")
    if _never(slice_in_range(x, attributes), given):
        lasts = [a + (n - 1) * step for a, n, step in zip(starts, lengths, steps, strict=True)]
        raise OutOfRangeError(
            f"positions {show(starts)} to {show(lasts)} do not lie inside shape {show(x.shape)}",
            fix="keep positions inside the axis; index expressions do not count from the end",
        )
    return TensorType(lengths, x.dtype)


def _never(condition: Condition, given: Condition) -> bool:
    """Whether a condition fails wherever `given` holds; where that is nowhere, nothing has failed."""
    if condition is TRUE:
        return False
    return sets.proves(given, negation(condition)) and not sets.proves(given, FALSE)


def _slice(x: np.ndarray, starts: tuple[int, ...], lengths: tuple[int, ...], steps: tuple[int, ...]) -> np.ndarray:
    index = []
    for start, length, step, whole in zip(starts, lengths, steps, x.shape, strict=True):
        stop = start + length * step
        if length < 0 or (length > 0 and not (0 <= start < whole and 0 <= stop - step < whole)):
            raise ValueError(
                f"slice of {length} elements from {start} in steps of {step} leaves an axis of length {whole}"
            )
        # An empty slice may start anywhere; a negative stop would count from the end.
        index.append(slice(start, None if stop < 0 else stop, step) if length else slice(0, 0))
    return x[tuple(index)]


def _slice_signature(operands: Types, attributes: Attributes) -> Signature:
    starts, lengths = terms(attributes["starts"]), terms(attributes["lengths"])
    whole = zip(starts, lengths, attributes["steps"], operands[0].shape, strict=True)
    return _partly_kept([start is ZERO and length is n and step == 1 for start, length, step, n in whole])


def _partly_kept(kept: list[bool]) -> Signature:
    """The signature of an operation that leaves some axes as they are and changes others along themselves."""
    rank = len(kept)
    result = tuple(axis if keep else rank + axis for axis, keep in enumerate(kept))
    used = [*(PARALLEL if keep else OPAQUE for keep in kept), *([OPAQUE] * rank)]
    return Signature((tuple(range(rank)),), result, tuple(used))


def _reshape_vjp(s: Step) -> Gradients:
    return [s.g.apply("reshape", shape=s.x[0].shape)]


def _transpose_vjp(s: Step) -> Gradients:
    back = tuple(int(i) for i in np.argsort(s["axes"]))
    return [s.g.apply("transpose", axes=back)]


def _broadcast_vjp(s: Step) -> Gradients:
    return [s.g.summed_to(s.x[0].shape)]


def _concat_vjp(s: Step) -> Gradients:
    axis, start = s["axis"], ZERO
    results: list[Value | None] = []
    for x, wanted in zip(s.x, s.wanted, strict=True):
        starts = tuple(start if i == axis else ZERO for i in range(len(x.shape)))
        cut = s.g.apply("slice", starts=starts, lengths=x.shape, steps=(1,) * len(x.shape)) if wanted else None
        results.append(cut)
        start = start + x.shape[axis]
    return results


def _pad_vjp(s: Step) -> Gradients:
    x = s.x[0]
    return [s.g.apply("slice", starts=s["before"], lengths=x.shape, steps=(1,) * len(x.shape))]


def _slice_vjp(s: Step) -> Gradients:
    """Put the elements back where they came from: padding for plain slices, scattering for strided ones."""
    x, value = s.x[0], s.g
    for axis, step in enumerate(s["steps"]):
        start, length = s["starts"][axis], s["lengths"][axis]
        if step == 1:
            if start is ZERO and length is x.shape[axis]:
                continue
            value = value.lengthened(axis, start, x.shape[axis] - start - length, 0.0)
        else:
            value = value.apart(axis, start, step, x.shape[axis])
    return [value]


OPS: tuple[Op, ...] = (
    Op("copy", _copy_type, np.asarray, _copy_signature, vjp=through, repeats=True, view=True, identity=True),
    Op("reshape", _reshape_type, _reshape, _reshape_signature, vjp=_reshape_vjp, view=True, linear=True),
    Op("transpose", _transpose_type, np.transpose, _transpose_signature, vjp=_transpose_vjp, view=True, linear=True),
    Op(
        "broadcast",
        _broadcast_type,
        np.broadcast_to,
        _broadcast_signature,
        vjp=_broadcast_vjp,
        repeats=True,
        view=True,
        identity=True,
        linear=True,
    ),
    Op("choose", _choose_type, _choose, _choose_signature, chooses=True),
    Op("concat", _concat_type, _concat, _concat_signature, vjp=_concat_vjp),
    Op("pad", _pad_type, _pad, _pad_signature, vjp=_pad_vjp),
    Op("slice", _slice_type, _slice, _slice_signature, _slice_vjp, _slice_claims, view=True),
)
