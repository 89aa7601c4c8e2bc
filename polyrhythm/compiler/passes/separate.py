"""Separate: steps of a tensor that are read for ever are kept apart from those that are read only for a while.

Attention over the first few steps and a window reads `k[0:4]` at every step. The first steps are then alive to the end,
and a tensor is kept by one modulus, so all steps in between would be kept too. Here the first steps get a copy of
their own, a few slots that are written once; the reads of them go there. What is left reaches back a constant number
of steps, and becomes a ring. Ranges that begin after the first steps get a copy of only what they read, so that the
ring holds nothing else and may be used where it lies.

Legal because the copy holds the same values at the same points, and a read that never goes beyond a step finds
all of its points in the copy up to that step. It is done only if every other read reaches back no further than some
constant, so that the ring is there, and for no more than `MOST_STEPS` steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import TRUE, Condition, conjunction, ge, lt
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, NodeDim, Range
from polyrhythm.compiler.ir.reads import Place, places
from polyrhythm.compiler.ir.sets import largest, simplified
from polyrhythm.compiler.ir.terms import Symbol, Term, minimum
from polyrhythm.compiler.passes.dead import wanted
from polyrhythm.compiler.passes.notes import Notes
from polyrhythm.compiler.passes.rewriting import Nodes

MOST_STEPS = 4096
"""So many first steps may have a copy; more would hardly be read by every step."""

POSITION = Symbol("position", "dim", serial=serials.POSITION)


@dataclass(frozen=True)
class _Read:
    """A read of a tensor along one of its dims.

    `last` is the last step that it ever reads, if there is one for all bounds. It is `near` if it stays within a
    constant number of steps from where the reader is, or from the end if the reader comes after all steps. Of such
    ranges `least` is the first step.
    """

    place: Place
    last: int | None
    near: bool
    least: int | None = None


def separate(graph: Graph, notes: Notes) -> Graph:
    """The graph with copies of the first steps of tensors, where that lets the rest be kept in a ring."""
    nodes = Nodes(graph)
    kept, readers = wanted(graph), places(graph)
    for node in graph:
        if node.name in kept or node.external:
            continue
        for axis, dim in enumerate(node.dims):
            if dim.extent.is_constant:
                continue
            reads = [_read(graph, place, axis, dim) for place in readers[node.name]]
            early = {read.place: read.last for read in reads if not read.near and read.last is not None}
            if not early or len(early) == len(reads) or not all(read.near or read.place in early for read in reads):
                continue
            steps = max(early.values()) + 1
            if steps <= MOST_STEPS:
                late = {read.place for read in reads if read.near and read.least is not None and read.least >= steps}
                first = (
                    *node.dims[:axis],
                    NodeDim(dim.symbol, minimum(dim.extent, Term(steps))),
                    *node.dims[axis + 1 :],
                )
                _copy(nodes, node, set(early), f"{node.name}_first", first, TRUE)
                _copy(nodes, node, late, f"{node.name}_rest", node.dims, ge(Term.of(dim.symbol), steps))
                what = f"the first {steps} steps of {dim.symbol} have a copy, so that the others can be a ring"
                notes.did("separate", node.at, what)
                break
    return nodes.done()


def _read(graph: Graph, place: Place, axis: int, dim: NodeDim) -> _Read:
    name, number, access = place
    reader = graph[name]
    step, known = access.steps[axis], conjunction(reader.points, reader.definitions[number].domain)
    if isinstance(step, Range):
        at = Term.of(POSITION)
        known = conjunction(known, ge(at, 0), lt(at, step.length))
        step = step.at(at)
    if dim.symbol not in reader.symbols:  # it does not read them for ever; what it reads last is still there
        return _Read(place, None, largest(dim.extent - step, known) is not None)
    behind = Term.of(dim.symbol) - step
    if not all(largest(way, known) is not None for way in (behind, -behind)):
        return _Read(place, largest(step, known), False)
    smallest = largest(-step, known) if isinstance(access.steps[axis], Range) else None
    return _Read(place, None, True, None if smallest is None else -smallest)


def _copy(
    nodes: Nodes, node: Node, readers: set[Place], hint: str, dims: tuple[NodeDim, ...], where: Condition
) -> None:
    """A node with some steps of another, and what reads no others reads it instead."""
    if not readers:
        return
    copied = Definition(TRUE, "copy", (node.here,), {}, node.at)
    part = replace(node, name=nodes.fresh(hint), dims=dims, definitions=(copied,), recurrent=False)
    part = replace(part, domain=simplified(conjunction(node.domain, where), part.rectangle))
    for name, reader in list(nodes.nodes.items()):
        definitions = []
        for number, d in enumerate(reader.definitions):
            operands = (Access(part.name, a.steps) if (name, number, a) in readers else a for a in d.operands)
            definitions.append(replace(d, operands=tuple(operands)))
        nodes.nodes[name] = replace(reader, definitions=tuple(definitions))
    nodes.nodes[part.name] = part
