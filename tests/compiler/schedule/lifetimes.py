"""Lifetimes of values under a schedule, followed one by one at small bounds, and the slots they need."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from polyrhythm.compiler.ir.graph import Range
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.pipeline import Compiled
from polyrhythm.compiler.schedule.blocks import Block, stored_reads
from tests.compiler.schedule.enumeration import Bounds, Point, When, lookup, points_of, when


class Visit(NamedTuple):
    """When a point of a tensor is written or read, and by which block; and whether that block writes the tensor."""

    at: When
    block: str
    writes: bool = True


Lives = dict[Point, tuple[Visit, list[Visit]]]
"""When each point of a tensor is written, and when it is read."""


def lives(compiled: Compiled, name: str, bounds: Bounds) -> Lives:
    """The life of every value of a tensor."""
    times = when(compiled.schedule, compiled.blocks, bounds)
    node = compiled.graph[name]
    current = tuple(Term.of(s) for s in node.symbols)
    found: Lives = {}
    writers = set()
    for block in compiled.blocks.values():
        if any(s.node == name and s.steps == current for s in block.statements):
            writers.add(block.name)
            for point in points_of(block, bounds):
                found[point] = (Visit(times[block.name, point], block.name), [])
    for block in compiled.blocks.values():
        for point, at in _reads(compiled, block, name, bounds):
            if point in found:
                found[point][1].append(Visit(times[block.name, at], block.name, block.name in writers))
    return found


def _reads(compiled: Compiled, block: Block, name: str, bounds: Bounds) -> list[tuple[Point, Point]]:
    found = []
    for read in stored_reads(compiled.graph, block):
        if read.access.source != name:
            continue
        for at in points_of(block, bounds):
            here = lookup(bounds, dict(zip(block.dims, at, strict=True)))
            entries = []
            for step in read.access.steps:
                if isinstance(step, Range):
                    start, length = step.start.evaluate(here), step.length.evaluate(here)
                    entries.append([start + k * step.step for k in range(length)])
                else:
                    entries.append([step.evaluate(here)])
            found += [(point, at) for point in product(*entries)]
    return found


def clashes(values: Lives, slots: tuple[int | None, ...], write_first: bool) -> list[tuple[Point, Point]]:
    """Values that share a slot while the earlier one is still to be read.

    With `write_first` a write counts as done at the start of the iteration of the loops it shares with the read; but
    not if whoever reads writes too, between the two.
    """
    wrong = []
    for first, (written, reads) in values.items():
        for second, (overwritten, _) in values.items():
            if not written.at < overwritten.at or not _same(first, second, slots):
                continue
            if any(_lost(overwritten, read, write_first) for read in reads):
                wrong.append((first, second))
    return wrong


def _lost(second: Visit, reading: Visit, write_first: bool) -> bool:
    overwritten, read = second.at, reading.at
    if overwritten < read:
        return True
    if not write_first or (reading.writes and reading.block != second.block):
        return False
    shared = 0
    while shared + 2 < min(len(overwritten), len(read)) + 1 and overwritten[shared] == read[shared]:
        shared += 2
    shared = min(shared, (min(len(overwritten), len(read)) - 1) // 2 * 2)
    return shared > 0 and overwritten[:shared] == read[:shared]


def _same(a: Point, b: Point, slots: tuple[int | None, ...]) -> bool:
    return all(x == y if n is None else (x - y) % n == 0 for x, y, n in zip(a, b, slots, strict=True))
