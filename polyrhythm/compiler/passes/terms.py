"""Sums of sums: where elements are sums, or products of a reader with them, each term is a running result by itself.

In the gradient of `softmax(x[0 : t + 1]) @ v[0 : t + 1]` the step s gets the sum over its readers t of

    (g[t] @ v[s] + d[t]) * w(s, t)  =  v[s] @ sum(w(s, t) * g[t])  +  sum(w(s, t) * d[t])

As it is written no factor can be taken out of the sum, and every pair of steps would be computed. A contraction is
linear in each of its operands, so what only the reader decides is contracted after the sum. Done where every term is
then a running result (`running.py`), which takes work in proportion to the steps. Equal but for rounding: terms that
nearly cancel do so after their sums and not pair by pair, as in the gradient of a recurrence written by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce

from polyrhythm.compiler.ir.graph import Access, Definition
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.passes.elements import Element, Elements, Made, emitted, symbols_of, type_of
from polyrhythm.compiler.passes.factors import Factor, Separation, product
from polyrhythm.compiler.passes.rewriting import Nodes
from polyrhythm.compiler.passes.running import Ranged, Summed, result, separated_sum, separation, views
from polyrhythm.compiler.passes.weights import Peak, number
from polyrhythm.errors import ShapeError


@dataclass(frozen=True)
class Term:
    """A term of each element; what is summed of it is contracted with what the `reader` decides, if there is that."""

    element: Element
    reader: Element | None = None
    spec: str = ""


@dataclass(frozen=True)
class _Given(Summed):
    """An axis of which the elements are known."""

    known: Element | None = None

    def element(self, elements: Elements, definition: Definition, place: object) -> Element | None:
        """That element."""
        return self.known


def terms_result(nodes: Nodes, found: Ranged, peaks: dict[str, Peak]) -> Definition | None:
    """What a sum is after a running result was added for each of its terms."""
    how = separation(nodes, found, peaks) if found.summed.monoid == "sum" else None
    if how is None:
        return None
    for seen in views(nodes, found):
        try:
            terms = list(_terms(how, seen))
            parts = [_part(nodes, found, term) for term in terms]
        except ShapeError:
            continue
        if (len(terms) == 1 and terms[0].reader is None) or not all(_runs(nodes, part, peaks) for part in parts):
            continue
        made = [result(nodes, part, peaks) for part in parts]
        if None not in made:
            pairs = zip(terms, parts, made, strict=True)
            return _sum(nodes, found, [_read(nodes, found, t, p, m) for t, p, m in pairs if m is not None])
    return None


def _terms(how: Separation, element: Element) -> Iterator[Term]:
    """The terms of an element, whose sum it is."""
    factors = list(how.factors(element))
    for at, factor in enumerate(factors):
        core = factor.element
        if factor.below or not factor.symbols >= how.readers | {how.place} or not isinstance(core, Made):
            continue
        rest = [*factors[:at], *factors[at + 1 :]]
        if core.op in ("add", "sub"):
            left, right = (_times(how, rest, _as(how, operand, core)) for operand in core.operands)
            yield from _terms(how, left)
            yield from _terms(how, Made("neg", (right,)) if core.op == "sub" else right)
            return
        taken = _contracted(how, core, rest)
        if taken is not None and how.shape(element) == how.shape(core):
            yield taken
            return
    yield Term(element)


def _contracted(how: Separation, core: Made, rest: list[Factor]) -> Term | None:
    """A contraction of a value of the reader with one of the element, times scalars."""
    if core.op != "einsum" or len(core.operands) != 2 or any(how.shape(factor.element) != () for factor in rest):
        return None
    fixed = [how.place not in symbols_of(operand) for operand in core.operands]
    if fixed.count(True) != 1:
        return None
    own = fixed.index(True)
    words, output = parse_spec(core.attributes["spec"])
    element = _times(how, rest, core.operands[1 - own])
    return Term(element, core.operands[own], f"{words[own]},{words[1 - own]}->{output}")


def _times(how: Separation, rest: list[Factor], element: Element) -> Element:
    return product([Factor(element), *rest], number(1, type_of(how.nodes, element).dtype))


def _as(how: Separation, operand: Element, core: Made) -> Element:
    """An operand of a sum in its shape."""
    shape = how.shape(core)
    return operand if how.shape(operand) == shape else Made("broadcast", (operand,), {"shape": shape})


def _part(nodes: Nodes, found: Ranged, term: Term) -> Ranged:
    """The sum of a term."""
    node = replace(found.node, name=f"{found.node.name}_term", type=type_of(nodes, term.element))
    return replace(found, node=node, summed=_Given("sum", found.summed.axes, known=term.element))


def _runs(nodes: Nodes, part: Ranged, peaks: dict[str, Peak]) -> bool:
    """Whether the sum of a term is a running one, before anything is added for it."""
    element = part.summed.element(Elements(nodes), part.definition, part.end)
    return element is not None and (
        not symbols_of(element) & part.gone or separated_sum(nodes, part, peaks) is not None
    )


def _read(nodes: Nodes, found: Ranged, term: Term, part: Ranged, made: Definition) -> Access:
    """What a running result of a term is to the reader."""
    node, definition = found.node, found.definition
    total = nodes.add(part.node.name, part.node, definition, made.op, made.operands, **made.attributes)
    if term.reader is None:
        return total
    reader = emitted(nodes, node, definition, f"{node.name}_reader", term.reader)
    return nodes.add(f"{node.name}_term", node, definition, "einsum", (reader, total), spec=term.spec)


def _sum(nodes: Nodes, found: Ranged, totals: list[Access]) -> Definition:
    node, definition = found.node, found.definition

    def add(one: Access, other: Access) -> Access:
        return nodes.add(f"{node.name}_terms", node, definition, "add", (one, other))

    whole = reduce(add, totals)
    return Definition(definition.domain, "broadcast", (whole,), {"shape": node.shape}, definition.at)


__all__ = ["Term", "terms_result"]
