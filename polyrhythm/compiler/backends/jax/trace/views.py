"""What one lane of a loop sees: its body over places without the axes along which it has a position of its own.

Axes at which all lanes are at the same step, as in `y[t, s]` for all s, are left out as well: what the lanes of one
iteration of `t` see and store is a row, not the table of all steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from polyrhythm.compiler.ir.conditions import ne
from polyrhythm.compiler.ir.sets import facts, proves
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.loops.ir import (
    Block,
    For,
    Item,
    Lanes,
    Load,
    LoopProgram,
    Own,
    Place,
    Register,
    Steps,
    Store,
    blocks_of,
    mapped,
    walk,
)
from polyrhythm.compiler.loops.lanes import position_of

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Cut(Own):
    """A lane's own position of a place, at the same steps `at` of other axes for all lanes."""

    at: tuple[tuple[int, Term], ...] = ()

    @property
    def axes(self) -> frozenset[int]:
        """The axes that a lane does not see."""
        return frozenset((self.axis, *(axis for axis, _ in self.at)))

    @property
    def left(self) -> int:
        """The lanes' axis where those of the same steps are left out."""
        return self.axis - sum(axis < self.axis for axis, _ in self.at)


@dataclass(frozen=True)
class Views:
    """A loop as one lane sees it."""

    body: tuple[Item, ...]
    places: dict[str, Place]
    read: tuple[Cut, ...]
    written: tuple[Cut, ...]
    private: frozenset[str]


def view(cut: Cut) -> str:
    """The name of what a lane sees of a place: loops around each other may have lanes along one axis."""
    ring = f" of {cut.ring}" if cut.ring else ""
    fixed = "".join(f" at {axis}: {term}" for axis, term in cut.at)
    return f"{cut.place} at {cut.axis}: {cut.counter.term + cut.offset} ({cut.counter.serial}){ring}{fixed}"


def views_of(loop: For, lanes: Lanes, program: LoopProgram) -> Views:
    """The body of a loop for one lane."""
    rewriter = _Rewriter(loop, lanes, program)
    body = mapped(loop.body, rewriter.item)
    places = {**program.places, **rewriter.views}
    return Views(body, places, tuple(rewriter.read), tuple(rewriter.written.values()), lanes.private)


class _Rewriter:
    """Replaces reads and writes at a lane's own position by those of what the lane sees of the place."""

    def __init__(self, loop: For, lanes: Lanes, program: LoopProgram) -> None:
        self.most = program.limits.get(loop.end - loop.first)
        self.counter, self.places, self.private = loop.counter, program.places, lanes.private
        self.inner = {item.counter for item in walk(loop.body) if isinstance(item, For)}
        self.moving = {self.counter, *self.inner}
        self.owned = {own.place: own for own in lanes.written}
        self.written = {own.place: _cut(own, self._shared(loop, own)) for own in lanes.written}
        self.views: dict[str, Place] = {}
        self.read: dict[Cut, None] = {}
        for cut in self.written.values():
            self._see(cut)

    def _shared(self, loop: For, own: Own) -> Iterator[tuple[int, Term]]:
        """The axes of a place at which all lanes store at the same step, and read there or at others."""
        stores = [s.index for block in blocks_of(loop.body) for s in block.stores if s.place == own.place]
        for inner in walk(loop.body):
            if isinstance(inner, For):
                stores += [index for r in inner.registers if r.place == own.place for index in (r.before, r.now)]
        loads = [load for block in blocks_of(loop.body) for load in block.loads if load.place == own.place]
        reads = [load.index for load in loads if self._is_own(load)]
        for axis in range(len(self.places[own.place].slots)):
            step = stores[0][axis]
            if axis == own.axis or step.symbols & self.moving or any(index[axis] is not step for index in stores):
                continue
            if all(_at_or_beside(index[axis], step, self.moving) for index in reads):
                yield axis, step

    def _is_own(self, load: Load) -> bool:
        own, position = self.owned.get(load.place), self._position(load)
        return own is None or (position is not None and own == replace(position, fills=own.fills))

    def item(self, item: Item) -> Item:
        if isinstance(item, For):
            return replace(item, registers=tuple(map(self._register, item.registers)), lanes=self._lanes(item.lanes))
        return self._block(item) if isinstance(item, Block) else item

    def _block(self, block: Block) -> Block:
        return replace(block.loading(self._load), stores=tuple(map(self._store, block.stores)))

    def _lanes(self, inner: Lanes | None) -> Lanes | None:
        """The lanes of a loop inside, in terms of what a lane outside sees."""
        if inner is None:
            return None
        private = (view(self.written[name]) if name in self.written else name for name in inner.private)
        return Lanes(tuple(map(self._own, inner.written)), frozenset(private))

    def _own(self, inner: Own) -> Own:
        cut = self.written.get(inner.place)
        if cut is None:
            return inner
        return replace(inner, place=view(cut), axis=inner.axis - sum(axis < inner.axis for axis in cut.axes))

    def _register(self, register: Register) -> Register:
        cut = self.written.get(register.place)
        if cut is None:
            return register
        return Register(view(cut), _without(register.before, cut.axes), _without(register.now, cut.axes))

    def _load(self, load: Load) -> Load:
        if load.place in self.private:
            return load
        position = self._position(load)
        if position is None:
            return load  # what all lanes share
        written = self.written.get(load.place) if self._is_own(load) else None  # else no lane writes it
        fixed = range(len(load.index)) if written is None else [axis for axis, _ in written.at]
        at = [(axis, load.index[axis]) for axis in fixed if axis != position.axis]
        cut = _cut(position, ((a, e) for a, e in at if isinstance(e, Term) and _is_fixed(e, self.moving)))
        if written is not None and written.at == cut.at:
            cut = written
        elif cut not in self.read:
            self.read[cut] = None
            self._see(cut)
        rest = (replace(e, via=None) if isinstance(e, Steps) else e for e in _without(load.index, cut.axes))
        return replace(load, place=view(cut), index=tuple(rest), zeros=load.zeros and not cut.ring)

    def _position(self, load: Load) -> Own | None:
        found = position_of(load.place, load.index, self.counter, self.inner)
        if found is None or not found.ring:
            return found
        # Of anything but a ring that has a slot for each lane, a step modulo something is no position of its own.
        ring = self.places[load.place].slots[found.axis] is Term(found.ring)
        return found if ring and self.most is not None and self.most <= found.ring else None

    def _store(self, store: Store) -> Store:
        cut = self.written.get(store.place)
        return store if cut is None else replace(store, place=view(cut), index=_without(store.index, cut.axes))

    def _see(self, cut: Cut) -> None:
        whole = self.places[cut.place]
        slots = _without(whole.slots, cut.axes)
        kind: Literal["buffer", "variable"] = "buffer" if slots else "variable"
        dims = _without(whole.dims, cut.axes)
        axes = tuple(axis - sum(other < axis for other in cut.axes) for axis in whole.axes if axis not in cut.axes)
        self.views[view(cut)] = replace(
            whole, name=view(cut), kind=kind, slots=slots, axes=axes, multiplied=False, dims=dims
        )


def _cut(own: Own, at: Iterator[tuple[int, Term]]) -> Cut:
    return Cut(own.place, own.axis, own.offset, own.counter, own.fills, own.ring, tuple(at))


def _is_fixed(entry: Term, moving: Collection[Symbol]) -> bool:
    return entry.symbols.isdisjoint(moving)


def _at_or_beside(entry: Term | Steps, step: Term, moving: Collection[Symbol]) -> bool:
    """Whether a read is at a step for all lanes, or certainly at another one."""
    if not isinstance(entry, Term) or not _is_fixed(entry, moving):
        return False
    return entry is step or proves(facts((entry - step).symbols), ne(entry - step, 0))


def _without(entries: Sequence[Entry], axes: Collection[int]) -> tuple[Entry, ...]:
    return tuple(entry for number, entry in enumerate(entries) if number not in axes)
