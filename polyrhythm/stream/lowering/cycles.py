"""Components of the graph: in what order nodes are lowered, and whether those that depend on each other can run.

Every node is produced in the order of the dims of the streams. Nodes that depend on each other can run if each finds
what it needs already produced; that is tried out, point by point, before anything is built.
"""

from __future__ import annotations

from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.ir import reads
from polyrhythm.compiler.ir.graph import Graph, Node, Range
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.stream.errors import AccessNotStreamable
from polyrhythm.stream.lowering.problem import Point, Problem
from polyrhythm.stream.lowering.values import rectangle


def components(graph: Graph) -> list[list[str]]:
    """Strongly connected components of the reads, what is read first."""
    return [component[::-1] for component in reads.components(graph.reads)]


def inner_order(nodes: list[Node]) -> list[Node]:
    """The nodes of a cycle that are no recurrent tensors, what they read first."""
    inner = {node.name: node for node in nodes if not node.recurrent}
    order: list[Node] = []
    done: set[str] = set()

    def visit(node: Node) -> None:
        if node.name in done:
            return
        done.add(node.name)
        for definition in node.definitions:
            for access in definition.operands:
                if access.source in inner:
                    visit(inner[access.source])
        order.append(node)

    for node in inner.values():
        visit(node)
    return order


def reads_itself(node: Node) -> bool:
    return any(access.source == node.name for definition in node.definitions for access in definition.operands)


def check_order(problem: Problem, nodes: list[Node]) -> None:
    """Whether nodes that depend on each other can all be produced in the order of the streams."""
    names = {node.name for node in nodes}
    points = {}
    for node in nodes:
        levels = problem.levels(node)
        sizes = [problem.extent(node, symbol) for symbol in problem.ordered(node.symbols)]
        points[node.name] = (levels if levels is not None else rectangle(sizes))[-1] if node.dims else ((),)
    done = dict.fromkeys(names, 0)
    made: set[tuple[str, Point]] = set()
    progress = True
    while progress:
        progress = False
        for node in nodes:
            while done[node.name] < len(points[node.name]):
                point = points[node.name][done[node.name]]
                if not all(place in made for place in _reads_at(problem, node, point, names)):
                    break
                made.add((node.name, point))
                done[node.name] += 1
                progress = True
    stuck = next((node for node in nodes if done[node.name] < len(points[node.name])), None)
    if stuck is not None:
        point = points[stuck.name][done[stuck.name]]
        missing = next(p for p in _reads_at(problem, stuck, point, names) if p not in made)
        raise AccessNotStreamable(
            f"{described(stuck)} needs a value of {described(problem.graph[missing[0]])} that is later in the stream",
            fix="streams run forward: write the recurrence from its first step to its last",
            at=stuck.at,
            point=dict(zip(problem.ordered(stuck.symbols), point, strict=True)),
        )


def _reads_at(problem: Problem, node: Node, point: Point, names: set[str]) -> list[tuple[str, Point]]:
    """The points of some nodes that a node reads at a point."""
    lookup = problem.lookup(dict(zip(problem.ordered(node.symbols), point, strict=True)))
    definition = next(d for d in node.definitions if d.domain.evaluate(lookup))
    found: list[tuple[str, Point]] = []
    for access in definition.operands:
        if access.source not in names:
            continue
        source_node = problem.graph[access.source]
        partial: list[dict[Symbol, int]] = [{}]
        for symbol, step in source_node.steps(access).items():
            if isinstance(step, Range):
                steps = [
                    step.start.evaluate(lookup) + k * step.step for k in range(max(0, step.length.evaluate(lookup)))
                ]
            else:
                steps = [step.evaluate(lookup)]
            partial = [{**chosen, symbol: at} for chosen in partial for at in steps]
        order = problem.ordered(source_node.symbols)
        found.extend((access.source, tuple(chosen[symbol] for symbol in order)) for chosen in partial)
    return found
