"""Values that one iteration of a loop makes and uses by itself.

Such a value is private to the iteration: every block that reads it is in the loop and reads what the same iteration
wrote, in the same iterations of all loops around it. Iterations that run all at once then need a copy each, and
nothing of it matters before or after: a loop that runs one iteration after the other need not carry it. Found from
the dependences, two minima for each and level; the scheduler has asked for one of them before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.loops.ir import For, Item, LoopProgram, mapped, walk
from polyrhythm.compiler.schedule.dependences import Dependence, least
from polyrhythm.compiler.schedule.scheduler import Item as Scheduled
from polyrhythm.compiler.schedule.scheduler import Loop


def with_private(program: LoopProgram, schedule: Sequence[Scheduled], dependences: Sequence[Dependence]) -> LoopProgram:
    """The program with the private buffers of every loop written to it that is parallel or has others inside."""
    stops = {item.stop.done.place for item in walk(program.body) if isinstance(item, For) and item.stop is not None}
    buffers = {name for name, place in program.places.items() if place.kind in ("buffer", "variable")} - stops
    reads: dict[str, list[Dependence]] = {}
    for dependence in dependences:
        for name in buffers.intersection(dependence.values):
            reads.setdefault(name, []).append(dependence)
    found: dict[Symbol, frozenset[str]] = {}
    for loop, around in _loops(schedule, ()):
        own = (name for name, own in reads.items() if all(_inside((*around, loop), d) for d in own))
        found[loop.counter] = frozenset(own)

    def marked(item: Item) -> Item:
        if isinstance(item, For):
            return replace(item, private=found.get(item.counter, frozenset()))
        return item

    return replace(program, body=mapped(program.body, marked))


def _loops(items: Sequence[Scheduled], around: tuple[Loop, ...]) -> Iterator[tuple[Loop, tuple[Loop, ...]]]:
    """Every loop that is parallel or has others inside, with the loops around it."""
    for item in items:
        if isinstance(item, Loop):
            if item.parallel or any(isinstance(inner, Loop) for inner in item.body):
                yield item, around
            yield from _loops(item.body, (*around, item))


def _inside(loops: tuple[Loop, ...], dependence: Dependence) -> bool:
    """Whether a value is read in the same iteration of all loops that it was written in."""
    for loop in loops:
        if dependence.source not in loop.members or dependence.reader not in loop.members:
            return False
        source, reader = loop.members[dependence.source], loop.members[dependence.reader]
        distance = reader.time - source.time.substitute(dict(dependence.steps))
        if not all(_at_least_zero(d, dependence) for d in (distance, -distance)):
            return False
    return True


def _at_least_zero(distance: Term, dependence: Dependence) -> bool:
    smallest = least(distance, dependence.condition)
    return smallest is not None and smallest >= 0
