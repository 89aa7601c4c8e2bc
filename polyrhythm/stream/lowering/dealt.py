"""Dealing dims out to regions: `parallelize(dim, regions, policy)`.

Every region gets the entries of a dim one after the other, with all that belongs to them. An entry is a step of the dim
or a tile of steps; of several dims, a step or tile of each, and there is a region for each combination of theirs.
Inputs over these dims alone are dealt out as tiles. Those over further dims are walked by addresses, which a region
makes from the number of its entry, only as far as lengths that are data ask for. Entries reach regions in blocks
(coarse), in strict rotation (interleave), or when a region says that it has read all of the first tensor that it walks
(dynamic), through a feedback loop. Other values come in and go out in the order of the entries, by the same choices.

An output that is an input with some tile replaced is updated in place: the tile that changes is split off, changed,
written back, and put into its place again. A region starts its next entry when the write of the last is acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.ir.graph import Node
from polyrhythm.compiler.ir.reads import readers
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.stream.dims import Dim, Shape, dynamic, ragged, static
from polyrhythm.stream.directives import ParallelizeDirective, Policy, TileDirective
from polyrhythm.stream.errors import AccessNotStreamable, DirectiveMismatch
from polyrhythm.stream.expr import symbol as named
from polyrhythm.stream.graph import Stream
from polyrhythm.stream.lowering.accesses import reordered, spread
from polyrhythm.stream.lowering.gathers import number_of
from polyrhythm.stream.lowering.lengths import (
    RunTimeLength,
    changed_input,
    hit_tiles,
    output_roots,
    run_time_length,
    walked_lengths,
)
from polyrhythm.stream.lowering.loads import loaded_by
from polyrhythm.stream.lowering.packing import retiled
from polyrhythm.stream.lowering.problem import Problem, metadata_grid, metadata_tiles
from polyrhythm.stream.lowering.tiles import map_function, materialised
from polyrhythm.stream.lowering.values import ROOT, Axis, Lead, Load, Operand, Value, data_type
from polyrhythm.stream.operators.common import affine_walk, row_major
from polyrhythm.stream.operators.higher import accum, flat_map, map_tiles
from polyrhythm.stream.operators.offchip import ACK, OffChip, RandomOffChipStore, linear_load, random_load, random_store
from polyrhythm.stream.operators.routing import eager_merge, parallelize_stream, partition, reassemble
from polyrhythm.stream.operators.shapes import flatten, promote, reshape, zip_streams
from polyrhythm.stream.operators.structure import feedback, restate, source, stack, unstack
from polyrhythm.stream.tokens import Token, encode
from polyrhythm.stream.types import U64, Element, Selector, SelectorValue, Tile, TileValue, tile_type

ADDRESS = Tile(1, 1, U64)
METADATA, WRITE_BACK = "metadata", "write back"


class Entry(NamedTuple):
    """One that a region works on: its number, and how many tiles of the dim with lengths it has."""

    number: int
    tiles: int


class Dealing:
    """Dims dealt out to regions, and everything that belongs to their entries."""

    def __init__(
        self,
        problem: Problem,
        directives: Mapping[Symbol, ParallelizeDirective],
        nodes: set[str],
        routed: Collection[Symbol],
        scope: frozenset[str],
    ) -> None:
        self.problem, self.directives, self.nodes = problem, directives, nodes
        self.routed, self.scope = routed, scope
        self.dims = problem.ordered(directives)
        self.entry = self.branch = "_".join(map(str, self.dims))
        self.chunks: dict[Symbol, int] = {}
        for symbol in self.dims:
            # All that computes here has the same tile, or none of its own; inputs have that of what reads them.
            working = sorted(nodes & scope if scope else nodes)
            owners = [name for name in working if problem.scoped(problem.graph[name], symbol) is not None]
            size = problem.chunk(problem.graph[[*owners, *working][0]], symbol) if owners or not scope else None
            if size is not None:
                self.chunks[symbol] = size
        self.counts = tuple(self._steps(symbol) // self.chunks.get(symbol, 1) for symbol in self.dims)
        self.count = int(np.prod(self.counts))
        self.regions = int(np.prod([directive.regions for directive in directives.values()]))
        self.policy = self._policy()
        self.roots = output_roots(problem)
        # What a single region gets is known.
        alone = self.regions == 1
        self.entries: Dim = static(self.count) if alone else dynamic(named(f"{self.entry}s_of_region", self.regions))
        self.lead = Lead("region", frozenset(self.dims), (self.entries,), self.regions)
        self.length: RunTimeLength | None = None
        self.numbers: Callable[[], Operand]
        self.walked = self._walked_dim()
        self.updates = self._find_updates()
        changed = [output for output, root in self.roots.items() if root in self.updates]
        self.memo: dict[Any, Any] = {}
        self.first_read: Stream | None = None
        self.result: Stream | None = None
        self.free = feedback("region is free", (self.entries,), ACK, [True], self.regions, METADATA)
        self.written = {
            name: feedback(f"{name} written", (self.entries,), ACK, [True], self.regions)
            for name in self.updates.values()
        }
        self.chunk, self.tiles = 1, np.zeros(self.count, int)
        if self.walked is not None:
            tiled = self._tiled(self.walked)
            self.chunk = 1 if tiled is None or tiled.size is None else tiled.size
            self.tiles = -(-self._lengths(self.walked, changed) // self.chunk)
        self.which = self._which()

    def _policy(self) -> Policy:
        """How entries are dealt out: to whoever is free, in rotation, or ("coarse") as is known beforehand."""
        found = {directive.policy for directive in self.directives.values() if directive.regions > 1}
        if len(found) > 1 and "dynamic" in found:
            raise DirectiveMismatch(
                f"{', '.join(map(str, self.directives.values()))}: some regions take what is theirs, others what comes",
                fix="deal out all of the dims dynamically, or none",
            )
        # A single region takes everything in order, whatever the policy.
        if len(self.directives) == 1 or found == {"dynamic"}:
            return next(iter(found), "coarse")
        return "coarse"

    def place(self, entry: int) -> tuple[int, ...]:
        """The number of an entry along each of the dims."""
        return tuple(map(int, np.unravel_index(entry, self.counts)))

    def _offset(self, load: Load) -> Callable[[int], int]:
        """The first tile of an entry."""
        strides = [load.strides[load.axes.index(symbol)] if symbol in load.axes else 0 for symbol in self.dims]
        return lambda entry: sum(at * stride for at, stride in zip(self.place(entry), strides, strict=True))

    # What there is to walk.

    def _walked_dim(self) -> Symbol | None:
        """The further dim of inputs that is walked as far as lengths ask for; others are walked as a whole."""
        found: list[Symbol] = []
        for node in self.problem.graph.inputs.values():
            if node.name in self.nodes and not self.problem.is_metadata(node.name):
                for symbol in node.symbols:
                    tiled = self._tiled(symbol)
                    if symbol not in self.dims and symbol not in found and (tiled is None or tiled.size is not None):
                        found.append(symbol)
        changed = [root for root in self.roots.values() if self.problem.graph[root].definitions[0].op == "select"]
        limited = [symbol for symbol in found if self._lengths(symbol, changed).min() < self._steps(symbol)]
        if not limited:
            lengths = {symbol: run_time_length(self.problem, self.dims, symbol) for symbol in found}
            limited = [symbol for symbol, length in lengths.items() if length is not None]
            self.length = lengths[limited[0]] if limited else None
        if not limited and len(found) == 1 and changed:
            return found[0]
        return limited[0] if limited else None

    def _tiled(self, symbol: Symbol) -> TileDirective | None:
        """The tile of a dim; steps that go to branches are packed there, and not here."""
        return None if symbol in self.routed else self.problem.directive(TileDirective, symbol)

    def _steps(self, symbol: Symbol) -> int:
        return max(self.problem.extent(node, symbol) for node in self.problem.graph if symbol in node.symbols)

    def _lengths(self, walked: Symbol, updates: Sequence[str]) -> np.ndarray:
        """How many steps of a dim matter for each entry."""
        each = walked_lengths(self.problem, self.dims, walked, updates)
        split = [n for s, count in zip(self.dims, self.counts, strict=True) for n in (count, self.chunks.get(s, 1))]
        return np.asarray(each.reshape(split).max(tuple(range(1, len(split), 2))).ravel())

    def _find_updates(self) -> dict[str, str]:
        """Outputs that are an input with one tile of every entry changed, and the input of each."""
        found: dict[str, str] = {}
        for root in self.roots.values():
            node = self.problem.graph[root]
            if root in self.nodes and self._changed_input(node):
                old = node.sources[2]
                # Another reader wants what was there before, which is written over.
                if readers(self.problem.graph.nodes)[old] == [root] and old not in self.problem.graph.outputs:
                    found[root] = old
        return found

    def _changed_input(self, node: Node) -> bool:
        walked = None if self.chunks else self.walked
        return walked is not None and changed_input(self.problem, node, self.dims, walked) is not None

    def shape(self, axes: Sequence[Axis], sizes: Sequence[int | None]) -> Shape:
        """The dims of a stream of the regions with some axes."""
        dims: list[Dim] = [self.entries]
        for place, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
            outer = "".join(f"{axis}." for axis in axes[:place])
            name = f"{outer}{axis}_tiles"
            outer_size = int(np.prod([n for n in sizes[:place] if n is not None], dtype=int))
            known = self.regions == 1 and size is None and self.length is None
            total = int(self.tiles.sum()) * outer_size if known else None
            each = named(f"{name}_of_region", self.regions) if total is None else total
            dims.append(ragged(name, each) if size is None else static(size))
        return tuple(dims)

    def sizes(self, axes: Sequence[Axis], sizes: Sequence[int]) -> tuple[int | None, ...]:
        """The lengths of axes; None for the one that is walked as far as lengths ask for."""
        return tuple(None if axis is self.walked else size for axis, size in zip(axes, sizes, strict=True))

    # Entries on their way to the regions and back.

    def _which(self) -> Stream:
        """The numbers of the entries of every region."""
        numbers = list(range(self.count))
        if self.policy == "coarse":
            blocks = [[n for n in numbers if self._region(n) == region] for region in range(self.regions)]
            own = blocks if self.regions > 1 else blocks[0]
            return source(f"{self.entry}s", own, (self.entries,), ADDRESS, self.regions, METADATA)
        return self._deal(source(f"{self.entry}s", numbers, (static(self.count),), ADDRESS, role=METADATA))

    def _region(self, number: int) -> int:
        """The region of an entry, where that is fixed beforehand."""
        region = 0
        for at, symbol in zip(self.place(number), self.dims, strict=True):
            directive = self.directives[symbol]
            turn = at if directive.policy == "interleave" else at // directive.block
            region = region * directive.regions + turn % directive.regions
        return region

    def _deal(self, stream: Stream) -> Stream:
        """Groups of the outermost dim, to whoever is next."""
        if self.policy == "interleave":
            dealt = parallelize_stream(stream, self.regions, name=f"deal {stream.name}", role=stream.role)
        else:
            dealt = partition(stream, self._choices, stream.rank, name=f"deal {stream.name}", role=stream.role)
            if self.regions > 1:
                return dealt
        return restate(dealt, (self.entries, *dealt.shape[1:]))

    @cached_property
    def _choices(self) -> Stream:
        """The region of every entry."""
        name, shape = f"{self.entry}s_of_region", (static(self.count),)
        if self.policy == "dynamic":
            _, origin = eager_merge(self.free.stream, selector=name, name="next region", role=METADATA)
            return restate(origin, shape)
        chosen = [(self._region(number),) for number in range(self.count)]
        return source("regions", chosen, shape, Selector(name, self.regions, 1), role=METADATA)

    def dealt(self, load: Load, ones: int) -> Value:
        """The tiles of an input for the entries of each region, with `ones` dims to be repeated along."""
        for symbol in self.dims:
            inside = load.block.length(symbol) if symbol in load.block.axes else None
            if inside != self.chunks.get(symbol):
                raise AccessNotStreamable(
                    f"{load.tensor.name} is read in tiles of {inside or 1} {symbol}s, "
                    f"not of {self.chunks.get(symbol, 1)}",
                    fix=f"give one tile of {symbol} to all operations that are dealt out",
                )
        if any(axis not in self.dims for axis in load.axes):
            return self.walk(load)
        key = (load.tensor.name, ones)
        if key not in self.memo:
            self.memo[key] = self._dealt(load, ones)
        return Value(self.lead, self.memo[key], (), (), load.block, load.dtype, ones=ones)

    def _dealt(self, load: Load, ones: int) -> Stream:
        # The inner dims are made here and not in the region, where they would add places to wait.
        if self.policy == "coarse":
            own = self._metadata_stream(self._offset(load), f"{self.entry} number")
            stream = random_load(load.tensor, load.tile, own)
        else:
            tiles = linear_load(load.tensor, load.tile, load.sizes, load.strides)
            stream = flatten(tiles, 0, len(self.dims), name=f"all of {load.tensor.name}")
        for _ in range(ones):
            stream = promote(stream, 0, name=load.tensor.name)
        return stream if self.policy == "coarse" else self._deal(stream)

    def entered(self, value: Value, ones: int) -> Value:
        """A value of the whole program, dealt out; what all entries share goes to each of them."""
        tiles = 0 if self.length else self.tiles.min()
        cut = self.walked in value.axes and tiles * self.chunk < self._steps(self.walked)
        if cut or value.levels is not None or None in value.sizes:
            raise AccessNotStreamable(
                f"{value.base.name} comes from outside of the regions along a dim that some {self.entry}s have less of",
                fix="reduce it first",
            )
        for symbol in self.dims:
            value = retiled(value, symbol, self.chunks.get(symbol), self.problem)
        count = dict(zip(self.dims, self.counts, strict=True))
        missing = [s for s in self.dims if s not in value.axes and s not in value.inside.axes]
        others: tuple[Axis, ...] = tuple(axis for axis in value.axes if axis not in self.dims)
        if missing:
            shown = tuple(s for s in self.dims if s in missing or s in value.axes)
            dims = (*shown, *(axis for axis in others if isinstance(axis, Symbol)))
            value = spread(value, dims, {symbol: count[symbol] for symbol in missing})
        order: tuple[Axis, ...] = (*(s for s in self.dims if s in value.axes), *others)
        if value.axes != order:
            value = reordered(value, order)
        key = ("entered", materialised(value), ones if not others else 0)
        if key not in self.memo:
            stream = key[1]
            if len(order) > len(others):
                stream = flatten(stream, len(others), len(order))
            for _ in range(key[2]):
                stream = promote(stream, 0)
            self.memo[key] = self._deal(stream)
        sizes = tuple(value.size(axis) for axis in others)
        return Value(self.lead, self.memo[key], others, sizes, value.inside, value.dtype, ones=key[2])

    def left(self, value: Value) -> Value:
        """A value of the regions, back in the order of the entries."""
        if None in value.sizes:
            raise AccessNotStreamable(
                f"{value.base.name} has a length that differs from {self.entry} to {self.entry}, and is read elsewhere",
                fix=f"reduce it first, or leave out {', '.join(map(str, self.directives.values()))}",
            )
        stream = materialised(value)
        key = ("left", stream)
        if key not in self.memo:
            self.result = self.result or stream
            joined = reassemble(stream, self._known_choices, len(value.axes), name=f"by {self.entry}")
            self.memo[key] = promote(flatten(joined, len(value.axes), len(value.axes) + 1))
        stream, depth = self.memo[key], len(value.axes)
        count = {s: n for s, n in zip(self.dims, self.counts, strict=True) if n > 1 or s not in self.chunks}
        for place, size in enumerate([*count.values()][:0:-1]):
            stream = reshape(stream, depth + place, size)
        if not count:
            stream = flatten(stream, depth, depth + 1)
        axes, sizes = (*count, *value.axes), (*count.values(), *value.sizes)
        return Value(ROOT, stream, axes, sizes, value.inside, value.dtype)

    @cached_property
    def _known_choices(self) -> Stream:
        """The region of every entry, without the choices that are made ahead of entries that never come."""
        chosen = self._choices
        if self.policy != "dynamic":
            return chosen
        numbers = source("entries", list(range(self.count)), (static(self.count),), ADDRESS, role=METADATA)
        both = zip_streams(numbers, chosen, name="chosen")
        return flat_map(
            lambda pair, _: [(pair[1], 0)], both, numbers.shape, chosen.element, name="regions", role=METADATA
        )

    def _made(self, make: Callable[[Entry], Sequence[Token]], dims: Shape, kind: Element, name: str) -> Stream:
        """What a region makes of each entry."""
        which = self._walks if any(dim.is_ragged for dim in dims) else self.which
        return flat_map(lambda value, _: make(self._entry(value)), which, dims, kind, name=name, role=METADATA)

    @cached_property
    def _walks(self) -> Stream:
        """The numbers of the entries of every region, and their lengths where a run decides them."""
        if self.length is None:
            return self.which
        dealt = restate(materialised(self.numbers()), self.which.shape)  # type: ignore[arg-type]
        return zip_streams(self.which, dealt, name="lengths", role=METADATA)

    def _entry(self, value: Any) -> Entry:
        """An entry, from what says that it is next."""
        number, *rest = value if type(value) is tuple else (value,)
        entry = int(number.data[0, 0])
        if self.length is None or not rest:
            return Entry(entry, int(self.tiles[entry]))
        reach = number_of(rest[0], self.problem.graph[self.length.node]) + self.length.more
        return Entry(entry, min(max(-(-reach // self.chunk), 0), int(self.tiles[entry])))

    def _metadata_stream(self, number: Callable[[int], int], name: str) -> Stream:
        return self._made(lambda entry: [(_number(number(entry.number)), 0)], (self.entries,), ADDRESS, name)

    def read_part(self, load: Load, lead: Lead) -> Value:
        """A tensor that all entries share: a region reads it once, for its first entry, and holds it."""
        return loaded_by(load, self.which, lead, (), (), held=True)

    # Values of the regions.

    def metadata_along(self, value: Value, axes: tuple[Axis, ...], sizes: Mapping[Any, int | None]) -> Value:
        """Metadata made again for further axes, along which it is the same everywhere."""
        node, chunks = self.memo["made", value.base]
        return self.metadata(node, chunks, axes, {axis: n for axis, n in sizes.items() if n is not None})

    def metadata(
        self,
        node: Node,
        chunks: Mapping[Symbol, int],
        along: tuple[Axis, ...] | None = None,
        repeats: Mapping[Any, int] | None = None,
    ) -> Value:
        """Whole numbers and conditions, made from the number of the entry. `chunks` gives what lies in a tile."""
        given = chunks
        problem = self.problem
        others = tuple(symbol for symbol in problem.ordered(node.symbols) if symbol not in self.dims)
        extents = {symbol: problem.extent(node, symbol) for symbol in others}
        if self.walked in others:
            chunks = {**chunks, self.walked: self.chunk}
        counts = {symbol: extents[symbol] // chunks.get(symbol, 1) for symbol in others}
        own: tuple[Axis, ...] = tuple(s for s in others if s not in chunks or counts[s] > 1 or s is self.walked)
        axes = own if along is None else along
        steps = {s: n * chunks.get(s, 1) for s, n in zip(self.dims, self.counts, strict=True)}
        array, block = metadata_tiles(problem, node, {**steps, **extents}, chunks)
        grid = array.reshape(self.count, *(counts[axis] for axis in own), *block.fixed_sides)  # type: ignore[index]
        lengths_of: dict[Any, int] = {**(repeats or {}), **counts}

        def tiles(entry: Entry) -> Sequence[Token]:
            places = [axes.index(axis) for axis in own]
            return self._group(
                entry, axes, lambda at: _tile(grid[(entry.number, *(at[p] for p in places))]), lengths_of
            )

        sizes = self.sizes(axes, [lengths_of[axis] for axis in axes])
        kind = tile_type(*block.fixed_sides, data_type(node.dtype))
        stream = self._made(tiles, self.shape(axes, sizes), kind, node.name)
        self.memo["made", stream] = (node, given)
        return Value(self.lead, stream, axes, sizes, block, node.dtype, metadata=True)

    def _group(self, entry: Entry, axes: Sequence[Axis], make: Any, counts: Mapping[Any, int]) -> Sequence[Token]:
        """The tokens of one entry: nested groups along some axes, which may be empty."""

        def nested(at: tuple[int, ...]) -> Any:
            if len(at) == len(axes):
                return make(at)
            axis = axes[len(at)]
            count = entry.tiles if axis is self.walked else counts[axis]
            return [nested((*at, step)) for step in range(count)]

        return encode([nested(())], len(axes))

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
        inner = [(axis, size) for axis, size in zip(load.axes, load.sizes, strict=True) if axis not in self.dims]
        axes = tuple(axis for axis, _ in inner)
        return Value(self.lead, stream, axes, self.sizes(axes, [n for _, n in inner]), load.block, load.dtype)

    def _addresses(self, load: Load) -> Stream:
        stride = dict(zip(load.axes, load.strides, strict=True))
        counts = dict(zip(load.axes, load.sizes, strict=True))
        axes = tuple(axis for axis in load.axes if axis not in self.dims)
        steps, offset = [stride[axis] for axis in axes], self._offset(load)
        key = ("addresses", tuple(stride.items()))
        if key not in self.memo:

            def expand(value: Any, region: int) -> Sequence[Token]:
                entry = self._entry(value)
                first = offset(entry.number)
                return self._group(
                    entry, axes, lambda at: _number(first + sum(i * s for i, s in zip(at, steps, strict=True))), counts
                )

            admitted = self._walks
            if self.written:
                waits = [loop.stream for loop in self.written.values()]
                admitted = zip_streams(admitted, *waits, name="admit")
            shape = self.shape(axes, self.sizes(axes, [counts[axis] for axis in axes]))
            self.memo[key] = flat_map(expand, admitted, shape, ADDRESS, cycles=1, name="addresses")
        return self.memo[key]

    # Updates in place.

    def updated(self, node: Node, load: Load, new: Value) -> Value:
        """An input with one tile of every entry changed where a condition holds."""
        name = load.tensor.name
        grid = self._grid(self.problem.graph[node.sources[0]])
        hits = hit_tiles(grid, self.chunk)
        loaded = materialised(self.walk(load))
        shape = self.shape((self.walked,), (None,))  # type: ignore[arg-type]

        def choices(entry: Entry) -> Sequence[Token]:
            hit = hits[entry.number]
            return self._group(entry, (self.walked,), lambda at: SelectorValue((int(at[0] == hit),)), {})  # type: ignore[arg-type]

        is_hit = self._made(choices, shape, Selector(f"changed_{name}_tile", 2, 1), f"changed {name} tile")
        others, changed = unstack(partition(loaded, is_hit, 0, name=f"split {name}s"), 2)
        changed = restate(changed, (self.entries,))
        mask = self._hit_masks(grid, hits, name)
        row = zip_streams(materialised(new), mask, name=f"new {name} row")

        def change(tile: np.ndarray, row_and_mask: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
            rows_of = tile.reshape(self.chunk, -1)
            return np.where(row_and_mask[1], row_and_mask[0].reshape(1, -1), rows_of).reshape(tile.shape)

        function = map_function(f"change {name}", change, [load.block], load.block, load.dtype, lambda *s: 0, None, 1)
        function = replace(function, compute=change, dtype=None, shape=lambda tile, row: tile)
        appended = map_tiles(function, changed, row, name=f"change {name}", role=WRITE_BACK)
        if node.name in self.updates:
            offset, step = self._offset(load), load.strides[load.axes.index(self.walked)]
            where = self._metadata_stream(lambda e: offset(e) + int(hits[e]) * step, f"{name} write address")
            self.written[name].connect(random_store(load.tensor, where, appended, name=f"write {name}"))
        joined = reassemble(stack([others, appended]), is_hit, 0, name=f"join {name}s")
        stream = flatten(joined, 0, 1, name=f"{name}s")
        self.first_read = self.first_read or stream
        return self._walked_value(stream, load)

    def _grid(self, node: Node) -> np.ndarray:
        assert self.walked is not None
        steps = self._steps(self.walked)
        array = metadata_grid(self.problem, node, (*self.dims, self.walked))
        return np.broadcast_to(array, (*self.counts, steps)).reshape(self.count, steps)

    def changes_what_is_walked(self, node: Node) -> bool:
        """Whether a node is an input with one tile of every entry changed, and these tiles are all walked."""
        if not self._changed_input(node):
            return False
        hits = hit_tiles(self._grid(self.problem.graph[node.sources[0]]), self.chunk)
        late = np.flatnonzero(hits >= self.tiles)
        if len(late) and node.name in self.updates:
            raise AccessNotStreamable(
                f"{described(node)} is an output that changes a step of {self.walked} that is never walked",
                fix="change steps that the masks of the program leave in",
                at=node.at,
                point=dict(zip(self.dims, self.place(int(late[0])), strict=True)),
            )
        return not len(late)

    def _hit_masks(self, grid: np.ndarray, hits: np.ndarray, name: str) -> Stream:
        def mask(entry: Entry) -> Sequence[Token]:
            first = int(hits[entry.number]) * self.chunk
            return [(_tile(grid[entry.number, first : first + self.chunk].reshape(-1, 1)), 0)]

        kind = tile_type(self.chunk, 1, data_type(np.dtype(bool)))
        return self._made(mask, (self.entries,), kind, f"{name} position")

    # Results.

    def checked(self, value: Value, node: Node) -> Value:
        """A value of the regions that can be stored: of one length for every entry."""
        if None in value.sizes:
            raise AccessNotStreamable(
                f"{described(node)} is an output along {self.walked}, walked as far as lengths ask for, "
                "and no update of an input",
                fix=f"reduce over {self.walked}, or make it a where() of an input at one step of each entry, "
                "with numbers that are given when lowering",
                at=node.at,
            )
        return value

    def stored(self, value: Value, tensor: OffChip) -> Stream:
        """A result of every entry, stored where the entry belongs."""
        sizes = [size for size in value.sizes if size is not None]
        each = int(np.prod(sizes, dtype=int))
        walk = list(affine_walk(sizes, row_major(sizes)))
        shape = (self.entries, *map(static, sizes))
        where = self._made(
            lambda entry: [(_number(entry.number * each + at), level) for at, level in walk],
            shape,
            ADDRESS,
            "result address",
        )
        result = materialised(value)
        self.result = self.result or result
        return random_store(tensor, where, result)

    def finish(self) -> None:
        """Close the loop that says when a region is free: it has read all of the first tensor it walks."""
        read = self.first_read or self.result
        if self.policy != "dynamic" or read is None:
            return
        if read.rank:
            what = f"{self.walked}s" if self.walked is not None else "all"
            self.free.connect(accum("all_read", read, rank=read.rank, name=f"{what} read"))
        else:
            acknowledge = [(RandomOffChipStore.acknowledgement(), 0)]
            done = flat_map(lambda *_: acknowledge, read, (self.entries,), ACK, name="done", role=METADATA)
            self.free.connect(done)


def _number(value: int) -> TileValue:
    return TileValue(1, 1, 8, data=np.array([[value]]))


def _tile(data: np.ndarray) -> TileValue:
    return TileValue(data.shape[0], data.shape[1], data.size * data.itemsize, data=data)
