"""The JAX backend: one XLA program per set of capacities."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np

from polyrhythm.compiler.analysis.calls import check_found
from polyrhythm.compiler.backends.jax.ops.creation import seed_words
from polyrhythm.compiler.backends.jax.products import kernel
from polyrhythm.compiler.backends.jax.run import watch
from polyrhythm.compiler.backends.jax.run.executables import no_cache
from polyrhythm.compiler.backends.jax.run.executor import Advance, Compilation, Executor, Plan
from polyrhythm.compiler.backends.jax.run.growing import Growing
from polyrhythm.compiler.backends.jax.run.host_driver import Driver
from polyrhythm.compiler.backends.jax.run.host_regions import has_host
from polyrhythm.compiler.backends.jax.run.mesh import put, shaped, sharding_of, spread, told_of_mesh
from polyrhythm.compiler.backends.jax.run.placing import automatic, capacity, cut, padded, precision
from polyrhythm.compiler.backends.jax.run.placing import part as part_of
from polyrhythm.compiler.backends.jax.run.small_loops import compile_lowered
from polyrhythm.compiler.backends.jax.run.stepping import Stepper
from polyrhythm.compiler.backends.jax.target import compiler_options, lowering_for
from polyrhythm.compiler.backends.jax.trace.lowering import Lowering
from polyrhythm.compiler.backends.jax.trace.scope import sizing_bounds
from polyrhythm.compiler.backends.libraries import check_libraries
from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.intervals import most
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.compiler.loops.ir import LoopProgram, blocks_of, output_shapes
from polyrhythm.compiler.loops.sharding import in_parts, ways_of


@dataclass(frozen=True)
class Sizes:
    """What follows from the bounds of a call: capacities, the shapes of inputs at capacity, the cut outputs."""

    capacities: dict[Symbol, int]
    inputs: dict[str, tuple[int, ...]]
    values: np.ndarray
    outputs: list[tuple[int, ...]]
    ended: dict[tuple[int, ...], list[tuple[int, ...]]] = field(default_factory=dict)  # outputs by the bounds found


MOST_SIZES = 1000
"""For how many different bounds the sizes are kept."""


@dataclass
class JaxBackend:
    """Runs a Loop IR program as XLA programs; `shorter` is what it was written out from."""

    program: LoopProgram
    compilations: list[Compilation] = field(default_factory=list)
    shorter: LoopProgram | None = None

    def __post_init__(self) -> None:
        check_libraries(self.program, "jax")
        self.inputs = input_places(self.program)
        self.sizing = sorted(sizing_bounds(self.program), key=lambda s: s.name)
        self.others = [s for s in self.program.bounds if s not in self.sizing]
        self.wide = _needs_wide(self.program)
        self.ways = ways_of(self.program)
        self.host = has_host(self.program.body)
        self.growth = self.program.growth
        self.executor = Executor(self.program, self.compilations, self.shorter)
        self.growing = Growing(self.program, self.growth, self.executor) if self.growth is not None else None
        self.stepper = Stepper(self)
        self._drivers: dict[tuple[int, ...], Driver] = {}
        self._known_sizes: dict[tuple[int, ...], Sizes] = {}
        self._parts: dict[str, tuple[weakref.ref[Any], jax.Array]] = {}

    def run(self, inputs: Mapping[str, Any], bounds: Mapping[str, int], seed: int) -> tuple[list[Any], dict[str, int]]:
        """The outputs, and the bounds found while running."""
        sizes = self.sizes(bounds)
        with precision(self.wide):
            if self.growing is not None and self.host and self._stretches(bounds, sizes.capacities) > 1:
                run, positions = self.stepper.start(inputs, bounds, seed, lambda unit: None)
                deque(positions, maxlen=0)
                return self._whole(run.outputs, bounds, run.found), dict(run.found)
            if self.growing is not None and not self.host:

                def place(now: Mapping[Symbol, int]) -> dict[str, Any]:
                    return self.placed(inputs, self.input_shapes(now))

                outputs, values = self.growing.run(place, bounds, sizes.capacities, seed_words(seed))
                ended = {s.name: value for s, value in zip(self.program.found, values, strict=True)}
                return self._whole(outputs, bounds, ended), ended
            arrays = self.placed(inputs, sizes.inputs)
            if self.host:
                given_bounds = {s: bounds[s.name] for s in self.program.bounds}
                placed = jax.device_put(arrays)
                outputs, ends = self._driver(sizes.capacities).run(placed, given_bounds, seed_words(seed))
                ended = {s.name: value for s, value in ends.items()}
            else:
                compiled = self._compile(sizes.capacities, arrays)
                arguments = (arrays, with_slot(sizes.values), seed_words(seed))
                outputs, found = watch.current().call(compiled, *arguments)
                return self.ended(outputs, bounds, found)
        return self._whole(outputs, bounds, ended), ended

    def ended(
        self, outputs: Sequence[Any], bounds: Mapping[str, int], found: Sequence[Any]
    ) -> tuple[list[Any], dict[str, int]]:
        """The outputs at their lengths, and the bounds found while running."""
        ended = {s.name: int(value) for s, value in zip(self.program.found, found, strict=True)}
        return self._whole(outputs, bounds, ended), ended

    def _stretches(self, bounds: Mapping[str, int], capacities: Mapping[Symbol, int]) -> int:
        """How many times the buffers of a run have another size."""
        return 0 if self.growth is None else len(self.growth.stretches(bounds, capacities[self.growth.bound]))

    def _whole(self, outputs: Sequence[Any], bounds: Mapping[str, int], ended: Mapping[str, int]) -> list[Any]:
        """The outputs at their lengths."""
        for bound in ended:
            check_found(self.program.bounds, {**bounds, **ended}, bound)
        sizes, key = self.sizes(bounds), tuple(ended.values())
        if key and key not in sizes.ended:
            if len(sizes.ended) >= MOST_SIZES:
                sizes.ended.clear()
            sizes.ended[key] = output_shapes(self.program, {**bounds, **ended})
        shapes = sizes.ended[key] if key else sizes.outputs
        return [cut(o, shape) for o, shape in zip(outputs, shapes, strict=True)]

    def kernels(self) -> list[str]:
        """What code of our own there is for the products of a program, or why not, for `program.explain()`."""
        computes = (compute for block in blocks_of(self.program.body) for compute in block.body)
        products = (c for c in computes if c.op == "einsum" and len(c.operands) == 2)
        if jax.default_backend() != "cpu" or not any(dtypes.is_float(c.type.dtype) for c in products):
            return []
        why = kernel.missing()
        if why is not None:
            return [f"products are left to XLA, those of few rows too: {why}"]
        return [f"products of up to {kernel.MOST_ROWS} rows with large matrices: {kernel.SOURCE}"]

    def devices(self) -> list[str]:
        """What is spread over which devices, and what they say to each other, for `program.explain()`."""
        return told_of_mesh(self.program, self.executor.programs.values())

    def input_shapes(self, capacities: Mapping[Symbol, int]) -> dict[str, tuple[int, ...]]:
        """The shape of every place of an input at given capacities."""
        places = (self.program.places[name] for name in self.inputs)
        return {
            place.name: tuple(
                in_parts(self.program, place, axis, most(n, capacities)) for axis, n in enumerate(place.whole)
            )
            for place in places
        }

    def placed(self, inputs: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """The contents of every place of an input, at shapes that may be smaller or larger."""
        arrays = {}
        for name, (given, index) in self.inputs.items():
            array = inputs[given] if index is None else self.part(name, inputs[given], index)
            arrays[name] = padded(automatic(array), shapes[name])
        return spread(self.program, arrays)

    def kept(self, name: str, array: Any) -> Any:
        """A parameter where the program computes, so that it is moved there once."""
        if dtypes.is_wide(array.dtype):
            return array
        place = self.program.places.get(self.program.inputs[name])
        if self.program.sharding is None or place is None:
            return jax.device_put(array)
        return put(array, sharding_of(self.program, place, array.shape))

    def capacities(self, bounds: Mapping[str, int]) -> dict[Symbol, int]:
        """The capacity of each bound that sizes something: of a dim on several devices, the same on each."""

        values = ((s, bounds[s.name], self.ways.get(s, 1)) for s in self.sizing)
        return {s: capacity(value) if ways == 1 else -(-value // ways) * ways for s, value, ways in values}

    def part(self, name: str, array: Any, index: tuple[int | slice, ...]) -> Any:
        """Some slots of an input; those of an array that cannot change are kept for the next call."""
        if not isinstance(array, jax.Array):
            return array[index]
        known = self._parts.get(name)
        if known is None or known[0]() is not array:
            self._parts[name] = known = (weakref.ref(array), part_of(automatic(array), index))
        return known[1]

    def sizes(self, bounds: Mapping[str, int]) -> Sizes:
        """What follows from the bounds; kept for the next call."""
        key = tuple(bounds[s.name] for s in self.program.bounds)
        if key not in self._known_sizes:
            if len(self._known_sizes) >= MOST_SIZES:
                self._known_sizes.clear()
            capacities = self.capacities(bounds)
            shapes = self.input_shapes(capacities)
            values = np.array((*key, 0), np.int32)
            self._known_sizes[key] = Sizes(capacities, shapes, values, output_shapes(self.program, bounds))
        return self._known_sizes[key]

    def _driver(self, capacities: Mapping[Symbol, int]) -> Driver:
        key = tuple(capacities[s] for s in self.sizing)
        if key not in self._drivers:
            self._drivers[key] = Driver(self.program, capacities, self.executor)
        return self._drivers[key]

    def _compile(self, capacities: Mapping[Symbol, int], inputs: Mapping[str, Any]) -> Any:
        key = ("call", *(capacities[s] for s in self.sizing))
        known = self.executor.known(key, inputs)
        return known if known is not None else self.executor.compiled(*self._advance(capacities, inputs))

    def _advance(self, capacities: Mapping[Symbol, int], inputs: Mapping[str, Any]) -> tuple[Advance, tuple[Any, ...]]:
        """A call at some capacities, and its arguments."""
        names = {s.name: n for s, n in capacities.items()}
        reason = "first call" if not self.compilations else f"new capacities {names}"
        trace, arguments = self._call(capacities, inputs)
        return Advance(("call", *(capacities[s] for s in self.sizing)), trace, capacities, reason), arguments

    def _call(self, capacities: Mapping[Symbol, int], inputs: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...]]:
        """What is traced for a call, and with which arguments."""
        words = jax.ShapeDtypeStruct((2,), np.uint32)
        values = jax.ShapeDtypeStruct((len(self.program.bounds) + 1,), np.int32)
        return partial(self._trace, capacities), (dict(inputs), values, words)

    def planned(self, bounds: Mapping[str, int]) -> Plan:
        """What a call at some bounds allocates at most: of its XLA programs the one that needs most."""
        capacities = self.capacities(bounds)

        def inputs(now: Mapping[Symbol, int]) -> dict[str, Any]:
            return {name: shaped(self.program, name, shape) for name, shape in self.input_shapes(now).items()}

        with precision(self.wide):
            if self.host:
                return Plan(self._driver(capacities).planned())
            if self.growing is not None:
                return self.growing.planned(inputs, bounds, capacities)
            return Plan(self.executor.account(*self._advance(capacities, inputs(capacities))))

    def lowered(self, capacities: Mapping[Symbol, int]) -> Any:
        """What a call at some capacities becomes, as JAX lowers it for this machine."""
        with precision(self.wide), lowering_for(precision=self.program.precision):
            trace, arguments = self._shaped(capacities)
            return jax.jit(trace, compiler_options=compiler_options()).lower(*arguments)

    def executable(self, capacities: Mapping[Symbol, int]) -> Any:
        """A call at some capacities compiled for this machine, to be pickled, and whether it calls our own kernel."""
        from jax.experimental import serialize_executable

        with no_cache():
            lowered = self.lowered(capacities)
            return serialize_executable.serialize(compile_lowered(lowered)), "@polyrhythm_" in lowered.as_text()

    def exported(self, capacities: Mapping[Symbol, int], platforms: Sequence[str]) -> Any:
        """The same for other platforms."""
        from jax import export

        with precision(self.wide), lowering_for(platforms, self.program.precision):
            trace, arguments = self._shaped(capacities)
            return export.export(jax.jit(trace), platforms=platforms)(*arguments)

    def _shaped(self, capacities: Mapping[Symbol, int]) -> tuple[Any, tuple[Any, ...]]:
        """A call that nobody watches, before there are arrays."""
        inputs = {n: shaped(self.program, n, shape) for n, shape in self.input_shapes(capacities).items()}
        trace, (_, _, words) = self._call(capacities, inputs)
        values = jax.ShapeDtypeStruct((len(self.program.bounds),), np.int32)
        return trace, (inputs, values, words)

    def _trace(
        self, capacities: Mapping[Symbol, int], inputs: Mapping[str, jax.Array], values: jax.Array, seed: jax.Array
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        return Lowering.of(self.program, capacities, values, seed).run(inputs)


def with_slot(values: np.ndarray) -> np.ndarray:
    """The bounds of a call with the slot in which it reports how far it is, the last of them."""
    number = watch.current().number
    if number:
        values = values.copy()
        values[-1] = number
    return values


def input_places(program: LoopProgram) -> dict[str, tuple[str, tuple[int | slice, ...] | None]]:
    """For each place that holds an input, or a part of one: the input, and the index of the part."""
    given = {place: name for name, place in program.inputs.items()}
    used = {load.place for block in blocks_of(program.body) for load in block.loads}
    found: dict[str, tuple[str, tuple[int | slice, ...] | None]] = {}
    for name, place in program.places.items():
        if place.kind == "input" and place.part_of is not None:
            whole, picked = place.part_of
            found[name] = given[whole], tuple(slice(None) if slot is None else slot for slot in picked)
        elif place.kind == "input" and (name in used or name in program.outputs):
            found[name] = given[name], None
    return found


def _needs_wide(program: LoopProgram) -> bool:
    """Whether any value has 64-bit elements."""
    kinds = [place.type.dtype for place in program.places.values()]
    kinds += [compute.type.dtype for block in blocks_of(program.body) for compute in block.body]
    return any(map(dtypes.is_wide, kinds))
