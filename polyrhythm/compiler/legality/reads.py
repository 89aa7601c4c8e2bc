"""Every read finds the value it wants: written before, in the slot it looks into, and not overwritten in between.

One read at a time. The instance that computes the point read is solved for; the read is *matched* where that
instance comes strictly earlier and has put the value into the very slot that is read. Matches must cover all
instances and positions of the read. Then no store to the same slot of the same place may come between the two. A
place in which every slot belongs to one point, as in an output, needs no such proof, since every point is computed
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import FALSE, Condition, conjunction, disjunction, eq, ge, lt
from polyrhythm.compiler.ir.graph import Access, Node, Range
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.legality.failure import IllegalProgramError, Rule
from polyrhythm.compiler.legality.instances import (
    Occurrence,
    Time,
    before,
    between,
    carried,
    evaluated,
    substituted,
)
from polyrhythm.compiler.legality.prover import Piece, Values, solve
from polyrhythm.compiler.legality.subject import Computation, Storing, Subject, failure, shown_point
from polyrhythm.compiler.loops.ir import Load, Place, Steps
from polyrhythm.source import Source


@dataclass(frozen=True, eq=False)
class Read:
    """A load: of `node` at `step`, from the slot `index`, wherever `domain` holds.

    All are terms of the counters and of the positions along ranges.
    """

    occurrence: Occurrence | None
    name: str
    time: Time
    domain: Condition
    node: Node
    step: tuple[Term, ...]
    index: tuple[Term, ...]
    place: Place
    at: Source | None

    @cached_property
    def key(self) -> object:
        return self.time, self.domain, self.node.name, self.step, self.index, self.place.name


def check_reads(subject: Subject) -> None:
    """Prove that every load reads what the graph says; raise an IllegalProgramError otherwise."""
    seen: set[object] = set()
    for computations in subject.computations.values():
        for computation in computations:
            for access, operand, where in computation.reads():
                if isinstance(operand, Load) and not subject.prover.impossible(where):
                    read = read_of(subject, computation, access, operand, where)
                    if read.key not in seen:
                        seen.add(read.key)
                        check_read(subject, read)


def read_of(subject: Subject, computation: Computation, access: Access, load: Load, where: Condition) -> Read:
    """A load and the access it stands for, with one symbol per range for the position along it."""
    place = subject.place(load.place, computation.occurrence)
    node = subject.graph[access.source]
    values = computation.occurrence.values
    selections = [entry for entry in load.index if isinstance(entry, Steps)]
    if len(load.index) != len(place.slots) or len(selections) != len(access.ranges):
        raise _wrong(subject, computation, f"{load} has the wrong number of indices for {access}")
    known: list[Condition] = [where]
    positions = iter([Term.of(Symbol(f"k{n}", "dim", serial=serials.SELECTED)) for n in range(len(selections))])
    step: list[Term] = []
    for entry in access.steps:
        if isinstance(entry, Range):
            position = next(positions)
            known += [ge(position, 0), lt(position, entry.length)]
            entry = entry.at(position)
        step.append(entry)
    for selection, wanted in zip(selections, access.ranges, strict=True):
        if not subject.prover.same(selection.length.substitute(values), wanted.length, where):
            raise _wrong(subject, computation, f"{load} reads {selection.length} slots where {access} is wanted")
    positions = iter([Term.of(Symbol(f"k{n}", "dim", serial=serials.SELECTED)) for n in range(len(selections))])
    index: list[Term] = []
    for slot in load.index:
        if isinstance(slot, Steps):
            at = slot.start.substitute(values) + next(positions) * slot.step
            slot = at % slot.ring if slot.ring else at
        index.append(slot.substitute(values))
    name, time = computation.occurrence.block.name, computation.load_time
    domain = conjunction(*known)
    return Read(computation.occurrence, name, time, domain, node, tuple(step), tuple(index), place, computation.at)


def check_read(subject: Subject, read: Read) -> None:
    """Prove one read right."""
    if read.node.is_input:
        _check_input(subject, read)
        return
    storings = subject.storings[read.place.name]
    matches = [match_of(read, s) for s in storings if s.computation.node is read.node]
    possible = [match for match in matches if match.condition is not FALSE]
    if len(possible) > 1:  # pieces of one loop, most of which have nothing to do with this read
        possible = [m for m in possible if not subject.prover.impossible(read.domain, m.condition)]
    missed = subject.prover.uncovered(read.domain, [Piece(m.condition, m.unknowns) for m in possible])
    if missed is not None:
        raise _explained(subject, read, missed)
    for match in possible:
        _check_parallel(subject, read, match)
        _check_own(subject, read, match)
    if not one_slot_per_point(subject, read.place):
        for match in possible:
            for other in storings:
                _check_kept(subject, read, match, other)


@dataclass(frozen=True, eq=False)
class _Match:
    """Where a store provides what is read: its counters as terms of the reader's, and the conditions for it.

    `stored`: the value is put into the slot that is read. `condition`: and that comes before the read.
    """

    storing: Storing
    values: dict[Symbol, Term]
    unknowns: tuple[Symbol, ...]
    stored: Condition
    condition: Condition
    time: Time


def match_of(read: Read, storing: Storing) -> _Match:
    """Where and when a store provides what is read."""
    computation = storing.computation
    roles, step = storing.as_writer
    solution = solve(zip(step, read.step, strict=True), [next(iter(term.symbols)) for term in roles.values()])
    values = {counter: term.substitute(solution.values) for counter, term in roles.items()}
    time = substituted(storing.time, values)
    slots = (eq(a.substitute(values), b) for a, b in zip(storing.index, read.index, strict=True))
    earlier = disjunction(*before(time, read.time))
    stored = conjunction(computation.domain.substitute(values), solution.left, *slots)
    return _Match(storing, values, solution.unknowns, stored, conjunction(stored, earlier), time)


def _check_parallel(subject: Subject, read: Read, match: _Match) -> None:
    """What is read was not written by another iteration of a parallel loop around both."""
    writer = match.storing.computation.occurrence
    for level in writer.parallel:
        if read.occurrence is None or level not in read.occurrence.parallel:
            continue
        crossing = conjunction(read.domain, match.stored, carried(match.time, read.time, level))
        if (at := subject.prover.witness(crossing)) is not None:
            what = f"{read.name} reads {shown_point(read.node, read.step, at)} across the iterations of a parallel loop"
            outcome = f"another iteration, {writer.shown(at, match.values)}, computes it"
            raise refused("parallel", what, read, at, outcome)


def _check_own(subject: Subject, read: Read, match: _Match) -> None:
    """What is read was written in the same iteration of a loop that does not carry it, and of those around that."""
    writer = match.storing.computation.occurrence
    for depth, loop in enumerate(writer.around):
        if loop.parallel or read.place.name not in loop.private:
            continue
        around = () if read.occurrence is None else read.occurrence.around
        is_inside = len(around) > depth and around[depth] is loop
        levels = range(1, 2 * depth + 2, 2)  # a position and a counter for each loop
        others = [conjunction(match.stored, carried(match.time, read.time, level)) for level in levels]
        for crossing in others if is_inside else [match.condition]:
            if (at := subject.prover.witness(conjunction(read.domain, crossing))) is not None:
                what = f"{read.name} reads {shown_point(read.node, read.step, at)}, which its loop does not carry"
                outcome = f"another iteration, {writer.shown(at, match.values)}, computes it"
                raise refused("storage", what, read, at, outcome)


def _check_kept(subject: Subject, read: Read, match: _Match, other: Storing) -> None:
    """No instance of another store comes between the matching store and the read, into the same slot."""
    occurrence = other.computation.occurrence
    roles, index = other.as_other
    solution = solve(zip(index, read.index, strict=True), [next(iter(term.symbols)) for term in roles.values()])
    values = {counter: term.substitute(solution.values) for counter, term in roles.items()}
    apart = list(between(match.time, substituted(other.time, values), read.time))
    if not apart:
        return
    clash = conjunction(read.domain, match.stored, occurrence.domain.substitute(values), solution.left)
    for order in apart:
        if (at := subject.prover.witness(clash, order)) is not None:
            point = shown_point(read.node, read.step, at)
            slot = shown_slot(read.place, read.index, at)
            by = occurrence.shown(at, values)
            written = match.storing.computation.occurrence.shown(at, match.values)
            what = f"{read.name} reads {point} from {slot}, which has been overwritten"
            outcome = f"{by} overwrites what {written} has put there"
            raise refused("storage", what, read, at, outcome)


def one_slot_per_point(subject: Subject, place: Place) -> bool:
    """Whether every slot of a place can hold one point of one node only: the index is the point."""
    if place.name not in subject.one_slot:
        storings = subject.storings[place.name]
        subject.one_slot[place.name] = _one_slot_per_point(subject, storings)
    return subject.one_slot[place.name]


def _one_slot_per_point(subject: Subject, storings: Sequence[Storing]) -> bool:
    return all(s.computation.node is storings[0].computation.node and stored_at_point(subject, s) for s in storings)


def stored_at_point(subject: Subject, storing: Storing) -> bool:
    """Whether the index of a store is the point that is computed."""
    step, domain = storing.computation.step, storing.computation.occurrence.domain
    if len(storing.index) != len(step):
        return False
    return all(subject.prover.same(a, b, domain) for a, b in zip(storing.index, step, strict=True))


def _check_input(subject: Subject, read: Read) -> None:
    name = next(d.attributes["name"] for d in read.node.definitions if d.op == "input")
    whole, index = _in_whole(read)
    right = subject.program.inputs.get(name) == whole and read.place.kind == "input"
    if not right or len(index) != len(read.step):
        raise refused("storage", f"{read.name} reads {read.place.name} where the input {name} is wanted", read, {}, "")
    for have, want in zip(index, read.step, strict=True):
        if not subject.prover.same(have, want, read.domain):
            at = subject.prover.example(read.domain, disjunction(lt(have, want), lt(want, have)))
            slot = shown_slot(read.place, read.index, at)
            what = f"{read.name} reads {slot} where {shown_point(read.node, read.step, at)} is wanted"
            raise refused("storage", what, read, at, "")


def _in_whole(read: Read) -> tuple[str, tuple[Term, ...]]:
    """The place and the slot that a read of an input, or of a part of one, stands for."""
    if read.place.part_of is None:
        return read.place.name, read.index
    whole, picked = read.place.part_of
    rest = iter(read.index)
    return whole, tuple(next(rest, Term(-1)) if slot is None else Term(slot) for slot in picked)


def _explained(subject: Subject, read: Read, at: Values) -> IllegalProgramError:
    """Why nothing matches a read at a witness: the value is not stored, comes too late, or is in another slot."""
    point, slot = shown_point(read.node, read.step, at), shown_slot(read.place, read.index, at)
    here = conjunction(*(eq(Term.of(symbol), value) for symbol, value in at.items()))
    wrong_slot = ""
    for storing in subject.storings[read.place.name]:
        computation = storing.computation
        if computation.node is not read.node:
            continue
        roles = computation.occurrence.role(serials.WRITER)
        same = (eq(a.substitute(roles), b) for a, b in zip(computation.step, read.step, strict=True))
        stored = conjunction(here, computation.domain.substitute(roles), *same)
        if subject.prover.impossible(stored):
            continue
        found = subject.prover.example(stored)
        writer = computation.occurrence.shown(found, roles)
        if subject.prover.impossible(stored, disjunction(*before(substituted(storing.time, roles), read.time))):
            what = f"{read.name} reads {point} before it has been computed"
            return refused("order", what, read, at, f"{writer} computes it, and comes later")
        index = tuple(term.substitute(roles) for term in storing.index)
        wrong_slot = f"{writer} has put it into {shown_slot(read.place, index, found)}"
    what = f"{read.name} reads {point} from {slot}, where it is not"
    return refused("storage", what, read, at, wrong_slot or f"nothing puts it into {read.place.name}")


def refused(rule: Rule, what: str, read: Read, at: Values, outcome: str) -> IllegalProgramError:
    if read.occurrence is not None:
        return failure(rule, what, read.occurrence, at, read.at, outcome)
    bounds = {symbol: value for symbol, value in at.items() if symbol.kind != "dim"}
    return IllegalProgramError(rule, f"{what} ({outcome})" if outcome else what, at=read.at, point=bounds)


def shown_slot(place: Place, index: Sequence[Term], at: Values) -> str:
    """A slot of a place at a witness."""
    numbers = ", ".join(str(evaluated(term, at)) for term in index)
    return f"{place.kind} {place.name}" + (f"[{numbers}]" if index else "")


def _wrong(subject: Subject, computation: Computation, what: str) -> IllegalProgramError:
    at = subject.prover.example(computation.domain)
    return failure("storage", what, computation.occurrence, at, computation.at)
