"""Accumulate: a reduction over all steps of a loop is added to in the loop, so that no step of its operand is stored.

`y[0:T].sum(0)` of values that come about one step after the other is the last entry of `R[0] = 0`,
`R[u + 1] = R[u] + y[u]`; a contraction over the steps, such as the gradient of a weight, adds one product at each step.
What an algorithm stores then follows from its objective: policy gradients with one-step returns store one observation.

Legal as any running result (`running.py`). Done where it saves storage, in this order:
- all operands come about in recurrences of one direction, so that there is one loop, in that order, for their steps;
  where these read what others have left, as those of a gradient do, only the steps of that loop are summed, all that
  follows from them is added up, and without contractions, which are done better for all steps at once, nor in a table,
  whose loop goes along two dims and would have one more value to carry at each entry; so the gradient of a recurrent
  weight, which pairs values of both directions, of which one is stored anyway, stays one product;
- no operand is stored for another reason, or made of nothing but what is: no input or output, nothing that others read
  in ranges or that a recurrence of the other direction reads;
- the result is not much larger than what a step adds: large matrices are better added to by many rows at once;
- the user did not ask for the steps to run at once;
- the steps are not those of rows that can end each at a step of its own (`loops/rows.py`), which saves more.
"""

from __future__ import annotations

from collections.abc import Iterator

from polyrhythm.compiler.analysis.directions import NONE, Along
from polyrhythm.compiler.ir.graph import Graph
from polyrhythm.compiler.ir.reads import places
from polyrhythm.compiler.ir.sets import simplified_term, with_facts
from polyrhythm.compiler.ir.terms import Symbol, Term, dims_of, product
from polyrhythm.compiler.ir.types import Shape
from polyrhythm.compiler.passes.dead import wanted
from polyrhythm.compiler.passes.notes import Notes, bytes_of
from polyrhythm.compiler.passes.predicate import circles_of, stepwise
from polyrhythm.compiler.passes.rewriting import Nodes
from polyrhythm.compiler.passes.running import Ranged, axes_of, result, steps_of

SHARE = 32
"""So many times the elements that a step reads may the result have."""

FEW = 16
"""Ranges of no more steps than these are stored: they take little."""

Site = tuple[str, int]
"""A definition: the name of its node, and its number there."""


def accumulate(graph: Graph, notes: Notes) -> Graph:
    """The graph with reductions over all steps of a loop added up in the loop."""
    kept = wanted(graph)
    found = {site: one for site, one in _candidates(graph, kept) if _may_carry(notes, one)}
    ranges = _ranges(graph)
    while True:  # what one candidate reads is stored if another reader of it is none
        left = {site: one for site, one in found.items() if _is_free(one, kept, ranges, found)}
        if len(left) == len(found):
            break
        found = left
    nodes = Nodes(graph)
    for (name, number), ranged in found.items():
        made = result(nodes, ranged)
        if made is not None:
            if made.op == "broadcast":
                made = nodes.copy(nodes[name], made.operands[0], made)
            nodes.redefine(nodes[name], number, made)
            sources = {access.source for access in ranged.definition.operands}
            saved = sum((bytes_of(graph[source]) for source in sorted(sources)), start=0 * bytes_of(ranged.node))
            what = f"a {ranged.summed.monoid} over all steps of {ranged.steps.symbol} is added up in their loop"
            notes.did("accumulate", ranged.definition.at or ranged.node.at, what, 0, saved)
    return nodes.done()


def _may_carry(notes: Notes, ranged: Ranged) -> bool:
    """Whether a result may go from step to step: not to the end of the longest row, where each could end at its own."""
    return ranged.steps.symbol not in notes.at_once and notes.rows.isdisjoint(ranged.steps.extent.symbols)


def _candidates(graph: Graph, kept: set[str]) -> Iterator[tuple[Site, Ranged]]:
    """Reductions over a fixed range of what recurrences of one direction make."""
    nodes = Nodes(graph)
    views: dict[Symbol, Along] = {}
    circles = None
    for node in graph:
        for number, definition in enumerate(node.definitions):
            for summed in axes_of(definition):
                read = [(a, x) for a, x in zip(definition.operands, summed.axes, strict=True) if x is not None]
                if len(read) < len(definition.operands) or not all(x < len(a.ranges) for a, x in read):
                    continue
                steps = steps_of(nodes, *read[0])
                if steps is None or dims_of(steps.extent) or steps.symbol in node.symbols:
                    continue
                length = read[0][0].ranges[read[0][1]].length
                if dims_of(steps.start) or dims_of(length) or _is_short(length):
                    continue
                if any(s in graph.stops for s in (steps.extent + length).symbols):
                    continue
                if steps.symbol not in views:
                    views[steps.symbol] = Along(graph, steps.symbol)
                along = views[steps.symbol]
                made = [_made(along, kept, access.source) for access, _ in read]
                ways = NONE.union(*(along.circles[name] for names in made for name in names))
                if len(ways) != 1 or 0 in ways or not all(made):
                    continue  # or all steps are stored anyway, or can be computed alone from what is
                behind = NONE.union(*(along.behind[access.source] for access, _ in read))
                alone = all(len(access.ranges) == 1 for access, _ in read)  # or what is summed besides shares no loop
                sources = {name for names in made for name in names}
                if behind != ways:
                    circles = circles_of(graph) if circles is None else circles
                    tables = any(stepwise(graph, c) - {steps.symbol} for c in circles if sources & set(c))
                    if tables or not (alone and _is_added_up(along, kept, sources)):
                        continue
                parts = [nodes.type_of(access).shape[len(access.ranges) :] for access, _ in read]
                if not _is_small(node.shape, parts):
                    continue
                known = with_facts(nodes.known(node, definition))
                end = simplified_term(steps.start + length, known)
                yield (
                    (node.name, number),
                    Ranged(node, definition, summed, steps, end, frozenset(), -1 in ways, known),
                )
                break


def _made(along: Along, kept: set[str], name: str) -> set[str]:
    """The nodes of recurrences that a node is made of step by step; of what is stored anyway all steps are there."""
    waiting, seen = [name], {name}
    found: set[str] = set()
    while waiting:
        current = waiting.pop()
        node = along.graph[current]
        turned = along.turns(current)
        if current in kept or along.symbol not in node.symbols:
            continue
        if any(turned & along.behind[reader] for reader in along.readers[current]):
            continue  # a recurrence that goes the other way reads it
        if current in along.circles:
            found.add(current)
            continue
        sources = {access.source for access in along.reads[current]} - seen
        seen |= sources
        waiting += sources
    return found


def _is_added_up(along: Along, kept: set[str], names: set[str]) -> bool:
    """Whether of what follows from some nodes of recurrences nothing is kept step by step, and nothing contracted."""
    waiting, seen = list(names), set[str]()
    while waiting:
        for reader in along.readers[waiting.pop()]:
            if reader in along.circles or reader in seen:
                continue
            node = along.graph[reader]
            stepwise = along.symbol in node.symbols
            if any(definition.op == "einsum" for definition in node.definitions) or (stepwise and reader in kept):
                return False
            seen.add(reader)
            waiting += [reader] if stepwise else []
    return True


def _is_short(length: Term) -> bool:
    return length.is_constant and length.constant <= FEW


def _is_small(shape: Shape, parts: list[Shape]) -> bool:
    size, read = product(shape), sum((product(part) for part in parts), start=product(()) * 0)
    return size.is_constant and read.is_constant and size.constant <= SHARE * read.constant


def _ranges(graph: Graph) -> dict[str, list[Site]]:
    """Who reads long ranges of each node."""
    return {
        name: [(n, k) for n, k, access in read if not all(_is_short(run.length) for run in access.ranges)]
        for name, read in places(graph).items()
    }


def _is_free(ranged: Ranged, kept: set[str], ranges: dict[str, list[Site]], candidates: dict[Site, Ranged]) -> bool:
    """Whether no operand is stored for all steps by anyone but candidates."""
    sources = [access.source for access in ranged.definition.operands]
    return all(name not in kept and all(reader in candidates for reader in ranges[name]) for name in sources)
