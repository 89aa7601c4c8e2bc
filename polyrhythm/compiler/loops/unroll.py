"""Short loops inside longer ones, written out; what they index is kept as separate arrays.

XLA on CPU copies a slice of a stacked array before it uses it. A loop over four layers that takes the weights of its
layer out of a stack copies all weights at every step: 525 us against 173 us where each layer has its own arrays. So
a loop with a known, small number of iterations is *unrolled* when its body takes large slices by its counter, of
inputs or of what the longer loop carries. What an iteration of the longer loop computes anew is no such stack: it is
written and read once, and the steps of a rollout that stores images stay a loop.
Along an axis that only counters of unrolled loops index, every slot of a place becomes an array of its own.

`marked` decides, and says so in the program that people and the checker see: the loop stays a loop, whose order and
storage are proved for all its iterations at once, so that nothing here takes longer for more layers. `expanded`
writes the loops out, for a backend that wants them so.

A loop that was cut has several pieces with one counter. The first few iterations of a long loop are a piece with a
known number of iterations, but no short loop: pieces are unrolled only if all of them together are one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from polyrhythm.compiler.ir.conditions import FALSE, TRUE, conjunction
from polyrhythm.compiler.ir.ops.record import map_attributes
from polyrhythm.compiler.ir.terms import ONE, ZERO, Symbol, Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.loops.ir import (
    Block,
    Compute,
    For,
    If,
    Item,
    Load,
    LoopProgram,
    Place,
    Site,
    Steps,
    Stop,
    Use,
    blocks_of,
    mapped,
    sites,
    walk,
)

LARGE_SLICES = 1 << 15
"""Bytes of slices per iteration from which on a loop is unrolled: the copies cost more than the code."""

MOST_OPERATIONS = 20_000
"""Operations that a program may have after unrolling."""

MOST_ITERATIONS = 128

LITTLE = 8
"""The most operations of a parallel loop that is written out for the sake of what it shares with another."""

NOMINAL_LENGTH = 256
"""Elements: what an axis of unknown length counts for in the estimate of slices."""

Values = Mapping[Symbol, Term]


def _loops_of(use: Use, axis: int) -> list[For] | None:
    """The loops whose counters an index along an axis is made of; None if it is not made of counters alone."""
    entry = use.index[axis]
    if isinstance(entry, Steps):
        return None
    by_counter = {loop.counter: loop for loop in use.site.loops}
    found = [by_counter.get(symbol) for symbol in entry.symbols]
    return None if None in found else [loop for loop in found if loop is not None]


def marked(program: LoopProgram) -> LoopProgram:
    """The program with the loops marked that are better written out, and the places that then have separate slots."""
    uses = list(_uses(program.body))
    short = _short(program)
    by_place: dict[str, list[Use]] = {}
    for use in uses:
        by_place.setdefault(use.place, []).append(use)
    chosen = {id(loop) for loop in _paying(program, by_place, short)}
    if not chosen:
        return program
    separate: dict[str, tuple[int, ...]] = {}
    for name, place in program.places.items():
        own = by_place.get(name, [])
        axes = [axis for axis in range(len(place.slots)) if _separates(place, own, axis, chosen, short)]
        if place.kind != "output" and axes:
            separate[name] = tuple(axes)
            if place.kind == "buffer":  # no other loop may then index it while it runs
                chosen |= {id(loop) for use in own for axis in axes for loop in _loops_of(use, axis) or ()}
    places = {n: replace(p, separate=separate.get(n, ())) for n, p in program.places.items()}
    body = mapped(program.body, lambda i: replace(i, unrolled=True) if isinstance(i, For) and id(i) in chosen else i)
    result = replace(program, places=places, body=body)
    written = (len(s.block.body) * prod(len(o.known or ()) for o in s.loops if o.unrolled) for s in sites(body))
    return result if sum(written) <= MOST_OPERATIONS else program


def _uses(items: Sequence[Item]) -> Iterator[Use]:
    for site in sites(items):
        yield from site.uses
        for number, loop in enumerate(site.loops):
            if loop.stop is not None:
                yield Use(loop.stop.done.place, loop.stop.done.index, Site(site.block, site.loops[: number + 1]))


def _short(program: LoopProgram) -> set[Symbol]:
    """The counters whose values are known and few, over all the pieces of their loops."""
    pieces: dict[Symbol, list[range | None]] = {}
    for item in walk(program.body):
        if isinstance(item, For):
            pieces.setdefault(item.counter, []).append(item.known)
    return {
        counter
        for counter, known in pieces.items()
        if None not in known and len({n for values in known for n in values or ()}) <= MOST_ITERATIONS
    }


def _can_unroll(loop: For, short: set[Symbol]) -> bool:
    """Whether a loop may be written out. One that does much all at once is better left so."""
    host = any(block.host for block in blocks_of(loop.body))
    little = not loop.parallel or sum(len(block.body) for block in blocks_of(loop.body)) <= LITTLE
    return loop.counter in short and little and not host


def _paying(program: LoopProgram, uses: Mapping[str, Sequence[Use]], short: set[Symbol]) -> Iterator[For]:
    """The loops inside longer ones whose iterations take large slices by their counter, of what can be separate."""

    def visit(items: Sequence[Item], around: bool, fresh: frozenset[str]) -> Iterator[For]:
        """`fresh` are the places that the iteration around has written as a whole before these items."""
        for item in items:
            if isinstance(item, If):
                yield from visit(item.body, around, fresh)
                continue
            if isinstance(item, For):
                known = item.known
                if around and known is not None and len(known) > 1 and not item.parallel and _can_unroll(item, short):
                    own = [use for use in _uses((item,)) if _follows(use, item.counter) and use.place not in fresh]
                    kept = (u for u in own if _can_separate(program, u, item.counter, uses, short))
                    slices = {(u.place, u.index) for u in kept} - {(u.place, u.index) for u in own if u.stored}
                    if sum(_slice_bytes(program.places[p], index) for p, index in slices) >= LARGE_SLICES:
                        yield item
                yield from visit(item.body, around or known is None, fresh if known is not None else frozenset())
            fresh |= {store.place for s in sites((item,)) if not s.guards for store in s.block.stores}

    return visit(program.body, False, frozenset())


def _follows(use: Use, counter: Symbol) -> bool:
    return any(isinstance(entry, Term) and counter in entry.symbols for entry in use.index)


def _slice_bytes(place: Place, index: Sequence[Term | Steps]) -> int:
    """How much lies at one position of the axes that an index selects from, with a guess for unknown lengths."""
    picked = [isinstance(entry, Term) for entry in index]
    size = place.type.dtype.itemsize
    for axis, length in enumerate(place.whole):
        if axis >= len(picked) or not picked[axis]:
            size *= max(1, length.constant) if length.is_constant else NOMINAL_LENGTH
    return size


def _separates(place: Place, uses: Sequence[Use], axis: int, chosen: set[int], short: set[Symbol]) -> bool:
    """Whether the slots along an axis can be separate arrays: all loops that index it can be written out.

    An input is not written, so it may be there as a whole as well, for those who index it otherwise.
    """
    found = [_loops_of(use, axis) for use in uses]
    if not any(id(loop) in chosen for loops in found for loop in loops or ()):
        return False
    return _can_be_arrays(place, uses, axis, short)


def _can_be_arrays(place: Place, uses: Sequence[Use], axis: int, short: set[Symbol]) -> bool:
    """Whether every index along an axis is made of counters of loops that can be written out."""
    if not place.slots[axis].is_constant:
        return False
    found = (_loops_of(use, axis) for use in uses)
    return place.kind == "input" or all(
        loops is not None and all(_can_unroll(loop, short) for loop in loops) for loops in found
    )


def _can_separate(
    program: LoopProgram, use: Use, counter: Symbol, uses: Mapping[str, Sequence[Use]], short: set[Symbol]
) -> bool:
    """Whether a read or write by a counter can become one of an array of its own."""
    place = program.places[use.place]
    axes = (axis for axis, entry in enumerate(use.index) if isinstance(entry, Term) and counter in entry.symbols)
    return place.kind == "output" or any(_can_be_arrays(place, uses[use.place], axis, short) for axis in axes)


def expanded(program: LoopProgram) -> LoopProgram:
    """The program with its unrolled loops written out, lanes and held values to be found anew.

    What was one outermost item stays one.
    """
    if not any(isinstance(item, For) and item.unrolled for item in walk(program.body)):
        return program
    program = program if program.sharding else _with_outermost(program)
    writer = _Writer(program)
    body = tuple(written for item in program.body for written in writer.item(item, {}, outermost=True))
    used = writer.used | {*program.outputs, *program.inputs.values()}
    places = {name: place for name, place in writer.places.items() if name in used}
    return replace(program, places=places, body=body, limits=writer.limits, spans=writer.spans)


def _with_outermost(program: LoopProgram) -> LoopProgram:
    """The program with its outermost unrolled loops as loops, where that copies little.

    A call runs each of them once, so it may copy the slices of an iteration: a prompt is read by a loop over layers.
    What such a loop stores to separate slots it stores to a buffer of all of them, and they are filled after it.
    """
    uses, places = [use for use in _uses(program.body) if use.site.loops], dict(program.places)
    apart = {name for name, place in places.items() if place.separate and place.kind != "input"}
    several = {id(loop) for use in uses for loop in use.site.loops if loop.unrolled and len(loop.known or ()) > 1}
    shared = apart & {use.place for use in uses if not several.isdisjoint(map(id, use.site.loops[1:]))}
    places.update({name: replace(places[name], separate=()) for name in apart - shared})

    def once(use: Use) -> bool:
        """Whether an iteration of the outermost loop copies what is used at most once."""
        if use.place in shared:
            return use.stored
        large = _follows(use, use.site.loops[0].counter) and _slice_bytes(places[use.place], use.index) >= LARGE_SLICES
        return not large or all(loop.parallel for loop in use.site.loops[1:])

    kept = {id(use.site.loops[0]) for use in uses} & several - {id(use.site.loops[0]) for use in uses if not once(use)}

    def storing(item: Item) -> Item:
        """An item that stores to the buffers of all slots."""
        if not isinstance(item, Block):
            return item
        stores = (replace(s, place=f"{s.place}, all") if s.place in shared else s for s in item.stores)
        return replace(item, stores=tuple(stores))

    def filled(loop: For) -> Iterator[Item]:
        """What fills the slots from those buffers."""
        for site in sites((loop,)):
            for store in (store for store in site.block.stores if store.place in shared):
                place, whole = program.places[store.place], f"{store.place}, all"
                ends = {Term.of(o.counter): o.end for o in site.loops if o.end.symbols <= set(program.bounds)}
                slots = tuple(ends.get(entry, count) for entry, count in zip(store.index, place.slots, strict=True))
                places[whole] = replace(place, name=whole, slots=slots, separate=())
                copy = Compute(store.value, "copy", (Load(whole, store.index, place.type),), {}, place.type)
                item: Item = If(conjunction(*site.guards), (Block(site.block.name, (copy,), (store,)),))
                for around in reversed(site.loops):
                    item = replace(around, body=(item,))
                yield item

    def rolled(item: Item) -> Item:
        if not isinstance(item, For) or id(item) not in kept:
            return item
        loop = replace(item, unrolled=False, body=mapped(item.body, storing))
        return For(item.counter, ZERO, ONE, (loop, *filled(item)))

    return replace(program, body=mapped(program.body, rolled), places=places)


class _Writer:
    """Copies items for given values of counters."""

    def __init__(self, program: LoopProgram) -> None:
        self.whole = program.places
        self.places: dict[str, Place] = dict(program.places)
        self.limits, self.spans = dict(program.limits), dict(program.spans)
        self.used: set[str] = set()

    def item(self, item: Item, values: Values, outermost: bool = False) -> Iterator[Item]:
        """An item as it is written out: any number of items, but one if it is an outermost loop."""
        if isinstance(item, Block):
            yield self._block(item, values)
        elif isinstance(item, If):
            condition = item.condition.substitute(values)
            body = tuple(inner for part in item.body for inner in self.item(part, values, outermost))
            if condition is TRUE:
                yield from body
            elif condition is not FALSE and body:
                yield If(condition, body)
        elif item.unrolled:
            known = item.known
            assert known is not None
            each = ({**values, item.counter: Term(value)} for value in known)
            body = tuple(inner for now in each for part in item.body for inner in self.item(part, now))
            if outermost:
                yield For(item.counter, ZERO, ONE, body)
            else:
                yield from body
        else:
            body = tuple(inner for part in item.body for inner in self.item(part, values))
            first, end = item.first.substitute(values), item.end.substitute(values)
            stop = item.stop
            if stop is not None:
                stop = Stop(self._load(stop.done, values), stop.bound, stop.length.substitute(values))
            yield replace(item, first=first, end=end, body=body, stop=stop, registers=(), lanes=None, splits=())

    def _block(self, block: Block, values: Values) -> Block:
        body = tuple(self._compute(compute, values) for compute in block.body)
        stores = []
        for store in block.stores:
            place, index = self._slot(store.place, _at(store.index, values))
            stores.append(replace(store, place=place, index=tuple(term for term in index if isinstance(term, Term))))
        return replace(block, body=body, stores=tuple(stores))

    def _compute(self, compute: Compute, values: Values) -> Compute:
        operands = tuple(self._load(o, values) if isinstance(o, Load) else o for o in compute.operands)
        if not values:
            return replace(compute, operands=operands)
        attributes = map_attributes(compute.attributes, lambda term: term.substitute(values))
        step = tuple(term.substitute(values) for term in compute.step)
        kind = self._type(compute.type, values)
        return replace(compute, operands=operands, attributes=attributes, type=kind, step=step)

    def _load(self, load: Load, values: Values) -> Load:
        place, index = self._slot(load.place, _at(load.index, values))
        return replace(load, place=place, index=index, type=self._type(load.type, values), held=False)

    def _type(self, kind: TensorType, values: Values) -> TensorType:
        """A type for given values of counters. What is known of its lengths is known of what they become."""
        shape = tuple(length.substitute(values) for length in kind.shape)
        for old, new in zip(kind.shape, shape, strict=True):
            if old in self.limits:
                self.limits.setdefault(new, self.limits[old])
            if old in self.spans:
                self.spans.setdefault(new, self.spans[old])
        return kind if shape == kind.shape else TensorType(shape, kind.dtype)

    def _slot(self, name: str, index: tuple[Term | Steps, ...]) -> tuple[str, tuple[Term | Steps, ...]]:
        """The place of a slot and what remains of its index: a separate array where the slot is known."""
        place = self.whole[name]
        picked: list[int | None] = [None] * len(index)
        for axis in place.separate:
            entry = index[axis]
            if not isinstance(entry, Term) or not entry.is_constant:
                assert place.kind == "input", "only an input is kept as a whole besides"
                self.used.add(name)
                return name, index
            picked[axis] = entry.constant
        if place.separate:
            name = f"{name}[{', '.join('' if slot is None else str(slot) for slot in picked)}]"
            if name not in self.places:
                self.places[name] = _part(place, name, picked)
        self.used.add(name)
        return name, tuple(entry for entry, slot in zip(index, picked, strict=True) if slot is None)


def _part(place: Place, name: str, picked: Sequence[int | None]) -> Place:
    slots = tuple(count for count, slot in zip(place.slots, picked, strict=True) if slot is None)
    kind = "variable" if place.kind == "buffer" and not slots else place.kind
    gone = {axis for axis, slot in enumerate(picked) if slot is not None}
    left = [axis for axis in range(len(place.whole)) if axis not in gone]
    axes = tuple(left.index(axis) for axis in place.axes if axis not in gone) if kind == "buffer" else ()
    part_of = (place.name, tuple(picked))
    dims = tuple(dim for dim, slot in zip(place.dims, picked, strict=True) if slot is None)
    return replace(place, name=name, kind=kind, slots=slots, separate=(), part_of=part_of, axes=axes, dims=dims)


def _at(index: Sequence[Term | Steps], values: Values) -> tuple[Term | Steps, ...]:
    return tuple(
        entry.substitute(values)
        if isinstance(entry, Term)
        else replace(entry, start=entry.start.substitute(values), length=entry.length.substitute(values))
        for entry in index
    )
