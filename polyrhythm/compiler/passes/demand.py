"""Where a node is read: the union of what all its readers read, as an exact set of points."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import FALSE, Condition, conjunction, eq
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node
from polyrhythm.compiler.ir.reads import positioned
from polyrhythm.compiler.ir.sets import Points, facts, points, simplified
from polyrhythm.compiler.ir.terms import Symbol, ordered


def read_condition(
    graph: Graph, name: str, forget: Collection[Symbol] = (), by: Collection[str] | None = None
) -> Condition:
    """The points of a node that are read, by some nodes or any, as a condition on its dims.

    It holds for any value of the bounds to `forget`.
    """
    node = graph[name]
    found: Points | None = None
    for reader in (node for node in graph if by is None or node.name in by):
        for definition in reader.definitions:
            for number, access in enumerate(definition.operands):
                if access.source == name:
                    image = _image(reader, definition, access, node, definition.read_where(number))
                    found = image if found is None else found | image
    return FALSE if found is None else found.without(forget).condition()


def narrowed(graph: Graph, names: Sequence[str], forget: Collection[Symbol] = ()) -> Graph:
    """The graph with some plain nodes limited to where they are read; readers come before what they read."""
    nodes = dict(graph.nodes)
    for name in names:
        node = nodes[name]
        where = conjunction(node.domain, read_condition(replace(graph, nodes=nodes), name, forget))
        nodes[name] = replace(node, domain=simplified(where, node.rectangle))
    return replace(graph, nodes=nodes)


def _image(reader: Node, definition: Definition, access: Access, source: Node, where: Condition) -> Points:
    targets = [Symbol(symbol.name, "dim", serial=serials.TARGET) for symbol in source.symbols]
    steps, inside, positions = positioned(source.steps(access))
    there = (eq(target.term, step) for target, step in zip(targets, steps.values(), strict=True))
    condition = conjunction(reader.points, definition.domain, where, inside, *there)
    condition = conjunction(condition, facts(condition.symbols))
    bounds = ordered(s for s in condition.symbols if s.kind != "dim")
    columns = (*bounds, *reader.symbols, *positions, *targets)
    image = points(condition, columns).without((*reader.symbols, *positions))
    return Points((*bounds, *source.symbols), image.isl_set)
