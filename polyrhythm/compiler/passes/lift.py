"""Lift: a recurrence that only accumulates becomes the batch operation that it is.

`y[0] = a`, `y[t + 1] = y + x[t + 1]` is a running sum of the elements a, x[1], x[2], ..., and so with products, maxima,
minima, and truth values by `and` and `or`; a recurrence that counts down is one from the other end. Where only the
last value is read it is a plain reduction. Legal because the monoids are associative: floats may round differently, as
in any reduction, and 16-bit floats, which would round less often, are left alone.

`y[t + 1] = a[t + 1] * y + b[t + 1]`, a discounted sum or a running mean, is a *linear scan* of the factors a and the
elements b, which computes the same numbers in the same order, in one operation.

Not done, with a note that says so:
- where an element depends on the recurrence itself, since all elements must be there first;
- where steps of the result are wanted one by one: cutting them out again costs as much as the steps did;
- where that would keep all steps of elements that are now made and used one by one, or of a linear recurrence of
  which only the last is read;
- for a backend that compiles loops: there a step of such a loop takes a few nanoseconds, and neither the sums of XLA
  nor an associative scan are faster (measured in `docs/decisions.md`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import TRUE, conjunction, eq, negation
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, Range, Step, copy_of
from polyrhythm.compiler.ir.reads import components
from polyrhythm.compiler.ir.sets import proves
from polyrhythm.compiler.ir.terms import ZERO, Symbol, Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.passes.dead import wanted
from polyrhythm.compiler.passes.notes import Notes, bytes_of
from polyrhythm.compiler.passes.rewriting import Nodes

MONOIDS = {"add": "sum", "mul": "prod", "maximum": "max", "minimum": "min"}
LOGICAL = {"and": "all", "or": "any", "maximum": "any", "minimum": "all"}
"""The monoid of each operation, for numbers and for truth values."""


@dataclass(frozen=True)
class _Step:
    """What a step of a recurrence does to its neighbour: multiply by a factor if there is one, combine with an element.

    `by` are the plain nodes that do so.
    """

    monoid: str
    element: Access
    factor: Access | None
    by: tuple[str, ...]

    @property
    def operands(self) -> tuple[Access, ...]:
        """All that is read besides the neighbour."""
        return (self.element,) if self.factor is None else (self.element, self.factor)


@dataclass(frozen=True)
class _Accumulation:
    """A recurrent tensor whose steps along a dim combine its neighbour with one more element."""

    node: Node
    symbol: Symbol
    reverse: bool
    start: Definition
    step: _Step
    at: Definition

    @property
    def rule(self) -> str:
        return f"running-{self.step.monoid}" if self.step.factor is None else "linear-scan"

    @property
    def extent(self) -> Term:
        return next(dim.extent for dim in self.node.dims if dim.symbol is self.symbol)

    @property
    def last(self) -> Term:
        """The step at which everything has been accumulated."""
        return ZERO if self.reverse else self.extent - 1


def lift(graph: Graph, notes: Notes) -> Graph:
    """The graph with accumulations as batch operations."""
    nodes = Nodes(graph)
    found = [a for node in graph if node.recurrent for a in _accumulations(nodes, node)]
    if not found:
        return graph
    circles = {name: n for n, part in enumerate(components(graph.reads)) for name in part}
    for accumulation in found:
        graph = _lifted(graph, accumulation, circles, notes)
    return graph


def _accumulations(nodes: Nodes, node: Node) -> Iterator[_Accumulation]:
    if len(node.definitions) != 2 or dtypes.accumulator(node.dtype) != node.dtype:
        return
    for dim in node.dims:
        t = Term.of(dim.symbol)
        for reverse, first, neighbour in ((False, ZERO, t - 1), (True, dim.extent - 1, t + 1)):
            for start, step in (node.definitions, node.definitions[::-1]):
                if not _is_first(node, start, step, dim.symbol, first):
                    continue
                found = _combined(nodes, node, step, dim.symbol, neighbour)
                if found is not None and all(access.source != node.name for access in start.operands):
                    yield _Accumulation(node, dim.symbol, reverse, start, found, step)
                    return


def _is_first(node: Node, start: Definition, step: Definition, symbol: Symbol, first: Term) -> bool:
    """Whether `start` holds exactly at the first step and `step` at all others."""
    at_first = eq(Term.of(symbol), first)
    known = [conjunction(node.points, d.domain) for d in (start, step)]
    return proves(known[0], at_first) and proves(known[1], negation(at_first))


def _combined(nodes: Nodes, node: Node, step: Definition, symbol: Symbol, neighbour: Term) -> _Step | None:
    """What a step does, if it combines the neighbour with an element."""
    inner: Definition | None = step
    by: tuple[str, ...] = ()
    if step.record.repeats:
        if nodes.type_of(step.operands[0]) != node.type:
            return None
        inner, by = nodes.seen_through(step.operands[0]), (step.operands[0].source,)
    table = LOGICAL if node.dtype == dtypes.BOOL else MONOIDS
    if inner is None or inner.op not in table or len(inner.operands) != 2:
        return None
    before = Access(node.name, tuple(neighbour if s is symbol else Term.of(s) for s in node.symbols))
    for mine, other in (inner.operands, inner.operands[::-1]):
        if other.source == node.name or nodes.type_of(other).dtype != node.dtype:
            continue
        if mine == before:
            return _Step(table[inner.op], other, None, by)
        factor = _factor(nodes, node, mine, before) if inner.op == "add" else None
        if factor is not None:
            return _Step("sum", other, factor, (*by, mine.source))
    return None


def _factor(nodes: Nodes, node: Node, scaled: Access, before: Access) -> Access | None:
    """What the neighbour is multiplied by, if that is what is read."""
    product = nodes.seen_through(scaled) if scaled.source != node.name else None
    if product is None or product.op != "mul" or nodes.type_of(scaled) != node.type:
        return None
    for mine, factor in (product.operands, product.operands[::-1]):
        if mine == before and factor.source != node.name:
            return factor
    return None


def _lifted(graph: Graph, found: _Accumulation, circles: dict[str, int], notes: Notes) -> Graph:
    node = found.node
    why = _refusal(graph, found, circles, notes)
    if why is not None:
        notes.refused(found.rule, found.at.at or node.at, why)
        return graph
    nodes = Nodes(graph)
    elements = _elements(nodes, found)
    others = tuple(dim for dim in node.dims if dim.symbol is not found.symbol)
    steps: tuple[Step, ...] = tuple(
        Range(ZERO, found.extent) if s is found.symbol else Term.of(s) for s in node.symbols
    )
    access, at = Access(elements, steps), found.at.at
    if _is_last_only(graph, found):
        made = Definition(TRUE, "reduce", (access,), {"monoid": found.step.monoid, "axes": (0,)}, at)
        total = nodes.put(f"{node.name}_total", others, node.type, made, at=node.at)
        again = Definition(TRUE, "copy", (total.here,), {}, at)
        limited = conjunction(node.domain, eq(Term.of(found.symbol), found.last))
        nodes.nodes[node.name] = replace(node, definitions=(again,), recurrent=False, domain=limited)
        for name in found.step.by:  # they read other steps, and only this tensor read them
            del nodes.nodes[name]
        notes.did("reduction", at or node.at, f"the last step is one {found.step.monoid}", 0, bytes_of(node))
        return nodes.done()
    shape = TensorType((found.extent, *node.shape), node.dtype)
    running = nodes.put(f"{node.name}_running", others, shape, _scan(nodes, found, access), at=node.at).name
    for reader in graph:
        nodes.nodes[reader.name] = reader.reading(lambda access: _read(access, found, running))
    what = f"running {found.step.monoid}" if found.step.factor is None else "linear scan"
    notes.did(found.rule, at or node.at, f"a recurrence over {found.symbol} is one {what}")
    return nodes.done()


def _scan(nodes: Nodes, found: _Accumulation, elements: Access) -> Definition:
    """The operation whose result has all steps of an accumulation along its first axis."""
    if found.step.factor is None:
        run = {"monoid": found.step.monoid, "axis": 0, "reverse": found.reverse}
        return Definition(TRUE, "cumulative", (elements,), run, found.at.at)
    factors = Access(_factors(nodes, found, found.step.factor), elements.steps)
    return Definition(TRUE, "linear_scan", (factors, elements), {"axis": 0, "reverse": found.reverse}, found.at.at)


def _read(access: Access, found: _Accumulation, running: str) -> Access:
    """A read of all steps of a tensor as one of the running result, of which they are the first axis."""
    if access.source != found.node.name or access.ranges != (Range(ZERO, found.extent),):
        return access
    return Access(running, tuple(step for step in access.steps if isinstance(step, Term)))


def _elements(nodes: Nodes, found: _Accumulation) -> str:
    """The node of what is accumulated: the start at the first step, the other operand at the rest."""
    node = found.node
    one = nodes.copy(node, found.step.element, found.at)
    name = nodes.fresh(f"{node.name}_elements")
    nodes.nodes[name] = replace(node, name=name, definitions=(found.start, one), recurrent=False, domain=TRUE)
    return name


def _factors(nodes: Nodes, found: _Accumulation, factor: Access) -> str:
    """The node of the factors; at the first step, which has none, zero."""
    node = found.node
    zero = nodes.constant(f"{node.name}_zero", np.zeros((), node.dtype), node.at)
    first = copy_of(zero, nodes[zero.source], node.shape, found.start.domain, found.at.at)
    rest = nodes.copy(node, factor, found.at)
    name = nodes.fresh(f"{node.name}_factors")
    nodes.nodes[name] = replace(node, name=name, definitions=(first, rest), recurrent=False, domain=TRUE)
    return name


def _refusal(graph: Graph, found: _Accumulation, circles: dict[str, int], notes: Notes) -> str | None:
    node = found.node
    if any(circles[a.source] == circles[node.name] for a in (*found.step.operands, *found.start.operands)):
        return "an element depends on the recurrence itself"
    bounds = found.extent.symbols
    if any(symbol in graph.stops or symbol.over for symbol in bounds):
        return "the number of steps is found while it runs"
    if any(s in node.symbols for length in node.shape for s in length.symbols):
        return "its shape differs from step to step"
    if _is_last_only(graph, found):
        if found.step.factor is not None:
            return "only its last step is read, and all would have to be kept"
        if not all(_is_whole(graph, access.source, found.symbol) for access in found.step.operands):
            return "its elements are made step by step, and all would have to be kept"
    elif not _is_read_whole(graph, found):
        return "its steps are wanted one by one"
    if notes.compiled_loops:
        return "this backend compiles loops, and steps as fast"
    return None


def _is_whole(graph: Graph, name: str, symbol: Symbol) -> bool:
    """Whether every step of a node is kept anyway: an input, an output, or read over a range without a limit."""
    node = graph[name]
    if name in wanted(graph) or symbol not in node.symbols:
        return True
    for reader in graph:
        for definition in reader.definitions:
            for access in definition.operands:
                step = node.steps(access).get(symbol) if access.source == name else None
                if isinstance(step, Range) and not step.length.is_constant:
                    return True
    return False


def _is_last_only(graph: Graph, found: _Accumulation) -> bool:
    """Whether all that others read is the last step."""
    reads = _outside(graph, found)
    return reads is not None and all(found.node.steps(a)[found.symbol] is found.last for a in reads)


def _is_read_whole(graph: Graph, found: _Accumulation) -> bool:
    """Whether others read all steps at once, always."""
    reads = _outside(graph, found)
    return reads is not None and all(access.ranges == (Range(ZERO, found.extent),) for access in reads)


def _outside(graph: Graph, found: _Accumulation) -> list[Access] | None:
    """The reads of a tensor other than by its own step; None if it is wanted from outside."""
    if found.node.name in wanted(graph):
        return None
    own = (*found.step.by, found.node.name)
    reads = [a for node in graph if node.name not in own for a in node.accesses if a.source == found.node.name]
    counts = Counter(source for node in graph for source in node.sources)
    kept = wanted(graph)
    return reads if all(name not in kept and counts[name] == 1 for name in found.step.by) else None
