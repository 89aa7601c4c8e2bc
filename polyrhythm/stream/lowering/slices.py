"""Slices at a step: an axis of a value, read at a place that depends on the step.

Gradients are full of them: what a range `x[0:T]` receives comes back as an axis, of which step t takes entry t. The
axis is walked by the stream, entry by entry, and a Window chooses the entry of every step. An axis that was walked
already, in the order that is wanted, costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.stream.dims import static
from polyrhythm.stream.errors import AccessNotStreamable
from polyrhythm.stream.lowering.accesses import windowed
from polyrhythm.stream.lowering.fusing import materialised
from polyrhythm.stream.lowering.loads import loaded, nest
from polyrhythm.stream.lowering.plans import Plan
from polyrhythm.stream.lowering.values import ROOT, Axis, Block, Load, Value, data_type, rectangle
from polyrhythm.stream.operators.higher import flat_map
from polyrhythm.stream.tokens import Token
from polyrhythm.stream.types import TileValue, tile_type


def moving_axis(plan: Plan) -> int | None:
    """The axis of a slice of length one that starts where the step says, if all others are taken as a whole."""
    definition, problem = plan.definition, plan.problem
    if definition.op != "slice":
        return None
    starts, lengths = definition.attributes["starts"], definition.attributes["lengths"]
    moving = [axis for axis, start in enumerate(starts) if start.symbols & set(plan.node.symbols)]
    fixed = [axis for axis in range(len(starts)) if axis not in moving]
    shape = [*map(problem.number, plan.node.shape)]
    simple = all(problem.number(starts[axis]) == 0 and problem.number(lengths[axis]) == shape[axis] for axis in fixed)
    return moving[0] if len(moving) == 1 and simple and shape[moving[0]] == 1 else None


def lower_slice(plan: Plan, operand: Value | Load, axis: int) -> Value:
    """Entry by entry along an axis, and of those the one that each step wants."""
    value = loaded(operand) if isinstance(operand, Load) else operand
    if value.lead is not ROOT or None in value.sizes:
        raise _refusal(plan, "of what is laid out in branches or regions")
    value = _walking(value, axis)
    problem, start = plan.problem, plan.definition.attributes["starts"][axis]
    boxed = [a for a in value.inside.axes if isinstance(a, Symbol)]
    if start.symbols & set(boxed):
        raise _refusal(plan, f"of {boxed[0]}, which lies in tiles")
    others = tuple(a for a in value.axes if isinstance(a, int) and a != axis)
    walked = {*(a for a in value.axes if isinstance(a, Symbol)), *start.symbols & set(plan.node.symbols)}
    dims = problem.ordered(walked)
    levels = problem.levels(plan.node)
    if (levels is not None or value.levels is not None) and (others or set(dims) != set(plan.node.symbols)):
        raise _refusal(plan, "of uneven groups")
    axes: tuple[Axis, ...] = (*dims, *others)
    sizes = [problem.extent(plan.node, a) if a not in value.axes else value.size(a) or 0 for a in axes]  # type: ignore[arg-type]
    wanted = levels if levels is not None else rectangle(sizes)
    number = {point: place for place, point in enumerate(value.prefixes()[-1])}
    length = value.size(axis) or 0

    def position(point: tuple[int, ...]) -> int:
        at: dict[Any, int] = dict(zip(axes, point, strict=True))
        # As everywhere in the language, a start is clamped so that the slice fits.
        at[axis] = min(max(start.evaluate(problem.lookup(at)), 0), length - 1)
        found = number.get(tuple(at[a] for a in value.axes))
        if found is None:
            raise _refusal(plan, f"beyond the {axis}th axis at {dict(zip(map(str, axes), point, strict=True))}")
        return found

    found = windowed(value, nest(wanted, position), axes, wanted[: len(dims)])
    lengths = {**dict(zip(value.inside.axes, value.inside.lengths, strict=True)), axis: 1}
    ordered: tuple[Axis, ...] = (*boxed, *sorted(a for a in lengths if isinstance(a, int)))
    block = Block(ordered, tuple(lengths[a] for a in ordered))
    return Value(ROOT, materialised(found), axes, found.sizes, block, value.dtype, found.levels)


def _refusal(plan: Plan, what: str) -> AccessNotStreamable:
    return AccessNotStreamable(
        f"{described(plan.node)} is a slice at the step {what}", fix="leave out the directives for its dims", at=plan.at
    )


def _walking(value: Value, axis: int) -> Value:
    """A value whose stream walks an axis one by one, innermost where it lay in the tile."""
    inside = value.inside
    if axis not in inside.axes:
        return value
    place, length = inside.axes.index(axis), inside.length(axis)
    if axis in value.axes or length is None:
        raise AccessNotStreamable(
            f"{value.base.name} is cut into tiles along the axis that a slice moves over",
            fix="leave out the tile directive of that axis",
        )
    rest = [at for at in range(len(inside.axes)) if at != place]
    block = Block(tuple(inside.axes[at] for at in rest), tuple(inside.lengths[at] for at in rest))
    rows, cols = block.sides
    assert rows is not None
    count = length

    def expand(tile: TileValue, copy: int) -> Sequence[Token]:
        parts = None if tile.data is None else np.moveaxis(inside.array(tile.data), place, 0).reshape(count, rows, cols)
        return [
            (
                TileValue(rows, cols, tile.nbytes // count, data=None if parts is None else parts[at]),
                int(at == count - 1),
            )
            for at in range(count)
        ]

    stream = materialised(value)
    kind = tile_type(rows, cols, data_type(value.dtype))
    stream = flat_map(expand, stream, (stream.shape[-1], static(count)), kind, name=f"entries of {value.base.name}")
    return Value(ROOT, stream, (*value.axes, axis), (*value.sizes, count), block, value.dtype)
