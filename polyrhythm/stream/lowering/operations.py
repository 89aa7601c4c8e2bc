"""Operations: one rule for all of them, from the signature.

An axis that the stream walks is *parallel*: the operation is a Map and the result is walked too; or *reduced*: it is
an Accum over that dim; or *scanned*: a Scan. Along an axis with any other role the elements are first packed into one
tile. Elementwise operations of one stream are collected and become a single Map.

Sums of exp(a - max a): one pass with a running maximum, as online softmax does it.

By its definition the sum needs the maximum of all steps before its first term, so a stream would have to be kept as a
whole. Instead the state of the Accum holds the maximum so far and the sum relative to it, and is rescaled whenever the
maximum grows; at the end both are exact. Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, Range
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.ops.record import Signature, concrete
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.stream.errors import OperationNotStreamable
from polyrhythm.stream.functions import Reduction
from polyrhythm.stream.graph import Stream
from polyrhythm.stream.lowering.meeting import Label, brought_together
from polyrhythm.stream.lowering.packing import packed_where_needed
from polyrhythm.stream.lowering.plans import Plan, name_of
from polyrhythm.stream.lowering.problem import is_whole, only, reads_here, signature_of
from polyrhythm.stream.lowering.tiles import (
    BROADCASTING,
    LocalOp,
    carried,
    flops_each,
    local_flops,
    map_function,
    materialised,
    one_shape,
    reduction,
)
from polyrhythm.stream.lowering.values import (
    PACKED,
    Axis,
    Block,
    Fused,
    Load,
    Operand,
    Value,
    data_type,
    irregular,
    known_lengths,
)
from polyrhythm.stream.operators.higher import accum, map_tiles, scan


def lower_online(plan: Plan, number: int) -> Value | None:
    """A sum of exp(a - max a) with a running maximum, `a` being operand `number`; None where it is no Accum."""
    plan = replace(plan, operands=tuple(packed_where_needed(plan, plan.signature)), online=number)
    streams = [operand for operand in plan.operands if isinstance(operand, Value | Load)]
    score = plan.operands[number]
    is_walked = isinstance(score, Value | Load) and 0 in score.axes
    if not is_walked or any(PACKED in operand.inside.axes for operand in streams):
        return None
    result = lower_operation(plan)
    assert isinstance(result, Value)
    return result


def lower_operation(plan: Plan) -> Value | np.ndarray:
    """The stream of a definition whose operands have been read; an array where all of them are literals."""
    definition, problem = plan.definition, plan.problem
    if any(term.symbols & set(plan.node.symbols) for term in definition.terms):
        raise OperationNotStreamable(
            f"{described(plan.node)} is {definition.op} at a place that depends on the step",
            fix="index steps instead of axes, x[t] instead of x.axes[t]",
            at=plan.at,
        )
    if all(isinstance(operand, np.ndarray) for operand in plan.operands):
        attributes = concrete(definition.attributes, problem.bounds.__getitem__)
        return np.asarray(TABLE[definition.op].numpy(*plan.operands, **attributes))
    signature = plan.signature
    plan = replace(plan, operands=tuple(packed_where_needed(plan, signature)))
    if _fuses(plan):
        return _fused(plan, signature)
    walked = _walked_labels(plan, signature)
    roles = {label: signature.roles[label] for label in walked}
    reduced = [label for label in walked if roles[label].kind == "reduce"]
    scanned = [label for label in walked if roles[label].kind == "scan"]
    result_axis = {label: axis for axis, label in enumerate(signature.result) if label is not None}
    kept = sorted((label for label in walked if roles[label].kind == "parallel"), key=result_axis.__getitem__)
    dims = problem.ordered(
        {a for o in plan.operands if isinstance(o, Value | Load) for a in o.axes if isinstance(a, Symbol)}
    )
    for symbol in dims:
        blocks = [
            o.inside for o in plan.operands if isinstance(o, Value | Load) and symbol in (*o.axes, *o.inside.axes)
        ]
        if len({block.length(symbol) if symbol in block.axes else None for block in blocks}) > 1:
            raise OperationNotStreamable(
                f"{described(plan.node)} combines tiles of {symbol} with single steps or with other tiles",
                fix=f"give all of its operands the same tile of {symbol}",
                at=plan.at,
            )
    order: tuple[Any, ...] = (*dims, *(Label(label) for label in (*kept, *scanned, *reduced)))
    operands = brought_together(plan, signature, order)
    if plan.online is not None:
        score = operands[plan.online]
        if isinstance(score, Value):  # nothing is left to be computed of it
            operands[plan.online] = replace(score, base=materialised(score), block=score.inside, fused=None)
    local = _local(plan, signature, operands)
    streams = one_shape([carried(operand)[0] for operand in operands if isinstance(operand, Value)])
    compute = _of_streams(local, operands)
    first = next(operand for operand in operands if isinstance(operand, Value))
    outer = len(order) - len(reduced)
    axes: tuple[Axis, ...] = (*dims, *(result_axis[label] for label in (*kept, *scanned)))
    flops = _of_sides(local_flops(local, bool(reduced or scanned)), operands, local)
    stationary = 1 if definition.op == "einsum" and len(streams) == 2 else None
    given = [operand for operand in operands if isinstance(operand, Value)]
    blocks = [carried(value)[1] for value in given]
    packed = next((place for place, value in enumerate(given) if PACKED in value.inside.axes), None)
    levels = irregular(None if first.levels is None else first.levels[:outer], first.sizes[:outer])
    if reduced or scanned:
        (monoid,) = {roles[label].monoid for label in (*reduced, *scanned)}
        assert monoid is not None
        if plan.online is not None:
            place = sum(isinstance(operand, Value) for operand in operands[: plan.online])
            fold, state, read = online_reduction(
                name_of(plan), local, compute, blocks, plan.online, place, plan.node.dtype, flops
            )
            stream = accum(replace(fold, stationary=stationary), *streams, rank=len(reduced), name=name_of(plan))
            fused = Fused(read, 0, name_of(plan), local.result)
            return Value(first.lead, stream, axes, first.sizes[:outer], state, plan.node.dtype, levels, fused)
        fold = reduction(name_of(plan), compute, blocks, local.result, monoid, plan.node.dtype, flops)
        fold = replace(fold, stationary=stationary, valid_from=packed or 0)
        if reduced:
            stream = accum(fold, *streams, rank=len(reduced), name=name_of(plan))
        else:
            stream = scan(fold, *streams, rank=1, name=name_of(plan))
    else:
        function = map_function(name_of(plan), compute, blocks, local.result, plan.node.dtype, flops, stationary)
        if packed is not None:
            function = replace(function, valid_rows=lambda *tiles: tiles[packed].valid)
        stream = map_tiles(function, *streams, name=name_of(plan))
    return Value(first.lead, stream, axes, first.sizes[:outer], local.result, plan.node.dtype, levels)


def _fuses(plan: Plan) -> bool:
    """Whether the operation is one of a single stream and metadata, element by element, or only relabels its tiles."""
    values = [operand for operand in plan.operands if not isinstance(operand, np.ndarray)]
    data = [value for value in values if isinstance(value, Value) and not value.metadata]
    op = plan.definition.op
    if not data or any(isinstance(value, Load) for value in values):
        return False
    if op not in BROADCASTING and op not in ("copy", "broadcast", "reshape", "transpose"):
        return False
    first = data[0]
    return all(
        isinstance(other, Value)
        and other.axes == first.axes
        and other.levels == first.levels
        and other.lead == first.lead
        and other.ones == first.ones
        and (other.metadata or (other.base == first.base and other.block == first.block))
        for other in values
    )


def _fused(plan: Plan, signature: Signature) -> Value:
    """One more function of the elements of a stream, to be computed with those that come before and after it."""
    local = _local(plan, signature, plan.operands)
    values = [operand for operand in plan.operands if isinstance(operand, Value)]
    first = next(value for value in values if not value.metadata)
    result_axis = {label: axis for axis, label in enumerate(signature.result) if label is not None}
    number = next(i for i, operand in enumerate(plan.operands) if operand is first)
    axes = tuple(
        result_axis[signature.operands[number][axis]] if isinstance(axis, int) else axis  # type: ignore[index]
        for axis in first.axes
    )
    metadata: dict[Stream, Value] = {}
    for value in values:
        for other in (value,) if value.metadata else value.fused.metadata if value.fused else ():
            metadata.setdefault(other.base, other)
    operands = plan.operands

    def argument(operand: Operand, array: np.ndarray, given: dict[Stream, np.ndarray]) -> Any:
        if not isinstance(operand, Value):
            return operand
        if operand.fused is None:
            return given[operand.base] if operand.metadata else array
        return operand.fused.compute(array, *(given[other.base] for other in operand.fused.metadata))

    def compute(array: np.ndarray, *rest: np.ndarray) -> np.ndarray:
        given = dict(zip(metadata, rest, strict=True))
        return local(*(argument(operand, array, given) for operand in operands))

    # The two ways of a fork share what they have in common, which counts once.
    flops = max(v.fused.flops if v.fused else 0 for v in values) + flops_each(plan.definition.op)
    fused = Fused(compute, flops, name_of(plan), local.result, tuple(metadata.values()))
    return replace(first, axes=axes, dtype=plan.node.dtype, fused=fused)


def _walked_labels(plan: Plan, signature: Signature) -> list[int]:
    pairs = zip(plan.operands, signature.operands, strict=True)
    streams = [(operand, labels) for operand, labels in pairs if not isinstance(operand, np.ndarray)]
    walked = [labels[axis] for operand, labels in streams for axis in operand.axes if isinstance(axis, int)]
    return list(dict.fromkeys(label for label in walked if label is not None))


def _local(plan: Plan, signature: Signature, operands: Sequence[Operand]) -> LocalOp:
    """The operation on the parts that tiles hold."""
    problem = plan.problem
    lengths: dict[int, int] = {}
    batch: set[Axis] = set()
    blocks = []
    for operand, labels in zip(operands, signature.operands, strict=True):
        literal = isinstance(operand, np.ndarray)
        block = Block(tuple(range(operand.ndim)), operand.shape) if literal else operand.inside  # type: ignore[union-attr]
        blocks.append(block)
        for axis, length in zip(block.axes, block.lengths, strict=True):
            if isinstance(axis, int) and labels[axis] is not None:
                assert length is not None
                lengths[labels[axis]] = length  # type: ignore[index]
            elif not isinstance(axis, int):
                batch.add(axis)
    for label in signature.result:
        known = any(label in labels for labels in signature.operands)
        if label is not None and not known:
            axis = signature.result.index(label)
            lengths[label] = problem.number(plan.node.shape[axis])
    ordered: list[Axis] = [axis for axis in (PACKED,) if axis in batch]
    ordered += problem.ordered(axis for axis in batch if isinstance(axis, Symbol))
    attributes = concrete(plan.definition.attributes, problem.bounds.__getitem__)
    return LocalOp(plan.definition.op, attributes, signature, lengths, tuple(ordered), tuple(blocks))


def _of_streams(local: LocalOp, operands: Sequence[Operand]) -> Any:
    """The operation as a function of what arrives: literals are part of it, and so is what only moves elements."""

    def moved(operand: Value, array: np.ndarray) -> np.ndarray:
        return operand.fused.compute(array) if operand.fused is not None and operand.fused.free else array

    def compute(*arrays: np.ndarray) -> np.ndarray:
        given = iter(arrays)
        return local(*(moved(o, next(given)) if isinstance(o, Value) else o for o in operands))  # type: ignore[arg-type]

    return compute


def _of_sides(flops: Any, operands: Sequence[Operand], local: LocalOp) -> Any:
    """FLOPs from the sides of the streams alone."""

    def count(*sides: Any) -> Any:
        given, blocks = iter(sides), zip(operands, local.operands, strict=True)
        return flops(*(block.sides if isinstance(o, np.ndarray) else next(given) for o, block in blocks))

    return count


def shifted_exponential(graph: Graph, definition: Definition) -> tuple[int, Access] | None:
    """The operand of a sum that is exp(a - max a) over the summed dim, and the same read of `a`; or None."""
    signature = signature_of(graph, definition)
    for number, access in enumerate(definition.operands):
        ranges = [s for s, step in graph[access.source].steps(access).items() if isinstance(step, Range)]
        if len(ranges) != 1:
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
    sums, peaks = prod(known_lengths(result.lengths)), prod(known_lengths(lengths))
    state_block = Block((0,), (sums + peaks,))
    spread = _spread(local, number, kept, lengths)

    def start(*sides: Any) -> np.ndarray:
        state = np.zeros((1, sums + peaks), dtype)
        state[:, sums:] = -np.inf
        return state

    def update(state: np.ndarray, *tiles: np.ndarray) -> np.ndarray:
        arrays = [own.array(tile) for own, tile in zip(blocks, tiles, strict=True)]
        score = arrays[position]
        before = state[0, sums:].reshape(known_lengths(lengths))
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
        return flops(*sides) + 7 * prod(known_lengths(block.lengths)) + 2 * sums

    fold = Reduction(name, start, update, lambda *sides: (1, sums + peaks), count, data_type(dtype))
    return fold, state_block, lambda state: state.reshape(-1)[:sums].reshape(known_lengths(result.lengths))


def _spread(
    local: LocalOp, number: int, kept: tuple[Axis, ...], lengths: tuple[int | None, ...]
) -> Callable[[np.ndarray], np.ndarray]:
    """A factor for each maximum, in the shape of the result."""
    labels = local.signature.operands[number]
    names = [local.signature.result.index(labels[axis]) if isinstance(axis, int) else axis for axis in kept]
    shape = [lengths[names.index(axis)] if axis in names else 1 for axis in local.result.axes]
    order = sorted(range(len(names)), key=lambda k: local.result.axes.index(names[k]))
    return lambda factor: factor.transpose(order).reshape(known_lengths(shape))
