"""Calls on JAX like one before: with arrays of the same kinds and shapes, all that a call decides is known.

What is left is to hand the arrays to the compiled program. It saves what a call costs besides its run, which shows
where the run is short. Calls that are watched, piece by piece, in files or within a budget are made in full.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from polyrhythm.compiler.backends.jax.backend import JaxBackend
from polyrhythm.compiler.backends.jax.ops.creation import seed_words
from polyrhythm.compiler.backends.jax.run.placing import cut, padded
from polyrhythm.language.index import Bound
from polyrhythm.runtime.arrays import Kind, kind_of, like
from polyrhythm.runtime.feeding import WINDOW

if TYPE_CHECKING:
    from polyrhythm.runtime.calling import Caller

MOST_KEPT = 100
"""For how many combinations of shapes, and how many seeds, calls are kept."""


def signature(inputs: Mapping[str, Any], bounds: Mapping[Any, int] | None, seed: Any) -> Any:
    """What tells one kind of call from another; None where more than shapes would have to be looked at.

    >>> signature({"x": np.zeros(3)}, {"N": 2}, 0) == signature({"x": np.ones(3)}, {"N": 2}, 1)
    True
    >>> signature({"x": [1.0]}, None, 0) is None
    True
    """
    if type(seed) is not int:
        return None
    parts: list[Any] = []
    for name, value in inputs.items():
        kind = type(value)
        if kind not in _arrays and not _is_array(value):
            return None
        parts += name, kind, value.shape, value.dtype
    for key, bound in bounds.items() if bounds else ():
        if type(bound) is not int or not isinstance(key, (str, Bound)):
            return None
        parts += (key if isinstance(key, str) else key.symbol), bound
    return tuple(parts)


_arrays: set[type] = {np.ndarray}


def _is_array(value: Any) -> bool:
    """Whether a value is an array of JAX, and nothing that stands for one while it traces."""
    found = isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)
    if found:
        _arrays.add(type(value))
    return found


@dataclass
class Repeated:
    """The calls of one program that need not be made in full."""

    caller: Caller
    calls: dict[Any, Call] = field(default_factory=dict)
    seeds: dict[int, jax.Array] = field(default_factory=dict)

    @staticmethod
    def of(caller: Caller) -> Repeated | None:
        """The calls of a program; None if they all have to be made in full."""
        backend, options, loops = caller.backend, caller.program.options, caller.loops
        if type(backend) is not JaxBackend or backend.host or backend.growing is not None:
            return None
        if options.set.check_nan or options.mesh is not None or options.memory_budget is not None:
            return None
        returned = set(loops.outputs) & set(loops.inputs.values())
        return None if caller.compiled.rows is not None or returned else Repeated(caller)

    def run(self, key: Any, inputs: Mapping[str, Any], seed: int) -> Any:
        """The results of a call as one before; None if it has to be made in full."""
        call = self.calls[key]
        program, backend = self.caller.program, self.caller.backend
        compiled = backend.executor.programs.get(call.program)
        same = all(not v.flags.writeable and program.params.get(n) is v for n, v in call.params.items())
        wide = jax.config.jax_enable_x64 == backend.wide  # type: ignore[attr-defined]
        if compiled is None or not same or not wide or program.process != os.getpid():
            return None
        started = perf_counter()
        program.stats.calls += 1
        program.stats.bounds = dict(call.bounds)
        arrays = dict(call.arrays)
        for place, name, index, shape in call.given:
            array = inputs[name] if index is None else backend.part(place, inputs[name], index)
            arrays[place] = array if shape is None else padded(array, shape)
        if seed not in self.seeds:
            if len(self.seeds) >= MOST_KEPT:
                self.seeds.clear()
            self.seeds[seed] = jax.device_put(seed_words(seed))
        outputs, found = compiled(arrays, call.values, self.seeds[seed])
        if found:
            outputs = backend.ended(outputs, call.bounds, found)[0]
        elif call.shapes is not None:
            outputs = [cut(output, shape) for output, shape in zip(outputs, call.shapes, strict=True)]
        if found or call.shapes is not None or call.kind != "jax":
            outputs = [like(call.kind, output) for output in outputs]
        results = program.wanted.rebuild(outputs)
        phases = program.stats.phases
        phases["run"] = phases.get("run", 0.0) + perf_counter() - started
        return results

    signature = staticmethod(signature)

    def keep(self, key: Any, inputs: Mapping[str, Any]) -> None:
        """Let calls like the one just made be made so, if they can."""
        caller, backend, program = self.caller, self.caller.backend, self.caller.program
        bounds = program.stats.bounds
        if jax.device_count() != 1 or not caller.is_short(bounds) or len(self.calls) >= MOST_KEPT:
            return
        for name, value in inputs.items():
            if value.dtype != caller.graph.inputs[name].dtype or (type(value) is np.ndarray and value.nbytes > WINDOW):
                return
        sizes = backend.sizes(bounds)
        executed = ("call", *(sizes.capacities[s] for s in backend.sizing))
        params = {n: program.params[n] for n, _ in backend.inputs.values() if n not in inputs}
        compiled = backend.executor.programs.get(executed)
        made = getattr(compiled, "out_info", None)
        if made is None or any(value.flags.writeable for value in params.values()):
            return
        given = []
        for place, (name, index) in backend.inputs.items():
            if name in inputs:
                array = inputs[name] if index is None else backend.part(place, inputs[name], index)
                given.append((place, name, index, None if array.shape == sizes.inputs[place] else sizes.inputs[place]))
        placed = backend.placed(caller.given({**params, **inputs}), sizes.inputs)
        fixed = {place: placed[place] for place, (name, _) in backend.inputs.items() if name in params}
        whole = [leaf.shape for leaf in made[0]] == sizes.outputs
        self.calls[key] = Call(
            kind_of(inputs.values()),
            dict(bounds),
            executed,
            tuple(given),
            jax.device_put(fixed),
            params,
            jax.device_put(sizes.values),
            None if whole else sizes.outputs,
        )


@dataclass(frozen=True)
class Call:
    """What is known of a call: its bounds, the program it runs, what it is given, and what stays the same."""

    kind: Kind
    bounds: dict[str, int]
    program: tuple[Any, ...]
    given: tuple[tuple[str, str, Any, tuple[int, ...] | None], ...]  # place, input, index of a part, shape if padded
    arrays: dict[str, Any]
    params: dict[str, Any]
    values: jax.Array
    shapes: list[tuple[int, ...]] | None  # of outputs that are cut
