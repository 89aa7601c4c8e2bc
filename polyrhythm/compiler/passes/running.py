"""Running results: recurrences that combine one element after the other by a monoid.

`Ranged` is a reduction over a range of steps; `result` is the same as an entry of a recurrence, which it adds. `Run`
says where that begins and which way it goes. Inclusive, the entry at a step has that step's own element in it;
exclusive, there is one more step, which holds the identity, so that empty runs are right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from polyrhythm.compiler.ir import dtypes, serials
from polyrhythm.compiler.ir.conditions import TRUE, Condition, conjunction, eq, ge, le, lt, ne
from polyrhythm.compiler.ir.graph import Access, Definition, Node, NodeDim
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.sets import points, proves, simplified, simplified_term
from polyrhythm.compiler.ir.terms import Symbol, Term, dims_of, maximum, ordered
from polyrhythm.compiler.ir.types import Shape, TensorType
from polyrhythm.compiler.passes.elements import Element, Elements, Made, emitted, renamed, symbols_of, walk
from polyrhythm.compiler.passes.factors import Separated, Separation, separated
from polyrhythm.compiler.passes.rewriting import Nodes
from polyrhythm.compiler.passes.weights import Peak, Weights
from polyrhythm.source import Source

COMBINE = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "or", "all": "and"}


PLACE = Symbol("place", "dim", serial=serials.ENTRY)
"""The step of an element, until it has the name of a dim."""

EDGE = Symbol("edge", "dim", serial=serials.EDGE)
"""The step of the newest element of an entry."""


@dataclass(frozen=True)
class Run:
    """A run over the steps of one dim of some dims: where it begins, which way it goes, and where it has entries."""

    dims: tuple[NodeDim, ...]
    symbol: Symbol
    begin: Term
    reverse: bool
    inclusive: bool
    domain: Condition

    @property
    def current(self) -> tuple[Term, ...]:
        return tuple(Term.of(dim.symbol) for dim in self.dims)

    @property
    def before(self) -> dict[Symbol, Term]:
        """The step that is combined before the current one."""
        u = Term.of(self.symbol)
        return {self.symbol: u + 1 if self.reverse else u - 1}

    @property
    def newest(self) -> dict[Symbol, Term]:
        """The step whose element the entry at the current one adds."""
        u = Term.of(self.symbol)
        return {self.symbol: u if self.reverse or self.inclusive else u - 1}


@dataclass(frozen=True)
class Summed:
    """An axis that a reduction or a contraction combines: its number in each operand, None where one lacks it."""

    monoid: str
    axes: tuple[int | None, ...]
    letter: str = ""

    def element(self, elements: Elements, definition: Definition, place: Term) -> Element | None:
        """What one position along the axis adds to the result."""
        parts: list[Element] = []
        for access, axis in zip(definition.operands, self.axes, strict=True):
            part = elements.of(access, {} if axis is None else {axis: place})
            if part is None:
                return None
            parts.append(part)
        if self.letter:
            words, output = parse_spec(definition.attributes["spec"])
            spec = ",".join(word.replace(self.letter, "") for word in words)
            return Made("einsum", tuple(parts), {"spec": f"{spec}->{output}"})
        own = self.axes[0]
        assert own is not None
        rest = tuple(axis - (axis > own) for axis in definition.attributes["axes"] if axis != own)
        return Made("reduce", tuple(parts), {"monoid": self.monoid, "axes": rest}) if rest else parts[0]


def axes_of(definition: Definition) -> Iterator[Summed]:
    """The axes that a definition combines over."""
    if definition.op == "reduce":
        for axis in definition.attributes["axes"]:
            yield Summed(definition.attributes["monoid"], (axis,))
    elif definition.op == "einsum":
        words, output = parse_spec(definition.attributes["spec"])
        for letter in dict.fromkeys("".join(words)):
            if letter not in output and all(word.count(letter) < 2 for word in words):
                yield Summed("sum", tuple(word.index(letter) if letter in word else None for word in words), letter)


@dataclass(frozen=True)
class Steps:
    """The steps that an axis of a value has: those of a dim of so many steps, from `start` on."""

    symbol: Symbol
    extent: Term
    start: Term


@dataclass(frozen=True)
class Ranged:
    """A reduction of elements over a range of steps.

    `gone` are the dims of the reader along which the range changes; `end` is the step after its last.
    """

    node: Node
    definition: Definition
    summed: Summed
    steps: Steps
    end: Term
    gone: frozenset[Symbol]
    reverse: bool
    known: Condition


def running(
    nodes: Nodes,
    hint: str,
    run: Run,
    element: Access,
    monoid: str,
    shape: Shape,
    factor: Access | None,
    at: Source | None,
) -> str:
    """The recurrence that combines an element of each step with what was before, times a factor where there is one."""
    dtype = nodes[element.source].dtype
    name = nodes.fresh(hint)
    kind = TensorType(shape, dtype)
    u = Term.of(run.symbol)
    own = Access(name, run.current).substitute(run.before)
    added = element.substitute(run.newest)
    first = element
    if not run.inclusive:
        first = nodes.constant(f"{name}_identity", dtypes.identity(monoid, dtype), at)
    # The name is taken before anything else is added under it.
    nodes.nodes[name] = Node(name, run.dims, kind, (), True, run.domain, at)
    if factor is not None:
        product = Definition(TRUE, "mul", (own, factor), {}, at)
        later = conjunction(run.domain, ne(u, run.begin))
        own = nodes.put(f"{name}_scaled", run.dims, kind, product, domain=later, at=at).here
    begin = Definition(eq(u, run.begin), "broadcast", (first,), {"shape": shape}, at)
    step = Definition(ne(u, run.begin), COMBINE[monoid], (added, own) if run.reverse else (own, added), {}, at)
    nodes.nodes[name] = Node(name, run.dims, kind, (begin, step), True, run.domain, at)
    return name


def steps_of(nodes: Nodes, access: Access, axis: int) -> Steps | None:
    """The steps that an axis of what is read has, if it is a range of steps, or each position is made of one."""
    if axis < len(access.ranges):
        run = access.ranges[axis]
        source = nodes[access.source]
        dim = next(d for d, step in zip(source.dims, access.steps, strict=True) if step is run)
        return Steps(dim.symbol, dim.extent, run.start) if run.step == 1 else None
    # The position is a name that no range has: where it ends up is the range.
    found = Elements(nodes).of(access, {axis: Term.of(PLACE)})
    return None if found is None else _leaf(nodes, found)


def _leaf(nodes: Nodes, element: Element) -> Steps | None:
    for part in walk(element):
        if isinstance(part, Access):
            for dim, step in zip(nodes[part.source].dims, part.steps, strict=True):
                if isinstance(step, Term) and PLACE in step.symbols:
                    if not step.linear_in(PLACE) or step.coefficient(PLACE) != 1:
                        return None
                    return Steps(dim.symbol, dim.extent, step - Term.of(PLACE))
    return None


def result(nodes: Nodes, found: Ranged, peaks: dict[str, Peak] | None = None) -> Definition | None:
    """What the reduction is after a running result was added; None where elements differ from reader to reader.

    `peaks` are the running maxima and minima that were added before, by name.
    """
    peaks = {} if peaks is None else peaks
    # The element at a step, the same for all readers, perhaps after what a reader decides was taken out of it.
    node, definition, steps = found.node, found.definition, found.steps
    monoid, place = found.summed.monoid, Term.of(PLACE)
    element = found.summed.element(Elements(nodes, found.gone), definition, place - steps.start)
    if element is None:
        return None
    factor = outer_factor = None
    if symbols_of(element) & found.gone:
        parts = separated_sum(nodes, found, peaks) if monoid == "sum" else None
        if parts is None:
            return None
        element, outer_factor, factor = parts.inner, parts.outer, parts.ratio
    peak = element
    # The dims and steps of the entries.
    inclusive = proves(found.known, ge(found.end - steps.start, 1))
    if not inclusive and any(s in nodes.graph.stops for s in steps.extent.symbols):
        return None
    entries = steps.extent + 1
    if not inclusive and not proves(found.known, lt(found.end, entries)):  # `h[1:T]` where T is 0
        entries = simplified_term(maximum(entries, found.end + 1), found.known)
        if dims_of(entries):
            return None
    begin = found.end if found.reverse else steps.start
    kept = symbols_of(element) | begin.symbols | (frozenset() if factor is None else symbols_of(factor))
    outer = tuple(dim for dim in node.dims if dim.symbol in kept)
    own = step_symbol(nodes, [part for part in walk(element) if isinstance(part, Access)], steps.symbol)
    if any(dim.symbol is own for dim in outer):
        return None
    # The elements, wherever some reader reads one.
    at_elements = conjunction(found.known, ge(place, steps.start), lt(place, found.end))
    at_entries = at_elements if inclusive else conjunction(found.known, ge(place, steps.start), le(place, found.end))
    dims = (*outer, NodeDim(own, steps.extent))
    elements = defined_like(node, dims, at_elements, own)
    if any(symbol in nodes.graph.stops for symbol in elements.domain.symbols):
        return None  # a recurrence goes on wherever it is defined, and would have to know where that ends
    plain = Definition(TRUE, "broadcast", (), {}, definition.at)
    element = renamed(element, {PLACE: Term.of(own)})
    wide = dtypes.accumulator(node.dtype)
    if wide != node.dtype:
        element = Made("cast", (element,), {"dtype": wide})
        factor = None if factor is None else Made("cast", (factor,), {"dtype": wide})
    each = emitted(nodes, elements, plain, f"{node.name}_element", element)
    # What older elements are multiplied by, from entry to entry or always.
    by = None
    if factor is not None and EDGE in symbols_of(factor):  # of each entry and the one before
        if not inclusive or wide != node.dtype:
            return None
        rest = conjunction(at_entries, ne(place, begin - 1 if found.reverse else begin))
        each_ratio = defined_like(node, dims, rest, own)
        by = emitted(nodes, each_ratio, plain, f"{node.name}_ratio", renamed(factor, {EDGE: Term.of(own)}))
    elif factor is not None:
        by = emitted(nodes, defined_like(node, outer, at_entries), plain, f"{node.name}_ratio", factor)
    # The recurrence, and its entry that the reader reads.
    if not inclusive:
        dims = (*outer, NodeDim(own, entries))
    elif found.reverse:
        begin = begin - 1
    run = Run(dims, own, begin, found.reverse, inclusive, defined_like(node, dims, at_entries, own).domain)
    name = running(nodes, f"{node.name}_running", run, each, monoid, node.shape, by, definition.at)
    if monoid in ("max", "min"):
        peaks[name] = Peak(peak, monoid, found.end if found.reverse else steps.start, found.reverse, inclusive)
    read = Access(name, (*(Term.of(d.symbol) for d in outer), _entry(found, inclusive)))
    if outer_factor is not None:
        by = emitted(nodes, node, definition, f"{node.name}_factor", outer_factor)
        shaped = nodes.add(f"{node.name}_total", node, definition, "broadcast", (read,), shape=node.shape)
        if wide != node.dtype:
            shaped = nodes.add(f"{node.name}_total", node, definition, "cast", (shaped,), dtype=node.dtype)
        return Definition(definition.domain, "mul", (shaped, by), {}, definition.at)
    if wide != node.dtype:
        return Definition(definition.domain, "cast", (read,), {"dtype": node.dtype}, definition.at)
    return Definition(definition.domain, "broadcast", (read,), {"shape": node.shape}, definition.at)


def step_symbol(nodes: Nodes, reads: Iterable[Access], otherwise: Symbol) -> Symbol:
    """The dim along which elements are read: what is made of them has steps of the same name, and joins their loop."""
    for access in reads:
        for dim, step in zip(nodes[access.source].dims, access.steps, strict=True):
            if isinstance(step, Term) and PLACE in step.symbols:
                return dim.symbol
    return otherwise


def entries_like(found: Ranged, dims: tuple[NodeDim, ...], own: Symbol) -> Node:
    """A stand-in over dims, defined at the entries that readers want, one more than there are elements."""
    place = Term.of(PLACE)
    where = conjunction(found.known, ge(place, found.steps.start), le(place, found.end))
    return defined_like(found.node, dims, where, own)


def _entry(found: Ranged, inclusive: bool) -> Term:
    """The entry of the running result that a reader wants."""
    if found.reverse:
        return found.steps.start
    return found.end - 1 if inclusive else found.end


def separation(nodes: Nodes, found: Ranged, peaks: dict[str, Peak]) -> Separation | None:
    """How reader and element are told apart; None where a step of the reader is no step of its newest element."""
    if len(found.gone) > 1:
        return None
    (symbol,) = found.gone
    edge = found.steps.start if found.reverse else found.end - 1  # the step of the newest element
    if not edge.linear_in(symbol) or edge.coefficient(symbol) != 1:
        return None
    return Separation(nodes, PLACE, found.gone, edge, EDGE, 1 if found.reverse else -1, found.known, peaks)


def views(nodes: Nodes, found: Ranged) -> Iterator[Element]:
    """An element with what the reader has stored as it is; then with all of it in view."""
    place = Term.of(PLACE) - found.steps.start
    for read in (Elements(nodes, pair=found.gone | {PLACE}), Elements(nodes, found.gone)):
        element = found.summed.element(read, found.definition, place)
        if element is not None:
            yield element


def separated_sum(nodes: Nodes, found: Ranged, peaks: dict[str, Peak]) -> Separated | None:
    """A sum whose elements change with the reader, as one of elements that do not, or that change alike."""
    how = separation(nodes, found, peaks)
    if how is None:
        return None
    (symbol,) = found.gone
    for seen in views(nodes, found):
        parts = separated(how, seen) or Separated(seen, None)
        if not symbols_of(parts.inner) & found.gone:
            return parts
        weighted = _weighted(nodes, found, parts.inner, how.at - Term.of(symbol), symbol, peaks)
        if weighted is not None:
            inner, factor = weighted
            return Separated(inner, parts.outer, factor if parts.ratio is None else Made("mul", (factor, parts.ratio)))
    return None


def _weighted(
    nodes: Nodes, found: Ranged, element: Element, ahead: Term, symbol: Symbol, peaks: Mapping[str, Peak]
) -> tuple[Element, Element] | None:
    """The newest element of each entry and the factor of those before, where weights change alike for all elements.

    The newest element is `ahead` of the reader's step.
    """
    begin = found.end if found.reverse else found.steps.start
    # The reader as a function of its newest element.
    element = renamed(element, {symbol: Term.of(EDGE) - ahead})
    weights = Weights(nodes, EDGE, PLACE, found.node.dtype, begin, peaks)
    factor = weights.quotient(element, 1 if found.reverse else -1)
    return None if factor is None else (renamed(element, {EDGE: Term.of(PLACE)}), factor)


def defined_like(node: Node, dims: tuple[NodeDim, ...], where: Condition, along: Symbol | None = None) -> Node:
    """A stand-in over dims, defined where a condition holds for some reader; the place is the step of one of them."""
    own = {dim.symbol for dim in dims if dim.symbol is not along} | ({PLACE} if along is not None else set())
    columns = ordered(where.symbols)
    dropped = [symbol for symbol in columns if symbol.kind == "dim" and symbol not in own]
    domain = points(where, columns).without(dropped).condition()
    if along is not None:
        domain = domain.substitute({PLACE: Term.of(along)})
    made = Node(node.name, dims, TensorType((), node.dtype), (), False, TRUE, node.at)
    return replace(made, domain=simplified(domain, made.rectangle))
