"""Dead code: definitions that hold nowhere, and nodes that nobody reads.

A definition whose domain is empty inside the node's own is dropped; if one is left it holds everywhere, so its
condition goes too. Then whatever the outputs, effects, lengths and stopping conditions do not reach is dropped.
"""

from __future__ import annotations

from dataclasses import replace

from polyrhythm.compiler.ir.conditions import TRUE, conjunction
from polyrhythm.compiler.ir.graph import Graph, Node
from polyrhythm.compiler.ir.sets import facts, solutions
from polyrhythm.compiler.passes.notes import Notes, bytes_of


def drop_dead(graph: Graph, notes: Notes) -> Graph:
    """The graph without dead definitions and nodes."""
    nodes = {node.name: _pruned(node, notes) for node in graph}
    reached: set[str] = set()
    waiting = list(wanted(graph))
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting.extend(access.source for d in nodes[name].definitions for access in d.operands)
    for name, node in nodes.items():
        if name not in reached and not (node.definitions[0].record.free or node.definitions[0].record.repeats):
            notes.did("unused", node.at, "is not needed", len(node.definitions), bytes_of(node))
    return replace(graph, nodes={name: node for name, node in nodes.items() if name in reached})


def wanted(graph: Graph) -> set[str]:
    """The nodes whose values are used from outside, inputs and host calls with an effect among them."""
    names = {*graph.outputs, *graph.effects, *graph.until.values(), *(a.source for a in graph.lengths.values())}
    for node in graph:
        for definition in node.definitions:
            if definition.op == "input" or definition.effect:
                names.add(node.name)
    return names


def _pruned(node: Node, notes: Notes) -> Node:
    if len(node.definitions) == 1:
        return node
    kept = []
    for definition in node.definitions:
        condition = conjunction(node.points, definition.domain)
        condition = conjunction(condition, facts(condition.symbols))
        if not solutions(condition).is_empty:
            kept.append(definition)
        else:
            notes.did("nowhere", definition.at or node.at, "holds nowhere")
    if len(kept) == 1:
        kept = [replace(kept[0], domain=TRUE)]
    return replace(node, definitions=tuple(kept)) if kept else node
