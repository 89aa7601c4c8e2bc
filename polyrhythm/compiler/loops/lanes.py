"""Which parallel loops are vectorised: their iterations become *lanes* that run together, as one axis of arrays.

It is possible when each place that the body writes is written by each lane at its own position along one axis only, and
read there if at all, or where no lane writes during the loop, as in the row before; or is private to the lane, which
then has a copy of its own. Nothing that a lane leaves in a variable may be read after the loop. `with_lanes` writes to
each loop what its lanes have to themselves, or what prevents them, for `program.explain()` and for a user who has asked
for them; `legality/lanes.py` proves it again. How many lanes run together is chosen at capacities, by the cost model.

Lanes that have all positions of a place *fill* it: nothing of what was there before is kept, and what their capacity is
larger by becomes zeros, since sums over it need no mask then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyrhythm.compiler.ir.conditions import Condition, ne
from polyrhythm.compiler.ir.sets import proves
from polyrhythm.compiler.ir.terms import ZERO, FloorDiv, Symbol, Term
from polyrhythm.compiler.loops.ir import (
    For,
    If,
    Item,
    Lanes,
    LoopProgram,
    Own,
    Steps,
    blocks_of,
    mapped,
    walk,
)
from polyrhythm.compiler.loops.liveness import carried, live_before, written


def with_lanes(program: LoopProgram) -> LoopProgram:
    """The program with the lanes of its parallel loops, or why they have none."""
    return replace(program, body=_items(program, program.body, set(program.outputs)))


def without_lanes(program: LoopProgram) -> LoopProgram:
    """The program for a backend that runs one iteration after the other."""

    def alone(item: Item) -> Item:
        return replace(item, lanes=None, refused="") if isinstance(item, For) else item

    return replace(program, body=mapped(program.body, alone))


def _items(program: LoopProgram, items: Sequence[Item], live: set[str]) -> tuple[Item, ...]:
    """Items with lanes; `live` are the places that matter afterwards."""
    done: list[Item] = []
    for number, item in enumerate(items):
        if isinstance(item, If):
            after = live_before(items[number + 1 :], live, program)
            item = replace(item, body=_items(program, item.body, after))
        elif isinstance(item, For):
            item = _loop(program, item, live_before(items[number + 1 :], live, program))
        done.append(item)
    return tuple(done)


def _loop(program: LoopProgram, loop: For, live: set[str]) -> For:
    found = _lanes(loop, live, program) if loop.parallel else ""
    if isinstance(found, Lanes):
        inside = {own.place for own in found.written}
        return replace(loop, body=_items(program, loop.body, inside), lanes=found, refused="")
    done = {loop.stop.done.place} if loop.stop is not None else set()
    inside = {*carried(loop, live | done, program), *done}
    return replace(loop, body=_items(program, loop.body, inside), lanes=None, refused=found)


def _lanes(loop: For, live: set[str], program: LoopProgram) -> Lanes | str:
    """The lanes of a loop, or why it has to run as a loop."""
    places = program.places
    if any(block.host for block in blocks_of(loop.body)):
        return "a host function is called for one step at a time"
    changed = written(loop.body)
    filed = sorted(name for name in changed if places[name].spill is not None)
    if filed:
        return f"{filed[0]} is spilled, which takes one step after the other"
    variables = {name for name in changed if places[name].kind == "variable"}
    # What an iteration writes under a condition and reads itself is not what an earlier one has left, nor read later:
    # another piece of the loop that mentions it has a condition around it that does not hold there.
    own = loop.private - set(program.outputs)
    passed = variables & ((live | live_before(loop.body, set(), program)) - own)
    if passed:
        return f"{min(passed)} keeps one value for all steps"
    inner = {item.counter for item in walk(loop.body) if isinstance(item, For)}
    positions: dict[str, Own] = {}
    private: set[str] = set()
    for store in (store for block in blocks_of(loop.body) for store in block.stores if store.place not in variables):
        position = position_of(store.place, store.index, loop.counter, inner)
        if position is None or positions.setdefault(store.place, position) != position:
            if store.place not in loop.private:
                return f"{store.place}[{', '.join(map(str, store.index))}] is not a slot that one step has to itself"
            private.add(store.place)
    most = program.limits.get(loop.end - loop.first)
    for name, position in positions.items():
        if position.ring and name not in private and (most is None or most > position.ring):
            return f"{name} has {position.ring} slots, perhaps fewer than there are steps"
    written_to = {name: position for name, position in positions.items() if name not in private}
    reads = ((site.known, load) for site in loop.sites for load in site.block.loads if load.place in written_to)
    for known, load in reads:
        rows = (s.index for block in blocks_of(loop.body) for s in block.stores if s.place == load.place)
        if position_of(load.place, load.index, loop.counter, inner) == written_to[load.place]:
            continue
        if not all(_other_row(row, load.index, {loop.counter, *inner}, known) for row in rows):
            return f"{load} may be what another step has stored"
    made = (replace(o, fills=_fills(loop, o, places[o.place].slots[o.axis])) for o in written_to.values())
    return Lanes(tuple(made), frozenset(private))


def position_of(place: str, index: Sequence[Term | Steps], counter: Symbol, inner: set[Symbol]) -> Own | None:
    """The one axis at which an index follows the lanes, or None if it does not do so in the simple way."""
    found = None
    for axis, entry in enumerate(index):
        symbols = entry.symbols if isinstance(entry, Term) else entry.start.symbols | entry.length.symbols
        if counter not in symbols:
            continue
        if found is not None or not isinstance(entry, Term):
            return None
        step, ring = unwound(entry)
        offset = step - Term.of(counter)
        if counter in offset.symbols or offset.symbols & inner:
            return None
        found = Own(place, axis, offset, counter, ring=ring)
    return found


def unwound(entry: Term) -> tuple[Term, int]:
    """The step whose slot of a ring an index is, and the slots of the ring; 0 if it is of no ring.

    >>> t = Term.of(Symbol("t", "dim"))
    >>> [str(unwound((t + 3) % 8)[0]), unwound((t + 3) % 8)[1], unwound(t + 3)[1]]
    ['t + 3', 8, 0]
    """
    for monomial, coefficient in entry.monomials:
        if len(monomial) == 1 and isinstance(monomial[0], FloorDiv) and coefficient == -monomial[0].divisor:
            step, ring = monomial[0].dividend, monomial[0].divisor
            if entry is step % ring:
                return step, ring
    return entry, 0


def _other_row(stored: Sequence[Term], read: Sequence[Term | Steps], varying: set[Symbol], known: Condition) -> bool:
    """Whether no slot that is stored to during a loop is read: an entry that is fixed meanwhile differs."""
    fixed = (a - b for a, b in zip(stored, read, strict=True) if isinstance(b, Term) and not a.symbols & varying)
    return any(proves(known, ne(distance, 0)) for distance in fixed)


def _fills(loop: For, own: Own, count: Term) -> bool:
    """Whether the lanes of a loop have all positions of an axis."""
    return loop.first + own.offset is ZERO and loop.end + own.offset is count
