"""The mixture-of-experts layer of the studies, lowered: dynamic tiling and time-multiplexed regions.

Tokens are routed to experts, packed into tiles of rows, multiplied by the weights of their expert, which are streamed
from off-chip memory for every tile, and added up again in token order. Packing with a static tile pads the last tile
and reads all weights once a tile; packing with a dynamic tile waits for the last token and reads them once an expert.
Time-multiplexing lets consecutive experts share the arithmetic of one region.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.streams.programs.moe import mixture_of_experts
from polyrhythm.stream.directives import Directive, TileDirective, tile
from polyrhythm.stream.errors import StreamError
from polyrhythm.stream.graph import Program
from polyrhythm.stream.lowering import lower
from polyrhythm.stream.types import BF16

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

    Tiles hold whole rows of the hidden dim, and inputs lie in memory with two bytes an element.

    >>> from polyrhythm.stream.directives import tile
    >>> routing = np.array([[0, 1], [1, 2]])
    >>> program = build_moe(MoeShape(4, 8, 4, 2), routing, [tile("token", 2), tile("intermediate", 4)])
    >>> "to expert" in [node.name for node in program.nodes]
    True
    """
    schedule = tuple(directives)
    tiled = {directive.dim for directive in schedule if isinstance(directive, TileDirective)}
    if not {"token", "intermediate"} <= tiled:
        raise StreamError(
            "build_moe: the dims token and intermediate need tile directives",
            fix='add tile("token", 16) or tile("token", dynamic=True), and tile("intermediate", 64)',
        )
    layer = mixture_of_experts()
    inputs = {"routing": np.asarray(routing, np.int32)}
    if data is not None:
        given = {name: getattr(data, name) for name in ("tokens", "weights", "up", "gate", "down")}
        inputs |= {name: np.asarray(array, np.float32) for name, array in given.items()}
    sizes = {"hidden": shape.hidden, "intermediate": shape.intermediate, "expert": shape.experts}
    bounds = {layer.bounds[name]: size for name, size in sizes.items()}
    return lower(layer.output, [*schedule, tile(layer.hidden, dynamic=True)], inputs, bounds, BF16).program


def moe_bindings(shape: MoeShape, routing: np.ndarray) -> Mapping[str, Any]:
    """What the metrics of a layer need to know about the routing.

    >>> moe_bindings(MoeShape(4, 8, 2, 1), np.array([[1], [1]]))["tokens_of_expert"].tolist()
    [0, 2]
    """
    return {TOKENS_OF_EXPERT: tokens_of_expert(routing, shape.experts)}
