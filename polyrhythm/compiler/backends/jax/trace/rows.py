"""Lanes that are rows of different lengths: a few of similar length at a time, each chunk only as long as its rows.

The rows are ordered by their lengths. A chunk of them runs the body of the loop with the bound of the longest row at
what its own rows need, and with arrays for no more than that: XLA needs static shapes, so there is one body for each of
a few capacities, half as large each. Chunks of one capacity follow each other, so each capacity is one loop. What a
chunk makes is stored in the part of its rows that it computes; beyond that a place has zeros, which `loops/rows.py`
says is enough. Work is in proportion to the sum of the lengths, up to a chunk and a capacity.

Where rows are alike that gains nothing: all lanes then run together as in any other loop, which is chosen by the
lengths of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from polyrhythm.compiler.backends.jax import ops
from polyrhythm.compiler.backends.jax.ops import Padded
from polyrhythm.compiler.backends.jax.trace.lanes import chunk_of, run_lanes, together
from polyrhythm.compiler.backends.jax.trace.views import Cut, Views, view
from polyrhythm.compiler.backends.jax.trace.work import work_of
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.terms import ZERO, Symbol, Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.loops.ir import Compute, For, Load, Place, Rows, Steps, blocks_of, walk
from polyrhythm.compiler.ragged.independence import MARGIN

if TYPE_CHECKING:
    from polyrhythm.compiler.backends.jax.trace.lowering import Lowering
    from polyrhythm.compiler.backends.jax.trace.places import State
    from polyrhythm.compiler.backends.jax.trace.scope import Scalar

Values = Any
"""What a loop carries."""

CAPACITIES = 5
"""For how many capacities a body is compiled at most: the longest row's, half of it, and so on."""

LEAST_SUMMED = 64
"""The capacity from which on a contraction over rows goes row by row."""

LEAST = 16
"""The least of them."""

POSITIONS = 2048
"""How many steps of rows run at once, at least: enough for an operation to be worth its launch."""

SEQUENTIAL_ROWS = 16
"""How many rows go through a recurrence together, at least."""

SHARE = 0.75
"""Chunks of rows run only if they compute at most this share of what all rows at the longest would."""


CACHES = 2
"""Chunks of rows also run where all rows together move more than so many times the cache."""


def is_tiled(lowering: Lowering, loop: For, lanes: Views, first: Scalar, mask: jax.Array | None) -> bool:
    """Whether the rows of a loop can run in chunks here, and there are enough of them."""
    rows = loop.rows
    if rows is None or mask is not None or lowering.lanes or lowering.program.sharding is not None:
        return False
    if not isinstance(first, int) or first != 0 or lowering.program.chunks.get(loop.counter.name) is not None:
        return False
    if rows.bound not in lowering.capacities or isinstance(lowering.symbols[rows.bound], int):
        return False
    count = lowering.capacity(loop.end - loop.first)
    plain = not any(cut.ring for cut in (*lanes.read, *lanes.written))
    touched = {load.place for block in blocks_of(loop.body) for load in block.loads} | {c.place for c in lanes.written}
    chunk = _rows_at_once(lowering, loop, rows)
    fits = count % chunk == 0 and chunk < count and lowering.capacities[rows.bound] > LEAST
    return plain and fits and lowering.apart.keys().isdisjoint(touched)


def _rows_at_once(lowering: Lowering, loop: For, rows: Rows) -> int:
    """How many rows run together: enough to make the operations large."""
    count = lowering.capacity(loop.end - loop.first)
    steps = max(1, lowering.capacities[rows.bound])
    least = max(1, POSITIONS // steps)
    if any(isinstance(item, For) and item.lanes is None for item in walk(loop.body)):
        least = max(SEQUENTIAL_ROWS, count // 8)
    return 1 << (least - 1).bit_length()


def run_rows(lowering: Lowering, loop: For, lanes: Views, state: State, inside: tuple[Scalar, Scalar]) -> None:
    """Run the rows of a loop in chunks of similar length where the lengths differ enough, else all together."""
    rows = loop.rows
    assert rows is not None
    for cut in (*lanes.read, *lanes.written):
        if cut.place not in state:
            state[cut.place] = lowering.empty(lowering.program.places[cut.place])
    names = list(dict.fromkeys(cut.place for cut in lanes.written))
    kept = {name: state[name].lengths for name in names}
    count, chunk = lowering.capacity(loop.end - loop.first), _rows_at_once(lowering, loop, rows)
    end = jnp.int32(inside[1])
    chunks = _chunks(lowering, rows.bound, lowering.load(_all(rows, loop.end), state).array, count, end, chunk)
    work = work_of(lowering, loop)
    # What is larger than the cache is faster in chunks, whatever the lengths.
    fewer = chunks.fewer | (work.own * count > CACHES * lowering.program.machine.cache)

    def body(capacity: int, part: jax.Array, values: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        inner = dict(state)
        inner.update({n: Padded(v, kept[n]) for n, v in zip(names, values, strict=True)})
        ids = lax.dynamic_slice_in_dim(chunks.order, part * chunk, chunk)
        _run_some(lowering, loop, lanes, inner, ids, ids < end, capacity, chunks.longest[part])
        return tuple(inner[name].array for name in names)

    def tiled(values: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        made: tuple[jax.Array, ...] = chunks.run(lowering.capacities[rows.bound], body, values)
        return made

    def at_the_longest(values: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        inner = dict(state)
        inner.update({n: Padded(v, kept[n]) for n, v in zip(names, values, strict=True)})
        alone = replace(lowering, symbols=dict(lowering.symbols), ranges=dict(lowering.ranges), settled=set())
        run_lanes(alone, loop, lanes, inner, inside, chunk_of(alone, loop), True)
        return tuple(inner[name].array for name in names)

    results = lax.cond(fewer, tiled, at_the_longest, tuple(state[name].array for name in names))
    for name, array in zip(names, results, strict=True):
        state[name] = Padded(array, kept[name])
        lowering.settled.discard(name)


@dataclass(frozen=True)
class _Chunks:
    """Rows in the order of their lengths, how long each chunk of them is, and whether that is little enough."""

    order: jax.Array
    longest: jax.Array
    there: jax.Array
    fewer: jax.Array

    def run(self, most: int, body: Callable[[int, jax.Array, Values], Values], values: Values) -> Values:
        """Every chunk, those of one capacity in one loop."""
        begin = jnp.int32(0)
        capacities = _capacities(most)
        for capacity, less in zip(capacities, [*capacities[1:], -MARGIN], strict=True):
            until = jnp.maximum(begin, jnp.sum(self.there & (self.longest > less)).astype(jnp.int32))
            values = lax.fori_loop(begin, until, partial(body, capacity), values)
            begin = until
        return values


def _chunks(lowering: Lowering, bound: Symbol, lengths: jax.Array, count: int, end: jax.Array, chunk: int) -> _Chunks:
    lengths = jnp.where(jnp.arange(count, dtype=jnp.int32) < end, lengths[:count].astype(jnp.int32), -1)
    order = jnp.argsort(-lengths).astype(jnp.int32)
    # Some steps more than the longest row of a chunk, so that no row ends at the last step of all.
    longest = jnp.minimum(lengths[order[::chunk]] + MARGIN, jnp.int32(lowering.symbols[bound]))
    there = jnp.arange(0, count, chunk, dtype=jnp.int32) < end
    # In floating point: a product of lengths may exceed an int32.
    steps = jnp.sum(jnp.where(there, longest, 0).astype(jnp.float32)) * chunk
    whole = end.astype(jnp.float32) * jnp.int32(lowering.symbols[bound]).astype(jnp.float32)
    return _Chunks(order, longest, there, steps < SHARE * whole)


def _all(rows: Rows, count: Term) -> Load:
    """A read of all lengths."""
    return replace(rows.lengths, index=(Steps(ZERO, count),), type=TensorType((count,), rows.lengths.type.dtype))


def is_summed(lowering: Lowering, compute: Compute, operands: Sequence[Padded]) -> bool:
    """Whether a contraction over rows can go row by row here, and they are long enough."""
    rows = compute.rows
    assert rows is not None
    plain = not any(o.starts or o.packed is not None or o.ring is not None for o in operands)
    known = rows.bound not in lowering.capacities or isinstance(lowering.symbols[rows.bound], int)
    if lowering.lanes or lowering.program.sharding is not None or known or not plain:
        return False
    return lowering.capacities[rows.bound] >= LEAST_SUMMED and compute.type.dtype.itemsize >= 4


def row_sum(
    lowering: Lowering, compute: Compute, operands: Sequence[Padded], state: State, whole: Callable[[], Padded]
) -> Padded:
    """A contraction over rows and their steps, row by row where their lengths differ enough."""
    rows = compute.rows
    assert rows is not None
    words, output = parse_spec(compute.attributes["spec"])
    own = [word.index(rows.label) for word in words]
    spec = ",".join(word.replace(rows.label, "") for word in words) + "->" + output
    count, end = operands[0].array.shape[own[0]], jnp.int32(operands[0].lengths[own[0]])
    chunks = _chunks(lowering, rows.bound, lowering.load(rows.lengths, state).array, count, end, 1)
    shape = compute.type.shape
    room, sizes = tuple(lowering.capacity(n) for n in shape), lowering.lengths(shape)

    def one(capacity: int, number: jax.Array, total: jax.Array) -> jax.Array:
        short = _shortened(lowering, rows.bound, capacity, chunks.longest[number])
        read = []
        for axis, given, operand in zip(own, operands, compute.operands, strict=True):
            assert isinstance(operand, Load)
            rest = [n for at, n in enumerate(operand.type.shape) if at != axis]
            part = [1 if at == axis else short.capacity(n) for at, n in enumerate(operand.type.shape)]
            start = [chunks.order[number] if at == axis else jnp.int32(0) for at in range(len(part))]
            row = lax.squeeze(lax.dynamic_slice(given.array, start, part), [axis])
            read.append(Padded(row, short.lengths(rest)))
        return total + ops.apply("einsum", read, {"spec": spec}, room, sizes, compute.type.dtype).array

    def by_row() -> jax.Array:
        total: jax.Array = chunks.run(lowering.capacities[rows.bound], one, jnp.zeros(room, compute.type.dtype))
        return total

    return Padded(lax.cond(chunks.fewer, by_row, lambda: whole().array), sizes)


def _shortened(lowering: Lowering, bound: Symbol, capacity: int, longest: jax.Array) -> Lowering:
    """What is known with the longest row at less than it is."""
    return replace(
        lowering,
        capacities={**lowering.capacities, bound: capacity},
        symbols={**lowering.symbols, bound: longest},
        ranges=dict(lowering.ranges),
        settled=set(),
    )


def _capacities(longest: int) -> list[int]:
    """The capacities for which a body is compiled, the largest first.

    >>> _capacities(512), _capacities(64)
    ([512, 256, 128, 64, 32], [64, 32, 16])
    """
    return [longest >> k for k in range(CAPACITIES) if k == 0 or longest >> k >= LEAST]


def _run_some(
    lowering: Lowering,
    loop: For,
    lanes: Views,
    state: State,
    ids: jax.Array,
    counts: jax.Array,
    capacity: int,
    longest: jax.Array,
) -> None:
    """Run some rows with the bound of the longest row at what they need, and store what they made."""
    rows = loop.rows
    assert rows is not None
    short = _shortened(lowering, rows.bound, capacity, longest)
    local = dict(state)
    for name in {load.place for block in blocks_of(lanes.body) for load in block.loads} & state.keys():
        place = lowering.program.places[name]
        room = short.room(place)
        if room != lowering.room(place):
            array = state[name].array[tuple(slice(0, n) for n in room)]
            local[name] = Padded(array, short.lengths(place.whole))
    own = {view(cut): _own_rows(short, state, cut, lanes, ids) for cut in (*lanes.read, *lanes.written)}
    made = together(short, loop, lanes, local, (ids, counts), own, lowering.begins)
    for cut in lanes.written:
        new = made[view(cut)]
        new = _ended(short, lanes.places[view(cut)], new, rows.bound)
        new = jnp.where(counts.reshape(-1, *[1] * (new.ndim - 1)), new, own[view(cut)])
        if lowering.looping or not lowering.fresh:
            # What an earlier iteration has left beyond this chunk's steps would not be zero.
            room = lowering.room(lanes.places[view(cut)])
            new = jnp.pad(new, [(0, 0), *((0, n - m) for n, m in zip(room, new.shape[1:], strict=True))])
        _store(short, state, cut, new, ids)


def _ended(short: Lowering, place: Place, made: jax.Array, bound: Symbol) -> jax.Array:
    """What rows made, with zeros beyond the steps that they run."""
    for axis, n in enumerate(place.whole):
        if bound in n.symbols:
            inside = jnp.arange(made.shape[axis + 1], dtype=jnp.int32) < jnp.int32(short.scalar(n))
            shape = [-1 if at == axis + 1 else 1 for at in range(made.ndim)]
            made = jnp.where(inside.reshape(shape), made, jnp.zeros((), made.dtype))
    return made


def _own_rows(short: Lowering, state: State, cut: Cut, lanes: Views, ids: jax.Array) -> jax.Array:
    """What each row finds at its position, as much of it as a chunk computes."""
    place = short.program.places[cut.place]
    array = short.with_all_axes(place, state[cut.place].array)
    starts, sizes = _window(short, cut, array, short.room(lanes.places[view(cut)]), ids)

    def one(number: jax.Array) -> jax.Array:
        row = lax.dynamic_slice(array, [starts[a][number] for a in range(array.ndim)], sizes)
        return lax.squeeze(row, sorted(cut.axes))

    return jax.vmap(one)(jnp.arange(ids.shape[0]))


def _store(short: Lowering, state: State, cut: Cut, new: jax.Array, ids: jax.Array) -> None:
    """Store what some rows made, each at its own position."""
    place, whole = short.program.places[cut.place], state[cut.place]
    array = short.with_all_axes(place, whole.array)
    if array.size == 0:
        return
    starts, _ = _window(short, cut, array, new.shape[1:], ids)

    def one(number: jax.Array, array: jax.Array) -> jax.Array:
        row = lax.expand_dims(lax.dynamic_index_in_dim(new, number, 0, keepdims=False), sorted(cut.axes))
        return lax.dynamic_update_slice(array, row, [starts[a][number] for a in range(array.ndim)])

    array = lax.fori_loop(0, ids.shape[0], one, array)
    state[cut.place] = Padded(short.as_kept(place, array), whole.lengths)


def _window(
    short: Lowering, cut: Cut, array: jax.Array, seen: tuple[int, ...], ids: jax.Array
) -> tuple[list[jax.Array], list[int]]:
    """Where the part of an array begins that each row sees, along every axis, and its size."""
    fixed = {axis: short.scalar(term) for axis, term in cut.at}
    left, starts, sizes = iter(seen), [], []
    for axis in range(array.ndim):
        if axis == cut.axis:
            starts.append(ids + jnp.int32(short.scalar(cut.offset)))
        else:
            starts.append(jnp.broadcast_to(jnp.int32(fixed.get(axis, 0)), ids.shape))
        sizes.append(1 if axis in cut.axes else next(left))
    return starts, sizes
