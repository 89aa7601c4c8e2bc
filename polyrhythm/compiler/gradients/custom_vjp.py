"""Derivatives that the user gave: the backward of a function is a part of the graph that nobody reads.

It is written in terms of a node that stands for the gradient of the result. Wherever a gradient is taken, the part is
copied with the actual gradient in its place. In the end it is dropped, and what is left of the function is its result.
"""

from __future__ import annotations

from dataclasses import replace

from polyrhythm.compiler.gradients.regions import backward_nodes
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node
from polyrhythm.compiler.ir.ops.record import Gradients
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.ir.values import Step, Value


def ruled(step: Step) -> Gradients:
    """The gradients of a function's operands; its first operand is the result, through which no gradient flows."""
    made: list[Value | None] = [None]
    copies = _copies(step)
    for name, wanted in zip(step["backward"], step.wanted[1:], strict=True):
        if name is None or not wanted:
            made.append(None)
            continue
        node = step.space.graph.nodes[name]
        access = Access(copies.get(name, name), tuple(Term.of(symbol) for symbol in node.symbols))
        made.append(step.space.read(access))
    return made


def _copies(step: Step) -> dict[str, str]:
    """The backward with the actual gradient in place of the node that stands for it."""
    graph = step.space.graph
    start, *rest = backward_nodes(graph.nodes, step.definition)
    copies = {start: step.gradient}
    for name in rest:
        node = graph.nodes[name]
        definitions = []
        for definition in node.definitions:
            operands = tuple(
                Access(copies[access.source], access.steps)
                if access.source in copies
                else step.source(step.node, access)
                for access in definition.operands
            )
            definitions.append(replace(definition, operands=operands))
        copies[name] = graph.add(f"{step.space.prefix}_{name}", node.dims, node.type, definitions, node.at)
    return copies


def without_rules(graph: Graph) -> dict[str, Node]:
    """The nodes of a graph in which functions with a derivative of their own are only their results."""
    return {
        node.name: replace(node, definitions=tuple(_result(d) for d in node.definitions))
        for node in graph
        if not any(d.op == "cotangent" for d in node.definitions)
    }


def _result(definition: Definition) -> Definition:
    if definition.op != "ruled":
        return definition
    return Definition(definition.domain, "copy", definition.operands[:1], {}, definition.at)
