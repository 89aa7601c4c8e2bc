"""Packing: axes that an operation cannot take one by one are put into the tiles first.

Between tiles of different sizes: steps of a dim are taken out of tiles one by one, or packed into them.

Operations may have tiles of their own (`on=`), entries are dealt out step by step, and branches take steps one by one.
What crosses such a border is unpacked and packed again. Rows only change their tile, so no value does; no time passes
but that of the elements, and a packed tile is held on chip.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.ir.ops.record import Signature
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.stream.errors import AccessNotStreamable, OperationNotStreamable
from polyrhythm.stream.functions import Reduction
from polyrhythm.stream.lowering.accesses import reordered, taken_apart
from polyrhythm.stream.lowering.loads import loaded
from polyrhythm.stream.lowering.plans import Plan
from polyrhythm.stream.lowering.problem import Problem
from polyrhythm.stream.lowering.tiles import materialised
from polyrhythm.stream.lowering.values import (
    ROOT,
    Axis,
    Block,
    Load,
    Operand,
    Value,
    data_type,
    irregular,
    regular_length,
)
from polyrhythm.stream.operators.higher import accum
from polyrhythm.stream.operators.shapes import flatten, reshape


def packed_where_needed(plan: Plan, signature: Signature) -> list[Operand]:
    """Operands whose walked axes the operation can take one by one; others are packed into tiles first."""
    operands = list(plan.operands)
    while True:
        streams = [(number, o) for number, o in enumerate(operands) if isinstance(o, Value | Load)]
        walked = [(number, o, axis) for number, o in streams for axis in o.axes if isinstance(axis, int)]
        wrong = next((place for place in walked if not _can_walk(operands, signature, *place)), None)
        if wrong is None:
            return operands
        operands[wrong[0]] = packed_axes(plan, loaded(wrong[1]))


def _can_walk(operands: Sequence[Operand], signature: Signature, number: int, operand: Value | Load, axis: int) -> bool:
    label = signature.operands[number][axis]
    if label is None or signature.roles[label].kind == "opaque":
        return False
    chunk = _chunk(operand, axis)
    if signature.roles[label].kind == "scan" and chunk is not None:
        return False
    if signature.roles[label].kind == "parallel" and label not in signature.result:
        return False
    for other, labels in zip(operands, signature.operands, strict=True):
        for own, found in enumerate(labels):
            if found == label and (
                not isinstance(other, Value | Load) or own not in other.axes or _chunk(other, own) != chunk
            ):
                return False
    return True


def _chunk(operand: Value | Load, axis: Axis) -> int | None:
    return operand.inside.length(axis) if axis in operand.inside.axes else None


def packed_axes(plan: Plan, operand: Value) -> Value:
    """All walked axes of a value packed into its tiles."""
    streamed = operand.streamed
    sizes = [operand.size(axis) for axis in streamed]
    dims = tuple(axis for axis in operand.axes if isinstance(axis, Symbol))
    mixed = operand.axes != (*dims, *streamed)
    uneven = operand.levels is not None and (mixed or not _is_regular(operand))
    chunked = [axis for axis in streamed if axis in operand.inside.axes]
    if uneven or None in sizes or chunked or operand.lead is not ROOT:
        why = "the length of that differs from step to step"
        if not uneven:
            why = "that is cut into tiles" if chunked else "it is sent on part by part"
        raise OperationNotStreamable(
            f"{described(plan.node)} needs all of an operand at once ({plan.definition.op}), and {why}",
            fix="use operations that work along the axis one by one (elementwise, sums, maxima), or a fixed length",
            at=plan.at,
        )
    operand = reordered(operand, (*dims, *streamed)) if mixed else operand
    inside = operand.inside
    block = Block((*streamed, *inside.axes), (*sizes, *inside.lengths))
    stream = accum(pack_rows(inside, operand.dtype), materialised(operand), rank=len(streamed), name="pack")
    levels = irregular(None if operand.levels is None else operand.levels[: len(dims)], operand.sizes[: len(dims)])
    return Value(operand.lead, stream, dims, operand.sizes[: len(dims)], block, operand.dtype, levels)


def pack_rows(block: Block, dtype: np.dtype) -> Reduction:
    """The reduction that puts tiles with a block below each other."""
    _, cols = block.sides

    def start(*sides: Any) -> np.ndarray:
        return np.zeros((0, cols), dtype)

    def update(state: np.ndarray, part: np.ndarray) -> np.ndarray:
        return np.vstack([state, part.reshape(-1, cols)])

    return Reduction("pack", start, update, lambda a: a, lambda a: 0, data_type(dtype), grows=True)


def _is_regular(operand: Value) -> bool:
    """Whether the walked axes are equally long at every point of the dims."""
    assert operand.levels is not None
    dims = len(operand.axes) - len(operand.streamed)
    return all(regular_length(operand.levels, place) is not None for place in range(dims, len(operand.axes)))


def retiled(value: Value, symbol: Symbol, chunk: int | None, problem: Problem) -> Value:
    """A value of the whole program with `chunk` steps of a dim in a tile; None for single steps, outside the tile."""
    have = _chunk(value, symbol)
    if have == chunk or (have is None and symbol not in value.axes):
        return value
    if value.levels is not None or None in value.sizes or value.lead is not ROOT:
        raise AccessNotStreamable(
            f"{value.base.name} has a length that differs from step to step, so its tiles cannot be changed",
            fix=f"give all of its operations the same tile of {symbol}",
        )
    if have is not None:
        value = _unpacked(value, symbol, have, problem)
    return value if chunk is None else _packed(value, symbol, chunk)


def _last(value: Value, symbol: Symbol) -> Value:
    """A value whose innermost walked axis is a dim."""
    return reordered(value, (*(axis for axis in value.axes if axis is not symbol), symbol))


def _unpacked(value: Value, symbol: Symbol, have: int, problem: Problem) -> Value:
    inside = value.inside
    if inside.axes[0] is not symbol:
        raise AccessNotStreamable(
            f"{value.base.name} has tiles whose rows are not those of {symbol}",
            fix=f"give all of its operations the same tile of {symbol}",
        )
    value = _last(value, symbol) if symbol in value.axes else value
    stream, block = taken_apart(value, 0, have, f"steps of {value.base.name}")
    axes, sizes = value.axes, value.sizes
    if symbol in value.axes:
        stream = flatten(stream, 0, 1)
        sizes = (*sizes[:-1], (sizes[-1] or 0) * have)
    else:
        axes, sizes = (*axes, symbol), (*sizes, have)
    found = Value(ROOT, stream, axes, sizes, block, value.dtype)
    return reordered(found, (*problem.ordered(a for a in axes if isinstance(a, Symbol)), *found.streamed))


def _packed(value: Value, symbol: Symbol, chunk: int) -> Value:
    value = _last(value, symbol)
    count = (value.sizes[-1] or 0) // chunk
    stream = materialised(value)
    if count > 1:
        stream = reshape(stream, 0, chunk)
    block = Block((symbol, *value.inside.axes), (chunk, *value.inside.lengths))
    stream = accum(pack_rows(value.inside, value.dtype), stream, rank=1, name=f"tiles of {value.base.name}")
    axes, sizes = value.axes[:-1], value.sizes[:-1]
    if count > 1:
        axes, sizes = (*axes, symbol), (*sizes, count)
    return Value(ROOT, stream, axes, sizes, block, value.dtype)
