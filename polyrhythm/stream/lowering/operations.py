"""Operations: one rule for all of them, from the signature.

An axis that the stream walks is *parallel*: the operation is a Map and the result is walked too; or *reduced*: it is
an Accum over that dim; or *scanned*: a Scan. Along an axis with any other role the elements are first packed into one
tile. Elementwise operations of one stream are collected and become a single Map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from polyrhythm.ir.graph import Definition, Node, operand_type
from polyrhythm.ir.ops import TABLE
from polyrhythm.ir.ops.record import Signature, attribute_terms, concrete
from polyrhythm.ir.terms import Symbol
from polyrhythm.lang.describe import described
from polyrhythm.stream.errors import OperationNotStreamable
from polyrhythm.stream.functions import Reduction
from polyrhythm.stream.graph import Stream
from polyrhythm.stream.lowering.accesses import aligned, joined
from polyrhythm.stream.lowering.fusing import carried, materialised, one_shape
from polyrhythm.stream.lowering.loads import loaded, loaded_by
from polyrhythm.stream.lowering.online import online_reduction
from polyrhythm.stream.lowering.problem import Problem
from polyrhythm.stream.lowering.tiles import (
    BROADCASTING,
    LocalOp,
    flops_each,
    local_flops,
    map_function,
    reduction,
)
from polyrhythm.stream.lowering.values import (
    PACKED,
    ROOT,
    Axis,
    Block,
    Fused,
    Levels,
    Load,
    Operand,
    Value,
    data_type,
    irregular,
    regular_length,
)
from polyrhythm.stream.operators.higher import accum, map_tiles, scan
from polyrhythm.stream.operators.shapes import expand, promote, repeat

if TYPE_CHECKING:
    from polyrhythm.stream.lowering.dealt import Dealing
    from polyrhythm.stream.lowering.routed import Routing

    Space: TypeAlias = Routing | Dealing


@dataclass(frozen=True)
class Plan:
    """One definition with its operands read: what `lower_operation` works on."""

    problem: Problem
    node: Node
    definition: Definition
    operands: tuple[Operand, ...]
    memo: dict[Any, Stream]
    space: Space | None = None
    online: int | None = None

    @property
    def at(self) -> Any:
        return self.definition.at or self.node.at


def lower_online(plan: Plan, number: int) -> Value | None:
    """A sum of exp(a - max a) with a running maximum, `a` being operand `number`; None where it is no Accum."""
    plan = replace(plan, operands=tuple(_packed_where_needed(plan, _signature(plan))), online=number)
    streams = [operand for operand in plan.operands if isinstance(operand, Value | Load)]
    score = plan.operands[number]
    is_walked = isinstance(score, Value | Load) and 0 in score.axes
    if not is_walked or any(PACKED in _block_of(operand).axes for operand in streams):
        return None
    result = lower_operation(plan)
    assert isinstance(result, Value)
    return result


def lower_operation(plan: Plan) -> Value | np.ndarray:
    """The stream of a definition whose operands have been read; an array where all of them are literals."""
    definition, problem = plan.definition, plan.problem
    terms = [term for value in definition.attributes.values() for term in attribute_terms(value)]
    if any(term.symbols & set(plan.node.symbols) for term in terms):
        raise OperationNotStreamable(
            f"{described(plan.node)} is {definition.op} at a place that depends on the step",
            fix="index steps instead of axes, x[t] instead of x.axes[t]",
            at=plan.at,
        )
    if all(isinstance(operand, np.ndarray) for operand in plan.operands):
        attributes = concrete(definition.attributes, problem.bounds.__getitem__)
        return np.asarray(TABLE[definition.op].numpy(*plan.operands, **attributes))
    signature = _signature(plan)
    plan = replace(plan, operands=tuple(_packed_where_needed(plan, signature)))
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
    order: tuple[Any, ...] = (*dims, *(_Label(label) for label in (*kept, *scanned, *reduced)))
    operands = _brought_together(plan, signature, order)
    if plan.online is not None:
        operands[plan.online] = _settled(operands[plan.online])
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
                _name(plan), local, compute, blocks, plan.online, place, plan.node.dtype, flops
            )
            stream = accum(replace(fold, stationary=stationary), *streams, rank=len(reduced), name=_name(plan))
            fused = Fused(read, 0, _name(plan), local.result)
            return Value(first.lead, stream, axes, first.sizes[:outer], state, plan.node.dtype, levels, fused)
        fold = reduction(_name(plan), compute, blocks, local.result, monoid, plan.node.dtype, flops)
        fold = replace(fold, stationary=stationary, valid_from=packed or 0)
        if reduced:
            stream = accum(fold, *streams, rank=len(reduced), name=_name(plan))
        else:
            stream = scan(fold, *streams, rank=1, name=_name(plan))
    else:
        function = map_function(_name(plan), compute, blocks, local.result, plan.node.dtype, flops, stationary)
        if packed is not None:
            function = replace(function, valid_rows=lambda *tiles: tiles[packed].valid)
        stream = map_tiles(function, *streams, name=_name(plan))
    return Value(first.lead, stream, axes, first.sizes[:outer], local.result, plan.node.dtype, levels)


def _signature(plan: Plan) -> Signature:
    reads = plan.definition.operands
    types = tuple(operand_type(access, plan.problem.graph[access.source]) for access in reads)
    return TABLE[plan.definition.op].signature(types, plan.definition.attributes)


@dataclass(frozen=True)
class _Label:
    """A label of a signature, as an axis of the streams that are brought together."""

    number: int


def _name(plan: Plan) -> str:
    """A node is called like its operation, and the tensor that it reads from memory."""
    tensors = [operand.tensor.name for operand in plan.operands if isinstance(operand, Load)]
    return " ".join([plan.definition.op, *tensors])


def _packed_where_needed(plan: Plan, signature: Signature) -> list[Operand]:
    """Operands whose walked axes the operation can take one by one; others are packed into tiles first."""
    operands = list(plan.operands)
    changed = True
    while changed:
        changed = False
        for number, operand in enumerate(operands):
            if not isinstance(operand, Value | Load):
                continue
            for axis in [a for a in operand.axes if isinstance(a, int)]:
                if not _can_walk(operands, signature, number, axis, operand):
                    operands[number] = _packed(plan, loaded(operand) if isinstance(operand, Load) else operand)
                    changed = True
                    break
            if changed:
                break
    return operands


def _can_walk(operands: Sequence[Operand], signature: Signature, number: int, axis: int, operand: Value | Load) -> bool:
    label = signature.operands[number][axis]
    if label is None or signature.roles[label].kind == "opaque":
        return False
    chunk = _chunk(operand, axis)
    if signature.roles[label].kind == "scan" and chunk is not None:
        return False
    if signature.roles[label].kind == "parallel" and label not in signature.result:
        return False
    for other, labels in zip(operands, signature.operands, strict=True):
        for own, found in enumerate(labels):
            if found == label and (
                not isinstance(other, Value | Load) or own not in other.axes or _chunk(other, own) != chunk
            ):
                return False
    return True


def _block_of(operand: Value | Load) -> Block:
    return operand.inside if isinstance(operand, Value) else operand.block


def _chunk(operand: Value | Load, axis: Axis) -> int | None:
    block = _block_of(operand)
    return block.length(axis) if axis in block.axes else None


def _packed(plan: Plan, operand: Value) -> Value:
    """All walked axes of a value packed into its tiles."""
    streamed = operand.streamed
    sizes = [operand.size(axis) for axis in streamed]
    uneven = operand.levels is not None and not _is_regular(operand)
    chunked = [axis for axis in streamed if axis in operand.inside.axes]
    if uneven or None in sizes or chunked or operand.lead is not ROOT:
        raise OperationNotStreamable(
            f"{described(plan.node)} needs all of an operand at once ({plan.definition.op}), and the length of that "
            + ("is not known" if None in sizes else "differs from step to step" if uneven else "is cut into tiles"),
            fix="use operations that work along the axis one by one (elementwise, sums, maxima), or a fixed length",
            at=plan.at,
        )
    lengths = [size for size in sizes if size is not None]
    inside = operand.inside
    block = Block((*streamed, *inside.axes), (*lengths, *inside.lengths))
    rows, cols = inside.sides
    assert rows is not None
    kind = data_type(operand.dtype)
    count = int(np.prod(lengths))

    def start(*sides: Any) -> np.ndarray:
        return np.zeros((0, cols), operand.dtype)

    def update(state: np.ndarray, part: np.ndarray) -> np.ndarray:
        return np.vstack([state, part])

    pack = Reduction("pack", start, update, lambda a: a, lambda a: 0, kind, grows=True)
    stream = accum(pack, materialised(operand), rank=len(streamed), name="pack")
    dims = tuple(axis for axis in operand.axes if isinstance(axis, Symbol))
    levels = irregular(None if operand.levels is None else operand.levels[: len(dims)], operand.sizes[: len(dims)])
    packed = Value(operand.lead, stream, dims, operand.sizes[: len(dims)], block, operand.dtype, levels)
    # The array keeps the order of its axes, whatever the sides of the tile are.
    assert count * rows * cols == int(np.prod([n or 1 for n in block.lengths]))
    return packed


def _is_regular(operand: Value) -> bool:
    """Whether the walked axes are equally long at every point of the dims."""
    assert operand.levels is not None
    dims = len(operand.axes) - len(operand.streamed)
    return all(regular_length(operand.levels, place) is not None for place in range(dims, len(operand.axes)))


def _fuses(plan: Plan) -> bool:
    """Whether the operation is one of a single stream and metadata, element by element, or only relabels its tiles."""
    values = [operand for operand in plan.operands if not isinstance(operand, np.ndarray)]
    data = [value for value in values if isinstance(value, Value) and not value.metadata]
    op = plan.definition.op
    if not data or any(isinstance(value, Load) for value in values):
        return False
    if op not in BROADCASTING and op not in ("broadcast", "reshape", "transpose"):
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
    streams = list(metadata)
    operands = plan.operands

    def compute(array: np.ndarray, *given: np.ndarray) -> np.ndarray:
        arguments = []
        for operand in operands:
            if not isinstance(operand, Value):
                arguments.append(operand)
            elif operand.metadata:
                arguments.append(given[streams.index(operand.base)])
            elif operand.fused is None:
                arguments.append(array)
            else:
                own = (given[streams.index(other.base)] for other in operand.fused.metadata)
                arguments.append(operand.fused.compute(array, *own))
        return local(*arguments)  # type: ignore[arg-type]

    # The two ways of a fork share what they have in common, which counts once.
    flops = max(v.fused.flops if v.fused else 0 for v in values) + flops_each(plan.definition.op)
    fused = Fused(compute, flops, _name(plan), local.result, tuple(metadata.values()))
    return replace(first, axes=axes, dtype=plan.node.dtype, fused=fused)


def _walked_labels(plan: Plan, signature: Signature) -> list[int]:
    found: dict[int, None] = {}
    for operand, labels in zip(plan.operands, signature.operands, strict=True):
        if isinstance(operand, Value | Load):
            for axis in operand.axes:
                if isinstance(axis, int):
                    label = labels[axis]
                    assert label is not None
                    found[label] = None
    return list(found)


def _brought_together(plan: Plan, signature: Signature, order: tuple[Any, ...]) -> list[Operand]:
    """All operands with the axes `order`, so that their elements meet; axes of values are named by their labels."""
    labelled: list[Operand] = []
    for operand, labels in zip(plan.operands, signature.operands, strict=True):
        if isinstance(operand, Value | Load):
            axes = tuple(_Label(labels[a]) if isinstance(a, int) else a for a in operand.axes)  # type: ignore[arg-type]
            labelled.append(replace(operand, axes=axes))  # type: ignore[arg-type]
        else:
            labelled.append(operand)
    values = [operand for operand in labelled if isinstance(operand, Value)]
    labelled = [
        _referred(plan, operand, values, order) if isinstance(operand, Load) else operand for operand in labelled
    ]
    values = [operand for operand in labelled if isinstance(operand, Value)]
    if not values:
        return labelled
    if any(value.lead is not ROOT for value in values):
        return [_expanded(plan, o, values, order) if isinstance(o, Value) else o for o in labelled]
    sizes: dict[Any, int | None] = {axis: value.size(axis) for value in values for axis in value.axes}
    total = tuple(sizes[axis] for axis in order)
    levels: Levels | None = None
    if any(v.levels is not None or v.size(axis) != sizes[axis] for v in values for axis in v.axes):
        levels = joined([(value.axes, value.prefixes()) for value in values], order, sizes)
        total = tuple(1 + max((point[-1] for point in level), default=-1) for level in levels)
        levels = irregular(levels, total)
    return [aligned(o, order, total, levels) if isinstance(o, Value) else o for o in labelled]


def _referred(plan: Plan, load: Load, values: Sequence[Value], order: tuple[Any, ...]) -> Value:
    """A tensor that lacks outer dims is read again for every element of an operand that has just those."""
    prefix = order[: len(order) - len(load.axes)]
    fits = order[len(prefix) :] == load.axes
    same = [value for value in values if value.axes == prefix and value.levels is None]
    in_region = load.branch is not None and plan.space is not None and bool(values) and values[0].lead.name == "region"
    if plan.space is not None:
        if fits and not prefix and values:
            return plan.space.read_part(load, values[0].lead)
        if not fits or not same or in_region:
            raise OperationNotStreamable(
                f"{described(plan.node)} reads {load.tensor.name} again for inner dims of a {plan.space.branch}",
                fix="order the dims so that those of the tensor come last, or tile them",
                at=plan.at,
            )
    if prefix and fits and same and (load.axes or plan.space is not None):
        return loaded_by(load, materialised(same[0]), same[0].lead, same[0].axes, same[0].sizes)
    return loaded(load)


def _expanded(plan: Plan, operand: Value, values: Sequence[Value], order: tuple[Any, ...]) -> Value:
    """An operand below a lead of its own, repeated along the inner axes that it lacks."""
    if operand.axes == order:
        return operand
    whole = next((value for value in values if value.axes == order), None)
    missing = order[len(operand.axes) :]
    if order[: len(operand.axes)] != operand.axes:
        raise OperationNotStreamable(
            f"{described(plan.node)} combines values whose dims come in different orders below {operand.lead.name}s",
            fix="reduce one of them first, or leave the directive out",
            at=plan.at,
        )
    sizes = {axis: value.size(axis) for value in values for axis in value.axes}
    stream, block, fused = carried(operand)
    known = [sizes[axis] for axis in missing]
    if None not in known:
        for count in known:
            assert count is not None
            key = (stream, count)
            if key not in plan.memo:
                plan.memo[key] = repeat(stream, count, name=f"repeat {operand.base.name}")
            stream = plan.memo[key]
    else:
        assert whole is not None, "a ragged dim is walked by some operand"
        for _ in missing[operand.ones :]:
            stream = promote(stream, 0)
        stream = expand(stream, materialised(whole), len(missing), name=f"repeat {operand.base.name}")
    total = tuple(sizes[axis] for axis in order)
    return Value(operand.lead, stream, order, total, block, operand.dtype, None, fused)


def _local(plan: Plan, signature: Signature, operands: Sequence[Operand]) -> LocalOp:
    """The operation on the parts that tiles hold."""
    problem = plan.problem
    lengths: dict[int, int] = {}
    batch: set[Axis] = set()
    blocks = []
    for operand, labels in zip(operands, signature.operands, strict=True):
        if isinstance(operand, np.ndarray):
            block = Block(tuple(range(operand.ndim)), operand.shape)
        else:
            block = operand.inside if isinstance(operand, Value) else operand.block
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

    def compute(*arrays: np.ndarray) -> np.ndarray:
        given = iter(arrays)
        arguments = []
        for operand in operands:
            if not isinstance(operand, Value):
                arguments.append(operand)
            elif operand.fused is not None and operand.fused.free:
                arguments.append(operand.fused.compute(next(given)))
            else:
                arguments.append(next(given))
        return local(*arguments)  # type: ignore[arg-type]

    return compute


def _of_sides(flops: Any, operands: Sequence[Operand], local: LocalOp) -> Any:
    """FLOPs from the sides of the streams alone."""

    def count(*sides: Any) -> Any:
        given = iter(sides)
        return flops(*(
            local.operands[i].sides if isinstance(operand, np.ndarray) else next(given)
            for i, operand in enumerate(operands)
        ))  # fmt: skip

    return count


def _settled(operand: Operand) -> Operand:
    """A value with nothing left to be computed."""
    if not isinstance(operand, Value):
        return operand
    return replace(operand, base=materialised(operand), block=operand.inside, fused=None)
