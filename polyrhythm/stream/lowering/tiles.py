"""Operations of the op table on tiles: what Map, Accum and Scan compute.

A tile holds a part of a value, for one step or for a chunk of steps. The signature of an operation says along which
axes a part can be computed alone: there the part is as long as it is in the tile, one position where the stream walks
it. Chunks of steps become leading axes; operations that broadcast take them as they are, contractions get one more
letter each, anything else is applied step by step. No operation is known by name: its FLOPs come from a table of
costs and from the roles of its axes.

What waits to be computed of the tiles of a stream, and when it becomes a Map.

Elementwise operations of one stream are collected in the value and become a single Map when a stream is wanted. What
only moves elements inside a tile never does: whoever reads the value does that too.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from polyrhythm.compiler.ir.dtypes import accumulator, identity
from polyrhythm.compiler.ir.ops import TABLE, elementwise
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.ops.record import Signature
from polyrhythm.compiler.ir.ops.reductions import COMBINE
from polyrhythm.stream.functions import Function, Reduction, TileShape
from polyrhythm.stream.graph import Stream
from polyrhythm.stream.lowering.values import Axis, Block, Fused, Value, data_type, packed_rows, tile_sides
from polyrhythm.stream.operators.higher import map_tiles
from polyrhythm.stream.operators.structure import restate

BROADCASTING = frozenset(op.name for op in elementwise.OPS)
"""The operations whose operands broadcast against each other."""

FLOPS = {"exp": 4, "log": 4, "log1p": 4, "expm1": 4, "tanh": 4, "sqrt": 4, "sin": 4, "cos": 4, "erf": 4, "pow": 4}
"""FLOPs an element where it is not one; those of a function that is evaluated by a polynomial."""

MOVING = frozenset({"select", "cast", "detach"})
"""Elementwise operations that choose or relabel and compute nothing."""


@dataclass(frozen=True)
class LocalOp:
    """One operation on the parts that tiles hold.

    `lengths` gives every label of the signature its length in a tile; `batch` lists the chunks of steps, outermost
    first. `axes` lists the axes of each operand's block in terms of its own axes and of dims.
    """

    op: str
    attributes: Mapping[str, Any]
    signature: Signature
    lengths: Mapping[int, int]
    batch: tuple[Axis, ...]
    operands: tuple[Block, ...]

    @property
    def result(self) -> Block:
        """The block of the result: chunks of steps, then the axes of the value that lie in the tile."""
        sizes = {axis: n for block in self.operands for axis, n in zip(block.axes, block.lengths, strict=True)}
        own = [(axis, self._length(label)) for axis, label in enumerate(self.signature.result)]
        kept = [(axis, length) for axis, length in own if length is not None]
        axes = (*self.batch, *(axis for axis, _ in kept))
        return Block(axes, (*(sizes[axis] for axis in self.batch), *(length for _, length in kept)))

    def _length(self, label: int | None) -> int | None:
        """The length of a label inside a tile; None where the stream walks it one by one."""
        return 1 if label is None else self.lengths.get(label)

    def __call__(self, *arrays: np.ndarray) -> np.ndarray:
        """The part of the result, shaped like its block, from the parts of the operands."""
        parts = [
            self._canonical(array, block, labels)
            for array, block, labels in zip(arrays, self.operands, self.signature.operands, strict=True)
        ]
        whole = tuple(self._length(label) or 1 for label in self.signature.result)
        attributes = self._attributes(whole)
        if self.op in BROADCASTING:
            rank = len(self.batch) + len(whole)
            aligned = [_with_ones(part, len(self.batch), rank) for part in parts]
            result = TABLE[self.op].numpy(*aligned, **attributes)
        elif self.op == "einsum":
            result = self._contracted(parts, attributes)
        else:
            result = self._one_by_one(parts, attributes)
        batch = np.broadcast_shapes(*(part.shape[: len(self.batch)] for part in parts), ())
        # A walked axis has length one here, and is no axis of the tile.
        kept = [n for n, label in zip(whole, self.signature.result, strict=True) if self._length(label) is not None]
        return np.broadcast_to(result, (*batch, *np.shape(result)[len(batch) :])).reshape((*batch, *kept))

    def _canonical(self, array: np.ndarray, block: Block, labels: Sequence[int | None]) -> np.ndarray:
        """Batch axes first, in order, then all axes of the operand; length one where the tile lacks one."""
        array = block.array(array)
        order = [block.axes.index(axis) for axis in self.batch if axis in block.axes]
        own = [axis for axis in range(len(labels)) if axis in block.axes]
        array = array.transpose([*order, *(block.axes.index(axis) for axis in own)])
        index = [slice(None) if axis in block.axes else None for axis in (*self.batch, *range(len(labels)))]
        return array[tuple(index)]

    def _attributes(self, whole: tuple[int, ...]) -> dict[str, Any]:
        """The attributes for parts: a shape that is asked for is that of the part."""
        given = dict(self.attributes)
        if "shape" in given:
            given["shape"] = whole
        if "lengths" in given:
            kept = [label in self.signature.operands[0] for label in self.signature.result]
            given["lengths"] = tuple(
                n if k else wanted for n, k, wanted in zip(whole, kept, given["lengths"], strict=True)
            )
        return given

    def _contracted(self, parts: list[np.ndarray], attributes: Mapping[str, Any]) -> np.ndarray:
        words, output = parse_spec(attributes["spec"])
        free = [letter for letter in string.ascii_letters if letter not in attributes["spec"]]
        letters = free[: len(self.batch)]
        inputs = []
        for word, block in zip(words, self.operands, strict=True):
            inputs.append("".join(c for c, axis in zip(letters, self.batch, strict=True) if axis in block.axes) + word)
        present = "".join(c for c in letters if any(c in word for word in inputs))
        squeezed = [
            part.reshape([n for n, axis in zip(part.shape, self.batch, strict=False) if axis in block.axes]
                         + list(part.shape[len(self.batch):]))
            for part, block in zip(parts, self.operands, strict=True)
        ]  # fmt: skip
        return TABLE["einsum"].numpy(*squeezed, spec=f"{','.join(inputs)}->{present}{output}")

    def _one_by_one(self, parts: list[np.ndarray], attributes: Mapping[str, Any]) -> np.ndarray:
        batch = np.broadcast_shapes(*(part.shape[: len(self.batch)] for part in parts), ())
        spread = [np.broadcast_to(part, (*batch, *part.shape[len(self.batch) :])) for part in parts]
        results = [TABLE[self.op].numpy(*(part[index] for part in spread), **attributes) for index in np.ndindex(batch)]
        shape = np.shape(results[0]) if results else ()
        return np.array(results).reshape((*batch, *shape))


def _with_ones(part: np.ndarray, batch: int, rank: int) -> np.ndarray:
    """An operand of a broadcasting operation with as many axes of its own as the result."""
    return part.reshape((*part.shape[:batch], *(1,) * (rank - part.ndim), *part.shape[batch:]))


def flops_each(op: str) -> int:
    """FLOPs an element of a broadcasting operation, or of one that only moves elements.

    >>> flops_each("add"), flops_each("exp"), flops_each("transpose")
    (1, 4, 0)
    """
    return 0 if op in MOVING or op not in BROADCASTING else FLOPS.get(op, 1)


def local_flops(local: LocalOp, accumulates: bool) -> Callable[..., Any]:
    """FLOPs for one element: of a contraction twice its products, otherwise one an element that is read or made."""
    roles = local.signature.roles
    reduces = accumulates or any(role.kind == "reduce" for role in roles)
    labels = {label for labels in local.signature.operands for label in labels if label is not None}
    points = prod(local.lengths[label] for label in labels if label in local.lengths)
    chunks = {
        axis: n for block in local.operands for axis, n in zip(block.axes, block.lengths, strict=True)
        if axis in local.batch
    }  # fmt: skip
    points *= prod(n for n in chunks.values() if n is not None)
    moves = all(role.kind == "parallel" for role in roles) and local.op not in BROADCASTING and local.op != "einsum"
    factor = 0 if moves else 2 if reduces and len(local.operands) > 1 else 1
    if local.op in BROADCASTING:
        factor = flops_each(local.op)

    def count(*sides: TileShape) -> Any:
        packed = packed_rows(sides, local.operands) if None in chunks.values() else 1
        return factor * points * packed

    return count


def map_function(
    name: str,
    compute: Callable[..., np.ndarray],
    blocks: Sequence[Block],
    result: Block,
    dtype: np.dtype,
    flops: Callable[..., Any],
    stationary: int | None = None,
    cycles: int = 0,
) -> Function:
    """A function for Map from one of arrays."""

    def on_tiles(*tiles: np.ndarray) -> np.ndarray:
        value = compute(*(block.array(tile) for block, tile in zip(blocks, tiles, strict=True)))
        rows, cols = result.sides
        return np.asarray(value).reshape(-1 if rows is None else rows, cols)

    return Function(name, on_tiles, _shape(result, blocks), flops, data_type(dtype), cycles, stationary)


def _shape(result: Block, blocks: Sequence[Block]) -> Callable[..., TileShape]:
    return lambda *sides: tile_sides(result, sides, blocks)


def reduction(
    name: str,
    compute: Callable[..., np.ndarray],
    blocks: Sequence[Block],
    result: Block,
    monoid: str,
    dtype: np.dtype,
    flops: Callable[..., Any],
) -> Reduction:
    """A reduction for Accum and Scan: parts are computed alone and combined by the monoid."""

    shape = _shape(result, blocks)

    def start(*sides: TileShape) -> np.ndarray:
        return np.full(shape(*sides), identity(monoid, accumulator(dtype))[()])

    def update(state: np.ndarray, *tiles: np.ndarray) -> np.ndarray:
        part = compute(*(block.array(tile) for block, tile in zip(blocks, tiles, strict=True)))
        with np.errstate(all="ignore"):
            return np.asarray(COMBINE[monoid](state, part.reshape(state.shape)))

    return Reduction(name, start, update, shape, flops, data_type(dtype))


def materialised(operand: Value) -> Stream:
    """The stream of a value; what is fused becomes a Map, once."""
    fused = operand.fused
    if fused is None:
        return operand.base
    if not fused.made:

        def flops(*sides: Any) -> Any:
            rows, cols = tile_sides(fused.block, sides[:1], [operand.block])
            return fused.flops * rows * cols

        blocks = [operand.block, *(value.inside for value in fused.metadata)]
        cycles = 0 if fused.flops else 1
        function = map_function(fused.name, fused.compute, blocks, fused.block, operand.dtype, flops, None, cycles)
        streams = one_shape([operand.base, *(value.base for value in fused.metadata)])
        fused.made.append(map_tiles(function, *streams, name=fused.name))
    return fused.made[0]


def carried(operand: Value) -> tuple[Stream, Block, Fused | None]:
    """The stream of a value to be repeated or rearranged, and what its readers still have to do with its tiles."""
    if operand.fused is not None and operand.fused.free:
        return operand.base, operand.block, replace(operand.fused, made=[])
    return materialised(operand), operand.inside, None


def as_rows(operand: Value) -> Stream:
    """The stream of a value whose tiles have the sides of its block: a column that is read as a row is turned."""
    stream, block = materialised(operand), operand.inside
    rows, cols = block.sides
    if rows is None or (stream.element.rows, stream.element.cols) == (rows, cols):  # type: ignore[union-attr]
        return stream
    turned = map_function("turn", lambda array: array, [block], block, operand.dtype, lambda *sides: 0, cycles=1)
    return map_tiles(turned, stream, name=f"turn {stream.name}")


def one_shape(streams: list[Stream]) -> list[Stream]:
    """Streams whose points are the same, under one shape."""
    return [streams[0], *(s if s.shape == streams[0].shape else restate(s, streams[0].shape) for s in streams[1:])]
