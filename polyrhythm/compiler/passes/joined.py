"""Joined: what is computed of ranges of steps side by side is computed of each, before gradients are worked out.

Attention to the first steps and to a window, `softmax(concat([k[0:4], k[t - 9 : t + 1]]) @ q)`, or to a memory and to
what came since, reads two ranges as one axis. The gradient of the joined axis would be cut into slices, which follow
no range any more, and stored for all pairs of steps. So what is done element by element, contracted or reduced is done
for each range: a contraction or reduction of the axis combines those of the parts, anything else is joined in its turn.

Legal as elements stay what they are, and sums may be regrouped; 16-bit floats, which would be rounded more often, are
left alone. Done only where a part has another length at other steps: few values of known number stay one operation.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import TRUE
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node
from polyrhythm.compiler.ir.ops.record import OPAQUE
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.passes.notes import Notes
from polyrhythm.compiler.passes.rewriting import Nodes
from polyrhythm.compiler.passes.running import COMBINE

OPERATIONS = ("einsum", "reduce", "reshape", "transpose", "detach", "copy", "broadcast")
"""What is done part by part besides elementwise operations."""


def part_by_part(graph: Graph, notes: Notes) -> Graph:
    """The graph with what is computed of joined ranges computed of each of them."""
    nodes = Nodes(graph)
    leaves = {leaf for node in graph for d in node.definitions for leaf in d.attributes.get("leaves", ())}
    for node in graph:
        made = None if node.only is None or node.name in leaves else _apart(nodes, node, node.only, leaves)
        if made is not None:
            nodes.redefine(node, 0, made)
            notes.did("part-by-part", made.at or node.at, "what is computed of joined ranges is computed of each")
    return nodes.done()


def _joined(nodes: Nodes, node: Node, access: Access) -> Definition | None:
    """The parts side by side that a node reads, if some have another length at other steps."""
    inner = nodes.seen_through(access)
    if inner is None or inner.op != "concat" or len(inner.operands) == 1:
        return None
    return inner if any(length.symbols & set(node.symbols) for length in _lengths(nodes, inner)) else None


def _lengths(nodes: Nodes, joined: Definition) -> list[Term]:
    return [nodes.type_of(part).shape[joined.attributes["axis"]] for part in joined.operands]


def _apart(nodes: Nodes, node: Node, definition: Definition, leaves: Collection[str]) -> Definition | None:
    """An operation on joined values as one on each part, joined or combined; None where it cannot be."""
    read = [None if access.source in leaves else _joined(nodes, node, access) for access in definition.operands]
    first = next((parts for parts in read if parts is not None), None)
    allowed = definition.domain is TRUE and (definition.record.elementwise or definition.op in OPERATIONS)
    if first is None or not allowed:
        return None
    lengths, kinds = _lengths(nodes, first), tuple(nodes.type_of(access) for access in definition.operands)
    signature = definition.record.signature(kinds, definition.attributes)
    label = signature.operands[read.index(first)][first.attributes["axis"]]
    for parts, own in zip(read, signature.operands, strict=True):
        here = None if parts is None else (own[parts.attributes["axis"]], _lengths(nodes, parts))
        if own.count(label) > 1 or (here != (label, lengths) if here else label in own):
            return None  # a diagonal, or something that is not in the same parts
    role = OPAQUE if label is None else signature.roles[label]
    combine = COMBINE.get(role.monoid or "")
    if role.kind != "parallel" and (combine is None or dtypes.accumulator(node.dtype) != node.dtype):
        return None
    axis = signature.result.index(label) if role.kind == "parallel" else None
    made = []
    for number, length in enumerate(lengths):
        attributes = dict(definition.attributes)
        if axis is not None and "shape" in attributes:
            attributes["shape"] = (*attributes["shape"][:axis], length, *attributes["shape"][axis + 1 :])
        operands = [a if v is None else v.operands[number] for a, v in zip(definition.operands, read, strict=True)]
        made.append(nodes.add(f"{node.name}_part", node, definition, definition.op, operands, **attributes))
    if combine is None or axis is not None:
        return Definition(TRUE, "concat", tuple(made), {"axis": axis}, definition.at)
    total = reduce(lambda a, b: nodes.add(f"{node.name}_parts", node, definition, combine, (a, b)), made)
    return nodes.copy(node, total, definition)
