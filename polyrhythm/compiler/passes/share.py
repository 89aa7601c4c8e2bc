"""Common subexpressions: what is computed twice is computed once, at other steps too.

Two definitions are the same when one becomes the other by an assignment of steps to its dims: `f(x[t + 1])` over t is
`f(x)` one step on, `f(x[0])` is `f(x)` at step 0. Terms are hash-consed and reads of what has been shared are rewritten
first, so the comparison is exact. The first of the two stays; readers of the second read it at those steps.

- At the same steps sharing always pays, if the first exists wherever the second does, or if the value is heavy (a
  contraction, or anything made of one that is shared too) and the two meet somewhere; then the first is computed
  wherever either is.
- At other steps it pays only for heavy values: a cheap one is better computed again than kept. The first must exist at
  every step that the second is.

Draws of random numbers, host calls and what a checkpoint computes again are never shared. The cost is one proof for
each pair that is shared.

Equal recurrences: two that are defined alike, each by itself where the other reads the other, are one.

Gradients that are asked for one by one, `pr.grad(loss, w)` and `pr.grad(loss, b)`, each go back through the steps.
`share` cannot see that they do the same, for it compares what is read first, and a recurrence reads itself. So here all
nodes of one form, read at the same steps, are held to be equal until something tells them apart: what they read is not
equal. What is left when nothing changes any more is equal at every point, by induction along the order in which the
points are computed.

Draws of random numbers, host calls and inputs are equal to nothing; what a checkpoint computes again is not equal to
what it is a copy of.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Any

from polyrhythm.compiler.ir.conditions import conjunction, disjunction
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, Range
from polyrhythm.compiler.ir.reads import circles
from polyrhythm.compiler.ir.sets import is_possible, proves, simplified
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.passes.copies import reading_originals
from polyrhythm.compiler.passes.dead import wanted
from polyrhythm.compiler.passes.notes import Notes, bytes_of
from polyrhythm.compiler.passes.rewriting import Nodes


def share(graph: Graph, notes: Notes) -> Graph:
    """The graph with common subexpressions computed once."""
    return _Sharing(share_recurrences(graph, notes), notes).run()


class _Sharing:
    def __init__(self, graph: Graph, notes: Notes) -> None:
        self.nodes, self.notes = Nodes(graph), notes
        self.kept = wanted(graph)
        self.shared: dict[str, Access] = {}
        self.heavy: set[str] = set()
        self.alike: dict[tuple[object, ...], list[str]] = {}

    def run(self) -> Graph:
        for name in list(self.nodes.nodes):
            node = self._rewrite(name)
            if node.only is not None and not node.only.record.cheap:
                self._settle(node, node.definitions[0])
        # What a recurrent tensor reads may have been shared after its own place in the order.
        for name in list(self.nodes.nodes):
            self._rewrite(name)
        return self.nodes.done()

    def _rewrite(self, name: str) -> Node:
        """Let a node read what is shared."""
        nodes = self.nodes.nodes
        nodes[name] = reading_originals(nodes, nodes[name], self.shared)
        return nodes[name]

    def _settle(self, node: Node, definition: Definition) -> None:
        """Share the node with an earlier one, or let later ones share it."""
        sources = tuple(access.source for access in definition.operands)
        weighty = definition.record.heavy or any(source in self.heavy for source in sources)
        if weighty:
            self.heavy.add(node.name)
        key = (definition.op, sources, tuple(definition.attributes), node.dtype, len(node.shape))
        for name in self.alike.setdefault(key, []):
            other = self.nodes[name]
            steps = _instance(other, definition, node)
            if steps is None or not self._pays(other, node, steps, weighty):
                continue
            access = Access(name, steps)
            if node.name in self.kept:
                self.nodes.redefine(node, 0, self.nodes.copy(node, access, definition))
            else:
                self.shared[node.name] = access
            moved = "" if steps == other.current else f" at {access}"
            what = f"{definition.op} is computed already{moved}, at {other.at}"
            self.notes.did("share", definition.at or node.at, what, 1, bytes_of(node))
            return
        self.alike[key].append(node.name)

    def _pays(self, first: Node, second: Node, steps: tuple[Term, ...], weighty: bool) -> bool:
        """Whether the first may stand for the second; if need be it is computed in more places."""
        at = dict(zip(first.symbols, steps, strict=True))
        shape = tuple(length.substitute(at) for length in first.shape)
        if shape != second.shape:
            return False
        contained = proves(second.points, first.points.substitute(at))
        if steps != first.current or first.dims != second.dims:
            return weighty and contained
        if contained:
            return True
        both = conjunction(first.points, second.points)
        if not weighty or not is_possible(both):
            return False
        domain = simplified(disjunction(first.domain, second.domain), first.rectangle)
        self.nodes.nodes[first.name] = replace(self.nodes[first.name], domain=domain)
        return True


def _instance(first: Node, wanted: Definition, second: Node) -> tuple[Term, ...] | None:
    """The steps at which the definition of `first` is the wanted one; None if there are none."""
    definition = first.definitions[0]
    found: dict[Symbol, Term] = {}
    for mine, theirs in zip(definition.operands, wanted.operands, strict=True):
        for a, b in zip(mine.steps, theirs.steps, strict=True):
            if isinstance(a, Range) or isinstance(b, Range):
                continue
            for symbol in first.symbols:
                if symbol not in found and a.linear_in(symbol) and a.coefficient(symbol) == 1:
                    rest = a - Term.of(symbol)
                    if not rest.symbols & set(first.symbols):
                        found[symbol] = b - rest
    for symbol in first.symbols:  # it may occur in ranges or attributes only: then at the same step
        if symbol not in found and symbol in second.symbols:
            found[symbol] = Term.of(symbol)
    if len(found) < len(first.symbols):
        return None
    moved = definition.substitute(found)
    same = moved.operands == wanted.operands and moved.attributes == wanted.attributes
    return tuple(found[symbol] for symbol in first.symbols) if same else None


def share_recurrences(graph: Graph, notes: Notes) -> Graph:
    """The graph with equal nodes of recurrences computed once."""
    circular = {name for part in circles(graph.reads) for name in part}
    kinds = equal(graph)
    first: dict[int, Node] = {}
    originals: dict[str, Access] = {}
    kept = wanted(graph)
    for node in graph:
        if node.name not in circular:
            continue
        one = first.setdefault(kinds[node.name], node)
        if one is not node and node.name not in kept:
            originals[node.name] = Access(one.name, node.current)
            notes.did("share", node.at, f"the same recurrence is computed already, at {one.at}", 1, bytes_of(node))
    if not originals:
        return graph
    nodes = {node.name: reading_originals(graph.nodes, node, originals) for node in graph}
    return replace(graph, nodes=nodes)


def equal(graph: Graph) -> dict[str, int]:
    """A number for each node: two that have the same one have the same values."""
    forms = {node.name: _form(node) for node in graph}
    kinds = _numbered(forms)
    while True:
        finer = _numbered({n.name: (kinds[n.name], *(kinds[source] for source in n.sources)) for n in graph})
        if len(set(finer.values())) == len(set(kinds.values())):
            return kinds
        kinds = finer


def _numbered(keys: dict[str, Hashable]) -> dict[str, int]:
    numbers: dict[Hashable, int] = {}
    return {name: numbers.setdefault(key, len(numbers)) for name, key in keys.items()}


def _form(node: Node) -> Hashable:
    """What a node is but for what it reads."""
    if any(d.record.sited or d.record.external or d.record.calls for d in node.definitions):
        return node.name
    return node.dims, node.type, node.recurrent, node.again, node.domain, tuple(map(_rule, node.definitions))


def _rule(definition: Definition) -> Hashable:
    steps = tuple(access.steps for access in definition.operands)
    return definition.domain, definition.op, steps, _hashable(definition.attributes.items())


def _hashable(values: Iterable[Any]) -> Hashable:
    return tuple(_hashable(value) if isinstance(value, tuple) else _one(value) for value in values)


def _one(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value).__name__, value
