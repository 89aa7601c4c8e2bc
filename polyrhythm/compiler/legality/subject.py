"""A program under examination: what each computation of its blocks stands for in the graph.

A computation names its node (the result is called like it, perhaps with a number) and gives the point it computes.
The checker believes neither the name nor the point: `operations.py` proves that the operation, its operands and
attributes are those of the definition that holds there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import Condition, conjunction, negation
from polyrhythm.compiler.ir.graph import Access, Definition, Graph, Node
from polyrhythm.compiler.ir.ops import record
from polyrhythm.compiler.ir.ops.record import attribute_terms
from polyrhythm.compiler.ir.sets import facts
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.legality.failure import IllegalProgramError, Rule
from polyrhythm.compiler.legality.instances import Occurrence, Scenario, Time, Walk, evaluated
from polyrhythm.compiler.legality.prover import Prover, Values
from polyrhythm.compiler.loops.ir import Compute, Load, LoopProgram, Operand, Place, Steps, Store
from polyrhythm.source import Source


@dataclass(frozen=True, eq=False)
class Computation:
    """One computation of an occurrence: `node` at `step`, by `definition`, at the instances where that point exists."""

    occurrence: Occurrence
    compute: Compute
    position: int
    node: Node
    definition: Definition
    number: int
    step: tuple[Term, ...]
    domain: Condition

    @property
    def at(self) -> Source | None:
        return self.definition.at or self.node.at

    @property
    def steps(self) -> dict[Symbol, Term]:
        return dict(zip(self.node.symbols, self.step, strict=True))

    @property
    def load_time(self) -> Time:
        return (*self.occurrence.time, 0)

    @property
    def call_time(self) -> Time:
        return (*self.occurrence.time, 0, self.position)

    def reads(self) -> Iterator[tuple[Access, Operand, Condition]]:
        """What the definition reads here, what the program reads for it, and where it does."""
        for number, (access, operand) in enumerate(zip(self.definition.operands, self.compute.operands, strict=True)):
            where = self.definition.read_where(number).substitute(self.steps)
            yield access.substitute(self.steps), operand, conjunction(self.domain, where)


@dataclass(frozen=True, eq=False)
class Storing:
    """A store of an occurrence: which value goes into which slot."""

    computation: Computation
    store: Store
    index: tuple[Term, ...]
    time: Time

    @cached_property
    def as_writer(self) -> tuple[dict[Symbol, Term], tuple[Term, ...]]:
        """The counters of a second instance beside that of a read, and the point it computes in terms of them."""
        return self._under(serials.WRITER, self.computation.step)

    @cached_property
    def as_other(self) -> tuple[dict[Symbol, Term], tuple[Term, ...]]:
        """The counters of a third instance, and the slot it stores to in terms of them."""
        return self._under(serials.OTHER, self.index)

    def _under(self, serial: int, terms: Iterable[Term]) -> tuple[dict[Symbol, Term], tuple[Term, ...]]:
        roles = self.computation.occurrence.role(serial)
        return roles, tuple([term.substitute(roles) for term in terms])


class Subject:
    """A graph and the loops made of it, in one scenario."""

    def __init__(self, graph: Graph, program: LoopProgram, scenario: Scenario | None = None) -> None:
        self.graph, self.program = graph, program
        self.walk = Walk(program, scenario)
        self.scenario = self.walk.scenario
        required = conjunction(*(requirement.condition for requirement in graph.requirements))
        # A size with a `max` says something of that too: with `1 <= P <= T`, T is one at least.
        within = facts(frozenset(bound for bound in program.bounds if bound.max is not None))
        self.prover = Prover(conjunction(required, self.walk.found, within))
        self.one_slot: dict[str, bool] = {}  # places in which every slot belongs to one point (see `reads.py`)
        # Occurrences that never run need no proof.
        self.occurrences = [o for o in self.walk.occurrences if not self.prover.impossible(o.domain)]
        self.computations: dict[Occurrence, list[Computation]] = {}
        for occurrence in self.occurrences:
            self._scoped(occurrence)
            body = enumerate(occurrence.block.body)
            self.computations[occurrence] = [self._computation(occurrence, n, c) for n, c in body]

    @property
    def early(self) -> bool:
        """Whether a loop stops early, so that blocks may have computed more than is needed."""
        return bool(self.scenario.ends)

    @cached_property
    def storings(self) -> dict[str, list[Storing]]:
        """Every store of the program by place."""
        found: dict[str, list[Storing]] = {name: [] for name in self.program.places}
        for occurrence, computations in self.computations.items():
            by_result = {c.compute.result: c for c in computations}
            for number, store in enumerate(occurrence.block.stores):
                place = self.place(store.place, occurrence)
                if store.value not in by_result:
                    raise self.fault("form", f"{occurrence.block.name} stores {store.value}, which it does not compute")
                if place.kind == "input" or len(store.index) != len(place.slots):
                    raise self.fault("form", f"{occurrence.block.name} stores into {place.kind} {place.name}", place.at)
                index = tuple(term.substitute(occurrence.values) for term in store.index)
                time = (*occurrence.time, 1, number)
                found[store.place].append(Storing(by_result[store.value], store, index, time))
        return found

    @cached_property
    def free(self) -> set[str]:
        """The nodes that may be made anew wherever they are read: by their point alone, or of what they read."""
        found: set[str] = set()
        views: set[str] = set()
        for node in self.graph:
            if len(node.definitions) == 1 and not node.definitions[0].record.calls:
                (definition,) = node.definitions
                operands = definition.operands
                made = all(access.source in found and not access.ranges for access in operands)
                own = definition.record
                if own.free or own.inlined or own.chooses or (operands and made):
                    found.add(node.name)
                elif own.view or own.identity:
                    views.add(node.name)
        return found | views

    def points(self, node: Node) -> Condition:
        """Where a node has values, in this scenario."""
        return node.points.substitute(self.scenario.final)

    def place(self, name: str, occurrence: Occurrence | None = None) -> Place:
        if name not in self.program.places:
            where = f"{occurrence.block.name} uses " if occurrence else ""
            raise self.fault("form", f"{where}the place {name}, which does not exist")
        return self.program.places[name]

    def fault(self, rule: Rule, what: str, at: Source | None = None) -> IllegalProgramError:
        """An error without a witness."""
        line = at or next((node.at for node in self.graph if node.at), None)
        return IllegalProgramError(rule, what, at=line)

    def _computation(self, occurrence: Occurrence, position: int, compute: Compute) -> Computation:
        node = self._node(compute)
        step = tuple(term.substitute(occurrence.values) for term in compute.step)
        here = dict(zip(node.symbols, step, strict=True))
        inside = self.points(node).substitute(here)
        domain = conjunction(occurrence.domain, inside) if self.early else occurrence.domain
        free = record(compute.op).free and len(node.definitions) == 1

        def undefined(*where: Condition) -> IllegalProgramError:
            at = self.prover.example(domain, *where)
            what = f"{shown_point(node, step, at)} is computed by a definition that does not hold there"
            return failure("operation", what, occurrence, at, compute.at or node.at)

        fitting = []
        for number, definition in enumerate(node.definitions):
            holds = definition.domain.substitute(self.scenario.final).substitute(here)
            if not self.prover.impossible(domain, holds):
                fitting.append((number, definition, holds))
        if not fitting and self.early:
            number, definition, holds = 0, node.definitions[0], domain
        elif not fitting:
            raise undefined()
        else:
            number, definition, holds = fitting[0]
        if not free and not self.prover.implied(domain, holds):
            raise undefined(negation(holds))
        final = definition.substitute(self.scenario.final)
        return Computation(occurrence, compute, position, node, final, number, step, domain)

    def _node(self, compute: Compute) -> Node:
        node = self.graph.nodes.get(compute.node)
        if node is None or compute.op not in (d.op for d in node.definitions) or len(node.dims) != len(compute.step):
            raise self.fault("operation", f"nothing in the graph is called {compute.node} and made by {compute.op}")
        return node

    def _scoped(self, occurrence: Occurrence) -> None:
        """Every symbol in the code of a block is a counter around it or a bound."""
        known = {counter for counter, _ in occurrence.loops} | set(self.program.bounds)
        for symbol in _mentioned(occurrence) - known:
            what = f"the code of {occurrence.block.name} uses {symbol}, which has no value there"
            raise self.fault("form", what, occurrence.block.body[0].at if occurrence.block.body else None)
        stray = occurrence.domain.symbols - set(occurrence.counters) - set(self.program.bounds)
        for symbol in stray - {end for end, _ in self.scenario.ends.values()}:
            raise self.fault("form", f"a loop or guard around {occurrence.block.name} uses {symbol}, which is unknown")


def _mentioned(occurrence: Occurrence) -> set[Symbol]:
    terms: list[Term | Condition] = [term for store in occurrence.block.stores for term in store.index]
    for compute in occurrence.block.body:
        terms += [*compute.step, *compute.type.shape]
        terms += [term for value in compute.attributes.values() for term in attribute_terms(value)]
        for operand in compute.operands:
            if isinstance(operand, Load):
                for entry in operand.index:
                    terms += [entry.start, entry.length] if isinstance(entry, Steps) else [entry]
                terms += operand.type.shape
    return set().union(*(term.symbols for term in terms))


def has_effect(computation: Computation) -> bool:
    """Whether a computation is a call of a host function with an effect."""
    return computation.definition.effect is not None


def failure(
    rule: Rule,
    what: str,
    occurrence: Occurrence,
    at: Values,
    source: Source | None,
    outcome: str = "",
    solved: Mapping[Symbol, Term] | None = None,
) -> IllegalProgramError:
    """An error about one instance, with the bounds and the counters of that instance as the witness."""
    point = {symbol: value for symbol, value in at.items() if symbol.kind != "dim"}
    point |= {counter: evaluated(value.substitute(solved or {}), at) for counter, value in occurrence.loops}
    outcome = outcome or f"in the instance {occurrence.shown(at)}"
    if not point:
        what = f"{what} ({outcome})"
    return IllegalProgramError(rule, what, at=source, point=point, outcome=outcome)


def shown_point(node: Node, step: tuple[Term, ...], at: Values) -> str:
    """A point of a node at a witness, as in `y[3]`."""
    return f"{node.name}[{', '.join(str(evaluated(term, at)) for term in step)}]" if step else node.name
