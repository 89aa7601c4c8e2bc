"""Sliding windows over any number of trailing axes: convolution (cross-correlation) and windowed reductions.

A window of `w` elements, `dilation` apart, moves by `stride` over an axis that is first lengthened by `padding`,
a pair (low, high) per axis; the result has one element per full window, none if no window fits. Convolution pads
with zeros, a reduction with its identity. The NumPy functions walk over the positions inside the window: one
strided slice of the whole input each, which is short, and right for every stride, dilation and empty axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from polyrhythm.compiler.ir import dtypes, sets
from polyrhythm.compiler.ir.conditions import Condition
from polyrhythm.compiler.ir.ops.checks import check_kind, check_same_dtype, is_positive, same_length, show, with_dims
from polyrhythm.compiler.ir.ops.record import (
    OPAQUE,
    PARALLEL,
    Attributes,
    Gradients,
    Op,
    Role,
    Signature,
)
from polyrhythm.compiler.ir.ops.reductions import COMBINE, check_monoid
from polyrhythm.compiler.ir.terms import ZERO, Term, maximum
from polyrhythm.compiler.ir.types import Shape, TensorType
from polyrhythm.errors import ShapeError

if TYPE_CHECKING:
    from polyrhythm.compiler.ir.values import Step, Value

Types = tuple[TensorType, ...]
Ints = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]


def window_count(length: Term, window: Term, stride: int, dilation: int, padding: Term, given: Condition) -> Term:
    """How many windows fit into an axis lengthened by `padding` in all.

    >>> from polyrhythm.compiler.ir.conditions import TRUE
    >>> window_count(Term(7), Term(3), 2, 1, Term(0), TRUE)
    Term(3)
    """
    room = length + padding - (window - 1) * dilation - 1
    count = maximum(ZERO, room // stride + 1)
    return sets.simplified_term(count, with_dims(given, count))


def _check_windows(name: str, axes: int, attributes: Attributes) -> None:
    for what in ("window", "stride", "dilation", "padding"):
        if what in attributes and len(attributes[what]) != axes:
            raise ShapeError(
                f"{name}: `{what}` has {len(attributes[what])} entries for {axes} window axes",
                fix=f"give one entry of `{what}` per window axis",
            )
    for what in ("stride", "dilation"):
        if any(step < 1 for step in attributes.get(what, ())):
            raise ShapeError(f"{name}: `{what}` is {attributes[what]}", fix=f"give a `{what}` of 1 or more")
    amounts = [Term.of(amount) for pair in attributes["padding"] for amount in pair]
    if any(amount.is_constant and amount.constant < 0 for amount in amounts):
        raise ShapeError(f"{name}: `padding` has a negative amount", fix="slice to cut off elements")


def _check_nonempty(name: str, window: tuple[Term, ...], given: Condition) -> None:
    if not all(is_positive(length, given) for length in window):
        raise ShapeError(f"{name}: the window {show(window)} may be empty", fix="give a window of 1 or more elements")


def _padded(x: np.ndarray, padding: Pairs, value: np.ndarray) -> np.ndarray:
    """The array with its last axes lengthened."""
    pairs = ((0, 0),) * (x.ndim - len(padding)) + padding
    result = np.full([low + n + high for n, (low, high) in zip(x.shape, pairs, strict=True)], value, x.dtype)
    result[tuple(slice(low, low + n) for n, (low, _) in zip(x.shape, pairs, strict=True))] = x
    return result


def window_counts(lengths: Ints, window: Ints, stride: Ints, dilation: Ints) -> Ints:
    sizes = zip(lengths, window, stride, dilation, strict=True)
    return tuple(max(0, (n - (w - 1) * d - 1) // s + 1) for n, w, s, d in sizes)


def _positions(
    x: np.ndarray, window: Ints, stride: Ints, dilation: Ints, counts: Ints
) -> Iterator[tuple[Ints, np.ndarray]]:
    """Each position inside the window, with the elements of x that all the windows have there."""
    if 0 in counts:
        return
    for position in product(*map(range, window)):
        steps = zip(position, dilation, stride, counts, strict=True)
        index: tuple[Any, ...] = (..., *(slice(k * d, k * d + (n - 1) * s + 1, s) for k, d, s, n in steps))
        yield position, x[index]


def _conv_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    x, w = operands
    groups = attributes["groups"]
    if x.rank < 2 or x.rank != w.rank:
        raise ShapeError(
            f"conv: shapes {show(x.shape)} and {show(w.shape)} are not (N, C, *spatial) and (O, C/groups, *kernel)",
            fix="give both tensors the same number of axes, at least two",
        )
    dtype = check_same_dtype("conv", x, w)
    check_kind("conv", x, ("int", "float"), fix="cast truth values to a number first")
    _check_windows("conv", x.rank - 2, attributes)
    _check_nonempty("conv", w.shape[2:], given)
    if groups < 1 or not same_length(x.shape[1], w.shape[1] * groups, given):
        raise ShapeError(
            f"conv: an input with {x.shape[1]} channels does not fit weights {show(w.shape)} with {groups} groups",
            fix="give weights of shape (O, C/groups, *kernel)",
        )
    if not same_length(w.shape[0] % groups, ZERO, given):
        raise ShapeError(
            f"conv: {w.shape[0]} output channels cannot be split into {groups} equal groups",
            fix="make the number of output channels a multiple of `groups`",
        )
    axes = zip(
        x.shape[2:],
        w.shape[2:],
        attributes["stride"],
        attributes["dilation"],
        attributes["padding"],
        strict=True,
    )
    spatial = [window_count(n, k, s, d, Term.of(low) + high, given) for n, k, s, d, (low, high) in axes]
    return TensorType((x.shape[0], w.shape[0], *spatial), dtype)


def _conv(x: np.ndarray, w: np.ndarray, stride: Ints, padding: Pairs, dilation: Ints, groups: int) -> np.ndarray:
    wide = dtypes.accumulator(x.dtype)
    kernel = w.shape[2:]
    padded = _padded(x.astype(wide, copy=False), padding, np.zeros((), wide))
    counts = window_counts(padded.shape[2:], kernel, stride, dilation)
    batch, outputs, inputs = x.shape[0], w.shape[0], w.shape[1]
    padded = padded.reshape((batch, groups, inputs, *padded.shape[2:]))
    weights = w.astype(wide, copy=False).reshape((groups, outputs // groups, inputs, *kernel))
    total = np.zeros((batch, groups, outputs // groups, *counts), wide)
    with np.errstate(all="ignore"):
        for position, elements in _positions(padded, kernel, stride, dilation, counts):
            index: tuple[Any, ...] = (..., *position)
            total += np.einsum("ngc...,goc->ngo...", elements, weights[index], optimize=True)
        return total.reshape((batch, outputs, *counts)).astype(x.dtype, copy=False)


def _conv_signature(operands: Types, attributes: Attributes) -> Signature:
    """Labels: batch, output channels, input channels of x and of w (one if there are no groups), then the axes."""
    spatial = operands[0].rank - 2
    single = attributes["groups"] == 1
    channels = Role("reduce", "sum") if single else OPAQUE
    roles = (PARALLEL, PARALLEL if single else OPAQUE, channels, OPAQUE, *[OPAQUE] * (3 * spatial))
    of_x, of_w, of_result = (tuple(range(4 + k * spatial, 4 + (k + 1) * spatial)) for k in range(3))
    return Signature(((0, 2, *of_x), (1, 2 if single else 3, *of_w)), (0, 1, *of_result), roles)


def _reduce_window_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    (x,) = operands
    name = f"reduce_window {attributes['monoid']}"
    window = tuple(Term.of(length) for length in attributes["window"])
    check_monoid(name, attributes["monoid"], x)
    if len(window) > x.rank:
        raise ShapeError(
            f"{name}: a window {show(window)} over a tensor of shape {show(x.shape)}, which has too few axes",
            fix="give a window with at most as many entries as the tensor has axes",
        )
    _check_windows(name, len(window), attributes)
    _check_nonempty(name, window, given)
    kept = x.rank - len(window)
    axes = zip(x.shape[kept:], window, attributes["stride"], attributes["padding"], strict=True)
    lengths = [window_count(n, w, s, 1, Term.of(low) + high, given) for n, w, s, (low, high) in axes]
    return TensorType((*x.shape[:kept], *lengths), x.dtype)


def _reduce_window(x: np.ndarray, monoid: str, window: Ints, stride: Ints, padding: Pairs) -> np.ndarray:
    wide = dtypes.accumulator(x.dtype)
    start = dtypes.identity(monoid, wide)
    padded = _padded(x.astype(wide, copy=False), padding, start)
    kept = x.ndim - len(window)
    ones = (1,) * len(window)
    counts = window_counts(padded.shape[kept:], window, stride, ones)
    total = np.full((*x.shape[:kept], *counts), start, wide)
    with np.errstate(all="ignore"):
        for _, elements in _positions(padded, window, stride, ones, counts):
            COMBINE[monoid](total, elements, out=total)
        return total.astype(x.dtype, copy=False)


def _reduce_window_signature(operands: Types, attributes: Attributes) -> Signature:
    rank, windows = operands[0].rank, len(attributes["window"])
    kept = tuple(range(rank - windows))
    before = tuple(range(rank - windows, rank))
    after = tuple(range(rank, rank + windows))
    roles = (*[PARALLEL] * len(kept), *[OPAQUE] * (2 * windows))
    return Signature(((*kept, *before),), (*kept, *after), roles)


def _conv_vjp(s: Step) -> Gradients:
    x, w = s.x
    groups, lead = s["groups"], 2
    spatial = len(x.shape) - lead
    kernel = [int(n) for n in w.shape[2:]]
    padded, low = _with_padding(x, s["padding"], 0.0)
    n, outputs = s.g.shape[0], s.g.shape[2:]
    per_out, per_in = w.shape[0] // groups, w.shape[1]
    g = s.g.apply("reshape", shape=(n, Term(groups), per_out, *outputs))
    letters = "uvwxyz"[:spatial]
    total: Value | None = None
    parts: list[Value] = []
    for k in product(*map(range, kernel)):
        starts = tuple(Term(i * d) for i, d in zip(k, s["dilation"], strict=True))
        if s.wanted[0]:
            at = _kernel_at(w, k, groups, per_out, per_in)
            back = g.apply("einsum", at, spec=f"ngo{letters},goi->ngi{letters}")
            back = back.apply("reshape", shape=(n, x.shape[1], *outputs))
            back = _put_back(back, padded.shape, starts, s["stride"], lead)
            total = back if total is None else total + back
        if s.wanted[1]:
            cut = _inputs_at(padded, starts, outputs, s["stride"], lead)
            cut = cut.apply("reshape", shape=(n, Term(groups), per_in, *outputs))
            part = g.apply("einsum", cut, spec=f"ngo{letters},ngi{letters}->goi")
            parts.append(part.apply("reshape", shape=(w.shape[0], per_in, Term(1))))
    of_x = _without_padding(total, x.shape, low) if total is not None else None
    of_w = None
    if parts:
        joined = parts[0] if len(parts) == 1 else parts[0].apply("concat", *parts[1:], axis=2)
        of_w = joined.apply("reshape", shape=w.shape)
    return [of_x, of_w]


def _kernel_at(w: Value, k: Sequence[int], groups: int, per_out: Term, per_in: Term) -> Value:
    """The weights of one window position."""
    starts = (ZERO, ZERO, *map(Term, k))
    lengths = (*w.shape[:2], *(Term(1) for _ in k))
    cut = w.apply("slice", starts=starts, lengths=lengths, steps=(1,) * len(starts))
    return cut.apply("reshape", shape=(Term(groups), per_out, per_in))


def _reduce_window_vjp(s: Step) -> Gradients:
    x = s.x[0]
    monoid = s["monoid"]
    lead = len(x.shape) - len(s["window"])
    fill = {"sum": 0.0, "max": float("-inf"), "min": float("inf")}[monoid]
    padded, low = _with_padding(x, s["padding"], fill, lead)
    outputs = s.g.shape[lead:]
    total: Value | None = None
    taken: Value | None = None
    for k in product(*(range(int(n)) for n in s["window"])):
        starts = tuple(map(Term, k))
        part = s.g
        if monoid != "sum":
            # The first position that has the extremum takes the gradient.
            wins = _inputs_at(padded, starts, outputs, s["stride"], lead).apply("eq", s.y)
            own = wins if taken is None else wins.apply("and", taken.apply("not"))
            taken = wins if taken is None else taken.apply("or", wins)
            part = s.g.where(own)
        back = _put_back(part, padded.shape, starts, s["stride"], lead)
        total = back if total is None else total + back
    assert total is not None
    return [_without_padding(total, x.shape, low)]


def _with_padding(
    x: Value, padding: Sequence[tuple[int, int]], value: float, lead: int = 2
) -> tuple[Value, tuple[Term, ...]]:
    """The input with its padding, and how much of it comes before."""
    before = (*(ZERO for _ in range(lead)), *(Term.of(low) for low, _ in padding))
    after = (*(ZERO for _ in range(lead)), *(Term.of(high) for _, high in padding))
    if all(n is ZERO for n in (*before, *after)):
        return x, before
    return x.apply("pad", before=before, after=after, value=value), before


def _without_padding(value: Value, shape: Shape, before: Sequence[Term]) -> Value:
    if value.shape == shape:
        return value
    return value.apply("slice", starts=tuple(before), lengths=shape, steps=(1,) * len(shape))


def _inputs_at(x: Value, starts: Sequence[Term], outputs: Shape, stride: Sequence[int], lead: int) -> Value:
    """The inputs that one window position pairs with the outputs."""
    rest = x.shape[:lead]
    return x.apply(
        "slice",
        starts=(*(ZERO for _ in rest), *starts),
        lengths=(*rest, *outputs),
        steps=(*(1 for _ in rest), *map(int, stride)),
    )


def _put_back(value: Value, shape: Shape, starts: Sequence[Term], stride: Sequence[int], lead: int) -> Value:
    """The adjoint of `_inputs_at`: each element where it was taken from, zero elsewhere."""
    for axis, (start, step) in enumerate(zip(starts, stride, strict=True), lead):
        value = value.apart(axis, start, int(step), shape[axis])
    return value


OPS: tuple[Op, ...] = (
    Op("conv", _conv_type, _conv, _conv_signature, vjp=_conv_vjp, heavy=True),
    Op("reduce_window", _reduce_window_type, _reduce_window, _reduce_window_signature, vjp=_reduce_window_vjp),
)
