"""Align: what is read once, at another step and under a condition, is computed at the step of its reader.

The gradient of a shifted read is `choose(t + k < T, p[t + k], 0)` with p made of a value at one step: `p = g * w`.
Stored, or computed in iterations of its own, p would be one more buffer for each tap of a convolution, and
the edges would cut the loop of its reader. Here p is computed where it is read, `g[t + k] * w`, from guarded reads of
its operands, so that the whole sum is one block of a vectorised loop.

Legal because p has one reader: at each point where the condition holds, the same operation is applied to the same
operands. Elsewhere it is applied to zeros, and the result is not read. Nothing is computed twice but at the edge.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from polyrhythm.compiler.ir.conditions import TRUE, Condition
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node
from polyrhythm.compiler.ir.reads import roots
from polyrhythm.compiler.ir.sets import proves, with_facts
from polyrhythm.compiler.passes.notes import Notes, bytes_of
from polyrhythm.compiler.passes.rewriting import Nodes


def align(graph: Graph, notes: Notes) -> Graph:
    """The graph with what guarded reads take from other steps computed at their own."""
    nodes = Nodes(graph)
    kept = roots(graph)
    reads = Counter(access.source for node in graph for access in node.accesses)
    waiting = [node.name for node in graph if node.only is not None and node.only.record.chooses]
    while waiting:
        reader = nodes[waiting.pop()]
        (definition,) = reader.definitions
        for number, access in enumerate(definition.operands):
            source = nodes[access.source]
            if reads[source.name] > 1 or source.name in kept or not _is_moved(reader, source, access):
                continue
            guard = definition.read_where(number)
            here, added = _moved(nodes, reader, source, access, guard)
            operands = (*definition.operands[:number], here, *definition.operands[number + 1 :])
            made = Definition(TRUE, definition.op, operands, definition.attributes, definition.at)
            reader, definition = nodes.redefine(reader, 0, made), made
            del nodes.nodes[source.name]
            reads.update(read.source for name in (here.source, *added) for read in nodes[name].accesses)
            reads.subtract(source.sources)
            reads[here.source] += 1
            waiting += added
            notes.did("guarded", source.at, "is computed at the step of its one reader", 0, bytes_of(source))
    return nodes.done()


def _is_moved(reader: Node, source: Node, access: Access) -> bool:
    """Whether what a guarded read takes is one operation at another step, of operands at points."""
    if source.only is None or not source.only.record.linear or access.ranges or not access.symbols:
        return False
    same = reader.symbols == source.symbols and access.steps == source.current
    varying = any(length.symbols & frozenset(source.symbols) for length in source.shape)
    return not same and not varying and not any(operand.ranges for operand in source.only.operands)


def _moved(nodes: Nodes, reader: Node, source: Node, access: Access, guard: Condition) -> tuple[Access, list[str]]:
    """What the source has at the steps of a read, computed at the reader's points; and the guarded reads it takes."""
    shifted = nodes.seen_through(access)
    assert shifted is not None
    operands, added = [], []
    known = with_facts(reader.points)
    for operand in shifted.operands:
        if not operand.symbols and proves(known, nodes[operand.source].points):
            operands.append(operand)
            continue
        kind = nodes.type_of(operand)
        zero = nodes.constant(f"{source.name}_zero", np.zeros((), kind.dtype), source.at)
        made = Definition(TRUE, "choose", (operand, zero), {"condition": guard, "shape": kind.shape}, shifted.at)
        guarded = nodes.put(f"{source.name}_read", reader.dims, kind, made, domain=reader.domain, at=source.at)
        operands.append(guarded.here)
        added.append(guarded.name)
    definition = Definition(TRUE, shifted.op, tuple(operands), shifted.attributes, shifted.at)
    how = {"domain": reader.domain, "at": source.at, "label": source.label}
    return nodes.put(f"{source.name}_here", reader.dims, source.type, definition, **how).here, added
