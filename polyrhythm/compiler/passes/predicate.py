"""Predicate: a value that is another at the edges is one definition with a guarded read, not two pieces.

`where(t >= k, u[t - k], 0)` has two definitions. Each of them is a block, so a sum of five such values makes a loop of
five pieces, every piece a copy of the body; the gradients of shifted reads have an edge each as well. Here the node
gets one definition, `choose`, which reads its first operand where a condition holds and its second elsewhere. A
vectorised loop then makes one select of it, and there is nothing to cut.

Legal because the two domains exclude each other and cover the node, which is checked before: at each point the operand
read is the one that the definition there reads. Every read keeps its condition, in dependences, storage and checker.

Only where one of the two holds at a few steps of a dim, at an edge: a loop that is one thing in its first half and
another in its second, as one that reads a prompt and then writes, is better cut. Recurrent tensors stay as they are:
a select of a whole state at every step would copy it. So does what a recurrence reads itself, what reads it, and all
that lies between two recurrences, along the dims that a recurrence goes step by step, if the edge is one step: that is
better peeled than guarded. The borders of a stencil that is repeated are along the other dim, whose steps run at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from polyrhythm.compiler.analysis.ranks import most_steps
from polyrhythm.compiler.analysis.well_founded import recurrence
from polyrhythm.compiler.ir.conditions import TRUE, Condition, Junction, conjunction, parts_of
from polyrhythm.compiler.ir.graph import Definition, Graph, Node, operand_type
from polyrhythm.compiler.ir.reads import circles, reached, readers
from polyrhythm.compiler.ir.sets import equal, simplified, with_facts
from polyrhythm.compiler.ir.terms import ONE, Symbol
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.passes.notes import Notes

EDGE = 64
"""The most steps of an edge."""

LONG_EDGE = 2
"""The steps of an edge that are not peeled off a recurrence: each such edge would be a loop of its own, with a copy of
the body, and XLA compiles every copy (a generator with dilations 1, 2, 4 and 8: 2.7 s, guarded 1.2)."""


def predicate(graph: Graph, notes: Notes) -> Graph:
    """The graph with a guarded read in place of two definitions, where one of them is an edge."""
    if not notes.compiled_loops:
        return graph
    circles = circles_of(graph)
    near = near_recurrences(graph, circles)
    found = {dim.bound for dim in graph.until}

    @cache
    def serial(number: int) -> frozenset[Symbol]:
        return stepwise(graph, circles[number])

    def peeled(node: Node) -> set[Symbol]:
        """The dims of a node along which some loop that computes it goes step by step."""
        own = set(node.symbols) if node.name in near else set()
        along = (n for n, circle in enumerate(circles) if any(own & set(graph[name].symbols) for name in circle))
        return own.intersection(*[frozenset().union(*map(serial, along))])

    nodes = {}
    for node in graph:
        chosen = _chosen(node, peeled(node)) or _chosen(node, set(), LONG_EDGE) if _is_chosen(graph, node) else None
        if chosen is not None and found.isdisjoint(chosen.symbols):
            notes.did("edge", node.at, "a read with a condition instead of two pieces", 0)
            node = replace(node, definitions=(chosen,))
        nodes[node.name] = node
    return replace(graph, nodes=nodes)


def circles_of(graph: Graph) -> list[frozenset[str]]:
    """The nodes of each recurrence."""
    return [frozenset(part) for part in circles(graph.reads)]


def stepwise(graph: Graph, circle: frozenset[str]) -> frozenset[Symbol]:
    """The dims along which a recurrence may go step by step; all that it has, unless one loop is enough."""
    found = recurrence(graph, circle).depths()
    if min(found.values(), default=0) == 1:
        return frozenset(symbol for symbol, depth in found.items() if depth == 1)
    return frozenset(symbol for name in circle for symbol in graph[name].symbols)


def near_recurrences(graph: Graph, circles: Sequence[frozenset[str]]) -> set[str]:
    """The nodes of recurrences, between them, and those that they read or that read them."""
    reads = graph.reads
    within = {name for circle in circles for name in circle}
    found = readers(graph.nodes)
    before, after = reached(reads.__getitem__, within), reached(found.__getitem__, within)
    return before & after | {s for name in within for s in reads[name]} | {r for name in within for r in found[name]}


def _is_chosen(graph: Graph, node: Node) -> bool:
    """Whether a node is one of two values of single points, each of a shape that fits wherever the other is read."""
    if node.recurrent or len(node.definitions) != 2 or not all(d.record.repeats for d in node.definitions):
        return False
    reads = [d.operands[0] for d in node.definitions]
    return all(not read.ranges and _fits(node, operand_type(read, graph[read.source])) for read in reads)


def _fits(node: Node, kind: TensorType) -> bool:
    """Whether a value can be repeated in the shape of a node at all of its points."""
    lengths = zip(kind.shape[::-1], node.shape[::-1], strict=False)
    return all(own is ONE or equal(own, whole, node.points) for own, whole in lengths)


def _chosen(node: Node, serial: set[Symbol], fewest: int = 0) -> Definition | None:
    """The two definitions of a node as one, where one of them holds at a few steps of a dim that is not serial.

    With `fewest` an edge has at least so many steps.
    """
    for one, other in (node.definitions, node.definitions[::-1]):
        always = (part for part in _common(one.domain) if _is_peeled(part, serial, node))
        inside = conjunction(node.points, *always)
        here, there = (simplified(d.domain, inside) for d in (one, other))
        if any(_is_peeled(part, serial, node) for part in _compared(here)):
            continue
        edges = [d for d, where in ((other, there), (one, here)) if _is_edge(node, inside, where, fewest)]
        if edges:
            usual = one if edges[0] is other else other
            condition = simplified(usual.domain, node.points)
            operands = (*usual.operands, *edges[0].operands)
            return Definition(TRUE, "choose", operands, {"condition": condition, "shape": node.shape}, usual.at)
    return None


def _compared(condition: Condition) -> tuple[Condition, ...]:
    """The comparisons that a condition is made of."""
    if isinstance(condition, Junction):
        return tuple(found for part in condition.parts for found in _compared(part))
    return (condition,)


def _is_peeled(part: Condition, serial: set[Symbol], node: Node) -> bool:
    """Whether a loop that goes step by step can be cut where a comparison begins to hold: if no other dim has a say."""
    own = part.symbols & set(node.symbols)
    return bool(own & serial) and own <= serial


def _common(condition: Condition) -> set[Condition]:
    """What holds wherever a condition does, in each of the alternatives that it may have."""
    sides = condition.parts if isinstance(condition, Junction) and condition.word == "or" else (condition,)
    return set.intersection(*(set(parts_of(side)) for side in sides)) if sides else set()


def _is_edge(node: Node, inside: Condition, domain: Condition, fewest: int) -> bool:
    """Whether a domain holds at a few steps of a dim only, of those that a node has, but not at fewer than some."""
    sides = domain.parts if isinstance(domain, Junction) and domain.word == "or" else (domain,)
    for symbol in (symbol for symbol in node.symbols if symbol in domain.symbols):
        wheres = (conjunction(inside, side) for side in sides)
        steps = [most_steps(with_facts(where), symbol) for where in wheres]
        if fewest <= sum(EDGE + 1 if n is None else n for n in steps) <= EDGE:
            return True
    return False
