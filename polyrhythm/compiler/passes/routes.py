"""Routes: matrices that each step takes from a few are not copied for each step; products with all of them are taken.

A token goes through the two experts that its gates choose: `einsum("d,kdh->kh", x, take(up, which))`. With all tokens
at once, every token has copies of its own of two matrices, and multiplies a vector by each. The product with all
experts is one contraction, of which each token takes its two: `take(einsum("d,edh->eh", x, up), which)`. That is E / K
times as many multiplications, of which a processor does hundreds in the time of moving one number.

Where the label of the taken entries is also one of the other operands, as in `einsum("kh,khd->d", y, take(down,
which))`, every pair of those and of the entries is computed, and the right ones are taken before they are summed.

Where no gradient is asked for, the contraction becomes one operation, `grouped`: a backend, which sees how many rows
there are, may multiply those together that take the same entry, and nothing with the others.

Legal because the result of an entry follows from that entry alone: the same products are summed, and what other entries
give is not read, be it infinite. Places outside the table are clamped as before. It is done where steps of some dim run
at once which take from the same table, of at most `MOST` entries for each that is taken, before gradients are worked
out: the gradient of a product with all is a product with all as well.
"""

from __future__ import annotations

import string
from dataclasses import replace
from math import prod

from polyrhythm.compiler.analysis.ranks import FEW_STEPS, most_steps
from polyrhythm.compiler.gradients.expand import has_gradients
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
    as_rows = not has_gradients(graph)
    for node in graph:
        for number, definition in enumerate(node.definitions):
            if definition.op != "einsum" or len(definition.operands) < 2:
                continue
            taken = _taken(nodes, node, definition)
            if taken is None:
                continue
            circles = circles_of(graph) if circles is None else circles
            around = (stepwise(graph, circle) for circle in circles if node.name in circle)
            if not _runs_at_once(nodes, node, taken[1], frozenset().union(*around)):
                continue
            rows = _by_rows(nodes, definition, *taken) if as_rows else None
            if rows is not None:
                nodes.redefine(nodes[node.name], number, rows)
                notes.did("grouped", definition.at or node.at, "steps that take one entry of a table go together")
            elif dtypes.accumulator(node.dtype) == node.dtype and _are_few(nodes, definition, *taken):
                nodes.redefine(nodes[node.name], number, _rewritten(nodes, node, definition, *taken))
                what = "products with all entries of a table, of which each step takes its own"
                notes.did("take-of-contraction", definition.at or node.at, what)
    return nodes.done()


def _taken(nodes: Nodes, node: Node, definition: Definition) -> tuple[int, Definition] | None:
    """The operand of a contraction that is a few matrices of a table, and how it is taken."""
    words, _ = parse_spec(definition.attributes["spec"])
    for number, access in enumerate(definition.operands):
        inner = nodes.seen_through(access)
        if inner is None or inner.op != "take":
            continue
        table, indices = (nodes.type_of(operand) for operand in inner.operands)
        axis = inner.attributes["axis"]
        if inner.operands[0].ranges or not all(n.is_constant for n in (*table.shape, *indices.shape)):
            continue
        elements = prod(length.constant for other, length in enumerate(table.shape) if other != axis)
        own = words[number][axis : axis + indices.rank]
        others = "".join(word for other, word in enumerate(words) if other != number)
        summed = set(words[number]) - set(own) & set(others)
        distinct = len(set(words[number])) == len(words[number])
        if distinct and summed and elements >= LEAST_ELEMENTS:
            return number, inner
    return None


def _by_rows(nodes: Nodes, definition: Definition, number: int, inner: Definition) -> Definition | None:
    """The contraction as one of rows with the entries that they choose."""
    words, output = parse_spec(definition.attributes["spec"])
    table, which = inner.operands
    rank = nodes.type_of(which).rank
    if len(words) != 2 or inner.attributes["axis"] != 0:
        return None
    rows, own = words[1 - number], words[number]
    if len(set(rows)) < len(rows) or not set(rows) <= {*own, *output}:
        return None
    entry = next(c for c in string.ascii_letters if c not in "".join((*words, output)))
    spec = f"{rows},{entry}{own[rank:]},{own[:rank]}->{output}"
    return replace(
        definition, op="grouped", operands=(definition.operands[1 - number], table, which), attributes={"spec": spec}
    )


def _are_few(nodes: Nodes, definition: Definition, number: int, inner: Definition) -> bool:
    """Whether products with all entries are cheaper than copies of those that are taken."""
    words, _ = parse_spec(definition.attributes["spec"])
    table, indices = (nodes.type_of(operand) for operand in inner.operands)
    axis = inner.attributes["axis"]
    others = "".join(word for other, word in enumerate(words) if other != number)
    met = [label in others for label in words[number][axis : axis + indices.rank]]
    taken = 1 if any(met) else prod(length.constant for length in indices.shape)
    return len(set(met)) < 2 and table.shape[axis].constant <= MOST * taken


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
