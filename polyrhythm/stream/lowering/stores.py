"""Outputs: how they are stored off chip, and how their arrays are read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.ir.graph import Node
from polyrhythm.stream.errors import AccessNotStreamable
from polyrhythm.stream.graph import Node as StreamNode
from polyrhythm.stream.graph import Stream
from polyrhythm.stream.lowering.fusing import materialised
from polyrhythm.stream.lowering.values import Load, Value, data_type
from polyrhythm.stream.operators.offchip import OffChip, linear_store

if TYPE_CHECKING:
    from polyrhythm.stream.lowering.core import Lowering
    from polyrhythm.stream.lowering.dealt import Dealing


@dataclass(frozen=True)
class Stored:
    """An output in off-chip memory: the array's name, the shape it is seen as, and the part that counts."""

    name: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    dtype: np.dtype

    def array(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """The output as the caller knows it, dims leading."""
        return np.asarray(arrays[self.name]).reshape(self.shape).transpose(self.order).astype(self.dtype)


def stored(lowering: Lowering, name: str, number: int) -> tuple[Stored, list[StreamNode | Stream]]:
    """Store an output; the result says where it is, and ends the program."""
    node = lowering.graph[name]
    if lowering.dealing is not None and name in lowering.dealing.nodes:
        return _dealt(lowering, lowering.dealing, node, number)
    value = lowering.value(name)
    if value.levels is not None:
        raise AccessNotStreamable(
            f"{described(node)} has a length that differs from step to step, so it cannot be stored as one array",
            fix="reduce it before it is an output",
            at=node.at,
        )
    stream = materialised(value)
    chunked = [axis for axis in value.axes if axis in value.inside.axes]
    if chunked and (chunked != [value.axes[-1]] or value.inside.axes[0] != value.axes[-1]):
        raise AccessNotStreamable(
            f"{described(node)} is an output whose tiles are no rows of it",
            fix="leave out the tile directive of its inner dims",
            at=node.at,
        )
    layout = [axis for axis in value.axes if axis not in chunked]
    axes = [*layout, *value.inside.axes]
    lengths = [value.size(axis) for axis in layout]
    lengths += [
        (length or 0) * (value.size(axis) or 0) if axis in chunked else length
        for axis, length in zip(value.inside.axes, value.inside.lengths, strict=True)
    ]
    known = [length for length in lengths if length is not None]
    rows, cols = value.inside.sides
    assert rows is not None
    count = prod(size for size in value.sizes if size is not None)
    tensor = OffChip(output_name(lowering, number), rows * count, cols, data_type(node.dtype))
    order = tuple(axes.index(axis) for axis in (*node.symbols, *range(len(node.shape))))
    return Stored(tensor.name, tuple(known), order, node.dtype), [linear_store(tensor, stream)]


def _dealt(lowering: Lowering, dealing: Dealing, node: Node, number: int) -> tuple[Stored, list[StreamNode | Stream]]:
    """An output of entries that are dealt out: stored by the number of the entry, or updated in place."""
    root = dealing.roots[node.name]
    if root in dealing.updates:
        old = lowering.graph[dealing.updates[root]]
        shape = tuple(lowering.problem.extent(old, symbol) for symbol in old.symbols)
        shape += tuple(lowering.problem.number(length) for length in old.shape)
        axes = [*old.symbols, *range(len(old.shape))]
        order = tuple(axes.index(axis) for axis in (*node.symbols, *range(len(node.shape))))
        return Stored(old.definitions[0].attributes["name"], shape, order, node.dtype), []
    value = lowering.operands[node.name]
    if isinstance(value, Load):
        value = dealing.dealt(value, 0)
    assert isinstance(value, Value)
    rows, cols = value.inside.sides
    assert rows is not None
    tensor = OffChip(output_name(lowering, number), rows * dealing.count, cols, data_type(node.dtype))
    lengths = tuple(length for length in value.inside.lengths if length is not None)
    return Stored(
        tensor.name, (dealing.count, *lengths), tuple(range(1 + len(lengths))), node.dtype
    ), [dealing.stored(value, node, tensor)]  # fmt: skip


def output_name(lowering: Lowering, number: int) -> str:
    """The name of the array of an output: "output", numbered where there are several or an input is called so."""
    names = [f"output {index}" if len(lowering.graph.outputs) > 1 else "output" for index in range(number + 1)]
    wanted = names[number]
    while wanted in lowering.graph.inputs:
        wanted = f"{wanted} stored"
    return wanted
