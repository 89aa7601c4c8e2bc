"""Iterations of a loop that do not depend on each other, many at once: the blocks of such a loop over leading axes.

`for all t: y[t] = x[t] @ w` becomes `y[t:t + n] = x[t:t + n] @ w` for as many steps as fit the cache. A value that
follows the counter has an axis more, in front; what does not is computed once for all of them. Loops inside, with an
axis of their own where they are parallel too, are done for all iterations of those around; what each iteration fills
and reads by itself gets a room with these axes. Ranges that follow a counter are in `ranged.py`, operations in
`rules.py`. Loops with operations or reads that have no rule go step by step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from polyrhythm.compiler.backends.python import rules
from polyrhythm.compiler.backends.python.ranged import Builder, Lane, Refused, Value
from polyrhythm.compiler.ir import dtypes, serials
from polyrhythm.compiler.ir.intervals import Interval, interval
from polyrhythm.compiler.ir.terms import ONE, ZERO, Symbol, Term, product
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.loops.ir import (
    Block,
    Compute,
    For,
    If,
    Item,
    Load,
    Local,
    LoopProgram,
    Operand,
    Place,
    Steps,
    Store,
    blocks_of,
    walk,
)

ELEMENTS = 2**17
"""About so many elements does a value of all iterations together have at most; half a megabyte of float32."""


@dataclass(frozen=True)
class Together(Block):
    """A block of many iterations; what may have come of zero times a number that is not finite is done `again`."""

    again: Mapping[str, tuple[Compute, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """A loop some iterations at a time, as many as `lane.most` says; `sizes` are those of the values of one.

    All of them are done at once where what they make are `rows` to those around. `rooms` are places that are made for
    it, `variables` hold values of many iterations until the next come.
    """

    lane: Lane
    body: tuple[Item | Batch, ...]
    sizes: tuple[Term, ...]
    rows: tuple[tuple[str, TensorType], ...] = ()
    rooms: tuple[Place, ...] = ()
    variables: tuple[tuple[str, TensorType], ...] = ()

    @property
    def at_once(self) -> dict[Symbol, Term]:
        """The first counter, and how many iterations, where all of them are done at once."""
        steps = self.lane.end - self.lane.first
        return {self.lane.counter: self.lane.first, self.lane.count: steps, self.lane.most: steps}

    @property
    def blocks(self) -> Iterator[Together]:
        """All blocks."""
        return (item for item in items_of(self.body) if isinstance(item, Together))


def items_of(items: Sequence[Item | Batch]) -> Iterator[Item | Batch]:
    """Every item of a tree."""
    for item in items:
        yield item
        if not isinstance(item, Block):
            yield from items_of(item.body)


def elements(program: LoopProgram) -> int:
    """How many elements a value of all iterations together may have: few of a program with a small budget."""
    return ELEMENTS if program.budget is None else max(1024, min(ELEMENTS, program.budget // 128))


def batched(program: LoopProgram, loop: For) -> Batch | None:
    """The iterations of a loop together, or None."""
    if not _may(loop):
        return None
    try:
        return _Nest(program, loop).batch(loop)
    except Refused:
        return None


def _may(loop: For) -> bool:
    return loop.parallel and loop.rows is None and loop.stop is None


class _Nest:
    """What is known while a loop and those in it are looked at."""

    def __init__(self, program: LoopProgram, outermost: For) -> None:
        self.program, self.outermost = program, outermost
        self.loops: list[For] = []
        self.lanes: list[Lane] = []
        self.loose = set[int]()
        self.rooms: dict[str, tuple[Place, tuple[int, ...]]] = {}
        self.variables: dict[str, Value] = {}
        self.rows: dict[str, tuple[Value, Term, Term]] = {}
        """Places of which a loop has made all steps at once: their values with its axis, its first step, how many."""
        self.stored: dict[tuple[str, tuple[Term | Steps, ...]], Value] = {}
        self.serial = any(isinstance(item, For) and not _may(item) for item in walk(outermost.body))
        self.made: dict[str, tuple[Value, Term, Term]] = {}
        self.summed = frozenset(_summed(outermost))
        self.stores: dict[str, list[Store]] = {}
        self.needs: dict[str, set[Symbol]] = {}
        """The loops for each iteration of which a place needs room."""
        for loops, store in _stores(outermost, ()):
            self.stores.setdefault(store.place, []).append(store)
            if program.places[store.place].kind == "variable":
                continue
            needs = {loop.counter for loop in loops if not _follows(store, loop.counter)}
            if needs != self.needs.setdefault(store.place, needs):
                raise Refused
            if not all(store.place in loop.private for loop in loops if loop.counter in needs):
                raise Refused

    def batch(self, loop: For) -> Batch:
        """A loop with an axis of its own."""
        name, depth = loop.counter.name, len(self.lanes)
        spans = {lane.counter: lane.span for lane in self.lanes}
        first, end = interval(loop.first, spans)[0], interval(loop.end, spans)[1]
        loose = self.loose
        self.loose = loose | self._maybe_none(loop)
        count, most = (Symbol(f"{name}_{what}", "size", serial=serials.BATCH - depth) for what in ("count", "most"))
        lane = Lane(loop.counter, count, most, first, end)
        self.lanes.append(lane)
        self.loops.append(loop)
        before, around, self.made = {*self.variables, *self.rows}, self.made, {}
        body = self.items(loop.body)
        rooms = tuple(place for place, lanes in self.rooms.values() if lanes and lanes[-1] == depth)
        known = {**self.variables, **{name: value for name, (value, *_) in self.rows.items()}}
        kept = tuple((self.name(name), value.type) for name, value in known.items() if name not in before)
        self.variables = {name: value for name, value in self.variables.items() if name in before}
        self.rows = {name: row for name, row in self.rows.items() if name in before} | self.made
        rows = tuple((self.name(name), value.type) for name, (value, *_) in self.made.items())
        whole = Batch(lane, body, (), rows, rooms, kept)
        self.made, self.loose = around, loose
        self.lanes.pop()
        self.loops.pop()
        return replace(whole, sizes=_sizes(whole))

    def name(self, place: str) -> str:
        """What holds the values of all iterations."""
        return place if self.program.places[place].kind == "variable" else f"{place} of all"

    def _maybe_none(self, loop: For) -> set[int]:
        """The lanes around that may have none of the steps of a loop, which goes over those of all together."""
        around = {lane.counter for lane in self.lanes}
        follow = [bool(term.symbols & around) for term in (loop.first, loop.end)]
        builder = Builder(self.lanes, Block("", (), ()))
        if not any(follow) or (builder.at_least(loop.end - loop.first) or 0) > 0:
            return set()
        if all(follow) or len(builder.touched(loop.first + loop.end * 2)) > 1:
            raise Refused  # steps between may be no one's
        return set(range(len(self.lanes)))

    def items(self, items: Sequence[Item]) -> tuple[Item | Batch, ...]:
        """What a loop does."""
        return tuple(map(self.item, items))

    def item(self, item: Item) -> Item | Batch:
        """A block, a loop or a guard."""
        if isinstance(item, Block):
            return self.block(item)
        around = {lane.counter for lane in self.lanes}
        if isinstance(item, If):
            if item.condition.symbols & around:
                raise Refused
            body = self.items(item.body)
            for block in blocks_of(item.body):
                self.forget(block)
            return replace(item, body=body)  # type: ignore[arg-type]
        if _may(item):
            stores = [store for block in blocks_of(item.body) for store in block.stores]
            ragged = (item.first.symbols | item.end.symbols) & around
            if ragged and not all(self._is_private(s.place) and len(self.stores[s.place]) == 1 for s in stores):
                raise Refused  # a step that is no one's may be stored over
            return self.batch(item)
        if item.rows is not None or item.stop is not None or (item.first.symbols | item.end.symbols) & around:
            raise Refused
        return replace(item, body=self.items(item.body))  # type: ignore[arg-type]

    def forget(self, block: Block) -> None:
        """What a block stores under a guard may not be there."""
        for store in block.stores:
            self.stored = {key: value for key, value in self.stored.items() if key[0] != store.place}

    def _is_private(self, place: str) -> bool:
        return all(place in loop.private for loop in self.loops)

    def block(self, block: Block) -> Together:
        """A block for the iterations of all lanes."""
        builder = Builder(self.lanes, block, self.loose)
        for one in block.body:
            given = [self.operand(builder, operand) for operand in one.operands]
            rules.compute(builder, one, given)
            self.mask(builder, block, one)
        stores = tuple(self.store(builder, block, store) for store in block.stores)
        return Together(block.name, tuple(builder.body), stores, builder.again)

    def mask(self, builder: Builder, block: Block, one: Compute) -> None:
        """What a sum is asked of is zero outside of its range from the beginning."""
        value = builder.values[one.result]
        places = {store.place for store in block.stores if store.value == one.result}
        if not self.summed & {*places, (block.name, one.result)} or len(value.ranges) != 1 or value.zero:
            return
        (axis,) = value.ranges
        if value.type.dtype not in (dtypes.FLOAT32, dtypes.FLOAT64) or not builder.touched_by(value.ranges[axis]) <= {
            *value.lanes
        }:
            return
        made = builder.body.pop()
        if made.result in builder.again:
            builder.body.append(made)
            return
        hidden = f"{made.result}_beyond"
        builder.put(replace(made, result=hidden), value)
        _, known = builder.zeroed(Local(hidden), value, axis)
        builder.put(replace(builder.body.pop(), result=made.result), known)

    def operand(self, builder: Builder, operand: Operand) -> tuple[Operand, Value]:
        """An operand for all iterations."""
        if isinstance(operand, Local):
            return operand, builder.values[operand.name]
        place = self.program.places[operand.place]
        if place.kind == "variable" and operand.place in self.stores:
            if operand.place not in self.variables:
                raise Refused
            value = self.variables[operand.place]
            return replace(operand, type=value.type), value
        if operand.place in self.rows:
            row, first, steps = self.rows[operand.place]
            found, value = builder.load(
                replace(operand, place=self.name(operand.place)), row.lanes[:-1], (steps,), first
            )
            return found, replace(value, wild=row.wild)
        room, lanes = self.rooms.get(operand.place, (None, ()))
        if room is None and self.needs.get(operand.place):
            raise Refused  # read before it is stored
        load = operand if room is None else replace(operand, place=room.name)
        found, value = builder.load(load, lanes, place.slots)
        known = self.stored.get((operand.place, operand.index))
        if known is not None and known.lanes == value.lanes and known.type == value.type:
            value = known
        return found, value

    def store(self, builder: Builder, block: Block, store: Store) -> Store:
        """Where the values of all iterations go."""
        place, value = self.program.places[store.place], builder.values[store.value]
        operand: Operand = Local(store.value)
        if place.kind == "variable":
            return self.keep(builder, store, value)
        if any(builder.touched(found.start) for found in value.ranges.values()):
            raise Refused
        if self.is_row(store, value):
            (entry,) = store.index
            own = self.lanes[-1]
            first = entry.substitute({own.counter: own.first})
            self.made[store.place] = value, first, own.end - own.first
            return replace(store, place=self.name(store.place), index=())
        rooms = self.room(store.place)
        index: list[Term | Steps] = [Steps(ZERO, self.lanes[lane].count.term) for lane in rooms]
        lanes = list(rooms)
        for entry in store.index:
            touched = builder.touched(entry)
            if touched:
                (lane,) = touched
                lanes.append(lane)
                entry_: Term | Steps = Steps(entry, self.lanes[lane].count.term)
            else:
                entry_ = entry
            index.append(entry_)
        if len(set(lanes)) < len(lanes) or not set(value.lanes) <= set(lanes):
            raise Refused
        declared = builder.types[store.value].shape
        if any(length.symbols for length in place.type.shape):
            index += [Steps(ZERO, builder.hull(length)[1]) for length in declared]
        shape = [self.lanes[lane].count.term if lane in value.lanes else ONE for lane in lanes]
        if sorted(lanes) == lanes:
            operand = builder.reshaped(operand, value, (*shape, *value.own))
        else:
            order = [value.lanes.index(lane) for lane in lanes if lane in value.lanes]
            order += range(len(value.lanes), len(value.type.shape))
            turned = TensorType(tuple(value.type.shape[axis] for axis in order), value.type.dtype)
            operand = builder.add("transpose", (operand,), {"axes": tuple(order)}, Value(turned))
            operand = builder.reshaped(operand, Value(turned), (*shape, *value.own))
        assert isinstance(operand, Local)
        self.stored = {k: v for k, v in self.stored.items() if k[0] != store.place}
        if not self.serial:
            self.stored[store.place, store.index] = value
        room = self.rooms.get(store.place)
        return Store(room[0].name if room else store.place, tuple(index), operand.name)  # type: ignore[arg-type]

    def is_row(self, store: Store, value: Value) -> bool:
        """Whether a loop makes all of what each iteration around it reads of a place, and a step depends on its own."""
        lane, place = self.lanes[-1], self.program.places[store.place]
        around = {one.counter for one in self.lanes[:-1]}
        alone = len(self.stores[store.place]) == 1 and len(store.index) == 1 and not value.ranges and not self.serial
        inside = any(load.place == store.place for block in blocks_of(self.loops[-1].body) for load in block.loads)
        private = bool(around) and self.needs[store.place] == around and place.kind == "buffer"
        follows = value.lanes[-1:] == (len(self.lanes) - 1,) and _follows(store, lane.counter)
        return alone and private and follows and not inside

    def room(self, name: str) -> tuple[int, ...]:
        """The lanes for which a place has room, which is made now."""
        counters = [lane.counter for lane in self.lanes]
        lanes = tuple(sorted(counters.index(counter) for counter in self.needs[name]))
        if lanes and name not in self.rooms:
            place = self.program.places[name]
            slots = (*(self.lanes[lane].most.term for lane in lanes), *place.slots)
            self.rooms[name] = replace(place, name=self.name(name), kind="buffer", slots=slots, spill=None), lanes
        return lanes

    def keep(self, builder: Builder, store: Store, value: Value) -> Store:
        """Keep the values of all iterations in a variable."""
        if not self._is_private(store.place) and not self._is_own(store.place):
            raise Refused
        name = store.value
        if self.serial and value.lanes != tuple(range(len(self.lanes))):
            everywhere = tuple(range(len(self.lanes)))
            operand = builder.spread(Local(name), value, everywhere, len(value.own))
            kind = TensorType((*builder.counts(everywhere), *value.own), value.type.dtype)
            value = Value(kind, everywhere, value.ranges)
            name = builder.add("broadcast", (operand,), {"shape": kind.shape}, value).name
        if self.serial:
            value = Value(value.type, value.lanes, value.ranges)
        known = self.variables.setdefault(store.place, value)
        if known.type != value.type or known.lanes != value.lanes or known.ranges != value.ranges:
            raise Refused
        if known != value:
            self.variables[store.place] = Value(value.type, value.lanes, value.ranges)
        return replace(store, value=name)

    def _is_own(self, place: str) -> bool:
        """Whether nothing outside the loop reads a place."""
        loads = (load for block in blocks_of(self.program.body) for load in block.loads)
        stops = (item.stop.done for item in walk(self.program.body) if isinstance(item, For) and item.stop is not None)
        everywhere = sum(load.place == place for load in (*loads, *stops))
        inside = (load for block in blocks_of(self.outermost.body) for load in block.loads)
        return everywhere == sum(load.place == place for load in inside)


def _stores(item: Item, loops: tuple[For, ...]) -> Iterator[tuple[tuple[For, ...], Store]]:
    """Every store with the loops around it of which many iterations run together."""
    if isinstance(item, Block):
        yield from ((loops, store) for store in item.stores)
        return
    inside = (*loops, item) if isinstance(item, For) and _may(item) else loops
    for inner in item.body:
        yield from _stores(inner, inside)


def _follows(store: Store, counter: Symbol) -> bool:
    """Whether an iteration stores to a step of its own, so far behind its counter."""
    entries = [entry for entry in store.index if counter in entry.symbols]
    return len(entries) == 1 and counter not in (entries[0] - counter.term).symbols


def _summed(loop: For) -> Iterator[object]:
    """The variables, and values of blocks, of which the sum along an axis is asked for."""
    for block in blocks_of(loop.body):
        for one in block.body:
            if one.op == "reduce" and one.attributes["monoid"] == "sum":
                (operand,) = one.operands
                yield operand.place if isinstance(operand, Load) else (block.name, operand.name)


def _sizes(batch: Batch) -> tuple[Term, ...]:
    """The numbers of elements of the largest values of one iteration, with loops inside done as a whole."""
    whole: dict[Symbol, Term] = {}
    for inner in [item for item in items_of(batch.body) if isinstance(item, Batch)][::-1]:
        whole |= inner.at_once
    own = {batch.lane.count: ONE, batch.lane.most: ONE}
    span: Mapping[Symbol, Interval] = {batch.lane.counter: (batch.lane.first, batch.lane.end - 1)}
    found: dict[Term, None] = {}
    counters = {item.counter: (item.first, item.end - 1) for item in items_of(batch.body) if isinstance(item, For)}

    def size(shape: Sequence[Term]) -> Term:
        lengths = []
        for length in shape:
            for _ in range(len(whole)):
                length = length.substitute(whole)
            length = interval(length.substitute(own), counters)[1]
            lengths.append(interval(length, span)[1])
        return product(lengths)

    for block in batch.blocks:
        for compute in block.body:
            if {batch.lane.count} & {symbol for length in compute.type.shape for symbol in length.symbols}:
                found[size(compute.type.shape)] = None
    rooms = [room for item in items_of([batch]) if isinstance(item, Batch) for room in item.rooms]
    for room in rooms:
        found[size(room.whole)] = None
    return tuple(found)
