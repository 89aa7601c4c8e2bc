"""Loads and stores: what a traced program reads from its places and keeps in them.

A place is an array of slots, padded to the capacity of each axis, perhaps with its axes in another order (see
`loops/layout.py`). A load selects slots axis by axis: one by its index, several as a slice where they lie side by
side, and as a gather where nothing better is known. A store updates a slot; XLA does that in place.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from polyrhythm.compiler.backends.jax.ops import Padded
from polyrhythm.compiler.backends.jax.ops.padded import Length, Start, fit, fit_axis, is_static, moved
from polyrhythm.compiler.backends.jax.trace import spilled
from polyrhythm.compiler.backends.jax.trace.fusion_barrier import SMALL, computed_once
from polyrhythm.compiler.backends.jax.trace.replay import Replay, after
from polyrhythm.compiler.backends.jax.trace.scope import Scope, int32
from polyrhythm.compiler.backends.jax.trace.slots import put, taken, taken_along, taken_at
from polyrhythm.compiler.backends.jax.trace.spreading import chosen, is_spread, picked_from, ring_of, spread_place
from polyrhythm.compiler.backends.jax.trace.stride_split import Residues
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.loops.ir import Load, Place, Steps, Store
from polyrhythm.compiler.loops.sharding import in_parts

State = dict[str, Padded]


@dataclass
class Places(Scope):
    """The places of a traced run, and which of them lanes have to themselves, store whole, or keep apart."""

    lanes: tuple[str, ...] = ()  # the names of the axes along which iterations run at once, outermost first
    spread: tuple[str, ...] = ()  # the axes of the mesh that lanes go over
    within: int = 0  # how many loops with lanes there are inside of the last one that is spread
    lane: Symbol | None = None  # the counter of the innermost of them
    counts: Mapping[str, jax.Array] = field(default_factory=dict)  # places that lanes store whole: if this lane counts
    settled: set[str] = field(default_factory=set)  # of those, where the other lanes have zeros
    often: frozenset[str] = frozenset()  # of those, what is read more than once
    own: frozenset[str] = frozenset()  # the places of which each lane has its own
    apart: dict[str, Residues] = field(default_factory=dict)  # the buffers that the loop being traced keeps apart
    remainder: int = 0  # of those, what is being read
    held: dict[tuple[str, tuple[Term | Steps, ...]], Padded] = field(default_factory=dict, init=False)  # see `hold.py`
    replay: Replay = field(default_factory=Replay, init=False)  # what an iteration has stored and gathered

    def load(self, load: Load, state: State) -> Padded:
        """Select slots axis by axis; what remains has the lengths of the value read."""
        place = self.program.places[load.place]
        apart = self.apart.get(load.place)
        if load.place not in state and apart is None:
            state[load.place] = self.empty(place)
        known = self.held.get((load.place, load.index)) if load.held else None
        if known is not None:
            shared = self.all_finite if self._is_shared(place, load, ()) else None
            lengths = self.lengths(load.type.shape)
            return Padded(_cut(known.array, lengths, ()), lengths, False, shared)
        if place.spill is not None:
            return spilled.load(self, place, load, state)
        array = state[load.place].array if apart is None else apart.arrays[self.remainder]
        fresh = load.zeros
        axes = list(self.order(place))  # the axes of the place that the array still has
        starts: dict[int, Start] = {}
        for axis, entry in enumerate(load.index):
            at = axes.index(axis)
            if isinstance(entry, Term):
                pick = picked_from if array.shape[at] and is_spread(self, place, axis) else taken_at
                array = pick(array, self.scalar(entry), at)
                axes.remove(axis)
            elif apart is not None or entry.via == "ring":
                # A ring may have fewer slots than a length rounded up.
                array = fit_axis(array, at, self.capacity(entry.length))
            elif self._stays(array, entry, at):
                starts[axis] = Start(entry.start, int32(self.scalar(entry.start)))
                fresh = False
            else:
                rows = entry.via == "rows" and array.shape[at] % entry.step == 0
                array, exact = (self._rows(array, entry, at), True) if rows else self._several(array, entry, at)
                fresh = fresh and exact
        picked = {axis for axis, entry in enumerate(load.index) if isinstance(entry, Term)}
        left = [axis for axis in range(len(place.whole)) if axis not in picked]
        array = _spread(array, axes, left)
        shared = self.all_finite if self._is_shared(place, load, starts) else None
        begins = {left.index(axis): start for axis, start in starts.items()}
        ring = ring_of(self, place, load, left, array.shape) if shared is not None or self.within else None
        lengths = self.lengths(load.type.shape)
        return Padded(_cut(array, lengths, begins), lengths, fresh, shared, begins, ring=ring)

    def all_finite(self, array: jax.Array) -> jax.Array:
        """Whether an array is finite in every lane: one answer, or both of what depends on it would be computed."""
        # A sum of zeros, NaN if there is one: faster on CPU than a conjunction of truth values. The largest magnitude
        # would not do: on CPU the maximum of many elements goes past NaN.
        finite = jnp.isfinite(jnp.sum(array * jnp.zeros((), array.dtype)))
        for axis in self.lanes:
            finite = lax.pmin(finite.astype(jnp.int32), axis) > 0
        return finite

    def _stays(self, array: jax.Array, entry: Steps, axis: int) -> bool:
        """Whether a range is read where it lies, though it begins somewhere: half of the axis or more may be meant."""
        if entry.ring is not None or entry.step != 1 or isinstance(self.scalar(entry.start), int):
            return False
        if entry.via == "slice" and self.lane not in entry.start.symbols:
            return False  # one slice
        if isinstance(self.scalar(entry.length), int):
            return False  # as long for all, and what lies around it need not be looked at
        return array.shape[axis] <= 2 * self.capacity(entry.length)

    def _is_shared(self, place: Place, load: Load, kept: Container[int]) -> bool:
        """Whether all lanes read the same array, up to different lengths perhaps."""
        if self.lane is None or place.name in self.own:
            return False
        entries = [entry for axis, entry in enumerate(load.index) if axis not in kept]
        starts = (entry if isinstance(entry, Term) else entry.start for entry in entries)
        return not any(self.lane in start.symbols for start in starts)

    def _rows(self, array: jax.Array, entry: Steps, axis: int) -> jax.Array:
        """Every other slot of an axis, or fewer, from one of the first on: a column of the axis seen as rows."""
        shape = (*array.shape[:axis], array.shape[axis] // entry.step, entry.step, *array.shape[axis + 1 :])
        column = taken_at(lax.reshape(array, shape), self.scalar(entry.start), axis + 1)
        return fit_axis(column, axis, self.capacity(entry.length))

    def _several(self, array: jax.Array, entry: Steps, axis: int) -> tuple[jax.Array, bool]:
        """Several slots along an axis, as many as the length can be at most.

        And whether those beyond the length are the slots that follow: a gather goes to others beyond the axis.
        """
        capacity, contiguous = self.capacity(entry.length), entry.via == "slice"
        start, size = self.scalar(entry.start), array.shape[axis]
        if entry.ring is None and entry.step == 1 and isinstance(start, int):
            if start == 0 and capacity == size:
                return array, True
            if start + capacity <= size:
                return lax.slice_in_dim(array, start, start + capacity, axis=axis), True
        if contiguous and capacity <= size:
            return taken_along(array, start, capacity, axis), True
        if contiguous:
            return fit_axis(array, axis, capacity), True
        picked = start + jnp.arange(capacity, dtype=jnp.int32) * entry.step
        if entry.ring is not None:
            picked = picked % entry.ring
        if size == 0:
            return jnp.zeros((*array.shape[:axis], capacity, *array.shape[axis + 1 :]), array.dtype), True
        return jnp.take(array, jnp.clip(picked, 0, size - 1), axis=axis, mode="clip"), False

    def store(self, store: Store, value: Padded, state: State, mask: jax.Array | None) -> None:
        """Keep a value; under a mask the old contents stay where it is false."""
        place = self.program.places[store.place]
        room = tuple(self.capacity(n) for n in place.type.shape)
        new = self.from_zero(value, place.type.shape)
        if store.place in self.counts:
            new = jnp.where(self.counts[store.place], new, jnp.zeros((), new.dtype))
            if store.place in self.often and new.size >= SMALL:
                new = computed_once(new, self.symbols)
        if store.place in self.counts and place.kind == "variable" and mask is None:
            self.settled.add(store.place)
        else:
            self.settled.discard(store.place)
        if place.kind == "variable":
            lengths = value.lengths
            if mask is not None:
                old = state.get(store.place)
                old_array = fitted(old.array, room) if old is not None else jnp.zeros_like(new)
                new = jnp.where(mask, new, old_array)
            state[store.place] = Padded(new, lengths)
            return
        apart = self.apart.get(store.place)
        if store.place not in state and apart is None:
            state[store.place] = self.empty(place)
        new = after(new, self.replay.gathered.pop(store.place, ()), self.symbols)
        self.replay.stored.add(store.place)
        index = [self.scalar(term) for term in store.index]
        if mask is None:
            self.held[store.place, store.index] = Padded(new, value.lengths)
        if place.spill is not None:
            row, kept = spilled.row_of(self, place, tuple(index)), state[store.place]
            state[store.place] = replace(kept, array=spilled.store(place, row, new, mask, kept.array))
            return
        order, count = self.order(place), len(index)
        start = [int32(index[axis]) if axis < count else int32(0) for axis in order]
        slot = _gathered(lax.expand_dims(new, range(count)), order)
        if apart is not None:
            at = apart.at

            def put(array: jax.Array, place: jax.Array, own: jax.Array) -> jax.Array:
                own = own if mask is None else own & mask
                return _put(array, slot, [*start[:at], place, *start[at + 1 :]], own)

            self.apart[store.place] = apart.stored(start[at], put)
            return
        whole = state[store.place]
        far = [(at, start[at]) for at, axis in enumerate(order) if axis < count and is_spread(self, place, axis)]
        if far and whole.array.size:  # all of an axis that is spread, changed at one position
            sizes = [n if at in dict(far) else slot.shape[at] for at, n in enumerate(whole.array.shape)]
            start = [int32(0) if at in dict(far) else begin for at, begin in enumerate(start)]
            there = lax.dynamic_slice(whole.array, start, sizes, allow_negative_indices=False)
            slot = chosen(there, slot, far)
        state[store.place] = Padded(_put(whole.array, slot, start, mask), whole.lengths)

    def from_zero(self, value: Padded, shape: Sequence[Term]) -> jax.Array:
        """The array of a value with all axes beginning at 0, at the capacities of a shape."""
        return fitted(moved(value, value.starts).array, tuple(self.capacity(n) for n in shape))

    def order(self, place: Place) -> tuple[int, ...]:
        """The axes of a place in the order it keeps them; those of length one may be left out."""
        return place.axes or tuple(range(len(place.whole)))

    def room(self, place: Place) -> tuple[int, ...]:
        """The shape of the array that holds a place."""
        return tuple(self.length(place, axis) for axis in self.order(place))

    def length(self, place: Place, axis: int) -> int:
        """How long an axis of the array of a place is."""
        return in_parts(self.program, place, axis, self.capacity(place.whole[axis]))

    def with_all_axes(self, place: Place, array: jax.Array) -> jax.Array:
        """The array of a place with its axes in the order of the place."""
        return _spread(array, self.order(place), range(len(place.whole)))

    def as_kept(self, place: Place, array: jax.Array) -> jax.Array:
        """An array with all axes of a place, as the place keeps it."""
        return _gathered(array, self.order(place))

    def empty(self, place: Place) -> Padded:
        if place.spill is not None:
            return spilled.empty(self, place)
        zeros = jnp.zeros(self.room(place), place.type.dtype)
        return Padded(spread_place(self, place, zeros), self.lengths(place.whole))


def _cut(array: jax.Array, lengths: Sequence[Length], begins: Container[int]) -> jax.Array:
    """The array with no more along axes whose length is known now: at the first step, `t + 1` is one."""
    known = (
        n if is_static(n) and axis not in begins else have
        for axis, (n, have) in enumerate(zip(lengths, array.shape, strict=True))
    )
    return fit(array, tuple(known))


def _put(array: jax.Array, slot: jax.Array, start: Sequence[jax.Array], mask: jax.Array | None) -> jax.Array:
    """An array with other contents of a slot; under a mask the old ones stay where it is false."""
    if array.size == 0:
        return array
    if mask is not None:
        old = taken(array, slot.shape, start)
        slot = jnp.where(mask, slot, old)
    return put(array, slot, start)


def fitted(array: jax.Array, capacities: tuple[int, ...]) -> jax.Array:
    """An array cut or padded to other capacities; what lies beyond its length does not matter."""
    if array.shape == capacities:
        return array
    array = array[tuple(slice(0, n) for n in capacities)]
    return jnp.pad(array, [(0, n - m) for n, m in zip(capacities, array.shape, strict=True)])


def _gathered(array: jax.Array, order: Sequence[int]) -> jax.Array:
    """The array with its axes in another order; those that the order leaves out have length one."""
    if list(order) == list(range(array.ndim)):
        return array
    array = lax.squeeze(array, [axis for axis in range(array.ndim) if axis not in order])
    return lax.transpose(array, np.argsort(np.argsort(order)))


def _spread(array: jax.Array, order: Sequence[int], axes: Sequence[int]) -> jax.Array:
    """The array, whose axes are given by `order`, with `axes` in that order; those it has not get length one."""
    if list(order) == list(axes):
        return array
    array = lax.transpose(array, np.argsort(order))
    return lax.expand_dims(array, [number for number, axis in enumerate(axes) if axis not in order])
