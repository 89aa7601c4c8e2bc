"""Copy propagation: what merely repeats another tensor is read there instead.

A node with one definition that copies a value, or broadcasts it to the shape it already has, is a copy. Its readers
read the original, at the steps composed. That is legal because the copy's value at a point is the original's at the
composed point, wherever the copy is defined, and readers read it only there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyrhythm.compiler.ir.graph import Access, Graph, Node, operand_type
from polyrhythm.compiler.passes.access import composed
from polyrhythm.compiler.passes.dead import wanted
from polyrhythm.compiler.passes.notes import Notes, bytes_of


def propagate_copies(graph: Graph, notes: Notes) -> Graph:
    """The graph with every read of a copy replaced by a read of the original."""
    originals = {node.name: copied for node in graph if (copied := _copied(graph, node)) is not None}
    for name in wanted(graph):
        originals.pop(name, None)
    for name in originals:
        node = graph[name]
        notes.did("copy", node.at, "reads the original", 1, bytes_of(node))
    nodes = {node.name: reading_originals(graph.nodes, node, originals) for node in graph}
    lengths = {s: read_through(graph.nodes, access, originals) for s, access in graph.lengths.items()}
    return replace(graph, nodes=nodes, lengths=lengths)


def _copied(graph: Graph, node: Node) -> Access | None:
    """What a node is a copy of."""
    if len(node.definitions) != 1 or not node.definitions[0].record.repeats:
        return None
    access = node.definitions[0].operands[0]
    same = operand_type(access, graph[access.source]) == node.type
    return access if same and access.source != node.name else None


def reading_originals(nodes: Mapping[str, Node], node: Node, originals: Mapping[str, Access]) -> Node:
    """A node that reads originals instead of copies; itself where it reads no copy."""
    if not any(source in originals for source in node.sources):
        return node
    return node.reading(lambda access: read_through(nodes, access, originals))


def read_through(nodes: Mapping[str, Node], access: Access, originals: Mapping[str, Access]) -> Access:
    """Follow copies as far as they can be followed; a circle of copies is left alone."""
    seen = set()
    while access.source in originals and access.source not in seen:
        seen.add(access.source)
        node = nodes[access.source]
        found = composed(originals[access.source], node.symbols, access.steps)
        if found is None:
            return access
        deeper, origin = found
        # The axes that ranges become must keep their order: those of the reader first, then the copy's own.
        outer = [number for number in origin if number is not None]
        first_inner = origin.index(None) if None in origin else len(origin)
        if outer != list(range(len(access.ranges))) or any(n is not None for n in origin[first_inner:]):
            return access
        access = deeper
    return access
