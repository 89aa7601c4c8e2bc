"""The symbolic dependence graph: a system of recurrence equations over tensors.

A *node* is a tensor: its dims with their extents, the type of its value at one point, and a list of
*definitions*. A definition says on which part of the node's domain it holds, which operation computes the value
there, and which points of other nodes that reads. A merge is merely a node with several definitions. An *access*
gives, for each dim of the node it reads, a point or a range of steps; ranges become leading axes of the operand,
in the order of the dims.

A graph is immutable. Nodes are named, and refer to each other by name, so cycles are ordinary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import (
    TRUE,
    Condition,
    conjunction,
    disjunction,
    eq,
    ge,
    le,
    ne,
    negation,
    within,
)
from polyrhythm.compiler.ir.intervals import interval
from polyrhythm.compiler.ir.ops import Op, record
from polyrhythm.compiler.ir.ops.record import Attributes, attribute_terms, map_attributes
from polyrhythm.compiler.ir.terms import ZERO, Symbol, Term, nested
from polyrhythm.compiler.ir.types import Shape, TensorType
from polyrhythm.source import Source


@dataclass(frozen=True)
class NodeDim:
    """A dim of a node and how many steps the node has along it."""

    symbol: Symbol
    extent: Term

    def __str__(self) -> str:
        return f"{self.symbol} < {self.extent}"


@dataclass(frozen=True)
class Range:
    """The steps `start, start + step, ...`, `length` of them. `length` may be negative for empty ones only after
    `maximum(0, ...)` has been applied, so it never is."""

    start: Term
    length: Term
    step: int = 1

    def at(self, position: Term) -> Term:
        """The step at a position along the range."""
        return self.start + position * self.step

    def substitute(self, mapping: Mapping[Symbol, Term]) -> Range:
        return Range(self.start.substitute(mapping), self.length.substitute(mapping), self.step)

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        return self.start.symbols | self.length.symbols

    def __str__(self) -> str:
        return f"{self.start} +: {self.length}" + (f" by {self.step}" if self.step != 1 else "")


Step = Term | Range
"""What an access reads along one dim: a point, or a range of steps."""


@dataclass(frozen=True)
class Access:
    """A read of another node: one step entry per dim of that node."""

    source: str
    steps: tuple[Step, ...]

    def substitute(self, mapping: Mapping[Symbol, Term]) -> Access:
        if self.symbols.isdisjoint(mapping):
            return self
        return Access(self.source, tuple(step.substitute(mapping) for step in self.steps))

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        return frozenset().union(*(step.symbols for step in self.steps))

    @cached_property
    def dims(self) -> frozenset[Symbol]:
        """The dims along which what is read varies."""
        return frozenset(symbol for symbol in self.symbols if symbol.kind == "dim")

    @cached_property
    def ranges(self) -> tuple[Range, ...]:
        """The ranges, in the order of the axes they become."""
        return tuple(step for step in self.steps if isinstance(step, Range))

    def __str__(self) -> str:
        return f"{self.source}[{', '.join(map(str, self.steps))}]" if self.steps else self.source


@dataclass(frozen=True)
class Definition:
    """Where `domain` holds (inside the node's own domain), the value is `op` applied to what the operands read."""

    domain: Condition
    op: str
    operands: tuple[Access, ...]
    attributes: Attributes = field(default_factory=dict)
    at: Source | None = field(default=None, compare=False)

    @property
    def record(self) -> Op:
        """What is known of the operation."""
        return record(self.op)

    @property
    def effect(self) -> str | None:
        """The effect of the host function that is called, if it is one and has one."""
        return self.attributes["function"].effect if self.op == "host" else None

    def read_where(self, operand: int) -> Condition:
        """Where an operand is read: everywhere, but for `choose`, which reads one of two by its condition."""
        if not self.record.chooses:
            return TRUE
        condition: Condition = self.attributes["condition"]
        return negation(condition) if operand else condition

    @cached_property
    def terms(self) -> tuple[Term | Condition, ...]:
        """The index terms inside the attributes."""
        return tuple(t for value in self.attributes.values() for t in attribute_terms(value))

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        """Every symbol that the definition mentions, its domain included."""
        inside = [access.symbols for access in self.operands] + [term.symbols for term in self.terms]
        return self.domain.symbols.union(*inside)

    def substitute(self, mapping: Mapping[Symbol, Term]) -> Definition:
        """The definition in terms of other symbols."""
        if all(mapping.get(symbol, symbol.term) is symbol.term for symbol in self.symbols):
            return self
        attributes = map_attributes(self.attributes, lambda term: term.substitute(mapping))
        operands = tuple(access.substitute(mapping) for access in self.operands)
        return Definition(self.domain.substitute(mapping), self.op, operands, attributes, self.at)

    def reading(self, read: Callable[[Access], Access]) -> Definition:
        """The definition with other reads in the place of its own."""
        return replace(self, operands=tuple(map(read, self.operands)))


@dataclass(frozen=True)
class Node:
    """A tensor of the program.

    `domain` is the part of the rectangle of its extents on which it has values: all of it for inputs and for the
    recurrent tensors of a user; where it is demanded for plain expressions. On it the definitions' own domains
    partition. `label` is the name by which the user knows it, if there is one; `name` is the same unless another node
    has it. What is computed `again` for gradients stays apart from what it is a copy of.
    """

    name: str
    dims: tuple[NodeDim, ...]
    type: TensorType
    definitions: tuple[Definition, ...]
    recurrent: bool = False
    domain: Condition = TRUE
    at: Source | None = field(default=None, compare=False)
    label: str | None = field(default=None, compare=False)
    again: bool = field(default=False, compare=False)

    @cached_property
    def rectangle(self) -> Condition:
        """`0 <= t < extent` for every dim."""
        return conjunction(*(within(dim.symbol, dim.extent) for dim in self.dims))

    @cached_property
    def points(self) -> Condition:
        """Where the node has values: its rectangle and its domain."""
        return conjunction(self.rectangle, self.domain)

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        return tuple(dim.symbol for dim in self.dims)

    @cached_property
    def current(self) -> tuple[Term, ...]:
        """The steps of the current point."""
        return tuple(symbol.term for symbol in self.symbols)

    @cached_property
    def here(self) -> Access:
        """A read of the current point."""
        return Access(self.name, self.current)

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """Every read of the definitions."""
        return tuple(access for definition in self.definitions for access in definition.operands)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The nodes that are read, once for each read."""
        return tuple(access.source for access in self.accesses)

    @cached_property
    def is_input(self) -> bool:
        """Whether a call gives the values."""
        return any(definition.op == "input" for definition in self.definitions)

    @property
    def external(self) -> bool:
        """Whether the values come from outside: from a call or a host function."""
        return any(definition.record.external for definition in self.definitions)

    @property
    def only(self) -> Definition | None:
        """The one definition of a plain node; None for a recurrent tensor, and for several definitions."""
        return self.definitions[0] if len(self.definitions) == 1 and not self.recurrent else None

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def dtype(self) -> np.dtype:
        return self.type.dtype

    def reading(self, read: Callable[[Access], Access]) -> Node:
        """The node with other reads in the place of its own."""
        return replace(self, definitions=tuple(definition.reading(read) for definition in self.definitions))

    def over(self, dims: Mapping[Symbol, Symbol]) -> Node:
        """The node with other dims in the place of some."""
        mapping = {old: new.term for old, new in dims.items()}
        return replace(
            self,
            dims=tuple(NodeDim(dims.get(d.symbol, d.symbol), d.extent.substitute(mapping)) for d in self.dims),
            type=replace(self.type, shape=tuple(n.substitute(mapping) for n in self.shape)),
            definitions=tuple(definition.substitute(mapping) for definition in self.definitions),
            domain=self.domain.substitute(mapping),
        )

    def steps(self, access: Access) -> dict[Symbol, Step]:
        """What an access to this node reads along each dim."""
        return dict(zip(self.symbols, access.steps, strict=True))


@dataclass(frozen=True)
class HostFunction:
    """A Python function called by the program, and what it returns."""

    name: str
    call: Callable[..., Any] = field(compare=False)
    results: tuple[TensorType, ...] = ()
    effect: str | None = None
    single: bool = True

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Requirement:
    """A condition on the bounds that must hold at the call, and the read that needs it."""

    condition: Condition
    why: str
    at: Source | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Checkpoint:
    """A wish of the user: gradients compute a tensor again instead of keeping it.

    With `over` it is computed again row by row along that dim, from what enters each row: the rows are the steps
    of the dim cut into segments of `every`, or whole where that is None.
    """

    node: str
    over: Symbol | None = None
    every: int | None = None


@dataclass(frozen=True)
class IndexValue:
    """An index expression whose value a program computes with, and between what it lies."""

    value: Term
    least: Term
    most: Term
    node: Node
    definition: Definition


@dataclass(frozen=True)
class Graph:
    """A whole program.

    `lengths` gives the tensor that is the value of each ragged bound; `until` the stopping condition of a dim. If that
    has further dims, the dim ends at a step of its own for each index: its bound is `over` them, and the `max` of that
    is the longest, the bound of what lacks them. `effects` are the nodes kept for their effect alone; `parameters` the
    stored values of inputs; `declared` the symbol here of each symbol that the user holds, since two of theirs may
    share a name. `checkpoints` matter to gradients only, and are gone once those are worked out.
    """

    nodes: Mapping[str, Node]
    outputs: tuple[str, ...]
    lengths: Mapping[Symbol, Access] = field(default_factory=dict)
    until: Mapping[Symbol, str] = field(default_factory=dict)
    effects: tuple[str, ...] = ()
    parameters: Mapping[str, np.ndarray] = field(default_factory=dict, compare=False)
    requirements: tuple[Requirement, ...] = ()
    declared: Mapping[Symbol, Symbol] = field(default_factory=dict, compare=False)
    checkpoints: tuple[Checkpoint, ...] = field(default=(), compare=False)

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    @cached_property
    def reads(self) -> dict[str, tuple[str, ...]]:
        """The nodes that each node reads, once for each read."""
        return {node.name: node.sources for node in self}

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        """Every symbol of the program."""
        found = set(self.mentioned)
        for symbol in self.mentioned:
            found |= {symbol.bound} if symbol.bound else set()
        for symbol in tuple(found):
            found |= symbol.max.symbols if symbol.max else set()
        return frozenset(found)

    @cached_property
    def mentioned(self) -> frozenset[Symbol]:
        """The symbols whose value a run needs. The bound of a dim is not among them where every extent is another."""
        found = {symbol.bound for symbol in self.until if symbol.bound}
        for node in self:
            for dim in node.dims:
                found |= {dim.symbol} | dim.extent.symbols
            found = found.union(node.domain.symbols, *(length.symbols for length in node.shape))
            for definition in node.definitions:
                found |= definition.symbols
        for access in self.lengths.values():
            found |= access.symbols
        found = found.union(*(requirement.condition.symbols for requirement in self.requirements))
        for symbol in tuple(found):
            found |= symbol.max.symbols if symbol.max else set()
        return frozenset(found)

    @cached_property
    def stops(self) -> dict[Symbol, Symbol]:
        """The dim of each bound that a stopping condition decides: its own, and the longest where they differ."""
        own = {dim.bound: dim for dim in self.until if dim.bound is not None}
        return own | {longest(bound): dim for bound, dim in own.items()}

    @cached_property
    def index_values(self) -> tuple[IndexValue, ...]:
        """The values of index expressions and of the terms inside them, and between which terms of bounds they lie."""
        found = []
        for node in self:
            ranges = {dim.symbol: (ZERO, dim.extent - 1) for dim in node.dims}
            for definition in node.definitions:
                value = definition.attributes["value"] if definition.op == "index" else None
                for term in nested(value) if isinstance(value, Term) else ():
                    found.append(IndexValue(term, *interval(term, ranges), node, definition))
        return tuple(found)

    @cached_property
    def started(self) -> Condition:
        """A dim that ends at a step of its own for each index has a step for each, if it may have any."""
        return conjunction(*(_started(bound, longest(bound)) for bound in self.stops if bound.over))

    @cached_property
    def inputs(self) -> dict[str, Node]:
        """The nodes that are inputs or parameters, by the name the user gave them."""
        return {
            definition.attributes["name"]: node
            for node in self
            for definition in node.definitions
            if definition.op == "input"
        }


def longest(bound: Symbol) -> Symbol:
    """What limits a bound that a stopping condition decides: the longest over all indices, or the bound itself."""
    if not bound.over or bound.max is None:
        return bound
    (symbol,) = bound.max.symbols
    return symbol


def stacks_shapes(access: Access, source: Node) -> bool:
    """Whether a read stacks values of different shapes: along a range of steps on which the shape depends."""
    ranged = {symbol for symbol, step in source.steps(access).items() if isinstance(step, Range)}
    return any(ranged & length.symbols for length in source.shape)


def lengths_elsewhere(access: Access, source: Node, bounds: Iterable[Symbol]) -> dict[Symbol, Term]:
    """A stand-in for each ragged bound at the point an access reads, where that is another row than the reader's.

    It is not the bound that the reader has: nothing is known of it but its `max`, and what `same_rows` says.
    """
    steps = source.steps(access)
    moved = (s for s in bounds if any(steps.get(owner) is not Term.of(owner) for owner in s.over))
    there = {s: Symbol(f"{s.name}_there", s.kind, max=s.max, serial=serials.ELSEWHERE, min=s.min) for s in moved}
    return {s: Term.of(symbol) for s, symbol in there.items()}


def same_rows(reader: Node, steps: Mapping[Symbol, Term], elsewhere: Mapping[Symbol, Term]) -> Condition:
    """What is known of such stand-ins: where a read meets the reader's own row after all, they are its lengths."""
    known = []
    for bound, there in elsewhere.items():
        if set(bound.over) <= set(reader.symbols) & steps.keys():
            moved = (ne(steps[owner], Term.of(owner)) for owner in bound.over)
            known.append(disjunction(eq(there, Term.of(bound)), *moved))
    return conjunction(*known)


def _started(bound: Symbol, limit: Symbol) -> Condition:
    return disjunction(ge(Term.of(bound), 1), le(Term.of(limit), 0))


def operand_type(access: Access, source: Node) -> TensorType:
    """The type of what an access reads: its ranges as leading axes, then the shape of one step."""
    if not access.ranges and all(length.is_constant for length in source.shape):
        return source.type
    points = {s: step for s, step in source.steps(access).items() if isinstance(step, Term)}
    leading = tuple(step.length for step in access.ranges)
    return TensorType(leading + tuple(n.substitute(points) for n in source.shape), source.dtype)


def copy_of(
    access: Access, source: Node, shape: Shape, domain: Condition = TRUE, at: Source | None = None
) -> Definition:
    """The definition that repeats what an access reads, in a shape."""
    if operand_type(access, source).shape == shape:
        return Definition(domain, "copy", (access,), {}, at)
    return Definition(domain, "broadcast", (access,), {"shape": shape}, at)
