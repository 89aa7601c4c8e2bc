"""Domain reduction: what does not vary along a dim is computed once, outside the loop over it.

A plain node whose definition mentions a dim nowhere has the same value at all steps of the dim. The operation
moves to a node without it, and the old node becomes a copy that readers see through; a reader of a range of steps
keeps reading the copy. The new node exists where some step of the old one does, so nothing is computed that was not.
A broadcast stays where it is, since it costs nothing there and much memory if it is kept. Draws of random numbers
and host calls differ from step to step by what they are.
"""

from __future__ import annotations

from dataclasses import replace

from polyrhythm.compiler.ir.conditions import TRUE, conjunction
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, copy_of
from polyrhythm.compiler.ir.sets import points, simplified
from polyrhythm.compiler.ir.terms import Symbol, ordered
from polyrhythm.compiler.passes.copies import reading_originals
from polyrhythm.compiler.passes.dead import wanted
from polyrhythm.compiler.passes.notes import Notes
from polyrhythm.compiler.passes.rewriting import Nodes


def narrow(graph: Graph, notes: Notes) -> Graph:
    """The graph with operations moved out of loops along which they do not vary."""
    nodes = Nodes(graph)
    originals: dict[str, Access] = {}
    kept = wanted(graph)
    for name in list(graph.nodes):
        node = nodes.nodes[name] = reading_originals(nodes.nodes, nodes[name], originals)
        if node.only is None or node.only.record.cheap or name in kept:
            continue
        definition = node.only
        dims = _needed(node, definition)
        if len(dims) == len(node.dims):
            continue
        smaller = _without(nodes, node, dims)
        nodes.nodes[smaller.name] = smaller
        copied = smaller.here
        copy = copy_of(copied, smaller, node.shape, TRUE, definition.at)
        nodes.nodes[name] = replace(node, definitions=(copy,))
        originals[name] = copied
        gone = ", ".join(str(symbol) for symbol in node.symbols if symbol not in dims)
        notes.did("narrow", definition.at or node.at, f"{definition.op} is computed once for all {gone}", 1)
    return nodes.done()


def _needed(node: Node, definition: Definition) -> set[Symbol]:
    """The dims along which a value varies, and those that its other dims or its domain depend on."""
    used = set(definition.symbols).union(*(length.symbols for length in node.shape))
    needed = {s for s in node.symbols if s in used or any(s in other.over for other in used)}
    for dim in reversed(node.dims):
        if dim.symbol in needed:
            over = dim.extent.symbols.union(*(s.over for s in dim.extent.symbols))
            needed |= over & set(node.symbols)
    return needed


def _without(nodes: Nodes, node: Node, dims: set[Symbol]) -> Node:
    """The node over fewer dims: where it exists at some step of the others."""
    gone = [symbol for symbol in node.symbols if symbol not in dims]
    columns = ordered(node.points.symbols | set(node.symbols))
    left = tuple(dim for dim in node.dims if dim.symbol in dims)
    smaller = replace(node, name=nodes.fresh(f"{node.name}_once"), dims=left, domain=TRUE)
    where = points(node.points, columns).without(gone).condition()
    domain = simplified(where, conjunction(smaller.rectangle))
    return replace(smaller, domain=domain)
