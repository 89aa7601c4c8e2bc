"""How many loops, one inside the other, the values of a program must go through one after the other.

Statements that read each other in a circle need a loop that carries a dependence: its iterations come one after the
other. Which dim that is, is often a choice, and what the loop leaves open needs further loops inside. The *depth* is
the least number of such loops along the best choice. A network of L layers over T given steps has depth one, by layers
outside: all steps of a layer are independent. By steps outside it would have two.

A *ranking* is an affine function of the steps, one per statement: a dim forwards or backwards, at an integer rate, plus
a shift. Those tried follow from the reads; the shifts come from Bellman-Ford on the smallest distance of each read
(Darte, Robert and Vivien, "Scheduling and Automatic Parallelization", chapter 4). The same rankings prove that a
recursion is well-founded (`well_founded.py`). The cost is a few minima over integer sets for each dim and level.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import Generic, TypeVar

from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import Compare, Condition, conjunction, eq, ge, parts_of
from polyrhythm.compiler.ir.reads import components
from polyrhythm.compiler.ir.sets import least, solutions, with_facts
from polyrhythm.compiler.ir.terms import FloorDiv, Symbol, Term, dims_of

Vertex = TypeVar("Vertex", bound=Hashable)

FEW_STEPS = 8
"""So few steps may as well come one after the other."""


@dataclass(frozen=True)
class Need(Generic[Vertex]):
    """`reader` at a point needs `source` at `steps`, wherever `condition` holds; `gap` ranks lie in between."""

    reader: Vertex
    source: Vertex
    condition: Condition
    steps: Mapping[Symbol, Term]
    gap: int = 0


Dims = Mapping[Vertex, Sequence[Symbol]]
"""The dims of each statement that no loop has taken yet."""


@dataclass(frozen=True)
class Component(Generic[Vertex]):
    """Statements, their reads of each other, and the dims of each that no loop has taken yet.

    Those in `definitions` say what a recurrent tensor is, and may be paced by its index.
    """

    members: Sequence[Vertex]
    needs: Sequence[Need[Vertex]]
    dims: Dims[Vertex]
    definitions: Collection[Vertex] = ()

    @property
    def symbols(self) -> Iterable[Symbol]:
        """All dims that are left."""
        return dict.fromkeys(symbol for vertex in self.members for symbol in self.dims[vertex])

    def circles(self) -> Iterator[Component[Vertex]]:
        """The strongly connected parts in which something is read."""
        successors: dict[Vertex, list[Vertex]] = {vertex: [] for vertex in self.members}
        for need in self.needs:
            successors[need.reader].append(need.source)
        parts = components(successors)
        place = {vertex: number for number, part in enumerate(parts) for vertex in part}
        inside: list[list[Need[Vertex]]] = [[] for _ in parts]
        for need in self.needs:
            if place[need.reader] == place[need.source]:
                inside[place[need.reader]].append(need)
        for part, own in zip(parts, inside, strict=True):
            if own:
                yield replace(self, members=part, needs=own)

    def depth(self) -> int | None:
        """The least number of nested loops that carry something; None where no order was found."""
        found = [min(circle.depths().values(), default=None) for circle in self.circles()]
        return None if None in found else max((least for least in found if least is not None), default=0)

    def depths(self) -> dict[Symbol, int]:
        """For each dim that may be the outermost loop, the depth it leads to."""
        found: dict[Symbol, int] = {}
        for symbol in self.symbols:
            by = (self.depth_by(symbol, ranks) for ranks in self.rankings(symbol))
            deeper = next((depth for depth in by if depth is not None), None)
            if deeper is not None:
                found[symbol] = deeper
        return found

    def depth_by(self, symbol: Symbol, ranks: Mapping[Vertex, Term]) -> int | None:
        """The depth that a loop along a dim by some ranks leads to; None where what it leaves open has no order."""
        inner = self.left_open(ranks)
        if inner is None:
            return None
        left = {v: [s for s in self.dims[v] if s is not symbol] for v in self.members}
        deeper = replace(self, needs=inner[1], dims=left).depth()
        return None if deeper is None else inner[0] + deeper

    def rankings(self, symbol: Symbol, by_others: bool = False) -> Iterator[dict[Vertex, Term]]:
        """Rank functions along a dim that the reads suggest, forwards and backwards; whether they fit is not yet known.

        With `by_others`, what lacks the dim may rank by a dim of its own that it reads it at, as `f(c[k])` does in a
        table over spans.
        """
        along = [vertex for vertex in self.members if symbol in self.dims[vertex]]
        if not along:
            return
        if not self.needs and len(self.members) == 1:
            yield {self.members[0]: symbol.term}
            yield {self.members[0]: -symbol.term}
            return
        members = set(along)
        moving = [need for need in self.needs if need.reader in members and need.source in members]
        steady = [need for need in moving if keeps_pace(need.steps[symbol], symbol)]
        # A definition such as `y[2 * t] = ...` reads its right side at half the pace: that ranks at twice the rate.
        mostly = [n for n in moving if n.source not in self.definitions or keeps_pace(n.steps[symbol], symbol)]
        nested: tuple[list[Need[Vertex]], ...] = (moving, mostly, steady, [])  # each a part of the last
        parts = [*{len(reads): (reads, along[:1]) for reads in nested}.values()]
        # Definitions that read each other at several paces: each ranks by its steps, what it is made of along with it.
        definitions = [vertex for vertex in along if vertex in self.definitions]
        parts += [([n for n in moving if n.source not in self.definitions], definitions)] if definitions else []
        tried: list[dict[Vertex, Term]] = []
        followed = [follow_ranks(along, reads, symbol, tied) for reads, tied in parts]
        # What lacks the dim ranks where it reads, maybe counted from the end; where it is read; or at the first step.
        ways: list[tuple[Sequence[Need[Vertex]], Sequence[Need[Vertex]], bool]]
        own = self.needs
        ways = [(own, (), False), (own, own, False), ((), (), False)]
        ways += [(own, (), True), (own, own, True)] if by_others else []
        for reading, read, varying in ways:
            by = self.dims if varying else None
            for ranks in (self._standing(ranks, reading, read, by) for ranks in followed):
                if ranks not in tried:
                    tried.append(ranks)
                    yield ranks
                    yield {vertex: -rank for vertex, rank in ranks.items()}

    def left_open(self, ranks: Mapping[Vertex, Term]) -> tuple[bool, list[Need[Vertex]]] | None:
        """Whether a loop by these ranks carries something, and what it leaves to inner loops; None if it cannot be."""
        distances = []
        for need in self.needs:
            distance = ranks[need.reader] - ranks[need.source].substitute(need.steps)
            smallest = least(distance, need.condition)
            if smallest is None:
                return None
            distances.append((need, distance, smallest))
        shifts = least_shifts(self.members, ((need.source, need.reader, smallest) for need, _, smallest in distances))
        if shifts is None:
            return None
        carried, rest = False, []
        for need, distance, smallest in distances:
            moved = shifts[need.reader] - shifts[need.source]
            apart = distance + moved
            same = conjunction(need.condition, eq(apart, 0))
            if smallest + moved >= 1 or (not apart.is_constant and solutions(same).is_empty):
                carried = True
                continue
            rest.append(need if apart.is_constant else replace(need, condition=same))
            if not apart.is_constant and not carried:
                carried = not solutions(conjunction(need.condition, ge(apart, 1))).is_empty
        return carried, rest

    def _standing(
        self,
        ranks: Mapping[Vertex, Term],
        reading: Sequence[Need[Vertex]],
        read: Sequence[Need[Vertex]],
        by: Dims[Vertex] | None,
    ) -> dict[Vertex, Term]:
        """Ranks for the statements that lack the dim too, as the right side of `y[3] = y[2] * 2` does.

        Theirs is the rank of what they read, or else of the one step that reads them; the shifts settle the rest. It
        is the same at all their points, unless it may vary `by` dims of theirs.
        """
        ranks = dict(ranks)
        known = -1
        while known < len(ranks):
            known = len(ranks)
            for need in reading:
                if need.reader not in ranks and need.source in ranks:
                    _give(ranks, need.reader, ranks[need.source].substitute(need.steps), by[need.reader] if by else ())
            for need in read if known == len(ranks) else ():
                if need.source not in ranks and need.reader in ranks:
                    _give(ranks, need.source, ranks[need.reader].substitute(_fixed(need.condition)), ())
        return {statement: ranks.get(statement, Term(0)) for statement in self.members}


@lru_cache(1 << 12)
def most_steps(domain: Condition, symbol: Symbol) -> int | None:
    """The most steps that lie between the first and the last of a dim in a domain; None where there is no limit.

    >>> from polyrhythm.compiler.ir.conditions import ge, lt
    >>> t, T = Symbol("t", "dim"), Symbol("T", "bound")
    >>> first = conjunction(ge(Term.of(t), 0), lt(Term.of(t), 3), lt(Term.of(t), Term.of(T)))
    >>> most_steps(first, t), most_steps(conjunction(ge(Term.of(t), 0), lt(Term.of(t), Term.of(T))), t)
    (3, None)
    """
    other = Symbol(symbol.name, "dim", serial=serials.ANOTHER)
    both = with_facts(conjunction(domain, domain.substitute({symbol: Term.of(other)})))
    if symbol not in domain.symbols:
        return None
    if solutions(both).is_empty:
        return 0
    span = least(Term.of(other) - Term.of(symbol), both)
    return None if span is None else 1 - span


def _give(ranks: dict[Vertex, Term], vertex: Vertex, rank: Term, dims: Sequence[Symbol]) -> None:
    """Note the rank of a statement, if it varies by these of its dims only."""
    if set(dims_of(rank)) <= set(dims):
        ranks[vertex] = rank


def _fixed(condition: Condition) -> dict[Symbol, Term]:
    """The dims that have one step under a condition, which says so directly."""
    found: dict[Symbol, Term] = {}
    for part in parts_of(condition):
        if isinstance(part, Compare) and part.relation == "==":
            for symbol in dims_of(part.term):
                rate = part.term.coefficient(symbol)
                other = Term.of(symbol) - part.term * rate
                if abs(rate) == 1 and not dims_of(other):
                    found[symbol] = other
    return found


Line = Mapping[Symbol | None, Fraction]
"""How fast a rank grows with a dim (the entry None) and with each bound."""

STEP: Line = {None: Fraction(1)}
"""The growth of the step itself, moved or not."""


def follow_ranks(
    component: Sequence[Vertex], edges: Sequence[Need[Vertex]], symbol: Symbol, tied: Sequence[Vertex]
) -> dict[Vertex, Term]:
    """Ranks that follow the reads along a dim: what reads step `a*t // b` ranks at the rate a/b of what it reads.

    A read that mirrors the dim, of step `T - 1 - t`, turns the rank around and moves it by T. The rank of those that
    are `tied` is the step itself, and of all that the reads do not connect with them.
    """
    ranks: dict[Vertex, Line] = dict.fromkeys(tied, STEP)
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


def least_shifts(vertices: Iterable[Vertex], arcs: Iterable[tuple[Vertex, Vertex, int]]) -> dict[Vertex, int] | None:
    """The least shifts from zero on with `shift[b] >= shift[a] - gap` for each arc `(a, b, gap)` (Bellman-Ford).

    None on a negative cycle, which is found early as a cycle of predecessors.

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
