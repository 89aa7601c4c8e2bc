"""Lanes that are rows of different lengths, and need not all run as long as the longest.

A loop over rows whose iterations are lanes may run a few of similar length at a time, with the bound of the longest row
at what those need: work and storage are then in proportion to the sum of the lengths, up to a chunk. Legal because what
counts does not depend on the longest row (`ragged/independence.py`), and because what a lane leaves for others beyond
the end of its row is zero, or nothing that anybody looks at. `legality/rows.py` proves it again.

A contraction over rows and their steps, such as the gradient of a weight that all rows share, goes row by row for the
same reason: of what it would add beyond the end of a row one factor is zero. A backend may ignore both. Those that run
loops in Python run each row by itself, so no two of them wait for each other. Loops over the same rows that have
nothing to do with each other lie side by side, so that they can run together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from polyrhythm.compiler.ir.graph import Graph, Node, Range
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.terms import ZERO, Symbol, Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.loops.ir import (
    Block,
    Compute,
    For,
    If,
    Item,
    Load,
    LoopProgram,
    Rows,
    RowSum,
    Steps,
    Store,
    blocks_of,
    walk,
)
from polyrhythm.compiler.ragged.independence import Independence
from polyrhythm.compiler.ragged.lengths import Longest


def with_rows(program: LoopProgram, graph: Graph, lengths: Sequence[Longest]) -> LoopProgram:
    """The program with its loops over rows of different lengths marked."""
    for bound in lengths:
        node = graph.inputs.get(bound.given) if bound.given is not None else None
        if node is None or len(node.dims) != 1 or node.shape or program.inputs.get(bound.given or "") is None:
            continue
        proof = Independence(graph, bound.longest, node.name)
        if not any(_is_candidate(program, item, proof) for item in walk(program.body)) or not proof.holds():
            continue
        body = tuple(_marked(program, item, proof, program.inputs[bound.given or ""]) for item in program.body)
        program = replace(program, body=_side_by_side(body))
    return program


def is_beside(loop: For, other: For) -> bool:
    """Whether two loops go over the same rows of different lengths."""
    if loop.rows is None or other.rows is None or loop.end is not other.end:
        return False
    return loop.rows.bound is other.rows.bound and loop.rows.lengths.place == other.rows.lengths.place


def touches(item: Item, other: Item) -> bool:
    """Whether one of two items stores what the other reads or stores."""
    (reads, stores), (others, changed) = _used(item), _used(other)
    return not (stores.isdisjoint(others | changed) and changed.isdisjoint(reads))


def _used(item: Item) -> tuple[set[str], set[str]]:
    """The places that an item reads, and those that it stores to."""
    blocks = tuple(blocks_of((item,)))
    reads = {load.place for block in blocks for load in block.loads}
    return reads, {store.place for block in blocks for store in block.stores}


def _side_by_side(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Loops over the same rows next to each other, where nothing between them touches what the later one does."""
    found: list[Item] = []
    for item in items:
        at = len(found)
        if isinstance(item, For) and item.rows is not None:
            same = [n for n, other in enumerate(found) if isinstance(other, For) and is_beside(other, item)]
            if same and not any(touches(other, item) for other in found[same[-1] + 1 :]):
                at = same[-1] + 1
        found.insert(at, item)
    return tuple(found)


def _marked(program: LoopProgram, item: Item, proof: Independence, lengths: str) -> Item:
    """An item with the outermost loops over rows in it marked."""
    if isinstance(item, If):
        return replace(item, body=tuple(_marked(program, inner, proof, lengths) for inner in item.body))
    if isinstance(item, Block):
        return replace(item, body=tuple(_summed(program, compute, proof, lengths) for compute in item.body))
    if item.rows is not None:
        return item
    if _is_candidate(program, item, proof) and not refusal(program, item, proof):
        load = Load(lengths, (Term.of(item.counter),), program.places[lengths].type)
        return replace(item, rows=Rows(proof.bound, item.counter, load))
    inside = tuple(_marked(program, inner, proof, lengths) for inner in item.body)
    return replace(item, body=_side_by_side(inside))


def _is_candidate(program: LoopProgram, item: Item, proof: Independence) -> bool:
    """Whether an item is a loop over all rows that has something to do for every step of a row."""
    if not isinstance(item, For) or item.lanes is None or item.first is not ZERO or item.end is not proof.rows:
        return False
    return mentions(item, proof.bound)


def _summed(program: LoopProgram, compute: Compute, proof: Independence, lengths: str) -> Compute:
    """A computation; a contraction over rows and their steps marked as one."""
    label = row_label(compute, proof)
    if label is None or compute.rows is not None:
        return compute
    place = program.places[lengths]
    load = Load(lengths, (Steps(ZERO, proof.rows),), TensorType((proof.rows,), place.type.dtype))
    return replace(compute, rows=RowSum(proof.bound, label, load))


def row_label(compute: Compute, proof: Independence) -> str | None:
    """The label over which a contraction goes over all rows, if their steps are contracted as well."""
    if compute.op != "einsum" or not all(isinstance(operand, Load) for operand in compute.operands):
        return None
    if compute.type.dtype.itemsize < 4:  # sums of sums would be rounded more often
        return None
    found = (
        d for d in proof.graph[compute.node].definitions if d.op == "einsum" and d.attributes == compute.attributes
    )
    definition = next(found, None)
    if definition is None:
        return None
    words, output = parse_spec(compute.attributes["spec"])
    labels: set[str | None] = set()
    varying: set[str] = set()
    for word, access, operand in zip(words, definition.operands, compute.operands, strict=True):
        assert isinstance(operand, Load)
        source = proof.graph[access.source]
        own, ranged = proof.owner(source), [d for d, s in source.steps(access).items() if isinstance(s, Range)]
        whole = own in ranged and source.steps(access)[own] == Range(ZERO, proof.rows)
        labels.add(word[ranged.index(own)] if own is not None and whole else None)
        varying |= {letter for letter, n in zip(word, operand.type.shape, strict=True) if proof.bound in n.symbols}
    (label, *others) = labels
    steps = varying - set(output)
    return label if label is not None and not others and label not in output and steps and steps == varying else None


def mentions(loop: For, bound: Symbol) -> bool:
    """Whether a loop does something as often as a bound says."""
    inner = (item for item in walk(loop.body) if isinstance(item, For))
    lengths = [item.end - item.first for item in inner]
    lengths += [n for block in blocks_of(loop.body) for compute in block.body for n in compute.type.shape]
    return any(bound in n.symbols for n in lengths)


def refusal(program: LoopProgram, loop: For, proof: Independence) -> str:
    """Why the lanes of a loop have to run as long as the longest row; empty if they need not."""
    if any(isinstance(item, For) and item.stop is not None for item in walk(loop.body)):
        return "a loop inside may end early"
    kept = [(store.place, node) for store, node, _ in stored(program.body, proof.graph)]
    for store, node, step in stored(loop.body, proof.graph):
        own = proof.owner(node)
        if own is None or step[node.symbols.index(own)] is not Term.of(loop.counter):
            return f"{node.name} does not go over the rows"
        if not proof.varies(node) or store.place not in seen_outside(program, loop):
            continue
        if any(other is not node for place, other in kept if place == store.place):
            return f"{store.place} holds other values too"
        if store.place in program.outputs and not proof.is_zero_beyond(node):
            return f"{node.name} is returned, and not zero beyond the ends of rows"
        if not proof.relied.get(node.name, set()) <= {0.0}:
            return f"{node.name} is known beyond the ends of rows, and read elsewhere"
    return ""


def stored(items: Sequence[Item], graph: Graph) -> Iterator[tuple[Store, Node, tuple[Term, ...]]]:
    """What items store: the node whose value it is, and its point."""
    for block in blocks_of(items):
        made = {compute.result: compute for compute in block.body}
        for store in block.stores:
            compute = made[store.value]
            yield store, graph[compute.node], compute.step


def seen_outside(program: LoopProgram, loop: For) -> set[str]:
    """The places that are read outside of a loop, or returned."""
    inside = {id(block) for block in blocks_of(loop.body)}
    others = (block for block in blocks_of(program.body) if id(block) not in inside)
    conditions = (item.stop.done.place for item in walk(program.body) if isinstance(item, For) and item.stop)
    return {*program.outputs, *conditions, *(load.place for block in others for load in block.loads)}
