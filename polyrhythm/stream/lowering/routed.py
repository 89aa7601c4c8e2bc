"""Routing: a gather by numbers that are data splits the steps into branches, one for each number.

`take(w[0:E], route, 0)` reads another part of w at every step of the dims of `route`. Where the schedule tiles one of
these dims or time-multiplexes the dim of the parts, a branch is made for each part. Steps are sent to the branch that
`route` names (Partition), the branch reads its own part, and results come back in the order of the steps (Reassemble).
A node lives in the branches of one routing: of the part that it combines with values of the step, or of what it reads.
Parts that meet no value of their step (an embedding lookup) are random loads, in no branch.

A branch may take its steps one by one or *packed*: tiles of several steps, for which the part is read only once. Packed
are the operations that use the part, and whatever lies between them. With time-multiplexing several branches share a
region: an EagerMerge takes whichever tile is ready, and its selector says whose part to read and where to send results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from math import prod
from typing import Any

import numpy as np

from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node
from polyrhythm.compiler.ir.reads import reached
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.stream.dims import dynamic, static
from polyrhythm.stream.directives import TileDirective, TimeMultiplexDirective
from polyrhythm.stream.errors import AccessNotStreamable, DirectiveMismatch, OperationNotStreamable
from polyrhythm.stream.expr import symbol as named
from polyrhythm.stream.graph import Stream
from polyrhythm.stream.lowering.accesses import reordered, spread
from polyrhythm.stream.lowering.gathers import number_of, one_by_one, taken_part
from polyrhythm.stream.lowering.loads import loaded, loaded_by
from polyrhythm.stream.lowering.packing import retiled
from polyrhythm.stream.lowering.problem import (
    NODES,
    DirectiveKey,
    Problem,
    components,
    is_whole,
    metadata_grid,
    signature_of,
)
from polyrhythm.stream.lowering.tiles import as_rows, materialised
from polyrhythm.stream.lowering.values import PACKED, ROOT, Axis, Block, Lead, Load, Operand, Value
from polyrhythm.stream.operators.common import affine_walk
from polyrhythm.stream.operators.higher import accum, flat_map
from polyrhythm.stream.operators.offchip import random_load
from polyrhythm.stream.operators.routing import eager_merge, partition, reassemble
from polyrhythm.stream.operators.shapes import flatten, promote, repeat, reshape
from polyrhythm.stream.operators.structure import source
from polyrhythm.stream.tokens import Token
from polyrhythm.stream.types import U64, Selector, SelectorValue, Tile, TileValue, tile_type


def _once(move: Callable[[Routing, Value], Value]) -> Callable[[Routing, Value], Value]:
    """A value that is moved twice is moved once, and read twice."""

    @wraps(move)
    def moved(self: Routing, value: Value) -> Value:
        key = (move, materialised(value), value.axes, value.inside.axes)
        if key not in self.memo:
            self.memo[key] = move(self, value)
        return self.memo[key]

    return moved


class Routing:
    """The branches of one gather: who goes where, and values on their way in and out."""

    def __init__(self, problem: Problem, index: Node, branch: Symbol, count: int, name: str) -> None:
        self.problem, self.index, self.branch, self.count, self.name = problem, index, branch, count, name
        self.dims = problem.ordered(index.symbols)
        self.sizes = tuple(problem.extent(index, symbol) for symbol in self.dims)
        # As everywhere in the language, positions that are data are clamped. Computed ones are not known here.
        self.routes: np.ndarray | None = None
        self.numbers: Callable[[str], Value]
        self.distinct = False
        if problem.is_metadata(index.name):
            routes = np.clip(metadata_grid(problem, index, self.dims), 0, count - 1)
            self.routes = np.broadcast_to(routes, self.sizes)
            rows = self.routes.reshape(self.sizes[0], -1)
            self.distinct = all(len(set(row)) == len(row) for row in rows.tolist())
        tiled = [d for symbol in self.dims if (d := problem.directive(TileDirective, symbol)) is not None]
        shared = problem.directive(TimeMultiplexDirective, branch)
        self.tile = tiled[0] if tiled else None
        if len(tiled) > 1:
            raise DirectiveMismatch(
                f"{tiled[1]}: the steps that go to one {branch} are packed into tiles of {self.dims[0]}s already",
                fix="tile one of the dims of the routing",
                at=index.at,
            )
        self.regions = count if shared is None else shared.regions
        if self.regions < 1 or count % self.regions:
            raise DirectiveMismatch(
                f"{shared}: {count} branches cannot share {self.regions} regions equally",
                fix=f"choose a number of regions that divides {count}",
                at=index.at,
            )
        self.single = Lead(str(branch), frozenset(self.dims), (dynamic(named(self.name, count)),), count)
        self.span: set[str] = set()
        self.nodes: set[str] = set()
        self.origin: Stream | None = None
        self.references: list[Stream] = []
        self.memo: dict[Any, Any] = {}

    # Where values are.

    def find_span(self, graph: Graph, taken: set[str]) -> None:
        """Those of the nodes that live in the branches that work on packed tiles."""
        users = {name for name in self.nodes if taken.intersection(graph[name].sources)}
        own = {name: [read for read in graph[name].sources if read in self.nodes] for name in self.nodes}
        back = {name: [reader for reader in self.nodes if name in own[reader]] for name in self.nodes}
        above, below = reached(own.__getitem__, users), reached(back.__getitem__, users)
        self.span = above & below

    def to_stage(self, value: Value, node: str) -> Value:
        """A value of the branches in the stage that a node works in."""
        if node not in self.span:
            return self.unpacked(value)
        return self.shared(self.packed(value))

    def routes_of(self, dims: Sequence[Symbol], name: str) -> Stream:
        """The selector of each step: the branches of all steps that share it."""
        missing = len(self.dims) - len(dims)
        shape = (static(1), *(static(size) for size in self.sizes[: len(dims)]))
        hot = prod(self.sizes[len(dims) :]) if missing else 1
        kind = Selector(self.name, self.count, hot)
        if self.routes is None:
            return self._computed_routes(kind)
        nested = self.routes.reshape(*self.sizes[: len(dims)], hot).tolist()
        return source(name, [_as_targets(nested, len(dims))], shape, kind)

    def _computed_routes(self, kind: Selector) -> Stream:
        """The selector of each step, from the numbers that the program computes."""
        if "routes" not in self.memo:
            stream = materialised(one_by_one(self.problem, self.index, self.numbers(self.index.name)))

            def chosen(value: TileValue, copy: int) -> Sequence[Token]:
                return [(SelectorValue((min(max(number_of(value, self.index), 0), self.count - 1),)), 0)]

            self.memo["routes"] = flat_map(
                chosen, stream, (stream.shape[-1],), kind, name=f"routes by {self.index.name}", role="metadata"
            )
        return self.memo["routes"]

    @_once
    def entered(self, value: Value) -> Value:
        """A value of the whole program, sent to the branches."""
        for symbol in self.dims:
            value = retiled(value, symbol, None, self.problem)
        if value.levels is not None or None in value.sizes:
            raise AccessNotStreamable(
                f"{value.base.name} cannot be sent to the {self.branch}s that {described(self.index)} names: "
                "its length differs from step to step",
                fix=f"leave out the directives for {', '.join(map(str, self.dims))} and {self.branch}",
                at=self.index.at,
            )
        own = tuple(axis for axis in value.axes if isinstance(axis, Symbol) and axis in self.dims)
        if not own or own != self.dims[: len(own)]:
            # What is the same at some steps is repeated for them.
            others = tuple(axis for axis in value.axes if isinstance(axis, Symbol) and axis not in self.dims)
            sizes = dict(zip(self.dims, self.sizes, strict=True))
            value = spread(value, (*self.dims, *others), {s: n for s, n in sizes.items() if s not in own})
            own = self.dims
        elif value.axes[: len(own)] != own:
            order: tuple[Axis, ...] = (*own, *(axis for axis in value.axes if axis not in own))
            value = reordered(value, order)
        stream = materialised(value)
        inner = len(value.axes) - len(own)
        if len(own) < len(self.dims) and not self.distinct:
            # One step goes to one branch several times, so it is repeated and sent one by one.
            if inner:
                raise AccessNotStreamable(
                    f"{value.base.name} goes to one {self.branch} several times at one step of {own[0]}",
                    fix=f"choose each {self.branch} at most once",
                    at=self.index.at,
                )
            for size in self.sizes[len(own) :]:
                stream = repeat(stream, size)
            own = self.dims
        selector = self.routes_of(own, f"routes of {value.base.name}")
        sent = partition(stream, selector, inner, name=f"to {self.branch}")
        axes = value.axes[len(value.axes) - inner :]
        if not inner:
            self.references.append(sent)
        return Value(self.single, sent, axes, value.sizes[len(value.axes) - inner :], value.inside, value.dtype)

    def left(self, value: Value) -> Value:
        """A value of the branches, back in the order of the steps."""
        value = self.unpacked(value)
        stream = flatten(self._joined(value, len(self.dims)), len(value.axes), len(value.axes) + 1)
        axes = (*self.dims, *value.axes)
        return Value(ROOT, stream, axes, (*self.sizes, *value.sizes), value.inside, value.dtype)

    def _joined(self, value: Value, dims: int) -> Stream:
        """For each step of the first dims, what the branches have of it."""
        selector = self.routes_of(self.dims[:dims], "routes back")
        return reassemble(materialised(value), selector, len(value.axes), name=f"by {self.dims[0]}")

    def at_same_step(self, access: Access) -> bool:
        """Whether a read of a value in branches stays at its step."""
        return _same_step(self.problem.graph[access.source], access, self.dims)

    def read_together(
        self, access: Access, value: Value, node: Node, definition: Definition, number: int
    ) -> Value | None:
        """What is read over the whole of the last routing dim, where an operation folds it and no order is needed."""
        source_node = self.problem.graph[access.source]
        steps = source_node.steps(access)
        last = self.dims[-1]
        extent = next(dim.extent for dim in source_node.dims if dim.symbol is last)
        others = [step is Term.of(s) for s, step in steps.items() if s is not last]
        if len(self.dims) < 2 or not self.distinct or not is_whole(steps[last], extent) or not all(others):
            return None
        signature = signature_of(self.problem.graph, definition)
        label = signature.operands[number][0]
        elsewhere = [labels for place, labels in enumerate(signature.operands) if place != number]
        if label is None or signature.roles[label].kind != "reduce" or any(label in labels for labels in elsewhere):
            return None
        return self.gathered(value, len(self.dims) - 1)

    def gathered(self, value: Value, dims: int) -> Value:
        """A value of the branches with all that belongs to one step of the first dims together, in any order."""
        value = self.unpacked(value)
        joined = self._joined(value, dims)
        axes = (*self.dims[:dims], 0, *(a + 1 if isinstance(a, int) else a for a in value.axes))
        sizes = (*self.sizes[:dims], prod(self.sizes[dims:]), *value.sizes)
        block = value.inside.renamed({axis: axis + 1 for axis in value.inside.axes if isinstance(axis, int)})
        return Value(ROOT, joined, axes, sizes, block, value.dtype)

    # Packing and sharing.

    def packed(self, value: Value) -> Value:
        """Tiles of several steps of a branch."""
        if self.tile is None or PACKED in value.inside.axes or value.lead.name == "region":
            return value
        return self._packed(value)

    @_once
    def _packed(self, value: Value) -> Value:
        rows, _ = value.inside.sides
        if value.axes or rows != 1:
            raise OperationNotStreamable(
                f"tiles of {self.dims[0]}s are made of rows, and {value.base.name} is more than a row at a step",
                fix=f"leave out the tile directive of {self.dims[0]}, or reduce to a vector first",
                at=self.index.at,
            )
        stream = as_rows(value)
        assert self.tile is not None
        if self.tile.size is None:
            grouped = promote(stream, name="one group")
        else:
            grouped = reshape(stream, 0, self.tile.size, pad=0.0, name="tiles of rows")
        packed = accum("pack_rows", grouped, name=f"pack {value.base.name}")
        inside = value.inside
        block = Block((PACKED, *inside.axes), (None, *inside.lengths))
        lead = Lead(str(self.branch), self.single.dims, packed.shape, self.count)
        self.references.append(packed)
        return Value(lead, packed, (), (), block, value.dtype)

    def unpacked(self, value: Value) -> Value:
        """The steps of a branch one by one."""
        value = self._returned(value) if value.lead.name == "region" else value
        return self._unpacked(value) if PACKED in value.inside.axes else value

    @_once
    def _unpacked(self, value: Value) -> Value:
        block = Block(value.inside.axes[1:], value.inside.lengths[1:])
        assert not value.axes
        assert block.sides[0] == 1
        stream = materialised(value)
        kind = tile_type(*block.fixed_sides, stream.element.dtype)  # type: ignore[union-attr]
        back = flat_map(_valid_rows, stream, self.single.shape, kind, name="rows")
        return Value(self.single, back, (), (), block, value.dtype)

    def shared(self, value: Value) -> Value:
        """A value of the branches in the regions that they share."""
        if self.regions == self.count or value.lead.name == "region":
            return value
        return self._shared(value)

    @_once
    def _shared(self, value: Value) -> Value:
        stream = materialised(value)
        if value.axes:
            raise OperationNotStreamable(
                f"{value.base.name} has inner dims where {self.branch}s start to share regions",
                fix=f"leave out time_multiplex, or let one value a step enter the {self.branch}s",
                at=self.index.at,
            )
        if self.origin is None:
            name = self.name.replace(f"{self.dims[0]}s", "tiles", 1)
            merged, self.origin = eager_merge(stream, 0, self.regions, selector=name, name="merge")
            self.references.append(merged)
        else:
            merged = flatten(reassemble(stream, self.origin, 0), 0, 1)
        lead = Lead("region", self.single.dims, merged.shape, self.regions)
        return Value(lead, merged, (), (), value.inside, value.dtype)

    @_once
    def _returned(self, value: Value) -> Value:
        assert self.origin is not None
        stream = partition(materialised(value), self.origin, len(value.axes), name=f"return to {self.branch}")
        lead = Lead(str(self.branch), self.single.dims, stream.shape[:1], self.count)
        if not value.axes:
            self.references.append(stream)
        return Value(lead, stream, value.axes, value.sizes, value.inside, value.dtype)

    # The parts themselves.

    def read_part(self, load: Load, lead: Lead) -> Value:
        """The part of the own branch, read for every entry of a lead; in a region, that of whoever comes next."""
        ref = self.lead_reference(lead)
        if lead.name != "region" or load.branch is None:
            return loaded_by(load, ref, lead, (), ())
        assert self.origin is not None
        where = self._addresses(load)
        stream = random_load(load.tensor, load.tile, where)
        return Value(lead, stream, load.axes, load.sizes, load.block, load.dtype)

    def lead_reference(self, lead: Lead) -> Stream:
        """Some stream with one element for each entry of a lead."""
        for stream in self.references:
            if stream.shape == lead.shape and stream.copies == lead.copies:
                return stream
        raise OperationNotStreamable(
            f"nothing but parts of {self.branch}s takes part at {described(self.index)}",
            fix="combine a part with a value of the step that it is read for",
            at=self.index.at,
        )

    def _addresses(self, load: Load) -> Stream:
        """The tiles of the part of whichever branch comes next, from the selector of the merge."""
        assert self.origin is not None
        down, across = load.tensor.grid(load.tile)
        each, width = down * across, self.count // self.regions
        walk = list(affine_walk(load.sizes, load.strides))
        key = ("addresses", each, tuple(walk))

        def addresses(selector: SelectorValue, region: int) -> Sequence[Token]:
            first = (region * width + selector.targets[0]) * each
            return [(TileValue(1, 1, 8, data=np.array([[first + at]])), level) for at, level in walk]

        if key not in self.memo:
            dims = (self.origin.shape[0], *(static(size) for size in load.sizes))
            self.memo[key] = flat_map(
                addresses, self.origin, dims, Tile(1, 1, U64), cycles=1, name=f"{self.branch} addresses"
            )
        return self.memo[key]


def _valid_rows(value: Any, copy: int) -> Sequence[Token]:
    """The rows of a packed tile that are not padding, one tile each."""
    nbytes = value.nbytes // value.rows if value.rows else 0
    return [
        (TileValue(1, value.cols, nbytes, data=None if value.data is None else value.data[row : row + 1]), 0)
        for row in range(value.valid)
    ]


def _as_targets(nested: Any, depth: int) -> Any:
    return tuple(nested) if depth == 0 else [_as_targets(part, depth - 1) for part in nested]


def _same_step(source: Node, access: Access, dims: Sequence[Symbol]) -> bool:
    steps = source.steps(access)
    return all(symbol in steps and steps[symbol] is Term.of(symbol) for symbol in dims)


@dataclass(frozen=True)
class Routings:
    """The routings of a program: the one of each gather that reads parts in branches, and of each node in branches."""

    taken: Mapping[str, Routing]
    owner: Mapping[str, Routing]

    @property
    def dims(self) -> frozenset[Symbol]:
        """The dims whose steps go to branches."""
        return frozenset(symbol for routing in self.taken.values() for symbol in routing.dims)

    def used(self) -> set[DirectiveKey]:
        """The directives that have an effect here."""
        found: set[DirectiveKey] = set()
        for routing in self.taken.values():
            found.add((TimeMultiplexDirective, routing.branch, NODES))
            tiled = (symbol for symbol in routing.dims if routing.problem.directive(TileDirective, symbol))
            found |= {(TileDirective, symbol, NODES) for symbol in tiled}
        return found


def find_routings(problem: Problem) -> Routings:
    """The gathers that the schedule splits into branches, and the nodes that live there."""
    parts = {}
    for node in problem.graph:
        part = taken_part(problem, node)
        if part is not None and problem.levels(node) is None:
            table, index, branch = part
            wanted = problem.directive(TimeMultiplexDirective, branch) is not None or any(
                problem.directive(TileDirective, symbol) is not None for symbol in index.symbols
            )
            if wanted and not set(table.symbols) & set(index.symbols):
                parts[node.name] = part
    keys = _owners(problem, {name: (index.name, branch) for name, (_, index, branch) in parts.items()})
    found = {name: part for name, part in parts.items() if (part[1].name, part[2]) in keys.values()}
    plain = {key: f"{problem.ordered(problem.graph[key[0]].symbols)[0]}s_of_{key[1]}" for key in set(keys.values())}
    made: dict[tuple[str, Symbol], Routing] = {}
    for table, index, branch in found.values():
        key = (index.name, branch)
        if key not in made:
            # The name stands for the counts in formulae, so two routings never share one.
            alone = list(plain.values()).count(plain[key]) == 1
            name = plain[key] if alone else f"{plain[key]}_by_{index.name}"
            made[key] = Routing(problem, index, branch, problem.extent(table, branch), name)
    taken = {name: made[index.name, branch] for name, (_, index, branch) in found.items()}
    owner = {name: made[key] for name, key in keys.items()}
    for routing in made.values():
        routing.nodes = {name for name, own in owner.items() if own is routing}
        routing.find_span(problem.graph, {name for name, own in taken.items() if own is routing})
    return Routings(taken, owner)


Key = tuple[str, Symbol]


def _owners(problem: Problem, taken: Mapping[str, Key]) -> dict[str, Key]:
    """The routing of every node that lives in branches."""
    graph = problem.graph
    owner: dict[str, Key] = {}

    def at_same_step(known: Mapping[str, Key], node: Node) -> list[Key]:
        found = [(access, known[access.source]) for access in node.accesses if access.source in known]
        return [key for read, key in found if _same_step(graph[read.source], read, graph[key[0]].symbols)]

    for component in components(graph):
        node = graph[component[0]]
        if len(component) > 1 or node.name in node.sources or len(node.definitions) > 1 or node.name in taken:
            continue
        if problem.levels(node) is not None or problem.is_metadata(node.name):
            continue
        inherited = set(at_same_step(owner, node))
        for key in at_same_step(taken, node):
            dims = set(graph[key[0]].symbols)
            if any(
                taken.get(read.source) != key and problem.constant(read.source) is None and dims & read.symbols
                for read in node.accesses
            ):
                owner[node.name] = key
                break
        else:
            if len(inherited) == 1:
                owner[node.name] = inherited.pop()
    return owner


def in_branches(routing: Routing, operand: Operand, node: str) -> Operand:
    """An operand of a node that lives in the branches, brought there."""
    if isinstance(operand, np.ndarray):
        return operand
    if isinstance(operand, Load):
        if operand.branch is routing.single or not set(operand.axes) & set(routing.dims):
            return operand
        operand = loaded(operand)
    if operand.lead is ROOT:
        operand = routing.entered(operand)
    return routing.to_stage(operand, node)
