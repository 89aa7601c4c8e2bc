"""A stopping condition may look at anything that is computed up to its step, but not at the length that it decides.

A definition that holds at fewer steps than its tensor has, as `i < I`, does not look at the length: whoever comes to
step i knows that it is one. Where each row of a dim ends at a step of its own, the condition of a row may read what
follows from the lengths of others, if these can be known before: the length of a row is taken as a value made of
its conditions, and no value may depend on itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyrhythm.compiler.analysis.naming import described
from polyrhythm.compiler.analysis.well_founded import check_progress
from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import Condition, conjunction, le
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node, Range, longest
from polyrhythm.compiler.ir.reads import cone, fresh_name
from polyrhythm.compiler.ir.sets import proves
from polyrhythm.compiler.ir.terms import ZERO, Symbol, Term
from polyrhythm.errors import CycleError, ProgressError, UntilError


def check_stopping(graph: Graph) -> None:
    """Raise an UntilError if a stopping condition depends on the length it decides."""
    for dim, name in graph.until.items():
        assert dim.bound is not None
        behind = cone(graph, name)
        nodes = [node for node in graph if node.name in behind]
        found = list(_lookers(nodes, (dim.bound, longest(dim.bound))))
        if not found:
            continue
        node, definition = found[0]
        if dim.bound.over and not any(_looks(d, longest(dim.bound)) for _, d in found):
            try:
                check_progress(_with_lengths(graph, dim, {node.name for node, _ in found}))
                continue
            except (CycleError, ProgressError):
                pass
        raise UntilError(
            f"the stopping condition of {dim} depends on {longest(dim.bound)}, the length it decides, through "
            f"{described(node)}",
            fix=f"stop on values of the current and earlier steps only, without {longest(dim.bound)}",
            at=definition.at,
            also=(("stopped by", graph[name].at),) if graph[name].at else (),  # type: ignore[arg-type]
        )


def _lookers(nodes: list[Node], bounds: tuple[Symbol, ...]) -> Iterator[tuple[Node, Definition]]:
    for node in nodes:
        for definition in node.definitions:
            if any(_looks(definition, bound) for bound in bounds):
                yield node, definition


def _looks(definition: Definition, bound: Symbol) -> bool:
    """Whether what a definition computes depends on a bound."""
    if bound not in definition.symbols:
        return False
    inside = [access.symbols for access in definition.operands] + [term.symbols for term in definition.terms]
    return any(bound in symbols for symbols in inside) or waits_for(definition.domain, bound)


def waits_for(domain: Condition, bound: Symbol) -> bool:
    """Whether a point of a domain may not be one at a larger bound, as the last step is not: the bound decides it.

    >>> from polyrhythm.compiler.ir.conditions import eq, lt
    >>> t, T = Symbol("t", "dim"), Symbol("T", "bound")
    >>> waits_for(lt(Term.of(t), Term.of(T)), T), waits_for(eq(Term.of(t), Term.of(T) - 1), T)
    (False, True)
    """
    if bound not in domain.symbols:
        return False
    larger = Term.of(Symbol(bound.name, "bound", serial=serials.LIMIT))
    return not proves(conjunction(domain, le(Term.of(bound), larger)), domain.substitute({bound: larger}))


def _with_lengths(graph: Graph, dim: Symbol, lookers: set[str]) -> Graph:
    """The graph with the length of each row as a tensor, which those who look at it read."""
    assert dim.bound is not None
    done = graph[graph.until[dim]]
    name = fresh_name(f"{dim.bound.name}_rows", graph.nodes)
    steps = tuple(Range(ZERO, d.extent) if d.symbol is dim else Term.of(d.symbol) for d in done.dims)
    found = Definition(conjunction(), "reduce", (Access(done.name, steps),), {"monoid": "any", "axes": (0,)}, done.at)
    rows = tuple(d for d in done.dims if d.symbol is not dim)
    nodes = dict(graph.nodes)
    nodes[name] = Node(name, rows, done.type, (found,), recurrent=True, at=done.at)
    here = Access(name, tuple(Term.of(d.symbol) for d in rows))
    for looker in lookers:
        reading = (
            replace(d, operands=(*d.operands, here)) if _looks(d, dim.bound) else d for d in nodes[looker].definitions
        )
        nodes[looker] = replace(nodes[looker], definitions=tuple(reading))
    return replace(graph, nodes=nodes)


__all__ = ["check_stopping", "waits_for"]
