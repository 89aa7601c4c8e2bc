"""Sums of exp(a - max a): one pass with a running maximum, as online softmax does it.

By its definition the sum needs the maximum of all steps before its first term, so a stream would have to be kept as a
whole. Instead the state of the Accum holds the maximum so far and the sum relative to it, and is rescaled whenever the
maximum grows; at the end both are exact. Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, Range, operand_type
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.stream.functions import Reduction
from polyrhythm.stream.lowering.problem import is_whole, only, reads_here
from polyrhythm.stream.lowering.tiles import LocalOp
from polyrhythm.stream.lowering.values import Axis, Block, data_type


def shifted_exponential(graph: Graph, definition: Definition) -> tuple[int, Access] | None:
    """The operand of a sum that is exp(a - max a) over the summed dim, and the same read of `a`; or None."""
    types = tuple(operand_type(access, graph[access.source]) for access in definition.operands)
    signature = TABLE[definition.op].signature(types, definition.attributes) if definition.op in TABLE else None
    for number, access in enumerate(definition.operands):
        ranges = [s for s, step in graph[access.source].steps(access).items() if isinstance(step, Range)]
        if signature is None or len(ranges) != 1:
            continue
        labels = signature.operands[number]
        roles = [None if label is None else signature.roles[label] for label in labels]
        if roles[0] is None or (roles[0].kind, roles[0].monoid) != ("reduce", "sum"):
            continue
        if any(label is None or label not in signature.result for label in labels[1:]):
            continue
        inner = _exponent(graph, graph[access.source], ranges[0])
        if inner is not None and _current(graph, access, ranges[0]):
            steps = graph[access.source].steps(access)
            return number, Access(inner.name, tuple(steps[symbol] for symbol in inner.symbols))
    return None


def _exponent(graph: Graph, node: Node, along: Any) -> Node | None:
    """`a`, if a node is exp(a - max a) with the maximum over all steps of a dim."""
    exponential = only(graph, node.name, "exp")
    if exponential is None or not reads_here(graph, exponential):
        return None
    difference = only(graph, exponential.operands[0].source, "sub")
    if difference is None or not reads_here(graph, difference):
        return None
    value, peak = (graph[access.source] for access in difference.operands)
    largest = only(graph, peak.name, "reduce")
    if largest is None or largest.attributes["monoid"] != "max" or largest.attributes["axes"] != (0,):
        return None
    (read,) = largest.operands
    if read.source != value.name or set(value.symbols) != set(node.symbols) or not _current(graph, read, along):
        return None
    return value if value.shape == peak.shape == node.shape else None


def _current(graph: Graph, access: Access, along: Any) -> bool:
    """Whether a read is that of all steps of one dim, and of the current step of the others."""
    source = graph[access.source]
    return all(
        is_whole(step, dim.extent) if dim.symbol is along else step is Term.of(dim.symbol)
        for dim, step in zip(source.dims, access.steps, strict=True)
    )


def online_reduction(
    name: str,
    local: LocalOp,
    compute: Callable[..., np.ndarray],
    blocks: Sequence[Block],
    number: int,
    position: int,
    dtype: np.dtype,
    flops: Callable[..., Any],
) -> tuple[Reduction, Block, Callable[[np.ndarray], np.ndarray]]:
    """The reduction with a running maximum of operand `number`, which is stream `position`.

    With it come the block of its state, and how to read the sum off it.
    """
    result, block = local.result, local.operands[number]
    place = block.axes.index(0) if 0 in block.axes else None
    kept = tuple(axis for axis in block.axes if axis != 0)
    lengths = tuple(n for axis, n in zip(block.axes, block.lengths, strict=True) if axis != 0)
    sums, peaks = prod(_known(result.lengths)), prod(_known(lengths))
    state_block = Block((0,), (sums + peaks,))
    spread = _spread(local, number, kept, lengths)

    def start(*sides: Any) -> np.ndarray:
        state = np.zeros((1, sums + peaks), dtype)
        state[:, sums:] = -np.inf
        return state

    def update(state: np.ndarray, *tiles: np.ndarray) -> np.ndarray:
        arrays = [own.array(tile) for own, tile in zip(blocks, tiles, strict=True)]
        score = arrays[position]
        before = state[0, sums:].reshape(_known(lengths))
        peak = np.maximum(before, score if place is None else score.max(place))
        # Where everything so far was minus infinity, any finite number serves.
        base = np.where(np.isfinite(peak), peak, 0).astype(dtype)
        with np.errstate(all="ignore"):
            arrays[position] = np.exp(score - (base if place is None else np.expand_dims(base, place)))
            rescale = np.exp(before - base)
        part = compute(*arrays)
        total = state[0, :sums].reshape(part.shape) * spread(rescale) + part
        return np.concatenate([total.ravel(), peak.ravel()])[None].astype(dtype)

    def count(*sides: Any) -> Any:
        return flops(*sides) + 7 * prod(_known(block.lengths)) + 2 * sums

    fold = Reduction(name, start, update, lambda *sides: (1, sums + peaks), count, data_type(dtype))
    return fold, state_block, lambda state: state.reshape(-1)[:sums].reshape(_known(result.lengths))


def _spread(
    local: LocalOp, number: int, kept: tuple[Axis, ...], lengths: tuple[int | None, ...]
) -> Callable[[np.ndarray], np.ndarray]:
    """A factor for each maximum, in the shape of the result."""
    labels = local.signature.operands[number]
    names = [local.signature.result.index(labels[axis]) if isinstance(axis, int) else axis for axis in kept]
    shape = [lengths[names.index(axis)] if axis in names else 1 for axis in local.result.axes]
    order = sorted(range(len(names)), key=lambda k: local.result.axes.index(names[k]))
    return lambda factor: factor.transpose(order).reshape(_known(shape))


def _known(lengths: Sequence[int | None]) -> list[int]:
    return [length for length in lengths if length is not None]
