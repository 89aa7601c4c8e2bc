"""No value may depend on itself: a proof that every recursion makes progress.

Definitions that read each other in a circle form a component. For each component a ranking is sought, level by
level: an affine function of the steps, one per definition, that no read increases (`ranks.py`). Reads that strictly
decrease it are settled; what remains, limited to where the rank stays equal, goes to the next level. If every read is
settled, the values are well-founded.

Where no ranking is found, the points at small bounds are searched for an actual cycle, which is then shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from polyrhythm.compiler.analysis.farkas import all_rankings
from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.analysis.ranks import Component, Need
from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import conjunction, le
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, lengths_elsewhere, same_rows
from polyrhythm.compiler.ir.reads import circles, positioned
from polyrhythm.compiler.ir.sets import facts, points, solutions, with_facts
from polyrhythm.compiler.ir.terms import Symbol, Term, ordered
from polyrhythm.errors import CycleError, ProgressError
from polyrhythm.source import Source

Statement = tuple[str, int]
"""A definition: the name of its node and its position there."""


def check_progress(graph: Graph) -> None:
    """Raise a CycleError if a value may depend on itself."""
    for names in circles(graph.reads):
        found = recurrence(graph, names)
        if not _is_well_founded(graph, found):
            _complain(graph, names, found.needs)


def recurrence(graph: Graph, names: Collection[str]) -> Component[Statement]:
    """The definitions of some nodes and their reads of each other."""
    needs = reads_within(graph, set(names))
    members = list(dict.fromkeys(end for need in needs for end in (need.reader, need.source)))
    dims = {statement: graph[statement[0]].symbols for statement in members}
    return Component(members, needs, dims, [statement for statement in members if graph[statement[0]].recurrent])


def reads_within(graph: Graph, names: set[str]) -> list[Need[Statement]]:
    """The reads of some nodes from each other, by definition."""
    reads = []
    for name in sorted(names):
        node = graph[name]
        for number, definition in enumerate(node.definitions):
            for access in definition.operands:
                if access.source in names:
                    reads += list(_reads_of(graph, node, number, definition, access))
    return reads


def _reads_of(
    graph: Graph, node: Node, number: int, definition: Definition, access: Access
) -> Iterator[Need[Statement]]:
    """A read split by the definition of the source that it meets."""
    source = graph[access.source]
    steps, inside, _ = positioned(source.steps(access))
    known = [node.points, definition.domain, inside]
    own = (s for s in graph.symbols if s.over and set(s.over) <= set(source.symbols))
    elsewhere = lengths_elsewhere(access, source, own)
    if elsewhere:
        # The lengths of another row; that the read stays inside it is proved already.
        known.append(same_rows(node, steps, elsewhere))
        steps |= elsewhere
        known += [
            source.rectangle.substitute(steps),
            facts(frozenset(s for e in elsewhere.values() for s in e.symbols)),
        ]
    for other, met in enumerate(source.definitions):
        condition = with_facts(conjunction(*known, met.domain.substitute(steps)))
        if not solutions(condition).is_empty:
            yield Need((node.name, number), (source.name, other), condition, steps)


def _is_well_founded(graph: Graph, whole: Component[Statement]) -> bool:
    """Whether rankings settle all reads: each of a circle, together with rankings of what it leaves open."""

    def settled(circle: Component[Statement], ranks: Mapping[Statement, Term]) -> bool:
        left = circle.left_open(ranks) if all(_is_rank(graph[s[0]], ranks[s]) for s in circle.members) else None
        return left is not None and left[0] and _is_well_founded(graph, replace(circle, needs=left[1]))

    return all(any(settled(circle, ranks) for ranks in all_rankings(circle)) for circle in whole.circles())


def _is_rank(node: Node, rank: Term) -> bool:
    """Whether a rank is a number at every point of a node: a ragged length is one only along with its dims."""
    return all(set(symbol.over) <= set(node.symbols) for symbol in rank.symbols)


Place = tuple[str, tuple[int, ...]]
Row = tuple[Symbol, tuple[int, ...]]
"""A ragged bound, and the steps of the dims it depends on."""
Lengths = Mapping[Row, int]
_LONGEST, _MOST_ROWS = 3, 4
"""How far ragged lengths are searched for a cycle."""


def _complain(graph: Graph, component: Sequence[str], edges: Sequence[Need[Statement]]) -> None:
    nodes = [graph[name] for name in component]
    user_node = next((node for node in nodes if node.recurrent), nodes[0])
    for bounds in _small_bounds(edges):
        cycle, lengths = _concrete_cycle(graph, edges, bounds)
        if cycle:
            shown = ", which reads ".join(f"{name}{list(point)}" for name, point in cycle if graph[name].recurrent)
            lines = list(dict.fromkeys(_line_at(graph[name], point, bounds, lengths) for name, point in cycle))
            raise CycleError(
                f"a value depends on itself: {shown.replace(', which reads', ' reads', 1)}",
                fix="read an earlier or later step, so that every value is computed from others",
                at=lines[0],
                point={**bounds, **{f"{s}{list(row)}": length for (s, row), length in lengths.items()}},
                also=tuple(("through", at) for at in lines[1:8] if at is not None),
            )
    raise ProgressError(
        f"could not show that {described(user_node)} makes progress: its reads go both ways through time",
        fix="rewrite the recurrence so that along some dim every read goes one way, "
        "or split it into two tensors with one direction each",
        at=user_node.at,
    )


def _line_at(node: Node, place: tuple[int, ...], bounds: Mapping[Symbol, int], lengths: Lengths) -> Source | None:
    """The line of the definition that holds at a point."""
    lookup = {**bounds, **dict(zip(node.symbols, place, strict=True))}
    lookup |= {s: n for (s, row), n in lengths.items() if row == tuple(lookup.get(owner) for owner in s.over)}
    return next((d.at for d in node.definitions if d.domain.evaluate(lookup.__getitem__)), node.at)


def _small_bounds(edges: Sequence[Need[Statement]]) -> Iterator[dict[Symbol, int]]:
    symbols = ordered({s for edge in edges for s in edge.condition.symbols if s.kind != "dim"})
    symbols = tuple(s for s in symbols if not s.over and s.serial != serials.ELSEWHERE)
    sizes = range(6 if len(symbols) <= 2 else 4)
    for values in sorted(product(sizes, repeat=len(symbols)), key=lambda v: (sum(v), v)):
        yield dict(zip(symbols, values, strict=True))


def _concrete_cycle(
    graph: Graph, edges: Sequence[Need[Statement]], bounds: Mapping[Symbol, int]
) -> tuple[list[Place], dict[Row, int]]:
    """A cycle among the points at given bounds, and the ragged lengths at which it is one."""
    reads = [read for edge in edges for read in _concrete_reads(graph, edge, bounds)]
    rows = sorted({row for _, _, lengths in reads for row in lengths}, key=lambda row: (row[0].sort_key(), row[1]))
    if len(rows) > _MOST_ROWS:
        return [], {}
    for table in sorted(product(range(_LONGEST + 1), repeat=len(rows)), key=lambda v: (sum(v), v)):
        chosen = dict(zip(rows, table, strict=True))
        successors: dict[Place, list[Place]] = {}
        for place, read, lengths in reads:
            if all(chosen[row] == length for row, length in lengths.items()):
                successors.setdefault(place, []).append(read)
                successors.setdefault(read, [])
        for component in circles(successors):
            # Only recurrent tensors close a cycle, and they are what the user knows by name.
            start = next(place for place in reversed(component) if graph[place[0]].recurrent)
            return _shortest_cycle(successors, start, set(component)), chosen
    return [], {}


def _concrete_reads(
    graph: Graph, edge: Need[Statement], bounds: Mapping[Symbol, int]
) -> Iterator[tuple[Place, Place, dict[Row, int]]]:
    """Who reads what at given bounds, and the lengths of rows that this presumes."""
    reader, source = graph[edge.reader[0]], graph[edge.source[0]]
    fixed = edge.condition.substitute({symbol: Term(value) for symbol, value in bounds.items()})
    ragged = [s for s in fixed.symbols if s.kind != "dim"]
    fixed = conjunction(fixed, *(le(Term.of(s), _LONGEST) for s in ragged))
    for values in points(fixed, ordered(fixed.symbols | set(reader.symbols))).every():
        lookup = {**bounds, **values}
        at = {s: edge.steps[s].evaluate(lookup.__getitem__) for s in source.symbols}
        there = {term: s for s, term in edge.steps.items() if s.over}
        lengths: dict[Row, int] = {}
        for s in ragged:
            bound, steps = (there[Term.of(s)], at) if Term.of(s) in there else (s, values)
            if lengths.setdefault((bound, tuple(steps[owner] for owner in bound.over)), values[s]) != values[s]:
                break
        else:
            place = (reader.name, tuple(values[s] for s in reader.symbols))
            yield place, (source.name, tuple(at.values())), lengths


def _shortest_cycle(successors: Mapping[Place, Sequence[Place]], start: Place, inside: set[Place]) -> list[Place]:
    """A shortest way from a point back to itself (breadth first)."""
    came: dict[Place, Place] = {}
    frontier = [start]
    while frontier:
        following = []
        for place in frontier:
            for other in successors[place]:
                if other == start:
                    path = [place]
                    while path[-1] != start:
                        path.append(came[path[-1]])
                    return [*reversed(path), start]
                if other in inside and other not in came:
                    came[other] = place
                    following.append(other)
        frontier = following
    raise AssertionError("a strongly connected component has a cycle")
