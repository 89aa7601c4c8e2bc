"""Lanes that are rows of different lengths: a few of similar length at a time, each chunk only as long as its rows.

The rows are ordered by their lengths. A chunk of them runs the body of the loop with the bound of the longest row at
what its own rows need, and with arrays for no more than that: XLA needs static shapes, so there is one body for each of
a few capacities, half as large each. Chunks of one capacity follow each other, so each capacity is one loop. What a
chunk makes is stored in the part of its rows that it computes; beyond that a place has zeros, which `loops/rows.py`
says is enough. Work is in proportion to the sum of the lengths, up to a chunk and a capacity.

Contractions over all rows of what the loop makes, such as the gradient of a weight that all rows share, are added up
chunk by chunk. What nobody else reads is then stored for the rows of a chunk only, not for all rows at the longest.

Where rows are alike chunks still gain: what a chunk makes stays in the cache until it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from polyrhythm.compiler.backends.jax import ops
from polyrhythm.compiler.backends.jax.ops import Padded
from polyrhythm.compiler.backends.jax.trace.lanes import chunk_of, lies, together
from polyrhythm.compiler.backends.jax.trace.places import fitted
from polyrhythm.compiler.backends.jax.trace.views import Cut, Views, view, views_of
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.terms import ZERO, Symbol, Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.loops.ir import Block, Compute, For, Item, Load, Place, Rows, Steps, blocks_of, walk
from polyrhythm.compiler.loops.rows import is_beside, touches
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
"""A contraction goes row by row only if that computes at most this share of what all rows at the longest would."""


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


@dataclass(frozen=True)
class Group:
    """Loops over the same rows that run together, and contractions of what they make, which are added up meanwhile.

    `cuts` are the places that are contracted, and `private` those of them that nothing else reads.
    """

    loops: tuple[tuple[For, Views], ...]
    sums: tuple[Compute, ...]
    cuts: Mapping[str, Cut]
    private: frozenset[str]


def grouped(lowering: Lowering, items: Sequence[Item], mask: jax.Array | None) -> Group | None:
    """The loops over rows that items begin with, if they can run in chunks here."""
    first = items[0]
    assert isinstance(first, For)
    if first.rows is None:
        return None
    found: list[tuple[For, Views]] = []
    for item in items:
        if not isinstance(item, For) or item.rows is None or item.lanes is None or not is_beside(first, item):
            break
        if any(touches(loop, item) for loop, _ in found) or chunk_of(lowering, item) == 1:
            break
        lowering.note_range(item)
        views = views_of(item, item.lanes, lowering.program)
        if not is_tiled(lowering, item, views, lowering.scalar(item.first), mask):
            break
        found.append((item, views))
    if not found:
        return None
    cuts = {cut.place: cut for _, views in found for cut in views.written if not cut.at and not cut.ring}
    sums = tuple(_sums(lowering, first, items[len(found) :], cuts))
    read = {load.place for compute in sums for load in compute.loads}
    return Group(tuple(found), sums, {n: cuts[n] for n in read}, _private(lowering, found, sums, read))


def _sums(lowering: Lowering, loop: For, items: Sequence[Item], cuts: Mapping[str, Cut]) -> Iterator[Compute]:
    """The contractions over all rows, and their steps, of what loops over them have made."""
    rows = loop.rows
    assert rows is not None
    if len(loop.end.symbols) != 1 or loop.end is not Term.of(*loop.end.symbols):
        return
    computes = (compute for item in items if isinstance(item, Block) for compute in item.body)
    for compute in computes:
        same = compute.rows is not None and compute.rows.bound is rows.bound
        if same and all(_is_made(loop, load, cuts) for load in compute.loads):
            yield compute


def _is_made(loop: For, load: Load, cuts: Mapping[str, Cut]) -> bool:
    """Whether a read is that of all rows of a place that loops over rows have stored."""
    cut = cuts.get(load.place)
    if cut is None or cut.offset is not ZERO or load.spilled:
        return False
    entry = load.index[cut.axis]
    return isinstance(entry, Steps) and entry == Steps(ZERO, loop.end, via=entry.via)


def _private(
    lowering: Lowering, loops: Sequence[tuple[For, Views]], sums: Sequence[Compute], read: set[str]
) -> frozenset[str]:
    """Of what is contracted, that which nothing else reads."""
    program = lowering.program
    inside = {id(block) for loop, _ in loops for block in blocks_of(loop.body)}
    added = {id(compute) for compute in sums}
    others = set(program.outputs)
    others |= {item.stop.done.place for item in walk(program.body) if isinstance(item, For) and item.stop}
    for block in blocks_of(program.body):
        if id(block) not in inside:
            others |= {store.place for store in block.stores}
            others |= {load.place for compute in block.body if id(compute) not in added for load in compute.loads}
    return frozenset(read - others)


def run_rows(lowering: Lowering, group: Group, state: State) -> None:
    """Run the rows of loops in chunks of similar length."""
    first = group.loops[0][0]
    rows = first.rows
    assert rows is not None
    cuts = [cut for _, lanes in group.loops for cut in (*lanes.read, *lanes.written)]
    for cut in cuts:
        if cut.place not in state:
            state[cut.place] = lowering.empty(lowering.program.places[cut.place])
    stored = dict.fromkeys(cut.place for _, lanes in group.loops for cut in lanes.written)
    names = [name for name in stored if name not in group.private]
    kept = {name: state[name].lengths for name in stored}
    count = lowering.capacity(first.end - first.first)
    chunk = max(_rows_at_once(lowering, loop, rows) for loop, _ in group.loops)
    end = jnp.int32(lowering.scalar(first.end))
    chunks = _chunks(lowering, rows.bound, lowering.load(_all(rows, first.end), state).array, count, end, chunk)
    rooms = [tuple(lowering.capacity(n) for n in compute.type.shape) for compute in group.sums]
    totals = [jnp.zeros(room, compute.type.dtype) for room, compute in zip(rooms, group.sums, strict=True)]

    def body(capacity: int, part: jax.Array, carry: Values) -> Values:
        values, totals = carry
        inner = dict(state)
        inner.update({n: Padded(v, kept[n]) for n, v in zip(names, values, strict=True)})
        ids = lax.dynamic_slice_in_dim(chunks.order, part * chunk, chunk)
        short = _shortened(lowering, rows.bound, capacity, chunks.longest[part])
        made: dict[str, jax.Array] = {}
        for loop, lanes in group.loops:
            made |= _run_some(lowering, short, loop, lanes, inner, ids, ids < end, group)
        added = [
            total + _added(short, first, compute, made, chunk)
            for total, compute in zip(totals, group.sums, strict=True)
        ]
        return [inner[name].array for name in names], added

    first_values = [state[name].array for name in names]
    results, sums = chunks.run(lowering.capacities[rows.bound], body, (first_values, totals))
    for name, array in zip(names, results, strict=True):
        state[name] = Padded(array, kept[name])
    lowering.settled.difference_update(stored)
    for compute, array in zip(group.sums, sums, strict=True):
        lowering.summed[id(compute)] = Padded(array, lowering.lengths(compute.type.shape))


def _contracted(lowering: Lowering, compute: Compute, state: State) -> jax.Array:
    """A contraction of what a state holds."""
    loaded = [lowering.load(load, state) for load in compute.loads]
    shape = compute.type.shape
    room = tuple(lowering.capacity(n) for n in shape)
    made = ops.apply("einsum", loaded, dict(compute.attributes), room, lowering.lengths(shape), compute.type.dtype)
    return fitted(made.array, room)


def _added(short: Lowering, loop: For, compute: Compute, made: Mapping[str, jax.Array], chunk: int) -> jax.Array:
    """What the rows of a chunk add to a contraction over all rows."""
    (count,) = loop.end.symbols
    some = replace(short, symbols={**short.symbols, count: chunk}, capacities={**short.capacities, count: chunk})
    state: State = {}
    for load in compute.loads:
        place = short.program.places[load.place]
        state[load.place] = Padded(made[load.place], some.lengths(place.whole))
    return _contracted(some, compute, state)


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
    return lowering.capacities[rows.bound] >= LEAST_SUMMED


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
    short: Lowering,
    loop: For,
    lanes: Views,
    state: State,
    ids: jax.Array,
    counts: jax.Array,
    group: Group,
) -> dict[str, jax.Array]:
    """Run some rows with the bound of the longest row at what they need, and store what they made.

    What is contracted of it is returned, the rows in the place of all rows.
    """
    rows = loop.rows
    assert rows is not None
    local = dict(state)
    for name in {load.place for block in blocks_of(lanes.body) for load in block.loads} & state.keys():
        place = lowering.program.places[name]
        room = short.room(place)
        if room != lowering.room(place):
            array = state[name].array[tuple(slice(0, n) for n in room)]
            local[name] = Padded(array, short.lengths(place.whole))
    own = {view(cut): _own_rows(short, state, cut, lanes, ids) for cut in lanes.read}
    for cut in lanes.written:
        if cut.place in group.private:
            place = lanes.places[view(cut)]
            own[view(cut)] = jnp.zeros((ids.shape[0], *short.room(place)), place.type.dtype)
        else:
            own[view(cut)] = _own_rows(short, state, cut, lanes, ids)
    made = together(short, loop, lanes, local, (ids, counts), own, lowering.begins)
    returned: dict[str, jax.Array] = {}
    for cut in lanes.written:
        new = made[view(cut)]
        new = _ended(short, lanes.places[view(cut)], new, rows.bound)
        new = jnp.where(counts.reshape(-1, *[1] * (new.ndim - 1)), new, own[view(cut)])
        if cut.place in group.cuts:
            returned[cut.place] = jnp.moveaxis(_zero_elsewhere(new, counts), 0, lies(short, cut).axis)
        if cut.place in group.private:
            continue
        if lowering.looping or not lowering.fresh:
            # What an earlier iteration has left beyond this chunk's steps would not be zero.
            room = lowering.room(lanes.places[view(cut)])
            new = jnp.pad(new, [(0, 0), *((0, n - m) for n, m in zip(room, new.shape[1:], strict=True))])
        _store(short, state, cut, new, ids)
    return returned


def _zero_elsewhere(made: jax.Array, counts: jax.Array) -> jax.Array:
    """What rows made, with zeros for those that do not count."""
    return jnp.where(counts.reshape(-1, *[1] * (made.ndim - 1)), made, jnp.zeros((), made.dtype))


def _ended(short: Lowering, place: Place, made: jax.Array, bound: Symbol) -> jax.Array:
    """What rows made, with zeros beyond the steps that they run."""
    for axis, n in enumerate(place.whole[kept] for kept in short.order(place)):
        if bound in n.symbols:
            inside = jnp.arange(made.shape[axis + 1], dtype=jnp.int32) < jnp.int32(short.scalar(n))
            shape = [-1 if at == axis + 1 else 1 for at in range(made.ndim)]
            made = jnp.where(inside.reshape(shape), made, jnp.zeros((), made.dtype))
    return made


def _own_rows(short: Lowering, state: State, cut: Cut, lanes: Views, ids: jax.Array) -> jax.Array:
    """What each row finds at its position, as much of it as a chunk computes."""
    array, lying = state[cut.place].array, lies(short, cut)
    starts, sizes = _window(short, lying, array, short.room(lanes.places[view(cut)]), ids)

    def one(number: jax.Array) -> jax.Array:
        row = lax.dynamic_slice(array, [starts[a][number] for a in range(array.ndim)], sizes)
        return lax.squeeze(row, sorted(lying.axes))

    return jax.vmap(one)(jnp.arange(ids.shape[0]))


def _store(short: Lowering, state: State, cut: Cut, new: jax.Array, ids: jax.Array) -> None:
    """Store what some rows made, each at its own position."""
    whole, lying = state[cut.place], lies(short, cut)
    array = whole.array
    if array.size == 0:
        return
    starts, _ = _window(short, lying, array, new.shape[1:], ids)

    def one(number: jax.Array, array: jax.Array) -> jax.Array:
        row = lax.expand_dims(lax.dynamic_index_in_dim(new, number, 0, keepdims=False), sorted(lying.axes))
        return lax.dynamic_update_slice(array, row, [starts[a][number] for a in range(array.ndim)])

    array = lax.fori_loop(0, ids.shape[0], one, array)
    state[cut.place] = Padded(array, whole.lengths)


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
