"""Routes: matrices that each step takes from a few are not copied for each step; products with all of them are taken.

A token goes through the two experts that its gates choose: `einsum("d,kdh->kh", x, take(up, which))`. With all tokens
at once, every token has copies of its own of two matrices, and multiplies a vector by each. The product with all
experts is one contraction, of which each token takes its two: `take(einsum("d,edh->eh", x, up), which)`. That is E / K
times as many multiplications, of which a processor does hundreds in the time of moving one number.

Where the label of the taken entries is also one of the other operands, as in `einsum("kh,khd->d", y, take(down,
which))`, every pair of those and of the entries is computed, and the right ones are taken before they are summed.

Legal because the result of an entry follows from that entry alone: the same products are summed, and what other entries
give is not read, be it infinite. Places outside the table are clamped as before. It is done where steps of some dim run
at once which take from the same table, of at most `MOST` entries for each that is taken, before gradients are worked
out: the gradient of a product with all is a product with all as well.
"""

from __future__ import annotations

import string

from polyrhythm.compiler.analysis.ranks import FEW_STEPS, most_steps
from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.sets import with_facts
from polyrhythm.compiler.ir.terms import ONE, Symbol
from polyrhythm.compiler.passes.notes import Notes
from polyrhythm.compiler.passes.predicate import circles_of, stepwise
from polyrhythm.compiler.passes.rewriting import Nodes

MOST = 16
"""The most entries of a table for each one that is taken."""

LEAST_ELEMENTS = 64
"""The fewest elements of an entry: fewer are copied as fast as multiplied."""


def multiply_all(graph: Graph, notes: Notes) -> Graph:
    """The graph with contractions of taken matrices as taken results of contractions."""
    if not notes.compiled_loops:
        return graph
    nodes = Nodes(graph)
    circles = None
    for node in graph:
        for number, definition in enumerate(node.definitions):
            if definition.op != "einsum" or len(definition.operands) < 2:
                continue
            taken = _taken(nodes, node, definition)
            if taken is None:
                continue
            circles = circles_of(graph) if circles is None else circles
            around = (stepwise(graph, circle) for circle in circles if node.name in circle)
            if _runs_at_once(nodes, node, taken[1], frozenset().union(*around)):
                nodes.redefine(nodes[node.name], number, _rewritten(nodes, node, definition, *taken))
                what = "products with all entries of a table, of which each step takes its own"
                notes.did("take-of-contraction", definition.at or node.at, what)
    return nodes.done()


def _taken(nodes: Nodes, node: Node, definition: Definition) -> tuple[int, Definition] | None:
    """The operand of a contraction that is a few matrices of a table, and how it is taken."""
    words, _ = parse_spec(definition.attributes["spec"])
    if dtypes.accumulator(node.dtype) != node.dtype:
        return None
    for number, access in enumerate(definition.operands):
        inner = nodes.seen_through(access)
        if inner is None or inner.op != "take":
            continue
        table, indices = (nodes.type_of(operand) for operand in inner.operands)
        axis = inner.attributes["axis"]
        lengths = (*table.shape, *indices.shape)
        if inner.operands[0].ranges or not all(n.is_constant for n in lengths):
            continue
        entries, taken, elements = table.shape[axis].constant, 1, 1
        for length in indices.shape:
            taken *= length.constant
        for other, length in enumerate(table.shape):
            elements *= length.constant if other != axis else 1
        own = words[number][axis : axis + indices.rank]
        others = "".join(word for other, word in enumerate(words) if other != number)
        met = [label in others for label in own]
        summed = set(words[number]) - set(own) & set(others)
        distinct = len(set(words[number])) == len(words[number])
        if not distinct or not summed or len(set(met)) > 1 or elements < LEAST_ELEMENTS:
            continue
        if entries <= (MOST if any(met) else MOST * taken):
            return number, inner
    return None


def _runs_at_once(nodes: Nodes, node: Node, inner: Definition, serial: frozenset[Symbol]) -> bool:
    """Whether many steps along a dim take from the same table, and do not wait for each other."""
    table, indices = inner.operands
    free = [s for s in node.symbols if s not in table.symbols | serial and s in indices.symbols]
    where = with_facts(node.points)
    steps = (most_steps(where, symbol) for symbol in free)
    return any(n is None or n > FEW_STEPS for n in steps)


def _rewritten(nodes: Nodes, node: Node, definition: Definition, number: int, inner: Definition) -> Definition:
    words, output = parse_spec(definition.attributes["spec"])
    table, indices = inner.operands
    axis, rank = inner.attributes["axis"], nodes.type_of(indices).rank
    own = words[number][axis : axis + rank]
    entry = next(c for c in string.ascii_letters if c not in "".join((*words, output)))
    met = any(label in word for label in own for other, word in enumerate(words) if other != number)
    rest = "".join(label for label in output if label not in own)
    given = (*words[:number], words[number][:axis] + entry + words[number][axis + rank :], *words[number + 1 :])
    operands: list[Access] = [*definition.operands[:number], table, *definition.operands[number + 1 :]]
    front = own if met else ""
    spec = f"{','.join(given)}->{front}{entry}{rest}"
    whole = nodes.add(f"{node.name}_all", node, definition, "einsum", operands, spec=spec)
    if met:
        lengths = nodes.type_of(whole).shape
        places = (*lengths[:rank], *(ONE for _ in lengths[rank:]))
        at = nodes.add(f"{node.name}_at", node, definition, "reshape", (indices,), shape=places)
        found = nodes.add(f"{node.name}_own", node, definition, "take_along", (whole, at), axis=rank)
        left = (*lengths[:rank], *lengths[rank + 1 :])
        found = nodes.add(f"{node.name}_own", node, definition, "reshape", (found,), shape=left)
    else:
        found = nodes.add(f"{node.name}_own", node, definition, "take", (whole, indices), axis=0)
    if own + rest == output:
        return nodes.copy(node, found, definition)
    return Definition(definition.domain, "einsum", (found,), {"spec": f"{own}{rest}->{output}"}, definition.at)
