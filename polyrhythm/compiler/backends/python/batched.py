"""Iterations of a loop that do not depend on each other, many at once: the blocks of such a loop over a leading axis.

`for all t: y[t] = x[t] @ w` becomes `y[t:t + n] = x[t:t + n] @ w` for as many steps as fit the cache. A value that
follows the counter has an axis more, in front; what does not is computed once for all of them. Loops with operations
or reads that this file has no rule for go step by step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.ops import record
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.ops.record import attribute_terms
from polyrhythm.compiler.ir.terms import ONE, ZERO, Symbol, Term, product
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.loops.ir import (
    Block,
    Compute,
    For,
    Local,
    LoopProgram,
    Operand,
    Steps,
    Store,
    blocks_of,
    walk,
)

ELEMENTS = 2**17
"""About so many elements does a value of all iterations together have at most; half a megabyte of float32."""


class Refused(Exception):
    """The loop goes step by step."""


@dataclass(frozen=True)
class Batch:
    """The blocks of a loop for `count` iterations from its counter on; `size` is that of the largest value of one."""

    count: Symbol
    blocks: tuple[Block, ...]
    size: tuple[Term, ...]


def batched(program: LoopProgram, loop: For) -> Batch | None:
    """The iterations of a loop together, or None."""
    inside = [item for item in loop.body if isinstance(item, Block)]
    if not loop.parallel or loop.rows is not None or loop.stop is not None or len(inside) < len(loop.body):
        return None
    count = Symbol(f"{loop.counter.name}_count", "size", serial=serials.BATCH)
    together = _Together(program, loop.counter, count, inside)
    try:
        blocks = tuple(map(together.block, inside))
    except Refused:
        return None
    sizes = dict.fromkeys(product(c.type.shape[1:]) for b in blocks for c in b.body if c.result in together.follow)
    return Batch(together.count, blocks, tuple(sizes))


@dataclass
class _Together:
    """What is known while the blocks of one loop are looked at."""

    program: LoopProgram
    counter: Symbol
    count: Symbol
    inside: Sequence[Block]
    follow: set[str] = field(default_factory=set)
    """The values that have an axis of iterations in front."""
    variables: set[str] = field(default_factory=set)
    """The variables that hold such values."""
    body: list[Compute] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)

    def block(self, block: Block) -> Block:
        """A block with that axis."""
        self.body, self.types = [], {}
        for compute in block.body:
            self.compute(compute)
        return Block(block.name, tuple(self.body), tuple(map(self.store, block.stores)))

    def store(self, store: Store) -> Store:
        """Where the values of all iterations go."""
        place = self.program.places[store.place]
        if place.kind == "variable":
            if store.value not in self.follow or not self.is_own(store.place):
                raise Refused
            self.variables.add(store.place)
            return store
        index, found = self.entries(store.index)
        if found is None or any(n.symbols for n in place.type.shape):
            raise Refused
        if store.value not in self.follow and len(self.types[store.value].shape) < place.type.rank:
            raise Refused
        if found:
            raise Refused  # the value would have to be turned
        return replace(store, index=index)

    def is_own(self, place: str) -> bool:
        """Whether nothing outside the loop reads a place."""
        loads = (load for block in blocks_of(self.program.body) for load in block.loads)
        stops = (item.stop.done for item in walk(self.program.body) if isinstance(item, For) and item.stop is not None)
        everywhere = sum(load.place == place for load in (*loads, *stops))
        return everywhere == sum(load.place == place for block in self.inside for load in block.loads)

    def entries(self, index: Sequence[Term | Steps]) -> tuple[tuple[Any, ...], int | None]:
        """An index with the entry that follows the counter as a range, and its place among the ranges."""
        made: list[Term | Steps] = []
        found = None
        for entry in index:
            if isinstance(entry, Steps):
                if self.counter in entry.start.symbols | entry.length.symbols:
                    raise Refused
            elif self.counter in entry.symbols:
                rest = entry - self.counter.term
                if found is not None or self.counter in rest.symbols:
                    raise Refused
                found = sum(isinstance(one, Steps) for one in made)
                entry = Steps(entry, self.count.term)
            made.append(entry)
        return tuple(made), found

    def operand(self, operand: Operand) -> tuple[Operand, bool]:
        """An operand, and whether it follows the counter."""
        if isinstance(operand, Local):
            return operand, operand.name in self.follow
        if any(self.counter in n.symbols for n in operand.type.shape):
            raise Refused
        if operand.place in self.variables:
            return replace(operand, type=self.longer(operand.type)), True
        index, found = self.entries(operand.index)
        if found:
            raise Refused  # steps lie before iterations
        return (
            (operand, False) if found is None else (replace(operand, index=index, type=self.longer(operand.type)), True)
        )

    def longer(self, type: TensorType) -> TensorType:
        """A type with the axis of iterations."""
        return TensorType((self.count.term, *type.shape), type.dtype)

    def compute(self, compute: Compute) -> None:
        """An operation on values that may have the axis."""
        if compute.rows is not None or any(self.counter in n.symbols for n in compute.type.shape):
            raise Refused
        if compute.op == "index":
            self.position(compute)
            return
        terms = [term for value in compute.attributes.values() for term in attribute_terms(value)]
        if any(self.counter in term.symbols for term in terms) or not (compute.op in RULES or _plain(compute)):
            raise Refused
        given = [self.operand(operand) for operand in compute.operands]
        operands, follows = tuple(operand for operand, _ in given), [follow for _, follow in given]
        if any(follows):
            if compute.op in RULES:
                change = RULES[compute.op](compute.attributes, follows, self.count.term)
                operands = tuple(self.aligned(o, f, compute) for o, f in zip(operands, follows, strict=True))
                compute = replace(compute, attributes={**compute.attributes, **change})
            else:
                operands = tuple(self.aligned(o, f, compute) for o, f in zip(operands, follows, strict=True))
            compute = replace(compute, type=self.longer(compute.type))
            self.follow.add(compute.result)
        else:
            self.follow.discard(compute.result)
        self.add(replace(compute, operands=operands))

    def add(self, compute: Compute) -> None:
        """The next operation of the block."""
        self.body.append(compute)
        self.types[compute.result] = compute.type

    def aligned(self, operand: Operand, follows: bool, compute: Compute) -> Operand:
        """An operand that broadcasts, with axes of length one after that of the iterations."""
        type = self.types[operand.name] if isinstance(operand, Local) else operand.type
        missing = compute.type.rank - (type.rank - 1)
        if not follows or missing <= 0 or not (compute.op == "broadcast" or record(compute.op).elementwise):
            return operand
        shape = (self.count.term, *(ONE,) * missing, *type.shape[1:])
        name = f"{compute.result}_operand_{len(self.body)}"
        self.add(Compute(name, "reshape", (operand,), {"shape": shape}, TensorType(shape, type.dtype)))
        self.follow.add(name)
        return Local(name)

    def position(self, compute: Compute) -> None:
        """The value of an index expression at all iterations."""
        value = compute.attributes["value"]
        if not isinstance(value, Term):
            raise Refused
        if self.counter not in value.symbols:
            self.follow.discard(compute.result)
            self.add(compute)
            return
        if self.counter in (value - self.counter.term).symbols:
            raise Refused
        first, along = f"{compute.result}_first", f"{compute.result}_along"
        row = self.longer(compute.type)
        self.add(replace(compute, result=first))
        self.add(replace(compute, result=along, op="iota", attributes={"length": self.count.term}, type=row))
        self.add(replace(compute, op="add", operands=(Local(along), Local(first)), attributes={}, type=row))
        self.follow |= {along, compute.result}


def _plain(compute: Compute) -> bool:
    """Whether an operation is done element by element, or makes a value of nothing."""
    op = record(compute.op)
    known = op.elementwise or compute.op in ("constant", "iota", "copy")
    return known and not op.calls and not op.chooses


def _further(*names: str) -> Any:
    """Axes, or one, that count from behind the new axis."""

    def rule(attributes: Mapping[str, Any], follows: Sequence[bool], count: Term) -> dict[str, Any]:
        shifted = {}
        for name in names:
            value = attributes[name]
            shifted[name] = tuple(axis + 1 for axis in value) if isinstance(value, tuple) else value + 1
        return shifted

    return rule


def _einsum(attributes: Mapping[str, Any], follows: Sequence[bool], count: Term) -> dict[str, Any]:
    words, out = parse_spec(attributes["spec"])
    free = next(letter for letter in _letters() if letter not in "".join(words))
    given = ",".join(free * follow + word for word, follow in zip(words, follows, strict=True))
    return {"spec": f"{given}->{free}{out}"}


def _letters() -> Iterator[str]:
    yield from "zyxwvutsrqponmlkjihgfedcbaZYXWVUTSRQPONMLKJIHGFEDCBA"


def _concat(attributes: Mapping[str, Any], follows: Sequence[bool], count: Term) -> dict[str, Any]:
    if not all(follows):
        raise Refused
    return {"axis": attributes["axis"] + 1}


def _take(attributes: Mapping[str, Any], follows: Sequence[bool], count: Term) -> dict[str, Any]:
    if follows == [True, False]:
        return {"axis": attributes["axis"] + 1}
    if follows == [False, True] and attributes["axis"] == 0:
        return {}
    raise Refused


RULES: Mapping[str, Any] = {
    "einsum": _einsum,
    "reshape": lambda attributes, follows, count: {"shape": (count, *attributes["shape"])},
    "broadcast": lambda attributes, follows, count: {"shape": (count, *attributes["shape"])},
    "transpose": lambda attributes, follows, count: {"axes": (0, *(axis + 1 for axis in attributes["axes"]))},
    "slice": lambda attributes, follows, count: {
        "starts": (ZERO, *attributes["starts"]),
        "lengths": (count, *attributes["lengths"]),
        "steps": (1, *attributes["steps"]),
    },
    "reduce": _further("axes"),
    "argreduce": _further("axis"),
    "cumulative": _further("axis"),
    "argsort": _further("axis"),
    "concat": _concat,
    "take": _take,
}
"""How the attributes of an operation change when an axis comes in front of the operands that follow the counter."""
