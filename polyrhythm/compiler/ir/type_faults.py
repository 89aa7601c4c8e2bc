"""Definitions whose operation does not give the type of their node.

For users it is the one fault of a graph that shows only when a tensor's dims are all known; the grammar that tests
hold every graph to has it among its rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from polyrhythm.compiler.ir import sets
from polyrhythm.compiler.ir.conditions import FALSE, Condition, conjunction
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, lengths_elsewhere, operand_type
from polyrhythm.compiler.ir.ops import EXTERNAL, TABLE
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.errors import PolyrhythmError


@dataclass(frozen=True)
class Subject:
    """A graph under examination: its definitions, where they hold, and which hold somewhere."""

    graph: Graph

    @cached_property
    def required(self) -> Condition:
        return conjunction(self.graph.started, *(requirement.condition for requirement in self.graph.requirements))

    @cached_property
    def pieces(self) -> list[tuple[Node, Definition]]:
        return [(node, definition) for node in self.graph for definition in node.definitions]

    def where(self, node: Node, definition: Definition) -> Condition:
        """What is known at the points of a definition."""
        return conjunction(node.points, definition.domain, self.required)

    @cached_property
    def live(self) -> list[tuple[Node, Definition]]:
        """The definitions that hold somewhere; nothing is asked of the others."""
        return [(n, d) for n, d in self.pieces if not sets.proves(self.where(n, d), FALSE)]


def type_faults(subject: Subject) -> Iterator[tuple[str, str]]:
    """The nodes of such definitions, and what is wrong."""
    for node, definition in subject.live:
        if not is_known(definition.op):
            continue
        given = subject.where(node, definition)
        try:
            found = _result_type(subject, node, definition, given)
        except (PolyrhythmError, LookupError, TypeError, ValueError, AttributeError) as error:
            yield node.name, f"{definition.op} does not apply: {type(error).__name__}: {error}"
            continue
        same_rank = len(found.shape) == len(node.shape)
        lengths = zip(found.shape, node.shape, strict=True) if same_rank else ()
        if found.dtype != node.dtype or not same_rank or not all(sets.equal(a, b, given) for a, b in lengths):
            yield node.name, f"it is {node.type}, but {definition.op} gives {found} where {definition.domain}"


def is_known(op: str) -> bool:
    """Whether there is an operation that a graph may keep."""
    return op in TABLE or (op in EXTERNAL and not EXTERNAL[op].transient)


def _result_type(subject: Subject, node: Node, definition: Definition, given: Condition) -> TensorType:
    if definition.op == "input":
        return node.type
    operands = tuple(_operand_type(access, subject.graph[access.source]) for access in definition.operands)
    return definition.record.type_rule(operands, definition.attributes, given)


def _operand_type(access: Access, source: Node) -> TensorType:
    """The type an access reads; ragged lengths at other steps than the reader's are unknown."""
    kind = operand_type(access, source)
    elsewhere = lengths_at_others(access, source)
    leading = len(access.ranges)
    own = tuple(length.substitute(elsewhere) for length in kind.shape[leading:])
    return TensorType(kind.shape[:leading] + own, kind.dtype)


def lengths_at_others(access: Access, source: Node) -> dict[Symbol, Term]:
    """A stand-in for each ragged length of a source at other steps than the reader's."""
    symbols = frozenset().union(
        *(dim.extent.symbols for dim in source.dims),
        *(length.symbols for length in source.shape),
        source.domain.symbols,
    )
    return lengths_elsewhere(access, source, symbols)
