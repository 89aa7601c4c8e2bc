"""Loads and stores: what a traced program reads from its places and keeps in them.

A place is an array of slots, padded to the capacity of each axis, perhaps with its axes in another order (see
`loops/layout.py`). A load selects slots axis by axis: one by its index, several as a slice where they lie side by
side, and as a gather where nothing better is known. A store updates a slot; XLA does that in place.

Reads of a buffer that the same iteration stores to, in an order that XLA keeps.

A program that keeps all its past and draws from it at random, as from a replay, stores one slot of a buffer and gathers
many at every step. XLA makes a store before a gather part of the gather, and then needs the buffer as it was and as it
is; and a store after a gather may in its eyes come before it. Either way it copies the whole buffer at every step, so
that a step takes longer the more steps there were. `computed_once` keeps the first apart, and `after` makes the second
wait: a loop that never runs, which XLA does not look into, hands on the value to be stored together with what was
gathered. So it does for a single slot that goes elsewhere than into the store, as in a recurrence with a long skip,
`h[t - 7]`, which is put into a ring or a register too. Exact: nothing is computed otherwise.

Slices at a place that all lanes share stay slices.

JAX maps a slice that is read or stored at a computed place to a gather or scatter, even where the place is the same for
all lanes. XLA makes of such a scatter a choice between the array before and after, whole, in every iteration: a loop
over T steps that stores one of them at a time would take time in T squared. Here the lanes are one more axis of the
slice, from 0 on; only where each lane has a place of its own it is a gather or scatter.

The lowering of buffers that a loop keeps apart by remainder (see `loops/stride_split.py`).

The loop carries one array for each remainder. What is read is the beginning of one of them. Which one is known only at
the step, so what uses it is traced once for each remainder, and a switch chooses. A store is a masked one to each
array. It is not done where a call does few iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from polyrhythm.compiler.backends.jax.ops import Padded
from polyrhythm.compiler.backends.jax.ops.padded import Length, Start, Window, fit, fit_axis, is_static, moved
from polyrhythm.compiler.backends.jax.products import rows
from polyrhythm.compiler.backends.jax.trace import spilled
from polyrhythm.compiler.backends.jax.trace.fusion_barrier import SMALL, computed_once
from polyrhythm.compiler.backends.jax.trace.scope import Scalar, Scope, int32
from polyrhythm.compiler.backends.jax.trace.spreading import chosen, is_spread, picked_from, ring_of, spread_place
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.loops.ir import Block, Compute, Load, Local, Place, Steps, Store
from polyrhythm.compiler.loops.sharding import in_parts


@dataclass(frozen=True)
class Residues:
    """A buffer as one array for each remainder; `at` is the axis of the arrays."""

    arrays: tuple[jax.Array, ...]
    at: int

    def stored(self, slot: jax.Array, put: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]) -> Residues:
        """With another value in a slot: `put` stores to an array at a slot of it, where a mask is true."""
        step = len(self.arrays)
        arrays = (put(array, slot // step, slot % step == number) for number, array in enumerate(self.arrays))
        return Residues(tuple(arrays), self.at)


def separated(array: jax.Array, at: int, step: int) -> Residues:
    """An array taken apart along an axis."""
    rest = -array.shape[at] % step
    array = jnp.pad(array, [(0, rest if axis == at else 0) for axis in range(array.ndim)])
    rows = lax.reshape(array, (*array.shape[:at], array.shape[at] // step, step, *array.shape[at + 1 :]))
    return Residues(tuple(lax.index_in_dim(rows, n, at + 1, keepdims=False) for n in range(step)), at)


def together(parts: Residues, size: int) -> jax.Array:
    """The array of all slots, of some size along their axis."""
    rows, at = jnp.stack(parts.arrays, parts.at + 1), parts.at
    array = lax.reshape(rows, (*rows.shape[:at], rows.shape[at] * rows.shape[at + 1], *rows.shape[at + 2 :]))
    return lax.slice_in_dim(array, 0, size, axis=at)


def parted(block: Block, apart: Mapping[str, Residues]) -> tuple[list[Compute], list[Compute], list[Compute]]:
    """The computations before those that use buffers kept apart, those with all between them, and the rest."""
    users = {c.result for c in block.body for load in c.loads if load.place in apart}
    after, needed = set(users), set(users)
    for compute in block.body:
        if any(name in after for name in compute.locals):
            after.add(compute.result)
    for compute in reversed(block.body):
        if compute.result in needed:
            needed.update(compute.locals)
    before = [c for c in block.body if c.result not in after]
    between = [c for c in block.body if c.result in after and c.result in needed]
    return before, between, [c for c in block.body if c.result in after and c.result not in needed]


def used_later(between: Sequence[Compute], block: Block) -> list[Compute]:
    """Of some computations of a block, those whose results others use or the block stores."""
    own = {compute.result for compute in between}
    used = {name for compute in block.body if compute.result not in own for name in compute.locals}
    used |= {store.value for store in block.stores}
    return [compute for compute in between if compute.result in used]


def chosen_by(between: Sequence[Compute], apart: Mapping[str, Residues]) -> Steps:
    """A range of which the start is the remainder that is read; it is the same for all of them."""
    loads = (load for compute in between for load in compute.loads if load.place in apart)
    entry = next(entry for load in loads for entry in load.index if isinstance(entry, Steps))
    return entry


jax.tree_util.register_dataclass(Residues, ["arrays"], ["at"])


ZERO = int32(0)


def put(array: jax.Array, slot: jax.Array, start: Sequence[jax.Array]) -> jax.Array:
    """An array with other contents of a slot."""
    updated: jax.Array = _updated(array, slot, *start)
    return updated


def put_along(array: jax.Array, rows: jax.Array, at: jax.Array, axis: int) -> jax.Array:
    """An array with other rows of an axis."""
    return put(array, rows, [int32(at) if number == axis else ZERO for number in range(array.ndim)])


def taken(array: jax.Array, sizes: Sequence[int], start: Sequence[jax.Array]) -> jax.Array:
    """A slot of an array."""

    def plain(array: jax.Array, *start: jax.Array) -> jax.Array:
        return lax.dynamic_slice(array, start, sizes, allow_negative_indices=False)

    mapped = custom_vmap(plain)

    @mapped.def_vmap
    def _(size: int, batched: Sequence[bool], array: jax.Array, *start: jax.Array) -> tuple[jax.Array, bool]:
        if any(batched[1:]):
            return _mapped(plain, batched)(array, *start), True
        return taken(array, (size, *sizes), (ZERO, *start)), True

    found: jax.Array = _linear(mapped, plain, 1)(array, *start)
    return found


def taken_along(array: jax.Array, at: Scalar, count: int, axis: int) -> jax.Array:
    """Some rows of an axis."""
    sizes = [count if number == axis else size for number, size in enumerate(array.shape)]
    return taken(array, sizes, [int32(at) if number == axis else ZERO for number in range(array.ndim)])


def matrix_at(array: jax.Array, index: Scalar, axis: int) -> jax.Array:
    """One of many matrices of 16-bit floats, which are all of an input."""
    known = isinstance(index, int)
    return taken_at(array, index, axis) if known else rows.taken(array, jnp.clip(index, 0, len(array) - 1))


def taken_at(array: jax.Array, index: Scalar, axis: int) -> jax.Array:
    """One slot of an axis; of an empty axis, zeros, which are never used."""
    if array.shape[axis] == 0:
        return jnp.zeros((*array.shape[:axis], *array.shape[axis + 1 :]), array.dtype)
    if isinstance(index, int):
        index = min(max(index, 0), array.shape[axis] - 1)
        return lax.index_in_dim(array, index, axis, keepdims=False)
    return lax.squeeze(taken_along(array, index, 1, axis), [axis])


def _plain(array: jax.Array, slot: jax.Array, *start: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice(array, slot, start, allow_negative_indices=False)


def _linear(function: Callable[..., jax.Array], plain: Callable[..., jax.Array], count: int) -> Callable[..., Any]:
    """A function that is linear in its first operands, for JAX to differentiate: it does not know how by itself."""
    known = jax.custom_jvp(function)

    @known.defjvp
    def _(primals: Sequence[jax.Array], tangents: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
        return known(*primals), plain(*tangents[:count], *primals[count:])

    return known


_mapped_update = custom_vmap(_plain)
_updated = _linear(_mapped_update, _plain, 2)


@_mapped_update.def_vmap
def _(
    size: int, batched: Sequence[bool], array: jax.Array, slot: jax.Array, *start: jax.Array
) -> tuple[jax.Array, bool]:
    if any(batched[2:]):
        return _mapped(_plain, batched)(array, slot, *start), True
    array, slot = (
        each if own else jnp.broadcast_to(each, (size, *each.shape))
        for each, own in zip((array, slot), batched, strict=False)
    )
    return put(array, slot, (ZERO, *start)), True


def _mapped(function: Callable[..., jax.Array], batched: Sequence[bool]) -> Callable[..., jax.Array]:
    return jax.vmap(function, [0 if own else None for own in batched])


GATHERS = frozenset({"take", "take_along"})
"""Operations that read a few slots of many, by data."""


LARGE = 2**12
"""Elements of a buffer, below which a copy takes less than the loop that avoids it."""


@dataclass
class Replay:
    """What an iteration stores to, has stored to so far, and has gathered from since the last store."""

    written: frozenset[str] = frozenset()
    stored: set[str] = field(default_factory=set)
    gathered: dict[str, list[jax.Array]] = field(default_factory=dict)


def gathered_from(compute: Compute) -> Sequence[str]:
    """The places from whose steps an operation gathers."""
    if compute.op not in GATHERS:
        return ()
    loads = (operand for operand in compute.operands[:1] if isinstance(operand, Load))
    return [load.place for load in loads if any(isinstance(entry, Steps) for entry in load.index)]


def slots_behind(block: Block, result: str) -> set[str]:
    """The places of which single slots are loaded for a result of a block."""
    computes = {compute.result: compute for compute in block.body}
    waiting, seen, found = [result], {result}, set[str]()
    while waiting:
        for operand in computes[waiting.pop()].operands:
            if isinstance(operand, Local):
                if operand.name not in seen:
                    seen.add(operand.name)
                    waiting.append(operand.name)
            elif not operand.held and not any(isinstance(entry, Steps) for entry in operand.index):
                found.add(operand.place)
    return found


def after(value: jax.Array, others: Sequence[jax.Array], symbols: Mapping[Symbol, Any]) -> jax.Array:
    """The same value, there only after some others are.

    >>> T = Symbol("T", "bound")
    >>> jax.jit(lambda x, n: after(2 * x, [x + 1], {T: n}))(jnp.arange(3.0), 1).tolist()
    [0.0, 2.0, 4.0]
    """
    bound = next((n for s, n in symbols.items() if s.kind != "dim" and not s.over and isinstance(n, jax.Array)), None)
    if bound is None or not others:
        return value

    def changed(carry: Any) -> Any:
        _, own, rest = carry
        # It must seem to depend on all of them, or XLA would take them out of the loop.
        hit = sum(jnp.sum(one != 0) for one in rest) > 0
        return jnp.bool_(False), jnp.where(hit, jnp.zeros((), own.dtype), own), [jnp.flip(one) for one in rest]

    kept: jax.Array = lax.while_loop(lambda carry: carry[0], changed, (bound < 0, value, list(others)))[1]
    return kept


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
    passed: frozenset[tuple[str, tuple[Term, ...]]] = field(default=frozenset(), init=False)  # slots of its registers
    replay: Replay = field(default_factory=Replay, init=False)  # what an iteration has stored and gathered

    def begin(self, state: State, names: Iterable[str]) -> None:
        """Let a state have some places, without contents where it has not had them."""
        for name in names:
            if name not in state:
                state[name] = self.empty(self.program.places[name])

    def load(self, load: Load, state: State) -> Padded:
        """Select slots axis by axis; what remains has the lengths of the value read."""
        place = self.program.places[load.place]
        apart = self.apart.get(load.place)
        if apart is None:
            self.begin(state, [load.place])
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
        sliding = None if apart is not None else self._sliding(load)
        for axis, entry in sorted(enumerate(load.index), key=lambda entry: entry[0] == sliding):
            whole = array
            at = axes.index(axis)
            if isinstance(entry, Term):
                index, pick = self.scalar(entry), taken_at
                if array.shape[at] and is_spread(self, place, axis):
                    pick = picked_from
                elif place.kind == "input" and at == 0 and rows.pays(array) and array.size >= LARGE * len(array):
                    pick = matrix_at  # XLA would convert all of them
                array = pick(array, index, at)
                axes.remove(axis)
            elif apart is not None or entry.via == "ring":
                # A ring may have fewer slots than a length rounded up.
                array = fit_axis(array, at, self.capacity(entry.length))
            elif self._stays(array, entry, at):
                starts[axis] = Start(entry.start, int32(self.scalar(entry.start)))
                fresh = False
            else:
                by_rows = entry.via == "rows" and array.shape[at] % entry.step == 0
                array, exact = (self._rows(array, entry, at), True) if by_rows else self._several(array, entry, at)
                fresh = fresh and exact
        picked = {axis for axis, entry in enumerate(load.index) if isinstance(entry, Term)}
        left = [axis for axis in range(len(place.whole)) if axis not in picked]
        array = _spread(array, axes, left)
        shared = self.all_finite if self._is_shared(place, load, starts) else None
        begins = {left.index(axis): start for axis, start in starts.items()}
        ring = ring_of(self, place, load, left, array.shape) if shared is not None or self.within else None
        lengths = self.lengths(load.type.shape)
        window = None
        if sliding is not None:
            start = int32(self.scalar(load.index[sliding].start))  # type: ignore[union-attr]
            window = Window(_spread(whole, axes, left), left.index(sliding), start)
        return Padded(_cut(array, lengths, begins), lengths, fresh, shared, begins, ring=ring, window=window)

    def all_finite(self, array: jax.Array) -> jax.Array:
        """Whether an array is finite in every lane: one answer, or both of what depends on it would be computed."""
        # A sum of zeros, NaN if there is one: faster on CPU than a conjunction of truth values. The largest magnitude
        # would not do: on CPU the maximum of many elements goes past NaN.
        finite = jnp.isfinite(jnp.sum(array * jnp.zeros((), array.dtype)))
        for axis in self.lanes:
            finite = lax.pmin(finite.astype(jnp.int32), axis) > 0
        return finite

    def _sliding(self, load: Load) -> int | None:
        """The axis of which each lane reads a window of its own, as long for all, of what lanes share besides."""
        if self.lane is None or load.place in self.own:
            return None
        moving = [axis for axis, entry in enumerate(load.index) if self.lane in _start(entry).symbols]
        entry = load.index[moving[0]] if len(moving) == 1 else None
        if not isinstance(entry, Steps) or entry.ring is not None or entry.step != 1 or entry.via != "slice":
            return None
        return moving[0] if is_static(self.scalar(entry.length)) else None

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
        return not any(self.lane in _start(entry).symbols for entry in entries)

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
        new = self.from_zero(value, place.type.shape)
        # Lanes that do not count leave zeros in what lanes store whole.
        if store.place in self.counts:
            new = jnp.where(self.counts[store.place], new, jnp.zeros((), new.dtype))
            if store.place in self.often and new.size >= SMALL:
                new = computed_once(new, self.symbols)
        if store.place in self.counts and place.kind == "variable" and mask is None:
            self.settled.add(store.place)
        else:
            self.settled.discard(store.place)
        if place.kind == "variable":
            new = _gathered(new, self.order(place))
            if mask is not None:
                old = state.get(store.place)
                new = jnp.where(mask, new, jnp.zeros_like(new) if old is None else fitted(old.array, new.shape))
            state[store.place] = Padded(new, value.lengths)
            return
        # A slot is stored after what this iteration has gathered from the place, and held for what reads it.
        apart = self.apart.get(store.place)
        if apart is None:
            self.begin(state, [store.place])
        new = after(new, self.replay.gathered.pop(store.place, ()), self.symbols)
        self.replay.stored.add(store.place)
        index = [self.scalar(term) for term in store.index]
        if mask is not None and (store.place, store.index) in self.passed and place.spill is None and apart is None:
            old = self.load(Load(store.place, store.index, place.type), state)
            new, mask = jnp.where(mask, new, fitted(old.array, new.shape)), None
        if mask is None:
            self.held[store.place, store.index] = Padded(new, value.lengths)
        # The slot goes to a file, to the array of its remainder, or into the one array that there is.
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

    def empty(self, place: Place) -> Padded:
        if place.spill is not None:
            return spilled.empty(self, place)
        zeros = jnp.zeros(self.room(place), place.type.dtype)
        return Padded(spread_place(self, place, zeros), self.lengths(place.whole))


def _start(entry: Term | Steps) -> Term:
    return entry if isinstance(entry, Term) else entry.start


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
