"""Products in sums: what is the same for all elements of a sum is multiplied once, after the sum.

In the gradient of `sqrt((x[0 : t + 1] ** 2).sum(0))` the step s gets `sum(g[t] * x[s] for t >= s)`: each reader has
elements of its own. `x[s]` taken out, they are `g[t]`, the same for all readers, and the sum is a running one.

Where an element is compared with a running maximum, reader and element meet in one factor. It is cut in two at the
maximum m of the reader's own step, since s <= t and m never falls:

    exp(x[s] - m[t])  =  exp(x[s] - m[s]) * exp(m[s] - m[t])         in softmax and logsumexp; both are at most one
    (x[s] == m[t])    =  (x[s] == m[s]) * (m[s] == m[t])             in the gradient of a maximum; so for a minimum

The first part leaves the sum. The second is one at the reader's own step, and from there to the next reader it is
multiplied by the same for all elements: `exp(m[s] - m[s + 1])`, `m[s] == m[s + 1]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

from polyrhythm.compiler.ir.conditions import Condition
from polyrhythm.compiler.ir.graph import Access
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.sets import proves
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.ir.types import Shape
from polyrhythm.compiler.passes.elements import Element, Elements, Made, renamed, symbols_of, type_of
from polyrhythm.compiler.passes.rewriting import Nodes
from polyrhythm.compiler.passes.weights import SHAPING, Peak, guarded, number, plain, same
from polyrhythm.errors import ShapeError


@dataclass(frozen=True)
class Factor:
    """One factor of a product, or what the product is divided by."""

    element: Element
    below: bool = False

    @property
    def symbols(self) -> frozenset[Symbol]:
        return symbols_of(self.element)


@dataclass(frozen=True)
class Separated:
    """A sum of elements as `outer` times a sum of `inner`, in which `ratio`, of edges, multiplies older elements."""

    inner: Element
    outer: Element | None
    ratio: Element | None = None


@dataclass(frozen=True)
class Separation:
    """Takes out of the elements at `place` what only the reader decides, whose newest element is at `at`, a step of it.

    `edge` stands for that step in a ratio; `way` leads from the reader to the one that is combined before it.
    """

    nodes: Nodes
    place: Symbol
    readers: frozenset[Symbol]
    at: Term
    edge: Symbol
    way: int
    known: Condition
    peaks: dict[str, Peak]

    def of(self, element: Element) -> Separated | None:
        """The sum of such elements, if something can be taken out of it."""
        inner: list[Factor] = []
        outer: list[Factor] = []
        ratios: list[Element] = []
        for factor in self.factors(element):
            cut = self._cut(factor) if factor.symbols >= self.readers | {self.place} else None
            if cut is not None:
                outer.append(Factor(cut[0]))
                ratios.append(cut[1])
            elif factor.symbols & self.readers and self.place not in factor.symbols:
                outer.append(factor)
            else:
                inner.append(factor)
        if not outer:
            return None
        ratio = reduce(lambda a, b: Made("mul", (a, b)), ratios) if ratios else None
        dtype = type_of(self.nodes, element).dtype
        one = number(1, dtype)
        return Separated(product(inner, one), product(outer, one), ratio)

    def factors(self, element: Element, below: bool = False) -> Iterator[Factor]:
        """The factors of an element; the shape of each can be broadcast to that of the element."""
        if isinstance(element, Made) and element.op == "neg":
            yield Factor(Made("neg", (number(1, type_of(self.nodes, element).dtype),)))
            yield from self.factors(element.operands[0], below)
            return
        if isinstance(element, Made) and element.op == "add" and element.operands[0] is element.operands[1]:
            yield Factor(number(2, type_of(self.nodes, element).dtype), below)
            yield from self.factors(element.operands[0], below)
            return
        if isinstance(element, Made) and element.op in ("mul", "div"):
            left, right = element.operands
            yield from self.factors(left, below)
            yield from self.factors(right, below != (element.op == "div"))
            return
        if isinstance(element, Made) and element.op in SHAPING:
            found = list(self.factors(element.operands[0], below))
            if len(found) > 1:
                shape = self.shape(element.operands[0])
                yield from (Factor(self.shaped(element, shape, one.element), one.below) for one in found)
                return
        if isinstance(element, Made) and element.op == "einsum" and len(element.operands) > 1:
            words, output = parse_spec(element.attributes["spec"])
            if "" in words:
                scalar = words.index("")
                left_words = [word for n, word in enumerate(words) if n != scalar]
                others = tuple(operand for n, operand in enumerate(element.operands) if n != scalar)
                yield from self.factors(element.operands[scalar], below)
                spec = f"{','.join(left_words)}->{output}"
                plain_copy = len(others) == 1 and left_words[0] == output
                yield from self.factors(others[0] if plain_copy else Made("einsum", others, {"spec": spec}), below)
                return
        yield Factor(element, below)

    def shape(self, element: Element) -> Shape:
        """The shape of an element."""
        return type_of(self.nodes, element).shape

    def shaped(self, how: Made, shape: Shape, factor: Element) -> Element:
        """A factor of what is reshaped or broadcast, in the new shape; a scalar fits as it is."""
        own = self.shape(factor)
        if own == ():
            return factor
        if own != shape:
            factor = Made("broadcast", (factor,), {"shape": shape})
        return Made(how.op, (factor,), how.attributes)

    def _cut(self, factor: Factor) -> tuple[Element, Element] | None:
        """A factor of reader and element: the reader's part, and what older elements are multiplied by."""
        core = plain(factor.element)
        if factor.below or not isinstance(core, Made):
            return None
        if core.op == "exp" and isinstance(core.operands[0], Made) and core.operands[0].op == "sub":
            own, peak = core.operands[0].operands
            found = self._peak(own, peak, "max", True)
            if found is None:
                return None
            outside, ratio = (Made("exp", (Made("sub", pair),)) for pair in ((own, found[0]), found[1:]))
            # A maximum that is not finite counts as a number, and may be above the next.
            ratio = Made("minimum", (ratio, number(1, type_of(self.nodes, core).dtype)))
        elif core.op == "cast" and isinstance(core.operands[0], Made) and core.operands[0].op == "eq":
            own, peak = core.operands[0].operands
            found = self._peak(own, peak, None, False) or self._peak(peak, own, None, False)
            if found is None:
                return None
            own = peak if self.place in symbols_of(own) else own
            outside, ratio = (
                Made("cast", (Made("eq", pair),), core.attributes) for pair in ((own, found[0]), found[1:])
            )
        else:
            return None
        return self.like(factor.element, outside), self.like(factor.element, ratio)

    def like(self, element: Element, part: Element) -> Element:
        """A part of what an element is but for its shape, in that shape."""
        if not isinstance(element, Made) or element.op not in SHAPING:
            return part
        inner = element.operands[0]
        return self.shaped(element, self.shape(inner), self.like(inner, part))

    def _peak(
        self, own: Element, peak: Element, monoid: str | None, finite: bool
    ) -> tuple[Element, Element, Element] | None:
        """The running maximum at the reader's step, at an edge and at the edge combined before; None if it is none.

        It has to be one of the reader's own elements, and to go the other way: elements follow the reader.
        """
        if self.place in symbols_of(own) or symbols_of(peak) & self.readers or self.place not in symbols_of(peak):
            return None
        read = guarded(self._opened(peak), self.place, finite)
        found = None if read is None else self.peaks.get(read.source)
        if read is None or found is None or (monoid is not None and found.monoid != monoid):
            return None
        if not found.inclusive or found.reverse == (self.way > 0):
            return None
        (reader,) = self.readers
        placed = renamed(self._opened(own), {reader: Term.of(reader) - (self.at - Term.of(self.place))})
        if not same(self._opened(found.element), placed):
            return None
        source = self.nodes[read.source]
        here = read.substitute({self.place: self.at})
        steps = {dim.symbol: step for dim, step in zip(source.dims, here.steps, strict=True) if isinstance(step, Term)}
        if not proves(self.known, source.points.substitute(steps)):
            return None
        edges = Term.of(self.edge), Term.of(self.edge) + self.way
        at_reader, edge, before = (renamed(peak, {self.place: step}) for step in (self.at, *edges))
        return at_reader, edge, before

    def _opened(self, element: Element) -> Element:
        """An element in terms of what is stored for good, to see what it is."""
        if isinstance(element, Access):
            symbols = element.symbols & (self.readers | {self.place})
            return Elements(self.nodes, symbols).of(element, {}) or element
        return Made(element.op, tuple(self._opened(operand) for operand in element.operands), element.attributes)


def product(factors: list[Factor], one: Element) -> Element:
    """A product of factors, and of nothing one."""
    above = [factor.element for factor in factors if not factor.below]
    found = reduce(lambda a, b: Made("mul", (a, b)), above) if above else one
    for factor in factors:
        if factor.below:
            found = Made("div", (found, factor.element))
    return found


def separated(how: Separation, element: Element) -> Separated | None:
    """What `how` makes of an element; None where lengths cannot be shown to fit without more to go by."""
    try:
        return how.of(element)
    except ShapeError:
        return None
