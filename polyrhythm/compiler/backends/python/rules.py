"""How operations are done on the values of many iterations at once: what changes when axes come in front of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from polyrhythm.compiler.backends.python.ranged import Builder, Range, Refused, Value
from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.ops import record
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.ops.record import attribute_terms
from polyrhythm.compiler.ir.terms import ONE, ZERO, Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.loops.ir import Compute, Operand

Given = Sequence[tuple[Operand, Value]]
Rule = Callable[[Builder, Compute, Given], None]


def compute(builder: Builder, one: Compute, given: Given) -> None:
    """An operation of a block, on operands as they are with all lanes."""
    if one.rows is not None:
        raise Refused
    if one.op == "index" and isinstance(one.attributes["value"], Term):
        _index(builder, one)
        return
    if one.op in RULES:
        RULES[one.op](builder, one, given)
        return
    operation = record(one.op)
    terms = [term for value in one.attributes.values() for term in attribute_terms(value)]
    if any(lane.counter in term.symbols for term in terms for lane in builder.lanes):
        raise Refused
    plain = operation.elementwise or one.op in ("constant", "copy")
    if not plain or operation.calls or operation.chooses:
        raise Refused
    _elementwise(builder, one, given)


def _put(builder: Builder, one: Compute, operands: Sequence[Operand], value: Value, **attributes: object) -> None:
    made = replace(one, operands=tuple(operands), attributes={**one.attributes, **attributes}, type=value.type)
    builder.put(made, value)


def _elementwise(builder: Builder, one: Compute, given: Given) -> None:
    lanes, ranges, lengths = builder.together(given)
    rank = one.type.rank
    if rank > len(lengths):  # literal arrays
        lengths = list(one.type.shape)
    operands = [builder.spread(operand, value, lanes, rank) for operand, value in given]
    kind = TensorType((*builder.counts(lanes), *lengths), one.type.dtype)
    zero = _is_zero(builder, one, [value for _, value in given], ranges)
    wild = not zero and (one.op in GROWING or any(value.wild for _, value in given))
    _put(builder, one, operands, Value(kind, lanes, ranges, zero, wild))


GROWING = frozenset(("exp", "expm1", "pow", "sinh", "cosh"))
"""What makes infinity of numbers that are not large."""


def _is_zero(builder: Builder, one: Compute, values: Sequence[Value], ranges: Mapping[int, Range]) -> bool:
    """Whether a result is zero, or NaN, outside of the ranges of its axes, since operands are."""
    zeros = [value.zero and len(value.ranges) == len(ranges) > 0 for value in values]
    if one.op == "div" and not all((builder.at_least(found.length) or 0) > 0 for found in ranges.values()):
        return False  # of nothing the sum is zero
    if one.op in ("neg", "cast", "copy", "div"):
        return zeros[0]
    if one.op in ("add", "sub"):
        return all(zeros)
    return one.op == "mul" and any(zeros)


def _index(builder: Builder, one: Compute) -> None:
    term = one.attributes["value"]
    if not builder.touched(term):
        _put(builder, one, (), Value(one.type))
        return
    along = builder.along(term)
    value = builder.value(along)
    _put(builder, replace(one, op="copy", attributes={}), (along,), value)


def _iota(builder: Builder, one: Compute, given: Given) -> None:
    length = one.attributes["length"]
    whole = builder.hull(length)[1] if builder.touched(length) else length
    ranges = {0: Range(ZERO, length, ZERO, whole)} if builder.touched(length) else {}
    _put(builder, one, (), Value(TensorType((whole,), one.type.dtype), (), ranges), length=whole)


def _broadcast(builder: Builder, one: Compute, given: Given) -> None:
    ((operand, value),) = given
    shape, own = one.type.shape, list(value.own)
    missing = len(shape) - len(own)
    lengths = []
    for axis, length in enumerate(shape):
        before = own[axis - missing] if axis >= missing else ONE
        lengths.append(ONE if builder.touched(length) and before is ONE else length)
        if axis >= missing and before is not ONE:
            lengths[-1] = before
    ranges = {axis + missing: found for axis, found in value.ranges.items()}
    operand = builder.spread(operand, value, value.lanes, len(shape))
    kind = TensorType((*builder.counts(value.lanes), *lengths), one.type.dtype)
    same = kind.shape == (*builder.counts(value.lanes), *(ONE,) * missing, *own)
    known = Value(kind, value.lanes, ranges, value.zero, value.wild)
    if same and not missing:
        _put(builder, replace(one, op="copy", attributes={}), (operand,), known)
    else:
        _put(builder, replace(one, op="reshape") if same else one, (operand,), known, shape=kind.shape)


def _reshape(builder: Builder, one: Compute, given: Given) -> None:
    ((operand, value),) = given
    wanted = list(one.type.shape)
    ranges: dict[int, Range] = {}
    if value.ranges or any(builder.touched(length) for length in wanted):
        ranges, wanted = _kept(builder, value, wanted)
    kind = TensorType((*builder.counts(value.lanes), *wanted), one.type.dtype)
    _put(builder, one, (operand,), replace(value, type=kind, ranges=ranges), shape=kind.shape)


def _kept(builder: Builder, value: Value, wanted: list[Term]) -> tuple[dict[int, Range], list[Term]]:
    """Where axes with ranges are after a reshape that keeps them: as many elements before each."""
    ranges: dict[int, Range] = {}
    places = [axis for axis, length in enumerate(wanted) if builder.touched(length)]
    old = [axis for axis, length in enumerate(value.own) if axis in value.ranges]
    if len(places) != len(old):
        raise Refused
    shape = list(wanted)
    before_old, before_new = 0, 0
    for place, axis in zip(places, old, strict=True):
        found = value.ranges[axis]
        if wanted[place] is not found.length:
            raise Refused
        if _size(value.own[before_old:axis]) is not _size(wanted[before_new:place]):
            raise Refused
        shape[place], ranges[place] = found.whole, found
        before_old, before_new = axis + 1, place + 1
    return ranges, shape


def _size(lengths: Sequence[Term]) -> Term:
    size = ONE
    for length in lengths:
        size = size * length
    return size


def _transpose(builder: Builder, one: Compute, given: Given) -> None:
    ((operand, value),) = given
    axes, front = one.attributes["axes"], len(value.lanes)
    ranges = {n: value.ranges[axis] for n, axis in enumerate(axes) if axis in value.ranges}
    kind = TensorType((*builder.counts(value.lanes), *(value.own[axis] for axis in axes)), one.type.dtype)
    order = (*range(front), *(front + axis for axis in axes))
    _put(builder, one, (operand,), replace(value, type=kind, ranges=ranges), axes=order)


def _slice(builder: Builder, one: Compute, given: Given) -> None:
    ((operand, value),) = given
    starts, lengths, steps = (list(one.attributes[name]) for name in ("starts", "lengths", "steps"))
    ranges = dict[int, Range]()
    for axis, (start, length, step) in enumerate(zip(starts, lengths, steps, strict=True)):
        found = value.ranges.get(axis)
        if found is not None and start is ZERO and step == 1 and length is found.length:
            ranges[axis], lengths[axis] = found, found.whole
        elif builder.touched(start) or builder.touched(length):
            cut = found is None and not builder.touched(start) and value.own[axis] is not ONE and step > 0
            if not cut:
                raise Refused
            lengths[axis] = builder.hull(length)[1]
            ranges[axis] = Range(ZERO, length, ZERO, lengths[axis])
        elif found is not None:
            raise Refused
    counts = builder.counts(value.lanes)
    kind = TensorType((*counts, *lengths), one.type.dtype)
    front = len(counts)
    attributes = {
        "starts": (*(ZERO,) * front, *starts),
        "lengths": (*counts, *lengths),
        "steps": (*(1,) * front, *steps),
    }
    zero = value.zero and len(ranges) == len(value.ranges)
    _put(builder, one, (operand,), Value(kind, value.lanes, ranges, zero, value.wild), **attributes)


def _reduce(builder: Builder, one: Compute, given: Given) -> None:
    ((operand, value),) = given
    axes, monoid = one.attributes["axes"], one.attributes["monoid"]
    operand, value = _solid(builder, one, operand, value, axes)
    first, identity = (operand, value), dtypes.identity(monoid, value.type.dtype)
    ranged = [axis for axis in axes if axis in value.ranges]
    exact = True
    for axis in ranged:
        quick = builder.is_quick(value, axis) and monoid in ("sum", "max", "min")
        if monoid == "sum" and (quick or value.zero):
            exact = False
            operand, value = (operand, value) if value.zero else builder.scaled(operand, value, axis)
        elif quick:
            exact = False
            operand, value = builder.biased(operand, value, axis, identity)
        else:
            operand, value = builder.masked(operand, value, axis, identity)
    kept = [axis for axis in range(len(value.own)) if axis not in axes]

    def reduced(operand: Operand, value: Value) -> None:
        ranges = {n: value.ranges[axis] for n, axis in enumerate(kept) if axis in value.ranges}
        counts = builder.counts(value.lanes)
        kind = TensorType((*counts, *(value.own[axis] for axis in kept)), one.type.dtype)
        moved = tuple(len(counts) + axis for axis in axes)
        _put(builder, one, (operand,), Value(kind, value.lanes, ranges, wild=value.wild), axes=moved)

    reduced(operand, value)
    if not exact:
        with builder.doing_again(one):
            operand, value = first
            for axis in ranged:
                operand, value = builder.masked(operand, value, axis, identity)
            reduced(operand, value)


def _solid(
    builder: Builder, one: Compute, operand: Operand, value: Value, axes: Sequence[int]
) -> tuple[Operand, Value]:
    """An operand of which some axes that repeat are written out."""
    declared = builder.declared(one.operands[0])
    wanted = tuple(declared[axis] if axis in axes else length for axis, length in enumerate(value.own))
    return builder.stretched(operand, value, wanted)


def _argreduce(builder: Builder, one: Compute, given: Given) -> None:
    ((operand, value),) = given
    axis = one.attributes["axis"]
    operand, value = _solid(builder, one, operand, value, (axis,))
    found = value.ranges.get(axis)
    if found is not None:
        if builder.touched(found.start):
            raise Refused
        operand, value = builder.masked(
            operand, value, axis, dtypes.identity(one.attributes["which"], value.type.dtype)
        )
    own = [length for n, length in enumerate(value.own) if n != axis]
    ranges = {n - (n > axis): known for n, known in value.ranges.items() if n != axis}
    kind = TensorType((*builder.counts(value.lanes), *own), one.type.dtype)
    _put(builder, one, (operand,), Value(kind, value.lanes, ranges), axis=axis + len(value.lanes))


def _cumulative(builder: Builder, one: Compute, given: Given) -> None:
    ((operand, value),) = given
    axis = one.attributes["axis"]
    operand, value = _solid(builder, one, operand, value, (axis,))
    found = value.ranges.get(axis)
    if found is not None and (one.op != "cumulative" or one.attributes["reverse"] or builder.touched(found.start)):
        raise Refused
    kind = TensorType(value.type.shape, one.type.dtype)
    _put(builder, one, (operand,), Value(kind, value.lanes, value.ranges), axis=axis + len(value.lanes))


def _concat(builder: Builder, one: Compute, given: Given) -> None:
    axis = one.attributes["axis"]
    if any(axis in value.ranges for _, value in given):
        raise Refused
    rest = [(o, _without(value, axis)) for o, value in given]
    lanes, ranges, lengths = builder.together(rest)
    operands = []
    for n, (operand, value) in enumerate(given):
        declared = builder.declared(one.operands[n])
        if builder.touched(declared[axis]):
            raise Refused
        wanted = (*builder.counts(lanes), *(declared[axis] if k == axis else m for k, m in enumerate(lengths)))
        if value.type.shape != wanted:
            operand = builder.spread(operand, value, lanes, len(lengths))
            kind = TensorType(wanted, value.type.dtype)
            operand = builder.add("broadcast", (operand,), {"shape": wanted}, Value(kind))
        operands.append(operand)
    lengths[axis] = one.type.shape[axis]
    kind = TensorType((*builder.counts(lanes), *lengths), one.type.dtype)
    _put(builder, one, operands, Value(kind, lanes, ranges), axis=axis + len(lanes))


def _without(value: Value, axis: int) -> Value:
    """A value as if an axis had length one."""
    place = len(value.lanes) + axis
    shape = (*value.type.shape[:place], ONE, *value.type.shape[place + 1 :])
    return replace(value, type=TensorType(shape, value.type.dtype))


def _pad(builder: Builder, one: Compute, given: Given) -> None:
    operand, value = given[0]
    before, after = list(one.attributes["before"]), list(one.attributes["after"])
    declared = builder.declared(one.operands[0])
    wanted, lengths = list(value.own), list(value.own)
    for axis, ends in enumerate(zip(before, after, strict=True)):
        if any(builder.touched(Term.of(end)) for end in ends):
            raise Refused
        if any(Term.of(end) is not ZERO for end in ends):
            if axis in value.ranges or builder.touched(declared[axis]):
                raise Refused
            wanted[axis], lengths[axis] = declared[axis], one.type.shape[axis]
    operand, value = builder.stretched(operand, value, tuple(wanted))
    counts = builder.counts(value.lanes)
    kind = TensorType((*counts, *lengths), one.type.dtype)
    zeros = (ZERO,) * len(counts)
    known = Value(kind, value.lanes, value.ranges)
    _put(builder, one, (operand,), known, before=(*zeros, *before), after=(*zeros, *after))


def _take(builder: Builder, one: Compute, given: Given) -> None:
    (operand, value), (places, at) = given
    axis = one.attributes["axis"]
    if axis in value.ranges or builder.touched(builder.declared(one.operands[0])[axis]):
        raise Refused
    before, after = value.own[:axis], value.own[axis + 1 :]
    if value.lanes and at.lanes:
        raise Refused
    if value.lanes:
        ranges = _taken(value, at, axis)
        kind = TensorType((*builder.counts(value.lanes), *before, *at.own, *after), one.type.dtype)
        _put(builder, one, (operand, places), Value(kind, value.lanes, ranges), axis=axis + len(value.lanes))
        return
    counts = builder.counts(at.lanes)
    own = (*before, *at.own, *after)
    kind = TensorType((*counts, *own), one.type.dtype)
    known = Value(kind, at.lanes, _taken(value, at, axis))
    if axis == 0 or not counts:
        _put(builder, one, (operand, places), known)
        return
    taken = TensorType((*before, *counts, *at.own, *after), one.type.dtype)
    middle = builder.add("take", (operand, places), {"axis": axis}, Value(taken))
    front = len(counts)
    order = (*range(axis, axis + front), *range(axis), *range(axis + front, taken.rank))
    _put(builder, replace(one, op="transpose", attributes={}), (middle,), known, axes=order)


def _taken(value: Value, at: Value, axis: int) -> dict[int, Range]:
    rank = len(at.own)
    ranges = {n if n < axis else n - 1 + rank: found for n, found in value.ranges.items()}
    return ranges | {axis + n: found for n, found in at.ranges.items()}


def _einsum(builder: Builder, one: Compute, given: Given) -> None:
    words, out = parse_spec(one.attributes["spec"])
    known: list[tuple[Operand, Value]] = []
    for operand, (given_operand, value), word in zip(one.operands, given, words, strict=True):
        del word
        known.append(builder.stretched(given_operand, value, builder.declared(operand)))
    ranges: dict[str, Range] = {}
    for (_, value), word in zip(known, words, strict=True):
        for axis, label in enumerate(word):
            found = value.ranges.get(axis)
            if found is not None and ranges.setdefault(label, found) != found:
                raise Refused
    for (_, value), word in zip(known, words, strict=True):
        if any(label in ranges and axis not in value.ranges for axis, label in enumerate(word)):
            raise Refused
    first, exact = list(known), True
    for label in ranges.keys() - {*out}:
        holders = [n for n, word in enumerate(words) if label in word]
        lanes = builder.touched_by(ranges[label])
        full = [n for n in holders if lanes <= {*known[n][1].lanes} or known[n][1].zero]
        chosen = full or [min(holders, key=lambda n: len(known[n][1].type.shape))]
        for n in holders:
            for axis in (axis for axis, own in enumerate(words[n]) if own == label):
                exact = exact and n in chosen and not (known[n][1].zero or builder.is_quick(known[n][1], axis))
                if n in chosen and not known[n][1].zero:
                    known[n] = builder.zeroed(*known[n], axis)
    _contract(builder, one, known, words, out)
    if not exact and one.type.dtype.kind in "fcV":
        with builder.doing_again(one):
            for n, word in enumerate(words):
                for axis, label in enumerate(word):
                    if label in ranges and label not in out:
                        first[n] = builder.masked(*first[n], axis, 0)
            _contract(builder, one, first, words, out)


def _contract(builder: Builder, one: Compute, known: Given, words: Sequence[str], out: str) -> None:
    lanes = tuple(sorted({lane for _, value in known for lane in value.lanes}))
    letters = _letters({*"".join(words)}, len(builder.lanes))
    given = ",".join(
        "".join(letters[lane] for lane in value.lanes) + word for (_, value), word in zip(known, words, strict=True)
    )
    spec = f"{given}->{''.join(letters[lane] for lane in lanes)}{out}"
    lengths, ranges = dict[str, Term](), dict[str, Range]()
    for (_, value), word in zip(known, words, strict=True):
        lengths |= dict(zip(word, value.own, strict=True))
        ranges |= {word[axis]: found for axis, found in value.ranges.items()}
    kind = TensorType((*builder.counts(lanes), *(lengths[label] for label in out)), one.type.dtype)
    kept = {n: ranges[label] for n, label in enumerate(out) if label in ranges}
    wild = any(value.wild for _, value in known)
    _put(builder, one, [operand for operand, _ in known], Value(kind, lanes, kept, wild=wild), spec=spec)


def _letters(used: set[str], count: int) -> list[str]:
    return [letter for letter in _alphabet() if letter not in used][:count]


def _alphabet() -> Iterator[str]:
    yield from "zyxwvutsrqponmlkjihgfedcbaZYXWVUTSRQPONMLKJIHGFEDCBA"


RULES: Mapping[str, Rule] = {
    "iota": _iota,
    "broadcast": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "reduce": _reduce,
    "argreduce": _argreduce,
    "cumulative": _cumulative,
    "argsort": _cumulative,
    "concat": _concat,
    "pad": _pad,
    "take": _take,
    "einsum": _einsum,
}
