"""Values of pairs of steps are recomputed where the other step reads them, instead of being stored for all pairs.

Attention makes a row of weights at each step, one for each step it reads. The gradient of a key, or of a value, wants
the column: its own element of the rows of all steps that have read it. Stored, these are T x T elements, and as many
again for the gradients of the weights. Here an element is computed from what its row was made of: a query, a key, and
the statistics of the row (its maximum, its sum), which are stored, one of each for a step. What is live is then linear
in T, and a few rows or columns at a time, as many as the cost model or a memory budget has lanes for: the backward
pass of FlashAttention (Dao et al., 2022), whatever the weights are made of.

Legal because an element is computed by the same operations from the same operands (`elements.py`); contractions may
round differently. Which element is the maximum of its row is told by comparing for being equal: XLA sums a contraction
and its transpose in one order, NumPy and torch do not, so there such elements are stored. It is done where

- the row comes from ranges of steps, without a slice of anything that would be stored instead;
- nobody else has the rows stored: outputs, and readers that want more of another step than an element;
- an element takes at most `MOST_PRODUCTS` multiplications: one that takes more is better stored, unless memory is what
  counts, under a budget;
- rows have no limit, or one above `FEW`.

NumPy and torch compute the elements of a column in one go (`python/batched.py`); of stored rows they would cut them out
one by one, T x T times.
"""

from __future__ import annotations

from polyrhythm.compiler.ir.conditions import conjunction
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.sets import facts, least
from polyrhythm.compiler.ir.terms import ONE, Term
from polyrhythm.compiler.passes.elements import Element, Elements, Made, emitted, type_of, walk
from polyrhythm.compiler.passes.notes import Notes, bytes_of
from polyrhythm.compiler.passes.parts import cuts
from polyrhythm.compiler.passes.rewriting import Nodes
from polyrhythm.errors import ShapeError

MOST_PRODUCTS = 512
"""The most multiplications that recomputing an element may take."""

FEW = 256
"""Rows of no more elements are stored."""


def recompute_pairs(graph: Graph, notes: Notes) -> Graph:
    """The graph with single elements of rows, at other steps, computed from what the rows are made of."""
    nodes = Nodes(graph)
    found: dict[str, list[tuple[Node, int, Element]]] = {}
    stored: set[str] = set(graph.outputs) | set(graph.effects)
    for node in graph:
        for number, definition in enumerate(node.definitions):
            element = _element(nodes, node, definition, notes)
            for access in definition.operands:
                if element is not None:
                    found.setdefault(access.source, []).append((node, number, element))
                elif access.ranges or access.steps != graph[access.source].current or node.name in graph.outputs:
                    stored.add(access.source)
    for source, readers in found.items():
        if source in stored:
            continue
        for node, number, element in readers:
            definition = node.definitions[number]
            read = emitted(nodes, node, definition, f"{node.name}_again", element)
            again = Definition(definition.domain, "reshape", (read,), {"shape": node.shape}, definition.at)
            nodes.redefine(nodes[node.name], number, again)
            what = f"an element of {source} is recomputed from statistics of its row"
            notes.did("recompute-pairs", definition.at or node.at, what, 0, bytes_of(graph[source]))
    return nodes.done()


def _element(nodes: Nodes, node: Node, definition: Definition, notes: Notes) -> Element | None:
    """The one element of a row, at a place that follows another step, that a definition takes; None if it is no such.

    None also where it is not worth computing again.
    """
    if definition.op != "slice" or set(definition.attributes["steps"]) != {1} or definition.operands[0].ranges:
        return None
    access = definition.operands[0]
    whole = nodes.type_of(access).shape
    cut = cuts(definition, whole)
    if any(n is not ONE or not _is_long(nodes, node, definition, whole[axis]) for axis, (_, n) in cut.items()):
        return None
    taken = {axis: start for axis, (start, _) in cut.items()}
    own, place = (
        {s for term in terms for s in term.symbols if s.kind == "dim"}
        for terms in ([s for s in access.steps if isinstance(s, Term)], taken.values())
    )
    # A row at `t + 4 * n` is one step, whatever dims it follows: what is made at that step alone is no pair.
    rows = frozenset(s for s in access.steps if isinstance(s, Term) and len(s.symbols & {*node.symbols}) > 1)
    if not own or not (place - own or rows):
        return None
    elements = Elements(nodes, pair=frozenset(own | place), rows=rows)
    element = elements.of(access, taken)
    if element is None or not (notes.compiled_loops or _is_exact(element)):
        return None
    return element if _is_worth(elements, element, notes.tight) else None


def _is_long(nodes: Nodes, node: Node, definition: Definition, length: Term) -> bool:
    known = nodes.known(node, definition)
    most = least(-length, conjunction(known, facts(known.symbols | length.symbols)))
    return most is None or -most > FEW


def _is_worth(elements: Elements, element: Element, tight: bool) -> bool:
    """Whether an element is computed from values of single steps, by few multiplications."""
    products = 0
    for part in walk(element):
        if isinstance(part, Access):
            if elements.is_paired(part):
                return False
        elif part.op == "slice":
            return False
        elif part.op == "einsum":
            try:
                products += _multiplied(elements.nodes, part)
            except ShapeError:
                return False
    return tight or products <= MOST_PRODUCTS


def _is_exact(element: Element) -> bool:
    """Whether no sums are compared for being equal, as an element with the maximum of its row."""
    equal = (part for part in walk(element) if isinstance(part, Made) and part.op in ("eq", "ne"))
    inside = (below for part in equal for operand in part.operands for below in walk(operand))
    return not any(isinstance(below, Made) and below.op in ("einsum", "reduce") for below in inside)


def _multiplied(nodes: Nodes, part: Made) -> int:
    """The multiplications of a contraction; those that are not known are many."""
    words, _ = parse_spec(part.attributes["spec"])
    shapes = (type_of(nodes, operand).shape for operand in part.operands)
    pairs = zip(words, shapes, strict=True)
    lengths = {letter: n for word, shape in pairs for letter, n in zip(word, shape, strict=True)}
    count = 1
    for length in lengths.values():
        count *= length.constant if length.is_constant else 2 * MOST_PRODUCTS
    return count
