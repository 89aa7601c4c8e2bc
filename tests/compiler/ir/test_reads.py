"""Who reads what: against a brute force over the arcs of random graphs."""

from __future__ import annotations

import numpy as np

import polyrhythm as pr
from polyrhythm.compiler.ir.conditions import conjunction
from polyrhythm.compiler.ir.graph import Range
from polyrhythm.compiler.ir.reads import components, cone, positioned, reached, reaches, readers, roots
from polyrhythm.compiler.ir.sets import points
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.trace import trace


def closure(arcs: np.ndarray) -> np.ndarray:
    """Whether a path of at least one arc leads from each vertex to each other one (Warshall)."""
    found = arcs.copy()
    for middle in range(len(arcs)):
        found |= np.outer(found[:, middle], found[middle])
    return found


def test_paths_and_circles_of_random_graphs() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 5, 8, 8, 8):
        arcs = rng.random((size, size)) < 0.25
        successors = {v: [int(w) for w in np.flatnonzero(arcs[v])] for v in range(size)}
        paths = closure(arcs)
        for start in range(size):
            assert reached(successors.__getitem__, [start]) == {start, *np.flatnonzero(paths[start]).tolist()}
            for goal in range(size):
                assert reaches(successors, start, goal) == paths[start, goal]
        found = components(successors)
        assert sorted(v for component in found for v in component) == list(range(size))
        for number, component in enumerate(found):
            for vertex in component:
                circle = {w for w in range(size) if w == vertex or (paths[vertex, w] and paths[w, vertex])}
                assert circle == set(component)
                later = {w for other in found[number + 1 :] for w in other}
                assert not later & set(successors[vertex]), "each comes after those it points to"


def test_reads_of_a_program() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))
    y = pr.recurrent((), (t,), name="y")
    y[0] = x[0]
    y[t + 1] = y * 2 + x[t + 1]
    apart = x + 1
    graph = trace([y[T - 1], apart[0]])
    both = readers(graph.nodes)
    for name, sources in graph.reads.items():
        for source in sources:
            assert name in both[source]
        assert set(sources) == {a.source for d in graph[name].definitions for a in d.operands}
    assert roots(graph) == set(graph.outputs)
    first, second = (cone(graph, name) for name in graph.outputs)
    assert {"x", "y"} <= first
    assert "y" not in second
    assert cone(graph, *graph.outputs) == first | second


def test_a_range_is_read_at_its_positions() -> None:
    i, j = Symbol("i", "dim"), Symbol("j", "dim")
    steps, known, (position,) = positioned({i: Term(3), j: Range(Term(2), Term(4), 5)})
    assert steps[i] == Term(3)
    places = points(conjunction(known), (position,)).every()
    assert sorted(steps[j].evaluate(place.__getitem__) for place in places) == [2, 7, 12, 17]
