"""Carry: what an iteration leaves to the next has a copy of its own, so that one iteration is stored, not two.

`s[i, 0] = s[i - 1, T]` needs one step of the iteration before, but a tensor over (i, t) is stored by one modulus for
each dim: while iteration i begins, step T of the one before is still alive, so i takes two slots, for all of t. Here
the steps that other iterations read get a copy over the outer dims alone, and those reads go there. What is left is
read within its iteration, and takes one slot of i.

Legal because the copy holds the same values at the same points. It is done only if all other reads are of the same
iteration, and the points that are copied are the same in each: as many elements as one step has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from polyrhythm.compiler.analysis.ranks import FEW_STEPS
from polyrhythm.compiler.ir.conditions import TRUE, conjunction
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node
from polyrhythm.compiler.ir.reads import Place, places
from polyrhythm.compiler.ir.sets import simplified
from polyrhythm.compiler.ir.terms import Term, dims_of
from polyrhythm.compiler.passes.dead import wanted
from polyrhythm.compiler.passes.notes import Notes, bytes_of
from polyrhythm.compiler.passes.rewriting import Nodes

Point = tuple[Term, ...]


@dataclass(frozen=True)
class _Carried:
    """A tensor whose iterations along its first `outer` dims leave single points to others, and who reads those."""

    node: Node
    outer: int
    readers: dict[Point, set[Place]]


def carry(graph: Graph, notes: Notes) -> Graph:
    """The graph with copies of the points that other iterations of an outer dim read."""
    nodes = Nodes(graph)
    for found in list(_carried(graph)):
        node = found.node
        for point, readers in found.readers.items():
            at = (*(Term.of(symbol) for symbol in node.symbols[: found.outer]), *point)
            copy = Definition(TRUE, "broadcast", (Access(node.name, at),), {"shape": node.shape}, node.at)
            part = Node(nodes.fresh(f"{node.name}_carried"), node.dims[: found.outer], node.type, (copy,), at=node.at)
            inside = conjunction(node.rectangle, node.domain).substitute(dict(zip(node.symbols, at, strict=True)))
            nodes.nodes[part.name] = replace(part, domain=simplified(inside, part.rectangle))
            for name, number, access in readers:
                reader = nodes[name]
                definition = reader.definitions[number]
                moved = Access(part.name, access.steps[: found.outer])
                operands = tuple(moved if operand == access else operand for operand in definition.operands)
                nodes.redefine(reader, number, replace(definition, operands=operands))
        what = f"the steps that other iterations of {node.symbols[found.outer - 1]} read have a copy"
        notes.did("carry", node.at, what, 0, bytes_of(node))
    return nodes.done()


def _carried(graph: Graph) -> Iterator[_Carried]:
    kept, read = wanted(graph), places(graph)
    for node in graph:
        if node.name in kept or len(node.dims) < 2 or any(d.op in ("input", "host") for d in node.definitions):
            continue
        for outer in range(1, len(node.dims)):
            if all(dim.extent.is_constant and dim.extent.constant <= FEW_STEPS for dim in node.dims[outer:]):
                continue
            found = _read_back(graph, node, outer, read[node.name])
            if found is not None:
                yield found
                break


def _read_back(graph: Graph, node: Node, outer: int, readers: list[Place]) -> _Carried | None:
    """The reads of other iterations, if they are of fixed points, and at least one is of an earlier iteration."""
    symbol = node.symbols[outer - 1]
    back: dict[Point, set[Place]] = {}
    is_carried = False
    for name, number, access in readers:
        step = access.steps[outer - 1]
        if step is Term.of(symbol) and symbol in graph[name].symbols:
            continue  # of the same iteration
        point = tuple(step for step in access.steps[outer:] if isinstance(step, Term) and not dims_of(step))
        if not isinstance(step, Term) or len(point) < len(node.dims) - outer:
            return None
        distance = step - Term.of(symbol)
        is_carried = is_carried or (symbol in graph[name].symbols and distance.is_constant and distance.constant < 0)
        back.setdefault(point, set()).add((name, number, access))
    return _Carried(node, outer, back) if is_carried else None
