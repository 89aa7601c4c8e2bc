"""Tables: rows that later steps add to are summed in one table, which each of those steps adds to.

The gradient of `take(h[0 : t + 1], i)` at step f is a table of f + 1 rows, zero but for one; the gradient of h at s
sums row s of the tables of all f >= s. Stored, those are T tables of up to T rows. Row s of the sum over
`f = a(s) .. E` of `scatter_add(0, index[f], update[f])` is row s of `A[a(s)]`, with `A[E] = 0` and
`A[f] = scatter_add(A[f + 1], index[f], update[f])`: one table, updated in place.

Legal because A at a(s) has the updates of exactly the steps that were summed, in the order from the last; a row that is
read lies in each of the tables, so an index that hits it was inside them too. It holds also where updates depend on the
result, as they do in the recurrence that made h: A at a step needs later steps only.
"""

from __future__ import annotations

import numpy as np

from polyrhythm.compiler.ir.conditions import eq, le, ne
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, NodeDim
from polyrhythm.compiler.ir.sets import proves
from polyrhythm.compiler.ir.terms import ONE, ZERO, Term, maximum
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.passes.notes import Notes, bytes_of
from polyrhythm.compiler.passes.parts import cuts
from polyrhythm.compiler.passes.ranges import ranged
from polyrhythm.compiler.passes.rewriting import Nodes
from polyrhythm.compiler.passes.running import PLACE, Ranged, axes_of, entries_like, step_symbol


def one_table(graph: Graph, notes: Notes) -> Graph:
    """The graph with sums of rows of scattered tables as rows of one table."""
    nodes = Nodes(graph)
    for node in graph:
        for number, definition in enumerate(node.definitions):
            if definition.op != "reduce" or definition.attributes["monoid"] != "sum":
                continue
            if definition.attributes["axes"] != (0,) or len(definition.operands[0].ranges) != 1:
                continue
            found = ranged(nodes, node, definition, next(axes_of(definition)))
            made = None if found is None or not found.reverse else _row(nodes, found)
            if made is not None:
                part = graph[definition.operands[0].source]
                nodes.redefine(nodes[node.name], number, made)
                what = "rows that later steps add to are those of one table"
                notes.did("one-table", definition.at or node.at, what, 0, bytes_of(part))
    return nodes.done()


def _row(nodes: Nodes, found: Ranged) -> Definition | None:
    """The row of one table that a sum of rows is."""
    node, definition, steps = found.node, found.definition, found.steps
    # What is summed: a row, cut out of a table of zeros to which something was added.
    access = definition.operands[0]
    at = tuple(step if isinstance(step, Term) else Term.of(PLACE) for step in access.steps)
    shaped = nodes.seen_through(Access(access.source, at))
    cut = nodes.seen_through(shaped.operands[0]) if shaped is not None and shaped.op == "reshape" else None
    if cut is None or cut.op != "slice":
        return None
    scatter = nodes.seen_through(cut.operands[0])
    if scatter is None or scatter.op != "scatter_add" or scatter.attributes["axis"] != 0:
        return None
    # Which row it is, and how many there are at most.
    base, indices, updates = scatter.operands
    table = nodes.type_of(cut.operands[0]).shape
    at_row, length = cuts(cut, table).get(0, (ZERO, table[0]))
    if length is not ONE or len(cuts(cut, table)) > 1:
        return None
    if not nodes.is_zero(base) or PLACE in at_row.symbols or (indices.symbols | updates.symbols) & found.gone:
        return None
    if any((found.gone | {PLACE}) & length.symbols for length in table[1:]):
        return None
    if not table[0].linear_in(PLACE) or table[0].coefficient(PLACE) < 0:
        return None
    rows = maximum(ZERO, table[0].substitute({PLACE: found.end - 1}))
    for dim in node.dims:  # the capacity that a buffer of all steps has, so that nothing is cut and padded
        if at_row is Term.of(dim.symbol) and proves(found.known, le(rows, dim.extent)):
            rows = dim.extent
    # A table for each step, and for each index of the other dims that what is added varies along.
    kept = indices.symbols | updates.symbols | found.end.symbols
    outer = tuple(dim for dim in node.dims if dim.symbol in kept)
    own = step_symbol(nodes, (updates, indices), steps.symbol)
    if any(dim.symbol is own for dim in outer) or any((rows + found.end).symbols & {d.symbol} for d in node.dims):
        return None
    dims = (*outer, NodeDim(own, steps.extent + 1))
    shape = (rows, *table[1:])
    # After the last step it is zero; each step adds to what the later ones have left.
    zero = nodes.constant(f"{node.name}_zero", np.zeros((), node.dtype), definition.at)
    name = nodes.fresh(f"{node.name}_table")
    here = {PLACE: Term.of(own)}
    before = Access(name, (*(Term.of(dim.symbol) for dim in outer), Term.of(own) + 1))
    operands = (before, indices.substitute(here), updates.substitute(here))
    begin = Definition(eq(Term.of(own), found.end), "broadcast", (zero,), {"shape": shape}, definition.at)
    step = Definition(ne(Term.of(own), found.end), "scatter_add", operands, {"axis": 0}, definition.at)
    domain = entries_like(found, dims, own).domain
    nodes.nodes[name] = Node(name, dims, TensorType(shape, node.dtype), (begin, step), True, domain, node.at)
    # The reader takes its row of the table at its own step.
    read = Access(name, (*(Term.of(dim.symbol) for dim in outer), steps.start))
    part = {"starts": (at_row, *(ZERO for _ in table[1:])), "lengths": (ONE, *shape[1:]), "steps": (1,) * len(shape)}
    row = nodes.add(f"{node.name}_row", node, definition, "slice", (read,), **part)
    return Definition(definition.domain, "reshape", (row,), {"shape": node.shape}, definition.at)
