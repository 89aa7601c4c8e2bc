"""Single elements: what a value has at one position along an axis, computed from elements of what it is made of.

The element at position p of `exp(x[0 : t + 1] - m)` is `exp(x[p] - m)`. It is found through operations that compute
each position alone (elementwise ones, broadcasts, casts), that move axes about, that reduce or contract other axes,
down to ranges of steps, of which it is one step, or to values that are stored, of which it is a slice. Exact: the same
operations are applied to the same elements. Nothing is added to a graph until `emitted` is asked to, so that a pass may
look at an element first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from polyrhythm.compiler.ir.conditions import TRUE
from polyrhythm.compiler.ir.graph import Access, Definition, Node, Range
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.ops.record import attribute_terms, map_attributes
from polyrhythm.compiler.ir.terms import ONE, ZERO, Symbol, Term
from polyrhythm.compiler.ir.types import Shape, TensorType
from polyrhythm.compiler.passes.rewriting import Nodes

MOST = 64
"""The most operations that an element may take; more are not worth computing again."""

Taken = Mapping[int, Term]
"""The position of the element along each axis that is taken; the other axes stay."""


@dataclass(frozen=True, eq=False)
class Made:
    """An operation on elements; one object for each element, however often it is read."""

    op: str
    operands: tuple[Element, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


Element = Access | Made


@dataclass
class Elements:
    """Finds elements of what the nodes of a graph hold; reads that mention `unwanted` symbols are looked through.

    So are those that mention all of `pair`: values of pairs of steps, which would be stored for each. Steps that are in
    `rows` are one step of a pair, though they follow several dims.
    """

    nodes: Nodes
    unwanted: frozenset[Symbol] = frozenset()
    pair: frozenset[Symbol] = frozenset()
    rows: frozenset[Term] = frozenset()
    _known: dict[tuple[Access, tuple[tuple[int, Term], ...]], Element | None] = field(default_factory=dict)

    def of(self, access: Access, taken: Taken) -> Element | None:
        """The element of what an access reads; None where it cannot be had alone."""
        key = (access, tuple(sorted(taken.items())))
        if key not in self._known:
            if len(self._known) > MOST:
                return None
            self._known[key] = None  # met again on the way to itself it could not be had
            self._known[key] = self._of(access, taken)
        return self._known[key]

    def is_paired(self, access: Access) -> bool:
        """Whether a read mentions both steps of the pair."""
        if not self.pair or not self.pair <= access.symbols:
            return False
        return {s for s in access.steps if s.symbols & self.pair} - self.rows != set()

    def _of(self, access: Access, taken: Taken) -> Element | None:
        number, consumed, steps = 0, 0, []
        for step in access.steps:
            if isinstance(step, Range):
                consumed += number in taken
                steps.append(step.at(taken[number]) if number in taken else step)
                number += 1
            else:
                steps.append(step)
        access = Access(access.source, tuple(steps))
        taken = {axis - consumed: place for axis, place in taken.items() if axis >= number}
        if not taken and access.symbols.isdisjoint(self.unwanted) and not self.is_paired(access):
            return access
        inner = None if access.ranges else self.nodes.seen_through(access)
        if inner is None:
            return access if not taken else self._cut(access, taken)
        return self._inside(inner, self.nodes.type_of(access).shape, taken)

    def _cut(self, access: Access, taken: Taken) -> Element:
        """The element of a value that is not looked into: a slice of it."""
        shape = self.nodes.type_of(access).shape
        starts = tuple(taken.get(axis, ZERO) for axis in range(len(shape)))
        lengths = tuple(ONE if axis in taken else n for axis, n in enumerate(shape))
        part = Made("slice", (access,), {"starts": starts, "lengths": lengths, "steps": (1,) * len(shape)})
        return Made("reshape", (part,), {"shape": _left(shape, taken)})

    def _inside(self, inner: Definition, shape: Shape, taken: Taken) -> Element | None:
        """The element of what a definition makes, of that shape."""
        attributes = dict(inner.attributes)
        if inner.op == "slice":
            return self._sliced(inner, shape, taken)
        if not taken:
            return _made(inner.op, [self.of(operand, {}) for operand in inner.operands], attributes)
        if inner.record.elementwise or inner.op == "broadcast":
            operands = [self._aligned(operand, len(shape), taken) for operand in inner.operands]
            if inner.op == "broadcast":
                attributes["shape"] = _left(shape, taken)
            return _made(inner.op, operands, attributes)
        if inner.op == "iota":
            return Made("index", (), {"value": taken[0]})
        if inner.op == "reshape":
            axes = _unit_axes(self.nodes.type_of(inner.operands[0]).shape, shape)
            if axes is None:
                return None
            own = {axes[axis]: place for axis, place in taken.items() if axes[axis] is not None}
            found = self.of(inner.operands[0], {axis: place for axis, place in own.items() if axis is not None})
            return _made("reshape", [found], {"shape": _left(shape, taken)})
        if inner.op == "transpose":
            order = inner.attributes["axes"]
            gone = {order[axis] for axis in taken}
            kept = [axis for axis in order if axis not in gone]
            attributes["axes"] = tuple(axis - sum(g < axis for g in gone) for axis in kept)
            found = self.of(inner.operands[0], {order[axis]: place for axis, place in taken.items()})
            return _made("transpose", [found], attributes)
        if inner.op == "reduce":
            rank = self.nodes.type_of(inner.operands[0]).rank
            left = [axis for axis in range(rank) if axis not in inner.attributes["axes"]]
            gone = {left[axis] for axis in taken}
            attributes["axes"] = tuple(axis - sum(g < axis for g in gone) for axis in inner.attributes["axes"])
            found = self.of(inner.operands[0], {left[axis]: place for axis, place in taken.items()})
            return _made("reduce", [found], attributes)
        if inner.op == "einsum":
            words, output = parse_spec(inner.attributes["spec"])
            places = {output[axis]: place for axis, place in taken.items()}
            parts: list[Element | None] = []
            for word, operand in zip(words, inner.operands, strict=True):
                parts.append(self.of(operand, {a: places[letter] for a, letter in enumerate(word) if letter in places}))
            spec = ",".join("".join(c for c in word if c not in places) for word in words)
            attributes["spec"] = f"{spec}->{''.join(c for c in output if c not in places)}"
            return _made("einsum", parts, attributes)
        return None

    def _sliced(self, inner: Definition, shape: Shape, taken: Taken) -> Element | None:
        """The element of a slice; along axes of which it is one position already, that is an element as well."""
        starts, steps = inner.attributes["starts"], inner.attributes["steps"]
        places = {a: starts[a] + taken[a] * steps[a] if a in taken else starts[a] for a in range(len(shape))}
        single = {a: places[a] for a, n in enumerate(shape) if a in taken or n is ONE}
        found = self.of(inner.operands[0], single)
        kept = [axis for axis in range(len(shape)) if axis not in single]
        whole = self.nodes.type_of(inner.operands[0]).shape
        if any(starts[a] is not ZERO or shape[a] is not whole[a] or steps[a] != 1 for a in kept):
            attributes = {
                name: tuple(inner.attributes[name][a] for a in kept) for name in ("starts", "lengths", "steps")
            }
            found = _made("slice", [found], attributes)
        return (
            found if len(kept) == len(shape) - len(taken) else _made("reshape", [found], {"shape": _left(shape, taken)})
        )

    def _aligned(self, operand: Access, rank: int, taken: Taken) -> Element | None:
        """The element of an operand that is broadcast to a rank."""
        shape = self.nodes.type_of(operand).shape
        extra = rank - len(shape)
        own = {axis - extra: place for axis, place in taken.items() if axis >= extra}
        single = {axis for axis in own if shape[axis] is ONE}
        found = self.of(operand, {axis: place for axis, place in own.items() if axis not in single})
        if not single or found is None:
            return found
        return Made("reshape", (found,), {"shape": _left(shape, own)})


def _made(op: str, operands: list[Element | None], attributes: Mapping[str, Any]) -> Element | None:
    found = tuple(operand for operand in operands if operand is not None)
    return Made(op, found, attributes) if len(found) == len(operands) else None


def _left(shape: Shape, taken: Taken) -> Shape:
    return tuple(length for axis, length in enumerate(shape) if axis not in taken)


def _unit_axes(before: Shape, after: Shape) -> dict[int, int | None] | None:
    """For each axis after a reshape that only adds or drops axes of length one, the axis before."""
    old = [axis for axis, n in enumerate(before) if n is not ONE]
    new = [axis for axis, n in enumerate(after) if n is not ONE]
    # One length may be written in two ways: it is the same, since there are as many elements before and after.
    if len(old) != len(new) or sum(before[a] is not after[b] for a, b in zip(old, new, strict=True)) > 1:
        return None
    found: dict[int, int | None] = dict.fromkeys(range(len(after)))
    found.update(zip(new, old, strict=True))
    return found


def walk(element: Element) -> Iterator[Element]:
    """An element and all it is made of, each once, operands first."""
    seen: set[int] = set()

    def visit(part: Element) -> Iterator[Element]:
        if id(part) not in seen:
            seen.add(id(part))
            if isinstance(part, Made):
                for operand in part.operands:
                    yield from visit(operand)
            yield part

    return visit(element)


def symbols_of(element: Element) -> frozenset[Symbol]:
    """Every symbol that an element mentions."""
    found: set[Symbol] = set()
    for part in walk(element):
        if isinstance(part, Access):
            found |= part.symbols
        else:
            for value in part.attributes.values():
                found.update(*(term.symbols for term in attribute_terms(value)))
    return frozenset(found)


def mapped(
    element: Element, read: Callable[[Access], Access], term: Callable[[Term], Term] = lambda term: term
) -> Element:
    """An element with what it reads, and the terms of its operations, replaced."""
    done: dict[int, Element] = {}
    for part in walk(element):
        if isinstance(part, Access):
            done[id(part)] = read(part)
        else:
            changed = map_attributes(part.attributes, term)
            done[id(part)] = Made(part.op, tuple(done[id(operand)] for operand in part.operands), changed)
    return done[id(element)]


def renamed(element: Element, mapping: Mapping[Symbol, Term]) -> Element:
    """An element in terms of other symbols."""
    return mapped(element, lambda access: access.substitute(mapping), lambda term: term.substitute(mapping))


def type_of(nodes: Nodes, element: Element) -> TensorType:
    """The type of an element."""
    if isinstance(element, Access):
        return nodes.type_of(element)
    types = tuple(type_of(nodes, operand) for operand in element.operands)
    return TABLE[element.op].type_rule(types, element.attributes, TRUE)


def emitted(nodes: Nodes, like: Node, definition: Definition, hint: str, element: Element) -> Access:
    """An element as nodes over the dims of another, where one of its definitions holds; read at the current point."""
    done: dict[int, Access] = {}
    for part in walk(element):
        if isinstance(part, Access):
            done[id(part)] = part
        else:
            operands = [done[id(operand)] for operand in part.operands]
            done[id(part)] = nodes.add(hint, like, definition, part.op, operands, **part.attributes)
    return done[id(element)]
