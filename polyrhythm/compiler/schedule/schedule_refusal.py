"""Whether the steps of a dim can run at once, as a user wishes, and what is to blame if they cannot.

Every loop of the schedule that follows the dim must be free of dependences from one iteration to another. A loop that
is not holds a circle of dependences, since the scheduler does not join loops against the wish; or effects, which have
an order. A circle is followed step by step with small bounds, from a value to itself at another step.

`contradiction` blames an effect for which no order exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from polyrhythm.compiler.analysis.naming import described_call, is_named
from polyrhythm.compiler.ir.conditions import Condition, conjunction, eq, ge
from polyrhythm.compiler.ir.graph import Graph, Node
from polyrhythm.compiler.ir.reads import circles
from polyrhythm.compiler.ir.sets import facts, solutions
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.schedule.blocks import Block
from polyrhythm.compiler.schedule.dependences import Dependence
from polyrhythm.compiler.schedule.scheduler import Item, Loop, ScheduleError, schedule, still_open
from polyrhythm.errors import DependentStepsError, EffectError, PolyrhythmError, UnsupportedError
from polyrhythm.language.chunks import Chunk
from polyrhythm.source import Source

BOUNDS = (2, 3, 4, 8, 16)
"""The bounds with which a circle is followed."""


def refusal(
    graph: Graph,
    blocks: Mapping[str, Block],
    dependences: Sequence[Dependence],
    schedule: Sequence[Item],
    dim: Symbol,
    chosen: Chunk,
) -> PolyrhythmError | None:
    """Why the steps of a dim cannot run at once, as was chosen; None if they can."""
    wish, fix = chosen.wish(dim), chosen.otherwise(dim)
    if dim in graph.until:
        return DependentStepsError(
            f"{wish} cannot be: whether a step of {dim} runs at all depends on the steps before it",
            fix=fix,
            at=graph[graph.until[dim]].at,
            point={dim: 1},
            outcome=f"it does not run if the stopping condition holds at {dim} = 0",
        )
    for loop, among in _loops(schedule, dependences):
        if not any(member.dim is dim for member in loop.members.values()):
            continue
        if not loop.parallel:
            effects = [d for d in among if d.effect is not None]
            pair = _direct(graph, blocks, loop, effects) or _pair(graph, blocks, dim, among)
            pair = pair or _direct(graph, blocks, loop, among)
            if pair is None:
                return UnsupportedError(f"{wish} cannot be: nobody showed that the steps are independent", fix=fix)
            what = f"{wish} cannot be: a step of {dim} needs what another one makes"
            also = tuple(dict.fromkeys(("through", line) for line in pair.through if line not in (None, pair.at)))
            return DependentStepsError(what, fix=fix, at=pair.at, point=pair.bounds, outcome=pair.outcome, also=also)
        for node in (_node(graph, blocks[name]) for name in loop.members if blocks[name].host):
            function = node.definitions[0].attributes["function"].name
            what = f"{wish} cannot be: the host function {function} is called for one step of {dim} at a time"
            return UnsupportedError(what, fix=fix, at=node.at)
    return None


def _loops(items: Sequence[Item], dependences: Sequence[Dependence]) -> Iterator[tuple[Loop, tuple[Dependence, ...]]]:
    """Every loop with the dependences among its members that the loops around it leave open."""
    for item in items:
        if isinstance(item, Loop):
            among = tuple(d for d in dependences if d.source in item.members and d.reader in item.members)
            yield item, among
            yield from _loops(item.body, tuple(still_open(among, item.members)))


@dataclass(frozen=True)
class _Pair:
    """Two steps of which one waits for the other, as a message tells them, with the lines on the way."""

    at: Source | None
    bounds: Mapping[Symbol, int]
    outcome: str
    through: tuple[Source | None, ...] = ()


def _direct(graph: Graph, blocks: Mapping[str, Block], loop: Loop, among: Sequence[Dependence]) -> _Pair | None:
    """One read, or two calls that share an effect, across iterations; None if there is nothing of the kind."""
    for d in among:
        distance = loop.members[d.reader].time - loop.members[d.source].time.substitute(d.steps)
        witness = solutions(conjunction(d.condition, ge(distance, 1))).smallest()
        if witness is not None:
            early, late = _node(graph, blocks[d.source]), _node(graph, blocks[d.reader])
            how = "needs" if d.effect is None else f"comes, by the effect {d.effect!r}, after"
            outcome = f"{_told(late, witness)} {how} {_told(early, _source(d, witness))}"
            bounds = {symbol: n for symbol, n in witness.items() if symbol.kind != "dim"}
            return _Pair(_line(graph, blocks[d.reader]), bounds, outcome)
    return None


def _pair(graph: Graph, blocks: Mapping[str, Block], dim: Symbol, among: Sequence[Dependence]) -> _Pair | None:
    """A value that needs itself at another step of the dim, and the way there; those with names first.

    None if there is none with small bounds.
    """
    readers: dict[str, list[str]] = {name: [] for d in among for name in (d.source, d.reader)}
    for d in among:
        readers[d.source].append(d.reader)
    starts = sorted(
        (name for part in circles(readers) for name in part), key=lambda n: not is_named(_node(graph, blocks[n]))
    )
    symbols = {s for d in among for s in d.condition.symbols if s.kind != "dim"}
    for n in BOUNDS:
        bounds = dict.fromkeys(symbols, n)
        for name in starts:
            domain = blocks[name].domain
            for point in solutions(conjunction(domain, facts(domain.symbols), _at(bounds))).every():
                way = _way(graph, blocks, among, (name, point), dim, bounds)
                if way:
                    node = _node(graph, blocks[name])
                    first, *through = (_line(graph, blocks[name]) for name, _ in way[:-1])
                    end = way[-1][1]
                    steps = ", ".join(f"{symbol} = {end[symbol]}" for symbol in node.symbols)
                    itself = _told(node, end) if is_named(node) else f"itself at {steps}"
                    outcome = f"{_told(node, point)} needs {itself}"
                    return _Pair(first, bounds, outcome, tuple(through))
    return None


_Place = tuple[str, Mapping[Symbol, int]]
"""A block at a point."""


def _way(
    graph: Graph,
    blocks: Mapping[str, Block],
    among: Sequence[Dependence],
    start: _Place,
    dim: Symbol,
    bounds: Mapping[Symbol, int],
) -> list[_Place] | None:
    """What leads from a value to the same value at another step of the dim, reader by reader; None if nothing does."""
    goal, since = _node(graph, blocks[start[0]]), start[1].get(dim)
    seen = set()
    waiting = [[start]]
    while waiting:
        way = waiting.pop(0)
        name, point = way[-1]
        if _node(graph, blocks[name]) is goal and point.get(dim) != since:
            return way
        key = name, tuple(point.get(symbol) for symbol in blocks[name].dims)
        if key in seen:
            continue
        seen.add(key)
        here = {symbol: point[symbol] for symbol in blocks[name].dims}
        for d in among:
            if d.reader == name:
                for found in solutions(conjunction(d.condition, _at(bounds), _at(here))).every():
                    waiting.append([*way, (d.source, _source(d, {**bounds, **here, **found}))])
    return None


def _at(values: Mapping[Symbol, int]) -> Condition:
    return conjunction(*(eq(Term.of(symbol), value) for symbol, value in values.items()))


def _source(d: Dependence, point: Mapping[Symbol, int]) -> dict[Symbol, int]:
    """The point of the source that the reader needs at a point."""
    return {symbol: step.evaluate(point.__getitem__) for symbol, step in d.steps.items()}


def _node(graph: Graph, block: Block) -> Node:
    """The node that a block is about."""
    return graph[block.node]


def _line(graph: Graph, block: Block) -> Source | None:
    """The line of the definition that a block is about."""
    node = _node(graph, block)
    (number,) = {statement.number for statement in block.statements if statement.node == node.name}
    return node.definitions[number].at or node.at


def _told(node: Node, point: Mapping[Symbol, int]) -> str:
    """A value at a point as a user knows it."""
    steps = [point[symbol] for symbol in node.symbols]
    is_call = any(definition.op == "host" for definition in node.definitions)
    return f"{node.label}{steps}" if is_named(node) and not is_call else described_call(node, steps)


def contradiction(graph: Graph, blocks: Mapping[str, Block], dependences: Sequence[Dependence]) -> EffectError | None:
    """The effect whose order contradicts the values that its calls read; None if no effect is to blame."""
    for effect in dict.fromkeys(d.effect for d in dependences if d.effect is not None):
        try:
            schedule(blocks, [d for d in dependences if d.effect != effect])
        except ScheduleError:
            continue
        callers = dict.fromkeys(d.reader for d in dependences if d.effect == effect)
        nodes = [graph[blocks[name].statements[-1].node] for name in callers]
        calls = [definition.attributes["function"].name for node in nodes for definition in node.definitions[:1]]
        first, *others = nodes
        return EffectError(
            f"the calls of {' and '.join(dict.fromkeys(calls))} cannot run in the order of the effect {effect!r}: "
            "one of them needs what comes after it",
            fix="let a call depend only on calls that come before it: earlier steps, or earlier lines",
            at=first.at,
            also=tuple(dict.fromkeys(("through", node.at) for node in others if node.at not in (None, first.at))),
        )
    return None
