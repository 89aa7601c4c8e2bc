"""Renaming: a value inside a recurrence that reads it along one dim at a step of another goes by the recurrence's dim.

In a table over spans, `f(c[k, t])` for a shorter span of length k is a plain value over (k, t), read by the spans of
length l. A loop along l computes `c[l, t]` for one l after the other, and the value belongs right behind: at l = k. As
`f(c[l, t])` over (l, t), read at k, it is the same value, and every statement of the recurrence goes along l. The
gradient of such a value is read at l, and goes by it likewise.

Legal because the dims of a plain node are bound names: its readers name steps by position. Not a pass that can be left
out, since without it there would be no order. It comes last, for other passes make such values too.
"""

from __future__ import annotations

from dataclasses import replace

from polyrhythm.compiler.ir.graph import Graph, Node
from polyrhythm.compiler.ir.reads import components
from polyrhythm.compiler.ir.terms import Symbol, Term


def renamed(graph: Graph) -> Graph:
    """The graph with the plain values of each recurrence over its dims."""
    nodes = dict(graph.nodes)
    for component in components(graph.reads):
        inside = set(component)
        left: set[tuple[str, Symbol]] = set()  # what has been renamed is not named so again
        changed = len(component) > 1
        while changed:
            changed = False
            for name in component:
                node = nodes[name]
                if node.recurrent:
                    continue
                found = _read_at(nodes, node, inside) or _reader_at(nodes, node, inside)
                if found is not None and (name, found[1]) not in left:
                    left.add((name, found[0]))
                    nodes[name] = node.over({found[0]: found[1]})
                    changed = True
    return graph if nodes == graph.nodes else replace(graph, nodes=nodes)


def _read_at(nodes: dict[str, Node], node: Node, inside: set[str]) -> tuple[Symbol, Symbol] | None:
    """A dim of a node, and one that it lacks, at whose step everything of the circle is read that has it."""
    own = set(node.symbols)
    reads = [nodes[a.source].steps(a) for a in node.accesses if a.source in inside]
    for steps in reads:
        for other, step in steps.items():
            if other in own or not isinstance(step, Term) or len(step.symbols) != 1:
                continue
            (dim,) = step.symbols
            if dim not in own or step is not Term.of(dim) or any(dim in each for each in reads):
                continue
            if all(each.get(other, step) is step for each in reads):
                return dim, other
    return None


def _reader_at(nodes: dict[str, Node], node: Node, inside: set[str]) -> tuple[Symbol, Symbol] | None:
    """A dim of a node, and one that it lacks, at whose step all of the circle read it."""
    reads = [
        (reader, node.steps(access))
        for reader in map(nodes.__getitem__, sorted(inside))
        if node.name in reader.sources
        for access in reader.accesses
        if access.source == node.name
    ]
    for dim in node.symbols:
        steps = {steps[dim] for _, steps in reads}
        step = next(iter(steps), None)
        if len(steps) != 1 or not isinstance(step, Term) or len(step.symbols) != 1:
            continue
        (other,) = step.symbols
        if step is Term.of(other) and other.kind == "dim" and other not in node.symbols:
            return dim, other
    return None


__all__ = ["renamed"]
