"""How a program is spread over the devices of a mesh.

A dim that is spread is a schedule choice, *chunks are devices*: its `Chunk` names the axes of the mesh, and the proof
that its steps may run at once is the proof that they may run on different devices. Axes of inputs are spread by
name. Where the values in between lie follows from both, by XLA's propagation: a sharding never changes a result, only
where it is computed. So what is said here is what XLA is told, and nothing else depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from polyrhythm.compiler.ir.ops import record
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.compiler.loops.ir import Local, LoopProgram, Place, blocks_of

Axes = tuple[str, ...]
"""Axes of a mesh that one axis of an array is spread over, outermost first; none if it is not."""

Spec = tuple[Axes, ...]
"""For each axis of an array, what it is spread over."""


@dataclass(frozen=True)
class Sharding:
    """A mesh of devices, which only the backend looks into, and how the arrays of inputs are spread, by name.

    What is `aligned` with an input, as the state of an optimiser is with its parameter, is spread like the shape of it.
    """

    mesh: Any
    inputs: Mapping[str, Spec] = field(default_factory=dict)
    aligned: Mapping[str, Spec] = field(default_factory=dict)

    def ways(self, axes: Axes) -> int:
        """Over how many devices something goes."""
        return math.prod(self.mesh.shape[axis] for axis in axes)

    def dividing(self, spec: Spec, shape: Sequence[int]) -> Spec:
        """What of a spec can be for an array of some shape: every device has as much as any other."""
        return tuple(axes if n and n % self.ways(axes) == 0 else () for axes, n in zip(spec, shape, strict=True))


def spec_of(program: LoopProgram, place: Place) -> Spec:
    """Over what the axes of a place are spread, slots first; an axis of the mesh is used once."""
    spec = [program.chunks[dim].over if dim in program.chunks else () for dim in place.dims]
    spec += [()] * (len(place.whole) - len(spec))
    for axis, axes in enumerate(_given(program, place)):
        spec[axis] = spec[axis] or axes
    assert program.sharding is not None
    name = place.part_of[0] if place.part_of is not None else place.name
    for axis, axes in enumerate(program.sharding.aligned.get(name, ()), len(place.slots)):
        spec[axis] = spec[axis] or axes
    seen: set[str] = set()
    for axis, axes in enumerate(spec):
        spec[axis] = () if seen.intersection(axes) else axes
        seen.update(axes)
    return tuple(spec)


def in_parts(program: LoopProgram, place: Place, axis: int, length: int) -> int:
    """The length of an axis of a place, rounded up so that every device has as much of it where a dim is spread."""
    dim = place.dims[axis] if axis < len(place.dims) else ""
    if program.sharding is None or dim not in program.chunks:
        return length
    ways = program.sharding.ways(program.chunks[dim].over)
    return -(-length // ways) * ways


def _given(program: LoopProgram, place: Place) -> Spec:
    """What the user said of an input; of a part of one, without the axes that are picked."""
    assert program.sharding is not None
    whole, picked = place.part_of or (place.name, (None,) * len(place.slots))
    spec = next((program.sharding.inputs.get(name, ()) for name, at in program.inputs.items() if at == whole), ())
    return tuple(axes for axis, axes in enumerate(spec) if axis >= len(picked) or picked[axis] is None)


def aligned(program: LoopProgram) -> dict[str, Spec]:
    """Over what the shapes of places are spread that elementwise operations connect with an input.

    They have the same shape, and each element meets the one at the same position: whatever is spread otherwise would
    have to move.
    """
    assert program.sharding is not None
    groups: dict[Any, Any] = {}

    def root(of: Any) -> Any:
        while groups.setdefault(of, of) != of:
            of = groups[of]
        return of

    for number, block in enumerate(blocks_of(program.body)):
        types = block.types
        for compute in block.body:
            for operand in compute.operands if record(compute.op).elementwise or compute.op == "copy" else ():
                if isinstance(operand, Local):
                    same, of = types[operand.name].shape == compute.type.shape, (number, operand.name)
                else:
                    one = program.places[operand.place].type.shape == operand.type.shape == compute.type.shape
                    same, of = one, operand.place  # type: ignore[assignment]
                if same:
                    groups[root((number, compute.result))] = root(of)
        for store in block.stores:
            if types[store.value].shape == program.places[store.place].type.shape:
                groups[root((number, store.value))] = root(store.place)
    wanted: dict[Any, tuple[Place, Spec]] = {}
    for name, spec in program.sharding.inputs.items():
        place = program.places.get(program.inputs[name])
        if place is not None:
            wanted.setdefault(root(place.name), (place, spec[len(place.slots) :]))
    found = {}
    for name, place in program.places.items():
        like = wanted.get(root(name))
        if like is not None and place.kind != "input" and place.type.shape == like[0].type.shape:
            found[name] = like[1]
    return found


def ways_of(program: LoopProgram) -> dict[Symbol, int]:
    """The bounds that are the length of a dim which is spread, and over how many devices."""
    found: dict[Symbol, int] = {}
    if program.sharding is None:
        return found
    for place in program.places.values():
        for dim, count in zip(place.dims, place.slots, strict=False):
            over = program.chunks[dim].over if dim in program.chunks else ()
            for bound in count.symbols if over else ():
                found[bound] = math.lcm(found.get(bound, 1), program.sharding.ways(over))
    return found
