"""Which block must wait for which, and how far apart they are.

A dependence says that a block at point p needs another block at point `steps(p, k)`, for every p and k (a position
in each range read) that satisfy `condition`. They come from the accesses; from effects, since host calls that share
an effect are ordered by their dims, then as written; and from stopping conditions, which decide a length. Only true
dependences exist here, since a graph assigns every value once; what storage adds comes later.

Dependences found by the blocks at their ends, so that nobody goes through all of them for a few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from polyrhythm.compiler.analysis.stopping import waits_for
from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import TRUE, Condition, conjunction, eq, ge, lt
from polyrhythm.compiler.ir.graph import Graph
from polyrhythm.compiler.ir.reads import components, positioned, reached
from polyrhythm.compiler.ir.sets import least as least
from polyrhythm.compiler.ir.sets import solutions, with_facts
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.schedule.blocks import Block, Statement, definition_of, stored_reads


@dataclass(frozen=True)
class Dependence:
    """`reader` at p needs `source` at `steps`, wherever `condition` holds. `why` is the value read, or an effect.

    `gap` is how many iterations of their common loop must lie in between: it is one where the loop decides after
    an iteration whether to go on.
    """

    source: str
    reader: str
    condition: Condition
    steps: Mapping[Symbol, Term]
    why: str
    gap: int = 0
    effect: str | None = None
    values: tuple[str, ...] = ()  # all that are read so, of one block that makes several

    @property
    def symbols(self) -> frozenset[Symbol]:
        return self.condition.symbols


def find_dependences(graph: Graph, blocks: Mapping[str, Block]) -> list[Dependence]:
    """Every dependence between blocks."""
    writers: dict[str, list[Block]] = {}
    for block in blocks.values():
        for statement in block.statements:
            if all(step is Term.of(s) for step, s in zip(statement.steps, graph[statement.node].symbols, strict=True)):
                writers.setdefault(statement.node, []).append(block)
    found: dict[tuple[str, str, Condition, tuple[Term, ...]], Dependence] = {}
    values: dict[tuple[str, str, Condition, tuple[Term, ...]], list[str]] = {}
    for block in blocks.values():
        for read in stored_reads(graph, block):
            node = graph[read.access.source]
            steps, known, _ = positioned(node.steps(read.access))
            for writer in writers.get(node.name, ()):
                condition = with_facts(conjunction(block.domain, read.where, known, writer.domain.substitute(steps)))
                key = (writer.name, block.name, condition, tuple(steps.values()))
                values.setdefault(key, []).append(node.name)
                if key not in found and not solutions(condition).is_empty:
                    found[key] = Dependence(writer.name, block.name, condition, steps, node.name)
    of_values = (replace(one, values=tuple(dict.fromkeys(values[key]))) for key, one in found.items())
    return [*of_values, *_effect_dependences(graph, blocks), *_stop_dependences(graph, blocks)]


def _stop_dependences(graph: Graph, blocks: Mapping[str, Block]) -> Iterator[Dependence]:
    """A length that a stopping condition decides is known only after the loop; no effect runs beyond it.

    A condition on the step alone, `until={t: pr.value(t) >= 6}`, is looked at before anything else is done at any step.
    """
    for dim, name in graph.until.items():
        (stopper,) = [b for b in blocks.values() if any(s.node == name for s in b.statements)]
        assert dim.bound is not None
        alone = _of_steps_alone(graph, name)
        for block in blocks.values():
            later = dim in block.dims and alone.isdisjoint(statement.node for statement in block.statements)
            if dim.bound in _mentioned(graph, block) or waits_for(block.domain, dim.bound) or (alone and later):
                gap, at = 0, Term.of(Symbol(f"{dim.name}_before", "dim", serial=serials.BEFORE))
                known = conjunction(block.domain, ge(at, 0), lt(at, Term.of(dim.bound)))
            elif dim in block.dims and any(_has_effect(graph, statement) for statement in block.statements):
                gap, at = 1, Term.of(dim) - 1
                known = conjunction(block.domain, ge(at, 0))
            else:
                continue
            condition = with_facts(known)
            yield Dependence(stopper.name, block.name, condition, {dim: at}, f"the length {dim.bound}", gap)


def _of_steps_alone(graph: Graph, name: str) -> set[str]:
    """What a condition is made of, if that is nothing but indices and values without steps; else nothing."""

    def has_steps(name: str) -> bool:
        node = graph[name]
        return node.recurrent or (node.external and bool(node.dims))

    found = reached(lambda name: () if has_steps(name) else graph[name].sources, [name])
    return set() if any(map(has_steps, found)) else found


def _mentioned(graph: Graph, block: Block) -> set[Symbol]:
    """The symbols whose values a block needs, apart from the limits of where it runs."""
    found: set[Symbol] = set()
    for statement in block.statements:
        definition = definition_of(graph, statement)
        shape = graph[statement.node].shape
        found = found.union(definition.symbols, *(length.symbols for length in shape))
    return found


def _has_effect(graph: Graph, statement: Statement) -> bool:
    definition = graph[statement.node].definitions[statement.number]
    return definition.effect is not None


def _effect_dependences(graph: Graph, blocks: Mapping[str, Block]) -> Iterator[Dependence]:
    calls: dict[str, list[tuple[int, Block]]] = {}
    for block in blocks.values():
        for statement in block.statements:
            definition = graph[statement.node].definitions[statement.number]
            if _has_effect(graph, statement):
                having = calls.setdefault(definition.attributes["function"].effect, [])
                having.append((definition.attributes["call"], block))
    for effect, members in calls.items():
        members.sort(key=lambda entry: entry[0])
        dims = tuple(dict.fromkeys(symbol for _, block in members for symbol in block.dims))
        for late, later in members:
            for early, earlier in members:
                for condition, steps in _before(dims, (early, earlier), (late, later), members):
                    full = with_facts(condition)
                    if not solutions(full).is_empty:
                        yield Dependence(earlier.name, later.name, full, steps, f"effect {effect}", 0, effect)


def _before(
    dims: tuple[Symbol, ...], early: tuple[int, Block], late: tuple[int, Block], members: list[tuple[int, Block]]
) -> Iterator[tuple[Condition, dict[Symbol, Term]]]:
    """The points of one call that come before a point of another, one level of the order at a time."""
    source, reader = early[1], late[1]
    at = {s: Term.of(Symbol(f"{s.name}_before", "dim", serial=serials.BEFORE)) for s in source.dims}
    inside = conjunction(reader.domain, source.domain.substitute(at))
    equal: Condition = TRUE
    for symbol in dims:
        first = next(call for call, block in members if symbol in block.dims)
        a = at[symbol] if symbol in source.dims else (-1 if early[0] < first else 1)
        b = Term.of(symbol) if symbol in reader.dims else (-1 if late[0] < first else 1)
        if isinstance(a, Term) and isinstance(b, Term):
            yield conjunction(inside, equal, lt(a, b)), at
            equal = conjunction(equal, eq(a, b))
        elif isinstance(a, Term) or isinstance(b, Term):
            # One of them is outside the loop over this dim: entirely before it, or entirely after.
            outside_first = (a == -1) if not isinstance(a, Term) else (b == 1)
            if outside_first:
                yield conjunction(inside, equal), at
            return
        elif a != b:
            if a < b:
                yield conjunction(inside, equal), at
            return
    if early[0] < late[0]:
        yield conjunction(inside, equal), at


Numbered = tuple[int, Dependence]
"""A dependence and its place among all."""


class ByBlock:
    """Dependences by their reader and by their source; whatever is asked for comes in the order they were given."""

    def __init__(self, dependences: Sequence[Dependence]) -> None:
        self._into: dict[str, list[Numbered]] = {}
        self._out_of: dict[str, list[Numbered]] = {}
        for entry in enumerate(dependences):
            self._into.setdefault(entry[1].reader, []).append(entry)
            self._out_of.setdefault(entry[1].source, []).append(entry)

    def into(self, name: str) -> Iterator[Dependence]:
        """What a block waits for."""
        return (d for _, d in self._into.get(name, ()))

    def out_of(self, name: str) -> Iterator[Dependence]:
        """What waits for a block."""
        return (d for _, d in self._out_of.get(name, ()))

    @cached_property
    def circular(self) -> frozenset[str]:
        """The blocks of recurrences."""
        readers = {name: [d.reader for _, d in entries] for name, entries in self._out_of.items()}
        readers |= {name: [] for name in self._into if name not in readers}
        parts = components(readers)
        return frozenset(name for part in parts for name in part if len(part) > 1 or name in readers[name])

    def around(self, names: Iterable[str], after: bool) -> set[str]:
        """All that comes after some blocks, or before them."""
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            ends = {d.reader for d in self.out_of(name)} if after else {d.source for d in self.into(name)}
            waiting += ends - found
            found |= ends
        return found

    def inside(self, names: set[str]) -> list[Dependence]:
        """The dependences among some blocks."""
        return self.between(names, names)

    def between(self, sources: set[str], readers: set[str]) -> list[Dependence]:
        """The dependences from some blocks to others."""
        if len(sources) < len(readers):
            return _in_order(e for name in sources for e in self._out_of.get(name, ()) if e[1].reader in readers)
        return _in_order(e for name in readers for e in self._into.get(name, ()) if e[1].source in sources)


def _in_order(entries: Iterable[Numbered]) -> list[Dependence]:
    return [d for _, d in sorted(entries, key=lambda entry: entry[0])]
