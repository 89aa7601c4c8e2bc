"""What XLA is told inside a program of how values are spread over devices: where buffers lie, which lanes go where.

A constraint names the axes that it is about and leaves the others to XLA. Arrays of inputs carry their sharding
already; constraints matter where no input does, as for the environments of an agent.

XLA gathers an axis that is spread where one slot of it is read or stored by an index. So here a slot is picked by
comparing positions: each device looks at its own, a read is a sum of one slot over devices, and a store moves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from polyrhythm.compiler.backends.jax.ops.padded import Padded
from polyrhythm.compiler.backends.jax.ops.ring import Ring
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.loops.ir import Load, Steps
from polyrhythm.compiler.loops.sharding import Axes, Spec, spec_of

if TYPE_CHECKING:
    from polyrhythm.compiler.backends.jax.trace.places import Places
    from polyrhythm.compiler.backends.jax.trace.scope import Scalar
    from polyrhythm.compiler.loops.ir import Compute, For, Place


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


def kept_whole(scope: Places, value: Padded, axes: Iterable[int]) -> Padded:
    """A value that has some axes whole on every device; XLA decides about the others."""
    sharding, whole = scope.program.sharding, {*axes}
    if sharding is None or not whole:
        return value
    named = PartitionSpec(*(None if n in whole else PartitionSpec.UNCONSTRAINED for n in range(value.array.ndim)))
    return replace(value, array=jax.lax.with_sharding_constraint(value.array, NamedSharding(sharding.mesh, named)))


def undivided(scope: Places, compute: Compute) -> tuple[range, ...]:
    """The axes of each operand of an operation, and of its result, that are to be whole on every device.

    Where an image is spread by rows, and its weights in any way, XLA's partitioner adds up parts of all devices, also
    of those that have the same parts because the rows go over fewer. It is right if weights are whole, which costs
    nothing where they lie so, and if rows and columns are. Channels in groups it gives to the wrong groups. The axis of
    a Fourier transform it brings together in a layout that the transform on a CPU does not take.
    """
    rank, none = len(compute.type.shape), range(0)
    if scope.program.sharding is None or compute.op not in ("conv", "fft"):
        return ()
    if compute.op == "fft":
        return range(rank - 1, rank), none
    if compute.attributes["groups"] > 1:
        return range(1, 2), range(rank), range(1, 2)
    weights = compute.operands[1]
    if isinstance(weights, Load) and not any(spec_of(scope.program, scope.program.places[weights.place])):
        return none, range(rank), none
    return range(2, rank), range(2, rank), range(2, rank)


def spread_over(scope: Places, loop: For, count: int) -> Axes:
    """The axes of the mesh that the lanes of a loop go over: none if they do not divide into as many parts."""
    over = _wanted(scope, loop)
    return over if scope.program.sharding is not None and count % scope.program.sharding.ways(over) == 0 else ()


def ways_over(scope: Places, loop: For) -> int:
    """On how many devices the lanes of a loop are to be."""
    return 1 if scope.program.sharding is None else scope.program.sharding.ways(_wanted(scope, loop))


def _wanted(scope: Places, loop: For) -> Axes:
    """What the dim of a loop is spread over, if lanes around it are not."""
    chosen = scope.program.chunks.get(loop.counter.name)
    return () if chosen is None or {*chosen.over} & {*scope.spread} else chosen.over


def spread_lanes(scope: Places, over: Axes, array: jax.Array) -> jax.Array:
    """An array of lanes, which are its first axis, each on its device."""
    return constrained(scope, array, (over, *((),) * (array.ndim - 1)))


def is_spread(scope: Places, place: Place, axis: int) -> bool:
    """Whether an axis of a place lies on several devices, of which lanes do not have one each."""
    sharding = scope.program.sharding
    if sharding is None:
        return False
    axes = spec_of(scope.program, place)[axis]
    return sharding.ways(axes) > 1 and not {*axes} & {*scope.spread}


def ring_of(scope: Places, place: Place, load: Load, left: Sequence[int], shape: Sequence[int]) -> Ring | None:
    """The axis of what lanes read that lies over the devices of the lanes, if they read it from its first slot on.

    `left` are the axes of the place that are read, `shape` the lengths that they have.
    """
    sharding = scope.program.sharding
    if sharding is None or not scope.spread:
        return None
    for axis, over in enumerate(spec_of(scope.program, place)):
        entry = load.index[axis] if axis < len(load.index) else None
        if not isinstance(entry, Steps) or entry.step != 1 or entry.ring is not None or entry.start != Term(0):
            continue
        if over == scope.spread[-len(over) :] and sharding.ways(over) > 1:
            whole = scope.length(place, axis)
            at = left.index(axis)
            return Ring(sharding.mesh, over, at, scope.spread, scope.within) if shape[at] == whole else None
    return None


def picked_from(array: jax.Array, index: Scalar, axis: int) -> jax.Array:
    """One slot of an axis that is spread."""
    here = _at(array.shape, jnp.clip(jnp.int32(index), 0, array.shape[axis] - 1), axis)
    own = jnp.where(here, array, jnp.zeros((), array.dtype))
    return own.any(axis) if array.dtype == jnp.bool_ else own.sum(axis, dtype=array.dtype)


def chosen(old: jax.Array, new: jax.Array, index: Sequence[tuple[int, jax.Array]]) -> jax.Array:
    """An array with other contents at some positions of axes that are spread; along those the new ones have one."""
    here = jnp.bool_(True)
    for axis, at in index:
        here &= _at(old.shape, at, axis)
    return jnp.where(here, new, old)


def _at(shape: tuple[int, ...], index: jax.Array, axis: int) -> jax.Array:
    lengths = [n if number == axis else 1 for number, n in enumerate(shape)]
    return jnp.arange(shape[axis], dtype=jnp.int32).reshape(lengths) == index
