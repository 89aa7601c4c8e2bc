"""Contractions with one-hot vectors are gathers.

`einsum("e,ed->d", one_hot(route, E), w[0:E])` multiplies every part of w by zero but one. It is
`take(w[0:E], route, 0)`, which the lowering can send to branches. The two differ where a number names no part: one-hot
vectors are zero there, and a gather takes the nearest. The numbers are metadata, so that is looked at first.
"""

from __future__ import annotations

from dataclasses import replace

from polyrhythm.compiler.ir.graph import Access, Definition
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.stream.lowering.grids import metadata_grid
from polyrhythm.stream.lowering.problem import Problem, here, only


def gathers_for_one_hots(problem: Problem) -> Problem:
    """The problem with every contraction that picks one part written as a gather."""
    nodes = {}
    for node in problem.graph:
        found = tuple(_gather(problem, definition) or definition for definition in node.definitions)
        nodes[node.name] = replace(node, definitions=found)
    return replace(problem, graph=replace(problem.graph, nodes=nodes))


def _gather(problem: Problem, definition: Definition) -> Definition | None:
    if definition.op != "einsum" or len(definition.operands) != 2:
        return None
    words, output = parse_spec(definition.attributes["spec"])
    for number, access in enumerate(definition.operands):
        word, other = words[number], words[1 - number]
        picks = len(word) == 1 and other.count(word) == 1 and output == other.replace(word, "")
        index = _picked(problem, access) if picks and not access.ranges else None
        if index is not None:
            operands = (definition.operands[1 - number], index)
            return Definition(definition.domain, "take", operands, {"axis": other.index(word)}, definition.at)
    return None


def _picked(problem: Problem, access: Access) -> Access | None:
    """The read of the numbers whose one-hot vectors a read gives."""
    graph = problem.graph

    def found(read: Access, op: str) -> Definition | None:
        return only(graph, read.source, op) if here(graph[read.source], read) else None

    cast = found(access, "cast")
    equal = found(cast.operands[0], "eq") if cast is not None else None
    if equal is None:
        return None
    for chosen, counted in (equal.operands, equal.operands[::-1]):
        reshaped, counts = found(chosen, "reshape"), found(counted, "iota")
        if reshaped is None or counts is None:
            continue
        index = graph[reshaped.operands[0].source]
        if (
            index.shape
            or not index.dims
            or not problem.is_metadata(index.name)
            or not here(index, reshaped.operands[0])
        ):
            continue
        numbers = metadata_grid(problem, index, problem.ordered(index.symbols))
        if numbers.min() >= 0 and numbers.max() < problem.number(counts.attributes["length"]):
            return Access(index.name, tuple(Term.of(symbol) for symbol in index.symbols))
    return None
