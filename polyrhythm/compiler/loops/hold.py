"""Values that are not read back from a buffer: what this iteration has stored, and what the one before it did.

XLA updates a buffer in place as long as nothing reads an older version of it. A body that stores `c[t + 1]` and reads
`c[t]`, or reads back what it has just stored, gets copies of the whole buffer as soon as two fusions want the value.
So a load of a slot that has been stored to in the same iteration is *held*: it stands for that value. What the next
iteration reads of it is a *register* of the loop, carried beside the buffer. In a loop over the steps of an LSTM of
256 units, batch 32, this took away copies of 42 MB at every step (`docs/decisions.md`).

Legal because a held load has the value that it would read: the slot was stored to, once and without a guard, and
nothing that may be the same slot has been stored since (`legality/holds.py` proves it again). The store behind a
register may have a guard, as the last step of a loop that ends early does: what is carried is what the slot then holds,
stored or not. A slot is told by the terms of its index. Slots of one buffer are different where the difference of some
entry cannot be zero, as in a ring that of `t % 2` and `(t + 1) % 2`. Large rings have no registers: a value more would
be alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyrhythm.compiler.ir.terms import Term, product
from polyrhythm.compiler.loops.ir import Block, For, If, Item, Load, LoopProgram, Place, Register, Steps, sites
from polyrhythm.compiler.loops.liveness import written

LARGE = 1 << 15
"""Bytes of a ring that an iteration would rather read than carry beside it."""

Slot = tuple[str, tuple[Term | Steps, ...]]
"""A place, and the index of one of its slots."""


def with_holds(program: LoopProgram) -> LoopProgram:
    """The program with held loads and the registers of its loops."""
    return replace(program, body=_held(program, program.body, set(), set()))


def _held(
    program: LoopProgram, items: Sequence[Item], known: set[Slot], used: set[Slot], guarded: bool = False
) -> tuple[Item, ...]:
    """Items with held loads. `known` are the slots that have been stored to; those that are loaded go into `used`.

    What is stored under a guard may have been, or not.
    """
    done: list[Item] = []
    for item in items:
        if isinstance(item, Block):
            done.append(_block(item, known, used))
            for store in item.stores:
                if program.places[store.place].kind != "variable":
                    _forget(known, store.place, store.index)
                    known |= set() if guarded else {(store.place, store.index)}
        elif isinstance(item, If):
            done.append(replace(item, body=_held(program, item.body, known, used, guarded=True)))
        else:
            done.append(_loop(program, item))
            for place in written(item.body):
                _forget(known, place, None)
    return tuple(done)


def _block(block: Block, known: set[Slot], used: set[Slot]) -> Block:
    def load(old: Load) -> Load:
        slot = (old.place, old.index)
        if slot in known:
            used.add(slot)
        return replace(old, held=slot in known)

    return block.loading(load)


def _forget(known: set[Slot], place: str, index: tuple[Term, ...] | None) -> None:
    """A slot has another value, or any slot of a place."""
    for name, other in [*known]:
        if name == place and (index is None or not _differ(index, other)):
            known.remove((name, other))


def _loop(program: LoopProgram, loop: For) -> For:
    """A loop with its registers: slots stored once in an iteration, or not, of which the next one holds a load."""
    stores: dict[str, list[tuple[Term, ...] | None]] = {}
    apart = {split.place for split in loop.splits}
    for site in sites(loop.body):
        for store in site.block.stores:
            once = not site.loops and program.places[store.place].kind != "variable"
            plain = not site.guards or store.place not in apart
            stores.setdefault(store.place, []).append(store.index if once and plain else None)
    earlier = {loop.counter: Term.of(loop.counter) - 1}
    possible: dict[Slot, Register] = {}
    for place, found in stores.items():
        if len(found) == 1 and found[0] is not None:
            now = found[0]
            before = tuple(term.substitute(earlier) for term in now)
            ring = not any((a - b).is_constant and a != b for a, b in zip(now, before, strict=True))
            if _differ(now, before) and not (ring and _is_large(program.places[place])):
                possible[place, before] = Register(place, before, now)
    used: set[Slot] = set()
    body = _held(program, loop.body, set(possible), used)
    return replace(loop, body=body, registers=tuple(r for slot, r in possible.items() if slot in used))


def _is_large(place: Place) -> bool:
    size = product((*place.slots, *place.type.shape))
    return not size.is_constant or size.constant * place.type.dtype.itemsize > LARGE


def _differ(one: Sequence[Term | Steps], other: Sequence[Term | Steps]) -> bool:
    """Whether two indices are surely those of different slots."""
    entries = ((a, b) for a, b in zip(one, other, strict=True) if isinstance(a, Term) and isinstance(b, Term))
    return any((a - b).is_never_zero for a, b in entries)
