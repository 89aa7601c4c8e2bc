"""Sums of products over steps become one contraction.

A sum over a range of steps of `einsum(a, b)` at each step is one `einsum` of the ranges, with the steps as one more
label that is summed. The gradient of a weight is the common case: an outer product per step, summed over batch and
time, becomes a matrix product, and the products of single steps are never stored. Legal because addition is
associative; sums in floating point may round differently, as they may in any reduction.
"""

from __future__ import annotations

import string
from dataclasses import replace

from polyrhythm.ir.graph import Access, Definition, Graph
from polyrhythm.ir.ops.contraction import parse_spec
from polyrhythm.passes.access import composed
from polyrhythm.passes.notes import Notes, bytes_of


def contract_sums(graph: Graph, notes: Notes) -> Graph:
    """The graph with sums of contractions contracted at once."""
    nodes = {}
    for node in graph:
        definitions = []
        for definition in node.definitions:
            contracted = _contracted(graph, definition)
            if contracted is not None:
                source = graph[definition.operands[0].source]
                what = f"a sum over {', '.join(map(str, source.symbols))} is one contraction"
                notes.did("sum-of-products", definition.at or node.at, what, 1, bytes_of(source))
            definitions.append(contracted or definition)
        nodes[node.name] = replace(node, definitions=tuple(definitions))
    return replace(graph, nodes=nodes)


def _contracted(graph: Graph, definition: Definition) -> Definition | None:
    if definition.op != "reduce" or definition.attributes["monoid"] != "sum":
        return None
    access = definition.operands[0]
    source = graph[access.source]
    ranges = access.ranges
    if not ranges or sorted(definition.attributes["axes"]) != list(range(len(ranges))):
        return None
    if len(source.definitions) != 1 or source.definitions[0].op != "einsum":
        return None
    product = source.definitions[0]
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
        old = iter(word)
        leading = "".join(next(old) if number is None else fresh[number] for number in origin)
        operands.append(read)
        renamed.append(leading + "".join(old))
        used.update(fresh[number] for number in origin if number is not None)
    if len(used) < len(ranges):  # nothing varies along a summed dim: the count would be lost
        return None
    spec = f"{','.join(renamed)}->{output}"
    return Definition(definition.domain, "einsum", tuple(operands), {"spec": spec}, definition.at)
