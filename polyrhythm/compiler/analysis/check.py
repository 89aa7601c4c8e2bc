"""Every check before a program runs, in one place: the graph is proved sound, or the user is told why not.

- The definitions of a recurrent tensor partition its domain.
- Every read is inside what it reads. A plain expression is checked where it is demanded, which is found by walking
  from the outputs and the recurrent tensors back through the reads; its domain becomes exactly that.
- Lengths are not negative; an arg-reduction does not meet an empty axis; a spatial slice stays inside its axis.
- No value depends on itself (`well_founded.py`), and no stopping condition on the length it decides.

A failure that disappears once the bounds are large enough becomes a requirement, checked at the call. Any
other is an error with the smallest counterexample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations
from operator import and_

from polyrhythm.compiler.analysis.naming import described, is_named, point, read
from polyrhythm.compiler.analysis.stopping import check_stopping
from polyrhythm.compiler.analysis.well_founded import check_progress
from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import (
    TRUE,
    Condition,
    conjunction,
    disjunction,
    eq,
    ge,
    le,
    negation,
    within,
)
from polyrhythm.compiler.ir.graph import (
    Access,
    Definition,
    Graph,
    Node,
    NodeDim,
    Range,
    Requirement,
    lengths_elsewhere,
    longest,
    operand_type,
    same_rows,
)
from polyrhythm.compiler.ir.reads import after_successors, positioned, roots
from polyrhythm.compiler.ir.sets import Points, facts, points, proves, simplified, simplified_term
from polyrhythm.compiler.ir.terms import Symbol, Term, ordered
from polyrhythm.errors import (
    GapError,
    OutOfRangeError,
    OverlapError,
    PolyrhythmError,
    ShapeError,
    UndefinedError,
)


def checked(graph: Graph) -> Graph:
    """The graph with exact domains and its requirements on the bounds; raises where it is unsound."""
    checker = _Checker(graph)
    for node in graph:
        if node.recurrent:
            checker.partition(node)
    demand = checker.demand()
    nodes = {name: checker.restricted(node, demand[name]) for name, node in checker.nodes.items()}
    sound = replace(graph, nodes=nodes, requirements=tuple(dict.fromkeys(checker.requirements)))
    check_progress(sound)
    check_stopping(sound)
    return sound


def _tidied(node: Node) -> Node:
    """A plain node with its conditions and ranges simplified by where it is demanded."""
    definitions = []
    for definition in node.definitions:
        domain = simplified(definition.domain, node.points)
        given = conjunction(node.points, domain)
        operands = tuple(_tidied_access(access, given) for access in definition.operands)
        if domain is not definition.domain or operands != definition.operands:
            definition = replace(definition, domain=domain, operands=operands)
        definitions.append(definition)
    return replace(node, definitions=tuple(definitions))


def _tidied_access(access: Access, given: Condition) -> Access:
    if not access.ranges:
        return access
    return Access(access.source, tuple(_tidied_step(step, given) for step in access.steps))


def _tidied_step(step: Term | Range, given: Condition) -> Term | Range:
    return replace(step, length=simplified_term(step.length, given)) if isinstance(step, Range) else step


@dataclass(frozen=True)
class _Claim:
    """Something that must hold wherever a definition does, and how to tell the user when it does not."""

    condition: Condition
    extra: tuple[Symbol, ...]  # symbols of the claim besides the node's dims and the bounds
    known: Condition  # what may be assumed of the extra symbols
    error: type[PolyrhythmError]
    what: str
    fix: str
    steps: tuple[Term, ...] = ()  # where a read goes
    source: Node | None = None  # what it reads


@dataclass(frozen=True)
class _Reading:
    """A read of a plain node, to be looked at again if what is demanded of the node does not fit it."""

    node: Node
    definition: Definition
    access: Access
    where: Points


class _Checker:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.requirements: list[Requirement] = []
        self.bounds = ordered(symbol for symbol in graph.symbols if symbol.kind != "dim")
        self.facts = conjunction(facts(frozenset(self.bounds)), graph.started)
        self.stopped = {longest(bound) for bound in graph.stops}
        # Bounds the caller decides; the others are data, and no call can promise anything about them.
        self.free = tuple(s for s in self.bounds if not s.over)
        self.roots = {node.name for node in self._roots()}
        self.nodes = dict(graph.nodes)
        self.extents = _declared_extents(graph)
        self.images: dict[tuple[object, ...], Points] = {}

    def columns(self, node: Node, *extra: Symbol) -> tuple[Symbol, ...]:
        return (*self.bounds, *node.symbols, *extra)

    def box(self, node: Node) -> Points:
        """Every point of a node, for all bounds."""
        return points(conjunction(node.points, self.facts), self.columns(node))

    def partition(self, node: Node) -> None:
        """The definitions cover every point, and none twice."""
        name = node.name if is_named(node) else "y"
        if not node.definitions:
            raise UndefinedError(
                f"{described(node)} is used but has no definition",
                fix=f"assign to it before it is compiled or evaluated, as in {name}[{0 if node.dims else '()'}] = ...",
                at=node.at,
            )
        box = self.box(node)
        covered = disjunction(*(definition.domain for definition in node.definitions))
        gaps = box & points(negation(covered), self.columns(node))
        gap = gaps.smallest()
        if gap is not None:
            where = _where(gaps, box)
            raise GapError(
                f"{described(node)} has no definition " + (f"where {where}" if where else "at some points"),
                fix=f"define it there, {name}[{_typed(where)}] = ..., or wherever nothing else does, "
                f"{name}[pr.otherwise] = ...",
                at=node.at,
                point=gap,
                outcome=f"nothing defines {name}{point(node, gap)}",
            )
        for a, b in combinations(node.definitions, 2):
            twice = box & points(conjunction(a.domain, b.domain), self.columns(node))
            both = twice.smallest()
            if both is not None:
                where = _where(twice, box)
                raise OverlapError(
                    f"{described(node)} is defined twice " + (f"where {where}" if where else "at some points"),
                    fix=f"limit one of the two, as in {name}[condition] = ..., "
                    f"or make it {name}[pr.otherwise] = ... for the rest",
                    at=b.at,
                    point=both,
                    outcome=f"both define {name}{point(node, both)}",
                    also=(("and at", a.at),) if a.at else (),
                )

    def demand(self) -> dict[str, Points]:
        """Where each node is needed; every read on the way is checked."""
        needed = {name: self.box(self.nodes[name]) for name in self.roots}
        reads: dict[str, list[_Reading]] = {}
        for name in self._readers_first():
            box = self.box(self.nodes[name])
            where = needed.setdefault(name, box - box)  # what no one reads, as a branch never taken, is needed nowhere
            if name not in self.roots:
                where = needed[name] = self._fitted(name, where, reads.get(name, []))
            node = self.nodes[name]
            for definition in node.definitions:
                here = where if definition.domain is TRUE else where & points(definition.domain, self.columns(node))
                if here.is_empty:
                    continue
                for claim in self._claims(node, definition):
                    self._prove(node, definition, here, claim)
                for access in definition.operands:
                    if access.source in self.roots:
                        self._prove(node, definition, here, self._inside(node, access))
                    else:
                        reads.setdefault(access.source, []).append(_Reading(node, definition, access, here))
                        self._need(needed, access, node, here)
        return needed

    def restricted(self, node: Node, demanded: Points) -> Node:
        """A plain node limited to where it is demanded."""
        if node.recurrent:
            return node
        demanded = demanded.without(s for s in self.bounds if not set(s.over) <= set(node.symbols))
        started = self.graph.started
        known = started if started.symbols <= set(demanded.columns) else conjunction()
        where = simplified(demanded.condition(), conjunction(node.rectangle, known))
        limited = replace(node, domain=where)
        # What nobody reads yet, as the backward of a function, may be copied to where it is read.
        return limited if demanded.is_empty else _tidied(limited)

    def _need(self, needed: dict[str, Points], access: Access, node: Node, here: Points) -> None:
        source = self.nodes[access.source]
        read = self._image(access, node, source, here)
        known = needed.get(source.name)
        if known is None:
            needed[source.name] = read
        elif known is not read and not read <= known:
            needed[source.name] = known | read

    def _fitted(self, name: str, where: Points, reads: list[_Reading]) -> Points:
        """Give a plain node extents that hold where it is demanded; where none does, its readers read too far."""
        node = self.nodes[name]
        box = self.box(node)
        if where <= box:
            return where
        dims = []
        for dim in node.dims:
            fitting = (e for e in self.extents[dim.symbol] if where <= self._slab(node, dim.symbol, e))
            dims.append(NodeDim(dim.symbol, next(fitting, dim.extent)))
        self.nodes[name] = replace(node, dims=tuple(dims))
        box = self.box(self.nodes[name])
        if not where <= box:
            for reading in reads:
                claim = self._inside(reading.node, reading.access)
                self._prove(reading.node, reading.definition, reading.where, claim)
        return where & box

    def _slab(self, node: Node, symbol: Symbol, extent: Term) -> Points:
        return points(conjunction(within(symbol, extent), self.facts), self.columns(node))

    def _roots(self) -> Iterator[Node]:
        """The nodes needed on their whole domain."""
        graph = self.graph
        names = roots(graph) | {d.attributes["loss"] for node in graph for d in node.definitions if d.op == "grad"}
        for node in graph:
            external = any(d.op == "input" or _called_everywhere(d) for d in node.definitions)
            if node.recurrent or external or node.name in names:
                yield node

    def _readers_first(self) -> list[str]:
        """Nodes so that every plain node comes after all that read it."""

        def reads(name: str) -> list[str]:
            return [source for source in reversed(self.graph[name].sources) if source not in self.roots]

        return after_successors(reads, self.graph.nodes)[::-1]

    def _image(self, access: Access, node: Node, source: Node, here: Points) -> Points:
        """The points of `source` that an access reads; many nodes read alike."""
        key = here, node.symbols, access.steps, source.symbols
        if key not in self.images:
            self.images[key] = self._new_image(access, node, source, here)
        return self.images[key]

    def _new_image(self, access: Access, node: Node, source: Node, here: Points) -> Points:
        if all(step is Term.of(symbol) for step, symbol in zip(access.steps, source.symbols, strict=True)):
            image = here.without(s for s in node.symbols if s not in source.symbols)
            return self._own_lengths(image.widened(self.columns(source)), access, source)
        steps, known, positions = positioned(source.steps(access))
        targets = tuple(Symbol(symbol.name, "dim", serial=serials.TARGET) for symbol in source.symbols)
        reads = conjunction(known, *(eq(Term.of(q), step) for q, step in zip(targets, steps.values(), strict=True)))
        columns = self.columns(node, *positions, *targets)
        image = here.widened(columns) & points(reads, columns)
        image = image.without((*node.symbols, *positions))
        return self._own_lengths(Points(self.columns(source), image.isl_set), access, source)

    def _own_lengths(self, image: Points, access: Access, source: Node) -> Points:
        """Forget the reader's ragged lengths that the source does not have, or has at another step."""
        steps = source.steps(access)
        others = [s for s in self.bounds if any(steps.get(owner) is not Term.of(owner) for owner in s.over)]
        if not others:
            return image
        columns = self.columns(source)
        return image.without(others).widened(columns) & points(self.facts, columns)

    def _inside(self, node: Node, access: Access) -> _Claim:
        """An access stays inside what it reads."""
        source = self.nodes[access.source]
        at, known, positions = positioned(source.steps(access))
        other = lengths_elsewhere(access, source, self.bounds)
        unknown = [symbol for term in other.values() for symbol in term.symbols]
        started = self.graph.started.substitute(other)
        return _Claim(
            source.points.substitute({**at, **other}),
            (*positions, *unknown),
            conjunction(known, facts(frozenset(unknown)), started, same_rows(node, at, other)),
            OutOfRangeError,
            f"{read(access, source)}{_reader(node)} may lie outside {described(source)}, which has steps "
            + ", ".join(f"0 <= {dim.symbol} < {dim.extent}" for dim in source.dims),
            _range_fix(node, source, access),
            tuple(at.values()),
            source,
        )

    def _claims(self, node: Node, definition: Definition) -> Iterator[_Claim]:
        for length in node.shape:
            if not length.is_constant:
                factors = [m for m, _ in length.monomials if len(m) > 1 and all(isinstance(f, Symbol) for f in m)]
                yield _Claim(
                    ge(length, 0),
                    (),
                    conjunction(*(ge(Term(0, ((factor, 1),)), 0) for factor in factors)),
                    ShapeError,
                    f"an axis of {described(node)} has length {length}, which may be negative",
                    f"limit it: pr.max(0, {length})",
                )
        if definition.record.claims is not None:
            kinds = tuple(operand_type(access, self.nodes[access.source]) for access in definition.operands)
            for claim in definition.record.claims(kinds, definition.attributes):
                yield _Claim(claim.condition, (), TRUE, claim.error, claim.what, claim.fix)

    def _prove(self, node: Node, definition: Definition, here: Points, claim: _Claim) -> None:
        if proves(conjunction(node.rectangle, self.facts, definition.domain, claim.known), claim.condition):
            return
        columns = self.columns(node, *claim.extra)
        bad = here.widened(columns) & points(conjunction(claim.known, negation(claim.condition)), columns)
        if bad.is_empty:
            return
        below = self._only_below(bad)
        if below is None:
            # A dim that ends early has a step wherever it may have any; a witness without one convinces nobody.
            running = (points(ge(Term.of(stopped), 1), (stopped,)) for stopped in self.stopped)
            witness = reduce(and_, running, bad).smallest() or bad.smallest()
            assert witness is not None
            dims = (*node.dims, *(claim.source.dims if claim.source is not None else ()))
            about = definition.symbols.union(node.symbols, claim.condition.symbols, *(d.extent.symbols for d in dims))
            outcome = None
            if claim.source is not None:
                name = claim.source.name if is_named(claim.source) else "step "
                steps = ", ".join(str(step.evaluate(witness.__getitem__)) for step in claim.steps)
                outcome = f"it reads {name}[{steps}]"
            shown = {s: v for s, v in witness.items() if s in about and s.serial != serials.POSITION}
            raise claim.error(claim.what, fix=claim.fix, at=definition.at, point=shown, outcome=outcome)
        self.requirements.append(Requirement(below, claim.what, definition.at))

    def _only_below(self, bad: Points) -> Condition | None:
        """If the failure needs small bounds, the condition on the bounds under which it does not happen."""
        free = self.free
        for stopped in self.stopped:
            # A dim that ends early has at least one step if it may have any, but nothing more is known.
            running = points(ge(Term.of(stopped), 1), (stopped,))
            bad = ((bad & running).without((stopped,)) & running) | (bad - running)
        if not free:
            return None
        bounds_bad = bad.without(s for s in bad.columns if s not in free)
        least = Symbol("least", "dim", serial=serials.SMALLEST)
        columns = (*bounds_bad.columns, least)
        lower = conjunction(*(le(Term.of(least), Term.of(s)) for s in free))
        largest = (bounds_bad.widened(columns) & points(lower, columns)).largest_value(Term.of(least))
        if largest is None:
            return None
        allowed = facts(frozenset(free))
        enough = conjunction(allowed, *(ge(Term.of(s), largest + 1) for s in free))
        if points(enough, bounds_bad.columns).is_empty:
            return None
        whole = points(allowed, bounds_bad.columns)
        return (whole - bounds_bad).given(whole).condition()


def _called_everywhere(definition: Definition) -> bool:
    """A host function with an effect, or with several results, which are made by one call."""
    if definition.op != "host":
        return False
    function = definition.attributes["function"]
    return function.effect is not None or not function.single


def _declared_extents(graph: Graph) -> dict[Symbol, list[Term]]:
    """Every extent that some node has along each dim, in order of appearance."""
    found: dict[Symbol, dict[Term, None]] = {}
    for node in graph:
        for dim in node.dims:
            found.setdefault(dim.symbol, {})[dim.extent] = None
    return {symbol: list(extents) for symbol, extents in found.items()}


def _where(bad: Points, box: Points) -> str:
    """The condition that holds on some points of a box, if it is short enough to read."""
    shown = str(bad.given(box).condition())
    return shown if len(shown) <= 60 and shown != "true" else ""


def _typed(shown: str) -> str:
    """A condition as a user can type it."""
    if not shown or " or " in shown:
        return "condition"
    parts = shown.split(" and ")
    return parts[0] if len(parts) == 1 else " & ".join(f"({part})" for part in parts)


def _reader(node: Node) -> str:
    """What to add when the read defines a recurrent tensor: its index is in terms of that tensor's own steps."""
    if not node.recurrent or not node.dims:
        return ""
    name = node.name if is_named(node) else "y"
    return f", read to define {name}[{', '.join(map(str, node.symbols))}],"


def _range_fix(node: Node, source: Node, access: Access) -> str:
    named = _by_name(node, source, access)
    if named:
        order = ", ".join(map(str, source.symbols))
        return f"the dims are in the order ({order}), and a positional index follows it; by name it is {named}"
    for dim, step in zip(source.dims, access.steps, strict=True):
        if isinstance(step, Term) and step.is_constant and step.constant < 0:
            return f"negative steps do not count from the end; write {dim.extent + step} for {step}"
    return (
        "read it only where it exists: inside pr.where(condition, ..., other), by a slice that stays inside, "
        "or at an index limited by pr.max(0, ...) and pr.min(...)" + _size_hint(source, access)
    )


def _by_name(node: Node, source: Node, access: Access) -> str:
    """The index by name, where its steps fit the dims in another order than theirs."""
    steps: dict[Symbol, Term | Range] = {}
    for own, step in zip(source.symbols, access.steps, strict=True):
        fitting = [d for d in source.symbols if d in step.symbols or d.bound in step.symbols]
        if not fitting:
            return ""
        steps[own if own in fitting else fitting[0]] = step
    if len(steps) < len(source.dims) or tuple(steps) == source.symbols:
        return ""
    at, known, _ = positioned(steps)
    if not proves(conjunction(node.points, known), source.points.substitute(at)):
        return ""
    shown = (f"{d}: {_sliced(step) if isinstance(step, Range) else step}" for d, step in steps.items())
    return f"[{{{', '.join(shown)}}}]"


def _sliced(run: Range) -> str:
    """A range as Python writes it where an index is no slice by itself."""
    end = run.start + run.length * run.step
    return f"slice({run.start}, {end})" if run.step == 1 else f"slice({run.start}, {end}, {run.step})"


def _size_hint(source: Node, access: Access) -> str:
    """What to say when two bounds that nothing relates meet in one read."""
    bounds = {s for s in access.symbols if s.kind != "dim"} - {s for d in source.dims for s in d.extent.symbols}
    if not bounds or not source.dims:
        return ""
    size, extent = min(map(str, bounds)), source.dims[0].extent
    return f'; a size that never exceeds a bound is declared as pr.size("{size}", max={extent})'
