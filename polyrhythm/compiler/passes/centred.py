"""Centred sums: sums of differences from a centre that moves with the reader, as in a variance so far.

In `((x[0 : t + 1] - m) ** 2).sum(0)` each reader has elements of its own, since its mean m[t] is. Sums about the centre
of one reader are those about the centre of the next, moved by `d = m[t - 1] - m[t]`:

    W[t] = W[t - 1] + w[t]                                                     the sum of the weights
    S[t] = S[t - 1] + d * W[t - 1] + w[t] * (x[t] - m[t])                      of weighted differences
    C[t] = C[t - 1] + 2 * d * S[t - 1] + d * d * W[t - 1] + w[t] * (x[t] - m[t]) ** 2

and so for products of two differences. Welford, and Chan, Golub and LeVeque do this for the mean; it holds for every
centre. Nothing cancels that did not before: no sum is larger than the differences that it is about, whereas
`sum(x ** 2) - n * m ** 2` loses all digits where the mean is large beside the spread.

Legal where every entry of the running sums is the newest of some reader, which then has a centre there, and where no
centre is computed from the sum: those of other readers may then be asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import TRUE, conjunction, eq, ge, lt, ne
from polyrhythm.compiler.ir.graph import Access, Definition, Node, NodeDim
from polyrhythm.compiler.ir.sets import proves
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.passes.elements import Element, Made, emitted, renamed, symbols_of, type_of, walk
from polyrhythm.compiler.passes.factors import Factor, Separation, product
from polyrhythm.compiler.passes.rewriting import Nodes
from polyrhythm.compiler.passes.running import PLACE, Ranged, Run, defined_like, separation, step_symbol, views
from polyrhythm.compiler.passes.weights import number, plain, same
from polyrhythm.errors import ShapeError

MOST = 2
"""The most differences in a product: with more the sums of all their products would have to be moved."""


@dataclass(frozen=True)
class Centred:
    """A sum of elements as `outer` times a sum of `weight` times differences, each of an element and a centre."""

    outer: Element | None
    weight: Element
    differences: tuple[tuple[Element, Element], ...]


def centred_result(nodes: Nodes, found: Ranged) -> Definition | None:
    """What a sum about centres that move with the reader is, after running sums were added; None if it is none."""
    how = separation(nodes, found, {})
    dtype = found.node.dtype
    if how is None or found.summed.monoid != "sum" or dtypes.accumulator(dtype) != dtype or not dtypes.is_float(dtype):
        return None
    for element in views(nodes, found):
        try:
            parts = _parts(how, element)
        except ShapeError:  # lengths that cannot be shown to fit without more to go by
            continue
        made = None if parts is None else _running(nodes, found, how, parts)
        if made is not None:
            return made
    return None


def _parts(how: Separation, element: Element) -> Centred | None:
    inner: list[Factor] = []
    outer: list[Factor] = []
    differences: list[tuple[Element, Element]] = []
    dtype = type_of(how.nodes, element).dtype
    for factor in how.factors(element):
        if not factor.symbols & how.readers:
            inner.append(factor)
        elif how.place not in factor.symbols:
            outer.append(factor)
        else:
            found = None if factor.below else _difference(how, factor.element)
            if found is None:
                return None
            own, centre, turned = found
            differences.append((own, centre))
            if turned:
                inner.append(Factor(Made("neg", (number(1, dtype),))))
    if not 1 <= len(differences) <= MOST:
        return None
    one = number(1, dtype)
    return Centred(product(outer, one) if outer else None, product(inner, one), tuple(differences))


def _difference(how: Separation, element: Element) -> tuple[Element, Element, bool] | None:
    """What is subtracted from what, in the shape of an element: the side of the place, that of the reader, turned."""
    core = plain(element)
    if not isinstance(core, Made) or core.op != "sub":
        return None
    left, right = core.operands
    for own, centre, turned in ((left, right, False), (right, left, True)):
        apart = not symbols_of(own) & how.readers and how.place not in symbols_of(centre)
        if apart and symbols_of(centre) & how.readers:
            own, centre = (how.like(element, part) for part in (own, centre))
            return own, centre, turned
    return None


def _running(nodes: Nodes, found: Ranged, how: Separation, parts: Centred) -> Definition | None:
    """The running sums of a product of differences, and the entry of them that the reader wants."""
    node, steps, place = found.node, found.steps, Term.of(PLACE)
    (reader,) = found.gone
    back = {reader: Term.of(reader) - (how.at - place)}  # the reader whose newest element is at the place
    centres = [part for _, centre in parts.differences for part in walk(centre) if isinstance(part, Access)]
    if not proves(found.known, ge(found.end - steps.start, 1)) or nodes.depends(centres, node.name):
        return None
    differences = [(own, renamed(centre, back)) for own, centre in parts.differences]
    every = [parts.weight, *(side for pair in differences for side in pair)]
    begin = found.end - 1 if found.reverse else steps.start
    kept = begin.symbols.union(*map(symbols_of, every))
    own = step_symbol(nodes, [part for one in every for part in walk(one) if isinstance(part, Access)], steps.symbol)
    outer = tuple(dim for dim in node.dims if dim.symbol in kept)
    if kept & found.gone or any(dim.symbol is own for dim in outer):
        return None
    dims = (*outer, NodeDim(own, steps.extent))
    within = conjunction(found.known, ge(place, steps.start), lt(place, found.end))
    entries = defined_like(node, dims, within, own)
    if any(symbol in nodes.graph.stops for symbol in entries.domain.symbols):
        return None  # a recurrence goes on wherever it is defined, and would have to know where that ends
    readers = defined_like(node, dims, found.known.substitute(back), own)
    if not proves(entries.points, readers.points):
        return None  # some entry is the newest of no reader
    run = Run(dims, own, begin, found.reverse, True, entries.domain)
    here = {PLACE: Term.of(own)}
    sums = _Sums(nodes, node, entries, run, Definition(TRUE, "broadcast", (), {}, found.definition.at))
    total = sums.of(renamed(parts.weight, here), [(renamed(a, here), renamed(c, here)) for a, c in differences])
    entry = steps.start if found.reverse else found.end - 1
    read = Access(total, (*(Term.of(dim.symbol) for dim in outer), entry))
    if parts.outer is None:
        return Definition(found.definition.domain, "broadcast", (read,), {"shape": node.shape}, found.definition.at)
    by = emitted(nodes, node, found.definition, f"{node.name}_factor", parts.outer)
    return Definition(found.definition.domain, "mul", (read, by), {}, found.definition.at)


@dataclass(frozen=True)
class _Sums:
    """Adds running sums at the entries of a run, each in the shape of the sum that is asked for."""

    nodes: Nodes
    node: Node
    entries: Node
    run: Run
    plain: Definition

    def of(self, weight: Element, differences: Sequence[tuple[Element, Element]]) -> str:
        """The running sum of a weight times one or two differences, by its name."""
        each = self._emitted("weight", weight, self.entries)
        weights = self._sum("weights", each, [])
        moved: list[Access] = []
        sums: list[str] = []
        product = each
        for own, centre in differences:
            if moved and all(map(same, differences[0], (own, centre))):  # a square
                moved, sums = moved * 2, sums * 2
            else:
                apart = self._emitted("difference", Made("sub", (own, centre)), self.entries)
                before = Made("sub", (renamed(centre, self.run.before), centre))
                moved.append(self._emitted("moved", before, self._later))
                alone = self._add("mul", each, apart, self.entries)
                sums.append(self._sum("about", alone, [(moved[-1], self._before(weights))]))
            product = self._add("mul", product, apart, self.entries)
        if len(differences) == 1:
            return sums[0]
        crossed = [(moved[0], self._before(sums[1])), (moved[1], self._before(sums[0]))]
        both = self._add("mul", moved[0], moved[1], self._later)
        return self._sum("about", product, [*crossed, (both, self._before(weights))])

    @property
    def _later(self) -> Node:
        """The entries but the first."""
        rest = ne(Term.of(self.run.symbol), self.run.begin)
        return replace(self.entries, domain=conjunction(self.entries.domain, rest))

    def _before(self, name: str) -> Access:
        return Access(name, self.run.current).substitute(self.run.before)

    def _emitted(self, hint: str, element: Element, where: Node) -> Access:
        shaped = Made("broadcast", (element,), {"shape": self.node.shape})
        return emitted(self.nodes, where, self.plain, f"{self.node.name}_{hint}", shaped)

    def _add(self, op: str, left: Access, right: Access, where: Node) -> Access:
        return self.nodes.add(f"{self.node.name}_{op}", where, self.plain, op, (left, right))

    def _sum(self, hint: str, element: Access, moves: Sequence[tuple[Access, Access]]) -> str:
        """The running sum of an element, to which products are added where its centre moves."""
        name = self.nodes.fresh(f"{self.node.name}_{hint}")
        kind = TensorType(self.node.shape, self.node.dtype)
        made = Node(name, self.run.dims, kind, (), True, self.run.domain, self.plain.at)
        self.nodes.nodes[name] = made  # the name is taken before anything else is added under it
        total = self._before(name)
        for left, right in moves:
            total = self._add("add", total, self._add("mul", left, right, self._later), self._later)
        u = Term.of(self.run.symbol)
        first = Definition(eq(u, self.run.begin), "broadcast", (element,), {"shape": self.node.shape}, self.plain.at)
        step = Definition(ne(u, self.run.begin), "add", (total, element), {}, self.plain.at)
        self.nodes.nodes[name] = replace(made, definitions=(first, step))
        return name
