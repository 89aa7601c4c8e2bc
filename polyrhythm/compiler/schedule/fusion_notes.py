"""What became one block and what did not, for `program.explain()`: by the user's lines, with the reasons.

A value that is computed in the block of its reader is never stored, and nothing has to be started for it by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from polyrhythm.compiler.analysis.naming import brackets, described
from polyrhythm.compiler.ir.graph import Access, Graph, Node
from polyrhythm.compiler.passes.notes import Note, bytes_of
from polyrhythm.compiler.schedule.blocks import Block
from polyrhythm.compiler.schedule.scheduler import Item, Loop
from polyrhythm.compiler.schedule.tiles import Tiling


def notes_of(graph: Graph, blocks: Mapping[str, Block]) -> tuple[Note, ...]:
    """A note for each operation that joined a block, and one for each that might have but for a reason."""
    homes = {s.node: name for name, block in blocks.items() for s in block.statements}
    readers: dict[str, list[tuple[Node, Access]]] = {}
    for node in graph:
        for definition in node.definitions:
            for access in definition.operands:
                readers.setdefault(access.source, []).append((node, access))
    return tuple(_notes(graph, blocks, homes, readers))


def _notes(
    graph: Graph,
    blocks: Mapping[str, Block],
    homes: Mapping[str, str],
    readers: Mapping[str, list[tuple[Node, Access]]],
) -> Iterator[Note]:
    kept = {*graph.outputs, *graph.effects, *graph.until.values()}
    for node in graph:
        if node.only is None or node.external or node.only.record.free:
            continue
        home = homes.get(node.name)
        if home is None:
            continue
        if home != node.name:
            owner = graph[blocks[home].node]
            what = "computed in one block" + (f" with {described(owner)}" if owner.at != node.at else "")
            yield Note("fuse", "block", node.at, what, bytes=bytes_of(node), launches=1)
            continue
        here = (node.symbols, node.current)
        near = [(reader, read) for reader, read in readers.get(node.name, []) if (reader.symbols, read.steps) == here]
        if near:
            why = _why_apart(node, near, readers[node.name], homes, blocks[home], kept)
            yield Note("fuse", "block", node.at, why, refused=True)


def tile_notes(graph: Graph, items: Sequence[Item]) -> Iterator[Note]:
    """A note for each loop over tiles: what it computes, and that it stores a few tiles of it."""
    for item in items:
        if isinstance(item, Loop):
            if item.tile:
                names = (name if name in graph.nodes else name.rpartition(".")[0] for name in item.members)
                made = [graph[name] for name in names]
                dim = item.counter.name.removesuffix("_tile")
                what = f"{len(made)} blocks go {item.tile} steps of {dim} at a time and store a few such tiles"
                yield Note("tile", "loop", made[0].at, what)
            yield from tile_notes(graph, item.body)


def distribution_notes(
    graph: Graph, blocks: Mapping[str, Block], items: Sequence[Item], tiling: Tiling | None
) -> tuple[Note, ...]:
    """A note for each value that passes between a recurrence and a parallel loop beside it: what it takes to store."""
    found = []
    for (source, reader), symbol in tiling.distributed.items() if tiling is not None else ():
        if symbol.name not in _loops_around(items, {source, reader}):
            node = graph[blocks[source].node]
            what = f"stays out of the recurrence beside {described(graph[blocks[reader].node])}, all steps at once"
            found.append(
                Note("distribute", "loop", node.at, what, 0, -bytes_of(node), launches=blocks[source].launches)
            )
    return tuple(dict.fromkeys(found))


def _loops_around(items: Sequence[Item], names: set[str]) -> set[str]:
    """The dims of the loops that some blocks share."""
    for item in items:
        if isinstance(item, Loop) and names <= item.members.keys():
            return {item.counter.name} | _loops_around(item.body, names)
    return set()


def _why_apart(
    node: Node,
    near: list[tuple[Node, Access]],
    readers: list[tuple[Node, Access]],
    homes: Mapping[str, str],
    block: Block,
    kept: set[str],
) -> str:
    if node.name in kept:
        return "its values are wanted from outside"
    if block.apart:
        return "it stays out of the loop of a recurrence"
    for reader, access in readers:
        if (reader, access) not in near:
            where = f"reads it elsewhere, at {brackets(access)}" if access.steps else "varies along more dims"
            return f"{described(reader)} {where}"
    if len({homes.get(reader.name) for reader, _ in near}) > 1:
        return f"{len(near)} readers are in different blocks"
    return f"{described(near[0][0])} is defined at other points"
