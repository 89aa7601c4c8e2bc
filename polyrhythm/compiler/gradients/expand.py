"""Replacing `grad` nodes by the graph that computes them: reverse mode, by relations.

For every tensor between the loss and what it is differentiated by there is a gradient tensor over the same dims. Its
value at a point sums the contributions of all that read that point (`adjoint.py`); the contribution of an operation
comes from the derivative in its record. Since definitions are differentiated piece by piece, backpropagation through
time, windows, strides and the rest are nothing special: the result is an ordinary graph, whose recurrences run the
other way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from polyrhythm.compiler.gradients.adjoint import pulled, zero_node
from polyrhythm.compiler.gradients.custom_vjp import ruled, without_rules
from polyrhythm.compiler.gradients.regions import Region
from polyrhythm.compiler.gradients.rematerialise import Again
from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import TRUE, Condition, conjunction, negation
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, copy_of
from polyrhythm.compiler.ir.ops.record import Gradients
from polyrhythm.compiler.ir.reads import components
from polyrhythm.compiler.ir.sets import facts, solutions
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.ir.values import Growing, Space, Step
from polyrhythm.errors import GradientError
from polyrhythm.source import Source


def expand_gradients(graph: Graph, piecewise: bool = False, regions: Sequence[Region] = ()) -> Graph:
    """The graph without the `grad` nodes of one loss: one that no other gradient has to be differentiated for.

    A loss may well read values of other gradients where it is not differentiated, behind `detach` or beyond its leaves:
    an actor that is judged by critics which have just been updated.

    With `piecewise` a gradient that some points have other parts of than others is defined piece by piece: more
    definitions, of which each reads only what it needs. Values of `regions` are computed again.

    The graph must have been checked, so that every node's domain is known. Domains of plain nodes are forgotten,
    since gradients read more; the result must be checked again.
    """
    waiting = {node.name: _asked(node) for node in graph if _asked(node) is not None}
    for asked in waiting.values():
        assert asked is not None
        if not any(other in waiting for other in _between(graph, asked)):
            return _expanded(graph, asked, piecewise, regions)
    name = next(iter(waiting))
    raise GradientError(
        "gradients depend on each other in a circle",
        fix="take one gradient first and use its value in the other loss",
        at=graph[name].at,
    )


def carriers(graph: Graph) -> tuple[Source | None, Source | None, list[Node], list[Node]] | None:
    """Of the gradient to expand next: its line, that of its loss, its leaves, and other recurrent tensors on the way.

    None if there are none, or none of them depends on the leaves.
    """
    waiting = {node.name: _asked(node) for node in graph if _asked(node) is not None}
    for name, asked in waiting.items():
        assert asked is not None
        if any(other in waiting for other in _between(graph, asked)):
            continue
        active = _active(graph, asked)
        between = [node for node in graph if node.recurrent and node.name in active and node.name not in asked.leaves]
        leaves = [graph[leaf] for leaf in asked.leaves if leaf in active]
        line = next((d.at for d in graph[name].definitions if d.op == "grad"), graph[name].at)
        return (line, graph[asked.loss].at, leaves, between) if between and leaves else None
    return None


def has_gradients(graph: Graph) -> bool:
    """Whether there are `grad` nodes to expand."""
    return any(_asked(node) is not None for node in graph)


@dataclass(frozen=True)
class _Asked:
    """A loss and the tensors it is differentiated by."""

    loss: str
    leaves: tuple[str, ...]


def _asked(node: Node) -> _Asked | None:
    for definition in node.definitions:
        if definition.op == "grad":
            return _Asked(definition.attributes["loss"], definition.attributes["leaves"])
    return None


def _active(graph: Graph, asked: _Asked) -> set[str]:
    """The nodes through which the leaves reach the loss: floats that depend on them, not by their own definitions."""
    readers = _between(graph, asked)
    active: set[str] = set()
    waiting = [leaf for leaf in asked.leaves if leaf in readers]
    while waiting:
        name = waiting.pop()
        if name not in active and dtypes.is_inexact(graph[name].dtype):
            active.add(name)
            waiting.extend(readers[name])
    return active


def _between(graph: Graph, asked: _Asked) -> dict[str, set[str]]:
    """What the loss reads by ways that have a derivative, up to the leaves, and who reads it."""
    readers: dict[str, set[str]] = {asked.loss: set()}
    waiting = [asked.loss]
    while waiting:
        name = waiting.pop()
        if name in asked.leaves or not dtypes.is_inexact(graph[name].dtype):
            continue
        for definition in graph[name].definitions:
            for position, access in enumerate(definition.operands):
                if _differentiable(definition, position, graph):
                    if access.source not in readers:
                        readers[access.source] = set()
                        waiting.append(access.source)
                    readers[access.source].add(name)
    return readers


def _differentiable(definition: Definition, position: int, graph: Graph) -> bool:
    if definition.op == "ruled" and (position == 0 or definition.attributes["backward"][position - 1] is None):
        return False
    return definition.op != "detach" and dtypes.is_inexact(graph[definition.operands[position].source].dtype)


def _expanded(graph: Graph, asked: _Asked, piecewise: bool, regions: Sequence[Region]) -> Graph:
    growing = Growing(dict(graph.nodes))
    gradients = _Backward(graph, growing, _active(graph, asked), asked, piecewise, regions).build()
    for node in graph:
        if _asked(node) == asked:
            gradient = gradients[node.definitions[0].attributes["wrt"]]
            steps = tuple(Term.of(symbol) for symbol in node.symbols)
            copy = copy_of(Access(gradient, steps), growing.nodes[gradient], node.shape, TRUE, node.at)
            growing.nodes[node.name] = replace(node, definitions=(copy,))
    nodes = growing.nodes
    _relax(nodes, set(gradients.values()) | (set(nodes) - set(graph.nodes)))
    nodes = {n: _unlimited(node) for n, node in nodes.items()}
    return replace(graph, nodes=_in_order(nodes, graph), requirements=())


def _relax(nodes: dict[str, Node], made: set[str]) -> None:
    """Gradient tensors that no circle of their own leads through are plain: computed only where they are needed."""
    cut = {name for name, node in nodes.items() if node.recurrent and name not in made}
    reads = {
        name: [source for source in node.sources if source not in cut]
        for name, node in nodes.items()
        if name not in cut
    }
    for component in components(reads):
        if len(component) == 1 and component[0] not in reads[component[0]] and component[0] in made:
            nodes[component[0]] = replace(nodes[component[0]], recurrent=False)


def _unlimited(node: Node) -> Node:
    return node if node.recurrent else replace(node, domain=TRUE)


def finished(graph: Graph) -> Graph:
    """The graph without what only gradients needed."""
    if not any(definition.op == "ruled" for node in graph for definition in node.definitions):
        return graph
    return replace(graph, nodes=_in_order(without_rules(graph), graph))


def _in_order(nodes: Mapping[str, Node], graph: Graph) -> dict[str, Node]:
    """Nodes with what they read before them, cycles aside; unreachable ones are left out."""
    starts = [*graph.outputs, *graph.effects, *graph.until.values(), *(a.source for a in graph.lengths.values())]
    # An input stays one even where no gradient depends on it: the caller should not have to know.
    starts += [node.name for node in graph.inputs.values()]
    done: dict[str, Node] = {}
    seen: set[str] = set()
    stack = [(root, False) for root in reversed(starts)]
    while stack:
        name, complete = stack.pop()
        if complete:
            done[name] = nodes[name]
        elif name not in seen:
            seen.add(name)
            stack.append((name, True))
            stack.extend((other, False) for other in reversed(_needs(nodes[name])))
    return done


def _needs(node: Node) -> list[str]:
    asked = _asked(node)
    read = list(node.sources)
    for definition in node.definitions:
        if definition.op == "ruled":
            read += [definition.attributes["cotangent"], *(b for b in definition.attributes["backward"] if b)]
    return read + ([asked.loss, *asked.leaves] if asked is not None else [])


def _contributions(step: Step) -> Gradients:
    """The gradient of each operand of a definition, or None."""
    definition = step.definition
    if definition.op == "ruled":
        return ruled(step)
    vjp = definition.record.vjp
    if vjp is None:
        raise GradientError(
            f"the gradient of {definition.op} is not known: it leads through something that is not differentiable",
            fix="keep it out of the loss with pr.detach, or write it with operations that have derivatives",
            at=definition.at,
        )
    return vjp(step)


class _Backward:
    """Builds the gradient of one loss."""

    def __init__(
        self,
        graph: Graph,
        growing: Growing,
        active: set[str],
        asked: _Asked,
        piecewise: bool,
        regions: Sequence[Region],
    ) -> None:
        self.graph, self.growing, self.active, self.asked = graph, growing, active, asked
        # Zeros where a part is none would have to be kept; segments have many such places.
        self.piecewise = piecewise or bool(regions)
        self.again = Again(growing, regions)
        self.rows = {region.along: region.ascending for region in regions if region.along is not None}
        self.gradients: dict[str, str] = {}

    def build(self) -> dict[str, str]:
        """The gradient node of each leaf; zero where the loss does not depend on it."""
        for leaf in self.asked.leaves:
            if leaf not in self.active or self.asked.loss not in self.active:
                self.gradients[leaf] = zero_node(self.growing, self.graph[leaf], f"d_{leaf}")
        if self.asked.loss not in self.active:
            return self.gradients
        for name in sorted(self.active):
            node = self.graph[name]
            hint = f"d_{name}"
            made = self.growing.add(hint, node.dims, node.type, (), node.at, recurrent=True)
            self.growing.nodes[made] = replace(self.growing.nodes[made], domain=self._domain(node))
            self.gradients[name] = made
        parts: dict[str, list[str]] = {name: [] for name in sorted(self.active)}
        for name in parts:
            if name not in self.asked.leaves:
                self._push(self.graph[name], parts)
        for name, found in parts.items():
            self._define(self.graph[name], found)
        return self.gradients

    def _domain(self, node: Node) -> Condition:
        """Where the gradient of a node matters: where the node has values, or everywhere if the user asked for it."""
        return TRUE if node.name in self.asked.leaves else node.domain

    def _push(self, node: Node, parts: dict[str, list[str]]) -> None:
        """What a node's definitions contribute to the gradients of what they read."""
        for definition in node.definitions:
            wanted = [access.source in self.active for access in definition.operands]
            if not any(wanted):
                continue
            domain = conjunction(node.points, definition.domain)
            space = Space(self.growing, node.dims, domain, definition.at, f"d_{node.name}")
            results = _contributions(Step(space, node, definition, self.gradients[node.name], wanted, self.again.read))
            for access, contribution in zip(definition.operands, results, strict=True):
                if contribution is None or access.source not in self.active:
                    continue
                source = self.graph[access.source]
                made = contribution.settled().access.source
                parts[source.name] += pulled(self.growing, source, node, definition, access, made, self.rows)

    def _define(self, node: Node, parts: Sequence[str]) -> None:
        """The gradient of a node is the sum of its parts; that of the loss begins with one."""
        steps = tuple(Term.of(symbol) for symbol in node.symbols)
        reads = [self._read(part, steps) for part in parts]
        definitions = []
        inside = conjunction(node.rectangle, self._domain(node))
        for cell, holding in self._cells(inside, [condition for condition, _ in reads]):
            space = Space(self.growing, node.dims, conjunction(inside, cell), node.at, f"d_{node.name}")
            values = [space.read(access) for condition, access in reads if condition in holding]
            if node.name == self.asked.loss:
                values.append(space.constant(1, node.dtype, node.shape))
            if not values:
                values.append(space.constant(0, node.dtype, node.shape))
            total = values[0]
            for value in values[1:]:
                total = total + value
            source = self.growing.nodes[total.access.source]
            definitions.append(copy_of(total.access, source, node.shape, cell, node.at))
        name = self.gradients[node.name]
        self.growing.nodes[name] = replace(self.growing.nodes[name], definitions=tuple(definitions))

    def _read(self, part: str, steps: tuple[Term, ...]) -> tuple[Condition, Access]:
        """Where a part is not zero, and what it is there."""
        definitions = self.growing.nodes[part].definitions
        if self.piecewise and len(definitions) == 2:  # a value, or zero elsewhere
            return definitions[0].domain, definitions[0].operands[0]
        return TRUE, Access(part, steps)

    def _cells(self, inside: Condition, conditions: Iterable[Condition]) -> list[tuple[Condition, set[Condition]]]:
        """The points of a condition, split by which others hold."""
        cells: list[tuple[Condition, set[Condition]]] = [(TRUE, {TRUE})]
        for condition in dict.fromkeys(conditions):
            if condition is not TRUE:
                where = [(conjunction(cell, condition), {*holding, condition}) for cell, holding in cells]
                elsewhere = [(conjunction(cell, negation(condition)), holding) for cell, holding in cells]
                cells = [(cell, holding) for cell, holding in (*where, *elsewhere) if _somewhere(inside, cell)]
        return cells


def _somewhere(inside: Condition, condition: Condition) -> bool:
    """Whether a condition holds at some point of another, at some bounds."""
    inside = conjunction(inside, condition)
    return not solutions(conjunction(inside, facts(inside.symbols))).is_empty
