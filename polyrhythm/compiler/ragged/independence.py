"""Proves that what lies beyond the ends of rows reaches nothing that counts, however long the longest row is.

In a rectangular graph a row of length n is computed at the longest row's S steps. An element *counts* if it would exist
with n in place of S: `s < n` of `s < S`, a position before n of an axis of length S. Claimed of every node: its
elements that count are the same for every S with n + MARGIN <= S. Then some rows can run with a smaller S than others
(`loops/rows.py`), and zeros may lie where nobody computes.

The proof is by induction over the order of evaluation: at an element that counts, the same definition holds for every
such S, and each element that it reads counts too, or is a constant there, or is the branch of a select that is not
taken; what is summed or otherwise reduced beyond the end of its row is the identity. Conditions that a graph computes
from lengths, `iota(S) < lengths[b]`, are read back as conditions on indices. An operation that nothing is known of
along such an axis ends the proof, and the program runs at the longest row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyrhythm.compiler.ir import dtypes, serials
from polyrhythm.compiler.ir.conditions import (
    FALSE,
    TRUE,
    Compare,
    Condition,
    Junction,
    conjunction,
    disjunction,
    eq,
    ge,
    le,
    lt,
    ne,
    negation,
)
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, Range, operand_type
from polyrhythm.compiler.ir.sets import is_possible, proves
from polyrhythm.compiler.ir.terms import ZERO, Symbol, Term, maximum, minimum
from polyrhythm.compiler.ir.types import TensorType

MARGIN = 2
"""How many steps the longest row has more than one that is looked at: what is said of the last steps of all, such as
`s == S - 1`, then is not said of a step that counts."""

DEPTH = 40
"""How many operations a value is followed back through."""

ROUNDS = 2
"""How often it is followed through the same node: unrolling a recurrence further says nothing of all its steps."""


@dataclass(frozen=True)
class Element:
    """One element of a node: the step of each dim, the position along each axis."""

    node: Node
    steps: tuple[Term, ...]
    positions: tuple[Term, ...]

    @property
    def mapping(self) -> dict[Symbol, Term]:
        return dict(zip(self.node.symbols, self.steps, strict=True))


@dataclass
class Independence:
    """The proof for one longest row, `bound`, whose lengths are an input over one dim.

    `relied` has the values that nodes are known to have beyond the ends of rows: None is a condition.
    """

    graph: Graph
    bound: Symbol
    lengths: str
    relied: dict[str, set[float | None]] = field(default_factory=dict)
    narrow: set[str] = field(default_factory=set)  # nodes of which fewer elements count
    frame: Term | None = None  # the row of the element that is looked at
    known: dict[tuple[Any, ...], np.generic | None] = field(default_factory=dict)  # values that were asked for

    def __post_init__(self) -> None:
        self.rows = self.graph[self.lengths].dims[0].extent

    def holds(self) -> bool:
        """Whether no element that counts depends on the longest row."""
        wrong = [node for node in self.graph if not self._node(node)]
        while wrong:
            # Of what is computed on a part of its steps, `s <= S - 2`, fewer elements may count: those of `s <= n - 2`.
            if not all(self.bound in node.domain.symbols and node.name not in self.narrow for node in wrong):
                return False
            self.narrow |= {node.name for node in wrong}
            wrong = [node for node in self.graph if not self._node(node)]
        return True

    def owner(self, node: Node) -> Symbol | None:
        """The dim of a node that goes over the rows."""
        own = [dim.symbol for dim in node.dims if dim.extent is self.rows]
        return own[0] if len(own) == 1 else None

    def varies(self, node: Node) -> bool:
        """Whether a node has elements that count for some lengths only."""
        parts = (*(d.extent for d in node.dims), *node.shape)
        return any(self.bound in n.symbols for n in parts) or self.bound in node.domain.symbols

    def is_zero_beyond(self, node: Node) -> bool:
        """Whether the elements of a node that do not count are zero."""
        here = self._here(node)
        beyond = conjunction(self._exists(here), negation(self._counts(here)))
        value = self._constant(here, beyond)
        return value is _NOWHERE or (isinstance(value, np.generic) and value == 0)

    def _here(self, node: Node) -> Element:
        """Any element of a node."""
        own = self.owner(node)
        self.frame = Term.of(own) if own is not None else None
        return Element(node, node.current, _positions(node.type))

    def length(self, row: Term | None) -> Symbol:
        """The length of a row; without one, of any."""
        return Symbol(f"length of {row}", "bound", serial=serials.ROW, min=self.bound.min)

    # What counts

    def _counts(self, element: Element) -> Condition:
        """When an element counts."""
        return self._exists(element, {self.bound: self._limit(element)})

    def _inside(self, element: Element) -> Condition:
        """When the steps of an element are among those of its row."""
        return element.node.rectangle.substitute({self.bound: self._limit(element)}).substitute(element.mapping)

    def _limit(self, element: Element) -> Term:
        """The length of the row of an element; of what goes over no rows, of that which looks at it."""
        own = self.owner(element.node)
        return Term.of(self.length(element.mapping[own] if own is not None else self.frame))

    def _exists(self, element: Element, mapping: Mapping[Symbol, Term] | None = None) -> Condition:
        """When an element is one of its node."""
        node, given = element.node, mapping or {}
        domain = node.domain.substitute(given) if node.name in self.narrow else node.domain
        known = conjunction(node.rectangle.substitute(given), domain).substitute(element.mapping)
        inside = []
        for position, n in zip(element.positions, node.shape, strict=True):
            size = n.substitute(given).substitute(element.mapping)
            inside += [ge(position, 0), lt(position, size)]
        return conjunction(known, *inside)

    def _known(self, symbols: frozenset[Symbol]) -> Condition:
        """What is known of lengths."""
        bound = Term.of(self.bound)
        lengths = (le(Term.of(s) + MARGIN, bound) for s in symbols if s.serial == serials.ROW)
        return conjunction(ge(bound, self.bound.min + MARGIN), *lengths)

    def _proves(self, where: Condition, claim: Condition) -> bool:
        return proves(conjunction(where, self._known(where.symbols | claim.symbols)), claim)

    def _never(self, where: Condition) -> bool:
        known = conjunction(where, self._known(where.symbols))
        return not is_possible(known)

    # The proof

    def _node(self, node: Node) -> bool:
        if node.is_input:
            return True
        here = self._here(node)
        counting = self._counts(here)
        if not self._proves(counting, self._exists(here)):
            return False
        if node.name not in self.narrow and not self._is_settled(node.domain, self._inside(here)):
            return False
        try:
            for definition in node.definitions:
                where = conjunction(counting, definition.domain)
                if self._never(where):
                    continue
                if not self._is_settled(definition.domain, counting) or not self._definition(here, definition, where):
                    return False
        except _UnknownError:
            return False
        return True

    def _is_settled(self, condition: Condition, where: Condition) -> bool:
        """Whether a condition does not depend on the longest row."""
        if self.bound not in condition.symbols:
            return True
        if isinstance(condition, Compare):
            return self._proves(where, condition) or self._proves(where, negation(condition))
        assert isinstance(condition, Junction)
        return all(self._is_settled(part, where) for part in condition.parts)

    def _definition(self, here: Element, definition: Definition, where: Condition) -> bool:
        if not self._attributes(definition, where):
            return False
        for access in definition.operands:
            starts = (step.start if isinstance(step, Range) else step for step in access.steps)
            if any(self.bound in start.symbols for start in starts):
                return False
        read, reduced = self._operands(here, definition, where)
        if reduced is not TRUE:
            return self._reduces(definition, read, conjunction(where, reduced))
        uses = (self._taken(here, definition, number, where) for number in range(len(read)))
        return all(self._same(element, use) for element, use in zip(read, uses, strict=True))

    def _attributes(self, definition: Definition, where: Condition) -> bool:
        """Whether the attributes mention the longest row as a length of an axis only."""
        shapes = {"shape", "length"} if definition.op != "slice" else {"lengths"}
        if definition.op == "random_bits":
            shapes = (
                {"shape"} if not any(self.bound in n.symbols for n in definition.attributes["shape"][1:]) else set()
            )
        for key, value in definition.attributes.items():
            terms = value if isinstance(value, tuple) else (value,)
            for term in terms:
                if not isinstance(term, (Term, Condition)) or self.bound not in term.symbols or key in shapes:
                    continue
                if not isinstance(term, Condition) or definition.op == "index" or not self._is_settled(term, where):
                    return False
        return True

    def _taken(self, here: Element, definition: Definition, number: int, where: Condition) -> Condition:
        """Where an operand is used: of a select, where it is chosen."""
        if definition.record.chooses:
            return conjunction(where, definition.read_where(number).substitute(here.mapping))
        if definition.op == "select" and number:
            condition = self._symbolic(self._operands(here, definition, where)[0][0], 0)
            if isinstance(condition, Condition):
                return conjunction(where, condition if number == 1 else negation(condition))
        return where

    def _same(self, element: Element, where: Condition) -> bool:
        """Whether an element that is read counts, or is the same for other reasons."""
        counting = self._counts(element)
        if self._proves(where, counting):
            return True
        if element.node.is_input:
            return self._proves(where, self._exists(element))
        return self._constant(element, conjunction(where, negation(counting))) is not None

    def _reduces(self, definition: Definition, read: Sequence[Element], where: Condition) -> bool:
        """Whether what is combined beyond the ends of rows is the identity."""
        monoid = definition.attributes.get("monoid", "sum")
        for element in read:
            beyond = conjunction(where, negation(self._counts(element)))
            if self._never(beyond):
                continue
            values = [self._constant(other, beyond) for other in read]
            identity = dtypes.identity(monoid, element.node.dtype)
            if not any(v is _NOWHERE or (v is not None and v == identity) for v in values):
                return False
        return True

    def _operands(self, here: Element, definition: Definition, where: Condition) -> tuple[list[Element], Condition]:
        """The elements that a definition reads for one of its own, and between what the combined positions lie.

        The condition is about axes that are combined by a monoid; it is TRUE where there are none.
        """
        sources = [self.graph[access.source] for access in definition.operands]
        accesses = [access.substitute(here.mapping) for access in definition.operands]
        types = tuple(operand_type(a, self.graph[a.source]) for a in definition.operands)
        lengths = [tuple(n.substitute(here.mapping) for n in kind.shape) for kind in types]
        if definition.record.external or definition.record.calls:
            if any(self.bound in n.symbols for shape in lengths for n in shape):
                raise _UnknownError
            count = [tuple(_any(k, a) for a in range(len(shape))) for k, shape in enumerate(lengths)]
            return [_at(a, s, p) for a, s, p in zip(accesses, sources, count, strict=True)], TRUE
        signature = definition.record.signature(types, definition.attributes)
        at = {label: here.positions[k] for k, label in enumerate(signature.result) if label is not None}
        limits: list[Condition] = []
        found: list[Element] = []
        for number, labels in enumerate(signature.operands):
            positions = []
            for axis, label in enumerate(labels):
                n = lengths[number][axis]
                role = signature.roles[label] if label is not None else None
                if role is None:
                    positions.append(ZERO)
                elif definition.op == "slice":
                    start = Term.of(definition.attributes["starts"][axis]).substitute(here.mapping)
                    positions.append(start + here.positions[axis] * definition.attributes["steps"][axis])
                elif definition.op == "take" and number == 0 and role.kind == "opaque":
                    positions.append(self._picked(here, definition, accesses, sources, signature.operands[1], at))
                elif label in at and role.kind == "parallel":
                    positions.append(at[label])
                else:
                    positions.append(self._combined(role.kind, label, n, at, limits))
            found.append(_at(accesses[number], sources[number], tuple(positions)))
        return found, conjunction(*limits)

    def _combined(self, kind: str, label: int | None, n: Term, at: Mapping[int, Term], limits: list[Condition]) -> Term:
        """A position along an axis that an operation combines, any of those that it reads."""
        varies = self.bound in n.symbols
        assert label is not None
        if kind == "opaque" and varies:
            raise _UnknownError
        position = _any(label, 100)
        if kind == "scan" and label in at:
            limits += [ge(position, 0), le(position, at[label])]
        else:
            limits += [ge(position, 0), lt(position, n)]
        return position

    def _picked(
        self,
        here: Element,
        definition: Definition,
        accesses: Sequence[Access],
        sources: Sequence[Node],
        labels: Sequence[int | None],
        at: Mapping[int, Term],
    ) -> Term:
        """The position that `take` picks, if it follows from indices and lengths."""
        chosen = tuple(at.get(label, ZERO) if label is not None else ZERO for label in labels)
        found = self._symbolic(_at(accesses[1], sources[1], chosen), 0)
        axis = definition.attributes["axis"]
        n = operand_type(definition.operands[0], sources[0]).shape[axis]
        if not isinstance(found, Term):
            if self.bound in n.symbols:
                raise _UnknownError
            return _any(axis, 200)
        return found

    # Values that follow from indices

    def _constant(self, element: Element, where: Condition, path: tuple[str, ...] = ()) -> np.generic | None:
        """The one value that an element has wherever a condition holds; None if it is not known to have one.

        What is not known at the end of a long path is not asked for again on a shorter one.
        """
        key = element.node.name, element.steps, element.positions, where
        if key not in self.known:
            self.known[key] = self._followed(element, where, path)
        return self.known[key]

    def _followed(self, element: Element, where: Condition, path: tuple[str, ...]) -> np.generic | None:
        """The same by what the element is computed from."""
        if self._never(where):
            return _NOWHERE
        node = element.node
        if node.is_input or len(path) > DEPTH or path.count(node.name) >= ROUNDS or node.external:
            return None
        found: np.generic = _NOWHERE
        path = (*path, node.name)
        for definition in node.definitions:
            here = conjunction(where, definition.domain.substitute(element.mapping))
            if self._never(here):
                continue
            value = self._value(element, definition, here, path)
            if value is None or (found is not _NOWHERE and value is not _NOWHERE and not _alike(found, value)):
                return None
            found = value if found is _NOWHERE else found
        if found is not _NOWHERE:
            self.relied.setdefault(node.name, set()).add(float(np.real(found)))
        return found

    def _value(
        self, element: Element, definition: Definition, where: Condition, path: tuple[str, ...]
    ) -> np.generic | None:
        """The same where one definition holds."""
        op = definition.op
        if op == "constant":
            array = definition.attributes["value"].value
            return array.flat[0] if array.size and (array == array.flat[0]).all() else None
        if not definition.operands:
            return None
        try:
            read, reduced = self._operands(element, definition, where)
        except _UnknownError:
            return None
        if op == "select" or definition.record.chooses:
            branches = read if definition.record.chooses else read[1:]
            first = 0 if definition.record.chooses else 1
            values = []
            for number, branch in enumerate(branches):
                taken = self._taken(element, definition, number + first, where)
                values.append(self._constant(branch, taken, path))
            known = [value for value in values if value is not None and value is not _NOWHERE]
            if None in values or not all(_alike(known[0], value) for value in known):
                return None
            return known[0] if known else _NOWHERE
        values = [self._constant(other, conjunction(where, reduced), path) for other in read]
        if any(value is _NOWHERE for value in values):
            return _NOWHERE if reduced is TRUE else None
        if op in ("mul", "einsum"):
            zero = next((value for value in values if value is not None and value == 0), None)
            return None if zero is None else element.node.dtype.type(0)
        if any(value is None for value in values):
            return None
        if definition.record.repeats or definition.record.view or op in ("detach", "keep", "shard"):
            return values[0]
        if op == "reduce" and definition.attributes["monoid"] == "sum" and values[0] == 0:
            return values[0]
        if op == "cast":
            return element.node.dtype.type(values[0])
        if definition.record.elementwise and not definition.attributes:
            with np.errstate(all="ignore"):
                made: Any = np.asarray(definition.record.numpy(*(np.asarray(v) for v in values)))[()]
                return made
        return None

    def _symbolic(self, element: Element, depth: int) -> Term | Condition | None:
        """An element as a term or a condition over indices and lengths, if it is one."""
        node = element.node
        if node.name == self.lengths:
            return Term.of(self.length(element.steps[0]))
        definition = node.only
        if definition is None or depth > DEPTH or node.external:
            return None
        found = self._symbol(element, definition, depth)
        if found is not None:
            self.relied.setdefault(node.name, set()).add(None)
        return found

    def _symbol(self, element: Element, definition: Definition, depth: int) -> Term | Condition | None:
        op = definition.op
        if op == "index":
            value: Term | Condition = definition.attributes["value"]
            return value.substitute(element.mapping)
        if op == "iota":
            return element.positions[0]
        if op == "constant":
            array = definition.attributes["value"].value
            if array.ndim or array.dtype.kind not in "biu":
                return None
            return (TRUE if array else FALSE) if array.dtype.kind == "b" else Term(int(array))
        known = op in _TERMS or op in _TRUTHS or op in ("copy", "reshape", "broadcast", "transpose", "not")
        whole = op == "cast" and element.node.dtype.kind in "biu"
        if not known and not whole:
            return None
        try:
            read, _ = self._operands(element, definition, TRUE)
        except _UnknownError:
            return None
        values = [self._symbolic(other, depth + 1) for other in read]
        if any(value is None for value in values):
            return None
        if op in _TERMS and all(isinstance(value, Term) for value in values):
            if op == "mul" and not any(v.is_constant for v in values if isinstance(v, Term)):
                return None
            return _TERMS[op](*values)
        if op in _TRUTHS and len({isinstance(value, Term) for value in values}) == 1:
            numbers = isinstance(values[0], Term)
            return _TRUTHS[op](*values) if numbers == (op in _COMPARISONS) else None
        if op == "not" and isinstance(values[0], Condition):
            return negation(values[0])
        return values[0] if op not in _TERMS and op not in _TRUTHS and op != "not" else None


class _UnknownError(Exception):
    """An operation of which nothing is known along an axis whose length differs."""


_NOWHERE = np.str_("nowhere")
"""The value of an element that is nowhere looked at: any."""

_COMPARISONS = ("lt", "le", "eq", "ne")
_TRUTHS: dict[str, Callable[..., Condition]] = {
    "lt": lt,
    "le": le,
    "eq": eq,
    "ne": ne,
    "and": conjunction,
    "or": disjunction,
}
_TERMS: dict[str, Callable[..., Term]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
    "minimum": minimum,
    "maximum": maximum,
}


def _positions(kind: TensorType) -> tuple[Term, ...]:
    return tuple(_any(axis, 0) for axis in range(kind.rank))


def _any(number: int, purpose: int) -> Term:
    """A position along an axis."""
    return Term.of(Symbol(f"axis {number} {purpose}", "dim", serial=serials.ROW_AXIS))


def _at(access: Access, source: Node, positions: tuple[Term, ...]) -> Element:
    """The element at some positions of what an access reads: ranges come first."""
    left = iter(positions)
    steps = tuple(step.at(next(left)) if isinstance(step, Range) else step for step in access.steps)
    return Element(source, steps, tuple(left))


def _alike(a: np.generic, b: np.generic) -> bool:
    return bool(a == b) or (a != a and b != b)


__all__ = ["MARGIN", "Independence"]
