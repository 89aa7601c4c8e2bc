"""The lowering of a whole graph: component by component, definition by definition.

A tensor with several definitions is put together by a Reassemble, whose selector counts through its points and names
the definition of each. What a tensor reads of itself goes through a feedback loop: the stream is read before it is
produced, and a Window delays it. That works when every value depends on values that come earlier in the order of the
streams, and is refused otherwise.

Which dims a schedule deals out, and which nodes belong to their entries.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.ir.graph import Access, Definition, Node
from polyrhythm.compiler.ir.reads import cone
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.stream.directives import ParallelizeDirective, TileDirective
from polyrhythm.stream.errors import AccessNotStreamable, DirectiveMismatch
from polyrhythm.stream.graph import Stream
from polyrhythm.stream.lowering.accesses import Reader, aligned, lower_slice, moving_axes, reordered, spread
from polyrhythm.stream.lowering.dealt import Dealing
from polyrhythm.stream.lowering.gathers import gathered, part_load, taken_part
from polyrhythm.stream.lowering.loads import dims_of, load_of, loaded, metadata_value, nest
from polyrhythm.stream.lowering.operations import lower_online, lower_operation, shifted_exponential
from polyrhythm.stream.lowering.packing import packed_axes, retiled
from polyrhythm.stream.lowering.plans import Plan
from polyrhythm.stream.lowering.problem import NODES, Problem, check_order, components, inner_order
from polyrhythm.stream.lowering.refusals import streams_of
from polyrhythm.stream.lowering.routed import Routing, Routings, find_routings, in_branches
from polyrhythm.stream.lowering.tiles import as_rows, materialised
from polyrhythm.stream.lowering.values import (
    ROOT,
    Block,
    Fused,
    Levels,
    Load,
    Operand,
    Point,
    Value,
    data_type,
    known_lengths,
    rectangle,
)
from polyrhythm.stream.operators.routing import reassemble
from polyrhythm.stream.operators.shapes import flatten
from polyrhythm.stream.operators.structure import feedback, source, stack
from polyrhythm.stream.types import Selector, tile_type


class Lowering:
    """Streams of the nodes of a graph, each made once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.graph = problem.graph
        self.operands: dict[str, Operand] = {}
        self.memo: dict[Any, Stream] = {}
        self.routings = find_routings(problem)
        self.taken, self.routing = self.routings.taken, self.routings.owner
        self.used = self.routings.used()
        for routing in self.taken.values():
            routing.numbers = self.value
        self.parts: dict[str, Value] = {}
        self._is_scoped = any(scope for _, _, scope in problem.directives)
        self.dealing = find_dealing(problem, self.routings)

    def run(self) -> None:
        """Lower every node, what it depends on first; lengths of what is walked before all that is walked."""
        dealing, first = self.dealing, set()
        if dealing is not None and dealing.length is not None:
            node = self.graph[dealing.length.node]
            first = cone(self.graph, node.name)
            dealing.numbers = lambda: self._to_entries(dealing, node, node.here, self.operands[node.name], 0)
        for component in sorted(components(self.graph), key=lambda names: names[0] not in first):
            nodes = [self.graph[name] for name in component]
            with streams_of(nodes[0]):
                if len(nodes) == 1 and component[0] not in nodes[0].sources:
                    self.operands[nodes[0].name] = self.lower(nodes[0])
                else:
                    self._lower_cycle(nodes)

    def _dealing(self, node: Node) -> Dealing | None:
        """The regions that a node lives in, if any."""
        return self.dealing if self.dealing is not None and node.name in self.dealing.nodes else None

    def lower(self, node: Node) -> Operand:
        """The operand that a node is."""
        constant = self.problem.constant(node.name)
        if constant is not None:
            return constant
        if (dealing := self._dealing(node)) is not None:
            return self._lower_dealt(dealing, node)
        levels = self._levels(node)
        if levels and not levels[-1] and not any(length.symbols & set(node.symbols) for length in node.shape):
            return self._literal(node, np.zeros([self.problem.number(n) for n in node.shape], node.dtype), levels)
        if self.problem.is_metadata(node.name):
            return metadata_value(self.problem, node, self.inside(node))
        if len(node.definitions) == 1:
            (definition,) = node.definitions
            if definition.op == "input":
                # A table that only gathers read has the tiles that they give it.
                inside = self.inside(node) if self._is_read(node) else self._layout(node)
                return load_of(self.problem, node, inside)
            if node.name in self.taken:
                part = part_load(self.problem, node, self._table_tiles(node), slab=True)
                return replace(part, branch=self.taken[node.name].single)
            if definition.op == "take":
                value = gathered(self.problem, node, {**self._table_tiles(node), **self.inside(node)}, self.value)
                if value is not None:
                    return value
            return self.define(node, definition, levels)
        return self._merged(node)

    def _lower_dealt(self, dealing: Dealing, node: Node) -> Operand:
        """A node that belongs to the entries of a dim that is dealt out."""
        if self.problem.is_metadata(node.name):
            return dealing.metadata(node, self._entry_tiles(dealing, node))
        (definition,) = node.definitions
        if definition.op == "input":
            load = self._dealt_load(dealing, node)
            return dealing.walk(load) if len(load.axes) > len(dealing.dims) else load
        if dealing.changes_what_is_walked(node):
            load = self._dealt_load(dealing, self.graph[definition.operands[2].source])
            read = definition.operands[1]
            found = self._read(Reader(self.problem, node, definition, None), 1)
            new = self._to_entries(dealing, self.graph[read.source], read, found, 0)
            assert isinstance(new, Value)
            return dealing.updated(node, load, new)
        return self.define(node, definition, None)

    def _dealt_load(self, dealing: Dealing, node: Node) -> Load:
        inside = self._entry_tiles(dealing, node)
        if dealing.walked in node.symbols:
            inside = {dealing.walked: dealing.chunk, **inside}
        return load_of(self.problem, node, inside, None, (*dealing.dims, dealing.walked))

    def _entry_tiles(self, dealing: Dealing, node: Node) -> dict[Symbol, int]:
        """What lies in a tile of a node of the regions: an entry may be several steps."""
        chunks = {symbol: chunk for symbol, chunk in self.inside(node).items() if symbol not in dealing.dims}
        for symbol in set(dealing.chunks) & set(node.symbols):
            chunks[symbol] = dealing.chunks[symbol]
            scopes = [k for k in self.problem.directives if k[0] is TileDirective and k[1] is symbol]
            self.used |= {key for key in scopes if not key[2] or key[2] & dealing.nodes}
        return chunks

    def outside(self, node: Node) -> Operand:
        """A node as the whole program sees it, out of the branches or regions that it lives in."""
        operand = self.operands[node.name]
        if node.name in self.taken:
            return self._part(node.name)
        if isinstance(operand, Value) and node.name in self.routing and operand.lead is not ROOT:
            return self.routing[node.name].left(operand)
        dealing = self._dealing(node)
        if dealing is None or isinstance(operand, np.ndarray):
            return operand
        if self.problem.is_metadata(node.name):
            return metadata_value(self.problem, node, self.inside(node))
        if node.is_input:
            return load_of(self.problem, node, self.inside(node))
        return dealing.left(operand) if isinstance(operand, Value) and operand.lead is not ROOT else operand

    def inside(self, node: Node, slab: Symbol | None = None, reader: Node | None = None) -> dict[Symbol, int]:
        """The chunk of each tiled dim of a node; a dim that counts slabs is never in a tile.

        What a reader has a tile of its own for is read in such tiles.
        """
        found: dict[Symbol, int] = {}
        for symbol in (symbol for symbol in node.symbols if symbol is not slab):
            chunk = self._chunk(reader if reader is not None and symbol in reader.symbols else node, symbol)
            if chunk is not None:
                found[symbol] = chunk
        return found

    def _layout(self, node: Node) -> dict[Symbol, int]:
        """The chunk of each tiled dim of a node, which is no effect of a directive by itself."""
        used = set(self.used)
        found = self.inside(node)
        self.used = used
        return found

    def _chunk(self, node: Node, symbol: Symbol) -> int | None:
        """How many steps of a dim lie in a tile of a node, by where it lives and what the schedule says of it."""
        own = self.problem.scoped(node, symbol)
        dealing = self._dealing(node)
        if dealing is not None and symbol in dealing.dims and dealing.scope and own is None:
            return None
        if own is None and symbol in self.routings.dims:
            return None
        chunk = None if node.name in self.routing else self.problem.chunk(node, symbol)
        if chunk is not None:
            scopes = (key for key, directive in self.problem.directives.items() if directive is own)
            self.used.add(next(scopes) if own is not None else (TileDirective, symbol, NODES))
        return chunk

    def _table_tiles(self, node: Node) -> dict[Symbol, int]:
        """The tiles of the input that a node takes parts of."""
        part = taken_part(self.problem, node)
        return {} if part is None else self.inside(part[0], part[2] if node.name in self.taken else None)

    def _is_read(self, node: Node) -> bool:
        """Whether something reads a node other than as the table of a gather."""
        parts = [taken_part(self.problem, other) for other in self.graph if node.name in other.sources]
        return any(part is None or part[0] is not node for part in parts) or node.name in self.graph.outputs

    def _part(self, name: str) -> Value:
        """A part that is wanted outside the branches: read for every step by itself."""
        if name not in self.parts:
            value = gathered(self.problem, self.graph[name], self._table_tiles(self.graph[name]), self.value)
            assert value is not None, "branches are made for gathers without missing points"
            self.parts[name] = value
        return self.parts[name]

    def define(self, node: Node, definition: Definition, levels: Levels | None) -> Operand:
        """One definition, at the points where it holds."""
        operands, space = self._operands(node, definition, levels)
        if definition.op in ("copy", "broadcast") and not isinstance(operands[0], np.ndarray):
            access = definition.operands[0]
            same = len(access.ranges) + len(self.graph[access.source].shape) == len(node.shape)
            if same and self._is_as_long(node, operands[0]):
                return operands[0]
        online = shifted_exponential(self.graph, definition)
        if online is not None:
            reads = [online[1] if place == online[0] else read for place, read in enumerate(definition.operands)]
            parts, _ = self._operands(node, replace(definition, operands=tuple(reads)), levels)
            value = lower_online(Plan(self.problem, node, definition, parts, self.memo, space), online[0])
            if value is not None:
                return value
        plan = Plan(self.problem, node, definition, operands, self.memo, space)
        moving = moving_axes(plan)
        if not moving:
            return lower_operation(plan)
        (operand,) = operands
        if isinstance(operand, np.ndarray):
            operand = self._literal(self.graph[definition.operands[0].source], operand, None)
        value = lower_slice(plan, operand, moving)
        for symbol, chunk in self.inside(node).items():
            value = retiled(value, symbol, chunk, self.problem)
        return value

    def _operands(
        self, node: Node, definition: Definition, levels: Levels | None
    ) -> tuple[tuple[Operand, ...], Routing | Dealing | None]:
        """What a definition reads, where it works: in branches, in regions, or in the program as a whole."""
        reader = Reader(self.problem, node, definition, levels, self._layout(node))
        operands = tuple(self._read(reader, number) for number in range(len(definition.operands)))
        routing = self.routing.get(node.name)
        if routing is not None:
            return tuple(in_branches(routing, operand, node.name) for operand in operands), routing
        if (dealing := self._dealing(node)) is not None:
            ones = int(any(isinstance(o, Value) and None in o.sizes for o in operands))
            plan = Plan(self.problem, node, definition, operands, self.memo)
            dealt = [
                self._to_entries(dealing, self.graph[access.source], access, self._whole(dealing, plan, operand), ones)
                for access, operand in zip(definition.operands, operands, strict=True)
            ]
            return tuple(dealt), dealing
        return operands, None

    def _whole(self, dealing: Dealing, plan: Plan, operand: Operand) -> Operand:
        """An operand on its way to entries: what is sent again for further dims goes there as one tile."""
        if not isinstance(operand, Value) or operand.lead is not ROOT or not operand.streamed:
            return operand
        further = {a for o in plan.operands if isinstance(o, Value | Load) for a in o.axes if isinstance(a, Symbol)}
        if not further - set(operand.axes) - dealing.lead.dims:
            return operand
        for symbol in dealing.dims:
            operand = retiled(operand, symbol, dealing.chunks.get(symbol), self.problem)
        return packed_axes(plan, operand)

    def _to_entries(self, dealing: Dealing, node: Node, access: Access, operand: Operand, ones: int) -> Operand:
        """An operand of a node that belongs to entries; a tensor in memory that all share is read again for each."""
        shared = isinstance(operand, Load) and access == node.here and not self._dealing(node)
        if shared and dealing.walked in node.symbols:
            return dealing.walk(self._dealt_load(dealing, node))
        if isinstance(operand, Load) and set(dealing.dims) & {*operand.axes, *operand.block.axes}:
            return dealing.dealt(operand, ones) if self._dealing(node) else dealing.entered(loaded(operand), ones)
        if not isinstance(operand, Value) or operand.lead is dealing.lead:
            return operand
        if operand.metadata and access == node.here and self.problem.levels(node) is None:
            return dealing.metadata(node, self._entry_tiles(dealing, node))
        return dealing.entered(operand, ones)

    def _read(self, reader: Reader, number: int) -> Operand:
        """One operand of a definition; what it reads out of branches or regions comes back from them first."""
        access = reader.definition.operands[number]
        operand = self.operands[access.source]
        source_node = self.graph[access.source]
        if (dealing := self._dealing(source_node)) is not None:
            steps = source_node.steps(access)
            here = all(steps[symbol] is Term.of(symbol) for symbol in dealing.dims)
            if here and self._dealing(reader.node):
                return reader.read(access, operand)
            return reader.read(access, self._in_tiles(source_node, access, self.outside(source_node), reader.node))
        routing = self.routing.get(access.source, self.taken.get(access.source))
        if routing is None:
            return reader.read(access, self._in_tiles(source_node, access, operand, reader.node))
        if self.routing.get(reader.node.name) is routing and routing.at_same_step(access):
            return reader.read(access, operand)
        if isinstance(operand, Value) and operand.lead is not ROOT:
            together = routing.read_together(access, operand, reader.node, reader.definition, number)
            if together is not None:
                return together
        return reader.read(access, self.outside(source_node))

    def _in_tiles(self, node: Node, access: Access, operand: Operand, reader: Node) -> Operand:
        """What is read, in the tiles that its reader works on."""
        if (
            not self._is_scoped
            or isinstance(operand, np.ndarray)
            or reader.name in self.routing
            or self._dealing(reader)
        ):
            return operand
        current = [s for s, step in node.steps(access).items() if step is Term.of(s) and s in reader.symbols]
        if isinstance(operand, Load) and node.is_input:
            return load_of(self.problem, node, self.inside(node, reader=reader))
        if isinstance(operand, Value) and operand.metadata and self.problem.is_metadata(node.name):
            return metadata_value(self.problem, node, self.inside(node, reader=reader))
        if isinstance(operand, Value):
            for symbol in current:
                operand = retiled(operand, symbol, self._chunk(reader, symbol), self.problem)
        return operand

    def _is_as_long(self, node: Node, operand: Value | Load) -> bool:
        """Whether the axes that are not walked are as long as those of a node."""
        fixed = {axis: self.problem.number(n) for axis, n in enumerate(node.shape) if axis not in operand.axes}
        lengths = dict(zip(operand.inside.axes, operand.inside.lengths, strict=True))
        return {axis: n for axis, n in lengths.items() if isinstance(axis, int)} == fixed

    def value(self, name: str) -> Value:
        """A node as a stream over all of its points."""
        return self.full(self.graph[name], self.outside(self.graph[name]), self._levels(self.graph[name]))

    def full(self, node: Node, operand: Operand, levels: Levels | None) -> Value:
        """An operand as a stream with all dims of a node, at the given points."""
        if isinstance(operand, np.ndarray):
            return self._literal(node, operand, levels)
        value = loaded(operand)
        own = {axis for axis in (*value.axes, *value.inside.axes) if isinstance(axis, Symbol)}
        chunks = self._layout(node)
        grid = self.problem.grid(node, {s: n for s, n in chunks.items() if s in value.inside.axes})
        dims, sizes = tuple(grid), tuple(grid.values())
        if levels is not None and not set(chunks) <= set(value.inside.axes):
            raise self._apart(node)
        if levels is not None and not value.streamed:
            return aligned(value, dims, sizes, levels)
        if own != set(node.symbols):
            value = spread(value, dims, {symbol: grid[symbol] for symbol in dims if symbol not in own})
        if levels is None and value.levels is None:
            return reordered(value, (*(symbol for symbol in dims if symbol in value.axes), *value.streamed))
        return self._restricted(value, levels if levels is not None else rectangle(sizes))

    def _restricted(self, value: Value, levels: Levels) -> Value:
        """The points of a value whose steps are among some."""
        dims = len(levels)
        wanted = set(levels[-1]) if levels else {()}
        own = value.prefixes()
        kept = [*levels, *(tuple(p for p in level if p[:dims] in wanted) for level in own[dims:])]
        return aligned(value, value.axes, value.sizes, tuple(kept))

    def _levels(self, node: Node, definition: Definition | None = None) -> Levels | None:
        """The points of a node as its streams walk them."""
        return self.problem.levels(node, definition, self._layout(node))

    def _tile_of(self, node: Node) -> Block:
        """The tile of a node whose value is in it as a whole."""
        chunks = self.inside(node)
        dims = self.problem.ordered(chunks)
        lengths = [self.problem.number(n) for n in node.shape]
        return Block((*dims, *range(len(lengths))), (*(chunks[symbol] for symbol in dims), *lengths))

    def _literal(self, node: Node, array: np.ndarray, levels: Levels | None) -> Value:
        """A literal at every point, of which there may be none."""
        grid, block = self.problem.grid(node, self._layout(node)), self._tile_of(node)
        sizes = tuple(grid.values())
        whole = np.broadcast_to(array, known_lengths(block.lengths)).reshape(block.fixed_sides)
        nested = nest(levels if levels is not None else rectangle(sizes), lambda _: whole)
        kind = tile_type(*block.fixed_sides, data_type(array.dtype))
        stream = source(node.name, [nested], (ROOT.shape[0], *dims_of(levels, sizes, node.name)), kind)
        return Value(ROOT, stream, tuple(grid), sizes, block, array.dtype, levels)

    def _in_tiles_of(self, node: Node, operand: Operand) -> Operand:
        """A definition in the tiles of its node: what is the same at all steps of a tile is there several times."""
        if isinstance(operand, np.ndarray) or not self.inside(node):
            return operand
        block, value = self._tile_of(node), loaded(operand)
        for symbol, chunk in self.inside(node).items():
            value = retiled(value, symbol, chunk, self.problem)
        inside = value.inside
        if value.streamed or set(block.axes) == set(inside.axes):
            return value
        index = tuple(slice(None) if axis in inside.axes else None for axis in block.axes)

        def copies(array: np.ndarray, *rest: np.ndarray) -> np.ndarray:
            return np.broadcast_to(array[index], known_lengths(block.lengths))

        fused = Fused(copies, 0, f"tiles of {value.base.name}", block)
        return replace(value, base=materialised(value), block=inside, fused=fused)

    def _merged(self, node: Node) -> Value:
        """A node put together from its definitions."""
        grid = self.problem.grid(node, self._layout(node))
        dims, sizes = tuple(grid), tuple(grid.values())
        whole = self._levels(node)
        points = whole if whole is not None else rectangle(sizes)
        live: list[tuple[Definition, Levels | None]] = []
        owner: dict[Point, int] = {}
        for definition in node.definitions:
            levels = self._levels(node, definition)
            # Without dims there is a single point, which no levels list.
            held = (points if levels is None else levels)[-1] if dims else ((),) * (levels is None)
            if held:
                owner |= dict.fromkeys(held, len(live))
                live.append((definition, levels))
        found = [(self._defined_whole(node, definition, levels), levels) for definition, levels in live]
        if len(found) == 1:
            return self.full(node, *found[0])
        parts = [self.full(node, self._in_tiles_of(node, operand), levels) for operand, levels in found]
        if any(p.streamed or p.lead is not ROOT or p.inside != parts[0].inside for p in parts):
            raise self._apart(node)
        kind = Selector(f"definition of {node.name}", len(parts), 1)
        shape = (ROOT.shape[0], *dims_of(whole, sizes, node.name))
        chosen = source(f"definitions of {node.name}", [nest(points, lambda p: (owner[p],))], shape, kind)
        streams = [flatten(as_rows(part), 0, len(dims)) for part in parts]
        stream = flatten(reassemble(stack(streams), chosen, 0, name=node.name), 0, 1)
        return Value(ROOT, stream, dims, sizes, parts[0].inside, node.dtype, whole)

    def _defined_whole(self, node: Node, definition: Definition, levels: Levels | None) -> Operand:
        """One of several definitions: axes of its value that are walked come into its tiles."""
        operand = self.define(node, definition, levels)
        if isinstance(operand, np.ndarray) or not any(isinstance(axis, int) for axis in operand.axes):
            return operand
        return packed_axes(Plan(self.problem, node, definition, (operand,), self.memo), loaded(operand))

    @staticmethod
    def _apart(node: Node) -> AccessNotStreamable:
        return AccessNotStreamable(
            f"the definitions of {described(node)} are laid out differently, so they cannot be put together",
            fix="leave the directives for its dims out, or reduce ranges before assigning them",
            at=node.at,
        )

    def _lower_cycle(self, nodes: list[Node]) -> None:
        """Nodes that depend on each other: what is read before it is produced comes back through a loop."""
        check_order(self.problem, nodes)
        names = {node.name for node in nodes}
        for node in nodes:
            reads = [access for access in node.accesses if access.source in names]
            steps = [step for access in reads for step in self.graph[access.source].steps(access).items()]
            across = [symbol for symbol, step in steps if step is not Term.of(symbol) and symbol in self.inside(node)]
            if across:
                raise AccessNotStreamable(
                    f"{described(node)} depends on its own earlier steps, so tiles of them cannot be computed at once",
                    fix=f"leave the tile directive for {across[0]} out",
                    at=node.at,
                )
        recurrent = [node for node in nodes if node.recurrent]
        loops = {node.name: self._loop(node) for node in recurrent}
        for node in inner_order(nodes):
            self.operands[node.name] = self.lower(node)
        for node in recurrent:
            value = self.full(node, self.lower(node), self._levels(node))
            if value.inside != self._tile_of(node):
                raise self._apart(node)
            loops[node.name].connect(as_rows(value))
            self.operands[node.name] = value

    def _loop(self, node: Node) -> Any:
        """A promise of the stream of a node."""
        grid = self.problem.grid(node, self._layout(node))
        sizes, levels, block = tuple(grid.values()), self._levels(node), self._tile_of(node)
        shape = (ROOT.shape[0], *dims_of(levels, sizes, node.name))
        loop = feedback(f"{node.name} so far", shape, tile_type(*block.fixed_sides, data_type(node.dtype)))
        self.operands[node.name] = Value(ROOT, loop.stream, tuple(grid), sizes, block, node.dtype, levels)
        return loop


def find_dealing(problem: Problem, routings: Routings) -> Dealing | None:
    """The dims that the schedule deals out, if any: all to the same regions."""
    found = [(key, d) for key, d in problem.directives.items() if isinstance(d, ParallelizeDirective)]
    if not found:
        return None
    scope = found[0][0][2]
    if any(key[2] != scope for key, _ in found):
        raise DirectiveMismatch(
            f"{', '.join(str(directive) for _, directive in found)}: there would be regions of several kinds",
            fix="deal out the same operations along all of the dims",
        )
    directives = {key[1]: directive for key, directive in found}
    nodes = set.intersection(*(_entry_nodes(problem, symbol, routings) for symbol in directives))
    if scope:
        nodes &= scope | {a for name in scope for a in problem.graph[name].sources if problem.graph[a].is_input}
    working = {name for name in nodes if not problem.graph[name].is_input and not problem.is_metadata(name)}
    if not nodes or (scope and not nodes & scope):
        return None
    for key, tiled in problem.directives.items():
        if key[0] is TileDirective and key[2] & nodes and (key[1] not in directives or not working <= key[2]):
            raise DirectiveMismatch(
                f"{tiled}: some operations of {key[1]}s that are dealt out have a tile of their own",
                fix="give the tile without on=, or to all of the operations that are dealt out",
                at=problem.graph[next(iter(key[2] & nodes))].at,
            )
    for symbol, directive in directives.items():
        if not scope and symbol in routings.dims and problem.directive(TileDirective, symbol):
            raise DirectiveMismatch(
                f"{directive}: the steps of {symbol} are packed by the parts that they choose",
                fix=f"leave out the tile directive of {symbol}, or deal out another dim",
                at=problem.graph[next(iter(nodes))].at,
            )
    return Dealing(problem, directives, nodes, routings.dims, scope)


def _entry_nodes(problem: Problem, entry: Symbol, routings: Routings) -> set[str]:
    """The nodes that belong to single entries: they read no other entry, and live in no branch."""
    graph = problem.graph
    steps = max((problem.extent(node, entry) for node in graph if entry in node.symbols), default=0)
    found: set[str] = set()
    for component in components(graph):
        node = graph[component[0]]
        if len(component) > 1 or node.name in node.sources or len(node.definitions) > 1 or entry not in node.symbols:
            continue
        in_branches = node.name in routings.owner or node.name in routings.taken
        if in_branches or problem.levels(node) is not None or problem.extent(node, entry) != steps:
            continue
        if taken_part(problem, node) is None and all(
            entry not in graph[a.source].symbols or graph[a.source].steps(a)[entry] is Term.of(entry)
            for a in node.accesses
        ):
            found.add(node.name)
    return found
