"""Values of many iterations at once, in which ranges that follow the iteration lie side by side.

Of `x[0:t + 1]` at iterations `t, t + 1, ..., t + n - 1` every one reads the same `x[0:t + n]`, and of `x[t:T]` all of
`x[t:T]`: an axis of such a value holds what some iteration reads, and a `Range` says which part of it each has. What
lies outside of its part is any number, until something adds the axis up.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.intervals import interval
from polyrhythm.compiler.ir.terms import ONE, ZERO, Extremum, FloorDiv, Symbol, Term
from polyrhythm.compiler.ir.types import Array, TensorType
from polyrhythm.compiler.loops.ir import Block, Compute, Load, Local, Operand, Steps

INT32 = dtypes.INT32


class Refused(Exception):
    """The loop goes step by step."""


@dataclass(frozen=True)
class Lane:
    """A loop of which `count` iterations run together, at most `most`, from its counter on."""

    counter: Symbol
    count: Symbol
    most: Symbol
    first: Term
    end: Term

    @property
    def span(self) -> tuple[Term, Term]:
        """The first and the last of them."""
        return self.counter.term, self.counter.term + self.count.term - 1


@dataclass(frozen=True)
class Range:
    """What each iteration has of an axis of `whole` positions, which are the steps from `base` on.

    `start` and `length` are terms of the iteration's own counters, `base` and `whole` of the first's and how many.
    """

    start: Term
    length: Term
    base: Term
    whole: Term


@dataclass(frozen=True)
class Value:
    """A value of the iterations of some lanes together, with an axis for each in front of its own.

    An axis of its own that varies has a range, or is of length one if it repeats. What lies outside of ranges is any
    number; `zero` says that it is zero, or NaN, `wild` that it may well be infinite where what is inside is not.
    """

    type: TensorType
    lanes: tuple[int, ...] = ()
    ranges: Mapping[int, Range] = field(default_factory=dict)
    zero: bool = False
    wild: bool = False

    @property
    def own(self) -> tuple[Term, ...]:
        """The lengths of its own axes."""
        return self.type.shape[len(self.lanes) :]


class Builder:
    """What is computed in a block, for the iterations of some lanes."""

    def __init__(self, lanes: Sequence[Lane], block: Block, loose: Set[int] = frozenset()) -> None:
        self.loose = loose  # lanes with iterations that do not come here: what these read may not be there
        self.lanes, self.name, self.types = tuple(lanes), block.name, block.types
        self.spans = {lane.counter: lane.span for lane in lanes}
        self.body: list[Compute] = []
        self.values: dict[str, Value] = {}
        self.again: dict[str, tuple[Compute, ...]] = {}
        self.known: dict[object, str] = {}
        self.numbers = count()

    def touched(self, term: Term) -> tuple[int, ...]:
        """The lanes that a term follows."""
        return tuple(number for number, lane in enumerate(self.lanes) if lane.counter in term.symbols)

    def touched_by(self, range: Range) -> set[int]:
        """The lanes that a range follows."""
        return {*self.touched(range.start), *self.touched(range.length)}

    def hull(self, term: Term) -> tuple[Term, Term]:
        """The least and the greatest value of a term over the iterations, in terms of the first and of how many."""
        return interval(term, self.spans)

    def at_least(self, term: Term) -> int | None:
        """A number that a term is never below."""
        for lane in reversed(self.lanes):
            term, _ = interval(term, {lane.counter: (lane.first, lane.end - 1)})
        low, _ = interval(term, {symbol: (ZERO, symbol.term) for symbol in term.symbols})
        return low.constant if low.is_constant else None

    def counts(self, lanes: Iterable[int]) -> tuple[Term, ...]:
        """How long the axes of some lanes are."""
        return tuple(self.lanes[number].count.term for number in lanes)

    def declared(self, operand: Operand) -> tuple[Term, ...]:
        """The shape of an operand of the block, as one iteration has it."""
        return (self.types[operand.name] if isinstance(operand, Local) else operand.type).shape

    def add(self, op: str, operands: Sequence[Operand], attributes: Mapping[str, Any], value: Value) -> Local:
        """Compute something more."""
        name = f"{self.name}_{op}_at_{next(self.numbers)}"
        self.put(Compute(name, op, tuple(operands), attributes, value.type), value)
        return Local(name)

    def put(self, compute: Compute, value: Value) -> None:
        """The next operation, as it is."""
        self.body.append(compute)
        self.values[compute.result] = value

    @contextmanager
    def doing_again(self, compute: Compute) -> Iterator[None]:
        """What is computed meanwhile, ending with the same result, is what to do where that has become NaN."""
        mark, values, known = len(self.body), dict(self.values), dict(self.known)
        yield
        self.again[compute.result] = tuple(self.body[mark:])
        del self.body[mark:]
        self.values, self.known = values, known

    def value(self, operand: Operand) -> Value:
        """What is known of a local value."""
        assert isinstance(operand, Local)
        return self.values[operand.name]

    def reshaped(self, operand: Operand, value: Value, shape: tuple[Term, ...]) -> Operand:
        """An operand in another shape."""
        if shape == value.type.shape:
            return operand
        return self.add("reshape", (operand,), {"shape": shape}, Value(TensorType(shape, value.type.dtype)))

    def spread(self, operand: Operand, value: Value, lanes: Sequence[int], rank: int) -> Operand:
        """An operand with axes of length one where it lacks a lane or an axis of its own."""
        front = [self.lanes[number].count.term if number in value.lanes else ONE for number in lanes]
        shape = [*front, *(ONE,) * (rank - len(value.own)), *value.own]
        while shape and shape[0] is ONE and len(shape) > len(value.own):
            del shape[0]
        return self.reshaped(operand, value, tuple(shape))

    def in_front(self, operand: Operand, kind: TensorType, axes: Sequence[int | None]) -> tuple[Operand, TensorType]:
        """An operand with the axes of lanes in front, in order; `axes` says of each which lane it is of."""
        lanes = sorted((lane, axis) for axis, lane in enumerate(axes) if lane is not None)
        order = (*(axis for _, axis in lanes), *(axis for axis, lane in enumerate(axes) if lane is None))
        if order == tuple(range(len(axes))):
            return operand, kind
        turned = TensorType(tuple(kind.shape[axis] for axis in order), kind.dtype)
        return self.add("transpose", (operand,), {"axes": order}, Value(turned)), turned

    def together(self, given: Sequence[tuple[Operand, Value]]) -> tuple[tuple[int, ...], dict[int, Range], list[Term]]:
        """The lanes, ranges and own lengths of what is made of operands element by element."""
        lanes = tuple(sorted({lane for _, value in given for lane in value.lanes}))
        rank = max((len(value.own) for _, value in given), default=0)
        ranges: dict[int, Range] = {}
        lengths = [ONE] * rank
        for axis in range(rank):
            found = set()
            for _, value in given:
                own = axis - rank + len(value.own)
                if own >= 0 and value.own[own] is not ONE:
                    found.add(value.ranges.get(own))
                    lengths[axis] = value.own[own]
            if len(found) > 1:
                raise Refused  # ranges that begin elsewhere
            ranges.update((axis, one) for one in found if one is not None)
        return lanes, ranges, lengths

    def elementwise(self, op: str, given: Sequence[tuple[Operand, Value]], dtype: np.dtype) -> Local:
        """An operation element by element, of whatever lanes its operands have."""
        lanes, ranges, lengths = self.together(given)
        operands = [self.spread(operand, value, lanes, len(lengths)) for operand, value in given]
        kind = TensorType((*self.counts(lanes), *lengths), dtype)
        return self.add(op, operands, {}, Value(kind, lanes, ranges))

    def scalar(self, term: Term) -> Local:
        """A term of first counters as a number."""
        return self.add("index", (), {"value": term}, Value(TensorType((), INT32)))

    def constant(self, value: Any, dtype: np.dtype) -> Local:
        """A number."""
        array = Array(np.asarray(value, dtype))
        return self.add("constant", (), {"value": array}, Value(TensorType((), dtype)))

    def iota(self, length: Term) -> Local:
        """The numbers below a length."""
        return self.add("iota", (), {"length": length}, Value(TensorType((length,), INT32)))

    def combined(self, op: str, a: Local, b: Local, dtype: np.dtype = INT32) -> Local:
        """Two local values, element by element."""
        return self.elementwise(op, [(a, self.value(a)), (b, self.value(b))], dtype)

    def along(self, term: Term) -> Local:
        """A term of the iterations' own counters: its value at each."""
        if ("along", term) not in self.known:
            self.known["along", term] = self._along(term).name
        return Local(self.known["along", term])

    def _along(self, term: Term) -> Local:
        total, rest = None, term
        for monomial, factor in term.monomials:
            alone = Term(0, ((monomial, factor),))
            if not self.touched(alone):
                continue
            atom = monomial[0]
            if len(monomial) > 1:
                raise Refused
            rest = rest - alone
            if isinstance(atom, Symbol):
                (number,) = self.touched(alone)
                part = self.iota(atom_count := self.lanes[number].count.term)
                self.values[part.name] = Value(TensorType((atom_count,), INT32), (number,))
                rest = rest + atom.term * factor
            elif isinstance(atom, FloorDiv):
                part = self.combined("floordiv", self.along(atom.dividend), self.constant(atom.divisor, INT32))
            else:
                assert isinstance(atom, Extremum)
                op = "minimum" if atom.which == "min" else "maximum"
                part = self.along(atom.arguments[0])
                for argument in atom.arguments[1:]:
                    part = self.combined(op, part, self.along(argument))
            if factor != 1:
                part = self.combined("mul", part, self.constant(factor, INT32))
            total = part if total is None else self.combined("add", total, part)
        if total is None:
            return self.scalar(rest)
        return total if rest is ZERO else self.combined("add", total, self.scalar(rest))

    def inside(self, range: Range, axis: int, rank: int) -> Local:
        """Whether positions of an axis, one of so many, belong to each iteration's range."""
        key = ("inside", range, axis, rank)
        if key not in self.known:
            self.known[key] = self._inside(range, axis, rank).name
        return Local(self.known[key])

    def _inside(self, range: Range, axis: int, rank: int) -> Local:
        places = self.iota(range.whole)
        if range.base is not ZERO:
            places = self.combined("add", places, self.scalar(range.base))
        found = None
        stop = range.start + range.length
        if self.touched(stop):
            end = self._column(self.along(stop))
            found = self.elementwise("lt", [(places, self.value(places)), end], dtypes.BOOL)
        if self.touched(range.start):
            start = self._column(self.along(range.start))
            after = self.elementwise("le", [start, (places, self.value(places))], dtypes.BOOL)
            found = after if found is None else self.combined("and", found, after, dtypes.BOOL)
        assert found is not None
        value = self.value(found)
        shape = [range.whole if n == axis else ONE for n in builtins.range(rank)]
        kind = TensorType((*self.counts(value.lanes), *shape), dtypes.BOOL)
        turned = self.reshaped(found, value, kind.shape)
        assert isinstance(turned, Local)
        self.values[turned.name] = Value(kind, value.lanes, {axis: range})
        return turned

    def _column(self, local: Local) -> tuple[Operand, Value]:
        """A number of each iteration beside an axis of positions."""
        value = self.value(local)
        kind = TensorType((*value.type.shape, ONE), value.type.dtype)
        return self.reshaped(local, value, kind.shape), Value(kind, value.lanes)

    def is_quick(self, value: Value, axis: int) -> bool:
        """Whether to mask by arithmetic, which makes NaN of what is not finite: then it is done again."""
        quick = value.type.dtype in (dtypes.FLOAT32, dtypes.FLOAT64)
        return quick and not value.wild and (self.at_least(value.ranges[axis].length) or 0) > 0

    def masked(self, operand: Operand, value: Value, axis: int, beyond: Any) -> tuple[Operand, Value]:
        """An operand with a number in the place of what lies outside of the range of an axis."""
        mask = self.inside(value.ranges[axis], axis, len(value.own))
        fill = self.constant(beyond, value.type.dtype)
        return self._masked("select", [(mask, self.value(mask)), (operand, value), (fill, self.value(fill))], value)

    def scaled(self, operand: Operand, value: Value, axis: int) -> tuple[Operand, Value]:
        """An operand that is zero outside of the range of its one axis, or NaN."""
        factor = self._numbers(value, axis, 1, 0)
        made, known = self._masked("mul", [(operand, value), (factor, self.value(factor))], value)
        return made, replace(known, zero=len(value.ranges) == 1)

    def biased(self, operand: Operand, value: Value, axis: int, beyond: Any) -> tuple[Operand, Value]:
        """An operand that is infinite outside of the range of an axis, or NaN."""
        bias = self._numbers(value, axis, 0, beyond)
        return self._masked("add", [(operand, value), (bias, self.value(bias))], value)

    def _numbers(self, value: Value, axis: int, inside: Any, outside: Any) -> Local:
        """One number in the range of an axis, and another outside of it."""
        rank, dtype = len(value.own), value.type.dtype
        key = ("numbers", value.ranges[axis], axis, rank, float(outside), dtype)
        if key not in self.known:
            mask = self.inside(value.ranges[axis], axis, rank)
            given = [mask, *(self.constant(number, dtype) for number in (inside, outside))]
            self.known[key] = self.elementwise("select", [(one, self.value(one)) for one in given], dtype).name
        return Local(self.known[key])

    def _masked(self, op: str, given: Sequence[tuple[Operand, Value]], value: Value) -> tuple[Operand, Value]:
        lanes, _, lengths = self.together([(operand, replace(one, ranges={})) for operand, one in given])
        operands = [self.spread(operand, one, lanes, len(lengths)) for operand, one in given]
        kind = TensorType((*self.counts(lanes), *lengths), value.type.dtype)
        known = Value(kind, lanes, value.ranges, op == "select" and len(value.ranges) == 1)
        return self.add(op, operands, {}, known), known

    def zeroed(self, operand: Operand, value: Value, axis: int) -> tuple[Operand, Value]:
        """An operand that is zero outside of the range of an axis, or NaN if that is quick."""
        return self.scaled(operand, value, axis) if self.is_quick(value, axis) else self.masked(operand, value, axis, 0)

    def stretched(self, operand: Operand, value: Value, shape: tuple[Term, ...]) -> tuple[Operand, Value]:
        """An operand that repeats along axes of the given lengths, with all its elements."""
        own, ranges = list(value.own), dict(value.ranges)
        for axis, length in enumerate(shape):
            if own[axis] is ONE and length is not ONE:
                own[axis] = self.hull(length)[1]
                if self.touched(length):
                    ranges[axis] = Range(ZERO, length, ZERO, own[axis])
        if tuple(own) == value.own:
            return operand, value
        kind = TensorType((*self.counts(value.lanes), *own), value.type.dtype)
        known = Value(kind, value.lanes, ranges, wild=value.wild)
        local = self.add("broadcast", (operand,), {"shape": kind.shape}, known)
        return local, self.value(local)

    def load(
        self, load: Load, room: tuple[int, ...], slots: Sequence[Term], origin: Term = ZERO
    ) -> tuple[Operand, Value]:
        """A read by all iterations; `room` are the lanes of which the place has an axis each, in front.

        The first slot is of the step `origin`, which is a term of first counters.
        """
        index: list[Term | Steps] = [Steps(ZERO, self.lanes[lane].count.term) for lane in room]
        axes: list[int | None] = list(room)
        shape, ranges = list(self.counts(room)), dict[int, Range]()
        lengths = iter(load.type.shape)
        gathered: tuple[int, Local, int] | None = None  # the axis, the places on it, and how many own axes they have
        for number, entry in enumerate(load.index):
            own = sum(axis is None for axis in axes)
            if isinstance(entry, Term):
                touched = self.touched(entry)
                if not touched:
                    index.append(entry - origin)
                    continue
                alone = len(touched) == 1 and touched[0] not in axes and touched[0] not in self.loose
                if alone and self._follows(entry, touched[0]):
                    count = self.lanes[touched[0]].count.term
                    index.append(Steps(entry - origin, count))
                    axes.append(touched[0])
                    shape.append(count)
                    continue
                places, steps = self.along(entry), 0
            else:
                length = next(lengths)
                touched = tuple({*self.touched(entry.start), *self.touched(entry.length)})
                if not touched:
                    index.append(replace(entry, start=entry.start - origin))
                    axes.append(None)
                    shape.append(length)
                    continue
                if entry.ring is not None or self.touched(length) != self.touched(entry.length):
                    raise Refused
                found = None if self.loose & {*touched} else self._range(entry, length)
                if found is not None:
                    ranges[own] = found
                    first = found.base if self.touched(entry.start) else entry.start
                    index.append(Steps(first - origin, found.whole, entry.step))
                    axes.append(None)
                    shape.append(found.whole)
                    continue
                whole = self.hull(length)[1]
                if self.touched(length):
                    ranges[own] = Range(ZERO, length, ZERO, whole)
                along = self.iota(whole)
                if entry.step != 1:
                    along = self.combined("mul", along, self.constant(entry.step, INT32))
                column, value = self._column(self.along(entry.start))
                places, steps = self.elementwise("add", [(column, value), (along, self.value(along))], INT32), 1
            if gathered is not None or self.touched(origin):
                raise Refused
            gathered = len(axes), places, steps
            index.append(Steps(ZERO, slots[number]))
            axes.append(None)
            shape.append(slots[number])
        for length in lengths:
            whole = self.hull(length)[1] if self.touched(length) else length
            if self.touched(length):
                ranges[sum(axis is None for axis in axes)] = Range(ZERO, length, ZERO, whole)
            axes.append(None)
            shape.append(whole)
        kind = TensorType(tuple(shape), load.type.dtype)
        operand: Operand = replace(load, index=tuple(index), type=kind)
        if gathered is not None:
            axis, places, steps = gathered
            at = self.value(places)
            if set(at.lanes) & {lane for lane in axes if lane is not None}:
                raise Refused
            shape[axis : axis + 1] = at.type.shape
            axes[axis : axis + 1] = [*at.lanes, *(None,) * steps]
            if not steps:  # one axis less of its own
                before = sum(lane is None for lane in axes[:axis])
                ranges = {own - (own > before): one for own, one in ranges.items()}
            kind = TensorType(tuple(shape), load.type.dtype)
            operand = self.add("take", (operand, places), {"axis": axis}, Value(kind))
        operand, kind = self.in_front(operand, kind, axes)
        lanes = tuple(sorted(lane for lane in axes if lane is not None))
        return operand, Value(kind, lanes, ranges)

    def _follows(self, entry: Term, lane: int) -> bool:
        return not self.touched(entry - self.lanes[lane].counter.term)

    def _range(self, entry: Steps, length: Term) -> Range | None:
        """A read of ranges that lie side by side, if all of what they cover is read by some iteration."""
        starts, ends = self.touched(entry.start), self.touched(entry.start + length)
        if not self.touched(length) or (entry.step != 1 and (starts or entry.step < 0)):
            return None
        if not starts:
            return Range(ZERO, length, ZERO, self.hull(length)[1])
        if ends and (len({*starts, *ends}) > 1 or (self.at_least(length) or 0) < 1):
            return None
        base, stop = self.hull(entry.start)[0], self.hull(entry.start + length)[1]
        return Range(entry.start, length, base, stop - base)
