"""Arrays on the devices of a mesh: inputs, and the state of a run that goes on from call to call.

Capacities of dims that are spread are multiples of the number of devices, so that every device has as much as any
other. With several processes each has some of the devices: an array of NumPy is then the whole array in every process,
of which each device takes its part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from polyrhythm.compiler.backends.jax.run.collectives import collectives
from polyrhythm.compiler.loops.ir import LoopProgram, Place
from polyrhythm.compiler.loops.sharding import spec_of


def sharding_of(program: LoopProgram, place: Place, shape: Sequence[int]) -> NamedSharding:
    """How an array with the axes of a place, in the order in which it keeps them, is spread."""
    assert program.sharding is not None
    spec = spec_of(program, place)
    kept = tuple(spec[axis] for axis in place.axes or range(len(place.whole)))
    parts = program.sharding.dividing(kept, shape)
    return NamedSharding(program.sharding.mesh, PartitionSpec(*(axes or None for axes in parts)))


def shaped(program: LoopProgram, name: str, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """What stands for the array of a place before there is one."""
    place = program.places[name]
    where = None if program.sharding is None else sharding_of(program, place, shape)
    return jax.ShapeDtypeStruct(shape, place.type.dtype, sharding=where)


def put(array: Any, sharding: NamedSharding) -> jax.Array:
    """An array where a sharding wants it; one that is there already is not touched."""
    if isinstance(array, jax.Array):
        if array.sharding.is_equivalent_to(sharding, array.ndim):
            return array
        if array.is_fully_addressable and jax.process_count() > 1:
            array = np.asarray(array)
    if jax.process_count() > 1 and not isinstance(array, jax.Array):
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
    placed: jax.Array = jax.device_put(array, sharding)
    return placed


def told_of_mesh(program: LoopProgram, compiled: Iterable[Any]) -> list[str]:
    """What is spread over a mesh, and the collectives of what has been compiled for it, for people."""
    sharding = program.sharding
    if sharding is None:
        return []
    spread = {dim: chunk.over for dim, chunk in program.chunks.items() if chunk.over}
    lines = [f"{dim} over {', '.join(axes)}: {sharding.ways(axes)} devices" for dim, axes in spread.items()]
    for name, spec in sharding.inputs.items():
        axes = ", ".join(" x ".join(axes) or "-" for axes in spec)
        lines.append(f"{name} over ({axes}): a device has 1/{math.prod(map(sharding.ways, spec))} of it")
    texts = [one.as_text() for one in compiled]
    if not texts:
        return [*lines, "what devices say to each other is known after the first call"]
    counted = Counter(str(one) for text in texts for one in collectives(text, sharding.mesh.size))
    found = [f"{what}{f', {count} times' if count > 1 else ''}" for what, count in counted.items()]
    return [*lines, *(found or ["devices say nothing to each other"])]


def spread(program: LoopProgram, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays of places on their devices; without a mesh they are as they were."""
    if program.sharding is None:
        return dict(arrays)
    places = program.places
    return {name: put(array, sharding_of(program, places[name], array.shape)) for name, array in arrays.items()}
