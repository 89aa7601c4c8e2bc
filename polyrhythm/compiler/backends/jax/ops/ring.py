"""Products of what each lane has with an array that is spread over the same devices: its blocks go round in a ring.

In attention over a sequence that is spread, every query meets all keys. Instead of gathering keys and values, each
device multiplies what its lanes have with the block it holds, passes the block on to its neighbour and takes the next
one, as in ring attention (Liu, Zaharia and Abbeel, 2023). At no time does a device hold more than two blocks. Scores
come out whole for the queries of a device; what is summed over the spread axis is added up block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jax.sharding import PartitionSpec

from polyrhythm.compiler.backends.jax.ops.monoids import COMBINE
from polyrhythm.compiler.ir import dtypes

MOST_PAIRS = 1 << 20
"""So many pairs of a lane and a position of a block are there at a time."""

Array = jax.Array
Dimensions = tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]


@dataclass(frozen=True)
class Ring:
    """An axis of an array that lies over axes of a mesh, as the lanes that read it do; lanes go over `every` axis.

    There may be lanes `within` each of these, which are not spread.
    """

    mesh: Any
    over: tuple[str, ...]
    axis: int
    every: tuple[str, ...]
    within: int = 0

    @property
    def devices(self) -> int:
        """How many there are."""
        return int(np.prod([self.mesh.shape[name] for name in self.over]))

    def at(self, axis: int) -> Ring:
        """The same axis at another place."""
        return replace(self, axis=axis)


def can_go_round(ring: Ring | None, y: Array, dimensions: Dimensions) -> bool:
    """Whether blocks of an operand can go round: of equal size, along an axis that is summed or kept."""
    if ring is None or ring.within:
        return False
    return ring.axis not in dimensions[1][1] and y.shape[ring.axis] % ring.devices == 0


def product(x: Array, y: Array, dimensions: Dimensions, wide: Any, ring: Ring) -> Array:
    """The product of what a lane has and of what all lanes share, which is spread."""

    def some(x: Array, y: Array, first: Array | int) -> Array:
        return lax.dot_general(x, y, dimensions, preferred_element_type=wide)

    return _round(some, dimensions, ring, lambda one, *lanes: jax.vmap(one)(*lanes))(x, y)


def masked_product(
    x: Array, y: Array, length: Array | int, masked: int, dimensions: Dimensions, wide: Any, ring: Ring
) -> Array:
    """The same with zeros beyond a length of an axis of the shared operand; lanes are done one after the other."""

    def some(x: Array, y: Array, first: Array | int, length: Array) -> Array:
        positions = jnp.arange(y.shape[masked], dtype=jnp.int32) + (first if masked == ring.axis else 0)
        inside = positions.reshape([-1 if axis == masked else 1 for axis in range(y.ndim)]) < length
        return lax.dot_general(x, jnp.where(inside, y, 0), dimensions, preferred_element_type=wide)

    return _round(some, dimensions, ring, lambda one, *lanes: lax.map(lambda lane: one(*lane), lanes))(
        x, y, jnp.int32(length)
    )


def _round(
    some: Callable[..., Array], dimensions: Dimensions, ring: Ring, lanes: Callable[..., Array]
) -> Callable[..., Array]:
    """A function of a lane's operand, the shared one and more of the lane's, done block by block for all lanes.

    `some` is the function for a block of the shared operand, given where that begins.
    """
    wrapped = custom_vmap(lambda x, y, *more: some(x, y, 0, *more))

    @wrapped.def_vmap
    def mapped(size: int, batched: Any, x: Array, y: Array, *more: Array) -> tuple[Array, bool]:
        if batched[1] or not batched[0] or size % ring.devices:
            axes = tuple(0 if own else None for own in batched)
            return jax.vmap(lambda x, y, *more: some(x, y, 0, *more), axes)(x, y, *more), True
        pairs = zip(more, batched[2:], strict=True)
        own = [lane if is_own else jnp.broadcast_to(lane, (size, *lane.shape)) for lane, is_own in pairs]
        lane, block = PartitionSpec(ring.over), PartitionSpec(*(None,) * ring.axis, ring.over)
        going = jax.shard_map(
            _local(some, dimensions, ring, lanes),
            mesh=ring.mesh,
            in_specs=(lane, block, *(lane for _ in own)),
            out_specs=lane,
            axis_names=set(ring.every),
            check_vma=False,
        )
        return going(x, y, *own), True

    return wrapped


def _local(
    some: Callable[..., Array], dimensions: Dimensions, ring: Ring, lanes: Callable[..., Array]
) -> Callable[..., Array]:
    """What one device does, with its lanes first in every operand but the shared one."""
    (summed_x, summed_y), (batch, _) = dimensions
    count, passing = ring.devices, [((device + 1) % ring.devices, device) for device in range(ring.devices)]
    contracted = summed_x[summed_y.index(ring.axis)] + 1 if ring.axis in summed_y else None

    def local(x: Array, y: Array, *more: Array) -> Array:
        here, length = lax.axis_index(ring.over), y.shape[ring.axis]
        free_y = [axis for axis in range(y.ndim) if axis not in summed_y and axis not in dimensions[1][1]]
        free_x = x.ndim - 1 - len(summed_x) - len(batch)
        kept = None if contracted is not None else 1 + len(batch) + free_x + free_y.index(ring.axis)

        def made(turn: Array | int, block: Array) -> tuple[Array, Array]:
            first = (here + turn) % count * length
            own = x if contracted is None else lax.dynamic_slice_in_dim(x, first, length, contracted)
            return lanes(lambda x, *more: some(x, block, first, *more), own, *more), first

        def step(turn: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            block, total = carry
            part, first = made(turn, block)
            if kept is None:
                total = total + part
            else:
                total = lax.dynamic_update_slice_in_dim(total, part, first, kept)
            return lax.ppermute(block, ring.over, passing), total

        shape = jax.eval_shape(lambda: made(0, y)[0])
        sizes = [n * count if axis == kept else n for axis, n in enumerate(shape.shape)]
        total: Array = lax.fori_loop(0, count, step, (y, jnp.zeros(sizes, shape.dtype)))[1]
        return total

    return local


def folded_round(
    piece: Callable[..., list[Array]],
    given: Sequence[Array],
    held: Sequence[Array],
    axes: Sequence[int],
    monoids: Sequence[str],
    ring: Ring,
    combine: Callable[[list[Array], list[Array]], list[Array]] | None = None,
) -> list[Array]:
    """What `piece` makes of blocks of some arrays, combined over all blocks; for all lanes together in a ring.

    `piece(first, given, held)` is given where the blocks begin, what a lane has, and a block of each array along its
    axis. What lanes do not differ in is on every device. Blocks are combined by the monoids, or by `combine`, for which
    these only say what a sum or a maximum of nothing is.
    """
    wrapped = custom_vmap(lambda given, held: piece(np.int32(0), given, held))
    passing = [((device + 1) % ring.devices, device) for device in range(ring.devices)]

    @wrapped.def_vmap
    def mapped(size: int, batched: Any, given: list[Array], held: list[Array]) -> tuple[list[Array], list[bool]]:
        lanes = [0 if own else None for own in batched[0]]
        out = [True] * len(monoids)
        if ring.within:
            shared = [0 if own else None for own in batched[1]]
            further = [axis + own for axis, own in zip(axes, batched[1], strict=True)]

            def inner(first: Any, given: Sequence[Array], held: Sequence[Array]) -> list[Array]:
                return jax.vmap(partial(piece, first), (lanes, shared))(list(given), list(held))

            merge = None if combine is None else jax.vmap(combine)
            return folded_round(inner, given, held, further, monoids, replace(ring, within=ring.within - 1), merge), out
        if any(batched[1]) or size % ring.devices:
            shared = [0 if own else None for own in batched[1]]
            return jax.vmap(lambda given, held: piece(np.int32(0), given, held), (lanes, shared))(given, held), out

        def local(given: list[Array], held: list[Array]) -> list[Array]:
            here, length = lax.axis_index(ring.over), held[0].shape[axes[0]]

            def made(turn: Array | int, blocks: list[Array]) -> list[Array]:
                first = (here + turn) % ring.devices * length
                return _in_chunks(lambda *own: piece(first, own, blocks), lanes, given, MOST_PAIRS // max(1, length))

            def step(turn: Array, carry: tuple[list[Array], list[Array]]) -> tuple[list[Array], list[Array]]:
                blocks, totals = carry
                parts = made(turn, blocks)
                if combine is not None:
                    totals = jax.vmap(combine)(totals, parts)
                else:
                    pairs = zip(monoids, totals, parts, strict=True)
                    totals = [COMBINE[monoid](total, part) for monoid, total, part in pairs]
                return [lax.ppermute(block, ring.over, passing) for block in blocks], totals

            shapes = jax.eval_shape(lambda: made(0, held))
            starts = [jnp.full(s.shape, dtypes.identity(m, s.dtype)) for m, s in zip(monoids, shapes, strict=True)]
            totals: list[Array] = lax.fori_loop(0, ring.devices, step, (held, starts))[1]
            return totals

        lane, every = PartitionSpec(ring.over), PartitionSpec()
        blocks = [PartitionSpec(*(None,) * axis, ring.over) for axis in axes]
        going = jax.shard_map(
            local,
            mesh=ring.mesh,
            in_specs=([lane if own else every for own in batched[0]], blocks),
            out_specs=[lane] * len(monoids),
            axis_names=set(ring.every),
            check_vma=False,
        )
        return going(list(given), list(held)), out

    found: list[Array] = wrapped(list(given), list(held))
    return found


def _in_chunks(
    one: Callable[..., list[Array]], lanes: Sequence[int | None], given: Sequence[Array], chunk: int
) -> list[Array]:
    """What lanes make, so many at a time: what they make on the way is there for these alone."""
    own = [array for array, lane in zip(given, lanes, strict=True) if lane is not None]

    def of(parts: list[Array]) -> list[Array]:
        rest = iter(parts)
        return one(*(next(rest) if lane is not None else array for array, lane in zip(given, lanes, strict=True)))

    found: list[Array] = lax.map(of, own, batch_size=max(1, chunk)) if len(own[0]) > chunk else jax.vmap(of)(own)
    return found
