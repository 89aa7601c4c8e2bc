"""Rows of a loop may run with the bound of the longest row at less than that: proved anew, from the graph.

- what counts of a row does not depend on the longest row (`ragged/independence.py`), of which lengths are an input;
- the loop goes over all rows, one for each lane, and no loop inside ends early;
- what is stored for others is the value of one node at the lane's own row; beyond the end of a row it is zero if it is
  returned, and if anybody looks at it there nobody takes it for anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from polyrhythm.compiler.ir.graph import Graph, Range
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.terms import ZERO, Symbol, Term
from polyrhythm.compiler.legality.failure import IllegalProgramError
from polyrhythm.compiler.loops.ir import Compute, For, Load, LoopProgram, RowSum, Steps, blocks_of, walk
from polyrhythm.compiler.ragged.independence import Independence

Proofs = Callable[[Symbol, str], tuple[Independence, bool]]
"""The proof for a longest row and the input that has its lengths, and whether it holds."""


def check_rows(graph: Graph, program: LoopProgram) -> None:
    """Prove that rows may run shorter than the longest; raise an IllegalProgramError otherwise."""

    @cache
    def proofs(bound: Symbol, lengths: str) -> tuple[Independence, bool]:
        proof = Independence(graph, bound, lengths)
        return proof, proof.holds()

    for block in blocks_of(program.body):
        for compute in block.body:
            if compute.rows is not None:
                _check_sum(graph, program, compute, compute.rows, proofs)
    for loop in walk(program.body):
        if isinstance(loop, For) and loop.rows is not None:
            _check(graph, program, loop, proofs)


def _check(graph: Graph, program: LoopProgram, loop: For, proofs: Proofs) -> None:
    rows = loop.rows
    assert rows is not None
    given = next((name for name, place in program.inputs.items() if place == rows.lengths.place), None)
    if given is None or loop.lanes is None or loop.stop is not None or rows.lengths.index != (Term.of(loop.counter),):
        raise _wrong(loop, "its lengths are not those of the lanes")
    proof, holds = proofs(rows.bound, graph.inputs[given].name)
    if loop.first is not ZERO or loop.end is not proof.rows or not holds:
        raise _wrong(loop, "what counts of a row may depend on the longest")
    if any(isinstance(item, For) and item.stop is not None for item in walk(loop.body)):
        raise _wrong(loop, "a loop inside may end early")
    own = {id(block) for block in blocks_of(loop.body)}
    made = ((store, compute) for b in blocks_of(program.body) for store in b.stores for compute in b.body)
    kept = {(store.place, compute.node) for store, compute in made if compute.result == store.value}
    elsewhere = {load.place for block in blocks_of(program.body) if id(block) not in own for load in block.loads}
    for block in blocks_of(loop.body):
        values = {compute.result: compute for compute in block.body}
        for store in block.stores:
            node, step = graph[values[store.value].node], values[store.value].step
            rows_dim = proof.owner(node)
            if rows_dim is None or dict(zip(node.symbols, step, strict=True))[rows_dim] is not Term.of(loop.counter):
                raise _wrong(loop, f"{node.name} is not stored at the lane's own row")
            if not proof.varies(node):
                continue
            seen = store.place in elsewhere | {*program.outputs}
            if seen and any(name != node.name for place, name in kept if place == store.place):
                raise _wrong(loop, f"{store.place} holds more than {node.name}")
            if store.place in program.outputs and not proof.is_zero_beyond(node):
                raise _wrong(loop, f"{node.name} is returned beyond the ends of rows")
            if seen and proof.relied.get(node.name, set()) - {0.0}:
                raise _wrong(loop, f"{node.name} is taken for something else than zero beyond the ends of rows")


def _check_sum(graph: Graph, program: LoopProgram, compute: Compute, rows: RowSum, proofs: Proofs) -> None:
    """A contraction that leaves out what lies beyond the ends of rows: of each such product a factor is zero."""
    given = next((name for name, place in program.inputs.items() if place == rows.lengths.place), None)
    proof, holds = proofs(rows.bound, graph.inputs[given].name) if given is not None else (None, False)
    words, output = parse_spec(compute.attributes["spec"])
    whole = proof is not None and rows.lengths.index == (Steps(ZERO, proof.rows),)
    if proof is None or not whole or rows.label in output or not all(rows.label in word for word in words):
        raise _wrong_sum(compute, "it does not go over all rows")
    for word, operand in zip(words, compute.operands, strict=True):
        assert isinstance(operand, Load)
        sizes = dict(zip(word, operand.type.shape, strict=True))
        if sizes[rows.label] is not proof.rows or any(
            rows.bound in n.symbols and letter in output for letter, n in sizes.items()
        ):
            raise _wrong_sum(compute, f"{operand.place} is not contracted over its rows and their steps")
    for definition in graph[compute.node].definitions:
        for word, access in zip(words, definition.operands, strict=False):
            source = graph[access.source]
            ranged = [dim for dim, step in source.steps(access).items() if isinstance(step, Range)]
            own = proof.owner(source)
            if own is None or own not in ranged or word.index(rows.label) != ranged.index(own):
                raise _wrong_sum(compute, f"{source.name} does not go over the rows")
    if not holds:
        raise _wrong_sum(compute, "something beyond the ends of rows may not be zero")


def _wrong_sum(compute: Compute, what: str) -> IllegalProgramError:
    return IllegalProgramError("lanes", f"{compute.result} cannot be summed row by row: {what}", at=compute.at)


def _wrong(loop: For, what: str) -> IllegalProgramError:
    lines = (compute.at for block in blocks_of(loop.body) for compute in block.body if compute.at is not None)
    return IllegalProgramError(
        "lanes", f"the rows of {loop.counter} cannot run in chunks of similar length: {what}", at=next(lines, None)
    )
