"""Ranges: a reduction at every step over a range that grows or shrinks with it becomes a running result.

`x[0 : t + 1].sum(0)` at each t is `R[t]` of `R[0] = x[0]`, `R[u] = R[u - 1] + x[u]`; `x[t:T]` is the same from the
other end. T elements are combined instead of T * T / 2. A recurrence, not an operation on all steps, so that ranges
inside the recurrence that makes x, streams and stopping conditions need nothing more.

Legal because the monoids are associative, and because an entry combines exactly the elements that some reader combined:
it reads no step that was not read before. What is reduced may be computed from ranges (`elements.py`), as long as an
element is the same for all readers. Floating-point sums may round differently, as in any reduction: a running sum of n
elements has an error of up to n units in the last place. 16-bit floats are combined in float32 and rounded at the end.

A sum weighted by powers of the distance (`gamma ** k`, `exp(-k / tau)`) is a running result too: the quotient of
neighbouring weights is the same for all elements, and is what the running sum is multiplied by at each step
(`weights.py`). What a reader multiplies all its elements by is taken out of the sum (`factors.py`). Differences from a
centre that the reader decides, as in a variance, are summed about a centre that moves (`centred.py`). A
product becomes a running one before gradients are worked out, which are then recurrences that run the other way.

A running result makes steps depend on each other, so ranges along dims that the user wants to run at once stay.
"""

from __future__ import annotations

from polyrhythm.compiler.ir.graph import Definition, Graph, Node
from polyrhythm.compiler.ir.sets import least, simplified_term, with_facts
from polyrhythm.compiler.ir.terms import Symbol, Term, dims_of
from polyrhythm.compiler.passes.centred import centred_result
from polyrhythm.compiler.passes.notes import Notes
from polyrhythm.compiler.passes.positions import extreme, position_result
from polyrhythm.compiler.passes.rewriting import Nodes
from polyrhythm.compiler.passes.running import Ranged, Summed, axes_of, result, steps_of
from polyrhythm.compiler.passes.terms import terms_result
from polyrhythm.compiler.passes.weights import Peak

FEW = 16
"""Ranges of no more steps than these are reduced as they are: all readers at once, which takes no recurrence."""


def products_first(graph: Graph, notes: Notes) -> Graph:
    """The graph with products over such ranges as running ones, to be differentiated: so is their gradient.

    The derivative of a product as it is written would be a product of all others for every element of every range.
    """
    return accumulate_ranges(graph, notes, "prod")


def accumulate_ranges(graph: Graph, notes: Notes, only: str = "") -> Graph:
    """The graph with reductions over growing and shrinking ranges, or `only` those of one kind, as running results."""
    nodes = Nodes(graph)
    peaks: dict[str, Peak] = {}
    waiting, seen = list(graph), set(graph.nodes)
    for node in waiting:
        for number, definition in enumerate(node.definitions):
            if only and definition.attributes.get("monoid") != only:
                continue
            if definition.op == "argreduce":
                extremes = extreme(node, definition, nodes.type_of(definition.operands[0]).dtype)
                found = _free(ranged(nodes, *extremes), notes)
                made = None if found is None else position_result(nodes, found, node, definition)
                _replace(nodes, node, number, found, made, f"arg{definition.attributes['which']}", notes)
            for summed in axes_of(definition):
                found = _free(ranged(nodes, node, definition, summed), notes)
                made = None
                if found is not None:
                    made = result(nodes, found, peaks) or centred_result(nodes, found)
                    made = made or terms_result(nodes, found, peaks)
                if _replace(nodes, node, number, found, made, summed.monoid, notes):
                    waiting += [nodes[name] for name in nodes.nodes if name not in seen]  # along another dim, perhaps
                    seen.update(nodes.nodes)
                    break
    return nodes.done()


def _free(found: Ranged | None, notes: Notes) -> Ranged | None:
    """What was found, unless its steps are to run at once."""
    return None if found is None or (found.gone | {found.steps.symbol}) & notes.at_once else found


def _replace(
    nodes: Nodes, node: Node, number: int, found: Ranged | None, made: Definition | None, kind: str, notes: Notes
) -> bool:
    """Put a running result in the place of a definition; whether there is one."""
    if found is None or made is None:
        return False
    at = node.definitions[number].at or node.at
    nodes.redefine(nodes[node.name], number, made)
    way = "shrinks" if found.reverse else "grows"
    along = ", ".join(sorted(map(str, found.gone)))
    notes.did(f"running-{kind}", at, f"a {kind} over a range that {way} with {along} is a running one")
    return True


def ranged(nodes: Nodes, node: Node, definition: Definition, summed: Summed) -> Ranged | None:
    """A reduction along an axis whose steps grow or shrink without a limit."""
    read = [(access, axis) for access, axis in zip(definition.operands, summed.axes, strict=True) if axis is not None]
    steps = next((found for access, axis in read if (found := steps_of(nodes, access, axis)) is not None), None)
    if steps is None or dims_of(steps.extent):
        return None
    known = with_facts(nodes.known(node, definition))
    length = simplified_term(nodes.type_of(read[0][0]).shape[read[0][1]], known)
    end = simplified_term(steps.start + length, known)
    varying = _own(node, end) - _own(node, steps.start), _own(node, steps.start) - _own(node, end)
    if not (varying[0] or varying[1]):
        return None
    # Both ends may change with dims of their own; the running result then starts anew for each of the others.
    reverse = not varying[0]
    gone = varying[1] if reverse else varying[0]
    most = least(-length, known)
    if most is not None and -most <= FEW:
        return None
    if any(gone & n.symbols for n in node.shape):
        return None
    if reverse and any(symbol in nodes.graph.stops for symbol in end.symbols):
        return None
    return Ranged(node, definition, summed, steps, end, gone, reverse, known)


def _own(node: Node, term: Term) -> frozenset[Symbol]:
    return dims_of(term) & frozenset(node.symbols)
