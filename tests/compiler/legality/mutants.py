"""Random small changes to a Loop IR program: what a scheduler, a storage planner or a builder could get wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

from polyrhythm.compiler.ir.conditions import Condition, Junction, conjunction, negation
from polyrhythm.compiler.ir.terms import FloorDiv, Term
from polyrhythm.compiler.loops.ir import Block, For, If, Item, Load, Local, LoopProgram, Place, Steps

Change = Callable[[LoopProgram, Random], LoopProgram | None]
Path = tuple[int, ...]


def mutant(program: LoopProgram, random: Random) -> tuple[str, LoopProgram] | None:
    """A changed program and the name of the change; None where the change does not apply."""
    name, change = random.choice(CHANGES)
    changed = change(program, random)
    return None if changed is None or changed == program else (name, changed)


def _paths(items: tuple[Item, ...], prefix: Path = ()) -> Iterator[tuple[Path, Item]]:
    for position, item in enumerate(items):
        yield (*prefix, position), item
        if not isinstance(item, Block):
            yield from _paths(item.body, (*prefix, position))


def _bodies(program: LoopProgram) -> list[tuple[Path, tuple[Item, ...]]]:
    inner = [(path, item.body) for path, item in _paths(program.body) if not isinstance(item, Block)]
    return [((), program.body), *inner]


def _with_body(items: tuple[Item, ...], path: Path, body: tuple[Item, ...]) -> tuple[Item, ...]:
    """The items with the body at a path replaced."""
    if not path:
        return body
    here = items[path[0]]
    assert not isinstance(here, Block)
    changed = replace(here, body=_with_body(here.body, path[1:], body))
    return (*items[: path[0]], changed, *items[path[0] + 1 :])


def _with_item(program: LoopProgram, path: Path, item: Item | None) -> LoopProgram:
    """The program with the item at a path replaced, or removed."""
    body = dict(_bodies(program))[path[:-1]]
    new = () if item is None else (item,)
    body = (*body[: path[-1]], *new, *body[path[-1] + 1 :])
    return replace(program, body=_with_body(program.body, path[:-1], body))


def _choose(program: LoopProgram, random: Random, kind: Any) -> tuple[Path, Any] | None:
    found = [(path, item) for path, item in _paths(program.body) if isinstance(item, kind)]
    return random.choice(found) if found else None


def swap_items(program: LoopProgram, random: Random) -> LoopProgram | None:
    bodies = [(path, body) for path, body in _bodies(program) if len(body) > 1]
    if not bodies:
        return None
    path, body = random.choice(bodies)
    a, b = random.sample(range(len(body)), 2)
    if random.random() < 0.7:
        a = random.randrange(len(body) - 1)
        b = a + 1
    items = list(body)
    items[a], items[b] = items[b], items[a]
    return replace(program, body=_with_body(program.body, path, tuple(items)))


def move_item(program: LoopProgram, random: Random) -> LoopProgram | None:
    path, item = random.choice(list(_paths(program.body)))
    without = _with_item(program, path, None)
    target, body = random.choice(_bodies(without))
    at = random.randint(0, len(body))
    return replace(without, body=_with_body(without.body, target, (*body[:at], item, *body[at:])))


def repeat_item(program: LoopProgram, random: Random) -> LoopProgram | None:
    _, item = random.choice(list(_paths(program.body)))
    target, body = random.choice(_bodies(program))
    at = random.randint(0, len(body))
    return replace(program, body=_with_body(program.body, target, (*body[:at], item, *body[at:])))


def drop_item(program: LoopProgram, random: Random) -> LoopProgram | None:
    path, _ = random.choice(list(_paths(program.body)))
    return _with_item(program, path, None)


def change_range(program: LoopProgram, random: Random) -> LoopProgram | None:
    chosen = _choose(program, random, For)
    if chosen is None:
        return None
    path, loop = chosen
    by = random.choice([-2, -1, 1, 2])
    if random.random() < 0.5:
        return _with_item(program, path, replace(loop, first=loop.first + by))
    return _with_item(program, path, replace(loop, end=loop.end + by))


def change_guard(program: LoopProgram, random: Random) -> LoopProgram | None:
    chosen = _choose(program, random, If)
    if chosen is None:
        return None
    path, guard = chosen
    condition: Condition = guard.condition
    how = random.randrange(3)
    if how == 0:
        condition = negation(condition)
    elif how == 1 and isinstance(condition, Junction):
        parts = list(condition.parts)
        parts.pop(random.randrange(len(parts)))
        condition = conjunction(*parts) if condition.word == "and" else negation(conjunction(*map(negation, parts)))
    else:
        symbol = random.choice(sorted(condition.symbols, key=lambda s: s.sort_key()))
        condition = condition.substitute({symbol: Term.of(symbol) + random.choice([-1, 1])})
    return _with_item(program, path, replace(guard, condition=condition))


def drop_guard(program: LoopProgram, random: Random) -> LoopProgram | None:
    chosen = _choose(program, random, If)
    if chosen is None:
        return None
    path, guard = chosen
    body = dict(_bodies(program))[path[:-1]]
    body = (*body[: path[-1]], *guard.body, *body[path[-1] + 1 :])
    return replace(program, body=_with_body(program.body, path[:-1], body))


def drop_store(program: LoopProgram, random: Random) -> LoopProgram | None:
    found = [(p, i) for p, i in _paths(program.body) if isinstance(i, Block) and i.stores]
    if not found:
        return None
    path, block = random.choice(found)
    gone = random.randrange(len(block.stores))
    return _with_item(program, path, replace(block, stores=block.stores[:gone] + block.stores[gone + 1 :]))


def _shifted(index: tuple[Any, ...], random: Random) -> tuple[Any, ...]:
    at = random.randrange(len(index))
    entry, by = index[at], random.choice([-1, 1])
    if isinstance(entry, Steps):
        start, length = (entry.start + by, entry.length) if random.random() < 0.6 else (entry.start, entry.length + by)
        entry = replace(entry, start=start, length=length)
    else:
        entry = entry + by
    return (*index[:at], entry, *index[at + 1 :])


def shift_store(program: LoopProgram, random: Random) -> LoopProgram | None:
    blocks = [(path, item) for path, item in _paths(program.body) if isinstance(item, Block)]
    found = [(path, block, n) for path, block in blocks for n, store in enumerate(block.stores) if store.index]
    if not found:
        return None
    path, block, number = random.choice(found)
    stores = list(block.stores)
    stores[number] = replace(stores[number], index=_shifted(stores[number].index, random))
    return _with_item(program, path, replace(block, stores=tuple(stores)))


def _operands(program: LoopProgram, kind: Any) -> list[tuple[Path, Block, int, int]]:
    return [
        (path, block, n, m)
        for path, block in _paths(program.body)
        if isinstance(block, Block)
        for n, compute in enumerate(block.body)
        for m, operand in enumerate(compute.operands)
        if isinstance(operand, kind)
    ]


def _with_operand(block: Block, n: int, m: int, operand: Any) -> Block:
    compute = block.body[n]
    operands = (*compute.operands[:m], operand, *compute.operands[m + 1 :])
    return replace(block, body=(*block.body[:n], replace(compute, operands=operands), *block.body[n + 1 :]))


def shift_load(program: LoopProgram, random: Random) -> LoopProgram | None:
    found = [f for f in _operands(program, Load) if f[1].body[f[2]].operands[f[3]].index]  # type: ignore[union-attr]
    if not found:
        return None
    path, block, n, m = random.choice(found)
    load: Any = block.body[n].operands[m]
    return _with_item(program, path, _with_operand(block, n, m, replace(load, index=_shifted(load.index, random))))


def other_place(program: LoopProgram, random: Random) -> LoopProgram | None:
    found = _operands(program, Load)
    if not found:
        return None
    path, block, n, m = random.choice(found)
    load: Any = block.body[n].operands[m]
    places = [p.name for p in program.places.values() if len(p.slots) == len(load.index)]
    return _with_item(program, path, _with_operand(block, n, m, replace(load, place=random.choice(places))))


def other_local(program: LoopProgram, random: Random) -> LoopProgram | None:
    found = _operands(program, Local)
    if not found:
        return None
    path, block, n, m = random.choice(found)
    name = random.choice(block.body).result
    return _with_item(program, path, _with_operand(block, n, m, Local(name)))


def swap_operands(program: LoopProgram, random: Random) -> LoopProgram | None:
    found = [f for f in _operands(program, (Load, Local)) if len(f[1].body[f[2]].operands) > 1]
    if not found:
        return None
    path, block, n, _ = random.choice(found)
    compute = block.body[n]
    operands = list(compute.operands)
    a, b = random.sample(range(len(operands)), 2)
    operands[a], operands[b] = operands[b], operands[a]
    body = (*block.body[:n], replace(compute, operands=tuple(operands)), *block.body[n + 1 :])
    return _with_item(program, path, replace(block, body=body))


def swap_computations(program: LoopProgram, random: Random) -> LoopProgram | None:
    found = [(p, i) for p, i in _paths(program.body) if isinstance(i, Block) and len(i.body) > 1]
    if not found:
        return None
    path, block = random.choice(found)
    body = list(block.body)
    a, b = random.sample(range(len(body)), 2)
    body[a], body[b] = body[b], body[a]
    return _with_item(program, path, replace(block, body=tuple(body)))


def change_attribute(program: LoopProgram, random: Random) -> LoopProgram | None:
    found = [
        (path, block, n, key)
        for path, block in _paths(program.body)
        if isinstance(block, Block)
        for n, compute in enumerate(block.body)
        for key, value in compute.attributes.items()
        if isinstance(value, Term) and compute.op == "index"
    ]
    if not found:
        return None
    path, block, n, key = random.choice(found)
    compute = block.body[n]
    attributes = {**compute.attributes, key: compute.attributes[key] + random.choice([-1, 1])}
    body = (*block.body[:n], replace(compute, attributes=attributes), *block.body[n + 1 :])
    return _with_item(program, path, replace(block, body=body))


def change_stop(program: LoopProgram, random: Random) -> LoopProgram | None:
    found = [(p, i) for p, i in _paths(program.body) if isinstance(i, For) and i.stop is not None]
    if not found:
        return None
    path, loop = random.choice(found)
    assert loop.stop is not None
    if random.random() < 0.3:
        return _with_item(program, path, replace(loop, stop=None))
    stop = replace(loop.stop, length=loop.stop.length + random.choice([-1, 1]))
    return _with_item(program, path, replace(loop, stop=stop))


def fold(program: LoopProgram, random: Random) -> LoopProgram | None:
    """Give one axis of a buffer another modulus, in its slots and in every index."""
    axes = [(p, n) for p in program.places.values() if p.kind == "buffer" for n in range(len(p.slots))]
    if not axes:
        return None
    place, axis = random.choice(axes)
    return refolded(program, place, axis, random.randint(1, 4))


def refolded(program: LoopProgram, place: Place, axis: int, ring: int) -> LoopProgram:
    """The program with another modulus for one axis of a place."""

    def entry(slot: Any) -> Any:
        return replace(slot, ring=ring) if isinstance(slot, Steps) else unfolded(slot) % ring

    def index(old: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*old[:axis], entry(old[axis]), *old[axis + 1 :])

    def item(old: Item) -> Item:
        if not isinstance(old, Block):
            return replace(old, body=tuple(map(item, old.body)))
        stores = tuple(replace(s, index=index(s.index)) if s.place == place.name else s for s in old.stores)
        body = []
        for compute in old.body:
            operands = (
                replace(o, index=index(o.index)) if isinstance(o, Load) and o.place == place.name else o
                for o in compute.operands
            )
            body.append(replace(compute, operands=tuple(operands)))
        return replace(old, body=tuple(body), stores=stores)

    slots = (*place.slots[:axis], Term(ring), *place.slots[axis + 1 :])
    places = {**program.places, place.name: replace(place, slots=slots)}
    return replace(program, places=places, body=tuple(map(item, program.body)))


def unfolded(slot: Term) -> Term:
    """`x` for `x % k`; other terms as they are."""
    for monomial, coefficient in slot.monomials:
        atom = monomial[0]
        if isinstance(atom, FloorDiv) and len(monomial) == 1 and slot is atom.dividend % atom.divisor and coefficient:
            return atom.dividend
    return slot


def merge_iterations(program: LoopProgram, random: Random) -> LoopProgram | None:
    """Fuse two neighbouring loops into one, as if nothing between them mattered."""
    pairs = [
        (path, body, n)
        for path, body in _bodies(program)
        for n in range(len(body) - 1)
        if isinstance(body[n], For) and isinstance(body[n + 1], For)
    ]
    if not pairs:
        return None
    path, body, n = random.choice(pairs)
    first: Any = body[n]
    second: Any = body[n + 1]
    if first.counter is not second.counter:
        return None
    fused = replace(first, body=(*first.body, *second.body))
    return replace(program, body=_with_body(program.body, path, (*body[:n], fused, *body[n + 2 :])))


def make_parallel(program: LoopProgram, random: Random) -> LoopProgram | None:
    chosen = _choose(program, random, For)
    return None if chosen is None else _with_item(program, chosen[0], replace(chosen[1], parallel=True))


def change_limit(program: LoopProgram, random: Random) -> LoopProgram | None:
    """A window is said to be shorter than it is."""
    if not program.limits:
        return None
    term = random.choice(sorted(program.limits, key=str))
    return replace(program, limits={**program.limits, term: program.limits[term] - 1})


def change_via(program: LoopProgram, random: Random) -> LoopProgram | None:
    """Several slots are fetched another way."""
    loads = [f for f in _operands(program, Load) if any(isinstance(e, Steps) for e in _load(f).index)]
    if not loads:
        return None
    path, block, n, m = found = random.choice(loads)
    index: list[Any] = list(_load(found).index)
    at = random.choice([n for n, entry in enumerate(index) if isinstance(entry, Steps)])
    index[at] = replace(index[at], via=random.choice(["slice", "rows", "ring"]))
    return _with_item(program, path, _with_operand(block, n, m, replace(_load(found), index=tuple(index))))


def claim_zeros(program: LoopProgram, random: Random) -> LoopProgram | None:
    """What lies beyond a read is said to be zeros: no mask."""
    loads = [f for f in _operands(program, Load) if any(isinstance(e, Steps) for e in _load(f).index)]
    loads = [f for f in loads if not _load(f).zeros]
    if not loads:
        return None
    path, block, n, m = found = random.choice(loads)
    return _with_item(program, path, _with_operand(block, n, m, replace(_load(found), zeros=True)))


def drop_axis(program: LoopProgram, random: Random) -> LoopProgram | None:
    """A place is kept without one of its axes."""
    found = [place for place in program.places.values() if len(place.whole) > 1]
    if not found:
        return None
    place = random.choice(found)
    axes = list(place.axes or range(len(place.whole)))
    axes.pop(random.randrange(len(axes)))
    return replace(program, places={**program.places, place.name: replace(place, axes=tuple(axes))})


def hold_load(program: LoopProgram, random: Random) -> LoopProgram | None:
    """A value is taken to be at hand though its slot may have been overwritten."""
    loads = [f for f in _operands(program, Load) if _load(f).index and not _load(f).held]
    if not loads:
        return None
    path, block, n, m = found = random.choice(loads)
    return _with_item(program, path, _with_operand(block, n, m, replace(_load(found), held=True)))


def change_register(program: LoopProgram, random: Random) -> LoopProgram | None:
    """A register is of another slot."""
    loops = [(p, i) for p, i in _paths(program.body) if isinstance(i, For) and i.registers]
    if not loops:
        return None
    path, loop = random.choice(loops)
    at = random.randrange(len(loop.registers))
    old = loop.registers[at]
    way = random.randrange(3)
    if way == 0:
        new = [replace(old, before=_shifted(old.before, random))]
    elif way == 1:
        new = [replace(old, now=_shifted(old.now, random))]
    else:
        new = []
    return _with_item(program, path, replace(loop, registers=(*loop.registers[:at], *new, *loop.registers[at + 1 :])))


def change_lanes(program: LoopProgram, random: Random) -> LoopProgram | None:
    """Lanes have other slots to themselves, fill what they do not have, or share what they write."""
    loops = [(p, i) for p, i in _paths(program.body) if isinstance(i, For) and i.lanes and i.lanes.written]
    if not loops:
        return None
    path, loop = random.choice(loops)
    assert loop.lanes is not None
    lanes, at = loop.lanes, random.randrange(len(loop.lanes.written))
    own = lanes.written[at]
    way = random.randrange(4)
    if way == 0:
        own = replace(own, offset=own.offset + random.choice([-1, 1]))
    elif way == 1:
        own = replace(own, axis=(own.axis + 1) % len(program.places[own.place].slots))
    elif way == 2:
        own = replace(own, fills=True)
    rest = (*lanes.written[:at], *([] if way == 3 else [own]), *lanes.written[at + 1 :])
    private = lanes.private | {own.place} if way == 3 else lanes.private
    return _with_item(program, path, replace(loop, lanes=replace(lanes, written=rest, private=private)))


def _load(found: tuple[Path, Block, int, int]) -> Load:
    load = found[1].body[found[2]].operands[found[3]]
    assert isinstance(load, Load)
    return load


CHANGES: list[tuple[str, Change]] = [
    (change.__name__, change)
    for change in (
        swap_items,
        swap_items,
        move_item,
        repeat_item,
        drop_item,
        change_range,
        change_range,
        change_guard,
        drop_guard,
        drop_store,
        shift_store,
        shift_load,
        other_place,
        other_local,
        swap_operands,
        swap_computations,
        change_attribute,
        change_stop,
        fold,
        fold,
        merge_iterations,
        make_parallel,
        change_limit,
        change_via,
        change_via,
        claim_zeros,
        drop_axis,
        hold_load,
        hold_load,
        change_register,
        change_register,
        change_lanes,
        change_lanes,
    )
]
