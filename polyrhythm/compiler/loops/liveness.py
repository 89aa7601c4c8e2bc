"""Which places a loop must carry from one iteration to the next.

A functional backend threads places through its loops as values. A place is carried when the body writes it and
someone reads what was there: the body itself before writing it, or whatever comes after the loop. A buffer is
changed in part, so writing it reads it too; but loops over all of its slots that store to each, before anything reads
it, leave nothing of what was there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from polyrhythm.compiler.ir.terms import ZERO, Term
from polyrhythm.compiler.loops.ir import Block, For, If, Item, LoopProgram, Steps, blocks_of


def written(items: Sequence[Item]) -> set[str]:
    """The places that some items store to; of those that lie in files, what they fetch is to be in order too."""
    blocks = tuple(blocks_of(items))
    fetched = {load.place for block in blocks for load in block.loads if load.spilled}
    return fetched | {store.place for block in blocks for store in block.stores}


def live_before(items: Sequence[Item], live_after: set[str], program: LoopProgram) -> set[str]:
    """The places whose contents matter before some items, given those that matter after them."""
    live = set(live_after)
    for item in reversed(items):
        if isinstance(item, Block):
            for store in item.stores:
                if program.places[store.place].kind == "variable":
                    live.discard(store.place)
                else:
                    live.add(store.place)
            live |= {load.place for load in item.loads}
        elif isinstance(item, If):
            live |= live_before(item.body, live, program)
        elif item.known is not None and len(item.known) == 1:
            live = live_before(item.body, live, program)  # it runs once: what it stores is stored
        else:
            live |= _loop_live(item, live, program)
            live -= renewed(item, program)
    return live


def renewed(loop: For, program: LoopProgram) -> set[str]:
    """The buffers of which a loop stores every slot, and reads none that it has not stored."""
    uses = tuple(_uses(loop))
    found = set()
    for store in uses:
        if store.stored and _fills(store, program):
            others = [use for use in uses if use.place == store.place and use is not store]
            if all(use.stored or _after(use, store) for use in others):
                found.add(store.place)
    return found


@dataclass(frozen=True)
class _Use:
    """A load or store in a loop: the loops around it, that loop first, and where it is in the text."""

    place: str
    index: tuple[Term | Steps, ...]
    loops: tuple[For, ...]
    position: tuple[int, ...]
    stored: bool
    always: bool


def _uses(loop: For) -> Iterator[_Use]:
    for site in loop.sites:
        always = not site.guards and all(inner.stop is None for inner in site.loops)
        for load in site.block.loads:
            yield _Use(load.place, load.index, site.loops, site.position, False, always)
        for store in site.block.stores:
            yield _Use(store.place, store.index, site.loops, site.position, True, always)


def _fills(store: _Use, program: LoopProgram) -> bool:
    """Whether a store is done for all slots of a buffer: each loop around it counts the slots of an axis."""
    place = program.places[store.place]
    if place.kind != "buffer" or place.spill is not None or not store.always or len(store.loops) != len(store.index):
        return False
    ends: dict[Term | Steps, Term] = {Term.of(loop.counter): loop.end for loop in store.loops if loop.first is ZERO}
    axes = zip(store.index, place.slots, strict=True)
    return len(set(store.index)) == len(ends) == len(store.index) and all(ends.get(i) is n for i, n in axes)


def _after(load: _Use, store: _Use) -> bool:
    """Whether a load comes after a store that fills a buffer: at the same slot where both are in the same iteration."""
    if load.position <= store.position:
        return False
    for one, other in zip(load.loops, store.loops, strict=False):
        if one is not other:
            break
        axis = store.index.index(Term.of(one.counter))
        if load.index[axis] is not store.index[axis]:
            return False
    return True


def carried(loop: For, live_after: set[str], program: LoopProgram) -> list[str]:
    """The places a loop carries, in a fixed order."""
    needed = live_after | _loop_live(loop, live_after, program)
    return sorted(written(loop.body) & needed)


def _loop_live(loop: For, live_after: set[str], program: LoopProgram) -> set[str]:
    """What matters before a loop: also what one iteration leaves for the next."""
    done = {loop.stop.done.place} if loop.stop is not None else set()
    live = set(live_after)
    while True:
        again = live | live_before(loop.body, live | done, program)
        if again == live:
            return live
        live = again
