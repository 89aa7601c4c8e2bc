"""Replacing `grad` nodes by the graph that computes them: reverse mode, by relations.

For every tensor between the loss and what it is differentiated by there is a gradient tensor over the same dims. Its
value at a point sums the contributions of all that read that point (`adjoint.py`); the contribution of an operation
comes from the derivative in its record. Since definitions are differentiated piece by piece, backpropagation through
time, windows, strides and the rest are nothing special: the result is an ordinary graph, whose recurrences run the
other way.

Derivatives that the user gave (`custom_vjp`): the backward of a function is a part of the graph that nobody reads.

It is written in terms of a node that stands for the gradient of the result. Wherever a gradient is taken, the part is
copied with the actual gradient in its place. In the end it is dropped, and what is left of the function is its result.

Computing values again for the gradient: copies of definitions, from which gradients read instead.

A copy of a tensor has the same dims and definitions but reads copies in turn, as far as the region of its checkpoint
goes. Where rows are computed again, a read that leaves the row finds a value that was kept: an operation `keep` copies
it, so that of the tensor itself nothing else need live on. A copy that reads nothing but what comes in from outside the
region reads it through `keep` too; otherwise it would equal the original, and whoever looks for equal values would
merge the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from polyrhythm.compiler.gradients.adjoint import pulled, zero_node
from polyrhythm.compiler.gradients.cases import by_cases
from polyrhythm.compiler.gradients.regions import Region, backward_nodes
from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import TRUE, Condition, conjunction, negation
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, NodeDim, copy_of, operand_type
from polyrhythm.compiler.ir.ops.record import Gradients
from polyrhythm.compiler.ir.reads import after_successors, components, reached, readers
from polyrhythm.compiler.ir.sets import is_possible
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.ir.values import Growing, Space, Step, Value
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

    def inexact(names: Iterable[str]) -> list[str]:
        return [name for name in names if dtypes.is_inexact(graph[name].dtype)]

    return reached(lambda name: inexact(readers[name]), inexact(leaf for leaf in asked.leaves if leaf in readers))


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
            copy = copy_of(Access(gradient, node.current), growing.nodes[gradient], node.shape, TRUE, node.at)
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
    return {name: nodes[name] for name in after_successors(lambda name: _needs(nodes[name]), starts)}


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
            how = {"at": node.at, "recurrent": True, "domain": self._domain(node)}
            self.gradients[name] = self.growing.put(f"d_{name}", node.dims, node.type, **how).name
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
                for case, read in by_cases(access):
                    limited = replace(definition, domain=conjunction(definition.domain, case))
                    part = pulled(self.growing, source, node, limited, read, made, self.rows)
                    parts[source.name] += [] if part is None else [part]

    def _define(self, node: Node, parts: Sequence[str]) -> None:
        """The gradient of a node is the sum of its parts; that of the loss begins with one."""
        reads = [self._read(part, node.current) for part in parts]
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
                cells = [
                    (cell, holding) for cell, holding in (*where, *elsewhere) if is_possible(conjunction(inside, cell))
                ]
        return cells


def ruled(step: Step) -> Gradients:
    """The gradients of a function's operands; its first operand is the result, through which no gradient flows."""
    made: list[Value | None] = [None]
    copies = _copies(step)
    for name, wanted in zip(step["backward"], step.wanted[1:], strict=True):
        if name is None or not wanted:
            made.append(None)
            continue
        node = step.space.graph.nodes[name]
        made.append(step.space.read(Access(copies.get(name, name), node.current)))
    return made


def _copies(step: Step) -> dict[str, str]:
    """The backward with the actual gradient in place of the node that stands for it."""
    graph = step.space.graph
    start, *rest = backward_nodes(graph.nodes, step.definition)
    copies = {start: step.gradient}
    for name in rest:
        node = graph.nodes[name]
        definitions = []
        for definition in node.definitions:
            operands = tuple(
                Access(copies[access.source], access.steps)
                if access.source in copies
                else step.source(step.node, access)
                for access in definition.operands
            )
            definitions.append(replace(definition, operands=operands))
        copies[name] = graph.put(f"{step.space.prefix}_{name}", node.dims, node.type, *definitions, at=node.at).name
    return copies


def without_rules(graph: Graph) -> dict[str, Node]:
    """The nodes of a graph in which functions with a derivative of their own are only their results."""
    return {
        node.name: replace(node, definitions=tuple(_result(d) for d in node.definitions))
        for node in graph
        if not any(d.op == "cotangent" for d in node.definitions)
    }


def _result(definition: Definition) -> Definition:
    if definition.op != "ruled":
        return definition
    return Definition(definition.domain, "copy", definition.operands[:1], {}, definition.at)


class Again:
    """Where gradients read values from: copies for what checkpoints cover, the tensors themselves for the rest."""

    def __init__(self, graph: Growing, regions: Sequence[Region]) -> None:
        self.graph = graph
        self.regions = tuple(regions)
        self._copies: dict[tuple[Region, str], str] = {}
        self._kept: dict[tuple[Access, tuple[NodeDim, ...]], str] = {}
        self._parted: dict[Region, set[str]] = {}

    def read(self, reader: Node, access: Access) -> Access:
        """The access that reads the same value for the derivative of a definition of `reader`."""
        region = self._region(reader.name) or self._region(access.source)
        if region is None:
            return access
        found = self._redirected(region, reader, access)
        self._complete()
        return found

    def _region(self, name: str) -> Region | None:
        return next((region for region in self.regions if name in region.nodes), None)

    def _redirected(self, region: Region, reader: Node, access: Access) -> Access:
        if access.source not in region.nodes:
            return access
        if _same_row(region, reader, access, self.graph.nodes[access.source]):
            return Access(self._copy(region, access.source), access.steps)
        if reader.name in region.nodes and region.over not in access.symbols and not access.ranges:
            return self._keep(reader, access)
        return access

    def _copy(self, region: Region, name: str) -> str:
        key = (region, name)
        if key not in self._copies:
            node = self.graph.nodes[name]
            how = {"at": node.at, "recurrent": node.recurrent, "domain": node.domain, "again": True}
            self._copies[key] = self.graph.put(f"{name}_again", node.dims, node.type, **how).name
        return self._copies[key]

    def _complete(self) -> None:
        """Give every copy its definitions; that may ask for more copies."""
        while True:
            waiting = [(key, made) for key, made in self._copies.items() if not self.graph.nodes[made].definitions]
            if not waiting:
                return
            for (region, name), made in waiting:
                node = self.graph.nodes[name]
                definitions = tuple(self._copied(region, node, definition) for definition in node.definitions)
                self.graph.nodes[made] = replace(self.graph.nodes[made], definitions=definitions)

    def _copied(self, region: Region, node: Node, definition: Definition) -> Definition:
        if any(access.source in self._apart(region) for access in definition.operands):
            operands = [self._redirected(region, node, access) for access in definition.operands]
        else:
            operands = [
                self._redirected(region, node, access)
                if access.source in region.nodes or not self._enters(region, access)
                else self._keep(node, access, all_dims=True, at=definition.at)
                for access in definition.operands
            ]
        return replace(definition, operands=tuple(operands))

    def _apart(self, region: Region) -> set[str]:
        """Those whose copies differ from them: what enters is kept there, or in what they are computed from."""
        if region not in self._parted:
            nodes, inside = self.graph.nodes, region.nodes
            outer = ((name, a) for name in inside for a in nodes[name].accesses if a.source not in inside)
            entered = [name for name, access in outer if self._enters(region, access)]
            following = readers(nodes)
            self._parted[region] = reached(lambda name: inside.intersection(following[name]), entered)
        return self._parted[region]

    def _enters(self, region: Region, access: Access) -> bool:
        """Whether a value that comes in from outside must be told apart: not weights, which no row owns."""
        source = self.graph.nodes[access.source]
        if access.ranges:
            return False
        if region.over is not None:
            return region.over in access.symbols
        return bool(source.dims) or not source.is_input

    def _keep(self, reader: Node, access: Access, all_dims: bool = False, at: Source | None = None) -> Access:
        dims = tuple(dim for dim in reader.dims if all_dims or dim.symbol in access.symbols)
        key = (access, dims)
        if key not in self._kept:
            kind = operand_type(access, self.graph.nodes[access.source])
            made = Definition(TRUE, "keep", (access,), {}, at or reader.at)
            self._kept[key] = self.graph.put(f"{access.source}_kept", dims, kind, made, at=made.at).name
        return Access(self._kept[key], tuple(Term.of(dim.symbol) for dim in dims))


def _same_row(region: Region, reader: Node, access: Access, source: Node) -> bool:
    """Whether a read stays in the row of the reader: at the same step along all dims but that of the row."""
    if region.over is None:
        return True
    return all(
        symbol is region.over or (step is Term.of(symbol) and symbol in reader.symbols)
        for symbol, step in source.steps(access).items()
    ) and any(symbol is region.over for symbol in source.symbols)
