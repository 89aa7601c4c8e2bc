"""Bringing operands together: all get the same axes, so that their elements meet.

What lacks a dim is repeated along it; a tensor in memory that lacks outer dims is read again for each of their steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.ir.ops.record import Signature
from polyrhythm.stream.errors import OperationNotStreamable
from polyrhythm.stream.graph import Stream
from polyrhythm.stream.lowering.accesses import aligned, joined
from polyrhythm.stream.lowering.loads import loaded, loaded_by
from polyrhythm.stream.lowering.plans import Plan
from polyrhythm.stream.lowering.tiles import carried, materialised
from polyrhythm.stream.lowering.values import ROOT, Levels, Load, Operand, Value, irregular, known_lengths, reach
from polyrhythm.stream.operators.onchip import bufferize, streamify
from polyrhythm.stream.operators.shapes import expand, promote, repeat


@dataclass(frozen=True)
class Label:
    """A label of a signature, as an axis of the streams that are brought together."""

    number: int


def brought_together(plan: Plan, signature: Signature, order: tuple[Any, ...]) -> list[Operand]:
    """All operands with the axes `order`, so that their elements meet; axes of values are named by their labels."""
    labelled: list[Operand] = []
    for operand, labels in zip(plan.operands, signature.operands, strict=True):
        if isinstance(operand, Value | Load):
            axes = tuple(Label(labels[a]) if isinstance(a, int) else a for a in operand.axes)  # type: ignore[arg-type]
            labelled.append(replace(operand, axes=axes))  # type: ignore[arg-type]
        else:
            labelled.append(operand)
    values = [operand for operand in labelled if isinstance(operand, Value)]
    labelled = [
        _referred(plan, operand, values, order) if isinstance(operand, Load) else operand for operand in labelled
    ]
    values = [operand for operand in labelled if isinstance(operand, Value)]
    if not values:
        return labelled
    if any(value.lead is not ROOT for value in values):
        return [_expanded(plan, o, values, order) if isinstance(o, Value) else o for o in labelled]
    sizes: dict[Any, int | None] = {axis: value.size(axis) for value in values for axis in value.axes}
    total = tuple(sizes[axis] for axis in order)
    levels: Levels | None = None
    if any(v.levels is not None or v.size(axis) != sizes[axis] for v in values for axis in v.axes):
        levels = joined([(value.axes, value.prefixes()) for value in values], order, sizes)
        total = reach(levels)
        levels = irregular(levels, total)
    return [aligned(o, order, total, levels) if isinstance(o, Value) else o for o in labelled]


def _referred(plan: Plan, load: Load, values: Sequence[Value], order: tuple[Any, ...]) -> Value:
    """A tensor that lacks outer dims is read again for every element of an operand that has just those."""
    prefix = order[: len(order) - len(load.axes)]
    if plan.space is not None and set(order[len(prefix) :]) == set(load.axes):
        load = _permuted(load, order[len(prefix) :])
    fits = order[len(prefix) :] == load.axes
    same = [value for value in values if value.axes == prefix and value.levels is None]
    in_region = load.branch is not None and plan.space is not None and bool(values) and values[0].lead.name == "region"
    if plan.space is not None:
        if fits and not prefix and values:
            return plan.space.read_part(load, values[0].lead)
        if not fits or not same or in_region:
            raise OperationNotStreamable(
                f"{described(plan.node)} reads {load.tensor.name} again for inner dims of a {plan.space.branch}",
                fix="order the dims so that those of the tensor come last, or tile them",
                at=plan.at,
            )
    if prefix and fits and same and (load.axes or plan.space is not None):
        return loaded_by(load, materialised(same[0]), same[0].lead, same[0].axes, same[0].sizes)
    return loaded(load)


def _permuted(load: Load, axes: tuple[Any, ...]) -> Load:
    """A tensor that is walked along its axes in another order."""
    places = [load.axes.index(axis) for axis in axes]
    sizes, strides = tuple(load.sizes[p] for p in places), tuple(load.strides[p] for p in places)
    return replace(load, axes=axes, sizes=sizes, strides=strides, made=[])


def _expanded(plan: Plan, operand: Value, values: Sequence[Value], order: tuple[Any, ...]) -> Value:
    """An operand below a lead of its own, repeated along the inner axes that it lacks."""
    if operand.axes == order:
        return operand
    whole = next((value for value in values if value.axes == order), None)
    sizes = {axis: value.size(axis) for value in values for axis in value.axes}
    stream, block, fused = carried(operand)
    if order[: len(operand.axes)] != operand.axes:
        if operand.metadata and plan.space is not None and hasattr(plan.space, "metadata_along"):
            return plan.space.metadata_along(operand, order, sizes)
        stream = _repeated(plan, operand, stream, order, sizes)
        return Value(operand.lead, stream, order, tuple(sizes[a] for a in order), block, operand.dtype, None, fused)
    missing = order[len(operand.axes) :]
    known = [sizes[axis] for axis in missing]
    if None not in known:
        for count in known_lengths(known):
            key = (stream, count)
            if key not in plan.memo:
                plan.memo[key] = repeat(stream, count, name=f"repeat {operand.base.name}")
            stream = plan.memo[key]
    else:
        assert whole is not None, "a ragged dim is walked by some operand"
        for _ in missing[operand.ones :]:
            stream = promote(stream, 0)
        stream = expand(stream, materialised(whole), len(missing), name=f"repeat {operand.base.name}")
    total = tuple(sizes[axis] for axis in order)
    return Value(operand.lead, stream, order, total, block, operand.dtype, None, fused)


def _repeated(
    plan: Plan, operand: Value, stream: Stream, order: tuple[Any, ...], sizes: Mapping[Any, int | None]
) -> Stream:
    """A stream repeated along axes that come before some of its own: what lies below is kept on chip and sent again."""
    own, counts = [axis for axis in order if axis in operand.axes], [sizes[axis] for axis in order]
    if tuple(own) != operand.axes or operand.ones or None in counts:
        raise OperationNotStreamable(
            f"{described(plan.node)} combines values whose dims come in different orders below {operand.lead.name}s",
            fix="reduce one of them first",
            at=plan.at,
        )
    for below, (axis, count) in enumerate(zip(reversed(order), known_lengths(counts)[::-1], strict=True)):
        if axis not in operand.axes:
            stream = streamify(bufferize(stream, below), (count,)) if below else repeat(stream, count)
    return stream
