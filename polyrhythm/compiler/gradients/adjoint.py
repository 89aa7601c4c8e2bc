"""The gradient of what is read: for every point, the sum over all that read it.

A read goes from a reader's point r to the points of the source it touches. The gradient at a source point p gathers,
from every r that touches p, the matching part of the reader's contribution. The relation is turned around: reader
dims that p determines are solved for; the others are free, and the contributions are summed along them over the
range they take for this p. Where the relation is not exactly a point or a range, contributions outside it are zero.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from polyrhythm.compiler.gradients.cases import with_quotients
from polyrhythm.compiler.ir.conditions import (
    TRUE,
    Compare,
    Condition,
    Junction,
    conjunction,
    disjunction,
    eq,
    ge,
    le,
    lt,
    ne,
    negation,
    within,
)
from polyrhythm.compiler.ir.graph import Access, Definition, Node, NodeDim, Range, Step, copy_of
from polyrhythm.compiler.ir.sets import Points, facts, points, proves, simplified, simplified_term
from polyrhythm.compiler.ir.terms import FloorDiv, Symbol, Term, maximum, nested, ordered
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.ir.values import Growing, Space, Value
from polyrhythm.source import Source


@dataclass(frozen=True)
class Touch:
    """A read turned around, in terms of the source's dims and the free dims of the reader."""

    reader_steps: dict[Symbol, Term]  # the reader's point
    positions: tuple[Term, ...]  # where the point is along each range that is read
    condition: Condition  # when the reader touches the point at all
    free: dict[Symbol, NodeDim]  # the reader's dims that are left, with their names here


def turned_around(
    graph: Growing,
    reader: Node,
    definition: Definition,
    access: Access,
    source: Node,
    rows: Collection[Symbol] = (),
) -> Touch:
    """Solve `the steps read == p` for the reader's point; steps along `rows` stay free, not their quotients."""
    # A dim on which lengths depend keeps its name, if the source does not have it: they are the lengths of its rows.
    owners = {o for s in conjunction(reader.points, definition.domain).symbols for o in s.over} - {*source.symbols}
    primed = {symbol: symbol if symbol in owners else graph.fresh_dim(symbol) for symbol in reader.symbols}
    fresh = {old: Term.of(new) for old, new in primed.items()}
    # What is read, in terms of the unknown point of the reader: at single steps equations, over ranges inequalities.
    conditions = [reader.points.substitute(fresh), definition.domain.substitute(fresh)]
    equations: list[tuple[Term, Term]] = []
    ranges: list[tuple[Term, Range]] = []
    for symbol, step in source.steps(access).items():
        moved = step.substitute(fresh)
        if isinstance(moved, Range):
            ranges.append((Term.of(symbol), moved))
        else:
            equations.append((moved, Term.of(symbol)))
    equations = _quotients_known(equations, set(primed.values()))
    own = [NodeDim(primed[d.symbol], d.extent.substitute(fresh)) for d in reader.dims if d.symbol not in rows]
    equations, quotients, limits = with_quotients(equations, own, conjunction(*conditions), graph.fresh_dim)
    conditions += limits
    # One unknown after the other.
    unknown = {*primed.values(), *(d.symbol for d in quotients)}
    solved: dict[Symbol, Term] = {}
    for unit in (True, False):  # a coefficient of one first: it needs no divisibility
        for read, wanted in list(equations):
            rest = read.substitute(solved) - wanted
            for symbol in ordered(rest.symbols & unknown):
                factor = rest.coefficient(symbol)
                if not rest.linear_in(symbol) or (unit and abs(factor) != 1):
                    continue
                others = (rest - Term.of(symbol) * factor) * (-1 if factor > 0 else 1)
                answer = others // abs(factor)
                conditions.append(eq(others % abs(factor), 0))
                solved = {s: t.substitute({symbol: answer}) for s, t in solved.items()} | {symbol: answer}
                equations.remove((read, wanted))
                break
    conditions += [eq(read, wanted) for read, wanted in equations]
    # Where along each range the point lies, and which dims of the reader no equation has told.
    positions = []
    for wanted, run in ranges:
        along = wanted - run.start if run.step > 0 else run.start - wanted
        size = abs(run.step)
        positions.append(along // size)
        conditions += [eq(along % size, 0), ge(along // size, 0), lt(along // size, run.length)]
    free = {
        dim.symbol: NodeDim(primed[dim.symbol], dim.extent.substitute(fresh))
        for dim in reader.dims
        if primed[dim.symbol] not in solved
    }
    free |= {dim.symbol: dim for dim in quotients if dim.symbol not in solved}
    return Touch(
        {old: Term.of(new).substitute(solved) for old, new in primed.items()},
        tuple(position.substitute(solved) for position in positions),
        conjunction(*conditions).substitute(solved),
        free,
    )


def _quotients_known(equations: Sequence[tuple[Term, Term]], unknown: set[Symbol]) -> list[tuple[Term, Term]]:
    """The equations, with a quotient that one of them gives put into the others.

    What is read at `(t // n, t % n)`, as the steps of segments are, is read by the one t that both tell together.
    """
    found = list(equations)
    for place, (read, wanted) in enumerate(equations):
        quotients = [(m, factor) for m, factor in read.monomials if isinstance(m[0], FloorDiv) and len(m) == 1]
        if len(quotients) != 1 or abs(quotients[0][1]) != 1:
            continue
        monomial, factor = quotients[0]
        quotient = Term(0, ((monomial, 1),))
        rest = read - quotient * factor
        if not rest.symbols.isdisjoint(unknown):
            continue
        value = (wanted - rest) * factor
        for other, (term, goal) in enumerate(found):
            times = dict(term.monomials).get(monomial, 0)
            if other != place and times:
                found[other] = term + (value - quotient) * times, goal
    return found


def pulled(
    graph: Growing,
    source: Node,
    reader: Node,
    definition: Definition,
    access: Access,
    contribution: str,
    rows: Mapping[Symbol, bool],
) -> str | None:
    """A node over the source's dims: what one read contributes to the gradient at each point; None for nothing.

    `contribution` names a node over the reader's dims with the gradient of the operand it reads. Along `rows`, dims
    whose steps are computed again one after the other, sums are added up step by step: upwards where that is True.
    """
    touch = turned_around(graph, reader, definition, access, source, rows)
    touched = _touched(source, touch)
    if touched.is_empty:
        return None
    touch = _determined(source, touch, touched)
    touch = _in_strides(graph, source, touch, rows)
    touched = _touched(source, touch)
    rectangle = _rectangle(source, touch)
    condition = simplified(touch.condition, rectangle)
    dims = (*source.dims, *touch.free.values())
    space = Space(graph, dims, conjunction(rectangle, condition), definition.at, f"d_{source.name}")
    part = _part(space, contribution, reader, touch)
    each = _or_zero(space, part, condition)
    slow = [(d, rows[old]) for old, d in touch.free.items() if old in rows]
    fast = [d for old, d in touch.free.items() if old not in rows]
    outer = Space(graph, (*source.dims, *(d for d, _ in slow)), TRUE, definition.at, f"d_{source.name}")
    total = each
    for summed in _inner_first(fast):
        left = (*source.dims, *(d for d in fast if d not in summed and d in graph.nodes[total].dims))
        inner = replace(outer, dims=(*left, *(d for d, _ in slow)))
        total = _summed(inner, total, summed, touched)
    if not slow:
        return total
    # A recurrence is computed wherever it is defined, so it is defined only where something is touched.
    others = [s for s in touched.columns if s.kind == "dim" and s not in source.symbols]
    others += _elsewhere(touched, source.symbols)
    read = simplified(touched.without(others).condition(), source.rectangle)
    for d, upwards in reversed(slow):
        total = _added_up(graph, total, d, upwards, read, definition.at, f"d_{source.name}")
    whole = Space(graph, source.dims, read, definition.at, f"d_{source.name}")
    return total if read is TRUE else _or_zero(whole, whole.current(total), read)


def _inner_first(dims: Sequence[NodeDim]) -> list[list[NodeDim]]:
    """Dims in groups that are summed over together: rows of different lengths before the dims of the rows."""
    left, groups = list(dims), []
    while left:
        owners = {owner for d in left for s in d.extent.symbols for owner in s.over}
        groups.append([d for d in left if d.symbol not in owners])
        left = [d for d in left if d.symbol in owners]
    return groups


def _elsewhere(touched: Points, given: Collection[Symbol]) -> list[Symbol]:
    """The lengths that mean nothing for some dims: those of rows that these do not tell apart."""
    return [s for s in touched.columns if not set(s.over) <= set(given)]


def _rectangle(source: Node, touch: Touch) -> Condition:
    return conjunction(source.rectangle, *(within(d.symbol, d.extent) for d in touch.free.values()))


def _touched(source: Node, touch: Touch) -> Points:
    """Every pair of a point and what touches it.

    What only limits a length, as the longest row does, is left out: no gradient may wait for it.
    """
    rectangle = _rectangle(source, touch)
    named = rectangle.symbols | touch.condition.symbols
    known = conjunction(rectangle, facts(named))
    found = points(conjunction(known, touch.condition), ordered(known.symbols | named))
    return found.without([s for s in ordered(known.symbols) if s not in named])


def _determined(source: Node, touch: Touch, touched: Points) -> Touch:
    """Solve for free dims of which a point is touched at a single step, though no equation says at which."""
    for dim in tuple(touch.free.values()):
        if not {owner for s in dim.extent.symbols for owner in s.over} <= set(source.symbols):
            continue
        run = _range(touched, dim, source.symbols)
        others = [s for s in touched.columns if s.kind == "dim" and s not in source.symbols]
        if proves(touched.without(others).condition(), eq(run.length, 1)):
            touch = _put(touch, dim, run.start)
    return touch


def _in_strides(graph: Growing, source: Node, touch: Touch, rows: Collection[Symbol]) -> Touch:
    """Count the steps of free dims that touch a point at every so manieth step only, so that no other is summed."""
    strides = {m for m in _divisors(touch.condition) if m > 1}
    for old, dim in tuple(touch.free.items()):
        if old in rows or not strides or any(s.over for s in dim.extent.symbols):
            continue
        touched = _touched(source, touch)
        some, known = touched.smallest(), touched.condition()
        if some is None:
            continue
        step = Term.of(dim.symbol)
        for stride, near in product(sorted(strides, reverse=True), (*source.symbols, None)):
            beside = Term.of(near) if near is not None else Term(0)
            first = beside + (some[dim.symbol] - (some[near] if near is not None else 0)) % stride
            if not proves(known, eq((step - first) % stride, 0)):
                continue
            first = first if proves(known, ge(step, first)) else first % stride
            count = graph.fresh_dim(dim.symbol)
            touch = _put(touch, dim, first + Term.of(count) * stride)
            touch.free[old] = NodeDim(count, (dim.extent + stride - 1) // stride)
            break
    return touch


def _divisors(condition: Condition) -> set[int]:
    """What is divided by in a condition."""
    if isinstance(condition, Junction):
        return set().union(*(_divisors(part) for part in condition.parts))
    terms = nested(condition.term) if isinstance(condition, Compare) else ()
    atoms = (atom for term in terms for monomial, _ in term.monomials for atom in monomial)
    return {atom.divisor for atom in atoms if isinstance(atom, FloorDiv)}


def _put(touch: Touch, dim: NodeDim, step: Term) -> Touch:
    """A touch with a step in the place of a free dim."""
    at = {dim.symbol: step}
    return Touch(
        {s: t.substitute(at) for s, t in touch.reader_steps.items()},
        tuple(position.substitute(at) for position in touch.positions),
        conjunction(touch.condition, within(dim.symbol, dim.extent)).substitute(at),
        {s: d for s, d in touch.free.items() if d is not dim},
    )


def _summed(outer: Space, each: str, free: Sequence[NodeDim], touched: Points) -> str:
    """The sum over free dims, each over the steps it takes."""
    rectangle = conjunction(*(within(d.symbol, d.extent) for d in outer.dims))
    outer = replace(outer, domain=rectangle)
    runs = {d: _not_negative(_range(touched, d, tuple(s.symbol for s in outer.dims)), rectangle) for d in free}
    steps: tuple[Step, ...] = tuple(runs.get(d, Term.of(d.symbol)) for d in outer.graph.nodes[each].dims)
    ranges = [step for step in steps if isinstance(step, Range)]
    kind = outer.graph.nodes[each].type
    stacked = Value(outer, Access(each, steps), TensorType((*(r.length for r in ranges), *kind.shape), kind.dtype))
    summed = stacked.apply("reduce", monoid="sum", axes=tuple(range(len(ranges))))
    # The ranges are those of points that are read. At others, or at bounds where nobody reads, they may lie outside,
    # and a sum there would be one of zeros.
    inside = {d.symbol for d in outer.dims}
    unseen = [s for s in touched.columns if s.kind == "dim" and s not in inside]
    read = touched.without([*unseen, *_elsewhere(touched, inside)]).condition()
    read = simplified(read, rectangle)
    elsewhere = conjunction(rectangle, negation(read))
    is_empty = disjunction(*(le(run.length, 0) for run in runs.values()))
    if all(_fits(run, d, rectangle) for d, run in runs.items()) and proves(elsewhere, is_empty):
        return summed.access.source
    return _or_zero(outer, summed, read)


def _added_up(
    graph: Growing, part: str, dim: NodeDim, upwards: bool, where: Condition, at: Source | None, prefix: str
) -> str:
    """The sum along the last dim of a node, as a recurrence: one step's part is added and need not be kept."""
    node = graph.nodes[part]
    others = node.dims[:-1]
    current = tuple(Term.of(d.symbol) for d in others)
    step = Term.of(dim.symbol)
    # Upwards, the entry at s is the sum of the parts before it; downwards, of its own and those after it.
    start, end = (Term(0), dim.extent) if upwards else (dim.extent, Term(0))
    dims = (NodeDim(dim.symbol, dim.extent + 1), *others)
    name = graph.put(f"{prefix}_sum", dims, node.type, at=at, recurrent=True).name
    space = Space(graph, (dim, *others), TRUE, at, prefix)
    known = step if upwards else step + 1
    added = space.read(Access(name, (known, *current))) + space.read(Access(part, (*current, step)))
    made = Access(added.access.source, (step - 1 if upwards else step, *current))
    zero = space.constant(0, node.dtype).access
    definitions = (
        copy_of(zero, graph.nodes[zero.source], node.shape, eq(step, start), at),
        Definition(ne(step, start), "copy", (made,), {}, at),
    )
    graph.nodes[name] = replace(graph.nodes[name], definitions=definitions, domain=where)
    whole = Definition(TRUE, "copy", (Access(name, (end, *current)),), {}, at)
    return graph.put(f"{prefix}_whole", others, node.type, whole, at=at).name


def _part(space: Space, contribution: str, reader: Node, touch: Touch) -> Value:
    """The part of the reader's contribution that belongs to the point: its ranges cut at their positions."""
    value = space.read(Access(contribution, tuple(touch.reader_steps[s] for s in reader.symbols)))
    count = len(touch.positions)
    if not count:
        return value
    rest = value.shape[count:]
    cut = value.apply(
        "slice",
        starts=(*touch.positions, *(Term(0) for _ in rest)),
        lengths=(*(Term(1) for _ in touch.positions), *rest),
        steps=(1,) * len(value.shape),
    )
    return cut.apply("reshape", shape=rest)


def _or_zero(space: Space, part: Value, condition: Condition) -> str:
    """The part where the condition holds, zero elsewhere."""
    pieces = [Definition(condition, "copy", (part.access,), {}, space.at)]
    if condition is not TRUE:
        zero = space.constant(0, part.dtype).access
        pieces.append(copy_of(zero, space.graph.nodes[zero.source], part.shape, negation(condition), space.at))
    return space.graph.put(f"{space.prefix}_at", space.dims, part.type, *pieces, at=space.at).name


def _range(touched: Points, dim: NodeDim, given: tuple[Symbol, ...]) -> Range:
    """The steps a free dim takes for a point: from its least to its greatest."""
    dropped = [s for s in touched.columns if s.kind == "dim" and s is not dim.symbol and s not in given]
    seen = touched.without([*dropped, *_elsewhere(touched, given)])
    parts = seen.intervals(dim.symbol)
    if len(parts) == 1:
        first, last = parts[0]
        known = seen.without([dim.symbol]).condition()
        first, last = simplified_term(first, known), simplified_term(last, known)
        return Range(first, simplified_term(maximum(Term(0), last - first + 1), known))
    return Range(Term(0), dim.extent)


def _not_negative(run: Range, rectangle: Condition) -> Range:
    """A range whose length is known where something is touched only; elsewhere it is empty."""
    if proves(rectangle, ge(run.length, 0)):
        return run
    return Range(run.start, maximum(Term(0), run.length), run.step)


def _fits(run: Range, dim: NodeDim, rectangle: Condition) -> bool:
    """Whether a range stays inside a dim at every point of a rectangle, whatever the bounds."""
    claim = disjunction(le(run.length, 0), conjunction(ge(run.start, 0), le(run.start + run.length, dim.extent)))
    return proves(rectangle, claim)


def zero_node(graph: Growing, like: Node, hint: str) -> str:
    """A node of zeros over another's dims."""
    space = Space(graph, like.dims, like.rectangle, like.at, hint)
    return space.constant(0, like.dtype, like.shape).access.source
