"""Higher-order operators: Map, Accum, Scan, FlatMap.

Time per element is a roofline: the longest of reading operands from on-chip memory, computing, and writing back. The
unit is busy for all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import numpy as np

from polyrhythm.stream.dims import Shape, cardinality
from polyrhythm.stream.engine import Process, Steps
from polyrhythm.stream.errors import ElementMismatch, ShapeMismatch
from polyrhythm.stream.expr import Expr, as_expr, summed
from polyrhythm.stream.functions import FUNCTIONS, REDUCTIONS, Function, Reduction
from polyrhythm.stream.graph import Node, Operator, Port, Stream, make
from polyrhythm.stream.operators.common import (
    endless_inputs,
    get_together,
    load_cycles,
    require_equal_shapes,
    require_rank,
    require_tile,
    store_cycles,
)
from polyrhythm.stream.tokens import EMPTY, Token
from polyrhythm.stream.types import Element, MatrixType, TileValue, Tuple, tile_type


def _side_shapes(node: Node) -> list[tuple[Expr, Expr]]:
    return [_sides(stream.element) for stream in node.inputs]


def _sides(element: Element) -> tuple[Expr, Expr]:
    """The sides of a tile, or of the first tile of a tuple."""
    first = _first_type(element)
    return as_expr(first.rows), as_expr(first.cols)


def _stationary_bytes(node: Node, stationary: int) -> Expr:
    """The paper's memory of a matrix unit: 16 columns' worth of input (as printed, without element size), weights."""
    moving = _sides(node.inputs[1 - stationary].element)
    return 16 * moving[1] + node.inputs[stationary].element.nbytes


@dataclass(frozen=True)
class Map(Operator):
    """A function of every element, or of every pair of elements of two equal-shaped streams."""

    function: Function
    bytes_each: int = 4
    write_back: bool = False

    @property
    def computes(self) -> bool:
        """Functions that only move data own no arithmetic."""
        return self.function.cycles == 0

    def flops(self, node: Node) -> Expr:
        """The function's count for every element."""
        return summed(self.function.flops(*_side_shapes(node)), cardinality(node.inputs[0].shape))

    def on_chip(self, node: Node, paper: bool) -> Expr:
        """Nothing in the figures; in the paper a matrix product holds its weights and 16 rows of input."""
        if paper and self.function.stationary is not None:
            return _stationary_bytes(node, self.function.stationary)
        return as_expr(0)

    def run(self, process: Process) -> Steps:
        """Levels pass through unchanged."""
        channels, out = [group[0] for group in process.inputs], process.outputs[0][0]
        endless = endless_inputs(process)
        while (token := (yield from get_together(process, channels, endless))) is not None:
            values, level = token
            if values[0] is EMPTY:
                yield from process.put(out, EMPTY, level)
                continue
            value, cycles, flops = self.apply(process, values)
            process.work(cycles)
            process.work_done += flops
            yield from process.put(out, value, level)

    def apply(self, process: Process, values: Sequence[Any]) -> tuple[TileValue, int, int]:
        """The result for elements, the cycles that it takes, and its FLOPs."""
        function = self.function
        shapes = [_value_shape(value) for value in values]
        (rows, cols), flops = function.shape(*shapes), function.flops(*shapes)
        nbytes = rows * cols * self.bytes_each
        load = process.hardware.read_cycles([load_cycles(process, value) for value in values])
        store = store_cycles(process, nbytes) if self.write_back else 0
        data = function.compute(*(_data(value) for value in values)) if process.engine.functional else None
        result = TileValue(rows, cols, nbytes, self._valid_rows(values, rows), self.write_back, data)
        return result, max(load, -(-flops // process.compute), store, function.cycles), flops

    def _valid_rows(self, values: Sequence[Any], rows: int) -> int:
        """Padding stays where it was as long as the rows do."""
        if self.function.valid_rows is not None:
            return self.function.valid_rows(*values)
        first = _first_tile(values[0])
        return first.valid if rows == first.rows else rows


def _first_tile(value: Any) -> TileValue:
    return _first_tile(value[0]) if type(value) is tuple else value


def _value_shape(value: Any) -> tuple[int, int]:
    tile = _first_tile(value)
    return tile.rows, tile.cols


def _data(value: Any) -> Any:
    return tuple(_data(part) for part in value) if type(value) is tuple else value.data


@dataclass(frozen=True, slots=True)
class State:
    """The state of a reduction at run time."""

    rows: int = 0
    cols: int = 0
    valid: int = 0
    data: np.ndarray | None = None


@dataclass(frozen=True)
class Accum(Operator):
    """Folds every group of rank b, of one stream or of two equal-shaped ones, into one element.

    `types` are the element types of the inputs, from which the state of an empty group is made.
    """

    reduction: Reduction
    rank: int = 1
    bytes_each: int = 4
    write_back: bool = False
    types: tuple[MatrixType, ...] = ()

    @property
    def computes(self) -> bool:
        """Packing rows and signalling own no arithmetic."""
        return not self.reduction.grows and not self.reduction.cycles

    def flops(self, node: Node) -> Expr:
        """The update's count for every element."""
        return summed(self.reduction.flops(*_side_shapes(node)), cardinality(node.inputs[0].shape))

    def on_chip(self, node: Node, paper: bool) -> Expr:
        """The accumulator; in the paper a matrix product also holds its weights and 16 rows of input."""
        state = node.outputs[0].element.nbytes
        if paper and self.reduction.stationary is not None:
            return state + _stationary_bytes(node, self.reduction.stationary)
        return state

    def run(self, process: Process) -> Steps:
        """Emit when a group of rank b closes; a group that only holds empty groups gives the start state."""
        channels, out, rank = [group[0] for group in process.inputs], process.outputs[0][0], self.rank
        endless = endless_inputs(process)
        state, is_open = START, False
        while (token := (yield from get_together(process, channels, endless))) is not None:
            values, level = token
            is_empty = values[0] is EMPTY
            if level >= rank and is_empty and not is_open and level > rank:
                yield from process.put(out, EMPTY, level - rank)
                continue
            if not is_empty:
                state, cycles, flops = self.fold(process, state, values, flush=level >= rank)
                process.work(cycles)
                process.work_done += flops
            is_open = True
            if level >= rank:
                yield from process.put(out, self.value(process, state), level - rank)
                state, is_open = START, False

    def fold(self, process: Process, state: State, values: Sequence[TileValue], flush: bool) -> tuple[State, int, int]:
        """The state with one element folded in, the cycles that it takes, and its FLOPs; only a flush writes back."""
        reduction = self.reduction
        shapes = [(value.rows, value.cols) for value in values]
        (rows, cols), flops = reduction.shape(*shapes), reduction.flops(*shapes)
        # Padding stays where it was as long as the rows do.
        of = values[reduction.valid_from]
        valid = of.valid if of.rows == rows else rows
        data = None
        if process.engine.functional:
            before = reduction.start(*shapes) if state.data is None else state.data
            data = reduction.update(before, *(value.data for value in values))
        if reduction.grows:
            rows, valid = state.rows + rows, state.valid + valid
        load = process.hardware.read_cycles([load_cycles(process, value) for value in values])
        store = store_cycles(process, rows * cols * self.bytes_each) if flush and self.write_back else 0
        cycles = max(load, -(-flops // process.compute), store, reduction.cycles if flush else 0)
        return State(rows, cols, valid, data), cycles, flops

    def value(self, process: Process, state: State) -> TileValue:
        """The element that stands for the state; the start state for a group without elements."""
        if state.cols == 0:
            shapes = [_number_sides(element) for element in self.types]
            rows, cols = self.reduction.shape(*shapes)
            rows = 0 if self.reduction.grows else rows
            state = State(rows, cols, rows, self.reduction.start(*shapes) if process.engine.functional else None)
        nbytes = state.rows * state.cols * self.bytes_each
        return TileValue(state.rows, state.cols, nbytes, state.valid, self.write_back, state.data)


START = State()


def _number_sides(element: MatrixType) -> tuple[int, int]:
    """The sides of a tile type as numbers; an unknown side counts as 0 in an empty group."""
    rows, cols = as_expr(element.rows).constant, as_expr(element.cols).constant
    return rows or 0, cols or 0


@dataclass(frozen=True)
class Scan(Accum):
    """As Accum, but emits the state after every element, and starts afresh after each group."""

    def run(self, process: Process) -> Steps:
        """Levels pass through unchanged."""
        channels, out = [group[0] for group in process.inputs], process.outputs[0][0]
        endless = endless_inputs(process)
        state = START
        while (token := (yield from get_together(process, channels, endless))) is not None:
            values, level = token
            value: Any = EMPTY
            if values[0] is not EMPTY:
                state, cycles, flops = self.fold(process, state, values, flush=True)
                process.work(cycles)
                process.work_done += flops
                value = self.value(process, state)
            yield from process.put(out, value, level)
            if level >= self.rank:
                state = START


Record = TypeVar("Record", Function, Reduction)
Expansion = Callable[[Any, int], Sequence[Token]]


@dataclass(frozen=True)
class FlatMap(Operator):
    """Replaces every element by a stream of rank b; the streams are concatenated."""

    expand: Expansion
    rank: int = 0
    cycles: int = 0

    def run(self, process: Process) -> Steps:
        """The outer level moves to the last element that was produced, or becomes a bare stop.

        A group whose elements produced nothing still exists, so it is closed by itself before anything outside it.
        """
        channel, out, rank = process.inputs[0][0], process.outputs[0][0], self.rank
        vanished = sent = False
        while (token := (yield from process.get(channel))) is not None:
            value, level = token
            rides = False
            if value is not EMPTY:
                produced = self.expand(value, process.copy)
                vanished, sent = True, sent or bool(produced)
                for position, (item, item_level) in enumerate(produced):
                    rides = position == len(produced) - 1 and level > 0 and item is not EMPTY
                    process.work(self.cycles)
                    yield from process.put(out, item, level + rank if rides else item_level)
            if level > 0 and not rides:
                if level > 1 and vanished and not sent:
                    yield from process.put(out, EMPTY, 1 + rank)
                yield from process.put(out, EMPTY, level + rank)
            if level > 0:
                vanished = sent = False


def map_tiles(
    function: str | Function, *streams: Stream, write_back: bool = False, name: str | None = None, role: str = ""
) -> Stream:
    """Apply a function of the table to every element of one stream, or to the pairs of two.

    >>> from polyrhythm.stream import source, static
    >>> x = source("x", [1.0, 2.0], (static(2),))
    >>> print(map_tiles("add", x, x))
    add: [2] of tile[1,1] f32
    """
    record = _record(FUNCTIONS, function)
    require_equal_shapes(record.name, *streams)
    sides = [_checked_sides(record.name, stream) for stream in streams]
    if record.check is not None and not record.check(*sides):
        types = " and ".join(str(stream.element) for stream in streams)
        raise ElementMismatch(f"{record.name}: {types} do not fit", fix="transpose or retile one of them")
    rows, cols = record.shape(*sides)
    dtype = record.dtype or _first_type(streams[0].element).dtype
    port = Port(streams[0].shape, tile_type(rows, cols, dtype), streams[0].copies, role)
    return make(Map(record, dtype.nbytes, write_back), streams, (port,), name or record.name)[0]


def _record(table: dict[str, Record], wanted: str | Record) -> Record:
    """A record of a table by its name."""
    if not isinstance(wanted, str):
        return wanted
    if wanted not in table:
        raise ElementMismatch(
            f"there is no function {wanted!r} in the table",
            fix=f"choose {', '.join(table)}, or pass a record of your own",
        )
    return table[wanted]


def _checked_sides(operation: str, stream: Stream) -> tuple[Expr, Expr]:
    if not isinstance(stream.element, Tuple):
        require_tile(operation, stream)
    return _sides(stream.element)


def _first_type(element: Element) -> MatrixType:
    return _first_type(element.parts[0]) if isinstance(element, Tuple) else element  # type: ignore[return-value]


def accum(
    reduction: str | Reduction, *streams: Stream, rank: int = 1, write_back: bool = False, name: str | None = None
) -> Stream:
    """Fold the inner `rank` dims. With two streams this is the fused map-and-accumulate.

    >>> from polyrhythm.stream import source, static
    >>> print(accum("add", source("x", [[1.0, 2.0]], (static(1), static(2)))))
    accum add: [1] of tile[1,1] f32
    """
    return _reduced(Accum, reduction, streams, rank, write_back, name)


def scan(
    reduction: str | Reduction, *streams: Stream, rank: int = 1, write_back: bool = False, name: str | None = None
) -> Stream:
    """As `accum`, but with the state after every element.

    >>> from polyrhythm.stream import source, static
    >>> print(scan("add", source("x", [[1.0, 2.0]], (static(1), static(2)))))
    scan add: [1, 2] of tile[1,1] f32
    """
    return _reduced(Scan, reduction, streams, rank, write_back, name)


def _reduced(
    kind: type[Accum],
    reduction: str | Reduction,
    streams: tuple[Stream, ...],
    rank: int,
    write_back: bool,
    name: str | None,
) -> Stream:
    record = _record(REDUCTIONS, reduction)
    if record.grows and kind is Scan:
        raise ElementMismatch(f"scan {record.name}: the state would change its shape", fix="use accum")
    require_equal_shapes(record.name, *streams)
    require_rank(record.name, streams[0], 1, rank)
    types = tuple(require_tile(record.name, stream) for stream in streams)
    rows, cols = record.shape(*(_sides(element) for element in types))
    shape, copies = streams[0].shape, streams[0].copies
    outer = len(shape) - rank
    if record.grows:  # a ragged dim counts with its largest size
        rows = rows * prod(dim.size for dim in shape[outer:])
    dtype = record.dtype or types[0].dtype
    port = Port(shape if kind is Scan else shape[:outer], tile_type(rows, cols, dtype), copies)
    operator = kind(record, rank, dtype.nbytes, write_back, types)
    return make(operator, streams, (port,), name or f"{kind.label} {record.name}")[0]


def flat_map(
    expand: Expansion,
    stream: Stream,
    dims: Shape,
    element: Element,
    *,
    cycles: int = 0,
    name: str | None = None,
    role: str = "",
) -> Stream:
    """Replace every element by a stream of rank `len(dims) - 1`.

    `expand(value, copy)` returns the tokens of that stream, always the same for equal values. `dims` replaces the
    innermost dim of the input: its first dim counts what all elements of a group produce together.

    >>> from polyrhythm.stream import Tile, source, static
    >>> twice = flat_map(lambda v, copy: [(v, 0), (v, 0)], source("x", [1, 2], (static(2),)), (static(4),), Tile(1, 1))
    >>> print(twice)
    flat_map: [4] of tile[1,1] f32
    """
    if not dims:
        raise ShapeMismatch("flat_map: no dims", fix="name at least the dim that counts what is produced")
    shape = stream.shape[:-1] + dims
    operator = FlatMap(expand, len(dims) - 1, cycles)
    return make(operator, (stream,), (Port(shape, element, stream.copies, role),), name)[0]
