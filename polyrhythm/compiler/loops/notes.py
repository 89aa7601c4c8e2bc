"""What was decided about loops, for `program.explain()`: which run at once, are written out, or have growing buffers.

Said by the user's lines, and where a loop has to run step by step, what its next step reads of the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from polyrhythm.compiler.loops.ir import Block, For, Item, LoopProgram, blocks_of, line_of, walk
from polyrhythm.compiler.loops.liveness import live_before, written
from polyrhythm.compiler.passes.notes import Note


def notes_of(program: LoopProgram, compiled_loops: bool) -> Iterator[Note]:
    """A note for every loop; `compiled_loops` says that the backend compiles them, and so has a choice."""
    if not compiled_loops:
        return
    for loop in _outermost(program.body):
        yield from _at_once(program, loop)
    for loop in (item for item in walk(program.body) if isinstance(item, For) and item.unrolled):
        count = len(loop.known or ())
        what = f"the {count} iterations of {loop.counter} are written out, and what they index is kept apart"
        yield Note("unroll", "loop", line_of(loop.body), what)
    growth = program.growth
    if growth is not None and growth.least < 1 << 40:
        what = f"buffers of {growth.bound} begin with {growth.least} steps and double, so that early steps read less"
        yield Note("grow", "buffers", line_of(growth.loop.body), what)


def _outermost(items: Sequence[Item]) -> Iterator[For]:
    """The loops that are not inside of others, and those inside of loops that run step by step."""
    for item in items:
        if isinstance(item, For):
            yield item
        if not isinstance(item, Block) and not (isinstance(item, For) and item.parallel):
            yield from _outermost(item.body)


def _at_once(program: LoopProgram, loop: For) -> Iterator[Note]:
    if loop.known is not None and len(loop.known) < 2:
        return
    count = sum(len(block.body) for block in blocks_of(loop.body))
    if loop.refused:
        what = f"the steps of {loop.counter} are independent, but run one by one: {loop.refused}"
        yield Note("vector", "steps", line_of(loop.body), what, refused=True)
        return
    if loop.lanes is not None:
        chosen = program.chunks.get(loop.counter.name)
        how = (
            f"as chosen, {chosen}" if chosen is not None else "at once, or in tiles of a size that the cost model finds"
        )
        if loop.rows is not None:
            how += f"; rows of similar length together where lengths differ, with {loop.rows.bound} at what they need"
        what = f"the {loop.end - loop.first} steps of {loop.counter} are independent: {how}"
        yield Note("vector", "steps", line_of(loop.body), f"{what}; {count} operations start once for many steps")
        return
    if loop.stop is not None:
        yield Note("vector", "steps", line_of(loop.body), f"{loop.counter} may end at any step", refused=True)
        return
    carried = sorted(live_before(loop.body, set(), program) & written(loop.body))
    if carried:
        at = program.places[carried[0]].at
        names = ", ".join(carried[:3]) + (f" and {len(carried) - 3} more" if len(carried) > 3 else "")
        what = f"a step of {loop.counter} reads what the one before has left in {names}"
        yield Note("vector", "steps", at, what, refused=True)
