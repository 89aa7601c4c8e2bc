"""Runs whose buffers grow: one XLA program for each capacity, called one after the other (see `loops/growth.py`).

A program for a capacity does what comes before the loop if it is the first, iterations from one to another, and what
comes after the loop once it has ended. It does not depend on how many steps the run has in all, so runs of different
lengths share it: there is one compilation for each power of two. Between two calls the state is copied into larger
arrays: by NumPy on a CPU, since XLA would have to compile that too, elsewhere on the devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from polyrhythm.compiler.backends.jax.ops import Padded
from polyrhythm.compiler.backends.jax.run import watch
from polyrhythm.compiler.backends.jax.run.executor import Advance, Executor, Plan
from polyrhythm.compiler.backends.jax.run.mesh import shaped, spread
from polyrhythm.compiler.backends.jax.run.placing import padded
from polyrhythm.compiler.backends.jax.trace.lowering import Lowering
from polyrhythm.compiler.backends.jax.trace.places import State
from polyrhythm.compiler.backends.jax.trace.spreading import spread_place
from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import TRUE
from polyrhythm.compiler.ir.terms import Symbol, Term, minimum
from polyrhythm.compiler.loops.growth import Growth
from polyrhythm.compiler.loops.ir import For, If, Item, LoopProgram
from polyrhythm.compiler.loops.liveness import live_before, written
from polyrhythm.compiler.loops.units import Unit, units

Arrays = dict[str, jax.Array]
Rooms = dict[str, tuple[int, ...]]


@dataclass
class Growing:
    """Runs one program with one growing loop."""

    program: LoopProgram
    growth: Growth
    executor: Executor
    _rooms: dict[tuple[int, ...], Rooms] = field(default_factory=dict)

    def __post_init__(self) -> None:
        every = units(self.program.body)
        number = self.growth.unit
        self.units = every[:number], every[number], every[number + 1 :]
        self.after = items_of(every[number + 1 :])
        outputs = set(self.program.outputs)
        live = live_before((*self._before(False), *self._main(), *self.after), outputs, self.program) | outputs
        self.state = sorted(n for n in live if self.program.places[n].kind != "input")

    def run(
        self,
        placed: Callable[[Mapping[Symbol, int]], dict[str, Any]],
        bounds: Mapping[str, int],
        capacities: Mapping[Symbol, int],
        seed: np.ndarray,
    ) -> tuple[list[jax.Array], list[int]]:
        """The outputs at capacity, and the bounds found; `placed` gives the inputs at some capacities."""
        growth, program = self.growth, self.program
        slot = watch.current()
        values = np.array([*(bounds[s.name] for s in program.bounds), slot.number], np.int32)
        state: Arrays = {}
        stretches = growth.stretches(bounds, capacities[growth.bound])
        for number, stretch in enumerate(stretches):
            now = {**capacities, growth.bound: stretch.capacity}
            if number:
                state = resized(program, self._rooms_at(now), state)
            inputs, last = placed(now), number == len(stretches) - 1
            before = stretches[number - 1].capacity if number else None
            spans = growth.companion_spans(before, stretch.capacity, bounds, capacities[growth.bound])
            limits = [(span.start, span.stop) for span in spans.values()]
            numbers = (np.array([*limits, (stretch.first, stretch.end)], np.int32), np.bool_(last))
            compiled = self.executor.compiled(self.advance(now, number == 0), (state, inputs, values, seed, *numbers))
            state, found, done = slot.call(compiled, state, inputs, values, seed, *numbers)
            if last or (program.found and bool(done)):
                break
        outputs = [state[name] if name in state else inputs[name] for name in program.outputs]
        return outputs, [int(value) for value in found]

    def _rooms_at(self, capacities: Mapping[Symbol, int]) -> Rooms:
        """The shapes of the state at some capacities; kept for the next call."""
        key = tuple(capacities.values())
        if key not in self._rooms:
            self._rooms[key] = rooms(self.program, capacities, self.state)
        return self._rooms[key]

    def advance(self, capacities: Mapping[Symbol, int], starts: bool) -> Advance:
        """The stretch at some capacities: the first, or one that takes over the state of another."""
        reason = f"{self.growth.bound} up to {capacities[self.growth.bound]}"
        key = "stretch", starts, *capacities.values()
        return Advance(key, partial(self._trace, capacities, starts), capacities, reason, (0,))

    def planned(
        self,
        placed: Callable[[Mapping[Symbol, int]], dict[str, Any]],
        bounds: Mapping[str, int],
        capacities: Mapping[Symbol, int],
    ) -> Plan:
        """What a run allocates: in its last stretch, or when the state moves there; `placed` as in `run`."""
        stretches = self.growth.stretches(bounds, capacities[self.growth.bound])
        chain = [{**capacities, self.growth.bound: stretch.capacity} for stretch in stretches]
        arrays = [{n: shaped(self.program, n, room) for n, room in self._rooms_at(now).items()} for now in chain]
        starts = len(chain) == 1
        numbers = (
            jax.ShapeDtypeStruct((len(self.program.bounds) + 1,), np.int32),
            jax.ShapeDtypeStruct((2,), np.uint32),
            jax.ShapeDtypeStruct((len(self.growth.companions) + 1, 2), np.int32),
            jax.ShapeDtypeStruct((), np.bool_),
        )
        arguments = ({} if starts else arrays[-1], placed(chain[-1]), *numbers)
        found = self.executor.account(self.advance(chain[-1], starts), arguments)
        return Plan(found, 0 if starts else _moving(*arrays[-2:]))

    def _trace(
        self,
        capacities: Mapping[Symbol, int],
        starts: bool,
        state: Arrays,
        inputs: Arrays,
        values: jax.Array,
        seed: jax.Array,
        limits: jax.Array,
        last: jax.Array,
    ) -> tuple[Arrays, list[jax.Array], jax.Array]:
        program = self.program
        lowering = Lowering.of(program, capacities, values, seed)
        loops = (*self.growth.companions.values(), self.growth.loop)
        for number, loop in enumerate(loops):
            begin_at(lowering, loop, limits[number, 0], limits[number, 1], number)
        if starts:
            state = {name: lowering.empty(program.places[name]).array for name in self.state}
        given = lowering.symbols[self.growth.bound]
        places = lowering.stored({**state, **inputs})
        lowering.items((*self._before(starts), *self._main()), places, set(self.state), None)
        done = jnp.bool_(lowering.symbols[self.growth.bound] < given)
        if self.after:
            self._finish(lowering, places, last | done)
        found = [jnp.int32(lowering.symbols[bound]) for bound in program.found]
        return {n: spread_place(lowering, program.places[n], places[n].array) for n in self.state}, found, done

    def _before(self, starts: bool) -> tuple[Item, ...]:
        """What comes before the loop: all of it, or what the companions still have to do."""
        found = []
        numbers = {unit: number for number, unit in enumerate(self.growth.companions)}
        for place, unit in enumerate(self.units[0]):
            if place in numbers:
                found.append(replace(unit, item=some_iterations(self.growth.companions[place], numbers[place])))
            elif starts:
                found.append(unit)
        return items_of(tuple(found))

    def _main(self) -> tuple[Item, ...]:
        """The loop, where it runs at all; what came before it may have ended it already."""
        loop = some_iterations(self.growth.loop, len(self.growth.companions))
        if self.program.found:
            loop = replace(loop, end=minimum(loop.end, self.growth.loop.end))
        return items_of((replace(self.units[1], item=loop),))

    def _finish(self, lowering: Lowering, state: State, ended: jax.Array) -> None:
        """What comes after the loop, once it has ended."""
        outputs = set(self.program.outputs)
        names = sorted(written(self.after) & outputs)

        def finish(arrays: list[jax.Array]) -> list[jax.Array]:
            inner = dict(state)
            inner.update({n: Padded(a, state[n].lengths) for n, a in zip(names, arrays, strict=True)})
            lowering.items(self.after, inner, outputs, None)
            return [inner[name].array for name in names]

        results = lax.cond(ended, finish, lambda arrays: arrays, [state[name].array for name in names])
        state.update({n: Padded(a, state[n].lengths) for n, a in zip(names, results, strict=True)})


def _moving(before: Mapping[str, Any], after: Mapping[str, Any]) -> int:
    """The bytes of a state that moves to larger arrays, one at a time: through NumPy, which has a copy of its own."""
    sizes = [math.prod(array.shape) * array.dtype.itemsize for array in after.values()]
    old = sum(math.prod(array.shape) * array.dtype.itemsize for array in before.values())
    return int(old + sum(sizes) + max(sizes, default=0))


def limits_of(number: int) -> tuple[Symbol, Symbol]:
    """The symbols of the first iteration that a call does of a loop, and of the one after the last."""
    serial = serials.SEGMENT - 2 * number
    return Symbol("first", "bound", serial=serial), Symbol("end", "bound", serial=serial - 1)


def some_iterations(loop: For, number: int = 0) -> For:
    """A loop from one iteration to before another, both given by symbols."""
    first, end = limits_of(number)
    return replace(loop, first=Term.of(first), end=Term.of(end), lanes=loop.lanes and loop.lanes.in_part)


def begin_at(lowering: Lowering, loop: For, first: jax.Array, end: jax.Array, number: int = 0) -> None:
    """Give values to the limits of some iterations of a loop, which lie inside of it."""
    symbols = limits_of(number)
    lowering.symbols.update(zip(symbols, (first, end), strict=True))
    lowering.ranges[symbols[0]] = (loop.first, loop.end - 1)
    lowering.ranges[symbols[1]] = (loop.first, loop.end)


def rooms(program: LoopProgram, capacities: Mapping[Symbol, int], names: Sequence[str]) -> Rooms:
    """The shapes of the arrays that hold places at some capacities."""
    sizes = Lowering(program, capacities, {}, None)
    return {name: sizes.room(program.places[name]) for name in names}


def resized(program: LoopProgram, shapes: Rooms, state: dict[str, Any]) -> Arrays:
    """Places with other shapes, one after the other: what they hold stays, the rest is zeros. `state` is used up."""
    found: dict[str, Any] = {}
    for name, room in shapes.items():
        old = state.pop(name, None)
        if old is None:
            old = np.zeros(room, program.places[name].type.dtype)
        found[name] = padded(old, room)
    return jax.device_put(found) if program.sharding is None else spread(program, found)


def items_of(some: Sequence[Unit]) -> tuple[Item, ...]:
    """Units as items of a program, each under its condition."""
    return tuple(unit.item if unit.condition is TRUE else If(unit.condition, (unit.item,)) for unit in some)
