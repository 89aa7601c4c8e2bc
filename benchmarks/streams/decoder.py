"""Whole decoder layers of the fourth study, lowered from one source with directives for single operations.

Projections work on all requests at once, attention is dealt out by request, experts pack the tokens that they receive
and may share regions. A dynamic schedule packs as many tokens as there are and gives requests to whoever is free; a
static one pads tiles and deals requests out in rotation. Everything else is the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.streams.moe import MIXTRAL, QWEN, MoeShape
from benchmarks.streams.programs.decoder import DecoderProgram, decoder_layer
from polyrhythm.stream.directives import Directive, Policy, parallelize, tile, time_multiplex
from polyrhythm.stream.hardware import Hardware
from polyrhythm.stream.lowering import Lowered, lower
from polyrhythm.stream.types import BF16

KV_TILE = 64
INNER_TILE = 64


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of a layer: its experts, key-value heads, queries that share one, and columns of a head.

    >>> DECODERS["qwen"].heads, DECODERS["qwen"].members
    (4, 8)
    """

    experts: MoeShape
    heads: int
    members: int
    width: int


DECODERS = {"mixtral": DecoderShape(MIXTRAL, 8, 4, 128), "qwen": DecoderShape(QWEN, 4, 8, 128)}


def decoder_hardware(dynamic: bool, authors: bool) -> Hardware:
    """The accelerator of the study: that of the tiling study, with FIFOs that hold what a batch is behind.

    >>> decoder_hardware(dynamic=True, authors=True).compute
    6400
    """
    compute = 6400 if dynamic and authors else 4096
    return Hardware(compute=compute, fifo_depth=64, fifo_depths={"metadata": 256})


def build_decoder(
    shape: DecoderShape,
    lengths: Sequence[int],
    routing: np.ndarray,
    rows: int | None,
    policy: Policy,
    regions: int = 4,
    shared: int | None = None,
    data: Mapping[str, Any] | None = None,
    tiles: tuple[int, int] = (KV_TILE, INNER_TILE),
) -> Lowered:
    """The layer as a stream program.

    `rows` is the static tile of an expert's tokens, None for as many as there are; `policy` deals requests out to
    `regions`, and experts share `shared` regions. `tiles` are those of the caches and of the experts' inner dim.

    >>> shape = DecoderShape(MoeShape(8, 8, 2, 1), 2, 2, 4)
    >>> lowered = build_decoder(shape, [3, 0], np.array([[0], [1]]), None, "dynamic", 2, tiles=(4, 4))
    >>> "to expert" in str(lowered)
    True
    """
    layer = decoder_layer(shape.width)
    schedule = [*common_schedule(layer), tile("kv", tiles[0]), tile("intermediate", tiles[1])]
    schedule.append(parallelize("token", regions, policy, on=layer.attention))
    schedule.append(tile("token", dynamic=True) if rows is None else tile("token", rows))
    if shared is not None:
        schedule.append(time_multiplex("expert", shared))
    inputs, bounds = decoder_inputs(layer, shape, lengths, routing, tiles[0])
    return lower(layer.output, schedule, {**inputs, **(data or {})}, bounds, BF16)


def common_schedule(layer: DecoderProgram) -> list[Directive]:
    """What all schedules have in common: whole rows, and projections of all requests at once."""
    batched = [tile("token", dynamic=True, on=tensors) for tensors in (layer.projections, layer.mixed)]
    return [tile("hidden", dynamic=True), *batched]


def decoder_inputs(
    layer: DecoderProgram, shape: DecoderShape, lengths: Sequence[int], routing: np.ndarray, rows: int
) -> tuple[dict[str, Any], dict[Any, int]]:
    """Lengths and routing, and all bounds; caches have whole tiles of `rows`."""
    sizes = {"hidden": shape.experts.hidden, "intermediate": shape.experts.intermediate}
    sizes |= {"expert": shape.experts.experts, "choice": shape.experts.chosen, "token": len(lengths)}
    sizes |= {"head": shape.heads, "member": shape.members, "kv": -(-(max(lengths) + 1) // rows) * rows}
    inputs = {"length": np.asarray(lengths, np.int32), "routing": np.asarray(routing, np.int32)}
    return inputs, {layer.bounds[name]: size for name, size in sizes.items()}
