"""What passes share: looking through reads, adding nodes, putting nodes in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from polyrhythm.compiler.ir.conditions import TRUE, Condition, conjunction
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, copy_of, operand_type
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.ops.record import map_attribute
from polyrhythm.compiler.ir.sets import simplified_term
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.ir.types import TensorType


def substituted(definition: Definition, mapping: Mapping[Symbol, Term]) -> Definition:
    """A definition in terms of other symbols."""
    if all(mapping.get(symbol, symbol.term) is symbol.term for symbol in definition.symbols):
        return definition
    attributes = {k: map_attribute(v, lambda t: t.substitute(mapping)) for k, v in definition.attributes.items()}
    operands = tuple(access.substitute(mapping) for access in definition.operands)
    return Definition(definition.domain.substitute(mapping), definition.op, operands, attributes, definition.at)


class Nodes:
    """The nodes of a graph while they are rewritten."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = dict(graph.nodes)
        self._count = 0
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
        return substituted(node.definitions[0], steps)

    def type_of(self, access: Access) -> TensorType:
        return operand_type(access, self.nodes[access.source])

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

    def fresh(self, hint: str) -> str:
        """A name that no node has."""
        name = hint
        while name in self.nodes:
            self._count += 1
            name = f"{hint}_{self._count}"
        return name

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
    done: dict[str, Node] = {}
    seen: set[str] = set()
    for root in nodes:
        stack = [(root, False)]
        while stack:
            name, complete = stack.pop()
            if complete:
                done[name] = nodes[name]
            elif name not in seen:
                seen.add(name)
                stack.append((name, True))
                # Every circle leads through a recurrent tensor, which may come after its readers.
                reads = dict.fromkeys(nodes[name].sources)
                stack.extend((source, False) for source in reversed(reads) if not nodes[source].recurrent)
    return done
