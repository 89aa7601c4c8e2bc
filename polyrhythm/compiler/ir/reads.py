"""Who reads what in a graph: the questions that analyses and passes ask, answered in one place.

Reads of a node, everything it is made from, strongly connected components (circles), and an access as points: each
range at a position of its own. All are linear in the reads.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping
from typing import TypeVar

from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import Condition, conjunction, ge, lt
from polyrhythm.compiler.ir.graph import Graph, Node, Range, Step
from polyrhythm.compiler.ir.terms import Symbol, Term

Vertex = TypeVar("Vertex", bound=Hashable)


def roots(graph: Graph) -> set[str]:
    """The nodes whose values are used from outside: outputs, effects, stopping conditions, ragged lengths."""
    lengths = (access.source for access in graph.lengths.values())
    return {*graph.outputs, *graph.effects, *graph.until.values(), *lengths}


def reached(successors: Mapping[Vertex, Iterable[Vertex]], starts: Iterable[Vertex]) -> set[Vertex]:
    """Everything that can be reached from some vertices, with themselves.

    >>> sorted(reached({1: [2], 2: [3], 3: [], 4: [1]}, [2]))
    [2, 3]
    """
    waiting = list(starts)
    seen = set(waiting)
    while waiting:
        for other in successors.get(waiting.pop(), ()):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return seen


def cone(graph: Graph, start: str, stop: Iterable[str] = ()) -> set[str]:
    """A node and everything it is computed from, not looking behind `stop`."""
    ends = set(stop)
    return reached({name: reads for name, reads in graph.reads.items() if name not in ends}, [start])


def readers(nodes: Mapping[str, Node]) -> dict[str, list[str]]:
    """The nodes that read each node, once for each read."""
    found: dict[str, list[str]] = {name: [] for name in nodes}
    for node in nodes.values():
        for source in node.sources:
            found[source].append(node.name)
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


def reaches(successors: Mapping[Vertex, Iterable[Vertex]], start: Vertex, goal: Vertex) -> bool:
    """Whether a path of at least one arc leads from one vertex to another.

    >>> reaches({1: [2], 2: [3], 3: []}, 1, 3), reaches({1: [2], 2: [3], 3: []}, 3, 1)
    (True, False)
    """
    return any(goal in reached(successors, [other]) for other in successors.get(start, ()))
