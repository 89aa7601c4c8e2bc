"""The executable grammar: what every checked graph, and the result of every pass, must satisfy.

Each rule is a function that yields what it finds wrong; `RULES` lists them in the order in which they may rely on each
other. The grammar is an independent check: it shares no code with the checks that report errors to a user, only the
integer sets and the type rules of the operations. Requirements of the graph are taken as given, so that a
read which is legal only for large enough bounds passes. Every proof is about one definition or one read, so the cost
grows linearly with the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import numpy as np

from polyrhythm.compiler.ir import dtypes, serials, sets
from polyrhythm.compiler.ir.conditions import Compare, Condition, Junction, conjunction, disjunction, ge, lt
from polyrhythm.compiler.ir.graph import (
    Graph,
    HostFunction,
    Node,
    Range,
    same_rows,
    stacks_shapes,
)
from polyrhythm.compiler.ir.ops import elementwise
from polyrhythm.compiler.ir.ops.opaque import OpaqueFunction
from polyrhythm.compiler.ir.reads import roots
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.ir.type_faults import Subject, is_known, lengths_at_others, type_faults
from polyrhythm.compiler.ir.types import Array, TensorType

FUNCTIONS: dict[str, type] = {"host": HostFunction, "opaque": OpaqueFunction}
"""Operations with an attribute `function`, and what that is."""

ARITIES = {op.name: 1 for op in elementwise.UNARY} | {op.name: 2 for op in elementwise.BINARY}
"""The number of operands where the type rule takes any."""

Complaints = Iterator[tuple[str, str]]
"""What a rule finds wrong: the name of a node (or of the graph's own part), and the fault."""


class GrammarError(Exception):
    """A graph that is not well formed: a fault of the compiler, not of the user's program."""

    def __init__(self, rule: str, where: str, what: str) -> None:
        super().__init__(f"{where} breaks the rule {rule!r}: {what}")
        self.rule, self.where, self.what = rule, where, what


def verify(graph: Graph) -> None:
    """Raise a GrammarError if the graph breaks a rule.

    >>> from tests.compiler.ir.parse import parse
    >>> verify(parse('x: f32 = input(name="x")'))
    >>> verify(parse("y: f32 = exp(x)"))
    Traceback (most recent call last):
    tests.compiler.ir.verify.GrammarError: y breaks the rule 'accesses': it reads x, which does not exist
    """
    subject = Subject(graph)
    for rule, check in RULES:
        for where, what in check(subject):
            raise GrammarError(rule, where, what)


def _names(subject: Subject) -> Complaints:
    inputs: dict[str, str] = {}
    for name, node in subject.graph.nodes.items():
        if not name or name != node.name:
            yield name, f"the node listed under this name is called {node.name!r}"
        for definition in node.definitions:
            if definition.op == "input":
                given = definition.attributes.get("name")
                if not isinstance(given, str):
                    yield name, f"an input needs a name, not {given!r}"
                elif inputs.setdefault(given, name) != name:
                    yield name, f"the input {given!r} is {inputs[given]} already"


def _accesses(subject: Subject) -> Complaints:
    nodes = subject.graph.nodes
    reads = [(node.name, access) for node, definition in subject.pieces for access in definition.operands]
    reads += [(str(bound), access) for bound, access in subject.graph.lengths.items()]
    for where, access in reads:
        if access.source not in nodes:
            yield where, f"it reads {access.source}, which does not exist"
        elif len(access.steps) != len(nodes[access.source].dims):
            dims = len(nodes[access.source].dims)
            yield where, f"the access {access} has {len(access.steps)} steps, but {access.source} has {dims} dims"
        for step in access.ranges:
            if step.step == 0:
                yield where, f"the range {step} in {access} does not move"


def _references(subject: Subject) -> Complaints:
    graph = subject.graph
    named = [("outputs", graph.outputs), ("effects", graph.effects), ("until", graph.until.values())]
    for where, names in named:
        for name in names:
            if name not in graph.nodes:
                yield where, f"{name} does not exist"
    for dim, name in graph.until.items():
        node = graph.nodes[name]
        if dim.kind != "dim" or dim.bound is None or dim not in node.symbols:
            yield "until", f"{dim} is not a dim of {name} with a bound"
        elif set(dim.bound.over) != set(node.symbols) - {dim}:
            yield "until", f"the bound of {dim} is over {dim.bound.over}, but {name} is over {node.symbols}"
        if node.type != TensorType((), dtypes.BOOL):
            yield "until", f"{name} is {node.type}, not a truth value"
    for bound, access in graph.lengths.items():
        source = graph.nodes[access.source]
        if bound.kind == "dim":
            yield "lengths", f"{bound} is a dim and has no length"
        if source.shape or dtypes.kind(source.dtype) != "int" or access.ranges:
            yield "lengths", f"the length {bound} is {access}, which is not one integer"
        if not _dims(access.symbols) <= set(bound.over):
            yield "lengths", f"the length {bound} varies along more than its dims {bound.over}"


def _symbols(subject: Subject) -> Complaints:
    lengths, stops = subject.graph.lengths, subject.graph.stops
    for node in subject.graph:
        if len(set(node.symbols)) < len(node.dims) or any(s.kind != "dim" for s in node.symbols):
            yield node.name, f"its dims {node.symbols} are not distinct dims"
        known: set[Symbol] = set()
        for dim in node.dims:
            # A length that is decided as the program runs may depend on a later dim.
            available = known | ({s for s in node.symbols if stops.keys() & dim.extent.symbols} - {dim.symbol})
            yield from _unknown(node, dim.extent.symbols, available, f"the extent {dim.extent}")
            known.add(dim.symbol)
        used = [(f"the shape {node.type}", length.symbols) for length in node.shape]
        used += [(f"the domain {node.domain}", node.domain.symbols)]
        used += [(f"the definition by {d.op}", d.symbols) for d in node.definitions]
        for what, symbols in used:
            yield from _unknown(node, symbols, known, what)
            for symbol in symbols:
                if symbol.over and symbol not in lengths and symbol not in stops:
                    yield node.name, f"{what} uses the ragged bound {symbol}, which has no length"


def _unknown(node: Node, symbols: frozenset[Symbol], known: set[Symbol], what: str) -> Complaints:
    missing = _dims(symbols) - known
    if missing:
        yield node.name, f"{what} varies along {', '.join(sorted(map(str, missing)))}, not available there"


def _dims(symbols: frozenset[Symbol]) -> set[Symbol]:
    """The dims among some symbols, and those their ragged bounds depend on."""
    return {s for s in symbols if s.kind == "dim"}.union(*(s.over for s in symbols))


def _affine(subject: Subject) -> Complaints:
    for node in subject.graph:
        for dim in node.dims:
            if not dim.extent.is_affine:
                yield node.name, f"the extent {dim.extent} is not affine"
        if not _is_affine(node.domain):
            yield node.name, f"the domain {node.domain} is not affine"
    for node, definition in subject.pieces:
        if not _is_affine(definition.domain):
            yield node.name, f"the domain {definition.domain} is not affine"
        for access in definition.operands:
            points = [step for step in access.steps if isinstance(step, Term)]
            parts = [*points, *(part for r in access.ranges for part in (r.start, r.length))]
            if not all(part.is_affine for part in parts):
                yield node.name, f"the access {access} is not affine"


def _is_affine(condition: Condition) -> bool:
    if isinstance(condition, Compare):
        return condition.term.is_affine
    assert isinstance(condition, Junction)
    return all(map(_is_affine, condition.parts))


def _operations(subject: Subject) -> Complaints:
    for node, definition in subject.pieces:
        if not is_known(definition.op):
            yield node.name, f"there is no operation {definition.op}"
        given, wanted = len(definition.operands), ARITIES.get(definition.op)
        if wanted is not None and given != wanted:
            yield node.name, f"{definition.op} takes {wanted} operands, not {given}"


def _attributes(subject: Subject) -> Complaints:
    for node, definition in subject.pieces:
        for key, value in definition.attributes.items():
            function = FUNCTIONS.get(definition.op) if key == "function" else None
            if not (isinstance(value, function) if function is not None else _is_attribute(value)):
                yield node.name, f"the attribute {key} of {definition.op} is {value!r}, of type {type(value).__name__}"


def _is_attribute(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_attribute, value))
    if isinstance(value, Array):
        return value.value.dtype in dtypes.DTYPES
    if isinstance(value, np.dtype):
        return value in dtypes.DTYPES
    return value is None or type(value) in (int, float, str, bool) or isinstance(value, (Term, Condition))


def _disjoint(subject: Subject) -> Complaints:
    for node in subject.graph:
        for first, second in combinations(node.definitions, 2):
            both = conjunction(subject.where(node, first), second.domain)
            point = sets.counterexample(both, disjunction())
            if point is not None:
                yield node.name, f"two definitions hold at {point}: where {first.domain}, and where {second.domain}"


def _coverage(subject: Subject) -> Complaints:
    """Every point of a node has a definition, and what is wanted as a whole exists as a whole."""
    graph = subject.graph
    wanted = roots(graph)
    for node in graph:
        defined = disjunction(*(definition.domain for definition in node.definitions))
        point = sets.counterexample(conjunction(node.points, subject.required), defined)
        if point is not None:
            yield node.name, f"it has no definition at {point}"
        if node.name in wanted or node.is_input:
            point = sets.counterexample(conjunction(node.rectangle, subject.required), node.domain)
            if point is not None:
                yield node.name, f"it is needed on its whole rectangle, but its domain leaves out {point}"


def _reads(subject: Subject) -> Complaints:
    for node, definition in subject.live:
        for number, access in enumerate(definition.operands):
            source = subject.graph[access.source]
            steps: dict[Symbol, Term] = {}
            inside = [subject.where(node, definition), definition.read_where(number)]
            for symbol, step in source.steps(access).items():
                if isinstance(step, Range):
                    position = Term.of(Symbol(f"position_{symbol}", "dim", serial=serials.POSITION))
                    inside += [ge(position, 0), lt(position, step.length)]
                    step = step.at(position)
                steps[symbol] = step
            elsewhere = lengths_at_others(access, source)
            inside += [subject.graph.started.substitute(elsewhere), same_rows(node, steps, elsewhere)]
            lands = source.points.substitute({**steps, **elsewhere})
            point = sets.counterexample(conjunction(*inside), lands)
            if point is not None:
                yield node.name, f"{access} reads where {source.name} is not defined, at {point}"


def _rectangular(subject: Subject) -> Complaints:
    """Values that a range stacks have one shape: it does not depend on the step that the range goes along."""
    for node, definition in subject.pieces:
        for access in definition.operands:
            source = subject.graph[access.source]
            if stacks_shapes(access, source):
                yield node.name, f"{access} stacks values of different shapes, {source.type}"


def _lengths(subject: Subject) -> Complaints:
    for node, definition in subject.live:
        given = subject.where(node, definition)
        for access in definition.operands:
            for step in access.ranges:
                if not sets.proves(given, ge(step.length, 0)):
                    yield node.name, f"the range {step} in {access} may have a negative length"


RULES: tuple[tuple[str, Callable[[Subject], Complaints]], ...] = (
    ("names", _names),
    ("accesses", _accesses),
    ("references", _references),
    ("symbols", _symbols),
    ("affine", _affine),
    ("operations", _operations),
    ("attributes", _attributes),
    ("rectangular", _rectangular),
    ("lengths", _lengths),
    ("types", type_faults),
    ("disjoint", _disjoint),
    ("coverage", _coverage),
    ("reads", _reads),
)
"""Each rule by its name; later ones may assume the earlier."""
