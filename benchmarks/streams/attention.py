"""Decode attention of the studies, lowered: ragged KV lengths dealt out to regions by three policies.

One decode step for a batch of requests. Each region walks the KV tiles of its request, splits the last one off, appends
the new row, writes it back and puts it into its place again; scores, weights and the weighted sum follow tile by tile.
A region reads the cache of its next request only after the write of the previous one was acknowledged. Requests reach
the regions in blocks (coarse), in strict rotation (interleave, where a long request holds up all others), or whenever a
region signals that it has read all of its keys (dynamic, a feedback loop).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.streams.programs.attention import decode_attention
from polyrhythm.stream.directives import Directive, ParallelizeDirective, tile
from polyrhythm.stream.errors import StreamError
from polyrhythm.stream.graph import Program
from polyrhythm.stream.hardware import Hardware
from polyrhythm.stream.lowering import lower
from polyrhythm.stream.lowering.dealt import METADATA, WRITE_BACK
from polyrhythm.stream.types import BF16


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
    schedule = tuple(directives)
    if not any(isinstance(d, ParallelizeDirective) and d.dim == "request" for d in schedule):
        raise StreamError(
            "build_attention: the dim request needs a parallelize directive",
            fix='add parallelize("request", regions=4, policy="dynamic")',
        )
    shape = shape or AttentionShape()
    step = decode_attention(shape.queries, shape.width, safe_softmax)
    capacity = max(shape.tiles(int(length)) for length in lengths) * shape.tile_rows
    inputs = {"length": np.asarray(lengths, np.int32)}
    if data is not None:
        given = {name: getattr(data, name) for name in ("query", "key", "value", "new_key", "new_value")}
        inputs |= {name: np.asarray(array, np.float32) for name, array in given.items()}
        inputs |= {name: _fitted(inputs[name], capacity) for name in ("key", "value")}
    bounds = {step.bounds["request"]: len(lengths), step.bounds["kv"]: capacity}
    return lower(step.outputs, [*schedule, tile(step.kv, shape.tile_rows)], inputs, bounds, BF16).program


def _fitted(cache: np.ndarray, capacity: int) -> np.ndarray:
    """A cache with rows for exactly the tiles that are used."""
    kept = cache[:, :capacity]
    return np.pad(kept, ((0, 0), (0, capacity - kept.shape[1]), (0, 0)))
