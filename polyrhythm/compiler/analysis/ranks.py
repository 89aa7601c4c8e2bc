"""How many loops, one inside the other, the values of a program must go through one after the other.

Statements that read each other in a circle need a loop that carries a dependence: its iterations come one after the
other. Which dim that is, is often a choice, and what the loop leaves open needs further loops inside. The *depth* is
the least number of such loops along the best choice. A network of L layers over T given steps has depth one, by layers
outside: all steps of a layer are independent. By steps outside it would have two.

The rankings tried are those of `progress.py`. The cost is a few minima over integer sets for each dim and level.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Generic, TypeVar

from polyrhythm.compiler.analysis.well_founded import components, follow_ranks, keeps_pace, least_shifts, standing_ranks
from polyrhythm.compiler.ir.conditions import Condition, conjunction, eq
from polyrhythm.compiler.ir.sets import facts, least, solutions
from polyrhythm.compiler.ir.terms import Symbol, Term

Vertex = TypeVar("Vertex", bound=Hashable)

FEW_STEPS = 8
"""So few steps may as well come one after the other."""


@dataclass(frozen=True)
class Need(Generic[Vertex]):
    """`reader` at a point needs `source` at `steps`, wherever `condition` holds."""

    reader: Vertex
    source: Vertex
    condition: Condition
    steps: Mapping[Symbol, Term]


Dims = Mapping[Vertex, Sequence[Symbol]]
"""The dims of each statement that no loop has taken yet."""


def depth(needs: Sequence[Need[Vertex]], dims: Dims[Vertex]) -> int | None:
    """The least number of nested loops that carry something; None where no order was found."""
    successors: dict[Vertex, list[Vertex]] = {vertex: [] for vertex in dims}
    for need in needs:
        successors[need.reader].append(need.source)
    deepest = 0
    for component in components(successors):
        inside = set(component)
        own = [need for need in needs if need.reader in inside and need.source in inside]
        if own:
            found = depths(component, own, dims)
            if not found:
                return None
            deepest = max(deepest, min(found.values()))
    return deepest


def depths(component: Sequence[Vertex], own: Sequence[Need[Vertex]], dims: Dims[Vertex]) -> dict[Symbol, int]:
    """For each dim that may be the outermost loop of a component, the depth it leads to."""
    found: dict[Symbol, int] = {}
    for symbol in dict.fromkeys(symbol for vertex in component for symbol in dims[vertex]):
        for ranks in rankings(component, own, dims, symbol, lambda vertex: False):
            inner = _left_open(component, own, ranks)
            if inner is None:
                continue
            carried, rest = inner
            left = {v: [s for s in dims[v] if s is not symbol] for v in component}
            deeper = depth(rest, left)
            if deeper is not None:
                found[symbol] = carried + deeper
                break
    return found


@lru_cache(1 << 12)
def most_steps(domain: Condition, symbol: Symbol) -> int | None:
    """The most steps that lie between the first and the last of a dim in a domain; None where there is no limit.

    >>> from polyrhythm.compiler.ir.conditions import ge, lt
    >>> t, T = Symbol("t", "dim"), Symbol("T", "bound")
    >>> first = conjunction(ge(Term.of(t), 0), lt(Term.of(t), 3), lt(Term.of(t), Term.of(T)))
    >>> most_steps(first, t), most_steps(conjunction(ge(Term.of(t), 0), lt(Term.of(t), Term.of(T))), t)
    (3, None)
    """
    other = Symbol(symbol.name, "dim", serial=-9)
    both = conjunction(domain, domain.substitute({symbol: Term.of(other)}))
    both = conjunction(both, facts(both.symbols))
    if symbol not in domain.symbols:
        return None
    if solutions(both).is_empty:
        return 0
    span = least(Term.of(other) - Term.of(symbol), both)
    return None if span is None else 1 - span


def rankings(
    component: Sequence[Vertex],
    own: Sequence[Need[Vertex]],
    dims: Dims[Vertex],
    symbol: Symbol,
    is_definition: Callable[[Vertex], bool],
) -> Iterator[dict[Vertex, Term]]:
    """Rank functions along a dim that the reads suggest, forwards and backwards; whether they fit is not yet known."""
    along = [vertex for vertex in component if symbol in dims[vertex]]
    if not along:
        return
    if not own and len(component) == 1:
        yield {component[0]: symbol.term}
        yield {component[0]: -symbol.term}
        return
    members = set(along)
    moving = [need for need in own if need.reader in members and need.source in members]
    steady = [need for need in moving if keeps_pace(need.steps[symbol], symbol)]
    # A definition such as `y[2 * t] = ...` reads its right side at half the pace: that ranks at twice the rate.
    mostly = [n for n in moving if not is_definition(n.source) or keeps_pace(n.steps[symbol], symbol)]
    tried: list[dict[Vertex, Term]] = []
    for reads in {len(reads): reads for reads in (moving, mostly, steady, [])}.values():  # each a part of the last
        ranks = standing_ranks(follow_ranks(along, reads, symbol), component, own)
        if ranks not in tried:
            tried.append(ranks)
            yield ranks
            yield {vertex: -rank for vertex, rank in ranks.items()}


def _left_open(
    component: Sequence[Vertex], own: Sequence[Need[Vertex]], ranks: Mapping[Vertex, Term]
) -> tuple[bool, list[Need[Vertex]]] | None:
    """Whether a loop by these ranks carries something, and what it leaves to inner loops; None if it cannot be."""
    distances = []
    for need in own:
        distance = ranks[need.reader] - ranks[need.source].substitute(need.steps)
        smallest = least(distance, need.condition)
        if smallest is None:
            return None
        distances.append((need, distance, smallest))
    shifts = least_shifts(component, ((need.source, need.reader, smallest) for need, _, smallest in distances))
    if shifts is None:
        return None
    carried, rest = False, []
    for need, distance, _ in distances:
        apart = distance + (shifts[need.reader] - shifts[need.source])
        if apart.is_constant:
            carried = carried or apart.constant != 0
            if apart.constant == 0:
                rest.append(need)
            continue
        carried = True
        condition = conjunction(need.condition, eq(apart, 0))
        if not solutions(condition).is_empty:
            rest.append(replace(need, condition=condition))
    return carried, rest
