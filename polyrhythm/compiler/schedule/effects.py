"""Blaming an effect for which no order exists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyrhythm.compiler.ir.graph import Graph
from polyrhythm.compiler.schedule.blocks import Block
from polyrhythm.compiler.schedule.dependences import Dependence
from polyrhythm.compiler.schedule.scheduler import ScheduleError, schedule
from polyrhythm.errors import EffectError


def contradiction(graph: Graph, blocks: Mapping[str, Block], dependences: Sequence[Dependence]) -> EffectError | None:
    """The effect whose order contradicts the values that its calls read; None if no effect is to blame."""
    for effect in dict.fromkeys(d.effect for d in dependences if d.effect is not None):
        try:
            schedule(blocks, [d for d in dependences if d.effect != effect])
        except ScheduleError:
            continue
        callers = dict.fromkeys(d.reader for d in dependences if d.effect == effect)
        nodes = [graph[blocks[name].statements[-1].node] for name in callers]
        calls = [definition.attributes["function"].name for node in nodes for definition in node.definitions[:1]]
        first, *others = nodes
        return EffectError(
            f"the calls of {' and '.join(dict.fromkeys(calls))} cannot run in the order of the effect {effect!r}: "
            "one of them needs what comes after it",
            fix="let a call depend only on calls that come before it: earlier steps, or earlier lines",
            at=first.at,
            also=tuple(dict.fromkeys(("through", node.at) for node in others if node.at not in (None, first.at))),
        )
    return None
