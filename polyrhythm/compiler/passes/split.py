"""Split: a recurrence is cut in two where the definitions of its tensors change, if one part is then less serial.

Tokens that a prompt gives before step P and a model makes afterwards are one recurrence along t. Cut at P, the part
before carries nothing along t but reads of earlier keys at the same layer, so that all its steps can be computed at
once, layer by layer. Nothing here knows of prompts: the places to cut come from the conditions of the definitions, and
a cut is made only if the part in question then needs fewer loops that carry something (`analysis/ranks.py`).

Every tensor of the recurrence becomes two. One holds the part; it has the same definitions there and reads the parts of
the others. The tensor itself keeps the rest, and a copy of as much of the part as is read from outside of it. That
is legal because the part reads nothing of the rest, which is proved; each value is still computed by the same
expression from the same values. What both parts read besides, each at its own steps only, is cut in the same way, so
that a table of positions need not be kept for the rest while the part is computed.

Where a node is read: the union of what all its readers read, as an exact set of points.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from polyrhythm.compiler.analysis.ranks import FEW_STEPS, Component, most_steps
from polyrhythm.compiler.analysis.well_founded import Statement, recurrence
from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import (
    FALSE,
    TRUE,
    Compare,
    Condition,
    Junction,
    conjunction,
    disjunction,
    eq,
    lt,
    negation,
)
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, NodeDim
from polyrhythm.compiler.ir.reads import circles, components, fresh_name, positioned
from polyrhythm.compiler.ir.sets import Points, is_possible, points, simplified, simplified_term, solutions, with_facts
from polyrhythm.compiler.ir.terms import Symbol, Term, dims_of, minimum, ordered
from polyrhythm.compiler.passes.dead import wanted
from polyrhythm.compiler.passes.notes import Notes

MOST_CUTS = 4
"""Each cut copies the definitions of a recurrence: more than this many are not made."""


@dataclass(frozen=True)
class _Cut:
    """A part of the steps of a dim that can be computed by itself: those before a step, or those from it on."""

    symbol: Symbol
    step: Term
    before: bool

    @property
    def part(self) -> Condition:
        condition = lt(Term.of(self.symbol), self.step)
        return condition if self.before else negation(condition)

    @property
    def rest(self) -> Condition:
        return negation(self.part)


def split(graph: Graph, notes: Notes) -> Graph:
    """The graph with its recurrences cut where that makes a part of them less serial."""
    for _ in range(MOST_CUTS):
        changed = _split_once(graph, notes)
        if changed is None:
            return graph
        graph = changed
    return graph


def _split_once(graph: Graph, notes: Notes) -> Graph | None:
    for names in map(set, circles(graph.reads)):
        nodes = [node for node in graph if node.name in names]
        cuts = [cut for cut in _cuts(nodes) if _is_long(nodes, cut)]
        if not cuts or any(node.external for node in nodes):
            continue
        circle = recurrence(graph, names)
        whole = circle.depth()
        for cut in cuts:
            part = _depth_of_part(circle, cut)
            if whole is not None and part is not None and part < whole:
                what = f"the steps where {cut.part} are computed by themselves: {part} nested loops, not {whole}"
                # The recurrences of a gradient have no node that the user declared.
                at = next((node.at for node in nodes if node.recurrent), nodes[0].at)
                notes.did("split", at, what)
                return _apart(graph, [node.name for node in nodes], cut)
    return None


def _cuts(nodes: Sequence[Node]) -> list[_Cut]:
    """Where the conditions of some definitions compare a dim that all the nodes have with a term without dims."""
    found: dict[_Cut, None] = {}
    for node in nodes:
        if len(node.definitions) > 1:
            for definition in node.definitions:
                for compare in _compares(definition.domain):
                    for symbol in dims_of(compare.term):
                        rate = compare.term.coefficient(symbol)
                        rest = compare.term - Term.of(symbol) * rate
                        if compare.relation == ">=" and abs(rate) == 1 and not dims_of(rest):
                            step = -rest if rate == 1 else rest + 1
                            found[_Cut(symbol, step, True)] = None
                            found[_Cut(symbol, step, False)] = None
    return [cut for cut in found if all(cut.symbol in node.symbols for node in nodes)]


def _compares(condition: Condition) -> Iterator[Compare]:
    if isinstance(condition, Compare):
        yield condition
    elif isinstance(condition, Junction):
        for part in condition.parts:
            yield from _compares(part)


def _is_long(nodes: Sequence[Node], cut: _Cut) -> bool:
    """Whether both parts have enough steps to be worth a cut."""
    for side in (cut.part, cut.rest):
        spans = (most_steps(conjunction(node.points, side), cut.symbol) for node in nodes)
        if all(span is not None and span <= FEW_STEPS for span in spans):
            return False
    return True


def _depth_of_part(circle: Component[Statement], cut: _Cut) -> int | None:
    """The depth of the part alone; None if it needs something of the rest, or nothing of itself."""
    inside = []
    for need in circle.needs:
        here = conjunction(need.condition, cut.part)
        for side in (cut.rest, cut.part):
            condition = with_facts(conjunction(here, side.substitute(need.steps)))
            if not solutions(condition).is_empty:
                if side is cut.rest:
                    return None
                inside.append(replace(need, condition=condition))
    return replace(circle, needs=inside).depth() if inside else None


def _apart(graph: Graph, names: Sequence[str], cut: _Cut) -> Graph:
    """The graph with the part of some nodes as nodes of their own."""
    graph = _stopping_by_copies(graph, names)
    parts = {name: fresh_name(_name_of_part(name, cut), graph.nodes) for name in names}
    nodes: dict[str, Node] = {}
    for node in graph:
        if node.name in parts:
            part = _part(node, parts, cut, graph.stops)
            nodes[part.name] = part
            nodes[node.name] = _rest(node, part, cut)
        else:
            nodes[node.name] = node
    # Whether there is a rest to read the part depends on its length; a guard for that would be worth nothing.
    ends = {s for name in names for dim in graph[name].dims if dim.symbol is cut.symbol for s in dim.extent.symbols}
    ends -= cut.step.symbols
    changed = _without_unread(replace(graph, nodes=nodes), names, cut, ends)
    plain = [parts[name] for name in _readers_first(graph, names) if not graph[name].recurrent]
    return _besides(narrowed(changed, plain, ends), {*parts.values()}, cut, ends)


def _besides(graph: Graph, inside: set[str], cut: _Cut, ends: set[Symbol]) -> Graph:
    """Each plain node that the part reads inside of it, and others read only outside, as two nodes."""
    fixed = inside | wanted(graph)
    plain = [node.name for node in graph if not node.recurrent and cut.symbol in node.symbols and not node.external]
    for name in _readers_first(graph, [name for name in plain if name not in fixed]):
        readers = {node.name for node in graph if name in node.sources}
        ours, others = readers & inside, readers - inside
        if not ours or not others or _reads(graph, name, ours, cut.rest) or _reads(graph, name, others, cut.part):
            continue
        part = _part(graph[name], {name: fresh_name(_name_of_part(name, cut), graph.nodes)}, cut, graph.stops)
        nodes = dict(graph.nodes)
        for reader in map(graph.__getitem__, ours):
            definitions = tuple(_reading(definition, {name: part.name}) for definition in reader.definitions)
            nodes[reader.name] = replace(reader, definitions=definitions)
        nodes[part.name] = part
        graph = narrowed(replace(graph, nodes=nodes), [name, part.name], ends)
        inside.add(part.name)
    return graph


def _reads(graph: Graph, name: str, readers: set[str], where: Condition) -> bool:
    """Whether some nodes read another anywhere in a set of points."""
    condition = conjunction(read_condition(graph, name, by=readers), where)
    return is_possible(condition)


def _name_of_part(name: str, cut: _Cut) -> str:
    return f"{name}_{'before' if cut.before else 'after'}"


def _reading(definition: Definition, names: dict[str, str]) -> Definition:
    """A definition that reads other nodes in the place of some."""
    return definition.reading(lambda access: Access(names.get(access.source, access.source), access.steps))


def _stopping_by_copies(graph: Graph, names: Sequence[str]) -> Graph:
    """A stopping condition has one definition: where it is among the nodes to cut, a copy of it takes its place."""
    nodes, until = dict(graph.nodes), dict(graph.until)
    for dim, name in graph.until.items():
        if name in names:
            node = graph[name]
            copy = Definition(TRUE, "copy", (node.here,), {}, node.at)
            until[dim] = fresh_name(f"{name}_stop", graph.nodes)
            nodes[until[dim]] = replace(node, name=until[dim], definitions=(copy,), recurrent=False)
    return replace(graph, nodes=nodes, until=until)


def _part(node: Node, parts: dict[str, str], cut: _Cut, stops: Collection[Symbol]) -> Node:
    dims = tuple(_shortened(dim, cut, stops) if dim.symbol is cut.symbol else dim for dim in node.dims)
    part = replace(node, name=parts[node.name], dims=dims)
    domain = simplified(conjunction(node.domain, cut.part), part.rectangle)
    part = replace(part, domain=domain)
    definitions = tuple(_reading(definition, parts) for definition in _inside(node.definitions, part.points))
    return replace(part, definitions=definitions)


def _shortened(dim: NodeDim, cut: _Cut, stops: Collection[Symbol]) -> NodeDim:
    if not cut.before:
        return dim
    least = minimum(dim.extent, cut.step)
    # A bound that a stopping condition decides may turn out smaller than what was known to be below it.
    return NodeDim(dim.symbol, simplified_term(least, TRUE) if dim.extent.symbols.isdisjoint(stops) else least)


def _rest(node: Node, part: Node, cut: _Cut) -> Node:
    copy = Definition(cut.part, "copy", (part.here,), {}, node.at)
    kept = _inside(node.definitions, conjunction(node.points, cut.rest))
    kept = [replace(definition, domain=conjunction(definition.domain, cut.rest)) for definition in kept]
    return replace(node, definitions=(copy, *kept))


def _inside(definitions: Sequence[Definition], where: Condition) -> list[Definition]:
    """The definitions that hold somewhere in a set of points, with conditions as they are needed there."""
    found = []
    for definition in definitions:
        condition = with_facts(conjunction(definition.domain, where))
        if not solutions(condition).is_empty:
            found.append(replace(definition, domain=simplified(definition.domain, where)))
    return found


def _without_unread(graph: Graph, names: Sequence[str], cut: _Cut, ends: set[Symbol]) -> Graph:
    """Copies of the part only where somebody reads them."""
    nodes, outside = dict(graph.nodes), wanted(graph)
    for name in names:
        node = graph[name]
        if name in outside:
            continue
        read = simplified(conjunction(cut.part, node.domain, read_condition(graph, name, ends)), node.rectangle)
        domain = simplified(disjunction(conjunction(node.domain, cut.rest), read), node.rectangle)
        definitions = node.definitions if read is not FALSE else node.definitions[1:]
        node = replace(node, domain=domain)
        nodes[name] = replace(node, definitions=tuple(_inside(definitions, node.points)))
    return replace(graph, nodes=nodes)


def _readers_first(graph: Graph, names: Sequence[str]) -> list[str]:
    """Some nodes so that plain ones come after all that read them."""
    inside = set(names)
    reads = {
        name: [source for source in graph.reads[name] if source in inside]
        for name in names
        if not graph[name].recurrent
    }
    plain = {name: [source for source in sources if source in reads] for name, sources in reads.items()}
    return [name for component in reversed(components(plain)) for name in component]


def read_condition(
    graph: Graph, name: str, forget: Collection[Symbol] = (), by: Collection[str] | None = None
) -> Condition:
    """The points of a node that are read, by some nodes or any, as a condition on its dims.

    It holds for any value of the bounds to `forget`.
    """
    node = graph[name]
    found: Points | None = None
    for reader in (node for node in graph if name in node.sources and (by is None or node.name in by)):
        for definition in reader.definitions:
            for number, access in enumerate(definition.operands):
                if access.source == name:
                    image = _image(reader, definition, access, node, definition.read_where(number))
                    found = image if found is None else found | image
    return FALSE if found is None else found.without(forget).condition()


def narrowed(graph: Graph, names: Sequence[str], forget: Collection[Symbol] = ()) -> Graph:
    """The graph with some plain nodes limited to where they are read; readers come before what they read."""
    nodes = dict(graph.nodes)
    for name in names:
        node = nodes[name]
        where = conjunction(node.domain, read_condition(replace(graph, nodes=nodes), name, forget))
        nodes[name] = replace(node, domain=simplified(where, node.rectangle))
    return replace(graph, nodes=nodes)


def _image(reader: Node, definition: Definition, access: Access, source: Node, where: Condition) -> Points:
    targets = [Symbol(symbol.name, "dim", serial=serials.TARGET) for symbol in source.symbols]
    steps, inside, positions = positioned(source.steps(access))
    there = (eq(target.term, step) for target, step in zip(targets, steps.values(), strict=True))
    condition = with_facts(conjunction(reader.points, definition.domain, where, inside, *there))
    bounds = ordered(s for s in condition.symbols if s.kind != "dim")
    columns = (*bounds, *reader.symbols, *positions, *targets)
    image = points(condition, columns).without((*reader.symbols, *positions))
    return Points((*bounds, *source.symbols), image.isl_set)
