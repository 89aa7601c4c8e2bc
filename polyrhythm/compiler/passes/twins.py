"""Equal recurrences: two that are defined alike, each by itself where the other reads the other, are one.

Gradients that are asked for one by one, `pr.grad(loss, w)` and `pr.grad(loss, b)`, each go back through the steps.
`share` cannot see that they do the same, for it compares what is read first, and a recurrence reads itself. So here all
nodes of one form, read at the same steps, are held to be equal until something tells them apart: what they read is not
equal. What is left when nothing changes any more is equal at every point, by induction along the order in which the
points are computed.

Draws of random numbers, host calls and inputs are equal to nothing; what a checkpoint computes again is not equal to
what it is a copy of.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Any

from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node
from polyrhythm.compiler.ir.reads import components
from polyrhythm.compiler.passes.copies import reading_originals
from polyrhythm.compiler.passes.dead import wanted
from polyrhythm.compiler.passes.notes import Notes, bytes_of


def share_recurrences(graph: Graph, notes: Notes) -> Graph:
    """The graph with equal nodes of recurrences computed once."""
    reads = graph.reads
    circular = {name for part in components(reads) if len(part) > 1 or part[0] in reads[part[0]] for name in part}
    kinds = equal(graph)
    first: dict[int, Node] = {}
    originals: dict[str, Access] = {}
    kept = wanted(graph)
    for node in graph:
        if node.name not in circular:
            continue
        one = first.setdefault(kinds[node.name], node)
        if one is not node and node.name not in kept:
            originals[node.name] = Access(one.name, node.current)
            notes.did("share", node.at, f"the same recurrence is computed already, at {one.at}", 1, bytes_of(node))
    if not originals:
        return graph
    nodes = {node.name: reading_originals(graph.nodes, node, originals) for node in graph}
    return replace(graph, nodes=nodes)


def equal(graph: Graph) -> dict[str, int]:
    """A number for each node: two that have the same one have the same values."""
    forms = {node.name: _form(node) for node in graph}
    kinds = _numbered(forms)
    while True:
        finer = _numbered({n.name: (kinds[n.name], *(kinds[source] for source in n.sources)) for n in graph})
        if len(set(finer.values())) == len(set(kinds.values())):
            return kinds
        kinds = finer


def _numbered(keys: dict[str, Hashable]) -> dict[str, int]:
    numbers: dict[Hashable, int] = {}
    return {name: numbers.setdefault(key, len(numbers)) for name, key in keys.items()}


def _form(node: Node) -> Hashable:
    """What a node is but for what it reads."""
    if any(d.record.sited or d.record.external or d.record.calls for d in node.definitions):
        return node.name
    return node.dims, node.type, node.recurrent, node.again, node.domain, tuple(map(_rule, node.definitions))


def _rule(definition: Definition) -> Hashable:
    steps = tuple(access.steps for access in definition.operands)
    return definition.domain, definition.op, steps, _hashable(definition.attributes.items())


def _hashable(values: Iterable[Any]) -> Hashable:
    return tuple(_hashable(value) if isinstance(value, tuple) else _one(value) for value in values)


def _one(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value).__name__, value
