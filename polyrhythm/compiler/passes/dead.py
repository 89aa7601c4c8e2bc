"""Dead code: definitions that hold nowhere, and nodes that nobody reads.

A definition whose domain is empty inside the node's own is dropped; if one is left it holds everywhere, so its
condition goes too. Then whatever the outputs, effects, lengths and stopping conditions do not reach is dropped.
"""

from __future__ import annotations

from dataclasses import replace

from polyrhythm.compiler.ir.conditions import TRUE, conjunction
from polyrhythm.compiler.ir.graph import Graph, Node
from polyrhythm.compiler.ir.reads import reached, roots
from polyrhythm.compiler.ir.sets import solutions, with_facts
from polyrhythm.compiler.passes.notes import Notes, bytes_of


def drop_dead(graph: Graph, notes: Notes) -> Graph:
    """The graph without dead definitions and nodes."""
    nodes = {node.name: _pruned(node, notes) for node in graph}
    used = reached(lambda name: nodes[name].sources, wanted(graph))
    for name, node in nodes.items():
        if name not in used and not (node.definitions[0].record.free or node.definitions[0].record.repeats):
            notes.did("unused", node.at, "is not needed", len(node.definitions), bytes_of(node))
    return replace(graph, nodes={name: node for name, node in nodes.items() if name in used})


def wanted(graph: Graph) -> set[str]:
    """The nodes whose values are used from outside, inputs and host calls with an effect among them."""
    calls = {node.name for node in graph if node.is_input or any(d.effect for d in node.definitions)}
    return roots(graph) | calls


def _pruned(node: Node, notes: Notes) -> Node:
    if len(node.definitions) == 1:
        return node
    kept = []
    for definition in node.definitions:
        condition = with_facts(conjunction(node.points, definition.domain))
        if not solutions(condition).is_empty:
            kept.append(definition)
        else:
            notes.did("nowhere", definition.at or node.at, "holds nowhere")
    if len(kept) == 1:
        kept = [replace(kept[0], domain=TRUE)]
    return replace(node, definitions=tuple(kept)) if kept else node
