"""Decode attention as a stream program: ragged KV lengths dealt out to regions by three policies.

One decode step for a batch of requests. Each region walks the KV tiles of its request, splits the last one off, appends
the new row, writes it back and puts it into its place again; scores, weights and the weighted sum follow tile by tile.
A region reads the cache of its next request only after the write of the previous one was acknowledged. Requests reach
the regions in blocks (coarse), in strict rotation (interleave, where a long request holds up all others), or whenever a
region signals that it has read all of its keys (dynamic, a feedback loop).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyrhythm.stream.dims import Dim, Shape, dynamic, ragged, static
from polyrhythm.stream.directives import Directive, ParallelizeDirective, find
from polyrhythm.stream.errors import StreamError
from polyrhythm.stream.expr import symbol
from polyrhythm.stream.graph import Program, Stream
from polyrhythm.stream.hardware import Hardware
from polyrhythm.stream.operators.higher import accum, flat_map, map_tiles
from polyrhythm.stream.operators.offchip import ACK, OffChip, linear_load, random_load, random_store
from polyrhythm.stream.operators.routing import eager_merge, parallelize_stream, partition, reassemble
from polyrhythm.stream.operators.shapes import expand, flatten, promote, zip_streams
from polyrhythm.stream.operators.structure import feedback, restate, source, stack, unstack
from polyrhythm.stream.tokens import Token
from polyrhythm.stream.types import BF16, F32, U64, Selector, SelectorValue, Tile, TileValue

ADDRESS = Tile(1, 1, U64)
REQUEST = Tile(1, 2, U64)
METADATA, WRITE_BACK = "metadata", "write back"


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of one KV head: query heads that share it, head width, rows of a KV tile.

    >>> AttentionShape().tiles(32)
    2
    """

    queries: int = 8
    width: int = 64
    tile_rows: int = 32

    def tiles(self, length: int) -> int:
        """KV tiles of a request once its new row is appended."""
        return -(-(length + 1) // self.tile_rows)


@dataclass(frozen=True)
class AttentionData:
    """Real values for functional mode.

    `query` has shape (batch, queries, width); `key` and `value` (batch, capacity, width) hold the caches, with a
    capacity of whole tiles; `new_key` and `new_value` have shape (batch, width).
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    new_key: np.ndarray
    new_value: np.ndarray


def attention_hardware() -> Hardware:
    """The accelerator of the attention study: shallow FIFOs, deeper ones for metadata and write-back.

    >>> attention_hardware().depth(METADATA)
    16
    """
    return Hardware(compute=2048, fifo_depth=1, fifo_depths={METADATA: 16, WRITE_BACK: 4})


def attention_reference(data: AttentionData, lengths: Sequence[int]) -> np.ndarray:
    """The step in plain NumPy: softmax attention over each cache and its new row.

    >>> zeros = np.zeros((1, 2))
    >>> data = AttentionData(np.zeros((1, 3, 2)), np.zeros((1, 4, 2)), np.ones((1, 4, 2)), zeros, zeros + 3)
    >>> attention_reference(data, [1])[0, 0].tolist()
    [2.0, 2.0]
    """
    results = []
    for request, length in enumerate(lengths):
        keys = np.vstack([data.key[request, :length], data.new_key[request]])
        values = np.vstack([data.value[request, :length], data.new_value[request]])
        scores = data.query[request] @ keys.T
        weights = np.exp(scores - scores.max(1, keepdims=True))
        results.append(weights @ values / weights.sum(1, keepdims=True))
    return np.array(results)


def build_attention(
    lengths: Sequence[int],
    directives: Iterable[Directive],
    shape: AttentionShape | None = None,
    data: AttentionData | None = None,
    *,
    safe_softmax: bool = True,
) -> Program:
    """One decode step as a stream program, scheduled by `parallelize("request", regions, policy)`.

    The store of the results ends the program. `safe_softmax` keeps a running maximum; without it, exponentials are
    taken as they are.

    >>> from polyrhythm.stream.directives import parallelize
    >>> program = build_attention([5, 40], [parallelize("request", 2, "coarse")])
    >>> "load keys" in [node.name for node in program.nodes]
    True
    """
    dealt = find(tuple(directives), ParallelizeDirective, "request")
    if dealt is None:
        raise StreamError(
            "build_attention: the dim request needs a parallelize directive",
            fix='add parallelize("request", regions=4, policy="dynamic")',
        )
    step = DecodeStep([int(length) for length in lengths], dealt, shape or AttentionShape(), data, safe_softmax)
    return Program(*step.build())


@dataclass(frozen=True)
class Requests:
    """What a region gets for each of its requests."""

    query: Stream
    new_key: Stream
    new_value: Stream
    which: Stream


class DecodeStep:
    """The pieces of one decode step; each method builds one stage, all regions at once as copies."""

    def __init__(
        self,
        lengths: list[int],
        dealt: ParallelizeDirective,
        shape: AttentionShape,
        data: AttentionData | None,
        safe_softmax: bool,
    ) -> None:
        self.lengths = lengths
        self.regions = dealt.regions
        self.policy = dealt.policy
        self.shape = shape
        self.safe_softmax = safe_softmax
        self.capacity = max(shape.tiles(length) for length in lengths)
        self.tensors = self._tensors(data)
        self.requests: Dim = dynamic(symbol("requests_of_region", self.regions))
        self.block = dealt.block
        self.tiles: Shape = (self.requests, ragged("kv_tiles", symbol("kv_tiles_of_region", self.regions)))

    def _tensors(self, data: AttentionData | None) -> dict[str, OffChip]:
        batch, width, queries = len(self.lengths), self.shape.width, self.shape.queries
        cache_rows = batch * self.capacity * self.shape.tile_rows

        def array(name: str, rows: int) -> np.ndarray | None:
            if data is None:
                return None
            given = getattr(data, name)
            if name not in ("key", "value"):
                return given.reshape(rows, width)
            padded = np.zeros((batch, self.capacity * self.shape.tile_rows, width))
            kept = min(given.shape[1], padded.shape[1])
            padded[:, :kept] = given[:, :kept]
            return padded.reshape(rows, width)

        sizes = {"query": batch * queries, "key": cache_rows, "value": cache_rows, "new_key": batch, "new_value": batch}
        tensors = {name: OffChip(name, rows, width, BF16, array(name, rows)) for name, rows in sizes.items()}
        tensors["output"] = OffChip("output", batch * queries, width, F32)
        return tensors

    def build(self) -> list[Stream]:
        """The whole step; it ends in the acknowledgements of the results."""
        free = feedback("region is free", (self.requests,), ACK, [True], self.regions, METADATA)
        mine = self.dealt_out(free.stream)
        keys_written, values_written = (
            feedback(f"{name} written", (self.requests,), ACK, [True], self.regions) for name in ("key", "value")
        )
        admitted = zip_streams(mine.which, keys_written.stream, values_written.stream, name="admit")
        addresses = flat_map(self._addresses, admitted, self.tiles, ADDRESS, cycles=1, name="addresses")
        keys, stored = self.cache("key", addresses, mine.new_key, mine.which)
        keys_written.connect(stored)
        values, stored = self.cache("value", addresses, mine.new_value, mine.which)
        values_written.connect(stored)
        if self.policy == "dynamic":
            free.connect(accum("all_read", keys, name="keys read"))
        query = expand(mine.query, keys, 1, name="repeat query")
        result = self.softmax(map_tiles("score", query, keys, name="scores"), values)
        where = self._metadata(mine.which, _request_number, "result address")
        return [random_store(self.tensors["output"], where, result)]

    def dealt_out(self, free: Stream) -> Requests:
        """Requests on their way to the regions, by the policy."""
        batch = len(self.lengths)
        rows = [[request, length] for request, length in enumerate(self.lengths)]
        if self.policy == "coarse":
            block = max(self.block, -(-batch // self.regions))
            blocks = [rows[region * block : (region + 1) * block] for region in range(self.regions)]
            which = source("requests", blocks, (self.requests,), REQUEST, self.regions, METADATA)
            own = self._metadata(which, _request_number, "request number")
            loaded = [random_load(tensor, tile, own) for tensor, tile in self._request_tensors()]
            return Requests(promote(loaded[0], 0, name="query"), loaded[1], loaded[2], which)
        which = source("requests", rows, (static(batch),), REQUEST, role=METADATA)
        loaded = [
            flatten(linear_load(tensor, tile, (batch,)), 0, 1, name=f"all of {tensor.name}")
            for tensor, tile in self._request_tensors()
        ]
        # The query gets its inner dim here and not in the region, where it would add a place to wait.
        streams = [promote(loaded[0], 0, name="query"), loaded[1], loaded[2], which]
        if self.policy == "interleave":
            dealt = [self._in_rotation(stream) for stream in streams]
        else:
            _, origin = eager_merge(free, selector="requests_of_region", name="next region", role=METADATA)
            origin = restate(origin, (static(batch),))
            dealt = [
                partition(stream, origin, stream.rank, name=f"deal {stream.name}", role=stream.role)
                for stream in streams
            ]
        return Requests(*dealt)

    def _in_rotation(self, stream: Stream) -> Stream:
        dealt = parallelize_stream(stream, self.regions, name=f"deal {stream.name}", role=stream.role)
        return restate(dealt, (self.requests, *dealt.shape[1:]))

    def _request_tensors(self) -> list[tuple[OffChip, tuple[int, int]]]:
        row = (1, self.shape.width)
        query = (self.shape.queries, self.shape.width)
        return [(self.tensors["query"], query), (self.tensors["new_key"], row), (self.tensors["new_value"], row)]

    def cache(self, name: str, addresses: Stream, new_row: Stream, which: Stream) -> tuple[Stream, Stream]:
        """The tiles of a cache with the new row in place, and the acknowledgements of its write."""
        kind = Selector(f"last_{name}_tile", 2, 1)
        is_last = flat_map(self._is_last, which, self.tiles, kind, name=f"last {name} tile", role=METADATA)
        loaded = random_load(
            self.tensors[name], (self.shape.tile_rows, self.shape.width), addresses, name=f"load {name}s"
        )
        others, last = unstack(partition(loaded, is_last, 0, name=f"split {name}s"), 2)
        row = zip_streams(new_row, self._metadata(which, self._position, f"{name} position"), name=f"new {name} row")
        last = restate(last, (self.requests,))
        appended = map_tiles("append_row", last, row, name=f"append {name}", role=WRITE_BACK)
        where = self._metadata(which, self._last_address, f"{name} write address")
        stored = random_store(self.tensors[name], where, appended, name=f"write {name}")
        joined = reassemble(stack([others, appended]), is_last, 0, name=f"join {name}s")
        return flatten(joined, 0, 1, name=f"{name}s"), stored

    def softmax(self, scores: Stream, values: Stream) -> Stream:
        """Weights times values over all tiles of a request."""
        if self.safe_softmax:
            return map_tiles("softmax_finish", accum("softmax", scores, values, name="weighted values"))
        weights = map_tiles("exp", scores, name="weights")
        weighted = accum("matmul", weights, values, name="weighted values")
        return map_tiles("divide", weighted, accum("row_sum", weights, name="sum of weights"), name="normalise")

    def _metadata(self, which: Stream, expansion: Any, name: str) -> Stream:
        return flat_map(expansion, which, (self.requests,), ADDRESS, name=name, role=METADATA)

    def _tiles_of(self, request: TileValue) -> tuple[int, int]:
        assert request.data is not None
        return int(request.data[0, 0]), self.shape.tiles(int(request.data[0, 1]))

    def _addresses(self, admitted: Any, region: int) -> Sequence[Token]:
        number, tiles = self._tiles_of(admitted[0])
        first = number * self.capacity
        return [(_number(first + tile), int(tile == tiles - 1)) for tile in range(tiles)]

    def _is_last(self, request: TileValue, region: int) -> Sequence[Token]:
        _, tiles = self._tiles_of(request)
        return [*((SelectorValue((0,)), 0) for _ in range(tiles - 1)), (SelectorValue((1,)), 1)]

    def _last_address(self, request: TileValue, region: int) -> Sequence[Token]:
        number, tiles = self._tiles_of(request)
        return [(_number(number * self.capacity + tiles - 1), 0)]

    def _position(self, request: TileValue, region: int) -> Sequence[Token]:
        assert request.data is not None
        return [(_number(int(request.data[0, 1]) % self.shape.tile_rows), 0)]


def _request_number(request: TileValue, region: int) -> Sequence[Token]:
    assert request.data is not None
    return [(_number(int(request.data[0, 0])), 0)]


def _number(value: int) -> TileValue:
    return TileValue(1, 1, 8, data=np.array([[value]]))
