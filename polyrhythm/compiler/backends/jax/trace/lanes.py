"""Loops whose iterations are independent, done all at once.

The body is traced for one iteration, a *lane*, and mapped over all of them with `jax.vmap`, so that a loop of small
operations becomes a few large ones: a matrix-vector product per step becomes one matrix product. What a lane reads at
its own position along an axis is cut out beforehand and handed to it; what it writes there is collected and stored in
one piece. Lengths that depend on the lane become masks. An inner loop stays a loop, over all lanes at once.

What all lanes share is read where it lies, each lane up to a length of its own: `ops/contraction.py` knows how to
contract over it without a copy for every lane.

All that reads a masked value in a lane reads the masked one, so that it is made once.

Which loops have lanes is decided in `loops/lanes.py`. Lanes that fill a place leave zeros beyond their number.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from polyrhythm.compiler.backends.jax.ops import Padded
from polyrhythm.compiler.backends.jax.ops.padded import fit_axis
from polyrhythm.compiler.backends.jax.target import on_cpu
from polyrhythm.compiler.backends.jax.trace.fusion_barrier import computed_once
from polyrhythm.compiler.backends.jax.trace.places import put, put_along, taken_along, taken_at
from polyrhythm.compiler.backends.jax.trace.spreading import is_spread, spread_lanes, spread_over, ways_over
from polyrhythm.compiler.backends.jax.trace.views import Cut, Views, view
from polyrhythm.compiler.backends.jax.trace.work import copied_reads, cut_out, sites_within, work_of
from polyrhythm.compiler.ir.intervals import interval
from polyrhythm.compiler.ir.terms import Extremum, Symbol, Term, product
from polyrhythm.compiler.loops.cost import chunk_for
from polyrhythm.compiler.loops.ir import (
    Compute,
    For,
    blocks_of,
)
from polyrhythm.compiler.loops.liveness import written
from polyrhythm.errors import MemoryBudgetError

if TYPE_CHECKING:
    from polyrhythm.compiler.backends.jax.trace.lowering import Lowering
    from polyrhythm.compiler.backends.jax.trace.places import State
    from polyrhythm.compiler.backends.jax.trace.scope import Scalar

Entry = TypeVar("Entry")

MOST_BYTES = 1 << 29
"""The most that the largest value of all lanes together may take, unless a budget is given."""

MOST_CUT = 1 << 24
"""The most that is cut out of a longer place for all lanes together: it is a copy, and a chunk of it is as fast."""

MOST_MARGIN = 0.5
"""Up to which part of an array margins at its ends are made, for reads beyond them."""

MOST_TILES = 4
"""How many tiles before its own one reads from side by side."""

VALUES_AT_ONCE = 4
"""How many values as large as the largest are taken to be alive at one time."""


def run_lanes(
    lowering: Lowering,
    loop: For,
    lanes: Views,
    state: State,
    inside: tuple[Scalar, Scalar],
    chunk: int | None,
    always: bool,
) -> None:
    """Run all lanes, or a chunk of them at a time, and store what they made; `always` if the loop has no guard."""
    first, end = inside
    begin, count = _span(lowering, loop, lanes, first)
    if count == 0:
        return
    if chunk is None or chunk >= count:
        # Slots that a guard leaves out keep what an earlier tile has stored.
        partly = {
            store.place for site in loop.sites if site.guards or len(site.loops) > 1 for store in site.block.stores
        }
        whole = {
            own.place
            for own in lanes.written
            if own.ring == count and own.place not in partly and _is_aligned(loop.first + own.offset, count)
        }
        filled = frozenset(own.place for own in lanes.written if always and (own.fills or own.place in whole))
        _run_chunk(lowering, loop, lanes, state, (begin, count), inside, filled)
        return
    for cut in (*lanes.read, *lanes.written):
        if cut.place not in state:
            state[cut.place] = lowering.empty(lowering.program.places[cut.place])
    names = list(dict.fromkeys(cut.place for cut in lanes.written))
    kept = {name: state[name].lengths for name in names}

    def body(number: jax.Array, values: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        inner = dict(state)
        inner.update({n: Padded(v, kept[n]) for n, v in zip(names, values, strict=True)})
        start = jnp.int32(begin) + number * jnp.int32(chunk)
        _run_chunk(lowering, loop, lanes, inner, (start, chunk), (first, end))
        return tuple(inner[name].array for name in names)

    chunks = (jnp.int32(end) - jnp.int32(begin) + jnp.int32(chunk - 1)) // jnp.int32(chunk)
    results = jax.lax.fori_loop(jnp.int32(0), chunks, body, tuple(state[name].array for name in names))
    state.update({n: Padded(v, kept[n]) for n, v in zip(names, results, strict=True)})


def _span(lowering: Lowering, loop: For, lanes: Views, first: Scalar) -> tuple[Scalar, int]:
    """Where lanes begin, and how many there are.

    A loop that begins at the counter of a loop around it has lanes from the least of all beginnings on, if these are
    not many more: what they read then lies at the same place for all.
    """
    count = lowering.capacity(loop.end - loop.first)
    least = _floor(interval(loop.first, lowering.ranges)[0])
    ways = ways_over(lowering, loop)
    if ways > 1 and least.is_constant:
        # From the first slot on: what lanes read beside their own slot then lies beside it on the same device, or is
        # the edge of another's.
        begin, cuts = min(0, least.constant), ((own.place, own.axis) for own in (*lanes.read, *lanes.written))
        slots = (lowering.length(lowering.program.places[place], axis) - begin for place, axis in cuts)
        return begin, -(-max([lowering.capacity(loop.end - begin), *slots]) // ways) * ways
    rings = any(own.ring for own in (*lanes.read, *lanes.written))
    if not isinstance(first, int) and least.is_constant and not rings:
        whole = lowering.capacity(loop.end - least)
        if whole <= 2 * count:
            return least.constant, whole
    return first, count


def _floor(term: Term) -> Term:
    """A number that a term is not below, if it says so itself.

    >>> from polyrhythm.compiler.ir.terms import fresh, maximum
    >>> str(_floor(maximum(Term(0), 2 - Term.of(fresh("J")))))
    '0'
    """
    if len(term.monomials) == 1 and not term.constant:
        ((monomial, coefficient),) = term.monomials
        atom = monomial[0]
        if len(monomial) == 1 and coefficient == 1 and isinstance(atom, Extremum) and atom.which == "max":
            numbers = [argument.constant for argument in atom.arguments if argument.is_constant]
            return Term(max(numbers)) if numbers else term
    return term


def _run_chunk(
    lowering: Lowering,
    loop: For,
    lanes: Views,
    state: State,
    span: tuple[Scalar, int],
    inside: tuple[Scalar, Scalar],
    filled: frozenset[str] = frozenset(),
) -> None:
    """Run lanes from a first on, some number of them, and store what those inside the loop made.

    Of places that they fill, nothing of what was there before is kept.
    """
    begin, count = span
    counters = jnp.int32(begin) + jnp.arange(count, dtype=jnp.int32)
    cuts = (*lanes.read, *lanes.written)
    if isinstance(begin, int):
        rows = {} if not on_cpu() else _around(lowering, state, lanes.read, begin, count)
    else:
        rows = _from_tiles(lowering, loop, state, cuts, begin, count)
    rows |= {view(cut): _rows(lowering, state, cut, begin, count) for cut in cuts if view(cut) not in rows}
    begins = {**lowering.begins, loop.counter: begin} if isinstance(begin, int) else lowering.begins

    low, high = inside
    # Where every lane is known to be inside, nothing is masked: not even a copy of a slice of what lanes keep is made.
    every = isinstance(begin, int) and isinstance(low, int) and isinstance(high, int) and low <= begin <= high - count
    inside_loop = counters < jnp.int32(high)
    if not (isinstance(begin, int) and isinstance(low, int) and begin == low):
        inside_loop &= counters >= jnp.int32(low)

    over = spread_over(lowering, loop, count)
    if over:
        counters, inside_loop = spread_lanes(lowering, over, counters), spread_lanes(lowering, over, inside_loop)
        rows = {name: spread_lanes(lowering, over, array) for name, array in rows.items()}
    masked = frozenset[str]() if every else filled
    made = together(lowering, loop, lanes, state, (counters, inside_loop), rows, begins, masked, over)
    if over:
        made = {name: spread_lanes(lowering, over, array) for name, array in made.items()}
    for cut in lanes.written:
        if cut.place in filled:
            place, whole = lowering.program.places[cut.place], state[cut.place]
            room = lowering.length(place, cut.axis)
            lying = lies(lowering, cut)
            array, start = jnp.moveaxis(made[view(cut)], 0, lying.left), begin + lowering.scalar(cut.offset)
            if isinstance(start, int) and start and not cut.ring:  # lanes on devices begin before the loop does
                array = _along(array, lying.left, -start, room)
            else:
                array = fit_axis(array, lying.left, room)
            if cut.at:
                array = with_slot(lowering, lying, whole.array, array)
                lowering.settled.discard(cut.place)
            else:
                lowering.settled.add(cut.place)
            state[cut.place] = Padded(array, whole.lengths)
        else:
            _store_rows(lowering, state, cut, made[view(cut)], begin, None if every else inside_loop, loop)
            lowering.settled.discard(cut.place)


def together(
    lowering: Lowering,
    loop: For,
    lanes: Views,
    state: State,
    counted: tuple[jax.Array, jax.Array],
    rows: Mapping[str, jax.Array],
    begins: Mapping[Symbol, int],
    filled: frozenset[str] = frozenset(),
    over: tuple[str, ...] = (),
) -> dict[str, jax.Array]:
    """What lanes make of what each finds at its position, lanes first; `counted` has their counters and who counts."""
    axis = f"lanes {len(lowering.lanes)}"
    loads = Counter(load.place for block in blocks_of(lanes.body) for load in block.loads)
    often = frozenset(view(cut) for cut in lanes.written if loads[view(cut)] > 1)

    def lane(counter: jax.Array, counts: jax.Array, own: dict[str, jax.Array]) -> dict[str, jax.Array]:
        symbols = {**lowering.symbols, loop.counter: counter}
        counting = {view(c): counts & lowering.counts.get(c.place, True) for c in lanes.written if c.place in filled}
        inside = replace(
            lowering,
            program=replace(lowering.program, places=lanes.places),
            symbols=symbols,
            ranges=dict(lowering.ranges),
            lanes=(*lowering.lanes, axis),
            spread=(*lowering.spread, *over),
            within=0 if over else lowering.within + 1,
            lane=loop.counter,
            begins=begins,
            counts=counting,
            settled=set(),
            often=often,
            own=frozenset(written(lanes.body)).union(rows),
        )
        local = dict(state)
        for cut in (*lanes.read, *lanes.written):
            place = lanes.places[view(cut)]
            local[view(cut)] = Padded(own[view(cut)], inside.lengths(place.whole))
        for name in written(lanes.body):
            if (lanes.places[name].kind == "variable" or name in lanes.private) and name not in rows:
                local.pop(name, None)
        inside.items(lanes.body, local, {view(cut) for cut in lanes.written}, None)
        made = {view(cut): local[view(cut)].array for cut in lanes.written}
        for name in sorted(counting.keys() - inside.settled):
            made[name] = jnp.where(counting[name], made[name], jnp.zeros((), made[name].dtype))
        return made

    found: dict[str, jax.Array] = jax.vmap(lane, axis_name=axis, spmd_axis_name=over or None)(*counted, dict(rows))
    return found


def own_element(array: jax.Array, axis: int, counter: jax.Array, begin: int, offset: int) -> jax.Array:
    """The element that each lane has at its own position along an axis, as an axis of length one.

    The lanes are counted from `begin` on, and the lane of counter c is at c + offset. For all lanes together it is the
    array with that axis first, where a gather would look for every element.
    """

    def one(array: jax.Array, counter: jax.Array) -> jax.Array:
        place = jax.lax.clamp(np.int32(0), counter + np.int32(offset), np.int32(array.shape[axis] - 1))
        return jax.lax.dynamic_slice_in_dim(array, place, 1, axis, allow_negative_indices=False)

    element = jax.custom_batching.custom_vmap(one)

    @element.def_vmap
    def _(size: int, batched: Sequence[bool], array: jax.Array, counter: jax.Array) -> tuple[jax.Array, bool]:
        if not batched[1]:
            return own_element(array, axis + 1, counter, begin, offset), True
        if batched[0]:
            return jax.vmap(one)(array, counter), True
        rows = jnp.moveaxis(_along(array, axis, begin + offset, size), axis, 0)
        return jnp.expand_dims(rows, axis + 1), True

    found: jax.Array = element(array, counter)
    return found


def chunk_of(lowering: Lowering, loop: For) -> int | None:
    """How many lanes run at once: what was chosen, else the best by the cost model of those that fit; None is all."""
    chosen = lowering.program.chunks.get(loop.counter.name)
    if chosen is not None:
        return chosen.steps
    return chunk_for(lowering.program.machine, work_of(lowering, loop), most_lanes(lowering, loop))


def most_lanes(lowering: Lowering, loop: For) -> int:
    """How many lanes there is room for."""
    largest, compute = _largest_value(lowering, loop)
    room = MOST_BYTES
    if lowering.program.budget is not None:
        places = (place for place in lowering.program.places.values() if place.spill is None)
        kept = sum(math.prod(lowering.room(place)) * place.type.dtype.itemsize for place in places)
        room = lowering.program.budget - kept
        if compute is not None and largest * VALUES_AT_ONCE > room:
            raise MemoryBudgetError(
                f"one step needs a value of {largest:,} bytes, and {max(0, room):,} are left of the budget of "
                f"{lowering.program.budget:,} for what is computed",
                fix="raise memory_budget, or run fewer or smaller steps",
                at=compute.at,
            )
    count = lowering.capacity(loop.end - loop.first)
    fits = largest * count * (1 if lowering.program.budget is None else VALUES_AT_ONCE) <= room
    most = count if fits else max(1, room // (largest * VALUES_AT_ONCE))
    return min(most, max(1, MOST_CUT // cut_out(lowering, loop)))


def _largest_value(lowering: Lowering, loop: For) -> tuple[int, Compute | None]:
    """The bytes of the largest value that one lane has to itself, and the computation that it belongs to.

    Lanes of a loop inside have theirs together.
    """
    largest: tuple[int, Compute | None] = (0, None)
    for site in sites_within(lowering, loop):
        together = 1
        for inner in site.loops:
            together *= lowering.capacity(inner.end - inner.first) if inner.lanes is not None else 1
        types = {compute.result: compute.type for compute in site.block.body}
        for compute in site.block.body:
            copied = copied_reads(lowering, loop, compute, types)
            for kind in (compute.type, *(load.type for load in copied)):
                size = together * lowering.capacity(product(kind.shape)) * kind.dtype.itemsize
                largest = max(largest, (size, compute), key=lambda found: found[0])
    return largest


def _is_aligned(begin: Term, count: int) -> bool:
    """Whether lanes begin at a multiple of their number, so that those of a tile lie in one piece.

    >>> from polyrhythm.compiler.ir.terms import fresh
    >>> c = Term.of(fresh("c"))
    >>> [_is_aligned(term, 64) for term in (256 * c, 256 * c + 64, 256 * c - 1)]
    [True, True, False]
    """
    if begin.constant % count:
        return False
    for monomial, coefficient in begin.monomials:
        atom = monomial[0] if len(monomial) == 1 else None
        whole = isinstance(atom, Extremum) and all(_is_aligned(term, count) for term in atom.arguments)
        if coefficient % count and not whole:
            return False
    return True


def _from_tiles(
    lowering: Lowering, loop: For, state: State, cuts: Sequence[Cut], first: Scalar, count: int
) -> dict[str, jax.Array]:
    """What lanes of a tile find near their positions, for places of whole tiles: slices of a few tiles side by side.

    Those before the first tile and after the last are any: what is read there is not used.
    """
    near: dict[tuple[str, int, int], list[Cut]] = {}
    for cut in cuts:
        place = lowering.program.places[cut.place]
        size = cut.ring or lowering.capacity(place.slots[cut.axis])
        tiled = _is_aligned(loop.first, count) and cut.offset.is_constant and not cut.at
        if tiled and size and size % count == 0:
            near.setdefault((cut.place, cut.axis, cut.ring), []).append(cut)
    found: dict[str, jax.Array] = {}
    for (name, axis, ring), own in near.items():
        place = lowering.program.places[name]
        if name not in state:
            state[name] = lowering.empty(place)
        array, axis = state[name].array, lowering.order(place).index(axis)
        offsets = {cut: cut.offset.constant for cut in own}
        low, high = min(offsets.values()) // count, -(-max(offsets.values()) // count)
        if high - low > MOST_TILES:
            continue
        starts = [jnp.int32(first) + np.int32(number * count) for number in range(low, high + 1)]
        starts = [start % np.int32(ring) if ring else start for start in starts]
        tiles = [taken_along(array, at, count, axis) for at in starts]
        # As one array, from which slices are read like from any: a choice between tiles at every element is slow.
        whole = tiles[0] if len(tiles) == 1 else computed_once(jnp.concatenate(tiles, axis), lowering.symbols)
        for cut, offset in offsets.items():
            begin = offset - low * count
            rows = jax.lax.slice_in_dim(whole, begin, begin + count, axis=axis)
            found[view(cut)] = jnp.moveaxis(rows, axis, 0)
    return found


def _around(lowering: Lowering, state: State, cuts: Sequence[Cut], begin: int, count: int) -> dict[str, jax.Array]:
    """What lanes find at fixed distances, some of it beyond the ends: slices of one array with margins at both.

    What lies in the margins is not used. The array is stored into the middle of a larger one, which is fast by rows;
    padding would ask at each element where it lies.
    """
    near: dict[tuple[str, int, tuple[tuple[int, Term], ...]], dict[Cut, int]] = {}
    for cut in cuts:
        start = begin + lowering.scalar(cut.offset)
        if (
            isinstance(start, int)
            and not cut.ring
            and not is_spread(lowering, lowering.program.places[cut.place], cut.axis)
        ):
            near.setdefault((cut.place, cut.left, cut.at), {})[cut] = start
    found: dict[str, jax.Array] = {}
    for (name, axis, _), starts in near.items():
        place = lowering.program.places[name]
        if name not in state:
            state[name] = lowering.empty(place)
        lying = lies(lowering, next(iter(starts)))
        array, axis = slot_of(lowering, lying, state[name].array), lying.left
        size = array.shape[axis]
        before, after = -min(0, *starts.values()), max(0, max(starts.values()) + count - size)
        if not 0 < before + after <= MOST_MARGIN * size:
            continue
        room = (*array.shape[:axis], before + size + after, *array.shape[axis + 1 :])
        # If XLA knew the place, it would make padding of it.
        at = jax.lax.optimization_barrier(jnp.int32(before))
        whole = put_along(jnp.zeros(room, array.dtype), array, at, axis)
        for cut, start in starts.items():
            rows = jax.lax.slice_in_dim(whole, before + start, before + start + count, axis=axis)
            found[view(cut)] = jnp.moveaxis(rows, axis, 0)
    return found


def lies(lowering: Lowering, cut: Cut) -> Cut:
    """A cut whose axes are where the array of its place keeps them; what is left of that is as a lane keeps it."""
    order = lowering.order(lowering.program.places[cut.place])
    return replace(cut, axis=order.index(cut.axis), at=tuple((order.index(axis), term) for axis, term in cut.at))


def slot_of(lowering: Lowering, cut: Cut, array: jax.Array) -> jax.Array:
    """What the lanes together see of the array of a place."""
    for axis, term in sorted(cut.at, key=lambda fixed: -fixed[0]):
        array = taken_at(array, lowering.scalar(term), axis)
    return array


def with_slot(lowering: Lowering, cut: Cut, array: jax.Array, slot: jax.Array) -> jax.Array:
    """An array with other contents of what the lanes together see of it."""
    if array.size == 0:
        return array
    fixed = {axis: jnp.int32(lowering.scalar(term)) for axis, term in cut.at}
    slot = jax.lax.expand_dims(slot, sorted(fixed))
    return put(array, slot, [fixed.get(axis, jnp.int32(0)) for axis in range(array.ndim)])


def _rows(lowering: Lowering, state: State, cut: Cut, first: Scalar, count: int) -> jax.Array:
    """What each lane finds at its position, lanes first."""
    place = lowering.program.places[cut.place]
    if cut.place not in state:
        state[cut.place] = lowering.empty(place)
    cut = lies(lowering, cut)
    array = slot_of(lowering, cut, state[cut.place].array)
    start = first + lowering.scalar(cut.offset)
    if cut.ring:
        array = jnp.concatenate([array, jax.lax.slice_in_dim(array, 0, count, axis=cut.left)], cut.left)
        start = jnp.int32(start) % jnp.int32(cut.ring)
        rows = taken_along(array, start, count, cut.left)
    else:
        rows = _along(array, cut.left, start, count)
    return jnp.moveaxis(rows, cut.left, 0)


def _along(array: jax.Array, axis: int, start: Scalar, count: int) -> jax.Array:
    """Some elements along an axis; beyond its ends any will do."""
    size = array.shape[axis]
    if size == 0:
        return jnp.zeros((*array.shape[:axis], count, *array.shape[axis + 1 :]), array.dtype)
    if isinstance(start, int):
        if start >= 0 and start + count <= size:
            return jax.lax.slice_in_dim(array, start, start + count, axis=axis)
        if start >= size or start + count <= 0:
            return jnp.zeros((*array.shape[:axis], count, *array.shape[axis + 1 :]), array.dtype)
        edges = [(-start, start + count - size, 0) if at == axis else (0, 0, 0) for at in range(array.ndim)]
        return jax.lax.pad(array, jnp.zeros((), array.dtype), edges)
    if size < count:
        places = jnp.int32(start) + jnp.arange(count, dtype=jnp.int32)
        return jnp.take(array, jnp.clip(places, 0, size - 1), axis=axis, mode="clip")
    # A slice that would leave the axis begins elsewhere: then its rows are moved to where they belong.
    begin = jax.lax.clamp(np.int32(0), jnp.int32(start), np.int32(size - count))
    rows = taken_along(array, begin, count, axis)
    moved = jax.lax.clamp(np.int32(0), jnp.int32(start) - begin + np.int32(count), np.int32(2 * count))
    around = jnp.concatenate([rows, rows, rows], axis)
    return taken_along(around, moved, count, axis)


def _store_rows(
    lowering: Lowering, state: State, cut: Cut, rows: jax.Array, first: Scalar, inside: jax.Array | None, loop: For
) -> None:
    """Store what the lanes inside the loop made, all if there is no mask; what lies beyond stays as it was."""
    place, whole = lowering.program.places[cut.place], state[cut.place]
    if whole.array.size == 0:
        return
    every, inside = inside is None, jnp.ones(rows.shape[0], bool) if inside is None else inside
    axis, cut = cut.axis, lies(lowering, cut)
    array = slot_of(lowering, cut, whole.array)
    moved = jnp.moveaxis(rows, 0, cut.left)
    start, count, size = first + lowering.scalar(cut.offset), rows.shape[0], array.shape[cut.left]
    if isinstance(start, int) and not cut.ring and is_spread(lowering, place, axis) and (start or count != size):
        # Moved to where they belong: on several devices an update at some position would gather the axis.
        moved, inside = _along(moved, cut.left, -start, size), _along(inside, 0, -start, size)
        start, count, every = 0, size, False
    mask = inside.reshape([count if axis == cut.left else 1 for axis in range(array.ndim)])
    if cut.ring:
        start = jnp.int32(start) % jnp.int32(cut.ring)
    if isinstance(start, int) and start >= 0 and start + count <= size:
        old = jax.lax.slice_in_dim(array, start, start + count, axis=cut.left)
        new = moved if every else jnp.where(mask, moved, old)
        if count != size:
            # Where nothing is stored yet XLA would pad the rows with zeros, element by element, if it knew the place.
            at = jax.lax.optimization_barrier(jnp.int32(start))
            new = put_along(array, new, at, cut.left)
    elif not isinstance(start, int) and size % count == 0 and _is_aligned(loop.first + cut.offset, count):
        # Beyond the last tile nothing is inside, and what lies in the last is stored once more.
        old = taken_along(array, start, count, cut.left)
        new = jnp.where(mask, moved, old)
        new = put_along(array, new, start, cut.left)
    else:
        places = jnp.int32(start) + jnp.arange(count, dtype=jnp.int32)
        places = places % jnp.int32(cut.ring) if cut.ring else places
        index = (slice(None),) * cut.left + (jnp.where(inside, places, np.iinfo(np.int32).max),)
        new = array.at[index].set(moved, mode="drop")
    new = with_slot(lowering, cut, whole.array, new) if cut.at else new
    state[cut.place] = Padded(new, whole.lengths)
