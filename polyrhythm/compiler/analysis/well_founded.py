"""No value may depend on itself: a proof that every recursion makes progress.

Definitions that read each other in a circle form a component. For each component a ranking is sought, level by
level: an affine function of the steps, one per definition (a dim forwards or backwards, at an integer rate, plus
a shift), that no read increases. Reads that strictly decrease it are settled; what remains, limited to where the
rank stays equal, goes to the next level. If every read is settled, the values are well-founded. The shifts come
from Bellman-Ford on the smallest distance of each read (Darte, Robert and Vivien, "Scheduling and Automatic
Parallelization", chapter 4).

Where no ranking is found, the points at small bounds are searched for an actual cycle, which is then shown.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import lcm
from typing import Protocol, TypeVar

from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.ir.conditions import Condition, conjunction, eq, ge, le, lt
from polyrhythm.compiler.ir.graph import ELSEWHERE, Access, Definition, Graph, Node, Range, lengths_elsewhere, same_rows
from polyrhythm.compiler.ir.sets import facts, least, points, solutions
from polyrhythm.compiler.ir.terms import FloorDiv, Symbol, Term, dims_of, ordered
from polyrhythm.errors import CycleError, ProgressError
from polyrhythm.source import Source

Vertex = TypeVar("Vertex", bound=Hashable)
Statement = tuple[str, int]
"""A definition: the name of its node and its position there."""


Seen = TypeVar("Seen", bound=Hashable, covariant=True)


class Edge(Protocol[Seen]):
    """Something that reads something else, at steps that depend on its own."""

    @property
    def reader(self) -> Seen: ...

    @property
    def source(self) -> Seen: ...

    @property
    def steps(self) -> Mapping[Symbol, Term]: ...


@dataclass(frozen=True)
class _Read:
    """One statement reads another where `condition` holds; `steps` says at which steps."""

    reader: Statement
    source: Statement
    condition: Condition
    steps: Mapping[Symbol, Term]


def check_progress(graph: Graph) -> None:
    """Raise a CycleError if a value may depend on itself."""
    reads: dict[str, list[str]] = {
        node.name: [access.source for d in node.definitions for access in d.operands] for node in graph
    }
    for component in components(reads):
        if len(component) > 1 or component[0] in reads[component[0]]:
            edges = reads_within(graph, set(component))
            if not _well_founded(graph, edges):
                _complain(graph, component, edges)


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
    """Whether a path leads from one vertex to another.

    >>> reaches({1: [2], 2: [3], 3: []}, 1, 3), reaches({1: [2], 2: [3], 3: []}, 3, 1)
    (True, False)
    """
    waiting, seen = [start], {start}
    while waiting:
        for other in successors.get(waiting.pop(), ()):
            if other == goal:
                return True
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return False


def reads_within(graph: Graph, names: set[str]) -> list[_Read]:
    """The reads of some nodes from each other, by definition."""
    reads = []
    for name in sorted(names):
        node = graph[name]
        for number, definition in enumerate(node.definitions):
            for access in definition.operands:
                if access.source in names:
                    reads += list(_reads_of(graph, node, number, definition, access))
    return reads


def _reads_of(graph: Graph, node: Node, number: int, definition: Definition, access: Access) -> Iterator[_Read]:
    """A read split by the definition of the source that it meets."""
    source = graph[access.source]
    steps: dict[Symbol, Term] = {}
    known = [node.points, definition.domain]
    for position, (symbol, step) in enumerate(zip(source.symbols, access.steps, strict=True)):
        if isinstance(step, Range):
            k = Symbol(f"k{position}", "dim", serial=-1)
            known += [ge(Term.of(k), 0), lt(Term.of(k), step.length)]
            step = step.at(Term.of(k))
        steps[symbol] = step
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
        condition = conjunction(*known, met.domain.substitute(steps))
        condition = conjunction(condition, facts(condition.symbols))
        if not solutions(condition).is_empty:
            yield _Read((node.name, number), (source.name, other), condition, steps)


def _well_founded(graph: Graph, reads: Sequence[_Read]) -> bool:
    """Whether rankings settle all reads."""
    successors: dict[Statement, list[Statement]] = {}
    for read in reads:
        successors.setdefault(read.reader, []).append(read.source)
        successors.setdefault(read.source, [])
    found = components(successors)
    place = {statement: number for number, component in enumerate(found) for statement in component}
    inside: list[list[_Read]] = [[] for _ in found]
    for read in reads:
        if place[read.reader] == place[read.source]:
            inside[place[read.reader]].append(read)
    for component, edges in zip(found, inside, strict=True):
        if edges and not any(
            remaining is not None and _well_founded(graph, remaining)
            for remaining in (_ranked(edges, ranking) for ranking in _rankings(graph, component, edges))
        ):
            return False
    return True


def _rankings(graph: Graph, component: Sequence[Statement], edges: Sequence[_Read]) -> Iterator[dict[Statement, Term]]:
    """Candidate rank functions: each dim, forwards and backwards, at the rates the reads suggest.

    Reads of one component may suggest different rates, as `y[t - 1] + y[t // 2]` does. Then the rank that follows only
    the reads that keep the pace is the one that works: it falls along the others too.
    """
    symbols = dict.fromkeys(symbol for name, _ in component for symbol in graph[name].symbols)
    for symbol in symbols:
        along = [statement for statement in component if symbol in graph[statement[0]].symbols]
        members = set(along)
        moving = [edge for edge in edges if edge.reader in members and edge.source in members]
        steady = [edge for edge in moving if keeps_pace(edge.steps[symbol], symbol)]
        # A definition such as `y[2 * t] = ...` reads its right side at half the pace: that ranks at twice the rate.
        mostly = [e for e in moving if not graph[e.source[0]].recurrent or keeps_pace(e.steps[symbol], symbol)]
        tried: list[dict[Statement, Term]] = []
        for followed in (moving, mostly, steady):
            ranks = standing_ranks(follow_ranks(along, followed, symbol), component, edges)
            if ranks not in tried and all(_is_rank(graph[name], ranks[name, number]) for name, number in component):
                tried.append(ranks)
                yield ranks
                yield {statement: -rank for statement, rank in ranks.items()}


def _is_rank(node: Node, rank: Term) -> bool:
    """Whether a rank is a number at every point of a node: a ragged length is one only along with its dims."""
    return all(set(symbol.over) <= set(node.symbols) for symbol in rank.symbols)


def standing_ranks(
    ranks: Mapping[Vertex, Term], component: Sequence[Vertex], edges: Sequence[Edge[Vertex]]
) -> dict[Vertex, Term]:
    """Ranks for the statements that lack the dim too, as the right side of `y[3] = y[2] * 2` does.

    Theirs is the rank of what they read; the shifts settle the rest.
    """
    ranks = dict(ranks)
    known = -1
    while known < len(ranks):
        known = len(ranks)
        for edge in edges:
            if edge.reader not in ranks and edge.source in ranks:
                read = ranks[edge.source].substitute(edge.steps)
                if not dims_of(read):
                    ranks[edge.reader] = read
    return {statement: ranks.get(statement, Term(0)) for statement in component}


Line = Mapping[Symbol | None, Fraction]
"""How fast a rank grows with a dim (the entry None) and with each bound."""

STEP: Line = {None: Fraction(1)}
"""The growth of the step itself, moved or not."""


def follow_ranks(component: Sequence[Vertex], edges: Sequence[Edge[Vertex]], symbol: Symbol) -> dict[Vertex, Term]:
    """Ranks that follow the reads along a dim: what reads step `a*t // b` ranks at the rate a/b of what it reads.

    A read that mirrors the dim, of step `T - 1 - t`, turns the rank around and moves it by T. Where the reads do not
    say, the rank is the step itself.
    """
    ranks: dict[Vertex, Line] = {component[0]: STEP}
    lines = [(edge, line) for edge in edges if (line := growth(edge.steps[symbol], symbol)) is not None]
    known = 0
    while known < len(ranks):
        known = len(ranks)
        for edge, line in lines:
            if edge.source in ranks and edge.reader not in ranks:
                ranks[edge.reader] = _rank_of_reader(ranks[edge.source], line)
            elif edge.reader in ranks and edge.source not in ranks:
                ranks[edge.source] = _rank_of_source(ranks[edge.reader], line)
    used = {id(line): line for line in (*ranks.values(), STEP)}  # few: most reads keep the pace
    scale = lcm(*(value.denominator for line in used.values() for value in line.values()))
    terms = {number: _scaled(line, scale, symbol) for number, line in used.items()}
    return {statement: terms[id(ranks.get(statement, STEP))] for statement in component}


def _rank_of_reader(source: Line, line: Line) -> Line:
    if line == STEP:
        return source
    turned = {key: source[None] * value for key, value in line.items()}
    return _added(turned, {key: value for key, value in source.items() if key is not None})


def _rank_of_source(reader: Line, line: Line) -> Line:
    if line == STEP:
        return reader
    rate = reader[None] / line[None]
    moved: Line = {key: -rate * value for key, value in line.items() if key is not None}
    others: Line = {key: value for key, value in reader.items() if key is not None}
    return _added({None: rate}, moved, others)


def _scaled(line: Line, scale: int, symbol: Symbol) -> Term:
    terms = (Term.of(symbol if key is None else key) * int(value * scale) for key, value in line.items())
    return sum(terms, Term(0))


def keeps_pace(term: Term, symbol: Symbol) -> bool:
    """Whether a term is the step itself, moved or mirrored."""
    return abs(term.coefficient(symbol)) == 1 and term.linear_in(symbol)


@lru_cache(1 << 14)
def growth(term: Term, symbol: Symbol) -> Line | None:
    """How fast a term grows with a dim and with the bounds, on average; None where there is no fixed rate."""
    total: Line = {None: Fraction(0)}
    for monomial, coefficient in term.monomials:
        atom = monomial[0]
        if isinstance(atom, Symbol):
            if atom is symbol:
                total = _added(total, {None: Fraction(coefficient)})
            elif atom.kind != "dim" and len(monomial) == 1:
                total = _added(total, {atom: Fraction(coefficient)})
        elif isinstance(atom, FloorDiv):
            inner = growth(atom.dividend, symbol)
            if inner is not None:
                total = _added(total, {key: coefficient * value / atom.divisor for key, value in inner.items()})
        elif symbol in Term(0, ((monomial, 1),)).symbols:
            return None
    return total if total[None] else None


def _added(*lines: Line) -> Line:
    total: dict[Symbol | None, Fraction] = {}
    for line in lines:
        for key, value in line.items():
            total[key] = total.get(key, Fraction(0)) + value
    return total


def _ranked(edges: Sequence[_Read], ranking: Mapping[Statement, Term]) -> list[_Read] | None:
    """The reads that a ranking leaves open, or None if it cannot be shifted to fit or settles nothing."""
    distances = []
    for edge in edges:
        drop = ranking[edge.reader] - ranking[edge.source].substitute(edge.steps)
        smallest = least(drop, edge.condition)
        if smallest is None:
            return None
        distances.append((edge, drop, smallest))
    statements = {s for e in edges for s in (e.reader, e.source)}
    shifts = least_shifts(statements, ((e.reader, e.source, smallest) for e, _, smallest in distances))
    if shifts is None:
        return None
    remaining = []
    settled = False
    for edge, drop, smallest in distances:
        shift = shifts[edge.source] - shifts[edge.reader]
        if smallest + shift >= 1:
            settled = True
            continue
        equal = conjunction(edge.condition, eq(drop + shift, 0))
        if solutions(equal).is_empty:
            settled = True
            continue
        settled = settled or not solutions(conjunction(edge.condition, ge(drop + shift, 1))).is_empty
        remaining.append(replace(edge, condition=equal))
    return remaining if settled else None


def least_shifts(vertices: Iterable[Vertex], arcs: Iterable[tuple[Vertex, Vertex, int]]) -> dict[Vertex, int] | None:
    """The least shifts from zero on with `shift[b] >= shift[a] - gap` for each arc `(a, b, gap)` (Bellman-Ford).

    None for a circle of arcs that asks for more and more. It shows as one among what decided each shift last, long
    before the last round.

    >>> least_shifts("abc", [("a", "b", -1), ("b", "c", -2)])
    {'a': 0, 'b': 1, 'c': 3}
    """
    shifts = dict.fromkeys(vertices, 0)
    tightest: dict[tuple[Vertex, Vertex], int] = {}
    for source, reader, gap in arcs:
        tightest[source, reader] = min(gap, tightest.get((source, reader), gap))
    decided: dict[Vertex, Vertex] = {}
    changed = True
    while changed:
        changed = False
        for (source, reader), gap in tightest.items():
            if shifts[reader] < shifts[source] - gap:
                shifts[reader] = shifts[source] - gap
                decided[reader] = source
                changed = True
        if _is_circular(decided):
            return None
    return shifts


def _is_circular(following: Mapping[Vertex, Vertex]) -> bool:
    """Whether going on from some vertex leads back to it."""
    seen: dict[Vertex, Vertex] = {}
    for first in following:
        vertex: Vertex | None = first
        while vertex is not None and vertex not in seen:
            seen[vertex] = first
            vertex = following.get(vertex)
        if vertex is not None and seen[vertex] == first:
            return True
    return False


Place = tuple[str, tuple[int, ...]]
Row = tuple[Symbol, tuple[int, ...]]
"""A ragged bound, and the steps of the dims it depends on."""
Lengths = Mapping[Row, int]
_LONGEST, _MOST_ROWS = 3, 4
"""How far ragged lengths are searched for a cycle."""


def _complain(graph: Graph, component: Sequence[str], edges: Sequence[_Read]) -> None:
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


def _small_bounds(edges: Sequence[_Read]) -> Iterator[dict[Symbol, int]]:
    symbols = ordered({s for edge in edges for s in edge.condition.symbols if s.kind != "dim"})
    symbols = tuple(s for s in symbols if not s.over and s.serial != ELSEWHERE)
    sizes = range(6 if len(symbols) <= 2 else 4)
    for values in sorted(product(sizes, repeat=len(symbols)), key=lambda v: (sum(v), v)):
        yield dict(zip(symbols, values, strict=True))


def _concrete_cycle(
    graph: Graph, edges: Sequence[_Read], bounds: Mapping[Symbol, int]
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
        for component in components(successors):
            if len(component) > 1 or component[0] in successors[component[0]]:
                # Only recurrent tensors close a cycle, and they are what the user knows by name.
                start = next(place for place in reversed(component) if graph[place[0]].recurrent)
                return _shortest_cycle(successors, start, set(component)), chosen
    return [], {}


def _concrete_reads(
    graph: Graph, edge: _Read, bounds: Mapping[Symbol, int]
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
