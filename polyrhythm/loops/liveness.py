"""Which places a loop must carry from one iteration to the next.

A functional backend threads places through its loops as values. A place is carried when the body writes it and
someone reads what was there: the body itself before writing it, or whatever comes after the loop. A buffer is only
ever changed in part, so writing it reads it too.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyrhythm.loops.ir import Block, For, If, Item, Load, LoopProgram


def written(items: Sequence[Item]) -> set[str]:
    """The places that some items store to."""
    found: set[str] = set()
    for item in items:
        if isinstance(item, Block):
            found |= {store.place for store in item.stores}
        else:
            found |= written(item.body)
    return found


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
            for compute in item.body:
                live |= {operand.place for operand in compute.operands if isinstance(operand, Load)}
        elif isinstance(item, If):
            live |= live_before(item.body, live, program)
        else:
            live |= _loop_live(item, live, program)
    return live


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
