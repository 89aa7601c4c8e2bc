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
that lies between two recurrences: their loops go step by step, and are better peeled than guarded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from polyrhythm.compiler.analysis.ranks import most_steps
from polyrhythm.compiler.ir.conditions import TRUE, Condition, conjunction
from polyrhythm.compiler.ir.graph import Definition, Graph, Node
from polyrhythm.compiler.ir.reads import components
from polyrhythm.compiler.ir.sets import facts, simplified
from polyrhythm.compiler.passes.notes import Notes

EDGE = 64
"""The most steps of an edge."""


def predicate(graph: Graph, notes: Notes) -> Graph:
    """The graph with a guarded read in place of two definitions, where one of them is an edge."""
    if not notes.compiled_loops:
        return graph
    near = near_recurrences(graph)
    found = {dim.bound for dim in graph.until}
    nodes = {}
    for node in graph:
        chosen = None if node.recurrent or node.name in near else _chosen(node)
        if chosen is not None and found.isdisjoint(chosen.symbols):
            notes.did("edge", node.at, "a read with a condition instead of two pieces", 0)
            node = replace(node, definitions=(chosen,))
        nodes[node.name] = node
    return replace(graph, nodes=nodes)


def near_recurrences(graph: Graph) -> set[str]:
    """The nodes of recurrences, between them, and those that they read or that read them."""
    reads = {node.name: [access.source for d in node.definitions for access in d.operands] for node in graph}
    circles = {name for part in components(reads) for name in part if len(part) > 1 or part[0] in reads[part[0]]}
    readers: dict[str, list[str]] = {name: [] for name in reads}
    for name, sources in reads.items():
        for source in sources:
            readers[source].append(name)
    near = circles | (_reached(circles, reads) & _reached(circles, readers))
    return near | {s for name in circles for s in reads[name]} | {r for name in circles for r in readers[name]}


def _reached(start: set[str], following: Mapping[str, Sequence[str]]) -> set[str]:
    """All that some nodes lead to."""
    found: set[str] = set()
    waiting = list(start)
    while waiting:
        further = set(following[waiting.pop()]) - found
        found |= further
        waiting += further
    return found


def _chosen(node: Node) -> Definition | None:
    """The two definitions of a node as one; None where it has others, or neither is an edge."""
    if len(node.definitions) != 2 or any(not d.record.repeats or d.operands[0].ranges for d in node.definitions):
        return None
    one, other = sorted(node.definitions, key=lambda d: not _is_edge(node, d.domain))
    if not _is_edge(node, one.domain):
        return None
    condition = simplified(other.domain, node.points)
    operands = (*other.operands, *one.operands)
    return Definition(TRUE, "choose", operands, {"condition": condition, "shape": node.shape}, other.at)


def _is_edge(node: Node, domain: Condition) -> bool:
    """Whether a domain holds at a few steps of a dim only, of those that a node has."""
    where = conjunction(node.points, domain)
    where = conjunction(where, facts(where.symbols))
    steps = (most_steps(where, symbol) for symbol in node.symbols if symbol in domain.symbols)
    return any(n is not None and n <= EDGE for n in steps)
