"""Derivatives of convolutions and pooling: one contribution per position inside the window.

A window position k pairs each output p with the input at `p * stride + k * dilation`: a strided slice of the padded
input. The gradient takes each such slice in turn and puts its contribution back where it came from. Windows must have
constant sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product as every

from polyrhythm.compiler.gradients.rules import Results, Rule, Step
from polyrhythm.compiler.gradients.values import Value
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.ir.types import Shape

ZERO = Term(0)


def _conv(s: Step) -> Results:
    x, w = s.x
    groups, lead = s["groups"], 2
    spatial = len(x.shape) - lead
    kernel = [int(n) for n in w.shape[2:]]
    padded, low = _padded(x, s["padding"], 0.0)
    n, outputs = s.g.shape[0], s.g.shape[2:]
    per_out, per_in = w.shape[0] // groups, w.shape[1]
    g = s.g.apply("reshape", shape=(n, Term(groups), per_out, *outputs))
    letters = "uvwxyz"[:spatial]
    total: Value | None = None
    parts: list[Value] = []
    for k in every(*map(range, kernel)):
        starts = tuple(Term(i * d) for i, d in zip(k, s["dilation"], strict=True))
        if s.wanted[0]:
            at = _kernel_at(w, k, groups, per_out, per_in)
            back = g.apply("einsum", at, spec=f"ngo{letters},goi->ngi{letters}")
            back = back.apply("reshape", shape=(n, x.shape[1], *outputs))
            back = _put_back(back, padded.shape, starts, s["stride"], lead)
            total = back if total is None else total + back
        if s.wanted[1]:
            cut = _window(padded, starts, outputs, s["stride"], lead)
            cut = cut.apply("reshape", shape=(n, Term(groups), per_in, *outputs))
            part = g.apply("einsum", cut, spec=f"ngo{letters},ngi{letters}->goi")
            parts.append(part.apply("reshape", shape=(w.shape[0], per_in, Term(1))))
    of_x = _unpadded(total, x.shape, low) if total is not None else None
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


def _reduce_window(s: Step) -> Results:
    x = s.x[0]
    monoid = s["monoid"]
    lead = len(x.shape) - len(s["window"])
    fill = {"sum": 0.0, "max": float("-inf"), "min": float("inf")}[monoid]
    padded, low = _padded(x, s["padding"], fill, lead)
    outputs = s.g.shape[lead:]
    total: Value | None = None
    taken: Value | None = None
    for k in every(*(range(int(n)) for n in s["window"])):
        starts = tuple(map(Term, k))
        part = s.g
        if monoid != "sum":
            # The first position that has the extremum takes the gradient.
            wins = _window(padded, starts, outputs, s["stride"], lead).apply("eq", s.y)
            own = wins if taken is None else wins.apply("and", taken.apply("not"))
            taken = wins if taken is None else taken.apply("or", wins)
            part = s.g.where(own)
        back = _put_back(part, padded.shape, starts, s["stride"], lead)
        total = back if total is None else total + back
    assert total is not None
    return [_unpadded(total, x.shape, low)]


def _padded(
    x: Value, padding: Sequence[tuple[int, int]], value: float, lead: int = 2
) -> tuple[Value, tuple[Term, ...]]:
    """The input with its padding, and how much of it comes before."""
    before = (*(ZERO for _ in range(lead)), *(Term.of(low) for low, _ in padding))
    after = (*(ZERO for _ in range(lead)), *(Term.of(high) for _, high in padding))
    if all(n is ZERO for n in (*before, *after)):
        return x, before
    return x.apply("pad", before=before, after=after, value=value), before


def _unpadded(value: Value, shape: Shape, before: Sequence[Term]) -> Value:
    if value.shape == shape:
        return value
    return value.apply("slice", starts=tuple(before), lengths=shape, steps=(1,) * len(shape))


def _spans(
    starts: Sequence[Term], outputs: Shape, stride: Sequence[int], lead: int
) -> Iterator[tuple[int, Term, Term, int]]:
    for i, (start, length, step) in enumerate(zip(starts, outputs, stride, strict=True)):
        yield lead + i, start, length, int(step)


def _window(x: Value, starts: Sequence[Term], outputs: Shape, stride: Sequence[int], lead: int) -> Value:
    """The inputs that one window position pairs with the outputs."""
    rest = x.shape[:lead]
    return x.apply(
        "slice",
        starts=(*(ZERO for _ in rest), *starts),
        lengths=(*rest, *outputs),
        steps=(*(1 for _ in rest), *map(int, stride)),
    )


def _put_back(value: Value, shape: Shape, starts: Sequence[Term], stride: Sequence[int], lead: int) -> Value:
    """The adjoint of `_window`: each element where it was taken from, zero elsewhere."""
    for axis, start, length, step in _spans(starts, value.shape[lead:], stride, lead):
        places = value.space.apply("iota", length=length)
        places = places.apply("mul", places.space.constant(step, places.dtype))
        places = places.apply("add", places.space.apply("index", value=start))
        wide = tuple(shape[i] if i <= axis else n for i, n in enumerate(value.shape))
        base = value.space.constant(0, value.dtype, wide)
        value = base.apply("scatter_add", places, value, axis=axis)
    return value


WINDOWS: dict[str, Rule] = {"conv": _conv, "reduce_window": _reduce_window}
