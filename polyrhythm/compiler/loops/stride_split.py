"""Buffers that a loop reads with a stride, kept apart by remainder while it runs.

`k[t % 2 : t + 1 : 2]` is every second slot of a buffer. XLA copies them together at every step, before a product can
read them. So an outermost loop that reads a buffer along one axis only in strides of m has m arrays instead, one for
each remainder: slot s is at s // m of the array s % m. What is read is then the beginning of one of them, and goes into
the product as it lies. Before and after the loop the buffer is one array as ever.

Legal for reads that begin at one of the first m slots (`Steps.via` is "rows"), where there are no others, which
`legality/layout.py` proves: every slot is in exactly one of the arrays. It costs a copy of the buffer before the loop
and one after it, and their storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyrhythm.compiler.loops.ir import For, If, Item, Load, LoopProgram, Split, Steps, sites


def with_splits(program: LoopProgram) -> LoopProgram:
    """The program with the buffers that its outermost loops keep apart."""
    return replace(program, body=_items(program, program.body))


def _items(program: LoopProgram, items: Sequence[Item]) -> tuple[Item, ...]:
    done: list[Item] = []
    for item in items:
        if isinstance(item, If):
            item = replace(item, body=_items(program, item.body))
        elif isinstance(item, For):
            item = replace(item, splits=_splits(program, item))
        done.append(item)
    return tuple(done)


def _splits(program: LoopProgram, loop: For) -> tuple[Split, ...]:
    """The buffers that a loop is better off with kept apart: products read them, and all reads have one stride."""
    found: dict[str, Split | None] = {}
    inside = list(sites(loop.body))
    for block in (site.block for site in inside if not site.loops):
        ranges = [_range(load) for load in block.loads]
        several = len({(e.start, e.step) for e in ranges if e is not None}) > 1
        for op, load in ((compute.op, load) for compute in block.body for load in compute.loads):
            entry = _range(load)
            if entry is None or several or entry.via != "rows" or op != "einsum":
                found[load.place] = None
            else:
                split = Split(load.place, load.index.index(entry), entry.step)
                if found.setdefault(load.place, split) != split:
                    found[load.place] = None
    inner = [site.block for site in inside if site.loops]
    others = {load.place for block in inner for load in block.loads}
    others |= {store.place for block in inner for store in block.stores}
    kept = (program.places[split.place] for split in found.values() if split is not None)
    able = {place.name for place in kept if place.kind == "buffer" and place.spill is None} - others
    return tuple(split for split in found.values() if split is not None and split.place in able)


def _range(load: Load) -> Steps | None:
    """The range that a load reads, if it is one with a stride along a single axis."""
    ranges = [entry for entry in load.index if isinstance(entry, Steps)]
    return ranges[0] if len(ranges) == 1 and ranges[0].step > 1 else None
