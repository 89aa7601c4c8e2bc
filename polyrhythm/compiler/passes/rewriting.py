"""What passes share: looking through reads, adding nodes, putting nodes in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from polyrhythm.compiler.ir.conditions import TRUE, Condition, conjunction
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, copy_of, operand_type
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.reads import after_successors, reached
from polyrhythm.compiler.ir.sets import simplified_term
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.ir.types import Array, TensorType
from polyrhythm.compiler.ir.values import Growing
from polyrhythm.source import Source


class Nodes(Growing):
    """The nodes of a graph while they are rewritten."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(dict(graph.nodes))
        self.graph = graph
        self.readers = Counter(source for node in graph for source in node.sources)

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def seen_through(self, access: Access) -> Definition | None:
        """The definition of what an access reads, in terms of the reader, if it has one that holds everywhere.

        The operands of that definition may be read instead: they are defined wherever it is.
        """
        node = self.nodes[access.source]
        if node.recurrent or len(node.definitions) != 1 or access.ranges or node.definitions[0].domain is not TRUE:
            return None
        if node.definitions[0].record.sited:
            return None
        if access.steps == node.current:
            return node.definitions[0]
        steps = {s: step for s, step in node.steps(access).items() if isinstance(step, Term)}
        return node.definitions[0].substitute(steps)

    def type_of(self, access: Access) -> TensorType:
        return operand_type(access, self.nodes[access.source])

    def depends(self, reads: Iterable[Access], name: str) -> bool:
        """Whether something that is read is computed from a node."""
        return name in reached(lambda read: self.nodes[read].sources, [access.source for access in reads])

    def copy(self, node: Node, access: Access, definition: Definition) -> Definition:
        """What an access reads in place of a definition of a node."""
        return copy_of(access, self.nodes[access.source], node.shape, definition.domain, definition.at)

    def known(self, node: Node, definition: Definition) -> Condition:
        """What holds wherever a definition of a node does."""
        return conjunction(node.points, definition.domain)

    def add(
        self, hint: str, like: Node, definition: Definition, op: str, operands: Sequence[Access], **attributes: Any
    ) -> Access:
        """A plain node over the dims of another, where one of its definitions holds; read at the current point."""
        given = self.known(like, definition)
        kind = TABLE[op].type_rule(tuple(self.type_of(access) for access in operands), attributes, given)
        kind = TensorType(tuple(simplified_term(n, given) for n in kind.shape), kind.dtype)
        made = Definition(TRUE, op, tuple(operands), attributes, definition.at)
        domain = conjunction(like.domain, definition.domain)
        node = Node(self.fresh(hint), like.dims, kind, (made,), False, domain, definition.at)
        self.nodes[node.name] = node
        return node.here

    def constant(self, hint: str, value: np.ndarray, at: Source | None) -> Access:
        """A new node that is one constant scalar."""
        made = Definition(TRUE, "constant", (), {"value": Array(value)}, at)
        return self.put(hint, (), TensorType((), value.dtype), made, at=at).here

    def is_zero(self, access: Access) -> bool:
        """Whether what is read is zero everywhere."""
        node = self.nodes[access.source]
        while len(node.definitions) == 1 and node.definitions[0].record.repeats:
            node = self.nodes[node.definitions[0].operands[0].source]
        return all(d.op == "constant" and not d.attributes["value"].value.any() for d in node.definitions)

    def redefine(self, node: Node, number: int, definition: Definition) -> Node:
        """The node with one definition replaced."""
        definitions = (*node.definitions[:number], definition, *node.definitions[number + 1 :])
        self.nodes[node.name] = replace(node, definitions=definitions)
        return self.nodes[node.name]

    def done(self) -> Graph:
        """The graph with the nodes as they are now, operands before their readers."""
        return replace(self.graph, nodes=in_order(self.nodes))


def in_order(nodes: Mapping[str, Node]) -> dict[str, Node]:
    """Nodes with what they read before them, circles aside; otherwise as they were."""

    def reads(name: str) -> list[str]:
        """Every circle leads through a recurrent tensor, which may come after its readers."""
        return [source for source in dict.fromkeys(nodes[name].sources) if not nodes[source].recurrent]

    return {name: nodes[name] for name in after_successors(reads, nodes)}
