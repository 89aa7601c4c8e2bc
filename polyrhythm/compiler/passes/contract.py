"""Sums of products over steps become one contraction, and sums of scattered rows one scatter.

A sum over a range of steps of `einsum(a, b)` at each step is one `einsum` of the ranges, with the steps as one more
label that is summed. The gradient of a weight is the common case: an outer product per step, summed over batch and
time, becomes a matrix product, and the products of single steps are never stored. The gradient of an embedding is a
table of zeros with one row of each step added to it: summed, it is one table to which the rows of all steps are added.
Legal because addition is associative; sums in floating point may round differently, as they may in any reduction.
"""

from __future__ import annotations

import string

import numpy as np

from polyrhythm.compiler.ir.conditions import TRUE, conjunction
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, stacks_shapes
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.reads import positioned
from polyrhythm.compiler.ir.sets import proves
from polyrhythm.compiler.ir.types import Array
from polyrhythm.compiler.passes.access import composed
from polyrhythm.compiler.passes.notes import Notes, bytes_of
from polyrhythm.compiler.passes.rewriting import Nodes


def contract_sums(graph: Graph, notes: Notes) -> Graph:
    """The graph with sums of contractions contracted at once; what sums those is contracted in turn."""
    found = _once(graph, notes)
    return found if found is graph else contract_sums(found, notes)


def _once(graph: Graph, notes: Notes) -> Graph:
    nodes, changed = Nodes(graph), False
    sums: dict[object, Access] = {}  # of one operand alone, by what is summed
    for node in graph:
        for number, definition in enumerate(node.definitions):
            contracted = _contracted(nodes, node, definition, sums) or _scattered(nodes, node, definition)
            if contracted is not None:
                source = graph[definition.operands[0].source]
                kind = "contraction" if contracted.op == "einsum" else "scatter"
                what = f"a sum over {', '.join(map(str, source.symbols))} is one {kind}"
                notes.did("sum-of-products", definition.at or node.at, what, 1, bytes_of(source))
                nodes.redefine(nodes[node.name], number, contracted)
                changed = True
    return nodes.done() if changed else graph


def _summed(graph: Graph, definition: Definition, op: str) -> Definition | None:
    """The operation of which a definition sums the results over ranges of steps, and nothing else."""
    if definition.op != "reduce" or definition.attributes["monoid"] != "sum":
        return None
    access = definition.operands[0]
    source = graph[access.source]
    if not access.ranges or sorted(definition.attributes["axes"]) != list(range(len(access.ranges))):
        return None
    if len(source.definitions) != 1 or source.definitions[0].op != op:
        return None
    return source.definitions[0]


def _contracted(nodes: Nodes, node: Node, definition: Definition, sums: dict[object, Access]) -> Definition | None:
    graph = nodes.graph
    product = _summed(graph, definition, "einsum")
    if product is None:
        return None
    access = definition.operands[0]
    source, ranges = graph[access.source], access.ranges
    words, output = parse_spec(product.attributes["spec"])
    fresh = [c for c in string.ascii_letters if c not in "".join((*words, output))][: len(ranges)]
    operands: list[Access] = []
    renamed: list[str] = []
    used: set[str] = set()
    for word, operand in zip(words, product.operands, strict=True):
        found = composed(operand, source.symbols, access.steps)
        if found is None:
            return None
        read, origin = found
        if stacks_shapes(read, graph[read.source]) or not _is_there(graph, node, definition, read):
            return None
        old = iter(word)
        leading = "".join(next(old) if number is None else fresh[number] for number in origin)
        operands.append(read)
        renamed.append(leading + "".join(old))
        used.update(fresh[number] for number in origin if number is not None)
    if len(used) < len(ranges):  # nothing varies along a summed dim: the count would be lost
        return None
    for number, word in enumerate(renamed if len(renamed) > 1 else ()):
        others = "".join((output, *renamed[:number], *renamed[number + 1 :]))
        axes = tuple(axis for axis, label in enumerate(word) if label in fresh and label not in others)
        if axes:  # steps of one operand alone: their sum may be a scatter, and nothing else needs to store them
            key, read = (operands[number], axes, node.dims, nodes.known(node, definition)), operands[number]
            if key not in sums:
                hint = f"{node.name}_sum"
                sums[key] = nodes.add(hint, node, definition, "reduce", (read,), monoid="sum", axes=axes)
            operands[number] = sums[key]
            renamed[number] = "".join(label for axis, label in enumerate(word) if axis not in axes)
    spec = f"{','.join(renamed)}->{output}"
    return Definition(definition.domain, "einsum", tuple(operands), {"spec": spec}, definition.at)


def _is_there(graph: Graph, node: Node, definition: Definition, read: Access) -> bool:
    """Whether an operand has a value wherever the sum is made: over no steps at all, nobody needed one before."""
    source = graph[read.source]
    if source.domain is TRUE:
        return True
    steps, inside, _ = positioned(source.steps(read))
    known = conjunction(node.points, definition.domain, inside)
    return proves(known, source.domain.substitute(steps))


def _scattered(nodes: Nodes, node: Node, definition: Definition) -> Definition | None:
    """One scatter of the rows of all steps, where each step adds its own to a table of zeros."""
    graph = nodes.graph
    scatter = _summed(graph, definition, "scatter_add")
    if scatter is None or scatter.attributes["axis"] != 0 or not nodes.is_zero(scatter.operands[0]):
        return None
    access = definition.operands[0]
    operands = []
    for operand in scatter.operands[1:]:
        found = composed(operand, graph[access.source].symbols, access.steps)
        if found is None or found[1] != list(range(len(access.ranges))):
            return None
        if stacks_shapes(found[0], graph[found[0].source]):
            return None
        operands.append(found[0])
    zero = nodes.add(f"{node.name}_zero", node, definition, "constant", (), value=Array(np.zeros((), node.dtype)))
    base = nodes.add(f"{node.name}_zeros", node, definition, "broadcast", (zero,), shape=node.shape)
    return Definition(definition.domain, "scatter_add", (base, *operands), {"axis": 0}, definition.at)
