"""Who reads what in a graph: the questions that analyses and passes ask, answered in one place.

Reads of a node, everything it is made from, strongly connected components (circles), and an access as points: each
range at a position of its own. All are linear in the reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import Condition, conjunction, ge, lt
from polyrhythm.compiler.ir.graph import Access, Graph, Node, Range, Step
from polyrhythm.compiler.ir.terms import Symbol, Term

Vertex = TypeVar("Vertex", bound=Hashable)


def roots(graph: Graph) -> set[str]:
    """The nodes whose values are used from outside: outputs, effects, stopping conditions, ragged lengths."""
    lengths = (access.source for access in graph.lengths.values())
    return {*graph.outputs, *graph.effects, *graph.until.values(), *lengths}


def reached(successors: Callable[[Vertex], Iterable[Vertex]], starts: Iterable[Vertex]) -> set[Vertex]:
    """Everything that can be reached from some vertices, with themselves.

    >>> sorted(reached({1: [2], 2: [3], 3: [], 4: [1]}.__getitem__, [2]))
    [2, 3]
    """
    waiting = list(starts)
    seen = set(waiting)
    while waiting:
        for other in successors(waiting.pop()):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return seen


def after_successors(successors: Callable[[Vertex], Sequence[Vertex]], starts: Iterable[Vertex]) -> list[Vertex]:
    """Everything that can be reached from some vertices, each after those it points to, circles aside.

    >>> after_successors({1: [2, 3], 2: [], 3: [2]}.__getitem__, [1])
    [2, 3, 1]
    """
    done: list[Vertex] = []
    seen: set[Vertex] = set()
    for start in starts:
        stack = [(start, False)]
        while stack:
            vertex, complete = stack.pop()
            if complete:
                done.append(vertex)
            elif vertex not in seen:
                seen.add(vertex)
                stack.append((vertex, True))
                stack.extend((other, False) for other in reversed(successors(vertex)))
    return done


def cone(graph: Graph, *names: str) -> set[str]:
    """Some nodes and everything they are computed from."""
    return reached(lambda name: graph[name].sources, names)


def readers(nodes: Mapping[str, Node]) -> dict[str, list[str]]:
    """The nodes that read each node, once for each read."""
    found: dict[str, list[str]] = {name: [] for name in nodes}
    for node in nodes.values():
        for source in node.sources:
            found[source].append(node.name)
    return found


Place = tuple[str, int, Access]
"""Where a node is read: by which node, in which of its definitions, and how."""


def places(graph: Graph) -> dict[str, list[Place]]:
    """Where each node is read."""
    found: dict[str, list[Place]] = {node.name: [] for node in graph}
    for reader in graph:
        for number, definition in enumerate(reader.definitions):
            for access in definition.operands:
                found[access.source].append((reader.name, number, access))
    return found


def positioned(steps: Mapping[Vertex, Step]) -> tuple[dict[Vertex, Term], Condition, tuple[Symbol, ...]]:
    """The entries of an access as points: each range at a position, what is known of the positions, and these."""
    pointed: dict[Vertex, Term] = {}
    known: list[Condition] = []
    positions: list[Symbol] = []
    for number, (dim, step) in enumerate(steps.items()):
        if isinstance(step, Range):
            position = Symbol(f"k{number}", "dim", serial=serials.POSITION)
            positions.append(position)
            known += [ge(position.term, 0), lt(position.term, step.length)]
            step = step.at(position.term)
        pointed[dim] = step
    return pointed, conjunction(*known), tuple(positions)


def fresh_name(hint: str, taken: Container[str]) -> str:
    """A name that begins with a hint and is not taken.

    >>> fresh_name("x", {"x", "x_2"})
    'x_3'
    """
    name, number = hint, 2
    while name in taken:
        name, number = f"{hint}_{number}", number + 1
    return name


def components(successors: Mapping[Vertex, Iterable[Vertex]]) -> list[list[Vertex]]:
    """The strongly connected components of a directed graph, each after those it points to (Tarjan, iterative).

    >>> components({1: [2], 2: [1, 3], 3: []})
    [[3], [2, 1]]
    """
    order: dict[Vertex, int] = {}
    low: dict[Vertex, int] = {}
    active: list[Vertex] = []
    on_stack: set[Vertex] = set()
    found: list[list[Vertex]] = []
    for root in successors:
        if root in order:
            continue
        work = [(root, iter(successors[root]))]
        order[root] = low[root] = len(order)
        active.append(root)
        on_stack.add(root)
        while work:
            vertex, rest = work[-1]
            for other in rest:
                if other not in order:
                    order[other] = low[other] = len(order)
                    active.append(other)
                    on_stack.add(other)
                    work.append((other, iter(successors[other])))
                    break
                if other in on_stack:
                    low[vertex] = min(low[vertex], order[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[vertex])
                if low[vertex] == order[vertex]:
                    component = []
                    while True:
                        component.append(active.pop())
                        on_stack.discard(component[-1])
                        if component[-1] == vertex:
                            break
                    found.append(component)
    return found


def circles(successors: Mapping[Vertex, Sequence[Vertex] | Collection[Vertex]]) -> list[list[Vertex]]:
    """The components that lead back to themselves.

    >>> circles({1: [2], 2: [1, 3], 3: []})
    [[2, 1]]
    """
    return [part for part in components(successors) if len(part) > 1 or part[0] in successors[part[0]]]


def reaches(successors: Mapping[Vertex, Iterable[Vertex]], start: Vertex, goal: Vertex) -> bool:
    """Whether a path of at least one arc leads from one vertex to another.

    >>> reaches({1: [2], 2: [3], 3: []}, 1, 3), reaches({1: [2], 2: [3], 3: []}, 3, 1)
    (True, False)
    """
    return goal in reached(lambda vertex: successors.get(vertex, ()), successors.get(start, ()))
