"""Off-chip operators: linear and random loads and stores of tiles.

A load has one tile in flight and pays whole bursts for every row. Off-chip traffic is the only quantity that leaves
the accelerator, so these operators alone contribute to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Literal

import numpy as np

from polyrhythm.stream.dims import cardinality, dynamic, static
from polyrhythm.stream.engine import Process, Steps
from polyrhythm.stream.errors import DataMismatch, ShapeMismatch
from polyrhythm.stream.expr import Expr, positive
from polyrhythm.stream.graph import Node, Operator, Port, Stream, make, make_node
from polyrhythm.stream.hardware import Hardware
from polyrhythm.stream.operators.common import affine_walk, require_equal_shapes, require_static_tile, row_major
from polyrhythm.stream.tokens import EMPTY
from polyrhythm.stream.types import BOOL, F32, U32, U64, DataType, Tile, TileValue

ACK = Tile(1, 1, BOOL)


@dataclass(frozen=True, eq=False)
class OffChip:
    """A matrix in off-chip memory, or `slabs` equal matrices, one for each copy of a replicated loader.

    `data` has shape (rows, cols) or (slabs, rows, cols), and is None where only timing matters. Tensors of one name
    and `layout` are the same memory. `box` cuts a tensor of several axes into boxes: the length of every axis, and of
    a tile along it. Tiles are then counted row-major along all axes, and the rows of one need not be neighbours. An
    array that is given to a run counts slabs along `slab_axis`.

    >>> OffChip("weights", 128, 64).grid((32, 64))
    (4, 1)
    """

    name: str
    rows: int
    cols: int
    dtype: DataType = F32
    data: np.ndarray | None = None
    slabs: int = 1
    layout: str = ""
    box: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    slab_axis: int = 0

    @property
    def key(self) -> str:
        """What the contents are called in a run.

        >>> OffChip("weights", 4, 4).key
        'weights'
        """
        return f"{self.name} by {self.layout}" if self.layout else self.name

    @property
    def steers(self) -> bool:
        """Whether the contents are whole numbers, by which other things may be chosen."""
        return self.dtype in (U32, U64)

    def grid(self, tile: tuple[int, int]) -> tuple[int, int]:
        """How many tiles there are along each side of a slab."""
        if self.box is not None:
            counts = [length // chunk for length, chunk in zip(*self.box, strict=True)]
            return prod(counts[:-1]), counts[-1]
        if self.rows % tile[0] or self.cols % tile[1]:
            raise ShapeMismatch(
                f"tensor {self.name} of {self.rows} x {self.cols} in tiles of {tile[0]} x {tile[1]}",
                fix="choose a tile whose sides divide those of the tensor",
            )
        return self.rows // tile[0], self.cols // tile[1]

    def window(self, array: np.ndarray, index: int, tile: tuple[int, int]) -> np.ndarray:
        """Tile `index` of the contents, counted row-major through all slabs, as a view with the axes of the box."""
        down, across = self.grid(tile)
        lengths, chunks = self.box or ((self.rows, self.cols), tile)
        slab, within = divmod(index, down * across)
        counts = [length // chunk for length, chunk in zip(lengths, chunks, strict=True)]
        place = np.unravel_index(within, counts)
        whole = (array if self.slabs == 1 else array[slab]).reshape(lengths)
        return whole[tuple(slice(at * n, (at + 1) * n) for at, n in zip(place, chunks, strict=True))]


@dataclass(frozen=True)
class _OffChipOperator(Operator):
    """What all four have in common: a tensor, a tile, and the bytes it moves."""

    tensor: OffChip
    tile: Tile

    def off_chip(self, node: Node, burst: int) -> Expr:
        """One tile for every element that passes."""
        row_bytes = -(-self.tile.cols * self.tile.dtype.nbytes // burst) * burst
        return cardinality(self.moved(node)) * (self.tile.rows * row_bytes)

    def on_chip(self, node: Node, paper: bool) -> Expr:
        """One tile in the figures, two (a double buffer) in the paper."""
        return self.tile.nbytes * (2 if paper else 1)

    def moved(self, node: Node) -> Any:
        """The shape of the stream of tiles that is moved."""
        return node.outputs[0].shape

    def fetch(self, process: Process, index: int) -> Steps:
        """Load one tile."""
        self._check(process, index)
        yield from process.transfer(*self.transfer(process.hardware, "read"))
        return self.value(process, index)

    def value(self, process: Process, index: int) -> TileValue:
        """What is loaded from a place; whole numbers are known without values too."""
        tile, data = self.tile, None
        if process.engine.functional or self.tensor.steers:
            array = process.engine.arrays[self.tensor.key]
            data = self.tensor.window(array, index, (tile.rows, tile.cols)).reshape(tile.rows, tile.cols).copy()
        return TileValue(tile.rows, tile.cols, tile.rows * tile.cols * tile.dtype.nbytes, from_memory=True, data=data)

    def keep(self, process: Process, index: int, value: TileValue) -> Steps:
        """Store one tile and wait until the write is acknowledged."""
        self._check(process, index)
        yield from process.transfer(*self.transfer(process.hardware, "write"))
        if process.engine.functional:
            array = process.engine.arrays[self.tensor.key]
            window = self.tensor.window(array, index, (self.tile.rows, self.tile.cols))
            assert value.data is not None
            window[...] = value.data.reshape(window.shape)

    def _check(self, process: Process, index: int) -> None:
        count = self.count
        if not 0 <= index < count:
            raise DataMismatch(
                f"{process.name}: tile {index} of {self.tensor.name}, which has {count} of {self.tile}",
                fix=f"make addresses from 0 to {count - 1}, and send no more tiles than the tensor holds",
                at=process.node.source,
            )

    @cached_property
    def count(self) -> int:
        """How many tiles the tensor has."""
        down, across = self.tensor.grid((self.tile.rows, self.tile.cols))
        return self.tensor.slabs * down * across

    def slab(self, process: Process) -> tuple[int, int]:
        """The first tile of the slab of a copy, and how many tiles a slab has."""
        tiles = self.count // self.tensor.slabs
        return process.copy * tiles if self.tensor.slabs > 1 else 0, tiles

    def transfer(self, hardware: Hardware, way: Literal["read", "write"]) -> tuple[int, int]:
        """Bytes moved for a tile, whole bursts a row, and the cycles until they are there after the last burst."""
        nbytes = hardware.requested_bytes(self.tile.rows, self.tile.cols * self.tile.dtype.nbytes)
        latency = hardware.read_latency if way == "read" else hardware.write_latency
        return nbytes, latency + hardware.row_latency(nbytes)


@dataclass(frozen=True)
class LinearOffChipLoad(_OffChipOperator):
    """An affine walk over the tiles of a tensor, once, or once for every element of a reference stream.

    With `held`, tiles are loaded for the first element and kept on chip for all others.
    """

    walk: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    held: bool = False

    def moved(self, node: Node) -> Any:
        """One walk for every reference element; if tiles are held, one if there is any."""
        shape = node.outputs[0].shape
        if not self.held:
            return shape
        return (dynamic(positive(cardinality(node.inputs[0].shape))), *shape[len(shape) - len(self.walk) :])

    def on_chip(self, node: Node, paper: bool) -> Expr:
        """One tile, or all that are held; twice that in the paper."""
        return super().on_chip(node, paper) * (prod(self.walk) if self.held else 1)

    def run(self, process: Process) -> Steps:
        """Read the whole walk for every reference element; without a reference, once."""
        if not process.inputs:
            yield from self._one_walk(process, 0)
            return
        channel, out, depth = process.inputs[0][0], process.outputs[0][0], len(self.walk)
        held: list[TileValue] | None = [] if self.held else None
        while (token := process.take(channel) if channel.items else (yield from process.get(channel))) is not None:
            if token[0] is EMPTY:
                yield from process.put(out, EMPTY, token[1] + depth)
            else:
                yield from self._one_walk(process, token[1], held)

    def _one_walk(self, process: Process, outer_level: int, held: list[TileValue] | None = None) -> Steps:
        base, tiles = self.slab(process)
        out, depth = process.outputs[0][0], len(self.walk)
        if 0 in self.walk:
            raise ShapeMismatch(f"{process.name}: an empty walk", fix="leave the load out", at=process.node.source)
        for place, (index, level) in enumerate(affine_walk(self.walk, self.stride)):
            if held is not None and place < len(held):
                value = held[place]
                process.work(process.hardware.element_cycles)
            else:
                value = yield from self.fetch(process, base + index % tiles)
                if held is not None:
                    held.append(value)
            yield from process.put(out, value, level + outer_level if level == depth else level)


@dataclass(frozen=True)
class LinearOffChipStore(_OffChipOperator):
    """Writes tiles in the order of their arrival."""

    def moved(self, node: Node) -> Any:
        """A store moves what it reads."""
        return node.inputs[0].shape

    def run(self, process: Process) -> Steps:
        """The slot of a tile is freed only when its write is acknowledged."""
        channel, index = process.inputs[0][0], 0
        base, tiles = self.slab(process)
        while (token := (yield from process.peek(channel))) is not None:
            if token[0] is not EMPTY:
                # A tile beyond the own slab would land in that of another copy.
                place = base + index if index < tiles else self.count + index
                yield from self.keep(process, place, token[0])
                index += 1
            yield from process.get(channel)


@dataclass(frozen=True)
class RandomOffChipLoad(_OffChipOperator):
    """Loads the tile whose index each element names."""

    def run(self, process: Process) -> Steps:
        """One tile for every address; what reads another slab than before is reconfigured first."""
        channel, out = process.inputs[0][0], process.outputs[0][0]
        slab, tiles = -1, self.slab(process)[1]
        while (token := process.take(channel) if channel.items else (yield from process.get(channel))) is not None:
            value = token[0]
            if value is not EMPTY:
                index = int(value.data[0, 0])
                if self.tensor.slabs > 1 and slab not in (-1, index // tiles):
                    process.work(process.hardware.reconfigure_cycles)
                slab = index // tiles
                value = yield from self.fetch(process, index)
            yield from process.put(out, value, token[1])


@dataclass(frozen=True)
class RandomOffChipStore(_OffChipOperator):
    """Writes each tile where its address says, and acknowledges it; the acknowledgements order later reads."""

    @staticmethod
    def acknowledgement() -> TileValue:
        """What is sent for a write."""
        return TileValue(1, 1, 1, data=np.ones((1, 1), bool))

    def run(self, process: Process) -> Steps:
        """The slots of address and tile are freed only when the write is acknowledged."""
        addresses, tiles, out = process.inputs[0][0], process.inputs[1][0], process.outputs[0][0]
        while (token := (yield from process.peek(addresses))) is not None:
            value = token[0]
            if value is not EMPTY:
                tile = yield from process.peek(tiles)
                while tile is not None and tile[0] is EMPTY:
                    yield from process.get(tiles)
                    tile = yield from process.peek(tiles)
                yield from self.keep(process, int(value.data[0, 0]), tile[0])
                yield from process.get(tiles)
                value = self.acknowledgement()
            yield from process.get(addresses)
            yield from process.put(out, value, token[1])


def linear_load(
    tensor: OffChip,
    tile: tuple[int, int],
    walk: Sequence[int],
    stride: Sequence[int] | None = None,
    *,
    ref: Stream | None = None,
    held: bool = False,
    name: str | None = None,
    role: str = "",
) -> Stream:
    """Load tiles by an affine walk: once, or once for every element of `ref`.

    `walk` gives the sizes of the new inner dims and `stride` the tile step of each (row-major by default); a stride
    of 0 reads again. With `held`, tiles are loaded for the first element of `ref` and kept on chip for the others.

    >>> print(linear_load(OffChip("x", 8, 64, BOOL), (1, 64), (8,)))
    load x: [1, 8] of tile[1,64] bool
    """
    element = _tile_of(tensor, tile)
    steps = tuple(stride) if stride is not None else row_major(walk)
    if len(steps) != len(walk):
        raise ShapeMismatch(f"linear_load: walk {tuple(walk)} with stride {steps}", fix="give one stride a dim")
    inner = tuple(static(size) for size in walk)
    outer = ref.shape if ref is not None else (static(1),)
    copies = ref.copies if ref is not None else tensor.slabs
    _check_slabs(tensor, copies)
    port = Port(outer + inner, element, copies, role)
    operator = LinearOffChipLoad(tensor, element, tuple(walk), steps, held and ref is not None)
    return make(operator, () if ref is None else (ref,), (port,), name or f"load {tensor.name}", copies)[0]


def linear_store(tensor: OffChip, stream: Stream, *, name: str | None = None) -> Node:
    """Store tiles in the order of their arrival. Ends a program.

    >>> from polyrhythm.stream import F32, source, static
    >>> numbers = source("numbers", [1.0, 2.0], (static(2),))
    >>> linear_store(OffChip("y", 2, 1, F32), numbers).name
    'store y'
    """
    element = require_static_tile("linear_store", stream)
    _check_slabs(tensor, stream.copies)
    return make_node(LinearOffChipStore(tensor, element), (stream,), (), name or f"store {tensor.name}")


def random_load(
    tensor: OffChip, tile: tuple[int, int], addresses: Stream, *, name: str | None = None, role: str = ""
) -> Stream:
    """Load the tile whose index every element of `addresses` names.

    >>> from polyrhythm.stream import U64, source, static
    >>> indices = source("indices", [3, 1], (static(2),), Tile(1, 1, U64))
    >>> print(random_load(OffChip("x", 8, 64, BOOL), (1, 64), indices))
    load x: [2] of tile[1,64] bool
    """
    element = _tile_of(tensor, tile)
    port = Port(addresses.shape, element, addresses.copies, role)
    return make(RandomOffChipLoad(tensor, element), (addresses,), (port,), name or f"load {tensor.name}")[0]


def random_store(
    tensor: OffChip, addresses: Stream, stream: Stream, *, name: str | None = None, role: str = ""
) -> Stream:
    """Store every tile where its address says; the result is one acknowledgement for each.

    >>> from polyrhythm.stream import F32, U64, source, static
    >>> indices = source("indices", [1, 0], (static(2),), Tile(1, 1, U64))
    >>> numbers = source("numbers", [1.0, 2.0], (static(2),))
    >>> print(random_store(OffChip("y", 2, 1, F32), indices, numbers))
    store y: [2] of tile[1,1] bool
    """
    element = require_static_tile("random_store", stream)
    require_equal_shapes("random_store", addresses, stream)
    port = Port(addresses.shape, ACK, addresses.copies, role)
    return make(RandomOffChipStore(tensor, element), (addresses, stream), (port,), name or f"store {tensor.name}")[0]


def _tile_of(tensor: OffChip, tile: tuple[int, int]) -> Tile:
    tensor.grid(tile)
    return Tile(tile[0], tile[1], tensor.dtype)


def _check_slabs(tensor: OffChip, copies: int) -> None:
    if tensor.slabs not in (1, copies):
        raise ShapeMismatch(
            f"tensor {tensor.name} has {tensor.slabs} slabs, and {copies} copies read or write it",
            fix="give the tensor one slab, or one for every copy",
        )
