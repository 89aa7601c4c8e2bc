"""The mixture-of-experts layer as a stream program: dynamic tiling and time-multiplexed regions.

Tokens are routed to experts, packed into tiles of rows, multiplied by the weights of their expert, which are streamed
from off-chip memory for every tile, and added up again in token order. Packing with a static tile pads the last tile
and reads all weights once a tile; packing with a dynamic tile waits for the last token and reads them once an expert.
Time-multiplexing lets consecutive experts share the arithmetic of one region.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyrhythm.stream.dims import Dim, dynamic, static
from polyrhythm.stream.directives import Directive, TileDirective, TimeMultiplexDirective, find
from polyrhythm.stream.errors import StreamError
from polyrhythm.stream.expr import symbol
from polyrhythm.stream.graph import Node, Program, Stream
from polyrhythm.stream.operators.higher import accum, flat_map, map_tiles
from polyrhythm.stream.operators.offchip import OffChip, linear_load, linear_store, random_load
from polyrhythm.stream.operators.routing import eager_merge, partition, reassemble
from polyrhythm.stream.operators.shapes import promote, repeat, reshape
from polyrhythm.stream.operators.structure import source
from polyrhythm.stream.tokens import Token
from polyrhythm.stream.types import BF16, F32, U64, Selector, SelectorValue, Tile, TileValue

TOKENS_OF_EXPERT = "tokens_of_expert"


@dataclass(frozen=True)
class MoeShape:
    """Sizes of a layer: hidden and intermediate width, experts, and experts a token.

    >>> MIXTRAL.experts, QWEN.experts
    (8, 128)
    """

    hidden: int
    intermediate: int
    experts: int
    chosen: int


MIXTRAL = MoeShape(hidden=4096, intermediate=14336, experts=8, chosen=2)
QWEN = MoeShape(hidden=2048, intermediate=768, experts=128, chosen=8)


@dataclass(frozen=True)
class MoeData:
    """Real values for functional mode.

    `up` and `gate` have shape (experts, hidden, intermediate), `down` (experts, intermediate, hidden), `tokens`
    (batch, hidden), `weights` (batch, chosen).
    """

    tokens: np.ndarray
    weights: np.ndarray
    up: np.ndarray
    gate: np.ndarray
    down: np.ndarray


def moe_reference(data: MoeData, routing: np.ndarray) -> np.ndarray:
    """The layer in plain NumPy.

    >>> ones = np.ones((1, 2, 2))
    >>> moe_reference(MoeData(np.ones((1, 2)), np.ones((1, 1)), ones, ones, ones), np.array([[0]])).shape
    (1, 2)
    """
    out = np.zeros(data.tokens.shape)
    for row, experts in enumerate(routing):
        for position, expert in enumerate(experts):
            x = data.tokens[row]
            gate = x @ data.gate[expert]
            hidden = gate / (1 + np.exp(-gate)) * (x @ data.up[expert])
            out[row] += data.weights[row, position] * (hidden @ data.down[expert])
    return out


def tokens_of_expert(routing: np.ndarray, experts: int) -> np.ndarray:
    """How many tokens each expert receives: the binding of the metrics' symbol.

    >>> tokens_of_expert(np.array([[0, 2], [2, 1]]), 4).tolist()
    [1, 1, 2, 0]
    """
    return np.bincount(np.asarray(routing).ravel(), minlength=experts)


def build_moe(
    shape: MoeShape,
    routing: np.ndarray,
    directives: Iterable[Directive],
    data: MoeData | None = None,
) -> Program:
    """The layer as a stream program, scheduled by `tile("token")`, `tile("intermediate")`, `time_multiplex("expert")`.

    >>> from polyrhythm.stream.directives import tile
    >>> routing = np.array([[0, 1], [1, 2]])
    >>> program = build_moe(MoeShape(4, 8, 4, 2), routing, [tile("token", 2), tile("intermediate", 4)])
    >>> "pack" in [node.name for node in program.nodes]
    True
    """
    schedule = tuple(directives)
    rows = find(schedule, TileDirective, "token")
    inner = find(schedule, TileDirective, "intermediate")
    shared = find(schedule, TimeMultiplexDirective, "expert")
    if rows is None or inner is None or inner.size is None:
        raise StreamError(
            "build_moe: the dims token and intermediate need tile directives",
            fix='add tile("token", 16) or tile("token", dynamic=True), and tile("intermediate", 64)',
        )
    layer = MoeLayer(shape, np.asarray(routing), rows, inner.size, data)
    regions = shape.experts if shared is None else shared.regions
    return Program(layer.build(regions))


class MoeLayer:
    """The pieces of one layer; each method builds one stage, for `build_moe` and for the lowering to target."""

    def __init__(
        self, shape: MoeShape, routing: np.ndarray, rows: TileDirective, inner: int, data: MoeData | None
    ) -> None:
        self.shape = shape
        self.routing = routing
        self.batch = routing.shape[0]
        self.rows = rows
        self.inner = inner
        self.steps = shape.intermediate // inner
        self.data = data
        self.count: Dim = dynamic(symbol(TOKENS_OF_EXPERT, shape.experts))

    def build(self, regions: int) -> Node:
        """The whole layer, ending in the store of its output."""
        packed = self.packed_tokens()
        if regions == self.shape.experts:
            results = self.feed_forward(packed, self.linear_weights(packed))
        else:
            tiles, origin = eager_merge(packed, 0, regions, selector="tiles_of_expert", name="merge")
            merged = self.feed_forward(tiles, self.addressed_weights(origin, regions))
            results = partition(merged, origin, 0, name="return to expert")
        return self.combined(results)

    def packed_tokens(self) -> Stream:
        """Tokens routed to their experts and packed into tiles of rows."""
        tokens = OffChip("tokens", self.batch, self.shape.hidden, BF16, self._array("tokens"))
        loaded = linear_load(tokens, (1, self.shape.hidden), (self.batch,))
        routed = partition(loaded, self.routes("route tokens"), 0, name="to expert")
        if self.rows.dynamic:
            grouped = promote(routed, name="one group")
        else:
            assert self.rows.size is not None
            grouped = reshape(routed, 0, self.rows.size, pad=0.0, name="tiles of rows")
        return accum("pack_rows", grouped, name="pack")

    def routes(self, name: str) -> Stream:
        """The experts of every token, as a multi-hot selector."""
        kind = Selector(TOKENS_OF_EXPERT, self.shape.experts, self.shape.chosen)
        return source(name, [list(map(tuple, self.routing))], (static(1), static(self.batch)), kind)

    def linear_weights(self, packed: Stream) -> tuple[Stream, Stream, Stream]:
        """The weights of the own expert, read once for every packed tile."""
        return tuple(  # type: ignore[return-value]
            linear_load(tensor, tile, (self.steps,), ref=packed) for tensor, tile in self.weight_tensors()
        )

    def addressed_weights(self, origin: Stream, regions: int) -> tuple[Stream, Stream, Stream]:
        """The weights of whichever expert comes next, by an address stream made from the merge's selector."""
        width, steps = self.shape.experts // regions, self.steps

        def addresses(selector: SelectorValue, region: int) -> Sequence[Token]:
            first = (region * width + selector.targets[0]) * steps
            return [(_number(first + step), int(step == steps - 1)) for step in range(steps)]

        dims = (origin.shape[0], static(steps))
        where = flat_map(addresses, origin, dims, Tile(1, 1, U64), cycles=1, name="weight addresses")
        return tuple(  # type: ignore[return-value]
            random_load(tensor, tile, where) for tensor, tile in self.weight_tensors()
        )

    def weight_tensors(self) -> list[tuple[OffChip, tuple[int, int]]]:
        """The three weight matrices of every expert and their tiles: up, gate, down."""
        hidden, wide, experts = self.shape.hidden, self.shape.intermediate, self.shape.experts
        across, down = (hidden, self.inner), (self.inner, hidden)
        return [
            (OffChip("up", hidden, wide, BF16, self._array("up"), experts), across),
            (OffChip("gate", hidden, wide, BF16, self._array("gate"), experts), across),
            (OffChip("down", wide, hidden, BF16, self._array("down"), experts), down),
        ]

    def feed_forward(self, packed: Stream, weights: tuple[Stream, Stream, Stream]) -> Stream:
        """SwiGLU of packed tiles, tile by tile of the intermediate dim."""
        up, gate, down = weights
        repeated = repeat(packed, self.steps, name="repeat rows")
        activated = map_tiles("silu", map_tiles("matmul", repeated, gate, name="gate product"))
        raised = map_tiles("matmul", repeated, up, name="up product")
        hidden = map_tiles("multiply", activated, raised, name="gated")
        return accum("matmul", hidden, down, name="down product")

    def combined(self, results: Stream) -> Node:
        """Valid rows times their routing weights, put back in token order, added up and stored."""
        back = flat_map(_valid_rows, results, (self.count,), Tile(1, self.shape.hidden, F32), name="rows")
        weighted = map_tiles("multiply", back, self.routing_weights(), name="weigh")
        together = reassemble(weighted, self.routes("route results"), 0, name="by token")
        summed = accum("add", together, name="sum of experts")
        return linear_store(OffChip("output", self.batch, self.shape.hidden, F32), summed)

    def routing_weights(self) -> Stream:
        """The routing weight of every (token, expert) pair, sent to the expert."""
        pairs = self.routing.size
        weights = self._array("weights")
        # A token's weights are read in expert order: the order in which a selector lists its targets.
        if weights is not None:
            weights = np.take_along_axis(weights, np.argsort(self.routing, axis=1), axis=1).reshape(-1, 1)
        loaded = linear_load(OffChip("routing weights", pairs, 1, BF16, weights), (1, 1), (pairs,))
        kind = Selector(TOKENS_OF_EXPERT, self.shape.experts, 1)
        one_hot = [[(int(expert),) for expert in np.sort(self.routing, axis=1).ravel()]]
        routes = source("route weights", one_hot, (static(1), static(pairs)), kind)
        return partition(loaded, routes, 0, name="weights to expert")

    def _array(self, name: str) -> np.ndarray | None:
        return None if self.data is None else getattr(self.data, name)


def _number(value: int) -> TileValue:
    return TileValue(1, 1, 8, data=np.array([[value]]))


def _valid_rows(value: Any, copy: int) -> Sequence[Token]:
    """The rows of a packed tile that are not padding, one tile each."""
    nbytes = value.nbytes // value.rows if value.rows else 0
    return [
        (TileValue(1, value.cols, nbytes, data=None if value.data is None else value.data[row : row + 1]), 0)
        for row in range(value.valid)
    ]


def moe_bindings(shape: MoeShape, routing: np.ndarray) -> Mapping[str, Any]:
    """What the metrics of a layer need to know about the routing.

    >>> moe_bindings(MoeShape(4, 8, 2, 1), np.array([[1], [1]]))["tokens_of_expert"].tolist()
    [0, 2]
    """
    return {TOKENS_OF_EXPERT: tokens_of_expert(routing, shape.experts)}
