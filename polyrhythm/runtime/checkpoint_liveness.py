"""What a run must keep at a cut of an outermost loop: the places whose contents are read after it.

A value crosses a cut between two iterations when it is written before and read after it. Between blocks of one loop
that is a dependence with a positive distance in iterations; between different outermost loops it is their order.
What one iteration writes and reads by itself, such as all the activations of a training step, does not cross.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.loops.ir import For
from polyrhythm.compiler.loops.units import Unit
from polyrhythm.compiler.pipeline import Compiled
from polyrhythm.compiler.schedule.dependences import Dependence, least
from polyrhythm.compiler.schedule.scheduler import Item, Loop


def crossing(compiled: Compiled, unit: Unit) -> set[str]:
    """The places that are written up to some iteration of a unit, and read after it; outputs are read at the end."""
    order = _order(compiled.schedule)
    here = next(n for n, item in enumerate(compiled.schedule) if _is(item, unit))
    outputs = set(compiled.loops.outputs)
    writers = _writers(compiled)
    kept = {name for name in outputs if any(order[block] <= here for block in writers.get(name, ()))}
    for dependence in compiled.dependences:
        source, reader = order[dependence.source], order[dependence.reader]
        if source == reader == here:
            crosses = _carried(compiled.schedule[here], dependence)
        else:
            crosses = source <= here <= reader
        if crosses:
            kept |= compiled.loops.places.keys() & dependence.values
    return kept


def follows(schedule: tuple[Item, ...], dim: Symbol) -> bool:
    """Whether an outermost loop goes through a dim step by step."""
    return any(_steps(item, dim) for item in schedule)


def runs_ahead(schedule: tuple[Item, ...], dim: Symbol) -> bool:
    """Whether a loop does all steps of a dim at once before another goes through them step by step.

    What it does then depends on how many there are, so that a run cannot go further from a step.
    """
    stepwise = [number for number, item in enumerate(schedule) if _steps(item, dim)]
    before = schedule[: max(stepwise, default=0)]
    loops = (item for item in before if isinstance(item, Loop) and item.parallel)
    return any(member.dim is dim for loop in loops for member in loop.members.values())


def hands_out(compiled: Compiled, dim: Symbol) -> bool:
    """Whether the outputs come out step by step along a dim, perhaps after a beginning that is done at once.

    An outermost loop that follows the dim makes them, and once it has begun nothing else does.
    """
    order, writers = _order(compiled.schedule), _writers(compiled)
    for name in compiled.graph.outputs:
        if dim in compiled.graph[name].symbols:
            places = {order[block] for block in writers.get(name, ())}
            stepwise = {n for n in places if _steps(compiled.schedule[n], dim)}
            if not stepwise or any(place > min(stepwise) for place in places - stepwise):
                return False
    return True


def _steps(item: Item, dim: Symbol) -> bool:
    return isinstance(item, Loop) and steps_along(item, dim)


def steps_along(loop: Loop, dim: Symbol) -> bool:
    """Whether a loop goes through a dim step by step, not all at once."""
    return not loop.parallel and any(member.dim is dim for member in loop.members.values())


def loop_of(schedule: tuple[Item, ...], unit: Unit) -> Loop | None:
    """The loop of the schedule that a unit is a piece of."""
    found = next(item for item in schedule if _is(item, unit))
    return found if isinstance(found, Loop) else None


def _is(item: Item, unit: Unit) -> bool:
    """Whether a unit is a piece of an item of the schedule."""
    if isinstance(unit.item, For):
        return isinstance(item, Loop) and item.counter is unit.item.counter
    return unit.item.name in _blocks(item)


def _blocks(item: Item) -> Iterator[str]:
    if isinstance(item, str):
        yield item
    else:
        yield from item.members


def _order(schedule: tuple[Item, ...]) -> dict[str, int]:
    """The outermost item of each block."""
    return {block: number for number, item in enumerate(schedule) for block in _blocks(item)}


def _writers(compiled: Compiled) -> dict[str, list[str]]:
    """The blocks that store each value."""
    found: dict[str, list[str]] = {}
    for block in compiled.blocks.values():
        for statement in block.statements:
            found.setdefault(statement.node, []).append(block.name)
    return found


def _carried(loop: Item, dependence: Dependence) -> bool:
    """Whether a later iteration of a loop reads what an earlier one wrote."""
    assert isinstance(loop, Loop)
    source, reader = loop.members[dependence.source], loop.members[dependence.reader]
    steps: Mapping[Symbol, Term] = dependence.steps
    distance = reader.time - source.time.substitute(dict(steps))
    nearest = least(-distance, dependence.condition)
    return nearest is None or nearest < 0
