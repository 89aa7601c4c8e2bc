"""Strip-mining before gradients are taken: step t of some tensors becomes offset j of segment s, t = every * s + j.

Gradients of the tensors so cut run segment by segment, which is what computing a segment again needs. Every tensor is
cut at steps of its own: what computes `h[t + 1]` at step t is moved by one, so that it falls into the segment of what
it computes, and only true recurrences cross from one segment to another. A read at a constant distance is split into
what stays inside a segment and what does not, so that all reads are affine.

Under the old names remain views along t, for everybody else who reads the tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from polyrhythm.compiler.gradients.regions import Region, backward_nodes, varying
from polyrhythm.compiler.ir.conditions import TRUE, conjunction, ge, lt
from polyrhythm.compiler.ir.graph import Access, Checkpoint, Definition, Graph, Node, NodeDim, Range
from polyrhythm.compiler.ir.ops.record import map_attributes
from polyrhythm.compiler.ir.sets import facts, simplified_term
from polyrhythm.compiler.ir.terms import Symbol, Term, maximum
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.ir.values import Growing
from polyrhythm.errors import RecomputeError


def strip_mined(graph: Graph, checkpoint: Checkpoint) -> tuple[Graph, Region]:
    """The graph with what a checkpoint covers cut into segments, and these as a region. It must be checked again."""
    assert checkpoint.over is not None
    assert checkpoint.every is not None
    names = varying(graph, checkpoint)
    if checkpoint.over in graph.until or (checkpoint.over.bound and checkpoint.over.bound.over):
        raise RecomputeError(
            f"{checkpoint.over} ends as the program runs, so it cannot be cut into segments",
            fix="checkpoint without over=, or fix the number of steps",
            at=graph[checkpoint.node].at,
        )
    return _Strips(graph, checkpoint.over, checkpoint.every, names).result()


class _Strips:
    def __init__(self, graph: Graph, dim: Symbol, every: int, names: frozenset[str]) -> None:
        self.graph, self.dim, self.every, self.names = graph, dim, every, names
        self.growing = Growing(dict(graph.nodes))
        self.segment = self.growing.fresh_dim(dim)
        self.offset = self.growing.fresh_dim(dim)
        self.moves = _moves(graph, dim, names)
        self.steps = {name: Term.of(self.segment) * every + Term.of(self.offset) - self.moves[name] for name in names}
        self.cut = {name: self._new_name(name) for name in graph.nodes if name in names}
        self.losses = {d.attributes["loss"] for node in graph for d in node.definitions if d.op == "grad"}
        self.forwards = self.backwards = False

    def _new_name(self, name: str) -> str:
        node = self.graph[name]
        return self.growing.put(f"{name}_cut", node.dims, node.type, at=node.at).name

    def result(self) -> tuple[Graph, Region]:
        nodes = self.growing.nodes
        for name, new in self.cut.items():
            nodes[new] = self._cut(self.graph[name], new)
            nodes[name] = self._view(self.graph[name], new)
        for node in self.graph:
            if any(d.op == "grad" for d in node.definitions):
                nodes[node.name] = replace(node, definitions=tuple(map(self._of_cut_loss, node.definitions)))
        region = Region(
            frozenset(self.cut.values()), self.offset, self.segment, ascending=self.backwards and not self.forwards
        )
        plain = {n: node if node.recurrent else replace(node, domain=TRUE) for n, node in nodes.items()}
        return replace(self.graph, nodes=plain, requirements=()), region

    @property
    def count(self) -> Term:
        """The number of segments."""
        ends = [self._extent(self.graph[name]) + self.moves[name] for name in self.cut]
        longest = maximum(*ends) if len(ends) > 1 else ends[0]
        longest = simplified_term(longest, facts(longest.symbols))
        return (longest + (self.every - 1)) // self.every

    def _extent(self, node: Node) -> Term:
        return next(dim.extent for dim in node.dims if dim.symbol is self.dim)

    def _cut(self, node: Node, new: str) -> Node:
        step = {self.dim: self.steps[node.name]}
        dims = tuple(NodeDim(self.offset, Term(self.every)) if d.symbol is self.dim else d for d in node.dims)
        dims = (NodeDim(self.segment, self.count), *dims)
        kind = TensorType(tuple(n.substitute(step) for n in node.shape), node.dtype)
        inside = conjunction(ge(self.steps[node.name], 0), lt(self.steps[node.name], self._extent(node)))
        # The last segment may be longer than what is left.
        definitions = tuple(part for definition in node.definitions for part in self._parts(node, definition))
        return Node(new, dims, kind, definitions, node.recurrent or node.name in self.losses, inside, node.at)

    def _parts(self, node: Node, definition: Definition) -> Iterator[Definition]:
        """A definition, split by the segments its reads fall into."""
        distances = [self._distance(node, access) for access in definition.operands]
        borders = {(d // self.every + 1) * self.every - d for d in distances if d is not None}
        marks = [0, *sorted(b for b in borders if 0 < b < self.every), self.every]
        step = {self.dim: self.steps[node.name]}
        attributes = map_attributes(definition.attributes, lambda term: term.substitute(step))
        if definition.op == "ruled":
            backward = (self.cut.get(name, name) for name in attributes["backward"])
            attributes = {"cotangent": self.cut[attributes["cotangent"]], "backward": tuple(backward)}
        for low, high in itertools.pairwise(marks):
            at = Term.of(self.offset)
            domain = definition.domain.substitute(step)
            if (low, high) != (0, self.every):
                domain = conjunction(domain, ge(at, low), lt(at, high))
            operands = tuple(
                self._read(access, step, distance, low)
                for access, distance in zip(definition.operands, distances, strict=True)
            )
            yield Definition(domain, definition.op, operands, attributes, definition.at)

    def _distance(self, node: Node, access: Access) -> int | None:
        """How many steps ahead of its own a node reads another that is cut, both moved; None where that varies."""
        if access.source not in self.names:
            return None
        step = self.graph[access.source].steps(access)[self.dim]
        if not isinstance(step, Term):
            return None
        ahead = step - Term.of(self.dim)
        if not ahead.is_constant:
            return None
        distance = ahead.constant + self.moves[access.source] - self.moves[node.name]
        self.forwards, self.backwards = self.forwards or distance < 0, self.backwards or distance > 0
        return distance

    def _read(self, access: Access, step: Mapping[Symbol, Term], distance: int | None, low: int) -> Access:
        if access.source not in self.names:
            return access.substitute(step)
        if distance is None:
            return self._access(access.source, access.substitute(step))
        source = self.graph[access.source]
        rows = (low + distance) // self.every
        entries: list[Term | Range] = [Term.of(self.segment) + rows]
        for symbol, entry in source.steps(access).items():
            at = Term.of(self.offset) + (distance - rows * self.every)
            entries.append(at if symbol is self.dim else entry.substitute(step))
        return Access(self.cut[access.source], tuple(entries))

    def _access(self, name: str, access: Access) -> Access:
        """A read of a tensor that is cut: at a point in the segments, over a range in the view."""
        source = self.graph[name]
        entries = source.steps(access)
        step = entries[self.dim]
        if isinstance(step, Range):
            return access
        moved = step + self.moves[name]
        rest = tuple(moved % self.every if symbol is self.dim else entry for symbol, entry in entries.items())
        return Access(self.cut[name], (moved // self.every, *rest))

    def _view(self, node: Node, new: str) -> Node:
        copy = Definition(TRUE, "copy", (self._access(node.name, node.here),), {}, node.at)
        return replace(node, definitions=(copy,), recurrent=False, domain=TRUE)

    def _of_cut_loss(self, definition: Definition) -> Definition:
        loss = definition.attributes.get("loss")
        if definition.op != "grad" or loss not in self.cut:
            return definition
        return replace(definition, attributes={**definition.attributes, "loss": self.cut[loss]})


def _moves(graph: Graph, dim: Symbol, names: frozenset[str]) -> dict[str, int]:
    """By how many steps each tensor is moved, so that reads go backwards and as few as possible leave a segment.

    Recurrent tensors stay. What makes them moves to its earliest reader, and the rest to the latest of what it reads.
    """
    reads: dict[str, list[tuple[str, int]]] = {name: [] for name in names}
    readers: dict[str, list[tuple[str, int]]] = {name: [] for name in names}
    for name in names:
        for definition in graph[name].definitions:
            for access in definition.operands:
                step = graph[access.source].steps(access).get(dim) if access.source in names else None
                if isinstance(step, Term) and (step - Term.of(dim)).is_constant:
                    ahead = (step - Term.of(dim)).constant
                    reads[name].append((access.source, ahead))
                    readers[access.source].append((name, ahead))
    order = [node.name for node in graph if node.name in names]
    moves = {name: 0 for name in order if graph[name].recurrent}
    for name in reversed(order):
        if name not in moves and (known := [moves[r] - ahead for r, ahead in readers[name] if r in moves]):
            moves[name] = min(known)
    for name in order:
        if name not in moves:
            moves[name] = max((moves[s] + ahead for s, ahead in reads[name] if s in moves), default=0)
    for name in order:
        for definition in graph[name].definitions:
            if definition.op == "ruled":  # a backward stays with its function
                moves |= {n: moves[name] for n in backward_nodes(graph.nodes, definition) if n in names}
    least = min(moves.values(), default=0)
    return {name: move - least for name, move in moves.items()}
