"""Conditions that end each row at a step of its own, as lengths.

`alive[b, t]` holds as long as the condition of row b has not held before t. A row has as many steps as it is alive, and
the loop ends when no row is alive any more: an ordinary condition over t alone. What rows compute after their end
is read by nobody.

Where another dim of the condition is walked step by step outside of t, as the iterations of a training run are, the
rows of one iteration are not all known when a step of t is decided. Such a dim runs as far as the caller allows, and
even the longest row is a length that is data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polyrhythm.compiler.ir.conditions import TRUE, conjunction, eq, ge
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, NodeDim, Range, longest
from polyrhythm.compiler.ir.reads import cone
from polyrhythm.compiler.ir.terms import ONE, ZERO, Symbol, Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.ir.values import Growing, Space, Value
from polyrhythm.compiler.ragged.lengths import INT32

Exists = Callable[[Space], Value | None]
"""Whether a row exists, in a space with its dims; None where all do: rows may be ragged themselves."""


def separable(graph: Graph, dim: Symbol) -> bool:
    """Whether no row of a stopping condition waits for another, so that all can be looked at step by step."""
    name = graph.until[dim]
    owners = {symbol for symbol in graph[name].symbols if symbol is not dim}
    inside = cone(graph, name)
    for node in (graph[n] for n in inside):
        for access in node.accesses:
            steps = graph[access.source].steps(access)
            for owner in owners & steps.keys():
                if graph[access.source].is_input:
                    continue
                if owner in node.symbols and steps[owner] is not Term.of(owner):
                    return False
    return True


def lived(growing: Growing, done: Node, dim: Symbol, limit: Term) -> str:
    """The node that says whether a row has not ended before a step."""
    dims = tuple(NodeDim(d.symbol, limit if d.symbol is dim else d.extent) for d in done.dims)
    kind = TensorType((), done.dtype)
    name = growing.put(f"{done.name}_alive", dims, kind, at=done.at, recurrent=True).name
    step = Term.of(dim)
    before = tuple(step - 1 if d.symbol is dim else Term.of(d.symbol) for d in dims)
    space = Space(growing, dims, conjunction(ge(step, ONE)), done.at, name)
    still = space.read(Access(name, before)).apply("and", space.read(Access(done.name, before)).apply("not"))
    first = Space(growing, dims, conjunction(eq(step, ZERO)), done.at, name).constant(True, done.dtype)
    definitions = (
        Definition(eq(step, ZERO), "copy", (first.access,), {}, done.at),
        Definition(ge(step, ONE), "copy", (still.access,), {}, done.at),
    )
    growing.nodes[name] = replace(growing.nodes[name], definitions=definitions)
    return name


def counted(growing: Growing, alive: str, dim: Symbol) -> str:
    """The node that has the length of each row."""
    node = growing.nodes[alive]
    dims = tuple(d for d in node.dims if d.symbol is not dim)
    space = Space(growing, dims, conjunction(*()), node.at, f"{alive}_steps")
    steps = tuple(Range(ZERO, d.extent) if d.symbol is dim else Term.of(d.symbol) for d in node.dims)
    numbers = space.read(Access(alive, steps)).cast(INT32)
    return numbers.apply("reduce", monoid="sum", axes=(0,)).access.source


def all_ended(growing: Growing, alive: str, done: Node, dim: Symbol, exists: Exists) -> str:
    """The node over a dim alone that holds once no row goes on."""
    node = growing.nodes[alive]
    own = tuple(d for d in node.dims if d.symbol is dim)
    each = Space(growing, node.dims, TRUE, node.at, alive)
    goes_on = each.current(alive).apply("and", each.current(done.name).apply("not"))
    there = exists(each)
    goes_on = goes_on if there is None else goes_on.apply("and", there)
    space = Space(growing, own, TRUE, node.at, f"{done.name}_all")
    steps = tuple(Term.of(dim) if d.symbol is dim else Range(ZERO, d.extent) for d in node.dims)
    rows = space.read(Access(goes_on.access.source, steps))
    some = rows.apply("reduce", monoid="any", axes=tuple(range(len(rows.shape))))
    return some.apply("not").access.source


def longest_of(growing: Growing, count: str, limit: Term, exists: Exists) -> str:
    """The node without dims that has the length of the longest row: one step, if there may be any, without rows."""
    node = growing.nodes[count]
    each = Space(growing, node.dims, TRUE, node.at, count)
    there = exists(each)
    if there is not None:
        count = each.current(count).where(there).access.source
    space = Space(growing, (), TRUE, node.at, f"{count}_longest")
    rows: Value = space.read(Access(count, tuple(Range(ZERO, d.extent) for d in node.dims)))
    most = rows.apply("reduce", monoid="max", axes=tuple(range(len(rows.shape))))
    least = space.apply("index", value=limit).apply("minimum", space.constant(1, INT32))
    return most.apply("maximum", least).access.source


def limit_of(dim: Symbol) -> Symbol:
    """The bound that a caller gives for a dim that ends early."""
    assert dim.bound is not None
    return longest(dim.bound)


__all__ = ["Exists", "all_ended", "counted", "limit_of", "lived", "longest_of", "separable"]
