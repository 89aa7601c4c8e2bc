"""Attention along a sequence that is spread: what lies along the sequence is computed block by block, never whole.

Lanes on several devices read all steps of what is spread over the same devices; `ops/ring.py` passes its blocks round.
Scores of a query and all keys would still be as long as the sequence. Here they stay a recipe: elementwise operations
and products make from a block of keys the scores of that block, and only what is reduced over the sequence is kept. A
reduction that needs another one first, as the variance needs the mean, goes round once more with the recipe done again.
Softmax need not: its sums follow the largest score so far (`online_softmax.py`), and attention takes one round.

It is legal because every operation of a recipe does the same at each position, and a reduction combines blocks in any
order; a block ends where the range of its lane does. Blocks of a program that do anything else with such a value are
done as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from polyrhythm.compiler.backends.jax import ops
from polyrhythm.compiler.backends.jax.ops import Padded
from polyrhythm.compiler.backends.jax.ops.padded import fit_axis, moved
from polyrhythm.compiler.backends.jax.ops.ring import Ring, folded_round
from polyrhythm.compiler.backends.jax.trace.online_softmax import Online, aligned, find_online
from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.ops import record
from polyrhythm.compiler.ir.ops.record import attribute_terms
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.ir.types import Array
from polyrhythm.compiler.loops.ir import Block, Compute, Load, Local

if TYPE_CHECKING:
    from polyrhythm.compiler.backends.jax.trace.lowering import Lowering
    from polyrhythm.compiler.backends.jax.trace.places import State

Reads = dict[Load, Padded]


@dataclass
class Stages:
    """Which computations of a block lie along the ring, and which reduce over it in which round."""

    ring: Ring
    length: Term
    along: dict[str, int] = field(default_factory=dict)  # the axis of each result that is a recipe
    cut: dict[Load | Local, int] = field(default_factory=dict)  # the axis of what lanes have whole, a mask for example
    rounds: dict[str, int] = field(default_factory=dict)  # after which round a result is there; 0 if no round is needed
    folded: list[Compute] = field(default_factory=list)


def run_stages(
    lowering: Lowering, some: Sequence[Compute], block: Block, values: dict[str, Padded], state: State
) -> bool:
    """Do some computations of a block in stages, if they allow it; False if not, and nothing is done then."""
    if not lowering.spread or lowering.apart or values:
        return False
    reads = {o: lowering.load(o, state) for c in some if c.op == "einsum" for o in c.operands if isinstance(o, Load)}
    rings: Reads = {load: value for load, value in reads.items() if value.ring is not None}
    plan = _planned(lowering, some, block, rings) if rings else None
    if plan is None:
        return False
    online = find_online(plan, some, block.types)
    done: set[str] = set()
    summed: dict[str, jax.Array] = {}  # what is still to be divided
    for number in range(max(plan.rounds.values()) + 1):
        wanted = [compute for compute in plan.folded if plan.rounds[compute.result] == number]
        if online is not None:
            wanted = [compute for compute in wanted if compute.result not in online.folds]
            if online.peak in wanted:
                wanted += [compute for compute in plan.folded if compute.result in online.folds]
        if wanted:
            merging = online if online is not None and online.peak in wanted else None
            found = _one_round(lowering, plan, wanted, some, values, rings, state, merging)
            for compute, array in zip(wanted, found, strict=True):
                if merging is not None and compute.result in merging.divided:
                    summed[compute.result] = array
                else:
                    values[compute.result] = _value(lowering, compute, array)
        for compute in (c for c in plan.folded if c.result in summed and plan.rounds[c.result] == number):
            assert online is not None
            divisor, axes = online.divided[compute.result]
            array = summed[compute.result] / aligned(values[divisor].array, axes)
            values[compute.result] = _value(lowering, compute, array)
        # Between two rounds: what needs no more than those before.
        for compute in some:
            if compute.result in plan.along or compute.result in done or compute in plan.folded:
                continue
            if plan.rounds[compute.result] == number:
                lowering.computed([compute], block, values, state)
                done.add(compute.result)
    return True


def _planned(lowering: Lowering, some: Sequence[Compute], block: Block, rings: Reads) -> Stages | None:
    """What lies along the ring and what is reduced; None if something else is done with it."""
    (first, value), *others = rings.items()
    assert value.ring is not None
    plan = Stages(value.ring, first.type.shape[value.ring.axis])
    for load, other in others:
        assert other.ring is not None
        size = other.array.shape[other.ring.axis]
        same = load.type.shape[other.ring.axis] is plan.length and size == value.array.shape[value.ring.axis]
        if not same or (other.ring.over, other.ring.every) != (plan.ring.over, plan.ring.every):
            return None
    if value.array.shape[value.ring.axis] % value.ring.devices:
        return None
    types = block.types
    for compute in some:
        if not _is_placed(plan, compute, types, rings):
            return None
    later = [name for c in block.body if c not in some for name in c.locals]
    if not plan.along or any(name in plan.along for name in (*later, *(store.value for store in block.stores))):
        return None
    return plan


def _is_placed(plan: Stages, compute: Compute, types: Mapping[str, Any], rings: Reads) -> bool:
    """Note where a computation belongs; False if it cannot be done block by block."""
    before = [plan.rounds[name] for name in compute.locals]
    axes = [_axis(plan, operand, rings) for operand in compute.operands]
    plan.rounds[compute.result] = max(before, default=0)
    if all(axis is None for axis in axes):
        return True
    if compute.op not in ("einsum", "reduce") and not record(compute.op).elementwise:
        return False
    if any(attribute_terms(value) for value in compute.attributes.values()):
        return False  # it may differ from lane to lane
    if compute.op != "einsum" and any(isinstance(operand, Load) and operand in rings for operand in compute.operands):
        return False
    kinds = compute.kinds(types)
    signature = compute.signature(types)
    pairs = list(zip(compute.operands, signature.operands, axes, kinds, strict=True))
    found = {labels[axis] for _, labels, axis, _ in pairs if axis is not None}
    if len(found) != 1 or None in found:
        return False
    (label,) = found
    for operand, labels, axis, kind in pairs:
        # Whatever else has the axis has it once, in as many steps; all other axes have fixed lengths.
        places = [n for n, own in enumerate(labels) if own == label and kind.shape[n] is not Term(1)]
        if axis is None and places:
            axis = plan.cut.setdefault(operand, places[0])
            if kind.shape[axis] is not plan.length:
                return False
        if places != ([] if axis is None else [axis]):
            return False
        if any(not n.is_constant for number, n in enumerate(kind.shape) if number != axis):
            return False
    if label in signature.result:
        if compute.op == "reduce" or signature.result.count(label) > 1:
            return False
        plan.along[compute.result] = signature.result.index(label)
        return all(n.is_constant or axis == plan.along[compute.result] for axis, n in enumerate(compute.type.shape))
    plan.folded.append(compute)
    plan.rounds[compute.result] += 1
    return compute.op in ("einsum", "reduce")


def _axis(plan: Stages, operand: Load | Local, rings: Reads) -> int | None:
    """The axis of an operand that lies along the ring."""
    if isinstance(operand, Local):
        return plan.along.get(operand.name)
    ring = rings[operand].ring if operand in rings else None
    return None if ring is None else ring.axis


def _one_round(
    lowering: Lowering,
    plan: Stages,
    wanted: Sequence[Compute],
    some: Sequence[Compute],
    values: dict[str, Padded],
    rings: Reads,
    state: State,
    online: Online | None,
) -> list[jax.Array]:
    """What is reduced in one round."""
    recipe = _recipe(plan, wanted, some, online)
    skipped = {} if online is None else online.skipped
    names = {compute.result for compute in recipe}
    plain: dict[Load | Local, Padded] = {}
    blocks: dict[Load, Padded] = {}
    for compute in recipe:
        for operand in compute.operands if compute.result not in skipped else ():
            if isinstance(operand, Load) and operand in rings:
                blocks[operand] = rings[operand]
            elif isinstance(operand, Load):
                plain[operand] = lowering.load(operand, state)
            elif operand.name not in names:
                plain[operand] = values[operand.name]
    length, (some_block, *_) = jnp.int32(lowering.scalar(plan.length)), blocks.values()
    assert some_block.ring is not None
    along, whole = some_block.ring.axis, some_block.array.shape[some_block.ring.axis]
    for operand, value in plain.items():
        plain[operand] = value = moved(value, value.starts)
        if operand in plan.cut:
            plain[operand] = replace(value, array=fit_axis(value.array, plan.cut[operand], whole))

    def piece(first: Any, given: Sequence[jax.Array], held: Sequence[jax.Array]) -> list[jax.Array]:
        inside, *arrays = given
        size = held[0].shape[along]
        left = jnp.clip(inside - first, 0, size)
        own: dict[Any, Padded] = {}
        for (operand, value), array in zip(plain.items(), arrays, strict=True):
            own[operand] = replace(value, array=array)
            if operand in plan.cut:
                axis = plan.cut[operand]
                part = jax.lax.dynamic_slice_in_dim(array, first, size, axis, allow_negative_indices=False)
                lengths = tuple(left if number == axis else n for number, n in enumerate(value.lengths))
                own[operand] = Padded(part, lengths)
        for (load, value), array in zip(blocks.items(), held, strict=True):
            assert value.ring is not None
            lengths = tuple(left if axis == value.ring.axis else n for axis, n in enumerate(value.lengths))
            own[load] = Padded(array, lengths, shared=_is_finite)
        made: dict[str, Padded] = {}
        for compute in recipe:
            if compute.result in skipped:
                made[compute.result] = made[skipped[compute.result]]
                continue
            operands = [made[o.name] if isinstance(o, Local) and o.name in made else own[o] for o in compute.operands]
            at = plan.along.get(compute.result)
            room = [size if axis == at else n.constant for axis, n in enumerate(compute.type.shape)]
            lengths = tuple(left if axis == at else n for axis, n in enumerate(room))
            dtype = dtypes.accumulator(compute.type.dtype) if compute in wanted else compute.type.dtype
            attributes = {key: v.value if isinstance(v, Array) else v for key, v in compute.attributes.items()}
            with jax.named_scope(compute.result):
                made[compute.result] = ops.apply(compute.op, operands, attributes, tuple(room), lengths, dtype)
        return [made[compute.result].array for compute in wanted]

    given = [length, *(value.array for value in plain.values())]
    held = [value.array for value in blocks.values()]
    axes = [value.ring.axis for value in blocks.values() if value.ring is not None]
    monoids = [compute.attributes.get("monoid", "sum") for compute in wanted]
    combine = None if online is None else partial(online.merged, wanted)
    return folded_round(piece, given, held, axes, monoids, plan.ring, combine)


def _value(lowering: Lowering, compute: Compute, array: jax.Array) -> Padded:
    made = jax.lax.convert_element_type(array, compute.type.dtype)
    return Padded(made, lowering.lengths(compute.type.shape))


def _recipe(plan: Stages, wanted: Sequence[Compute], some: Sequence[Compute], online: Online | None) -> list[Compute]:
    """What makes some reductions from a block, in order."""
    needed = {compute.result for compute in wanted}
    for compute in reversed(some):
        if compute.result in needed:
            skipped = online is not None and online.skipped.get(compute.result)
            names = (skipped,) if skipped else compute.locals
            inside = [name for name in names if name in plan.along or (online is not None and online.inside(name))]
            needed.update(inside)
    return [compute for compute in some if compute.result in needed]


def _is_finite(block: jax.Array) -> jax.Array:
    """Whether a block has no NaN and no infinity."""
    return jnp.isfinite(jnp.sum(block * jnp.zeros((), block.dtype)))
