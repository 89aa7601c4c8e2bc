"""States: what a recurrence takes over unchanged is read where it is stored, a step later.

`h[t + 1] = v[t]` gives two names to one value. The gradient of `h[t + 1] = tanh(h[t] @ w)` reads the states and the
results of `tanh`, and both would be stored for all steps. Here everything outside of the recurrence that reads `v[t]`
reads `h[t + 1]`, so that `v` is there for a step only.

Legal where each point of `v` is a point of `h` that takes it over, which is proved. Done only if both would be stored:
if something that goes the other way through the steps, or follows from that, reads them.
"""

from __future__ import annotations

from collections.abc import Iterator

from polyrhythm.compiler.analysis.directions import NONE, Along
from polyrhythm.compiler.ir.conditions import conjunction
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, operand_type
from polyrhythm.compiler.ir.sets import proves, with_facts
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.passes.copies import reading_originals
from polyrhythm.compiler.passes.dead import wanted
from polyrhythm.compiler.passes.notes import Notes, bytes_of
from polyrhythm.compiler.passes.rewriting import Nodes


def states(graph: Graph, notes: Notes) -> Graph:
    """The graph with reads of states in the place of reads of what they are given."""
    nodes, kept = Nodes(graph), wanted(graph)
    views: dict[Symbol, Along] = {}
    for state in graph:
        for definition in state.definitions:
            found = _taken_over(graph, state, definition)
            if found is None:
                continue
            value, stored, symbol = found
            along = views.setdefault(symbol, Along(graph, symbol))
            circle = next(set(part) for part in along.parts if state.name in part)
            outside = [name for name in dict.fromkeys(along.readers[value.name]) if name not in circle]
            if value.name in kept or value.name not in circle or not _are_stored(along, state, value, kept):
                continue
            for name in outside:
                nodes.nodes[name] = reading_originals(graph.nodes, nodes[name], {value.name: stored})
            notes.did("states", state.at or value.at, f"{value.name} is read as {stored}", 0, bytes_of(value))
    return nodes.done()


def _taken_over(graph: Graph, state: Node, definition: Definition) -> tuple[Node, Access, Symbol] | None:
    """The value that a definition repeats, the read of the state that gives it, and the dim along which it moves."""
    if not definition.record.repeats or state.name in (access.source for access in definition.operands):
        return None
    (access,) = definition.operands
    value = graph[access.source]
    if len(value.dims) != len(state.dims) or operand_type(access, value) != state.type:
        return None
    points = [step for step in access.steps if isinstance(step, Term)]
    if len(points) < len(access.steps):
        return None
    moved = [step - Term.of(symbol) for step, symbol in zip(points, state.symbols, strict=True)]
    along = [symbol for by, symbol in zip(moved, state.symbols, strict=True) if by.constant]
    if not all(by.is_constant for by in moved) or len(along) != 1:
        return None
    place = state.symbols.index(along[0])
    back = {symbol: Term.of(own) - by for symbol, own, by in zip(state.symbols, value.symbols, moved, strict=True)}
    given = conjunction(state.points, definition.domain).substitute(back)
    if not proves(with_facts(value.points), given):
        return None  # some value is no state
    return value, Access(state.name, tuple(back[symbol] for symbol in state.symbols)), value.symbols[place]


def _are_stored(along: Along, state: Node, value: Node, kept: set[str]) -> bool:
    """Whether all steps of the state and of the value would be stored."""
    turned = along.turns(value.name)

    def late(name: str) -> Iterator[str]:
        for reader in along.readers[name]:
            if turned & (along.behind[reader] | along.ahead[reader] | along.circles.get(reader, NONE)):
                yield reader

    return bool(turned) and any(late(value.name)) and (state.name in kept or any(late(state.name)))
