"""What XLA is told inside a program of how values are spread over devices: where buffers lie, which lanes go where.

A constraint names the axes that it is about and leaves the others to XLA. Arrays of inputs carry their sharding
already; constraints matter where no input does, as for the environments of an agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
from jax.sharding import NamedSharding, PartitionSpec

from polyrhythm.compiler.loops.sharding import Axes, Spec, spec_of

if TYPE_CHECKING:
    from polyrhythm.compiler.backends.jax.trace.places import Places
    from polyrhythm.compiler.loops.ir import For, Place


def spread_place(scope: Places, place: Place, array: jax.Array) -> jax.Array:
    """The array of a place, spread as the place is."""
    if scope.program.sharding is None:
        return array
    spec = spec_of(scope.program, place)
    return constrained(scope, array, tuple(spec[axis] for axis in scope.order(place)))


def constrained(scope: Places, array: jax.Array, spec: Spec) -> jax.Array:
    """An array with some of its axes spread; those that cannot be, or that lanes go over already, are left out."""
    sharding = scope.program.sharding
    assert sharding is not None
    wanted = [() if {*axes} & {*scope.spread} else axes for axes in sharding.dividing(spec, array.shape)]
    if not any(wanted):
        return array
    named = PartitionSpec(*(axes or PartitionSpec.UNCONSTRAINED for axes in wanted))
    found: jax.Array = jax.lax.with_sharding_constraint(array, NamedSharding(sharding.mesh, named))
    return found


def spread_over(scope: Places, loop: For, count: int) -> Axes:
    """The axes of the mesh that the lanes of a loop go over: none if they do not divide into as many parts."""
    sharding, chosen = scope.program.sharding, scope.program.chunks.get(loop.counter.name)
    if sharding is None or chosen is None or {*chosen.over} & {*scope.spread}:
        return ()
    return chosen.over if chosen.over and count % sharding.ways(chosen.over) == 0 else ()


def spread_lanes(scope: Places, over: Axes, array: jax.Array) -> jax.Array:
    """An array of lanes, which are its first axis, each on its device."""
    return constrained(scope, array, (over, *((),) * (array.ndim - 1)))
