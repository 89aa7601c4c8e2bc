"""Which way recurrences go: the directions in which the values of a graph come about along one dim.

A recurrence that reads `t - 1` goes forwards, one that reads `t + 1` backwards. What lies between recurrences of
opposite directions has to be stored for all steps; what depends on one direction only is there step by step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from polyrhythm.compiler.ir.graph import Access, Graph, Range
from polyrhythm.compiler.ir.reads import components
from polyrhythm.compiler.ir.terms import Symbol, Term

Directions = frozenset[int]
"""The ways in which recurrences go through the steps: 1 forwards, -1 backwards, 0 where it is not known."""

NONE: Directions = frozenset()
UNKNOWN: Directions = frozenset({0})


@dataclass(frozen=True)
class Along:
    """A graph as seen along one dim."""

    graph: Graph
    symbol: Symbol

    @cached_property
    def reads(self) -> dict[str, list[Access]]:
        """What each node reads, apart from what an outer loop carries."""
        return {
            node.name: [a for a in node.accesses if not _carried(self.graph, a, self.symbol)] for node in self.graph
        }

    @cached_property
    def readers(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {name: [] for name in self.reads}
        for name, accesses in self.reads.items():
            for access in accesses:
                found[access.source].append(name)
        return found

    @cached_property
    def parts(self) -> list[list[str]]:
        """The components of the graph, sources first."""
        return components({name: [a.source for a in accesses] for name, accesses in self.reads.items()})

    @cached_property
    def circles(self) -> dict[str, Directions]:
        """The nodes that depend on themselves, and which way."""
        found: dict[str, Directions] = {}
        for part in self.parts:
            inside = set(part)
            own = [(name, a) for name in part for a in self.reads[name] if a.source in inside]
            ways = NONE.union(*(self._way(name, access) for name, access in own))
            found.update(dict.fromkeys(part if own else [], ways or UNKNOWN))
        return found

    def _way(self, name: str, access: Access) -> Directions:
        step = self.graph[access.source].steps(access).get(self.symbol)
        if not isinstance(step, Term) or self.symbol not in self.graph[name].symbols:
            return UNKNOWN
        distance = step - Term.of(self.symbol)
        if not distance.is_constant:
            return UNKNOWN
        return NONE if distance.constant == 0 else frozenset({-1 if distance.constant > 0 else 1})

    @cached_property
    def behind(self) -> dict[str, Directions]:
        """The directions of the recurrences that each node is part of or depends on."""
        found: dict[str, Directions] = {}
        for part in self.parts:
            before = NONE.union(*(found.get(a.source, NONE) for name in part for a in self.reads[name]))
            found.update({name: before | self.circles.get(name, NONE) for name in part})
        return found

    @cached_property
    def ahead(self) -> dict[str, Directions]:
        """The directions of the recurrences that each node feeds."""
        found: dict[str, Directions] = {}
        for part in reversed(self.parts):
            readers = {reader for name in part for reader in self.readers[name]}
            after = NONE.union(*(found.get(r, NONE) | self.circles.get(r, NONE) for r in readers))
            found.update(dict.fromkeys(part, after))
        return found

    def turns(self, name: str) -> Directions:
        """The direction opposite to that of a recurrence, and of all before it: in that, its last step comes first."""
        behind = self.behind[name] if name in self.circles else NONE
        return frozenset(-way for way in behind) if len(behind) == 1 and 0 not in behind else NONE


def _carried(graph: Graph, access: Access, symbol: Symbol) -> bool:
    """Whether a read is of another step of some other dim, by a constant distance: an outer loop carries it."""
    for other, step in graph[access.source].steps(access).items():
        if other is symbol or isinstance(step, Range):
            continue
        distance = step - Term.of(other)
        if distance.is_constant and distance.constant:
            return True
    return False
