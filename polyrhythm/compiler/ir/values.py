"""Building nodes: a graph that grows, and values in it that can be computed with.

A `Value` is what some point reads: a node at given steps. Operations on values of one iteration space make plain
nodes over that space. Elementwise operators broadcast; numbers become constants of the dtype they meet. A `Step` is one
application of an operation as its derivative sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from polyrhythm.compiler.ir.conditions import TRUE, Condition
from polyrhythm.compiler.ir.graph import Access, Definition, Node, NodeDim, operand_type
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.sets import simplified_term, with_facts
from polyrhythm.compiler.ir.terms import ZERO, Symbol, Term
from polyrhythm.compiler.ir.types import Array, Shape, TensorType
from polyrhythm.source import Source

Number = int | float


class Growing:
    """The nodes of a graph, to which more are added."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self.nodes = nodes
        self._count = 0

    @cached_property
    def _dims(self) -> set[str]:
        return {dim.symbol.name for node in self.nodes.values() for dim in node.dims}

    def fresh_dim(self, like: Symbol) -> Symbol:
        """Another dim that runs over the same steps, with a name of its own."""
        number = 2
        while f"{like.name}_{number}" in self._dims:
            number += 1
        self._dims.add(f"{like.name}_{number}")
        return Symbol(f"{like.name}_{number}", "dim", bound=like.bound)

    def fresh(self, hint: str) -> str:
        """A name that no node has."""
        name = hint
        while name in self.nodes:
            self._count += 1
            name = f"{hint}_{self._count}"
        return name

    def put(self, hint: str, dims: tuple[NodeDim, ...], kind: TensorType, *definitions: Definition, **how: Any) -> Node:
        """A new node of that name, or of one that begins so."""
        name = self.fresh(hint)
        self.nodes[name] = Node(name, dims, kind, definitions, **how)
        return self.nodes[name]


@dataclass(frozen=True)
class Space:
    """An iteration space in which values are computed: dims, where it matters, and the user's line."""

    graph: Growing
    dims: tuple[NodeDim, ...]
    domain: Condition
    at: Source | None
    prefix: str

    def read(self, access: Access) -> Value:
        """What an access reads, as a value."""
        return Value(self, access, operand_type(access, self.graph.nodes[access.source]))

    def current(self, name: str) -> Value:
        """A node of this space at the current point."""
        steps = tuple(Term.of(dim.symbol) for dim in self.graph.nodes[name].dims)
        return self.read(Access(name, steps))

    def apply(self, op: str, *operands: Value, **attributes: Any) -> Value:
        """One operation on values."""
        given = with_facts(self.domain)
        kind = TABLE[op].type_rule(tuple(value.type for value in operands), attributes, given)
        kind = TensorType(tuple(simplified_term(n, given) for n in kind.shape), kind.dtype)
        definition = Definition(TRUE, op, tuple(value.access for value in operands), attributes, self.at)
        return self.current(self.graph.put(f"{self.prefix}_{op}", self.dims, kind, definition, at=self.at).name)

    def constant(self, number: Number | bool, dtype: np.dtype, shape: Shape = ()) -> Value:
        """A constant, in a shape."""
        scalar = self.apply("constant", value=Array(np.array(number).astype(dtype)))
        return scalar if shape == () else self.apply("broadcast", scalar, shape=shape)


@dataclass(frozen=True)
class Value:
    """What is read at the current point of a space."""

    space: Space
    access: Access
    type: TensorType

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def dtype(self) -> np.dtype:
        return self.type.dtype

    def _other(self, other: Value | Number) -> Value:
        return other if isinstance(other, Value) else self.space.constant(other, self.dtype)

    def __add__(self, other: Value | Number) -> Value:
        return self.space.apply("add", self, self._other(other))

    def __sub__(self, other: Value | Number) -> Value:
        return self.space.apply("sub", self, self._other(other))

    def __rsub__(self, other: Number) -> Value:
        return self.space.apply("sub", self._other(other), self)

    def __mul__(self, other: Value | Number) -> Value:
        return self.space.apply("mul", self, self._other(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Value | Number) -> Value:
        return self.space.apply("div", self, self._other(other))

    def __rtruediv__(self, other: Number) -> Value:
        return self.space.apply("div", self._other(other), self)

    def __neg__(self) -> Value:
        return self.space.apply("neg", self)

    def apply(self, op: str, *others: Value, **attributes: Any) -> Value:
        """An operation with this value as its first operand."""
        return self.space.apply(op, self, *others, **attributes)

    def part(self, axis: int, start: Term, length: Term) -> Value:
        """Some positions along an axis."""
        rank = len(self.shape)
        starts = tuple(start if i == axis else ZERO for i in range(rank))
        lengths = tuple(length if i == axis else n for i, n in enumerate(self.shape))
        return self.apply("slice", starts=starts, lengths=lengths, steps=(1,) * rank)

    def lengthened(self, axis: int, before: Term, after: Term, value: Number | bool) -> Value:
        """With more positions at the ends of an axis."""
        ends = ((n if i == axis else ZERO for i in range(len(self.shape))) for n in (before, after))
        first, last = map(tuple, ends)
        return self.apply("pad", before=first, after=last, value=value)

    def apart(self, axis: int, start: Term, step: int, length: Term) -> Value:
        """With its positions along an axis so many steps apart, among zeros."""
        places = self.space.apply("iota", length=self.shape[axis])
        places = places.apply("mul", places.space.constant(step, places.dtype))
        places = places.apply("add", places.space.apply("index", value=start))
        shape = tuple(length if i == axis else n for i, n in enumerate(self.shape))
        return self.space.constant(0, self.dtype, shape).apply("scatter_add", places, self, axis=axis)

    def cast(self, dtype: np.dtype) -> Value:
        return self if self.dtype == dtype else self.apply("cast", dtype=dtype)

    def where(self, condition: Value, other: Value | Number = 0) -> Value:
        """This value where a condition holds, another elsewhere."""
        return self.space.apply("select", condition, self, self._other(other))

    def settled(self) -> Value:
        """The same value as a node of this space, at the current point."""
        node = self.space.graph.nodes[self.access.source]
        if node.dims == self.space.dims and self.access.steps == node.current:
            return self
        return self.apply("copy")

    def zeros(self) -> Value:
        return self.space.constant(0, self.dtype, self.shape)

    def summed_to(self, shape: Shape) -> Value:
        """Undo broadcasting: sum over the axes that `shape` does not have or has of length one."""
        extra = len(self.shape) - len(shape)
        one = Term(1)
        axes = [*range(extra)]
        axes += [extra + i for i, n in enumerate(shape) if n is one and self.shape[extra + i] is not one]
        result = self.apply("reduce", monoid="sum", axes=tuple(axes)) if axes else self
        return result if result.shape == shape else result.apply("reshape", shape=shape)


@dataclass(frozen=True)
class Step:
    """One application of an operation, as its derivative sees it: `op.vjp(step)` has one value, or None, per operand.

    `gradient` is the node of the gradient of the result, `wanted` says which operands need one, and `source` where the
    derivative of a node reads a value from: from the tensor, or where a checkpoint has it computed once more.
    """

    space: Space
    node: Node
    definition: Definition
    gradient: str
    wanted: Sequence[bool]
    source: Callable[[Node, Access], Access]

    @cached_property
    def g(self) -> Value:
        """The gradient of the result."""
        return self.space.current(self.gradient)

    @cached_property
    def y(self) -> Value:
        """The result."""
        return self._read(self.node.here)

    @cached_property
    def x(self) -> list[Value]:
        """The operands."""
        return [self._read(access) for access in self.definition.operands]

    def _read(self, access: Access) -> Value:
        return self.space.read(self.source(self.node, access))

    @property
    def attributes(self) -> Mapping[str, Any]:
        return self.definition.attributes

    def __getitem__(self, key: str) -> Any:
        return self.definition.attributes[key]
