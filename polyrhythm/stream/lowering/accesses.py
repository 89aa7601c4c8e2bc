"""Reads: how a definition gets the values that its accesses name.

Where an access reads the step it is at, or all steps of a dim in order, the stream of what it reads is the stream that
is wanted, under other names: a dim that is read as a whole becomes a leading axis that the stream walks. Any other
access that the language has (shifts, strides, windows, growing prefixes, diagonals) becomes a Window with a table of
positions, which is known because all bounds are. A dim that is missing is repeated.

Slices at a step: an axis of a value, read at a place that depends on the step.

Gradients are full of them: what a range `x[0:T]` receives comes back as an axis, of which step t takes entry t. The
axis is walked by the stream, entry by entry, and a Window chooses the entry of every step. An axis that was walked
already, in the order that is wanted, costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from polyrhythm.compiler.analysis.naming import brackets, described
from polyrhythm.compiler.ir.graph import Access, Definition, Node, Range
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.stream.dims import static
from polyrhythm.stream.errors import AccessNotStreamable
from polyrhythm.stream.graph import Stream
from polyrhythm.stream.lowering.loads import loaded, nest
from polyrhythm.stream.lowering.plans import Plan
from polyrhythm.stream.lowering.problem import NO_CHUNKS, Problem, is_whole, steps_at
from polyrhythm.stream.lowering.tiles import carried, materialised
from polyrhythm.stream.lowering.values import (
    ROOT,
    Axis,
    Block,
    Levels,
    Load,
    Operand,
    Point,
    Value,
    child_table,
    data_type,
    irregular,
    known_lengths,
    prefixes,
    reach,
    rectangle,
    regular_length,
)
from polyrhythm.stream.operators.higher import flat_map
from polyrhythm.stream.operators.shapes import flatten, promote, repeat
from polyrhythm.stream.operators.window import window
from polyrhythm.stream.tokens import Token
from polyrhythm.stream.types import TileValue, tile_type


class Reader:
    """Reads of one definition: the node it belongs to, and the points where it holds."""

    def __init__(
        self,
        problem: Problem,
        node: Node,
        definition: Definition,
        levels: Levels | None,
        chunks: Mapping[Symbol, int] = NO_CHUNKS,
    ) -> None:
        self.problem, self.node, self.definition, self.levels, self.chunks = problem, node, definition, levels, chunks
        self.sizes = problem.grid(node, chunks)
        self.dims = tuple(self.sizes)

    def read(self, access: Access, operand: Operand) -> Operand:
        """What an access reads of an operand that carries the whole of its source."""
        source = self.problem.graph[access.source]
        if not isinstance(operand, Value | Load):
            return operand
        names = self._names(access, source, operand)
        if names is not None:
            return _renamed(operand, names)
        return self._through_window(access, source, loaded(operand))

    def _names(self, access: Access, source: Node, operand: Value | Load) -> dict[Axis, Axis] | None:
        """New names for the axes of an operand, if it is read step by step or as a whole; else None."""
        ranges = len(access.ranges)
        names: dict[Axis, Axis] = {axis: axis + ranges for axis in range(len(source.shape))}
        position = 0
        for dim, step in zip(source.dims, access.steps, strict=True):
            present = dim.symbol in operand.axes or dim.symbol in operand.inside.axes
            if isinstance(step, Range):
                if not present or not is_whole(step, dim.extent):
                    return None
                names[dim.symbol] = position
                position += 1
            elif present:
                symbol = _symbol(step)
                if symbol is None or symbol in names.values() or not self._same_extent(symbol, source, dim.symbol):
                    return None
                names[dim.symbol] = symbol
        if isinstance(operand, Load):
            return names if self.levels is None else None
        everywhere = operand.levels is None and self.levels is None
        return names if everywhere or self._same_points(operand, names) else None

    def _same_extent(self, symbol: Symbol, source: Node, dim: Symbol) -> bool:
        extent = self.problem.extent
        return symbol in self.node.symbols and extent(self.node, symbol) == extent(source, dim)

    def _same_points(self, operand: Value, names: dict[Axis, Axis]) -> bool:
        """Whether the stream has exactly the points that the definition has along the dims of both."""
        renamed = [names[axis] for axis in operand.axes]
        dims = tuple(axis for axis in renamed if isinstance(axis, Symbol))
        if dims != self.problem.ordered(dims) or renamed[: len(dims)] != list(dims):
            return False
        if operand.lead is not ROOT:
            return self.levels is None
        return operand.prefixes()[: len(dims)] == self._projected(dims)

    def _projected(self, dims: Sequence[Symbol]) -> Levels:
        """The points of the definition along some of its dims."""
        if self.levels is None:
            return rectangle([self.sizes[symbol] for symbol in dims])
        places = [self.dims.index(symbol) for symbol in dims]
        points = sorted({tuple(point[place] for place in places) for point in self.levels[-1]}) if self.dims else [()]
        return prefixes(points, len(dims))

    def _through_window(self, access: Access, source: Node, operand: Value) -> Value:
        """Positions of what is read, at every point of the dims that the access mentions."""
        self._check_walked(access, source, operand)
        missing = [s for s, step in source.steps(access).items() if isinstance(step, Range) and s not in operand.axes]
        if missing:
            operand = spread(operand, self.problem.ordered({*_dims(operand), *missing}), {
                symbol: self.problem.extent(source, symbol) for symbol in missing
            })  # fmt: skip
        order: tuple[Axis, ...] = (*_dims(operand), *operand.streamed)
        operand = operand if operand.axes == order else reordered(operand, order)
        mentioned = self.problem.ordered(access.symbols & set(self.dims))
        places = self._projected(mentioned)
        positions = _positions(operand)
        own = _dims(operand)

        def entries(point: Point) -> Any:
            lookup = self.problem.lookup(dict(zip(mentioned, point, strict=True)))
            boxed = set(self.chunks) - set(mentioned)  # all steps of these are in one tile
            choices = [
                [0] if isinstance(step, Term) and step.symbols and step.symbols <= boxed else steps_at(step, lookup)
                for step in access.steps
            ]
            return _nested_reads(access, source, choices, own, positions, {})

        table = nest(places, entries)
        ranges = len(access.ranges)
        axes = (*mentioned, *range(ranges), *(axis + ranges for axis in operand.streamed))
        shifted: dict[Axis, Axis] = {axis: axis + ranges for axis in operand.inside.axes if isinstance(axis, int)}
        return windowed(operand, table, axes, places, operand.inside.renamed(shifted))

    def _check_walked(self, access: Access, source: Node, operand: Value) -> None:
        inside = {axis: operand.inside.length(axis) for axis in operand.inside.axes if isinstance(axis, Symbol)}
        steps = source.steps(access)
        # Tiles are read like single steps where the access stays in them.
        across = [
            symbol
            for symbol, step in steps.items()
            if (symbol in inside or step.symbols & set(self.chunks))
            and (step is not Term.of(symbol) or inside.get(symbol) != self.chunks.get(symbol))
        ]
        if across or operand.lead is not ROOT or None in operand.sizes:
            what = f"the tiled dim {across[0]}" if across else f"{operand.lead.name}s"
            raise AccessNotStreamable(
                f"{described(source)}{brackets(access)} reads other steps of a value that is laid out by {what}",
                fix="read the current step or the whole range there, or leave the directive for the dim out",
                at=self.definition.at or self.node.at,
            )


def _symbol(step: Term) -> Symbol | None:
    """The dim that a step is, if it is one."""
    return next((symbol for symbol in step.symbols if step is symbol.term), None)


def _dims(operand: Value) -> tuple[Symbol, ...]:
    return tuple(axis for axis in operand.axes if isinstance(axis, Symbol))


def _renamed(operand: Value | Load, names: dict[Axis, Axis]) -> Operand:
    axes = tuple(names.get(axis, axis) for axis in operand.axes)
    if isinstance(operand, Load):
        return replace(operand, axes=axes, block=operand.block.renamed(names))
    fused = operand.fused
    if fused is not None:
        fused = replace(fused, block=fused.block.renamed(names))
    return replace(
        operand, axes=axes, block=operand.block.renamed(names) if fused is None else operand.block, fused=fused
    )


def _positions(operand: Value) -> dict[Point, Any]:
    """For each point of the dims of an operand, the positions of its elements, nested like the walked axes."""
    levels = operand.prefixes()
    dims = len(_dims(operand))
    children = child_table(levels)
    counter = iter(range(len(levels[-1]) if levels else 1))
    found: dict[Point, Any] = {}

    def nested(prefix: Point) -> Any:
        if len(prefix) == len(operand.axes):
            return next(counter)
        return [nested(child) for child in children[prefix]]

    for point in levels[dims - 1] if dims else ((),):
        found[point] = nested(point)
    return found


def _nested_reads(
    access: Access, source: Node, choices: list[list[int]], own: tuple[Symbol, ...], positions: Any, chosen: Any
) -> Any:
    """The positions at the chosen steps, nested by the ranges in the order of the dims."""
    place = len(chosen)
    if place == len(choices):
        return positions[tuple(chosen[symbol] for symbol in own)]
    symbol = source.symbols[place]
    parts = [
        _nested_reads(access, source, choices, own, positions, {**chosen, symbol: step}) for step in choices[place]
    ]
    return parts if isinstance(access.steps[place], Range) else parts[0]


def windowed(operand: Value, table: Any, axes: tuple[Axis, ...], places: Levels, block: Block | None = None) -> Value:
    """A Window over all of an operand, whose table has the given axes; `places` are its points along the dims."""
    stream, own, fused = carried(operand)
    depth = len(axes)
    levels = _table_levels(table, depth, places)
    sizes = tuple(regular_length(levels, place) for place in range(depth))
    counter = count()
    if depth == len(operand.axes) > 0 and table == nest(operand.prefixes(), lambda _: next(counter)):
        read = stream  # the elements in their own order, at other steps
    else:
        held = stream if operand.axes else promote(stream, 0)
        read = window(held, max(1, len(operand.axes)), table if depth else [table], max(1, depth))
        read = read if depth else flatten(read, 0, 1)
    uneven = irregular(levels, sizes)
    if block is not None:
        names = dict(zip(operand.inside.axes, block.axes, strict=True))
        own = own.renamed(names) if fused is None else own
        fused = fused if fused is None else replace(fused, block=block)
    shown = sizes if uneven is None else reach(levels)
    return Value(ROOT, read, axes, shown, own, operand.dtype, uneven, fused)


def _table_levels(table: Any, depth: int, places: Levels) -> Levels:
    """The points of a table: coordinates of the dims, then counts along the walked axes."""
    levels = list(places)
    parts: list[tuple[Point, Any]] = [((), table)]
    children = child_table(places)
    for level in range(depth):
        names = {p: children[p] if level < len(places) else [(*p, k) for k in range(len(part))] for p, part in parts}
        parts = [pair for prefix, part in parts for pair in zip(names[prefix], part, strict=True)]
        if level >= len(places):
            levels.append(tuple(prefix for prefix, _ in parts))
    return tuple(levels)


def spread(operand: Value, dims: tuple[Symbol, ...], sizes: Mapping[Any, int]) -> Value:
    """A value with further dims, along which it is the same everywhere."""
    axes: tuple[Axis, ...] = (*dims, *operand.streamed)
    known: dict[Axis, int | None] = {**dict(zip(operand.axes, operand.sizes, strict=True)), **sizes}
    total = tuple(known[axis] for axis in axes)
    if operand.levels is None:
        return aligned(operand, axes, total, None)
    return aligned(operand, axes, total, joined([(operand.axes, operand.levels)], axes, known))


def joined(
    parts: Sequence[tuple[tuple[Axis, ...], Any]], axes: tuple[Axis, ...], sizes: Mapping[Any, int | None]
) -> Levels:
    """The points along `axes` whose projections are points of every part."""
    known = [(own, [set(level) for level in levels]) for own, levels in parts if own]
    levels: list[tuple[Point, ...]] = []
    frontier: list[Point] = [()]
    for place, axis in enumerate(axes):
        most = sizes[axis] or 0
        for own, sets in known:
            if axis in own and sets:
                at = own.index(axis)
                most = max([most, *(prefix[at] + 1 for prefix in sets[at])])
        following = []
        for prefix in frontier:
            for step in range(most):
                point = (*prefix, step)
                if all(_inside(point, axes[: place + 1], own, sets) for own, sets in known if axis in own):
                    following.append(point)
        levels.append(tuple(following))
        frontier = following
    return tuple(levels)


def _inside(point: Point, axes: tuple[Axis, ...], own: tuple[Axis, ...], sets: list[set[Point]]) -> bool:
    coordinates = dict(zip(axes, point, strict=True))
    depth = next((k for k, axis in enumerate(own) if axis not in coordinates), len(own))
    return depth == 0 or tuple(coordinates[axis] for axis in own[:depth]) in sets[depth - 1]


def aligned(operand: Value, axes: tuple[Axis, ...], sizes: tuple[int | None, ...], levels: Levels | None) -> Value:
    """An operand below the program's lead brought to some axes, by repeating it or by a Window."""
    if operand.axes == axes and operand.levels == levels and (levels is not None or operand.sizes == sizes):
        return operand
    same = operand.axes == axes[: len(operand.axes)] and operand.sizes == sizes[: len(operand.axes)]
    if same and operand.levels is None and levels is None and 0 not in sizes:
        stream, block, fused = carried(operand)
        for count in known_lengths(sizes[len(operand.axes) :]):
            stream = repeat(stream, count)
        return Value(ROOT, stream, axes, sizes, block, operand.dtype, None, fused)
    wanted = levels if levels is not None else rectangle(sizes)
    own = operand.prefixes()
    place: dict[Point, int] = {point: number for number, point in enumerate(own[-1])} if own else {(): 0}
    taken = [axes.index(axis) for axis in operand.axes]
    table = nest(wanted, lambda point: place[tuple(point[at] for at in taken)])
    return windowed(operand, table, axes, wanted)


def reordered(operand: Value, axes: Iterable[Axis]) -> Value:
    """A value whose stream walks its axes in another order."""
    order = tuple(axes)
    return aligned(operand, order, tuple(map(operand.size, order)), None)


def moving_axes(plan: Plan) -> list[int]:
    """The axes of a slice of length one that start where the step says, if all others are taken as a whole."""
    definition, problem = plan.definition, plan.problem
    if definition.op != "slice":
        return []
    starts, lengths = definition.attributes["starts"], definition.attributes["lengths"]
    moving = [axis for axis, start in enumerate(starts) if start.symbols & set(plan.node.symbols)]
    fixed = [axis for axis in range(len(starts)) if axis not in moving]
    shape = [*map(problem.number, plan.node.shape)]
    simple = all(problem.number(starts[axis]) == 0 and problem.number(lengths[axis]) == shape[axis] for axis in fixed)
    return moving if simple and all(shape[axis] == 1 for axis in moving) else []


def lower_slice(plan: Plan, operand: Value | Load, moving: list[int]) -> Value:
    """Entry by entry along some axes, and of those the one that each step wants."""
    value = loaded(operand)
    if value.lead is not ROOT or None in value.sizes:
        raise _refusal(plan, "of what is laid out in branches or regions")
    for axis in moving:
        value = _walking(value, axis)
    problem, starts = plan.problem, {axis: plan.definition.attributes["starts"][axis] for axis in moving}
    mentioned = {symbol for start in starts.values() for symbol in start.symbols}
    boxed = [a for a in value.inside.axes if isinstance(a, Symbol)]
    if mentioned & set(boxed):
        raise _refusal(plan, f"of {boxed[0]}, which lies in tiles")
    others = tuple(a for a in value.axes if isinstance(a, int) and a not in moving)
    walked = {*(a for a in value.axes if isinstance(a, Symbol)), *mentioned & set(plan.node.symbols)}
    dims = problem.ordered(walked)
    levels = problem.levels(plan.node)
    if (levels is not None or value.levels is not None) and (others or set(dims) != set(plan.node.symbols)):
        raise _refusal(plan, "of uneven groups")
    axes: tuple[Axis, ...] = (*dims, *others)
    sizes = [problem.extent(plan.node, a) if a not in value.axes else value.size(a) or 0 for a in axes]  # type: ignore[arg-type]
    wanted = levels if levels is not None else rectangle(sizes)
    number = {point: place for place, point in enumerate(value.prefixes()[-1])}

    def position(point: tuple[int, ...]) -> int:
        at: dict[Any, int] = dict(zip(axes, point, strict=True))
        # As everywhere in the language, a start is clamped so that the slice fits.
        lookup = problem.lookup(dict(at))
        at |= {a: min(max(start.evaluate(lookup), 0), (value.size(a) or 0) - 1) for a, start in starts.items()}
        found = number.get(tuple(at[a] for a in value.axes))
        if found is None:
            raise _refusal(plan, f"beyond its axes at {dict(zip(map(str, axes), point, strict=True))}")
        return found

    found = windowed(value, nest(wanted, position), axes, wanted[: len(dims)])
    lengths: dict[Any, int | None] = dict(zip(value.inside.axes, value.inside.lengths, strict=True))
    lengths |= dict.fromkeys(moving, 1)
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
    stream, block = taken_apart(value, place, length, f"entries of {value.base.name}")
    levels = value.levels and (*value.levels, tuple((*p, k) for p in value.levels[-1] for k in range(length)))
    return Value(ROOT, stream, (*value.axes, axis), (*value.sizes, length), block, value.dtype, levels)


def taken_apart(value: Value, place: int, count: int, name: str) -> tuple[Stream, Block]:
    """A stream of what lies at each position of one axis of the tiles, and what is left of their block.

    The positions of a tile are a dim of their own.
    """
    inside = value.inside
    lengths = (*inside.lengths[:place], *inside.lengths[place + 1 :])
    block = Block((*inside.axes[:place], *inside.axes[place + 1 :]), lengths)
    rows, cols = block.fixed_sides

    def expand(tile: TileValue, copy: int) -> Sequence[Token]:
        whole = None if tile.data is None else np.moveaxis(inside.array(tile.data), place, 0).reshape(count, rows, cols)
        parts: list[np.ndarray | None] = [None] * count if whole is None else list(whole)
        return [(TileValue(rows, cols, tile.nbytes // count, data=p), int(n == count)) for n, p in enumerate(parts, 1)]

    stream = materialised(value)
    kind = tile_type(rows, cols, data_type(value.dtype))
    return flat_map(expand, stream, (stream.shape[-1], static(count)), kind, name=name), block
