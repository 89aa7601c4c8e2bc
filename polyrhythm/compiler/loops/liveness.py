"""Which places a loop must carry from one iteration to the next.

A functional backend threads places through its loops as values. A place is carried when the body writes it and
someone reads what was there: the body itself before writing it, or whatever comes after the loop. A buffer is
changed in part, so writing it reads it too; but loops over all of its slots that store to each, before anything reads
it, leave nothing of what was there. What each iteration fills and reads by itself (`private.py`) begins anew in each.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyrhythm.compiler.ir.conditions import Condition
from polyrhythm.compiler.ir.terms import ZERO, Term
from polyrhythm.compiler.loops.ir import Block, For, If, Item, LoopProgram, Steps, Use, blocks_of


def written(items: Sequence[Item]) -> set[str]:
    """The places that some items store to; of those that lie in files, what they fetch is to be in order too."""
    blocks = tuple(blocks_of(items))
    fetched = {load.place for block in blocks for load in block.loads if load.spilled}
    return fetched | {store.place for block in blocks for store in block.stores}


def live_before(items: Sequence[Item], live_after: set[str], program: LoopProgram) -> set[str]:
    """The places whose contents matter before some items, given those that matter after them.

    What matters only where a guard holds does not matter before what stores it under the same guard.
    """
    live = set(live_after)
    where: dict[str, Condition] = {}  # what matters under one guard only
    for item in reversed(items):
        if isinstance(item, Block):
            for store in item.stores:
                if program.places[store.place].kind == "variable":
                    live.discard(store.place)
                    where.pop(store.place, None)
                else:
                    live.add(store.place)
            live |= item.sources
        elif isinstance(item, If):
            here = live | {place for place, guard in where.items() if guard is item.condition}
            before = live_before(item.body, here, program)
            where = {place: guard for place, guard in where.items() if guard is not item.condition}
            live |= before & where.keys()
            where.update(dict.fromkeys(before - live, item.condition))
        else:
            live |= where.keys()
            where = {}
            if item.known is not None and len(item.known) == 1:
                live = live_before(item.body, live, program)  # it runs once: what it stores is stored
            else:
                live |= _loop_live(item, live, program)
                live -= renewed(item, program)
    return live | where.keys()


def renewed(loop: For, program: LoopProgram) -> set[str]:
    """The buffers of which a loop stores every slot, and reads none that it has not stored."""
    uses = [use for site in loop.sites for use in site.uses]
    found = set()
    for store in uses:
        if store.stored and _fills(store, program):
            others = [use for use in uses if use.place == store.place and use is not store]
            if all(use.stored or _after(use, store) for use in others):
                found.add(store.place)
    return found


def _fills(store: Use, program: LoopProgram) -> bool:
    """Whether a store is done for all slots of a buffer: each loop around it counts the slots of an axis."""
    place, loops = program.places[store.place], store.site.loops
    always = not store.site.guards and all(loop.stop is None for loop in loops)
    if place.kind != "buffer" or place.spill is not None or not always or len(loops) != len(store.index):
        return False
    ends: dict[Term | Steps, Term] = {Term.of(loop.counter): loop.end for loop in loops if loop.first is ZERO}
    axes = zip(store.index, place.slots, strict=True)
    return len(set(store.index)) == len(ends) == len(store.index) and all(ends.get(i) is n for i, n in axes)


def _after(load: Use, store: Use) -> bool:
    """Whether a load comes after a store that fills a buffer: at the same slot where both are in the same iteration."""
    if load.site.position <= store.site.position:
        return False
    for one, other in zip(load.site.loops, store.site.loops, strict=False):
        if one is not other:
            break
        axis = store.index.index(Term.of(one.counter))
        if load.index[axis] is not store.index[axis]:
            return False
    return True


def carried(loop: For, live_after: set[str], program: LoopProgram) -> list[str]:
    """The places a loop carries, in a fixed order."""
    needed = live_after | _loop_live(loop, live_after, program)
    return sorted((written(loop.body) & needed) - loop.private)


def _loop_live(loop: For, live_after: set[str], program: LoopProgram) -> set[str]:
    """What matters before a loop: also what one iteration leaves for the next."""
    done = {loop.stop.done.place} if loop.stop is not None else set()
    live = set(live_after)
    while True:
        again = live | live_before(loop.body, live | done, program)
        again -= loop.private - live_after
        if again == live:
            return live
        live = again
