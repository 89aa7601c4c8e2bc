"""Outputs with rows of different lengths: zeros beyond the end, and an output of the lengths beside each.

A caller gets `Ragged(values, lengths)`, as from `pr.evaluate`. So does an output whose shape differs from step to step:
its values are padded to the largest shape, and their lengths follow from the step.
"""

from __future__ import annotations

from collections.abc import Mapping

from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.ir.conditions import within
from polyrhythm.compiler.ir.graph import Access, Graph, Node, NodeDim
from polyrhythm.compiler.ir.intervals import interval
from polyrhythm.compiler.ir.terms import ZERO, Symbol, Term, dims_of, maximum
from polyrhythm.compiler.ir.values import Growing, Space, Value
from polyrhythm.compiler.ragged.lengths import Lengths, masked
from polyrhythm.compiler.ragged.results import Longest, OutputRows, Rows
from polyrhythm.errors import RaggedShapeError


def returned(
    graph: Graph, growing: Growing, lengths: Lengths, alive: Mapping[Symbol, str]
) -> tuple[tuple[str, ...], Rows]:
    """The outputs of the rectangular graph, and how the caller gets rows back."""
    outputs: list[str] = []
    extra: list[str] = []
    count = len(graph.outputs)
    ragged: dict[int, OutputRows] = {}
    for number, name in enumerate(graph.outputs):
        node = graph[name]
        found = _ragged_axis(node, lengths)
        if found is None:
            outputs.append(name)
            continue
        axis, cut = found
        values, sizes = _padded(node, growing, lengths, alive, axis, cut)
        outputs.append(values)
        ragged[number] = OutputRows(axis, count + len(extra), cut)
        extra.append(sizes)
    longest = []
    for bound, access in graph.lengths.items():
        source = graph[access.source]
        given = next((name for name, node in graph.inputs.items() if node.name == source.name), None)
        direct = access.steps == source.current
        told = None
        if given is None or not direct:
            told = count + len(extra)
            extra.append(_lengths_node(graph, growing, lengths, bound, access) if not direct else source.name)
        known = given if direct else None
        longest.append(Longest(bound, lengths.longest[bound], access, known, told, source.at))
    inputs = {n for n, node in graph.inputs.items() if lengths.vary(node.rectangle.symbols)}
    return (*outputs, *extra), Rows(count, tuple(longest), ragged, frozenset(inputs))


def _lengths_node(graph: Graph, growing: Growing, lengths: Lengths, bound: Symbol, access: Access) -> str:
    """A node of its own for lengths that are a view of another tensor."""
    node = next(node for node in graph if set(bound.over) <= set(node.symbols))
    dims = tuple(NodeDim(d.symbol, lengths.widest(d.extent)) for d in node.dims if d.symbol in bound.over)
    space = Space(growing, dims, growing.nodes[node.name].rectangle, graph[access.source].at, f"{bound.name}_lengths")
    return space.read(access).apply("copy").access.source


def _ragged_axis(node: Node, lengths: Lengths) -> tuple[int, bool] | None:
    """The axis of an output that differs from row to row, dims first; whether it is merely cut to a found length."""
    along = [axis for axis, d in enumerate(node.dims) if lengths.vary(d.extent.symbols)]
    along += [len(node.dims) + axis for axis, n in enumerate(node.shape) if dims_of(n) or lengths.vary(n.symbols)]
    if not along:
        return None
    if len(along) > 1:
        raise RaggedShapeError(
            f"{described(node)} is ragged along more than one axis, so one array of lengths cannot describe it",
            fix="reduce or pad all but one of them inside the program",
            at=node.at,
        )
    axis = along[0]
    term = node.dims[axis].extent if axis < len(node.dims) else node.shape[axis - len(node.dims)]
    return axis, not dims_of(term)


def _padded(
    node: Node, growing: Growing, lengths: Lengths, alive: Mapping[Symbol, str], axis: int, cut: bool
) -> tuple[str, str]:
    """An output with zeros beyond its rows, and its lengths."""
    shell = growing.nodes[node.name]
    space = Space(growing, shell.dims, shell.points, node.at, node.name)
    value = space.current(node.name)
    if axis < len(node.dims):
        along = node.dims[axis]
        others = tuple(d for d in shell.dims if d.symbol is not along.symbol)
        sizes = Space(growing, others, growing.nodes[node.name].rectangle, node.at, f"{node.name}_lengths")
        size = lengths.value(sizes, maximum(ZERO, along.extent)).settled().access.source
        inside = _inside(space, along, lengths, alive)
        return value.where(inside).access.source, size
    length = node.shape[axis - len(node.dims)]
    size = lengths.value(space, maximum(ZERO, length)).settled().access.source
    value = masked(lengths, value, axis - len(node.dims), length, 0)
    wide = value.shape[axis - len(node.dims)]
    ranges = {d.symbol: (ZERO, maximum(ZERO, d.extent - 1)) for d in shell.dims}
    most = interval(wide, ranges)[1]
    if most is not wide:
        after = [ZERO] * len(value.shape)
        after[axis - len(node.dims)] = most - wide
        value = value.apply("pad", before=(ZERO,) * len(value.shape), after=tuple(after), value=0)
    return value.access.source, size


def _inside(space: Space, along: NodeDim, lengths: Lengths, alive: Mapping[Symbol, str]) -> Value:
    """Whether a step lies before the end of its row; of a dim that ends early, before it is known where."""
    dim = next((s for s in alive if s.bound is not None and along.extent is Term.of(s.bound)), None)
    if dim is not None:
        node = space.graph.nodes[alive[dim]]
        steps = tuple(Term.of(along.symbol) if s is dim else Term.of(s) for s in node.symbols)
        return space.read(Access(node.name, steps))
    return lengths.truth(space, within(along.symbol, along.extent))


__all__ = ["returned"]
