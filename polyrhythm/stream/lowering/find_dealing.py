"""Which dims a schedule deals out, and which nodes belong to their entries."""

from __future__ import annotations

from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.stream.directives import ParallelizeDirective, TileDirective
from polyrhythm.stream.errors import DirectiveMismatch
from polyrhythm.stream.lowering.cycles import components, reads_itself
from polyrhythm.stream.lowering.dealt import Dealing
from polyrhythm.stream.lowering.gathers import taken_part
from polyrhythm.stream.lowering.problem import Problem
from polyrhythm.stream.lowering.routed import Routings


def find_dealing(problem: Problem, routings: Routings) -> Dealing | None:
    """The dims that the schedule deals out, if any: all to the same regions."""
    found = [(key, d) for key, d in problem.directives.items() if isinstance(d, ParallelizeDirective)]
    if not found:
        return None
    scope = found[0][0][2]
    if any(key[2] != scope for key, _ in found):
        raise DirectiveMismatch(
            f"{', '.join(str(directive) for _, directive in found)}: there would be regions of several kinds",
            fix="deal out the same operations along all of the dims",
        )
    directives = {key[1]: directive for key, directive in found}
    nodes = set.intersection(*(_entry_nodes(problem, symbol, routings) for symbol in directives))
    if scope:
        inner = {a.source for name in scope for d in problem.graph[name].definitions for a in d.operands}
        nodes &= scope | ({node.name for node in problem.graph.inputs.values()} & inner)
    inputs = {node.name for node in problem.graph.inputs.values()}
    working = {name for name in nodes - inputs if not problem.is_metadata(name)}
    if not nodes or (scope and not nodes & scope):
        return None
    for key, tiled in problem.directives.items():
        if key[0] is TileDirective and key[2] & nodes and (key[1] not in directives or not working <= key[2]):
            raise DirectiveMismatch(
                f"{tiled}: some operations of {key[1]}s that are dealt out have a tile of their own",
                fix="give the tile without on=, or to all of the operations that are dealt out",
                at=problem.graph[next(iter(key[2] & nodes))].at,
            )
    for symbol, directive in directives.items():
        if not scope and symbol in routings.dims and problem.directive(TileDirective, symbol):
            raise DirectiveMismatch(
                f"{directive}: the steps of {symbol} are packed by the parts that they choose",
                fix=f"leave out the tile directive of {symbol}, or deal out another dim",
                at=problem.graph[next(iter(nodes))].at,
            )
    return Dealing(problem, directives, nodes, routings.dims, scope)


def _entry_nodes(problem: Problem, entry: Symbol, routings: Routings) -> set[str]:
    """The nodes that belong to single entries: they read no other entry, and live in no branch."""
    graph = problem.graph
    steps = max((problem.extent(node, entry) for node in graph if entry in node.symbols), default=0)
    found: set[str] = set()
    for component in components(graph):
        node = graph[component[0]]
        if len(component) > 1 or reads_itself(node) or len(node.definitions) > 1 or entry not in node.symbols:
            continue
        in_branches = node.name in routings.owner or node.name in routings.taken
        if in_branches or problem.levels(node) is not None or problem.extent(node, entry) != steps:
            continue
        if taken_part(problem, node) is None and all(
            entry not in graph[a.source].symbols or graph[a.source].steps(a)[entry] is Term.of(entry)
            for a in node.definitions[0].operands
        ):
            found.add(node.name)
    return found
