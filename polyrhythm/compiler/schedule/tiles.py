"""Loops over tiles: a few hundred steps at a time, each statement vectorised over those of a tile.

Two loops of independent steps whose common loop is not independent, as a filter over the last values of a computed
signal, can be one of three things:

1. *distributed*: two vectorised loops, with all steps of what passes between them stored;
2. *fused*: one sequential loop with a ring of a few slots, one step after the other;
3. *tiled*: one sequential loop over tiles of n steps. Inside it every member has a vectorised loop over the steps of
   the tile, and what crosses the border of a tile is in a ring of w + n slots, rounded up to whole tiles.

A tile takes little more time than the first and, but for a constant, the memory of the second. It is chosen where the
values would not be stored for all steps anyway (by an output, by a reader in another loop, or by a read without a
limit), and where storing them matters: under a memory budget, or if they take more than `SHARE` times what the inputs
and outputs of the call take at each step. Otherwise loops are distributed, which is the fastest.

Legality: member m handles step t in tile `(t + shift_m) // n`. Shifts let no reader come before its source, division
is monotonic, and within a tile the loops are in an order of their dependences. The checker proves it of the result.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from polyrhythm.compiler.ir.graph import Graph, Node
from polyrhythm.compiler.ir.sets import least, with_facts
from polyrhythm.compiler.ir.terms import Symbol, Term, product
from polyrhythm.compiler.schedule.blocks import Block
from polyrhythm.compiler.schedule.dependences import ByBlock

STEPS = 256
"""The most steps of a tile: enough that starting an operation does not count."""

FEWEST = 16
"""The fewest: a step that is so wide that fewer fill the cache is worth starting an operation for."""

SHARE = 4
"""What passes between two loops may take so many times what a call holds anyway before it is stored in tiles."""

BYTES = 1 << 20
"""What the widest value of a tile may take, so that a tile stays in the cache."""


@dataclass(frozen=True)
class Tiling:
    """Which loops may be tiled: those over other dims than `untiled`. `stored` are the tensors stored whole anyway.

    `widths` has the bytes of the widest value of each block at one step; blocks of unknown width are not in it. `held`
    has the bytes that inputs and outputs over some dims take at each step of them; empty where memory comes first.
    `distributes` allows loops beside recurrences (`groups.py`); `distributed` has the dims of those that were
    found, by the blocks at both ends of what passes.
    """

    stored: frozenset[str]
    untiled: frozenset[Symbol]
    widths: Mapping[str, int]
    held: Mapping[frozenset[Symbol], int]
    distributes: bool = True
    distributed: dict[tuple[str, str], Symbol] = field(default_factory=dict)

    def is_affordable(self, blocks: Iterable[Block], beside: Iterable[Block] = ()) -> bool:
        """Whether all steps of what some blocks make take little beside what a call holds anyway.

        What the blocks `beside` them make is stored too.
        """
        held = dict(self.held)
        for block in beside if held else ():
            over = frozenset(block.dims)
            held[over] = held.get(over, 0) + self.widths.get(block.name, 0)
        sizes = ((self.widths.get(block.name), held.get(frozenset(block.dims), 0)) for block in blocks)
        return all(width is not None and width <= SHARE * most for width, most in sizes)

    def steps(self, names: Iterable[str]) -> int:
        """The steps of a tile of some blocks, a power of two; 0 if they are too wide to be tiled."""
        widest = max((self.widths.get(name, BYTES) for name in names), default=1)
        steps = min(STEPS, 1 << (BYTES // max(1, widest)).bit_length() - 1) if widest <= BYTES else 0
        return steps if steps >= min(FEWEST, STEPS) else 0

    def is_whole(self, block: Block) -> bool:
        """Whether all steps of something that a block makes are stored in any case."""
        return any(statement.node in self.stored for statement in block.statements)

    def is_read_later(self, block: Block, inside: Container[str], dependences: ByBlock) -> bool:
        """Whether all steps of what a block makes are stored for somebody else than some blocks."""
        if self.is_whole(block):
            return True
        outside = (d for d in dependences.out_of(block.name) if d.reader not in inside)
        return any(symbol.kind == "dim" for d in outside for step in d.steps.values() for symbol in step.symbols)

    def is_stored(self, block: Block, ranks: Mapping[str, Term], dependences: ByBlock) -> bool:
        """Whether all steps of what a block makes are stored anyway, if blocks with ranks are in a loop with it."""
        if self.is_read_later(block, ranks, dependences):
            return True
        inside = (d for d in dependences.out_of(block.name) if d.reader in ranks)
        return any(least(ranks[d.source].substitute(d.steps) - ranks[d.reader], d.condition) is None for d in inside)


def tiling(
    graph: Graph, blocks: Mapping[str, Block], untiled: Iterable[Symbol], tight: bool, distributes: bool = True
) -> Tiling:
    """What may be tiled in a program; `tight` says that memory comes first."""
    widths: dict[str, int] = {}
    for name, block in blocks.items():
        sizes = [_most_bytes(graph[s.node]) for s in block.statements]
        if None not in sizes:
            widths[name] = max((size for size in sizes if size is not None), default=1)
    held: dict[frozenset[Symbol], int] = {}
    for node in graph:
        size = product(node.shape) * node.dtype.itemsize
        if not tight and (node.is_input or node.name in graph.outputs) and size.is_constant:
            held[frozenset(node.symbols)] = held.get(frozenset(node.symbols), 0) + size.constant
    stored, whole = frozenset({*graph.outputs, *graph.effects}), frozenset({*untiled, *graph.until})
    return Tiling(stored, whole, widths, held, distributes)


def _most_bytes(node: Node) -> int | None:
    """The most bytes that a value of a node has; None where there is no limit."""
    where = with_facts(node.points)
    size = node.dtype.itemsize
    for length in node.shape:
        shortest = least(-length, where)
        if shortest is None:
            return None
        size *= -shortest
    return size
