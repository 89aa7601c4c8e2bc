"""Loop IR to JAX: the whole program as one traced function, its loops as XLA loops.

What terms are worth while tracing is in `scope.py`, how places are read and written in `places.py`. Axes whose length
is known only at run time are stored padded to their capacity (see `ops/padded.py`). Places that a loop changes are
carried through it as values; XLA updates them in place because each is written and then read from its newest version
only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from polyrhythm.compiler.backends.jax import ops
from polyrhythm.compiler.backends.jax.ops import Padded
from polyrhythm.compiler.backends.jax.ops.elementwise import is_maximum
from polyrhythm.compiler.backends.jax.ops.opaque import called
from polyrhythm.compiler.backends.jax.ops.padded import Result, Start, is_one
from polyrhythm.compiler.backends.jax.ops.quantised import only_multiplied, packed
from polyrhythm.compiler.backends.jax.run import watch
from polyrhythm.compiler.backends.jax.trace import spilled
from polyrhythm.compiler.backends.jax.trace.fusion_barrier import computed_once
from polyrhythm.compiler.backends.jax.trace.lanes import chunk_of, own_element, run_lanes
from polyrhythm.compiler.backends.jax.trace.offset_axes import in_place
from polyrhythm.compiler.backends.jax.trace.places import (
    LARGE,
    Places,
    Replay,
    Residues,
    State,
    chosen_by,
    fitted,
    gathered_from,
    parted,
    separated,
    slots_behind,
    together,
    used_later,
)
from polyrhythm.compiler.backends.jax.trace.ring_stages import run_stages
from polyrhythm.compiler.backends.jax.trace.rows import grouped, is_summed, row_sum, run_rows
from polyrhythm.compiler.backends.jax.trace.scope import Scalar, int32
from polyrhythm.compiler.backends.jax.trace.spreading import constrained, kept_whole, spread_place, undivided, ways_over
from polyrhythm.compiler.backends.jax.trace.views import views_of
from polyrhythm.compiler.backends.jax.trace.work import is_worth_skipping
from polyrhythm.compiler.ir.conditions import Condition
from polyrhythm.compiler.ir.intervals import interval
from polyrhythm.compiler.ir.ops.record import map_attributes
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.ir.types import Array
from polyrhythm.compiler.loops.ir import Block, Compute, For, If, Item, Load, Local, LoopProgram, Steps, blocks_of, walk
from polyrhythm.compiler.loops.liveness import carried, live_before, written
from polyrhythm.compiler.loops.spilling import Rows, only_for_rows, rows_taken
from polyrhythm.compiler.loops.units import units

Calls = dict[Any, tuple[Any, ...]]
Attributes = dict[str, Any]
Carry = tuple[jax.Array | Residues, ...]


LONG = 1000
"""So many operations of a loop inside of others take longer than asking whether it may go on costs."""


@dataclass
class Lowering(Places):
    """One traced run of a program."""

    begins: Mapping[Symbol, int] = field(default_factory=dict)  # where the counters of lanes begin, if that is known
    looping: int = 0  # how many loops are being traced
    few: bool = False  # a call does few iterations of an outermost loop
    fresh: bool = False  # places hold zeros at first
    slot: Any = None  # where the run reports how far it is, if it does
    summed: dict[int, Padded] = field(default_factory=dict)  # contractions over rows, by computation (see `rows.py`)

    @staticmethod
    def of(
        program: LoopProgram, capacities: Mapping[Symbol, int], values: jax.Array, seed: Any, **how: Any
    ) -> Lowering:
        """A run with the bounds as they are given to an XLA program, and behind them the slot in which it reports."""
        symbols: dict[Symbol, Any] = {s: values[i] for i, s in enumerate(program.bounds)}
        slot = values[len(program.bounds)] if watch.available() and len(values) > len(program.bounds) else None
        return Lowering(program, capacities, symbols, seed, slot=slot, **how)

    def stored(self, arrays: Mapping[str, jax.Array]) -> State:
        """Arrays of places at capacity, at the lengths that they have."""
        return {n: Padded(array, self.lengths(self.program.places[n].whole)) for n, array in arrays.items()}

    def run(self, inputs: Mapping[str, jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
        """The outputs at capacity, and the bounds found on the way."""
        state: State = {}
        self.fresh = True
        for name, place in self.program.places.items():
            if place.kind == "input":
                if name in inputs:
                    state[name] = Padded(inputs[name], self.lengths(place.whole))
            elif place.kind != "variable":
                state[name] = self.empty(place)
        live = {n for n, place in self.program.places.items() if place.spill is not None} | set(self.program.outputs)
        self.items(self.program.body, state, live, None)
        places = self.program.places
        outputs = [spread_place(self, places[name], state[name].array) for name in self.program.outputs]
        return outputs, [jnp.int32(self.symbols[bound]) for bound in self.program.found]

    def items(self, items: Sequence[Item], state: State, live: set[str], mask: jax.Array | None) -> None:
        """Run items in order, changing the state."""
        done = 0
        for number, item in enumerate(items):
            if number < done:
                continue  # it ran together with the loop over rows before it
            after = live_before(items[number + 1 :], live, self.program)
            group = grouped(self, items[number:], mask) if isinstance(item, For) else None
            if group is not None:
                with jax.named_scope(f"for {group.loops[0][0].counter}"):
                    run_rows(self, group, state)
                done = number + len(group.loops)
            elif isinstance(item, Block):
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
        self.begin(state, names)
        before, symbols, ranges = dict(state), dict(self.symbols), dict(self.ranges)

        def then(values: dict[str, jax.Array]) -> dict[str, jax.Array]:
            inner = before | {name: replace(before[name], array=array) for name, array in values.items()}
            alone = replace(self, symbols=symbols, ranges=ranges)
            alone.items(item.body, inner, live, None)
            return {name: inner[name].array for name in names}

        made = lax.cond(holds, then, lambda values: values, {name: state[name].array for name in names})
        state.update({name: replace(state[name], array=array) for name, array in made.items()})

    def loop(self, loop: For, state: State, live: set[str], mask: jax.Array | None) -> None:
        """A loop, in which values are held that it has stored itself."""
        held, self.held = self.held, {}
        with jax.named_scope(f"for {loop.counter}"):  # profilers show it
            self._loop(loop, state, live, mask)
        self.held = held

    def _loop(self, loop: For, state: State, live: set[str], mask: jax.Array | None) -> None:
        """A loop; one of a single known iteration is done in place."""
        first, end = self.scalar(loop.first), self.scalar(loop.end)
        self.note_range(loop)
        count = self.scalar(loop.end - loop.first)
        known = (isinstance(first, int) and isinstance(end, int)) or ways_over(self, loop) > 1
        if loop.stop is None and known and isinstance(count, int) and count <= 1:
            if count == 1:
                self.symbols[loop.counter] = first
                self.items(loop.body, state, live, mask)
            return
        if mask is not None:
            end = jnp.where(mask, end, first)
        chunk = 1 if loop.lanes is None or loop.stop is not None else chunk_of(self, loop)
        if loop.lanes is not None and chunk != 1:
            views = views_of(loop, loop.lanes, self.program)
            run_lanes(self, loop, views, state, (first, end), chunk, mask is None)
            return
        stop = loop.stop
        names = carried(loop, live if stop is None else live | {stop.done.place}, self.program)
        self.begin(state, names)
        kept = {name: state[name].lengths for name in names}

        def body(counter: jax.Array, carry: tuple[Carry, tuple[jax.Array, ...]]) -> Any:
            values, own = carry
            inner = dict(state)
            self._begin(inner, names, values, kept)
            for name in written(loop.body) - set(names):
                inner.pop(name, None)
            self.symbols[loop.counter] = counter
            own = self.inside(loop, inner, set(names), own)
            done = None if stop is None else self.load(stop.done, inner).array
            return (self._end(inner, names), own), done

        passed = self.starts(loop, first, state)  # fetched before the loop stores anything
        start = self._carry(loop, names, state), passed
        run = self._counted if stop is None else self._until
        self._finish(state, names, run(loop, first, end, body, start)[0], kept)

    def _counted(self, loop: For, first: Scalar, end: Scalar, step: Any, start: Any) -> Any:
        """What iterations from one to before another make; those of a long run in pieces (`run/watch.py`)."""
        begin, limit = int32(first), int32(end)

        def body(counter: jax.Array, carry: Any) -> Any:
            return step(counter, carry)[0]

        if not self._is_watched(loop):
            return lax.fori_loop(begin, limit, body, start)
        ask = partial(watch.up_to, self.slot, self._unit(loop))

        def piece(carry: tuple[jax.Array, jax.Array, Any]) -> tuple[jax.Array, jax.Array, Any]:
            following, until, values = carry
            values = lax.fori_loop(following, until, body, values)
            return until, ask(until, limit), values

        begun = (begin, ask(begin, limit), start)
        return lax.while_loop(lambda carry: carry[0] < carry[1], piece, begun)[2]

    def _is_watched(self, loop: For) -> bool:
        """Whether a loop runs in pieces: an outermost one, or one that takes long by itself."""
        if self.slot is None or self.lanes:
            return False
        most = interval(loop.end - loop.first, self.ranges)[1]
        count = self.capacity(most) if most.symbols <= self.capacities.keys() else LONG
        return not self.looping or count * sum(len(block.body) for block in blocks_of(loop.body)) >= LONG

    def _unit(self, loop: For) -> int:
        """The number of an outermost loop, by which its progress is shown; -1 for others."""
        found = (n for n, unit in enumerate(units(self.program.body)) if unit.loop and unit.loop.body is loop.body)
        return -1 if self.looping else next(found, -1)

    def _carry(self, loop: For, names: Sequence[str], state: State) -> Carry:
        """What a loop carries of the places that it changes."""
        apart = {} if self.few or self.lanes or self.looping else {split.place: split for split in loop.splits}
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
                state[name] = Padded(spread_place(self, self.program.places[name], value), kept[name])

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
        loads = (Load(r.place, r.before, self.program.places[r.place].type) for r in loop.registers)
        return tuple(self.load(load, state).array for load in loads)

    def inside(self, loop: For, state: State, live: set[str], passed: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        """Run the body of a loop, given what the iteration before passes on; what this one passes on."""
        self.looping += 1
        stores = (store.place for block in blocks_of(loop.body) for store in block.stores)
        self.replay = Replay(frozenset() if self.lanes else frozenset(stores))
        self.held = {}
        outer, self.passed = self.passed, frozenset((register.place, register.now) for register in loop.registers)
        for register, value in zip(loop.registers, passed, strict=True):
            lengths = self.lengths(self.program.places[register.place].type.shape)
            self.held[register.place, register.before] = Padded(value, lengths)
        self.items(loop.body, state, live, None)
        slots = (Load(r.place, r.now, self.program.places[r.place].type) for r in loop.registers)
        # What stores a slot may have been skipped; then it holds what it held.
        made = tuple((self.held.get((slot.place, slot.index)) or self.load(slot, state)).array for slot in slots)
        self.looping -= 1
        self.replay, self.passed = Replay(), outer
        return made

    def _until(self, loop: For, first: Scalar, end: Scalar, step: Any, start: Any) -> Any:
        """What iterations make until one finds that it is the last, or the end has come; a long run is in pieces."""

        def body(carry: tuple[jax.Array, jax.Array, Any]) -> Any:
            values, done = step(carry[0], carry[2])
            return carry[0] + jnp.int32(1), done, values

        def piece(carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
            until, values = carry
            values = lax.while_loop(lambda inner: (inner[0] < until) & ~inner[1], body, values)
            return ask(values[0], limit), values

        limit, begun = jnp.int32(end), (jnp.int32(first), jnp.bool_(False), start)
        if self._is_watched(loop):
            ask = partial(watch.up_to, self.slot, self._unit(loop))
            pieces = ask(begun[0], limit), begun
            made = lax.while_loop(lambda carry: (carry[1][0] < carry[0]) & ~carry[1][1], piece, pieces)[1]
        else:
            made = lax.while_loop(lambda carry: (carry[0] < limit) & ~carry[1], body, begun)
        (counter, done, values), stop = made, loop.stop
        assert stop is not None
        self.symbols[loop.counter] = counter - jnp.int32(1)
        self.symbols[stop.bound] = jnp.where(done, self.scalar(stop.length), self.symbols[stop.bound])
        return values

    def block(self, block: Block, state: State, mask: jax.Array | None) -> None:
        """Load, compute, store; profilers show the name of the block."""
        with jax.named_scope(block.name):
            self._block(block, state, mask)

    def _block(self, block: Block, state: State, mask: jax.Array | None) -> None:
        values: dict[str, Padded] = {}
        before, between, after = parted(block, self.apart)
        if not run_stages(self, before, block, values, state):
            self.computed(before, block, values, state)
        if between:
            self._switched(between, block, values, state)
        self.computed(after, block, values, state)
        for store in block.stores:
            value = values[store.value]
            kept = mask is not None or self.program.places[store.place].kind != "variable"
            behind = slots_behind(block, store.value) & self.replay.written - {store.place} if kept else ()
            for name in behind:
                if name in state and state[name].array.size >= LARGE:
                    value = replace(value, array=computed_once(value.array, self.symbols))
                    self.replay.gathered.setdefault(name, []).append(value.array)
            self.store(store, value, state, mask)

    def computed(self, some: Sequence[Compute], block: Block, values: dict[str, Padded], state: State) -> None:
        """Add what some computations of a block make to its values."""
        calls: Calls = {}
        taken = {name: rows for name, rows in rows_taken(block).items() if self._is_taken(rows)}
        skipped = only_for_rows(block, taken) if taken else ()
        for compute in some:
            if compute.result in skipped:
                continue
            if id(compute) in self.summed:
                values[compute.result] = self.summed[id(compute)]
                continue
            rows = taken.get(compute.result)
            found = gathered_from(compute) if rows is None else [rows.load.place]
            filed = rows is not None and rows.load.spilled
            sources = found if self.looping and not (self.lanes or filed) else ()
            for name in self.replay.stored.intersection(sources):
                self.replay.stored.discard(name)
                state[name] = replace(state[name], array=computed_once(state[name].array, self.symbols))
            with jax.named_scope(compute.result):  # the memory plan tells lines by it
                if rows is not None:
                    values[compute.result] = self._taken(compute, rows, values, state)
                else:
                    loaded = [values[o.name] if isinstance(o, Local) else self.load(o, state) for o in compute.operands]
                    made = partial(self.compute, compute, loaded, block, calls)
                    summed = compute.rows is not None and is_summed(self, compute, loaded)
                    values[compute.result] = row_sum(self, compute, loaded, state, made) if summed else made()
            for name in sources:
                self.replay.gathered.setdefault(name, []).append(values[compute.result].array)

    def _is_taken(self, rows: Rows) -> bool:
        """Whether rows are taken where they lie: in a file, or in a buffer that need not be cut and copied for it."""
        place = self.program.places[rows.load.place]
        if place.spill is not None:
            return True
        plain = rows.reshaped and place.kind == "buffer" and not (self.lanes or self.program.sharding)
        known = all(length.is_constant for length in place.type.shape) and place.name not in self.apart
        return plain and known and self.order(place) == tuple(range(len(place.whole)))

    def _taken(self, compute: Compute, rows: Rows, values: Mapping[str, Padded], state: State) -> Padded:
        """Rows of a range of slots."""
        indices = compute.operands[1]
        chosen = values[indices.name] if isinstance(indices, Local) else self.load(indices, state)
        shape, steps = compute.type.shape, rows.load.index[-1]
        assert isinstance(steps, Steps)
        rank = chosen.array.ndim
        picked = fitted(chosen.array, tuple(self.capacity(n) for n in shape[:rank]))
        length = self.scalar(steps.length) * rows.per_slot
        picked = jnp.clip(picked.astype(jnp.int32), 0, jnp.maximum(length - 1, 0))
        room, place = tuple(self.capacity(n) for n in shape), self.program.places[rows.load.place]
        if place.spill is not None:
            array = spilled.take(self, place, rows, picked, room, state)
        else:
            self.begin(state, [place.name])
            kept = state[place.name].array
            if not kept.size:
                return Padded(jnp.zeros(room, place.type.dtype), self.lengths(shape))
            flat = kept.reshape(-1, *room[rank:])
            at = Padded(spilled.rows_of(self, place, rows, picked), chosen.lengths)
            whole = Padded(flat, (flat.shape[0], *room[rank:]))
            array = ops.apply("take", [whole, at], {"axis": 0}, room, self.lengths(shape), place.type.dtype).array
        if not isinstance(length, int):
            array = jnp.where(length > 0, array, jnp.zeros((), array.dtype))
        return Padded(array, self.lengths(shape))

    def _switched(self, between: Sequence[Compute], block: Block, values: dict[str, Padded], state: State) -> None:
        """The same for computations that read buffers kept apart: once for each remainder, of which one is chosen."""
        made = used_later(between, block)
        entry = chosen_by(between, self.apart)

        def one(number: int) -> list[jax.Array]:
            self.remainder, inner = number, dict(values)
            self.computed(between, block, inner, state)
            return [self.from_zero(inner[compute.result], compute.type.shape) for compute in made]

        branches = [partial(one, number) for number in range(entry.step)]
        arrays = lax.switch(self.scalar(entry.start), branches)
        for compute, array in zip(made, arrays, strict=True):
            values[compute.result] = Padded(array, self.lengths(compute.type.shape))

    def compute(self, compute: Compute, operands: Sequence[Padded], block: Block, calls: Calls | None = None) -> Padded:
        """One operation. `calls` remembers what opaque functions returned in this block, all results at once."""

        def settle(term: Any) -> Any:
            return self.condition(term) if isinstance(term, Condition) else self.scalar(term)

        attributes = map_attributes(compute.attributes, settle)
        attributes = {key: v.value if isinstance(v, Array) else v for key, v in attributes.items()}
        if compute.op == "random_bits":
            attributes.update(seed=self.seed, step=tuple(self.scalar(term) for term in compute.step))
        if compute.op == "reduce":
            (summed,) = compute.operands
            attributes["is_array"] = isinstance(summed, Load) and self.program.places[summed.place].multiplied
        shape = compute.type.shape
        capacities, lengths = tuple(self.capacity(n) for n in shape), self.lengths(shape)
        starts: Mapping[int, Start] = {}
        if any(operand.starts for operand in operands):
            signature = compute.signature(block.types)
            operands, starts, capacities = in_place(compute.op, signature, operands, capacities, lengths)
        if compute.op == "slice" and self.begins:
            operands, attributes = self._at_own(operands, attributes, compute)
        if compute.op == "opaque" and calls is not None:
            call = attributes["function"], compute.operands
            calls[call] = calls.get(call) or called(operands, attributes)
            attributes["returned"] = calls[call]
        if compute.op == "dequantize" and only_multiplied(compute.result, block):
            return packed(operands, Result(capacities, lengths, compute.type.dtype))
        if compute.op == "select" and is_maximum(compute, block):
            compute, operands = replace(compute, op="maximum"), operands[1:]
        whole = undivided(self, compute)
        if whole:
            operands = [kept_whole(self, *pair) for pair in zip(operands, whole[:-1], strict=True)]
        made = ops.apply(compute.op, operands, attributes, capacities, lengths, compute.type.dtype)
        if whole:
            made = kept_whole(self, made, whole[-1])
        if compute.op == "shard" and self.program.sharding is not None:
            spec = [()] * made.array.ndim  # type: list[tuple[str, ...]]
            spec[attributes["axis"]] = attributes["over"]
            made = replace(made, array=constrained(self, made.array, tuple(spec)))
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
