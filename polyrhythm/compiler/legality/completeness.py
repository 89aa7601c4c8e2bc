"""Every point of every definition is computed, exactly once, and nothing else is.

For each definition: the points that its computations cover are solved for (a step is mostly a counter and a
constant), no two instances share one, and none is left over. What is computed from index values alone may be made where
it is read instead, as often as it is, unless it is an output. When a loop has stopped early, blocks may have run
ahead; only calls with an effect may not.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from polyrhythm.compiler.ir.conditions import Condition, conjunction, eq, lt, negation
from polyrhythm.compiler.ir.graph import Definition, Node
from polyrhythm.compiler.ir.serials import OTHER, WRITER
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.legality.failure import IllegalProgramError
from polyrhythm.compiler.legality.prover import Piece, Values, solve
from polyrhythm.compiler.legality.subject import Computation, Subject, failure, has_effect, shown_point


def check_completeness(subject: Subject) -> None:
    """Prove that every point is computed exactly once; raise an IllegalProgramError otherwise."""
    made: dict[tuple[str, int], list[Computation]] = {}
    stored = {storing.computation for storings in subject.storings.values() for storing in storings}
    for computations in subject.computations.values():
        for computation in computations:
            free = computation.node.name in subject.free and computation not in stored
            if not free:
                made.setdefault((computation.node.name, computation.number), []).append(computation)
    proved: set[object] = set()
    for node in subject.graph:
        for number, definition in enumerate(node.definitions):
            computations = made.get((node.name, number), [])
            instances = tuple((c.domain, c.step, has_effect(c)) for c in computations)
            key = (_domain(subject, node, definition), instances, node.symbols)
            # The caller reads outputs, and makes nothing.
            given = node.name in (*subject.graph.outputs, *subject.graph.effects)
            made_where_read = node.name in subject.free and not computations and not given
            if definition.op != "input" and not made_where_read and key not in proved:
                _check(subject, node, definition, computations)
                proved.add(key)


def _domain(subject: Subject, node: Node, definition: Definition) -> Condition:
    return conjunction(subject.points(node), definition.domain.substitute(subject.scenario.final))


@dataclass(frozen=True, eq=False)
class _Cover:
    """The points of a node that a computation covers; `values` gives the counters as terms of the node's own dims."""

    computation: Computation
    piece: Piece
    values: dict[Symbol, Term]


def _cover(computation: Computation, role: int) -> _Cover:
    roles = computation.occurrence.role(role)
    own = (Term.of(symbol) for symbol in computation.node.symbols)
    steps = (term.substitute(roles) for term in computation.step)
    unknowns = [next(iter(term.symbols)) for term in roles.values()]
    solution = solve(zip(steps, own, strict=True), unknowns)
    condition = conjunction(computation.domain.substitute(roles).substitute(solution.values), solution.left)
    values = {counter: term.substitute(solution.values) for counter, term in roles.items()}
    return _Cover(computation, Piece(condition, solution.unknowns), values)


def _check(subject: Subject, node: Node, definition: Definition, computations: list[Computation]) -> None:
    covers = [_cover(computation, WRITER) for computation in computations]
    others = [_cover(computation, OTHER) for computation in computations]
    for computation, cover in zip(computations, covers, strict=True):
        _check_inside(subject, computation)
        if cover.piece.unknowns:
            _check_once(subject, computation)
    for (cover, _), (_, other) in combinations(zip(covers, others, strict=True), 2):
        shared = conjunction(cover.piece.condition, other.piece.condition)
        if not subject.prover.impossible(shared):
            raise _twice(subject, cover, other, shared)
    missing = subject.prover.uncovered(_domain(subject, node, definition), [cover.piece for cover in covers])
    if missing is not None:
        what = f"{shown_point(node, node.current, missing)} is never computed"
        raise IllegalProgramError("completeness", what, at=definition.at or node.at, point=missing)


def _check_inside(subject: Subject, computation: Computation) -> None:
    """No instance computes a point that the node does not have."""
    node, occurrence = computation.node, computation.occurrence
    ahead = subject.early and not has_effect(computation)
    inside = subject.points(node).substitute(computation.steps)
    if not ahead and not subject.prover.implied(occurrence.domain, inside):
        at = subject.prover.example(occurrence.domain, negation(inside))
        what = f"{shown_point(node, computation.step, at)} is computed, which does not exist"
        raise failure("completeness", what, occurrence, at, computation.at)


def _check_once(subject: Subject, computation: Computation) -> None:
    """No two instances of one occurrence compute the same point. Of two that do, one has some counter less."""
    roles = computation.occurrence.role(OTHER)
    same = conjunction(*(eq(term, term.substitute(roles)) for term in computation.step))
    both = conjunction(computation.domain, computation.domain.substitute(roles), same)
    for counter, other in roles.items():
        less = lt(Term.of(counter), other)
        if not subject.prover.impossible(both, less):
            piece = Piece(both, ())
            own = _Cover(computation, piece, {c: Term.of(c) for c in roles})
            raise _twice(subject, own, _Cover(computation, piece, roles), conjunction(both, less))


def _twice(subject: Subject, one: _Cover, other: _Cover, shared: Condition) -> IllegalProgramError:
    at = subject.prover.example(shared)
    node, occurrence = one.computation.node, one.computation.occurrence
    step = tuple(term.substitute(one.values) for term in one.computation.step)
    what = f"{shown_point(node, step, at)} is computed twice"
    outcome = f"by {_shown(one, at)} and by {_shown(other, at)}"
    return failure("completeness", what, occurrence, at, one.computation.at, outcome, one.values)


def _shown(cover: _Cover, at: Values) -> str:
    occurrence = cover.computation.occurrence
    place = ".".join(str(entry) for entry in occurrence.time if isinstance(entry, int))
    return f"{occurrence.shown(at, cover.values)} (item {place})"
