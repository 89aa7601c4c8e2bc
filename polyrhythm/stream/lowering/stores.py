"""Outputs: how they are stored off chip, and how their arrays are read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.ir.graph import Node
from polyrhythm.stream.errors import AccessNotStreamable, OperationNotStreamable
from polyrhythm.stream.graph import Node as StreamNode
from polyrhythm.stream.graph import Stream
from polyrhythm.stream.lowering.fusing import materialised
from polyrhythm.stream.lowering.values import Axis, Value, data_type
from polyrhythm.stream.operators.offchip import OffChip, linear_store

if TYPE_CHECKING:
    from polyrhythm.stream.lowering.core import Lowering
    from polyrhythm.stream.lowering.dealt import Dealing


@dataclass(frozen=True)
class Stored:
    """An output in off-chip memory, tile by tile: the array's name and how it is seen as what the caller knows.

    `shape` lists the walked axes, then those of a tile; `order` puts the parts of each axis next to each other.
    """

    name: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    result: tuple[int, ...]
    dtype: np.dtype

    def array(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """The output as the caller knows it, dims leading."""
        tiles = np.asarray(arrays[self.name]).reshape(self.shape)
        return tiles.transpose(self.order).reshape(self.result).astype(self.dtype)


def stored(lowering: Lowering, name: str, number: int) -> tuple[Stored, list[StreamNode | Stream]]:
    """Store an output; the result says where it is, and ends the program."""
    node, dealing = lowering.graph[name], lowering.dealing
    if dealing is not None and name in dealing.nodes:
        root = dealing.roots[name]
        if root in dealing.updates:
            old = lowering.graph[dealing.updates[root]]
            axes = (*old.symbols, *range(len(old.shape)))
            lengths = [lowering.problem.extent(old, symbol) for symbol in old.symbols]
            lengths += [lowering.problem.number(length) for length in old.shape]
            array = old.definitions[0].attributes["name"]
            return _view(lowering, node, array, axes, lengths), []
        operand = lowering.operands[name]
        if isinstance(operand, Value) and operand.lead is dealing.lead and not operand.metadata:
            return _dealt(lowering, dealing, node, operand, number)
    value = lowering.value(name)
    if value.levels is not None:
        raise AccessNotStreamable(
            f"{described(node)} has a length that differs from step to step, so it cannot be stored as one array",
            fix="reduce it before it is an output",
            at=node.at,
        )
    rows, cols = value.inside.sides
    count = prod(size for size in value.sizes if size is not None)
    assert rows is not None
    tensor = OffChip(output_name(lowering, number), rows * count, cols, data_type(node.dtype))
    view = _view(lowering, node, tensor.name, (*value.axes, *value.inside.axes), (*value.sizes, *value.inside.lengths))
    return view, [linear_store(tensor, materialised(value))]


def _dealt(
    lowering: Lowering, dealing: Dealing, node: Node, value: Value, number: int
) -> tuple[Stored, list[StreamNode | Stream]]:
    """An output of entries that are dealt out, stored by the number of the entry."""
    end = dealing.checked(value, node)
    rows, cols = end.inside.sides
    assert rows is not None
    sizes = (*dealing.counts, *end.sizes)
    count = prod(size for size in sizes if size is not None)
    tensor = OffChip(output_name(lowering, number), rows * count, cols, data_type(node.dtype))
    axes = (*dealing.dims, *end.axes, *end.inside.axes)
    view = _view(lowering, node, tensor.name, axes, (*sizes, *end.inside.lengths))
    return view, [dealing.stored(end, tensor)]


def _view(lowering: Lowering, node: Node, name: str, axes: Sequence[Axis], lengths: Sequence[int | None]) -> Stored:
    """How the tiles of an output are put together; an axis that is walked in chunks is there twice."""
    wanted: tuple[Axis, ...] = (*node.symbols, *range(len(node.shape)))
    result = [lowering.problem.extent(node, symbol) for symbol in node.symbols]
    result += [lowering.problem.number(length) for length in node.shape]
    shape = tuple(length for length in lengths if length is not None)
    order = tuple(place for axis in wanted for place, own in enumerate(axes) if own == axis)
    found = [prod(shape[place] for place, own in enumerate(axes) if own == axis) for axis in wanted]
    if len(shape) != len(axes) or len(order) != len(axes) or found != result:
        raise OperationNotStreamable(
            f"{described(node)} is an output whose tiles do not cover it once",
            fix="leave out the directives for its dims",
            at=node.at,
        )
    return Stored(name, shape, order, tuple(result), node.dtype)


def output_name(lowering: Lowering, number: int) -> str:
    """The name of the array of an output: "output", numbered where there are several or an input is called so."""
    names = [f"output {index}" if len(lowering.graph.outputs) > 1 else "output" for index in range(number + 1)]
    wanted = names[number]
    while wanted in lowering.graph.inputs:
        wanted = f"{wanted} stored"
    return wanted
