"""A JAX run that can stop and go on: each unit of the program is its own XLA program over a range of iterations.

The state (everything the program writes) stays on the device and is donated from call to call, so buffers are
updated in place. The host decides how many iterations a call does; in between it may read outputs that are final and
hand over inputs. A call costs some tens of microseconds, so a chunk of one iteration is for steps that take longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from polyrhythm.compiler.analysis.calls import check_found
from polyrhythm.compiler.backends.jax.ops.creation import seed_words
from polyrhythm.compiler.backends.jax.run import watch
from polyrhythm.compiler.backends.jax.run.executor import Advance
from polyrhythm.compiler.backends.jax.run.growing import begin_at, items_of, resized, rooms, some_iterations
from polyrhythm.compiler.backends.jax.run.host_regions import has_host
from polyrhythm.compiler.backends.jax.run.mesh import spread
from polyrhythm.compiler.backends.jax.run.placing import aligned_zeros, capacity, cut, padded, precision, stacked
from polyrhythm.compiler.backends.jax.run.replacing import replaced, share
from polyrhythm.compiler.backends.jax.trace.lowering import Lowering
from polyrhythm.compiler.backends.jax.trace.spreading import spread_place
from polyrhythm.compiler.backends.python.emit import Position
from polyrhythm.compiler.backends.python.runs import START, Begin
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.compiler.loops.feeding import Fed
from polyrhythm.compiler.loops.ir import Block, For, LoopProgram
from polyrhythm.compiler.loops.liveness import live_before
from polyrhythm.compiler.loops.replacing import Index
from polyrhythm.compiler.loops.units import Unit, units

if TYPE_CHECKING:
    from polyrhythm.compiler.backends.jax.backend import JaxBackend

Arrays = dict[str, jax.Array]

TOGETHER, MOST_TOGETHER = 64, 1 << 16
"""How many steps of an output are fetched at once if several are asked for, and the most bytes that they may have."""


@dataclass(frozen=True)
class Fetched:
    """Steps of an output from one on, as they are in an array. Arrays of JAX do not change, so they stay right."""

    whole: jax.Array
    first: int
    steps: np.ndarray | None  # along the first axis; None if only one step was asked for so far


@dataclass
class SteppedRun:
    """One run while it goes on: the arrays it writes, those it reads, and the bounds found so far."""

    names: tuple[str, ...]
    state: Arrays
    inputs: Arrays
    bounds: dict[str, int]
    found: dict[str, int]
    capacities: dict[Symbol, int]
    full: dict[Symbol, int]  # those that it may grow to
    seed: np.ndarray
    given: Mapping[str, tuple[str, Any]]  # for each place of an input, the input and the index of the part
    wholes: Mapping[str, str]  # for each place with one of several separate slots, the place they make up
    wide: bool
    found_early: set[str] = field(default_factory=set)  # bounds that a loop which ended has found
    fetched: dict[int, Fetched] = field(default_factory=dict)  # of each output, what was fetched last
    fed: Mapping[str, Fed] = field(default_factory=dict)  # of which inputs it holds a window
    going: deque[jax.Array] = field(default_factory=deque)  # one of the results of each call that reads a window

    @property
    def outputs(self) -> list[jax.Array]:
        return [self.state[name] if name in self.state else self.inputs[name] for name in self.names]

    def step(self, number: int, axis: int, step: int, shape: tuple[int, ...]) -> Any:
        """One step of an output, at the lengths that its other axes have."""
        return cut(_picked(self.outputs[number], np.int32(step), axis), (*shape[:axis], *shape[axis + 1 :]))

    def step_as_numpy(self, number: int, axis: int, step: int, shape: tuple[int, ...]) -> np.ndarray:
        """The same as a NumPy array.

        Fetching one costs about 20 us. When a second one is asked for while the run stands still, it was asked to go
        several steps at a time, and some of those that follow are fetched along.
        """
        name = self.names[number]
        whole = self.state[name] if name in self.state else self.inputs[name]
        known = self.fetched.get(number)
        if known is None or known.whole is not whole:
            self.fetched[number] = Fetched(whole, 0, None)
            return np.asarray(self.step(number, axis, step, shape))
        if known.steps is None or not known.first <= step < known.first + len(known.steps):
            count = min(TOGETHER, whole.shape[axis], 1 + MOST_TOGETHER * whole.shape[axis] // (whole.nbytes + 1))
            first = min(step, whole.shape[axis] - count)
            known = Fetched(whole, first, np.asarray(_several(whole, np.int32(first), axis, count)))
            self.fetched[number] = known
        assert known.steps is not None
        own: np.ndarray = known.steps[step - known.first, ...]
        rest = shape[:axis] + shape[axis + 1 :]
        return own if own.shape == rest else own[tuple(map(slice, rest))]

    def end(self, program: LoopProgram, bound: Symbol, length: int) -> None:
        """A loop has ended early and so found a length."""
        self.found[bound.name] = self.bounds[bound.name] = length
        self.found_early.add(bound.name)
        check_found(program.bounds, self.bounds, bound.name)

    def kept(self) -> dict[str, Any]:
        """What every place holds now; separate slots are put together."""
        parts: dict[str, list[str]] = {}
        for name in sorted(self.state):
            parts.setdefault(self.wholes.get(name, name), []).append(name)
        return {
            whole: self.state[whole] if names == [whole] else stacked([self.state[n] for n in names])
            for whole, names in parts.items()
        }

    def replace(self, program: LoopProgram, name: str, index: Index, values: np.ndarray) -> None:
        """Write to a place, or to its slots that are arrays of their own."""
        parts = [part for part in self.state if self.wholes.get(part, part) == name]
        shares = {part: share(program.places[part], index, values) for part in parts}
        with precision(self.wide):
            arrays = {part: self.state[part] for part in parts}
            own = next(index for index, _ in shares.values())
            self.state |= replaced(arrays, own, {part: values for part, (_, values) in shares.items()})

    def feed(self, name: str, step: int, items: np.ndarray) -> None:
        """Write consecutive steps of an input."""
        with precision(self.wide):
            for place, (given, index) in self.given.items():
                if given == name and index is None:
                    self.inputs[place] = _written(self.inputs[place], jnp.asarray(items), np.int32(step))
                elif given == name:
                    self._feed_part(place, index, step, items)

    def _feed_part(self, place: str, index: tuple[int | slice, ...], step: int, items: np.ndarray) -> None:
        """Write those steps of an input that belong to a part of it."""
        slot, rest = index[0], index[1:]
        if isinstance(slot, slice):
            part = jnp.asarray(items[:, *rest])
            self.inputs[place] = _written(self.inputs[place], part, np.int32(step))
        elif step <= slot < step + len(items):
            self.inputs[place] = jnp.asarray(items[slot - step][rest], self.inputs[place].dtype)


@dataclass
class Stepper:
    """Runs a program of the JAX backend step by step; compiled units are kept."""

    backend: JaxBackend
    _shapes: dict[tuple[int, ...], dict[str, tuple[int, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.units = units(self.backend.program.body)
        self.drives = [has_host((unit.item,)) for unit in self.units]

    def start(
        self,
        inputs: Mapping[str, Any],
        bounds: Mapping[str, int],
        seed: int,
        chunk_of: Callable[[int], int | None],
        begin: Begin = START,
        fed: Mapping[str, Fed] | None = None,
    ) -> tuple[SteppedRun, Iterator[Position]]:
        """A run that goes on whenever its next position is asked for; `chunk_of` tells the iterations per call.

        It may begin where another was stopped. Of inputs that are `fed` it holds a window.
        """
        program = self.backend.program
        known = {**bounds, **begin.found}
        for one in (fed or {}).values():
            known |= {one.window.begin.name: 0, one.window.size.name: 1}
        full = self.backend.capacities(known)
        found = {s.name: known[s.name] for s in program.found}
        words, ends = seed_words(seed), (self.backend.inputs, self._wholes(), self.backend.wide)
        run = SteppedRun(program.outputs, {}, {}, known, found, dict(full), full, words, *ends, fed=fed or {})
        growth = self.backend.growth
        if growth is not None:
            run.capacities[growth.bound] = self._capacity_at(run, begin.position)
        with precision(self.backend.wide):
            kept = self._separated(begin.places)
            run.state = resized(program, rooms(program, run.capacities, self._written()), kept)
            shapes = self.backend.input_shapes(full)
            empty = {n: np.zeros(shapes[one.window.place], one.dtype) for n, one in run.fed.items()}
            placed = self.backend.placed({**inputs, **empty}, shapes)
            run.inputs = placed if program.sharding is not None else jax.device_put(placed)
        return run, self._positions(run, chunk_of, begin.position)

    def _written(self) -> list[str]:
        return [name for name, place in self.backend.program.places.items() if place.kind != "input"]

    def _wholes(self) -> dict[str, str]:
        parts = ((name, self.backend.program.places[name].part_of) for name in self._written())
        return {name: part_of[0] for name, part_of in parts if part_of is not None}

    def _separated(self, places: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Places as they were put together, taken apart again; copies, since the state is donated."""
        wholes = self._wholes()
        slots = {name: iter(array) for name, array in places.items() if name in wholes.values()}
        found = {}
        for name in sorted(self._written()):
            if wholes.get(name, name) in places:
                array = next(slots[wholes[name]]) if name in wholes else places[name]
                found[name] = np.array(array)
        return found

    def _positions(self, run: SteppedRun, chunk_of: Callable[[int], int | None], begin: Position) -> Iterator[Position]:
        for number, unit in enumerate(self.units):
            iterations = unit.iterations(lambda symbol: run.bounds[symbol.name])
            iterations = self._possible(run, number, iterations)
            if not iterations or number < begin[0]:
                continue
            first = begin[1] if number == begin[0] else iterations.start
            yield number, first
            while first < iterations.stop:
                chunk = chunk_of(number)
                end = iterations.stop if chunk is None else min(first + chunk, iterations.stop)
                self._fit(run, number, first)
                end = min(end, self._reach(run, number, end))
                done = self._advance(run, number, range(first, end), chunk is None)
                if done:
                    break
                first = end
                yield number, end
        yield len(self.units), 0

    def _capacity_at(self, run: SteppedRun, position: Position) -> int:
        """The capacity that a run has at a position, before it goes on."""
        growth = self.backend.growth
        assert growth is not None
        unit, after = position
        largest = run.full[growth.bound]
        if unit > growth.unit:
            return largest
        chain = growth.capacities(run.bounds, largest)
        return next(
            c for c in chain if unit < growth.unit or c == largest or growth.reach(c, run.bounds, c * 2) >= after
        )

    def _fit(self, run: SteppedRun, number: int, first: int) -> None:
        """Let the buffers grow until they hold an iteration of a unit."""
        growth = self.backend.growth
        if growth is None or number < growth.unit or growth.bound.name in run.found_early:
            return
        before, largest = run.capacities[growth.bound], run.full[growth.bound]
        chain = growth.capacities(run.bounds, largest) if number == growth.unit else [largest]
        now = next((c for c in chain if growth.reach(c, run.bounds, largest) > first), largest)
        if now <= before:
            return
        run.capacities[growth.bound] = now
        with precision(run.wide):
            shapes = rooms(self.backend.program, run.capacities, list(run.state))
            run.state = resized(self.backend.program, shapes, run.state)
        for companion, span in growth.companion_spans(before, now, run.bounds, largest).items():
            if span:
                self._advance(run, companion, span, False)

    def _possible(self, run: SteppedRun, number: int, iterations: range) -> range:
        """The iterations of a unit that the present capacities allow, now or after growing."""
        growth = self.backend.growth
        if growth is None or number not in growth.companions:
            return iterations
        now, largest = run.capacities[growth.bound], run.full[growth.bound]
        return growth.companion_spans(None, now, run.bounds, largest)[number]

    def _reach(self, run: SteppedRun, number: int, end: int) -> int:
        growth = self.backend.growth
        if growth is None or number != growth.unit:
            return end
        return growth.reach(run.capacities[growth.bound], run.bounds, run.full[growth.bound])

    def _advance(self, run: SteppedRun, number: int, iterations: range, whole: bool) -> bool:
        """Do some iterations of a unit, or the whole of it; whether it has ended early."""
        program = self.backend.program
        unit, first, end = self.units[number], iterations.start, iterations.stop
        growth = self.backend.growth
        whole = whole and (growth is None or number not in (growth.unit, *growth.companions))
        stop = unit.loop.stop if unit.loop is not None else None
        slot = watch.current()
        with precision(self.backend.wide):
            self._slide(run, number, iterations)
            inputs = self._inputs(run)
            values = np.array([*(run.bounds[s.name] for s in program.bounds), slot.number], np.int32)
            if self.drives[number]:
                return self._drive(run, inputs, unit, iterations)
            arguments = (run.state, inputs, values, run.seed, np.int32(first), np.int32(end))
            compiled = self.backend.executor.compiled(self._unit(run.capacities, number, whole), arguments)
            run.state, done, length = slot.call(compiled, *arguments)
            if run.fed:
                run.going.append(done)
            if stop is None or not bool(done):
                return False
            run.end(program, stop.bound, int(length))
        return True

    def _slide(self, run: SteppedRun, number: int, iterations: range) -> None:
        """Move windows of inputs to the steps that some iterations read; they get larger, but never smaller."""
        program = self.backend.program
        for one in run.fed.values():
            window, lookup = one.window, lambda symbol: run.bounds[symbol.name]
            steps = window.span(number, iterations, one.length, lookup)
            if not steps:
                continue
            while len(run.going) > 1:  # two windows at a time: what is read while the other is computed with
                jax.block_until_ready(run.going.popleft())
            left = range(iterations.start, max(iterations.stop, self.units[number].iterations(lookup).stop))
            one.forget(window.done(number, left, lookup))
            rows = one.rows(steps)
            run.bounds |= {window.begin.name: steps.start, window.size.name: len(steps)}
            run.capacities[window.size] = max(run.capacities[window.size], capacity(len(steps)))
            room = aligned_zeros(self._shapes_at(run.capacities)[window.place], one.dtype)
            room[tuple(map(slice, rows.shape))] = rows
            run.inputs[window.place] = spread(program, {window.place: room})[window.place]

    def _inputs(self, run: SteppedRun) -> dict[str, Any]:
        """The inputs at the present capacities; they are kept whole, because they may still be fed."""
        if run.capacities == run.full:
            return run.inputs
        shapes = self._shapes_at(run.capacities)
        return {name: padded(array, shapes[name]) for name, array in run.inputs.items()}

    def _shapes_at(self, capacities: Mapping[Symbol, int]) -> dict[str, tuple[int, ...]]:
        """The shapes of inputs, found once for some capacities."""
        key = tuple(capacities.values())
        if key not in self._shapes:
            self._shapes[key] = self.backend.input_shapes(capacities)
        return self._shapes[key]

    def _drive(self, run: SteppedRun, inputs: Mapping[str, Any], unit: Unit, iterations: range) -> bool:
        """Do iterations that call the host, region by region."""
        symbols = {s: run.bounds[s.name] for s in self.backend.program.bounds}
        state = {**run.state, **jax.device_put(inputs)}
        driver = self.backend._driver(run.capacities)
        done = driver.advance(unit.item, state, symbols, run.seed, iterations)
        run.state = {name: state[name] for name in run.state}
        for symbol in self.backend.program.found:
            if done:
                run.end(self.backend.program, symbol, symbols[symbol])
        return done

    def _unit(self, capacities: Mapping[Symbol, int], number: int, whole: bool) -> Advance:
        """Some iterations of a unit at some capacities, or the whole of it."""
        key = ("unit", number, whole, *(capacities[s] for s in self.backend.sizing))
        unit = self.units[number]
        reason = f"step by step: {'loop over' if unit.loop else 'block'} {unit.name}"
        trace = partial(self._trace, dict(capacities), number, whole)
        return Advance(key, trace, dict(capacities), reason, (0,))

    def _trace(
        self,
        capacities: Mapping[Symbol, int],
        number: int,
        whole: bool,
        state: Arrays,
        inputs: Arrays,
        values: jax.Array,
        seed: jax.Array,
        first: jax.Array,
        end: jax.Array,
    ) -> tuple[Arrays, jax.Array, jax.Array]:
        program = self.backend.program
        lowering = Lowering.of(program, capacities, values, seed, few=not whole)
        padded = lowering.stored({**state, **inputs})
        item: For | Block = self.units[number].item
        if isinstance(item, For) and not whole:
            begin_at(lowering, item, first, end)
            item = some_iterations(item)
        lowering.items((item,), padded, self._live(number, whole), None)
        done, length = jnp.bool_(False), jnp.int32(0)
        if isinstance(item, For) and item.stop is not None:
            done = lowering.load(item.stop.done, padded).array
            length = jnp.int32(lowering.symbols[item.stop.bound])
        after = {name: padded[name].array if name in padded else array for name, array in state.items()}
        return {n: spread_place(lowering, program.places[n], a) for n, a in after.items()}, done, length

    def _live(self, number: int, whole: bool) -> set[str]:
        """The places that matter after some iterations of a unit, or after the whole of it."""
        program, outputs = self.backend.program, set(self.backend.program.outputs)
        later = live_before(items_of(self.units[number + 1 :]), outputs, program) | outputs
        # Some iterations may have been the last, or more may follow.
        return later if whole else later | live_before(items_of(self.units[number:]), outputs, program)


@partial(jax.jit, static_argnums=2)
def _picked(whole: jax.Array, step: jax.Array, axis: int) -> jax.Array:
    found: jax.Array = jax.lax.dynamic_index_in_dim(whole, step, axis, keepdims=False)
    return found


@partial(jax.jit, static_argnums=(2, 3))
def _several(whole: jax.Array, first: jax.Array, axis: int, count: int) -> jax.Array:
    return jnp.moveaxis(jax.lax.dynamic_slice_in_dim(whole, first, count, axis), axis, 0)


@partial(jax.jit, donate_argnums=0)
def _written(whole: jax.Array, items: jax.Array, step: jax.Array) -> jax.Array:
    start = (step, *(jnp.int32(0),) * (whole.ndim - 1))
    return jax.lax.dynamic_update_slice(whole, items.astype(whole.dtype), start)
