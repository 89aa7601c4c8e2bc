"""Operations on axes of which only the first part counts.

An axis of a row's length S is stored at the longest row's; what lies beyond S may be anything, NaN too. An operation
that computes each position alone, or from those before it, keeps that. One that combines positions gets the identity
of its monoid beyond the end, put there by a select, which no NaN passes. The rest are few, and each says here what
it needs; what is not listed is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import TRUE, conjunction, ge
from polyrhythm.compiler.ir.graph import Definition
from polyrhythm.compiler.ir.sets import facts, proves
from polyrhythm.compiler.ir.terms import ONE, ZERO, Term, product
from polyrhythm.compiler.ir.values import Value
from polyrhythm.compiler.ragged.application import Application, joined, placed, positions
from polyrhythm.compiler.ragged.lengths import INT32, masked
from polyrhythm.compiler.ragged.transforms import RULES as TRANSFORMS


def rewritten(use: Application) -> Definition:
    """The definition that computes the same at the longest row: right in the part that counts."""
    definition = use.definition
    ragged = [(k, a) for k, kind in enumerate(use.types) for a in range(kind.rank) if use.varies(k, a)]
    terms = any(use.lengths.vary(term.symbols) for term in definition.terms)
    reads = tuple(value.access for value in use.values)
    if not ragged and not terms:
        return replace(definition, operands=reads)
    if definition.op in _RULES:
        return Definition(TRUE, "copy", (_RULES[definition.op](use).access,), {}, definition.at)
    if definition.record.calls or definition.record.external:
        raise use.refused(f"{definition.op} needs one shape")
    signature = definition.record.signature(use.types, definition.attributes)
    values = list(use.values)
    for operand, axis in ragged:
        label = signature.operands[operand][axis]
        role = signature.roles[label] if label is not None else None
        if role is not None and role.kind == "reduce":
            assert role.monoid is not None
            identity = dtypes.identity(role.monoid, values[operand].dtype).item()
            length = use.types[operand].shape[axis]
            values[operand] = masked(use.lengths, values[operand], axis, length, identity)
        elif role is not None and role.kind == "opaque":
            raise use.refused(f"{definition.op} cannot be computed for all rows at one length")
    reads = tuple(value.access for value in values)
    return replace(definition, operands=reads, attributes=use.widened())


def _index(use: Application) -> Value:
    value = use.definition.attributes["value"]
    return use.lengths.value(use.space, value) if isinstance(value, Term) else use.lengths.truth(use.space, value)


def _random_bits(use: Application) -> Value:
    shape = use.definition.attributes["shape"]
    inner = [axis for axis, n in enumerate(shape) if use.lengths.vary(n.symbols) and product(shape[:axis]) is not ONE]
    if inner:
        raise use.refused("its random bits would be others at the longest row")
    return use.space.apply("random_bits", **use.widened())


def _reshape(use: Application) -> Value:
    """Elements keep their places if nothing that is repeated lies outside of the axis that is cut short."""
    (value,) = use.values
    attributes = use.widened()
    old, new = value.shape, attributes["shape"]
    signature = use.definition.record.signature(use.types, use.definition.attributes)
    kept = {label for label, role in enumerate(signature.roles) if role.kind == "parallel"}
    for axis, n in enumerate(old):
        moves = use.varies(0, axis) and signature.operands[0][axis] not in kept and n is not ONE
        if moves and any(m is not ONE for m in old[:axis]):
            raise use.refused("a reshape would move elements of the longer rows")
    if product(old) is not product(new):
        raise use.refused("a reshape has no one shape for all rows")
    return value.apply("reshape", shape=new)


def _slice(use: Application) -> Value:
    (value,) = use.values
    given = use.definition.attributes
    starts, sizes, steps = list(given["starts"]), list(given["lengths"]), list(given["steps"])
    moved: dict[int, tuple[Term, Term, int]] = {}
    for axis, (start, size, step) in enumerate(zip(starts, sizes, steps, strict=True)):
        if use.lengths.vary(start.symbols) or (step < 0 and use.lengths.vary(size.symbols)):
            moved[axis] = start, size, step
            starts[axis], sizes[axis], steps[axis] = ZERO, value.shape[axis], 1
    wide = tuple(use.lengths.widest(n) for n in sizes)
    if any(n is not m for n, m in zip(wide, value.shape, strict=True)) or any(s is not ZERO for s in starts):
        value = value.apply("slice", starts=tuple(starts), lengths=wide, steps=tuple(steps))
    for axis, (start, size, step) in moved.items():
        places = positions(use.lengths, use.space, start, use.lengths.widest(size), step)
        value = value.apply("take", places, axis=axis)
    return value


def _pad(use: Application) -> Value:
    (value,) = use.values
    given = use.definition.attributes
    fill = given["value"]
    for axis, (before, after) in enumerate(zip(given["before"], given["after"], strict=True)):
        length = use.types[0].shape[axis]
        size = use.lengths.widest(before + length + after)
        if before is ZERO and after is ZERO:
            continue
        rest = size - before - value.shape[axis]
        if not use.lengths.vary(before.symbols) and _never_negative(use, rest):
            if use.lengths.vary(length.symbols):
                value = masked(use.lengths, value, axis, length, fill)
            value = value.lengthened(axis, before, rest, fill)
        else:
            moved, inside = placed(use, value, axis, before, length, size)
            value = moved.where(inside, fill)
    return value


def _never_negative(use: Application, term: Term) -> bool:
    return proves(conjunction(use.space.domain, facts(term.symbols)), ge(term, ZERO))


def _concat(use: Application) -> Value:
    axis = use.definition.attributes["axis"]
    if not any(use.varies(k, axis) for k in range(len(use.values) - 1)):
        return use.space.apply("concat", *use.values, axis=axis)
    return joined(use, use.values, [kind.shape[axis] for kind in use.types], axis)


def _argreduce(use: Application) -> Value:
    given = use.definition.attributes
    worst = dtypes.identity(given["which"], use.values[0].dtype).item()
    return use.filled(0, [given["axis"]], worst).apply("argreduce", **given)


def _argsort(use: Application) -> Value:
    """What lies beyond the end is sorted last: equal elements stay in order, and it comes after them."""
    given = use.definition.attributes
    dtype = use.values[0].dtype
    last = np.nan if dtypes.is_float(dtype) else dtypes.identity("max" if given["descending"] else "min", dtype).item()
    return use.filled(0, [given["axis"]], last).apply("argsort", **given)


def _cumulative(use: Application) -> Value:
    given = use.definition.attributes
    identity = dtypes.identity(given["monoid"], use.values[0].dtype).item()
    value = use.filled(0, [given["axis"]], identity) if given["reverse"] else use.values[0]
    return value.apply("cumulative", **given)


def _linear_scan(use: Application) -> Value:
    """Backwards, the last element of a row is where it begins: its factor and all that follows count for nothing."""
    given = use.definition.attributes
    axis = given["axis"]
    if not given["reverse"] or not use.varies(1, axis):
        return use.values[0].apply("linear_scan", use.values[1], **given)
    factors = masked(use.lengths, use.values[0], axis, use.types[0].shape[axis] - 1, 0)
    return factors.apply("linear_scan", use.filled(1, [axis], 0), **given)


def _take(use: Application) -> Value:
    """An index beyond the end of a row means its last element, and a row without elements has zeros."""
    value, indices = use.values
    given = use.definition.attributes
    axis = given["axis"]
    if not use.varies(0, axis):
        return value.apply(use.definition.op, indices, **given)
    length = use.lengths.value(use.space, use.types[0].shape[axis])
    last = length.apply("sub", use.space.constant(1, INT32)).cast(indices.dtype)
    taken = value.apply(use.definition.op, indices.apply("minimum", last), **given)
    return taken.where(use.space.constant(0, INT32).apply("lt", length), 0)


def _scatter(use: Application) -> Value:
    """Updates beyond the end of a row go nowhere."""
    base, _, updates = use.values
    indices = use.filled(1, range(use.types[1].rank), -1)
    given = use.definition.attributes
    axis = given["axis"]
    if use.definition.op == "scatter_along" and use.types[1].shape[axis] is not use.types[2].shape[axis]:
        raise use.refused("scatter_along cannot be computed for all rows at one length")
    return base.apply(use.definition.op, indices, updates, **given)


def _window(use: Application) -> Value:
    given = use.definition.attributes
    fill = 0 if "monoid" not in given else dtypes.identity(given["monoid"], use.values[0].dtype).item()
    values = [use.filled(k, range(kind.rank), fill) for k, kind in enumerate(use.types)]
    return values[0].apply(use.definition.op, *values[1:], **use.widened())


_RULES: Mapping[str, Callable[[Application], Value]] = {
    "index": _index,
    "random_bits": _random_bits,
    "reshape": _reshape,
    "slice": _slice,
    "pad": _pad,
    "concat": _concat,
    "argreduce": _argreduce,
    "argsort": _argsort,
    "cumulative": _cumulative,
    "linear_scan": _linear_scan,
    "take": _take,
    "take_along": _take,
    "scatter": _scatter,
    "scatter_add": _scatter,
    "scatter_along": _scatter,
    "conv": _window,
    "reduce_window": _window,
    **TRANSFORMS,
}
"""How the operations are computed that do something else along an axis than each position alone or a monoid."""

__all__ = ["rewritten"]
