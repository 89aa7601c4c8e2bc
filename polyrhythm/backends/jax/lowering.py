"""Loop IR to JAX: the whole program as one traced function, its loops as XLA loops.

Shapes must be static for XLA, so every bound that sizes something has a *capacity*, a power of two at least as
large; its value is a run-time scalar. Axes whose length is known only at run time are stored padded to their
capacity (see `ops.py`). Loop counters and bounds are int32 scalars. Places that a loop changes are carried through it
as values; XLA updates them in place because each is written and then read from its newest version only.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from polyrhythm.backends.jax import ops
from polyrhythm.backends.jax.in_place import in_place
from polyrhythm.backends.jax.once import SMALL, computed_once
from polyrhythm.backends.jax.ops import Padded
from polyrhythm.backends.jax.ops_opaque import called
from polyrhythm.backends.jax.ops_padded import Start, fit_axis, is_one, moved
from polyrhythm.backends.jax.reads import Key, Reads, known_reads
from polyrhythm.backends.jax.registers import Recent, registers
from polyrhythm.backends.jax.residues import Residues, chosen_by, parted, separated, strides, together, used_later
from polyrhythm.backends.jax.vector import chunk_of, own_element, run_lanes, split
from polyrhythm.backends.jax.work import is_worth_skipping
from polyrhythm.ir.conditions import Compare, Condition, Junction
from polyrhythm.ir.intervals import Interval, interval, most
from polyrhythm.ir.ops import TABLE
from polyrhythm.ir.ops.record import map_attribute
from polyrhythm.ir.terms import FloorDiv, Symbol, Term
from polyrhythm.ir.types import Array
from polyrhythm.loops.ir import Block, Compute, For, If, Item, Load, Local, LoopProgram, Place, Steps, Store, walk
from polyrhythm.loops.liveness import carried, live_before, written

Scalar = int | jax.Array
State = dict[str, Padded]
Calls = dict[Any, tuple[Any, ...]]
Attributes = dict[str, Any]
Carry = tuple[jax.Array | Residues, ...]


@dataclass
class Lowering:
    """One traced run of a program: capacities of the bounds, and the value of every symbol in scope."""

    program: LoopProgram
    capacities: Mapping[Symbol, int]
    symbols: dict[Symbol, Scalar]
    seed: Any
    ranges: dict[Symbol, Interval] = field(default_factory=dict)
    given_reads: Reads | None = None
    lanes: tuple[str, ...] = ()  # the names of the axes along which iterations run at once, outermost first
    lane: Symbol | None = None  # the counter of the innermost of them
    begins: Mapping[Symbol, int] = field(default_factory=dict)  # where the counters of lanes begin, if that is known
    counts: Mapping[str, jax.Array] = field(default_factory=dict)  # places that lanes store whole: if this lane counts
    settled: set[str] = field(default_factory=set)  # of those, where the other lanes have zeros
    often: frozenset[str] = frozenset()  # of those, what is read more than once
    own: frozenset[str] = frozenset()  # the places of which each lane has its own
    looping: int = 0  # how many loops are being traced
    few: bool = False  # a call does few iterations of an outermost loop
    apart: dict[str, Residues] = field(default_factory=dict)  # the buffers that the loop being traced keeps apart
    remainder: int = 0  # of those, what is being read
    recent: Recent = field(default_factory=Recent, init=False)  # what need not be read back from buffers

    def __post_init__(self) -> None:
        self.reads = self.given_reads or known_reads(self.program)

    def run(self, inputs: Mapping[str, jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
        """The outputs at capacity, and the bounds found on the way."""
        state: State = {}
        for name, place in self.program.places.items():
            if place.kind == "input":
                if name in inputs:
                    state[name] = Padded(inputs[name], self.lengths(place.whole))
            elif place.kind != "variable":
                state[name] = self.empty(place)
        live = set(self.program.outputs)
        self.items(self.program.body, state, live, None)
        outputs = [state[name].array for name in self.program.outputs]
        return outputs, [jnp.int32(self.symbols[bound]) for bound in self.program.found]

    def items(self, items: Sequence[Item], state: State, live: set[str], mask: jax.Array | None) -> None:
        """Run items in order, changing the state."""
        for number, item in enumerate(items):
            after = live_before(items[number + 1 :], live, self.program)
            if isinstance(item, Block):
                self.block(item, state, mask)
            elif isinstance(item, If):
                self.guarded(item, state, after, mask)
            else:
                self.loop(item, state, after, mask)

    def guarded(self, item: If, state: State, live: set[str], mask: jax.Array | None) -> None:
        """Items under a guard: loops outside of all others and long work are skipped where it does not hold.

        The rest is masked, which lets XLA fuse it with its surroundings; a loop then has no iterations.
        """
        holds = self.condition(item.condition)
        if isinstance(holds, bool):
            if holds:
                self.items(item.body, state, live, mask)
            return
        loops = [inner for inner in walk(item.body) if isinstance(inner, For)]
        finding = any(loop.stop is not None for loop in loops)
        only_loops = all(isinstance(inner, For) and not inner.parallel for inner in item.body)
        possible = mask is None and not self.lanes and not finding and self.apart.keys().isdisjoint(written(item.body))
        pays = (loops and not self.looping) or is_worth_skipping(self, item.body)
        if only_loops or not possible or not pays:
            self.items(item.body, state, live, holds if mask is None else mask & holds)
            return
        names = sorted(written(item.body) & live)
        for name in names:
            if name not in state:
                state[name] = self.empty(self.program.places[name])
        before, symbols, ranges = dict(state), dict(self.symbols), dict(self.ranges)

        def then(values: dict[str, jax.Array]) -> dict[str, jax.Array]:
            inner = before | {name: replace(before[name], array=array) for name, array in values.items()}
            alone = replace(self, symbols=symbols, ranges=ranges, given_reads=self.reads)
            alone.items(item.body, inner, live, None)
            return {name: inner[name].array for name in names}

        made = lax.cond(holds, then, lambda values: values, {name: state[name].array for name in names})
        for name in written(item.body):
            self.recent.forget(name)
        state.update({name: replace(state[name], array=array) for name, array in made.items()})

    def loop(self, loop: For, state: State, live: set[str], mask: jax.Array | None) -> None:
        """A loop, after which nothing is known of what it stored."""
        recent, self.recent = self.recent, Recent()
        self._loop(loop, state, live, mask)
        self.recent = recent
        for name in written(loop.body):
            recent.forget(name)

    def _loop(self, loop: For, state: State, live: set[str], mask: jax.Array | None) -> None:
        """A loop; one of a single known iteration is done in place."""
        first, end = self.scalar(loop.first), self.scalar(loop.end)
        self.note_range(loop)
        if loop.stop is None and isinstance(first, int) and isinstance(end, int) and end - first <= 1:
            if end > first:
                self.symbols[loop.counter] = first
                self.items(loop.body, state, live, mask)
            return
        if mask is not None:
            end = jnp.where(mask, end, first)
        if loop.stop is not None:
            self.stopping_loop(loop, state, live, first, end)
            return
        lanes = split(loop, live, self.program)
        chunk = 1 if lanes is None else chunk_of(self, loop)
        if lanes is not None and chunk != 1:
            run_lanes(self, loop, lanes, state, (first, end), chunk, mask is None)
            return
        names = carried(loop, live, self.program)
        for name in names:
            if name not in state:
                state[name] = self.empty(self.program.places[name])
        kept = {name: state[name].lengths for name in names}

        def body(counter: jax.Array, carry: tuple[Carry, tuple[jax.Array, ...]]) -> Any:
            values, own = carry
            inner = dict(state)
            self._begin(inner, names, values, kept)
            for name in written(loop.body) - set(names):
                inner.pop(name, None)
            self.symbols[loop.counter] = counter
            own = self.inside(loop, inner, set(names), own)
            return self._end(inner, names), own

        start = self._carry(loop, names, state), self.starts(loop, first, state)
        results, _ = lax.fori_loop(jnp.int32(first), jnp.int32(end), body, start)
        self._finish(state, names, results, kept)

    def _carry(self, loop: For, names: Sequence[str], state: State) -> Carry:
        """What a loop carries of the places that it changes."""
        apart = {} if self.few or self.lanes or self.looping else strides(self.program, self.reads.strided, loop)
        found: list[jax.Array | Residues] = []
        for name in names:
            array = state[name].array
            if name in apart:
                at = self.order(self.program.places[name]).index(apart[name].axis)
                found.append(separated(array, at, apart[name].step))
            else:
                found.append(array)
        return tuple(found)

    def _begin(self, state: State, names: Sequence[str], values: Carry, kept: Mapping[str, Any]) -> None:
        """Let the places of a state have the values that an iteration finds."""
        for name, value in zip(names, values, strict=True):
            if isinstance(value, Residues):
                self.apart[name] = value
                state.pop(name, None)
            else:
                state[name] = Padded(value, kept[name])

    def _end(self, state: State, names: Sequence[str]) -> Carry:
        """What an iteration leaves of them."""
        return tuple(self.apart.pop(name) if name in self.apart else state[name].array for name in names)

    def _finish(self, state: State, names: Sequence[str], values: Carry, kept: Mapping[str, Any]) -> None:
        """Let the places of a state have what a loop has left."""
        for name, value in zip(names, values, strict=True):
            if isinstance(value, Residues):
                value = together(value, state[name].array.shape[value.at])
            state[name] = Padded(value, kept[name])

    def starts(self, loop: For, first: Scalar, state: State) -> tuple[jax.Array, ...]:
        """What the first iteration of a loop finds in the slots that each one passes to the next."""
        self.symbols[loop.counter] = first
        loads = (Load(r.place, r.before, self.program.places[r.place].type) for r in registers(loop))
        return tuple(self.load(load, state).array for load in loads)

    def inside(self, loop: For, state: State, live: set[str], passed: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        """Run the body of a loop, given what the iteration before passes on; what this one passes on."""
        self.looping += 1
        self.recent = Recent()
        own = list(registers(loop))
        for register, value in zip(own, passed, strict=True):
            lengths = self.lengths(self.program.places[register.place].type.shape)
            self.recent.store(register.place, register.before, Padded(value, lengths))
        self.items(loop.body, state, live, None)
        made = tuple(self.recent.values[register.place, register.now].array for register in own)
        self.looping -= 1
        return made

    def note_range(self, loop: For) -> None:
        """Remember between which values a counter lies."""
        low, high = interval(loop.first, self.ranges)[0], interval(loop.end - 1, self.ranges)[1]
        self.ranges[loop.counter] = (low, high)

    def stopping_loop(self, loop: For, state: State, live: set[str], first: Scalar, end: Scalar) -> None:
        """A loop that ends as soon as its condition holds, inside XLA."""
        stop = loop.stop
        assert stop is not None
        names = carried(loop, live | {stop.done.place}, self.program)
        for name in names:
            if name not in state:
                state[name] = self.empty(self.program.places[name])
        kept = {name: state[name].lengths for name in names}

        def goes_on(carry: tuple[jax.Array, jax.Array, Carry, Any]) -> jax.Array:
            counter, done, _, _ = carry
            return (counter < jnp.int32(end)) & ~done

        def body(carry: tuple[jax.Array, jax.Array, Carry, tuple[jax.Array, ...]]) -> Any:
            counter, _, values, own = carry
            inner = dict(state)
            self._begin(inner, names, values, kept)
            self.symbols[loop.counter] = counter
            own = self.inside(loop, inner, {*names, stop.done.place}, own)
            done = self.load(stop.done, inner).array
            return counter + jnp.int32(1), done, self._end(inner, names), own

        start = self._carry(loop, names, state), self.starts(loop, first, state)
        counter, done, results, _ = lax.while_loop(goes_on, body, (jnp.int32(first), jnp.bool_(False), *start))
        self._finish(state, names, results, kept)
        self.symbols[loop.counter] = counter - jnp.int32(1)
        self.symbols[stop.bound] = jnp.where(done, self.scalar(stop.length), self.symbols[stop.bound])

    def block(self, block: Block, state: State, mask: jax.Array | None) -> None:
        """Load, compute, store."""
        values: dict[str, Padded] = {}
        before, between, after = parted(block, self.apart)
        self._computed(before, block, values, state)
        if between:
            self._switched(between, block, values, state)
        self._computed(after, block, values, state)
        for store in block.stores:
            self.store(store, values[store.value], state, mask)

    def _computed(self, some: Sequence[Compute], block: Block, values: dict[str, Padded], state: State) -> None:
        """Add what some computations of a block make to its values."""
        calls: Calls = {}
        for compute in some:
            operands = [
                values[o.name] if isinstance(o, Local) else self.load(o, state, block) for o in compute.operands
            ]
            values[compute.result] = self.compute(compute, operands, block, calls)

    def _switched(self, between: Sequence[Compute], block: Block, values: dict[str, Padded], state: State) -> None:
        """The same for computations that read buffers kept apart: once for each remainder, of which one is chosen."""
        made = used_later(between, block)
        entry = chosen_by(between, self.apart)

        def one(number: int) -> list[jax.Array]:
            self.remainder, inner = number, dict(values)
            self._computed(between, block, inner, state)
            return [self.from_zero(inner[compute.result], compute.type.shape) for compute in made]

        branches = [partial(one, number) for number in range(entry.step)]
        arrays = lax.switch(self.scalar(entry.start), branches)
        for compute, array in zip(made, arrays, strict=True):
            values[compute.result] = Padded(array, self.lengths(compute.type.shape))

    def compute(self, compute: Compute, operands: Sequence[Padded], block: Block, calls: Calls | None = None) -> Padded:
        """One operation. `calls` remembers what opaque functions returned in this block, all results at once."""

        def settle(term: Any) -> Any:
            return self.condition(term) if isinstance(term, Condition) else self.scalar(term)

        attributes = {key: map_attribute(value, settle) for key, value in compute.attributes.items()}
        attributes = {key: v.value if isinstance(v, Array) else v for key, v in attributes.items()}
        if compute.op == "random_bits":
            attributes.update(seed=self.seed, step=tuple(self.scalar(term) for term in compute.step))
        if compute.op == "reduce":
            (summed,) = compute.operands
            attributes["is_array"] = isinstance(summed, Load) and summed.place in self.reads.multiplied
        shape = compute.type.shape
        capacities, lengths = tuple(self.capacity(n) for n in shape), self.lengths(shape)
        starts: Mapping[int, Start] = {}
        if any(operand.starts for operand in operands):
            types = {other.result: other.type for other in block.body}
            kinds = tuple(types[o.name] if isinstance(o, Local) else o.type for o in compute.operands)
            signature = TABLE[compute.op].signature(kinds, compute.attributes)
            operands, starts, capacities = in_place(compute.op, signature, operands, capacities, lengths)
        if compute.op == "slice" and self.begins:
            operands, attributes = self._at_own(operands, attributes, compute)
        if compute.op == "opaque" and calls is not None:
            call = attributes["function"], compute.operands
            calls[call] = calls.get(call) or called(operands, attributes)
            attributes["returned"] = calls[call]
        made = ops.apply(compute.op, operands, attributes, capacities, lengths, compute.type.dtype)
        return replace(made, starts=starts) if starts else made

    def _at_own(self, operands: Sequence[Padded], attributes: Attributes, compute: Compute) -> tuple[Any, Attributes]:
        """A slice of one element at the counter of a lane: taken beforehand, the rest is a slice from 0 on."""
        (x,) = operands
        starts = list(attributes["starts"])
        for axis, term in enumerate(map(Term.of, compute.attributes["starts"])):
            counter = next((s for s in term.symbols if s in self.begins), None)
            if counter is None or not (term - Term.of(counter)).is_constant or x.array.shape[axis] == 0:
                continue
            if is_one(attributes["lengths"][axis]) and compute.attributes["steps"][axis] == 1:
                offset = (term - Term.of(counter)).constant
                array = own_element(x.array, axis, jnp.int32(self.symbols[counter]), self.begins[counter], offset)
                x, starts[axis] = Padded(array, (*x.lengths[:axis], 1, *x.lengths[axis + 1 :])), 0
        return [x], {**attributes, "starts": tuple(starts)}

    def load(self, load: Load, state: State, block: Block | None = None) -> Padded:
        """Select slots axis by axis; what remains has the lengths of the value read."""
        place = self.program.places[load.place]
        apart = self.apart.get(load.place)
        if load.place not in state and apart is None:
            state[load.place] = self.empty(place)
        known = self.recent.find(load)
        if known is not None:
            shared = self.all_finite if self._is_shared(place, load, ()) else None
            return Padded(known.array, self.lengths(load.type.shape), False, shared)
        array = state[load.place].array if apart is None else apart.arrays[self.remainder]
        key = (block.name if block is not None else "", load)
        fresh = key in self.reads.fresh
        axes = list(self.order(place))  # the axes of the place that the array still has
        starts: dict[int, Start] = {}
        for axis, entry in enumerate(load.index):
            at = axes.index(axis)
            if isinstance(entry, Term):
                array = _pick(array, self.scalar(entry), at)
                axes.remove(axis)
            elif apart is not None:
                array = fit_axis(array, at, self.capacity(entry.length))
            elif key in self.reads.unordered:
                array = lax.slice_in_dim(array, 0, self.capacity(entry.length), axis=at)
            elif self._stays(array, entry, at, key):
                starts[axis] = Start(entry.start, jnp.int32(self.scalar(entry.start)))
                fresh = False
            else:
                rows = key in self.reads.strided and array.shape[at] % entry.step == 0
                array, exact = (self._rows(array, entry, at), True) if rows else self._several(array, entry, at, key)
                fresh = fresh and exact
        picked = {axis for axis, entry in enumerate(load.index) if isinstance(entry, Term)}
        left = [axis for axis in range(len(place.whole)) if axis not in picked]
        array = _spread(array, axes, left)
        shared = self.all_finite if self._is_shared(place, load, starts) else None
        begins = {left.index(axis): start for axis, start in starts.items()}
        return Padded(array, self.lengths(load.type.shape), fresh, shared, begins)

    def all_finite(self, array: jax.Array) -> jax.Array:
        """Whether an array is finite in every lane: one answer, or both of what depends on it would be computed."""
        # The largest magnitude, NaN if there is one: faster on CPU than a conjunction of truth values.
        finite = jnp.isfinite(jnp.max(jnp.abs(array), initial=0))
        for axis in self.lanes:
            finite = lax.pmin(finite.astype(jnp.int32), axis) > 0
        return finite

    def _stays(self, array: jax.Array, entry: Steps, axis: int, key: Key) -> bool:
        """Whether a range is read where it lies, though it begins somewhere: half of the axis or more may be meant."""
        if entry.ring is not None or entry.step != 1 or isinstance(self.scalar(entry.start), int):
            return False
        if key in self.reads.contiguous and self.lane not in entry.start.symbols:
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
        column = _pick(lax.reshape(array, shape), self.scalar(entry.start), axis + 1)
        return fit_axis(column, axis, self.capacity(entry.length))

    def _several(self, array: jax.Array, entry: Steps, axis: int, key: Key) -> tuple[jax.Array, bool]:
        """Several slots along an axis, as many as the length can be at most.

        And whether those beyond the length are the slots that follow: a gather goes to others beyond the axis.
        """
        capacity, contiguous = self.capacity(entry.length), key in self.reads.contiguous
        start, size = self.scalar(entry.start), array.shape[axis]
        if entry.ring is None and entry.step == 1 and isinstance(start, int):
            if start == 0 and capacity == size:
                return array, True
            if start + capacity <= size:
                return lax.slice_in_dim(array, start, start + capacity, axis=axis), True
        if contiguous and capacity <= size:
            return lax.dynamic_slice_in_dim(array, start, capacity, axis, allow_negative_indices=False), True
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
        index = [self.scalar(term) for term in store.index]
        self.recent.store(store.place, store.index, Padded(new, value.lengths) if mask is None else None)
        order, count = self.order(place), len(index)
        start = [jnp.int32(index[axis]) if axis < count else jnp.int32(0) for axis in order]
        slot = _gathered(lax.expand_dims(new, range(count)), order)
        if apart is not None:
            at = apart.at

            def put(array: jax.Array, place: jax.Array, own: jax.Array) -> jax.Array:
                own = own if mask is None else own & mask
                return _put(array, slot, [*start[:at], place, *start[at + 1 :]], own)

            self.apart[store.place] = apart.stored(start[at], put)
            return
        whole = state[store.place]
        state[store.place] = Padded(_put(whole.array, slot, start, mask), whole.lengths)

    def from_zero(self, value: Padded, shape: Sequence[Term]) -> jax.Array:
        """The array of a value with all axes beginning at 0, at the capacities of a shape."""
        return fitted(moved(value, value.starts).array, tuple(self.capacity(n) for n in shape))

    def order(self, place: Place) -> tuple[int, ...]:
        """The axes of a place in the order it keeps them; those of length one may be left out."""
        return self.reads.orders.get(place.name) or tuple(range(len(place.whole)))

    def room(self, place: Place) -> tuple[int, ...]:
        """The shape of the array that holds a place."""
        return tuple(self.capacity(place.whole[axis]) for axis in self.order(place))

    def with_all_axes(self, place: Place, array: jax.Array) -> jax.Array:
        """The array of a place with its axes in the order of the place."""
        return _spread(array, self.order(place), range(len(place.whole)))

    def as_kept(self, place: Place, array: jax.Array) -> jax.Array:
        """An array with all axes of a place, as the place keeps it."""
        return _gathered(array, self.order(place))

    def empty(self, place: Place) -> Padded:
        return Padded(jnp.zeros(self.room(place), place.type.dtype), self.lengths(place.whole))

    def lengths(self, shape: Sequence[Term]) -> tuple[Scalar, ...]:
        return tuple(self.scalar(n) for n in shape)

    def capacity(self, term: Term) -> int:
        """The most a length can be: its upper bound, with the bounds at their capacities."""
        if term.is_constant:
            return max(0, term.constant)
        if all(isinstance(self.symbols.get(symbol), int) for symbol in term.symbols):
            return max(0, term.evaluate(lambda symbol: int(self.symbols[symbol])))
        if term in self.reads.limits:
            return self.reads.limits[term]
        largest = most(interval(term, self.ranges)[1], self.capacities)
        sizes = (most(axis, self.capacities) for axis in self.reads.spans.get(term, ()))
        return max([largest, *(size for size in sizes if size < 2 * largest)])

    def scalar(self, term: Term) -> Scalar:
        """The value of a term: an int where it is known while tracing."""
        total: Scalar = term.constant
        for monomial, coefficient in term.monomials:
            product: Scalar = coefficient
            for atom in monomial:
                product = product * self._atom(atom)
            total = total + product
        return total

    def _atom(self, atom: Any) -> Scalar:
        if isinstance(atom, Symbol):
            return self.symbols[atom]
        if isinstance(atom, FloorDiv):
            return self.scalar(atom.dividend) // atom.divisor
        values = [self.scalar(argument) for argument in atom.arguments]
        if all(isinstance(value, int) for value in values):
            return min(values) if atom.which == "min" else max(values)
        choose: Callable[..., jax.Array] = jnp.minimum if atom.which == "min" else jnp.maximum
        result = jnp.int32(values[0])
        for value in values[1:]:
            result = choose(result, jnp.int32(value))
        return result

    def condition(self, condition: Condition) -> bool | jax.Array:
        """The truth of a condition: a bool where it is known while tracing."""
        if isinstance(condition, Compare):
            value = self.scalar(condition.term)
            if condition.relation == ">=":
                return value >= 0
            return value == 0 if condition.relation == "==" else value != 0
        assert isinstance(condition, Junction)
        conjunctive = condition.word == "and"
        result: bool | jax.Array = conjunctive
        for part in condition.parts:
            holds = self.condition(part)
            if isinstance(holds, bool):
                if holds != conjunctive:
                    return holds
            elif isinstance(result, bool):
                result = holds
            else:
                result = (result & holds) if conjunctive else (result | holds)
        return result


def _put(array: jax.Array, slot: jax.Array, start: Sequence[jax.Array], mask: jax.Array | None) -> jax.Array:
    """An array with other contents of a slot; under a mask the old ones stay where it is false."""
    if array.size == 0:
        return array
    if mask is not None:
        old = lax.dynamic_slice(array, start, slot.shape, allow_negative_indices=False)
        slot = jnp.where(mask, slot, old)
    return lax.dynamic_update_slice(array, slot, start, allow_negative_indices=False)


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


def _pick(array: jax.Array, index: Scalar, axis: int) -> jax.Array:
    """One slot of an axis; of an empty axis, zeros, which are never used."""
    if array.shape[axis] == 0:
        return jnp.zeros((*array.shape[:axis], *array.shape[axis + 1 :]), array.dtype)
    if isinstance(index, int):
        index = min(max(index, 0), array.shape[axis] - 1)
        return lax.index_in_dim(array, index, axis, keepdims=False)
    return lax.dynamic_index_in_dim(array, index, axis, keepdims=False, allow_negative_indices=False)


def sizing_bounds(program: LoopProgram) -> set[Symbol]:
    """The bounds that size a place or a value, directly or through a loop counter."""
    found: set[Symbol] = set()
    ranges: dict[Symbol, Interval] = {}
    limits = known_reads(program).limits

    def note(term: Term) -> None:
        if term in limits:
            return
        for end in interval(term, ranges):
            found.update(s for s in end.symbols if s.kind != "dim")

    def visit(items: Sequence[Item]) -> None:
        for item in items:
            if isinstance(item, Block):
                for compute in item.body:
                    terms = [*compute.type.shape]
                    terms += [n for o in compute.operands if isinstance(o, Load) for n in o.type.shape]
                    for term in terms:
                        note(term)
            else:
                if isinstance(item, For):
                    low, high = interval(item.first, ranges)[0], interval(item.end - 1, ranges)[1]
                    if item.parallel:  # its iterations may run all at once: then it is an axis
                        note(item.end - item.first)
                    ranges[item.counter] = (low, high)
                visit(item.body)

    for place in program.places.values():
        for term in place.whole:
            note(term)
    visit(program.body)
    return found


def seed_words(seed: int) -> np.ndarray:
    """A seed as two 32-bit words, low and high."""
    return np.array([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF], np.uint32)
