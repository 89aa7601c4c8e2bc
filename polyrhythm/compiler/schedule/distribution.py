"""Loop distribution: what is not on the cycle of a recurrence runs before or after it, all steps at once.

A parallel loop can be fused with the recurrence that reads it, or that it reads: then of what passes between them a
step is stored, or a few, and every step starts the operations of both. *Distributed*, it is a vectorised loop of its
own, and all steps of what passes are stored. It is distributed where

- nothing is saved by fusing: what it reads of the recurrence is kept for all steps anyway;
- it has operations that XLA does not compute together with their readers, such as reductions, which each step would
  start anew, and what passes takes at most `SHARE` times what is stored anyway at each step (`tiles.py`): inputs,
  outputs, what the recurrence leaves for later readers, and what others have left for it, as for a gradient; and it is
  not between two recurrences, of which the first would have to be stored for it.

Under a memory budget the second does not count.

Two parallel loops are distributed as well where the first makes little of wide values, such as the sum of a row of
weights, and the second waits for all steps of something made of those: fused with the second it would have the wide
values stored for all steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from polyrhythm.compiler.analysis.ranks import FEW_STEPS, most_steps
from polyrhythm.compiler.ir.sets import least
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.schedule.blocks import Block
from polyrhythm.compiler.schedule.dependence_index import ByBlock
from polyrhythm.compiler.schedule.dependences import Dependence
from polyrhythm.compiler.schedule.groups import Group
from polyrhythm.compiler.schedule.shifts import Ranks
from polyrhythm.compiler.schedule.tiles import Tiling

Dims = Mapping[str, Symbol | None]
"""The dim of each block along which a loop goes."""


def most_steps_of(blocks: Mapping[str, Block], group: Group, symbol: Symbol) -> int | None:
    """The most steps that a member has along a dim; None where there is no limit."""
    most = 0
    for name in group.members:
        block = blocks[name]
        if symbol in block.dims:
            steps = most_steps(block.domain, symbol)
            if steps is None:
                return None
            most = max(most, steps)
    return most


def is_kept(
    blocks: Mapping[str, Block],
    target: Group,
    dims: Dims,
    ranks: Ranks,
    crossing: Sequence[Dependence],
) -> bool:
    """Whether independent steps gain nothing by joining a recurrence: it keeps all that they read of it anyway."""
    along = next((dim for name in target.members if (dim := dims[name]) is not None), None)
    steps = None if along is None else most_steps_of(blocks, target, along)
    if not crossing or (steps is not None and steps <= FEW_STEPS):
        return False
    return all(least(ranks[d.source].substitute(d.steps) - ranks[d.reader], d.condition) is None for d in crossing)


def is_cheap_to_keep(
    blocks: Mapping[str, Block],
    tiling: Tiling | None,
    group: Group,
    dependences: ByBlock,
    crossing: Sequence[Dependence],
    kept: Iterable[Block],
) -> bool:
    """Whether what a recurrence reads is better made before it, or what reads it after it, all steps at once.

    All steps of what the blocks `kept` make are stored anyway.
    """
    if tiling is None or not tiling.distributes or not any(blocks[name].launches for name in group.members):
        return False
    symbol = group.ways[0].symbol
    if symbol in tiling.untiled or most_steps_of(blocks, group, symbol) is not None:
        return False
    if not tiling.is_affordable((blocks[d.source] for d in crossing), kept):
        return False
    # Between two recurrences that could share a loop, what it reads of the one would have to be stored as well.
    after = any(d.source not in group.members for d in crossing)
    if dependences.around(group.members, after) & dependences.circular:
        return False
    tiling.distributed.update({(d.source, d.reader): symbol for d in crossing})
    return True


def left_for_later(
    blocks: Mapping[str, Block], tiling: Tiling | None, group: Group, recurrence: Group, dependences: ByBlock
) -> Iterator[Block]:
    """What a recurrence makes that is read in other loops than that of a group before it."""
    inside = {*group.members, *recurrence.members}
    members = (blocks[name] for name in recurrence.members if tiling is not None)
    return (block for block in members if tiling is not None and tiling.is_read_later(block, inside, dependences))


def left_by_others(
    blocks: Mapping[str, Block], recurrence: Group, ranks: Ranks, dims: Dims, dependences: ByBlock
) -> Iterator[Block]:
    """What a recurrence that goes back through the steps reads of those that went forward, which is all stored."""
    back = all((dim := dims[name]) is None or ranks[name].coefficient(dim) < 0 for name in recurrence.members)
    sources = {d.source for name in recurrence.members for d in dependences.into(name)} if back else set()
    return (blocks[name] for name in sorted(sources - set(recurrence.members)))


def lets_go(blocks: Mapping[str, Block], fresh: Group, target: Group, symbol: Symbol, dependences: ByBlock) -> bool:
    """Whether a producer makes little of wide values that end before the loop of its consumers can begin."""
    if any(blocks[name].wide for name in fresh.members):
        return False
    into = (d.source for name in fresh.members for d in dependences.into(name))
    waiting = [(name, False) for name in into if blocks[name].wide and name not in fresh.members]
    seen = set(waiting)
    while waiting:
        name, waited = waiting.pop()
        if waited and name in target.members:
            return True
        for d in dependences.out_of(name):
            alike = symbol in blocks[d.reader].dims and not reads_without_limit(d, symbol)
            entry = d.reader, waited or not alike
            if entry not in seen and d.reader not in fresh.members:
                seen.add(entry)
                waiting.append(entry)
    return False


def reads_without_limit(dependence: Dependence, symbol: Symbol) -> bool:
    """Whether a block reads a range along a dim that goes back, or ahead, as far as there are steps."""
    step = dependence.steps.get(symbol)
    if step is None or all(s.kind != "dim" or s is symbol for s in step.symbols):
        return False
    behind = Term.of(symbol) - step
    return any(least(way, dependence.condition) is None for way in (behind, -behind))
