"""Which tensors a checkpoint covers: those that gradients compute again instead of keeping them.

A plain checkpoint covers the tensor and what it is computed from, back to inputs, recurrent tensors and other
checkpoints. One over a dim covers all that varies along the dim, lies between the inputs and a loss, and either makes
the tensor or is made from it. Results of host calls are kept, and so are random bits, which are known by the steps they
are drawn at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from polyrhythm.compiler.ir.graph import Checkpoint, Definition, Graph, Node
from polyrhythm.compiler.ir.reads import after_successors, cone, reached, readers
from polyrhythm.compiler.ir.terms import Symbol, Term


@dataclass(frozen=True)
class Region:
    """Nodes that gradients compute again.

    With `over` they do it row by row: reads along that dim stay inside a row, and what is read from another row is
    kept. `along` is the dim of the rows where they were cut from one dim.
    """

    nodes: frozenset[str]
    over: Symbol | None = None
    along: Symbol | None = None
    ascending: bool = False  # whether gradients go through the rows from the first to the last


def plain_region(graph: Graph, checkpoint: Checkpoint) -> Region:
    """What a checkpoint without a dim covers."""
    others = {c.node for c in graph.checkpoints} - {checkpoint.node}

    def again(name: str) -> bool:
        return computed(graph[name]) and (name == checkpoint.node or not (graph[name].recurrent or name in others))

    starts = filter(again, [checkpoint.node])
    return Region(frozenset(reached(lambda name: filter(again, graph[name].sources), starts)))


def row_region(graph: Graph, checkpoint: Checkpoint) -> Region:
    """What a checkpoint covers whose rows are those of a dim. They follow each other along the dim that reads cross."""
    nodes = varying(graph, checkpoint)
    crossed: dict[Symbol, int] = {}
    for name in nodes:
        for access in (access for access in graph[name].accesses if access.source in nodes):
            for symbol, step in graph[access.source].steps(access).items():
                ahead = step - Term.of(symbol) if isinstance(step, Term) else Term.of(symbol)
                if symbol is not checkpoint.over and ahead.is_constant and ahead.constant:
                    crossed[symbol] = max(crossed.get(symbol, ahead.constant), ahead.constant)
    along = next(iter(crossed)) if len(crossed) == 1 else None
    return Region(nodes, checkpoint.over, along, along is not None and crossed[along] > 0)


def varying(graph: Graph, checkpoint: Checkpoint) -> frozenset[str]:
    """What a checkpoint over a dim covers."""
    losses = {d.attributes["loss"]: d.attributes["leaves"] for d in _asking(graph)}
    between: set[str] = cone(graph, *losses)
    leaves: set[str] = set().union(*losses.values())
    taking_part = cone(graph, checkpoint.node) | reached(readers(graph.nodes).__getitem__, [checkpoint.node])
    assert checkpoint.over is not None
    names = {
        name
        for name in (between & taking_part) - leaves
        if checkpoint.over in graph[name].symbols and computed(graph[name])
    }
    for definition in [d for name in names for d in graph[name].definitions if d.op == "ruled"]:
        names |= {n for n in backward_nodes(graph.nodes, definition) if checkpoint.over in graph[n].symbols}
    return frozenset(names)


def computed(node: Node) -> bool:
    """Whether a node can be computed again."""
    return bool(node.definitions) and not any(d.record.sited or d.record.free for d in node.definitions)


def _asking(graph: Graph) -> Iterator[Definition]:
    return (d for node in graph for d in node.definitions if d.op == "grad")


def backward_nodes(nodes: Mapping[str, Node], definition: Definition) -> list[str]:
    """The nodes of a backward that depend on the gradient of the result, that node first, each after what it reads."""
    start = definition.attributes["cotangent"]
    ends = [name for name in reversed(definition.attributes["backward"]) if name is not None]
    order = after_successors(lambda name: () if nodes[name].recurrent else nodes[name].sources[::-1], ends)
    depending = {start}
    for name in order:
        if not depending.isdisjoint(nodes[name].sources):
            depending.add(name)
    return [start, *(name for name in order if name in depending and name != start)]
