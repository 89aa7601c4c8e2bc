"""Dealing a dim out to regions: `parallelize(dim, regions, policy)`.

Every region gets the entries of a dim one after the other, with all that belongs to them. Inputs over the dim alone are
dealt out as tiles. Those over a further dim are walked by addresses, which a region makes from the number of its entry,
only as far as lengths that are data ask for. Entries reach regions in blocks (coarse), in strict rotation (interleave),
or when a region says that it has read all of the first tensor that it walks (dynamic), through a feedback loop.

An output that is an input with some tile replaced is updated in place: the tile that changes is split off, changed,
written back, and put into its place again. A region starts its next entry when the write of the last is acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.ir.graph import Definition, Node
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.stream.dims import Dim, Shape, dynamic, ragged, static
from polyrhythm.stream.directives import ParallelizeDirective, TileDirective
from polyrhythm.stream.errors import AccessNotStreamable, DirectiveMismatch
from polyrhythm.stream.expr import symbol as named
from polyrhythm.stream.graph import Stream
from polyrhythm.stream.lowering.fusing import materialised
from polyrhythm.stream.lowering.grids import metadata_grid
from polyrhythm.stream.lowering.lengths import walked_lengths
from polyrhythm.stream.lowering.loads import loaded_by
from polyrhythm.stream.lowering.problem import Problem
from polyrhythm.stream.lowering.tiles import map_function
from polyrhythm.stream.lowering.values import Block, Lead, Load, Value, data_type
from polyrhythm.stream.operators.higher import accum, flat_map, map_tiles
from polyrhythm.stream.operators.offchip import ACK, linear_load, random_load, random_store
from polyrhythm.stream.operators.routing import eager_merge, parallelize_stream, partition, reassemble
from polyrhythm.stream.operators.shapes import flatten, promote, zip_streams
from polyrhythm.stream.operators.structure import feedback, restate, source, stack, unstack
from polyrhythm.stream.tokens import Token, encode
from polyrhythm.stream.types import U64, Selector, SelectorValue, Tile, TileValue, tile_type

ADDRESS = Tile(1, 1, U64)
METADATA, WRITE_BACK = "metadata", "write back"


class Dealing:
    """One dim dealt out to regions, and everything that belongs to its entries."""

    def __init__(self, problem: Problem, entry: Symbol, directive: ParallelizeDirective) -> None:
        self.problem, self.entry, self.directive = problem, entry, directive
        self.branch = entry
        graph = problem.graph
        self.nodes = {node.name for node in graph if entry in node.symbols}
        self.count = max(problem.extent(graph[name], entry) for name in self.nodes)
        self.regions = directive.regions
        self.roots = output_roots(problem)
        self.entries: Dim = dynamic(named(f"{entry}s_of_region", self.regions))
        self.lead = Lead("region", frozenset({entry}), (self.entries,), self.regions)
        self.walked = self._walked_dim()
        self.updates = self._find_updates()
        self.memo: dict[Any, Any] = {}
        self.first_read: Stream | None = None
        self.result: Stream | None = None
        self.free = feedback("region is free", (self.entries,), ACK, [True], self.regions, METADATA)
        self.written = {
            name: feedback(f"{name} written", (self.entries,), ACK, [True], self.regions)
            for name in self.updates.values()
        }
        if self.walked is not None:
            self._measure_walk(self.walked)
        self.which = self._which()

    # What there is to walk.

    def _walked_dim(self) -> Symbol | None:
        """The one further dim that inputs of the entries are walked along."""
        found: dict[Symbol, Node] = {}
        for node in self.problem.graph.inputs.values():
            if self.entry in node.symbols and not self.problem.is_metadata(node.name):
                for symbol in node.symbols:
                    tiled = self.problem.directive(TileDirective, symbol)
                    if symbol is not self.entry and (tiled is None or tiled.size is not None):
                        found[symbol] = node
        if len(found) > 1:
            (_, *others) = found
            raise DirectiveMismatch(
                f"{self.directive}: the {self.entry}s have inputs along {', '.join(map(str, found))}",
                fix="walk one dim, and put the others whole into tiles with tile(dim, dynamic=True)",
                at=found[others[0]].at,
            )
        return next(iter(found), None)

    def _measure_walk(self, walked: Symbol) -> None:
        tiled = self.problem.directive(TileDirective, walked)
        self.chunk = 1 if tiled is None or tiled.size is None else tiled.size
        lengths = walked_lengths(self.problem, self.entry, walked, self._output_updates())
        self.tiles = -(-lengths // self.chunk)
        name = f"{walked}_tiles"
        self.shape: Shape = (self.entries, ragged(name, named(f"{name}_of_region", self.regions)))

    def _output_updates(self) -> list[str]:
        return [output for output, root in self.roots.items() if root in self.updates]

    def _find_updates(self) -> dict[str, str]:
        """Outputs that are an input with one tile of every entry changed, and the input of each."""
        found: dict[str, str] = {}
        for root in self.roots.values():
            node = self.problem.graph[root]
            if self.walked is not None and changed_input(self.problem, node, self.entry, self.walked) is not None:
                found[root] = node.definitions[0].operands[2].source
        return found

    # Entries on their way to the regions.

    def _which(self) -> Stream:
        """The numbers of the entries of every region."""
        numbers = list(range(self.count))
        if self.directive.policy == "coarse":
            block = max(self.directive.block, -(-self.count // self.regions))
            blocks = [numbers[region * block : (region + 1) * block] for region in range(self.regions)]
            return source(f"{self.entry}s", _own(blocks), (self.entries,), ADDRESS, self.regions, METADATA)
        return self._deal(source(f"{self.entry}s", numbers, (static(self.count),), ADDRESS, role=METADATA))

    def _deal(self, stream: Stream) -> Stream:
        """Groups of the outermost dim, to whoever is next."""
        if self.directive.policy == "interleave":
            dealt = parallelize_stream(stream, self.regions, name=f"deal {stream.name}", role=stream.role)
            return restate(dealt, (self.entries, *dealt.shape[1:]))
        if "origin" not in self.memo:
            _, origin = eager_merge(
                self.free.stream, selector=f"{self.entry}s_of_region", name="next region", role=METADATA
            )
            self.memo["origin"] = restate(origin, (static(self.count),))
        return partition(stream, self.memo["origin"], stream.rank, name=f"deal {stream.name}", role=stream.role)

    def dealt(self, load: Load, ones: int) -> Value:
        """The tiles of an input for the entries of each region, with `ones` dims to be repeated along."""
        key = (load.tensor.name, ones)
        if key not in self.memo:
            self.memo[key] = self._dealt(load, ones)
        stream = self.memo[key]
        return Value(self.lead, stream, (), (), load.block, load.dtype, ones=ones)

    def _dealt(self, load: Load, ones: int) -> Stream:
        # The inner dims are made here and not in the region, where they would add places to wait.
        if self.directive.policy == "coarse":
            stride = load.strides[load.axes.index(self.entry)]
            own = self._metadata_stream(lambda entry: entry * stride, f"{self.entry} number")
            stream = random_load(load.tensor, load.tile, own)
        else:
            stream = flatten(
                linear_load(load.tensor, load.tile, (self.count,)), 0, 1, name=f"all of {load.tensor.name}"
            )
        for _ in range(ones):
            stream = promote(stream, 0, name=load.tensor.name)
        return stream if self.directive.policy == "coarse" else self._deal(stream)

    def _metadata_stream(self, number: Any, name: str) -> Stream:
        def expand(value: TileValue, region: int) -> Sequence[Token]:
            return [(_number(number(_entry(value))), 0)]

        return flat_map(expand, self.which, (self.entries,), ADDRESS, name=name, role=METADATA)

    def read_part(self, load: Load, lead: Lead) -> Value:
        """A tensor that all entries share, read again for each of them."""
        return loaded_by(load, self.which, lead, (), ())

    # Values of the regions.

    def metadata(self, node: Node) -> Value:
        """Whole numbers and conditions, made from the number of the entry."""
        if self.walked not in node.symbols:
            block = Block()

            def expand(value: TileValue, region: int) -> Sequence[Token]:
                found = self.problem.metadata(node.name, {self.entry: _entry(value)})
                return [(_tile(np.asarray(found).reshape(1, 1)), 0)]

            shape: Shape = (self.entries,)
        else:
            grid = self._grid(node)
            block = Block((self.walked,), (self.chunk,))

            def expand(value: TileValue, region: int) -> Sequence[Token]:
                entry = _entry(value)
                count = int(self.tiles[entry])
                rows = grid[entry].reshape(-1, self.chunk, 1)
                return _group([_tile(rows[at]) for at in range(count)])

            shape = self.shape
        rows, cols = block.sides
        assert rows is not None
        kind = tile_type(rows, cols, data_type(node.dtype))
        stream = flat_map(expand, self.which, shape, kind, name=node.name, role=METADATA)
        axes, sizes = ((self.walked,), (None,)) if shape is not None and len(shape) == 2 else ((), ())
        return Value(self.lead, stream, axes, sizes, block, node.dtype, metadata=True)  # type: ignore[arg-type]

    def _grid(self, node: Node) -> np.ndarray:
        assert self.walked is not None
        steps = self.problem.extent(node, self.walked)
        grid = metadata_grid(self.problem, node, (self.entry, self.walked))
        return np.broadcast_to(grid, (self.count, steps))

    def walk(self, load: Load) -> Value:
        """The tiles of an input for each entry, as far as they matter."""
        key = ("walk", load.tensor.name)
        if key not in self.memo:
            self.memo[key] = random_load(
                load.tensor, load.tile, self._addresses(load), name=f"load {load.tensor.name}s"
            )
            if load.tensor.name not in self.updates.values():
                self.first_read = self.first_read or self.memo[key]
        return self._walked_value(self.memo[key], load)

    def _walked_value(self, stream: Stream, load: Load) -> Value:
        return Value(self.lead, stream, (self.walked,), (None,), load.block, load.dtype)  # type: ignore[arg-type]

    def _addresses(self, load: Load) -> Stream:
        stride = dict(zip(load.axes, load.strides, strict=True))
        each, step = stride[self.entry], stride[self.walked]  # type: ignore[index]
        key = ("addresses", each, step)
        if key not in self.memo:

            def expand(value: Any, region: int) -> Sequence[Token]:
                entry = _entry(value[0] if type(value) is tuple else value)
                count = int(self.tiles[entry])
                return _group([_number(entry * each + at * step) for at in range(count)])

            admitted = self.which
            if self.written:
                waits = [loop.stream for loop in self.written.values()]
                admitted = zip_streams(self.which, *waits, name="admit")
            self.memo[key] = flat_map(expand, admitted, self.shape, ADDRESS, cycles=1, name="addresses")
        return self.memo[key]

    # Updates in place.

    def updated(self, node: Node, load: Load, new: Value) -> Value:
        """An input with one tile of every entry changed where a condition holds."""
        definition = node.definitions[0]
        name = load.tensor.name
        grid = self._grid(self.problem.graph[definition.operands[0].source])
        hits = hit_tiles(grid, self.chunk)
        loaded = materialised(self.walk(load))
        is_hit = flat_map(
            self._selectors(hits), self.which, self.shape, Selector(f"changed_{name}_tile", 2, 1),
            name=f"changed {name} tile", role=METADATA,
        )  # fmt: skip
        others, changed = unstack(partition(loaded, is_hit, 0, name=f"split {name}s"), 2)
        changed = restate(changed, (self.entries,))
        mask = self._hit_masks(grid, hits, name)
        row = zip_streams(materialised(new), mask, name=f"new {name} row")
        rows, cols = load.block.sides
        assert rows is not None

        def change(tile: np.ndarray, row_and_mask: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
            return np.where(row_and_mask[1], row_and_mask[0].reshape(1, cols), tile)

        function = map_function(f"change {name}", change, [load.block], load.block, load.dtype, lambda *s: 0, None, 1)
        function = replace(function, compute=change, dtype=None)
        appended = map_tiles(function, changed, row, name=f"change {name}", role=WRITE_BACK)
        if node.name in self.updates:
            stride = dict(zip(load.axes, load.strides, strict=True))
            each, step = stride[self.entry], stride[self.walked]  # type: ignore[index]
            where = self._metadata_stream(lambda e: e * each + int(hits[e]) * step, f"{name} write address")
            self.written[name].connect(random_store(load.tensor, where, appended, name=f"write {name}"))
        joined = reassemble(stack([others, appended]), is_hit, 0, name=f"join {name}s")
        stream = flatten(joined, 0, 1, name=f"{name}s")
        self.first_read = self.first_read or stream
        return self._walked_value(stream, load)

    def changes_what_is_walked(self, node: Node) -> bool:
        """Whether a node is an input with one tile of every entry changed, and these tiles are all walked."""
        if self.walked is None or changed_input(self.problem, node, self.entry, self.walked) is None:
            return False
        hits = hit_tiles(self._grid(self.problem.graph[node.definitions[0].operands[0].source]), self.chunk)
        late = np.flatnonzero(hits >= self.tiles)
        if len(late) and node.name in self.updates:
            raise AccessNotStreamable(
                f"{described(node)} is an output that changes a step of {self.walked} that is never walked",
                fix="change steps that the masks of the program leave in",
                at=node.at,
                point={self.entry: int(late[0])},
            )
        return not len(late)

    def _selectors(self, hits: np.ndarray) -> Any:
        def expand(value: TileValue, region: int) -> Sequence[Token]:
            entry = _entry(value)
            count = int(self.tiles[entry])
            return _group([SelectorValue((int(at == hits[entry]),)) for at in range(count)])

        return expand

    def _hit_masks(self, grid: np.ndarray, hits: np.ndarray, name: str) -> Stream:
        def expand(value: TileValue, region: int) -> Sequence[Token]:
            entry = _entry(value)
            first = int(hits[entry]) * self.chunk
            return [(_tile(grid[entry, first : first + self.chunk].reshape(-1, 1)), 0)]

        kind = tile_type(self.chunk, 1, data_type(np.dtype(bool)))
        return flat_map(expand, self.which, (self.entries,), kind, name=f"{name} position", role=METADATA)

    # Results.

    def stored(self, value: Value, node: Node, tensor: Any) -> Stream:
        """A result of every entry, stored where the entry belongs."""
        if value.axes:
            raise AccessNotStreamable(
                f"{described(node)} is an output along {', '.join(map(str, value.axes))} that is no update of an input",
                fix="reduce over the dim, or make it a where() of an input at one step of each entry",
                at=node.at,
            )
        where = self._metadata_stream(lambda entry: entry, "result address")
        result = materialised(value)
        self.result = self.result or result
        return random_store(tensor, where, result)

    def finish(self) -> None:
        """Close the loop that says when a region is free: it has read all of the first tensor it walks."""
        if self.directive.policy != "dynamic":
            return
        if self.first_read is not None:
            self.free.connect(accum("all_read", self.first_read, name=f"{self.walked}s read"))
        else:
            assert self.result is not None
            done = flat_map(_acknowledge, self.result, (self.entries,), ACK, name="done", role=METADATA)
            self.free.connect(done)


def changed_input(problem: Problem, node: Node, entry: Symbol, walked: Symbol) -> Definition | None:
    """The definition of a node that is an input over entries and steps, changed in one tile of every entry."""
    if len(node.definitions) != 1 or node.definitions[0].op != "select":
        return None
    definition = node.definitions[0]
    mask, new, old = (problem.graph[access.source] for access in definition.operands)
    current = all(
        step is Term.of(symbol)
        for access in definition.operands
        for symbol, step in problem.graph[access.source].steps(access).items()
    )
    is_input = len(old.definitions) == 1 and old.definitions[0].op == "input" and not problem.is_metadata(old.name)
    fits = set(mask.symbols) == {entry, walked} and not mask.shape and problem.is_metadata(mask.name)
    if not (current and is_input and fits) or set(old.symbols) != {entry, walked} or set(new.symbols) != {entry}:
        return None
    if old.shape != node.shape or new.shape != node.shape or len(node.shape) != 1:
        return None
    tiled = problem.directive(TileDirective, walked)
    chunk = 1 if tiled is None or tiled.size is None else tiled.size
    grid = np.broadcast_to(
        metadata_grid(problem, mask, (entry, walked)), (problem.extent(old, entry), problem.extent(old, walked))
    )
    if grid.shape[1] % chunk:
        return None
    tiles = grid.reshape(len(grid), -1, chunk).any(2)
    return definition if bool((tiles.sum(1) == 1).all()) else None


def hit_tiles(grid: np.ndarray, chunk: int) -> np.ndarray:
    """The tile of every entry in which a condition holds."""
    return np.asarray(np.argmax(grid.reshape(len(grid), -1, chunk).any(2), axis=1))


def output_roots(problem: Problem) -> dict[str, str]:
    """What each output is a copy of."""
    found = {}
    for name in problem.graph.outputs:
        node = problem.graph[name]
        while (
            len(node.definitions) == 1
            and node.definitions[0].op == "broadcast"
            and not node.definitions[0].operands[0].ranges
            and problem.graph[node.definitions[0].operands[0].source].shape == node.shape
            and _reads_here(problem, node.definitions[0])
        ):
            node = problem.graph[node.definitions[0].operands[0].source]
        found[name] = node.name
    return found


def _reads_here(problem: Problem, definition: Definition) -> bool:
    (access,) = definition.operands
    return all(step is Term.of(s) for s, step in problem.graph[access.source].steps(access).items())


def find_dealing(problem: Problem) -> Dealing | None:
    """The dim that the schedule deals out, if any."""
    found: Mapping[Symbol, Any] = {s: d for (kind, s), d in problem.directives.items() if kind is ParallelizeDirective}
    if len(found) > 1:
        raise DirectiveMismatch(
            f"{', '.join(str(directive) for directive in found.values())}: two dims are dealt out",
            fix="deal out one dim",
        )
    for symbol, directive in found.items():
        return Dealing(problem, symbol, directive)
    return None


def _own(blocks: list[list[int]]) -> list[Any]:
    return blocks if len(blocks) > 1 else blocks[0]


def _entry(value: TileValue) -> int:
    assert value.data is not None
    return int(value.data[0, 0])


def _number(value: int) -> TileValue:
    return TileValue(1, 1, 8, data=np.array([[value]]))


def _tile(data: np.ndarray) -> TileValue:
    return TileValue(data.shape[0], data.shape[1], data.size * data.itemsize, data=data)


def _group(values: list[Any]) -> Sequence[Token]:
    """The tokens of one entry: a group of elements, which may be empty."""
    return encode([values], 1)


def _acknowledge(value: Any, region: int) -> Sequence[Token]:
    return [(TileValue(1, 1, 1, data=np.ones((1, 1), bool)), 0)]
