"""Loops that end early: they look at the right values, in order, and the rest of the program knows the length they
find.

`for c ... until done, then T = length` ends after the first iteration at which `done` reads true. Proved here:
every iteration whose length is between 1 and T reads the stopping condition of step `length - 1`, computed before;
lengths grow; every step is looked at; iterations before the first step read a place that nobody has written (it
holds false).

`scenarios` lists the ways a run may end. Each is checked like a whole program, with a T that differs before and
after the loop: the blocks in the loop and before it have seen the limit, those after it the length found; the
definitions are those for the length found. So whatever is needed is computed although the loop was cut short,
nothing computed beyond the stop is read or overwrites what is, and no effect happens beyond it. Not proved: that
values computed beyond the stop do no harm by themselves, such as a host function without an effect that raises
there.
"""

from __future__ import annotations

from itertools import combinations, product

from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import conjunction, disjunction, eq, ge, le, lt
from polyrhythm.compiler.ir.graph import Node
from polyrhythm.compiler.ir.terms import Symbol, Term, dims_of
from polyrhythm.compiler.legality.instances import Scenario, StopLoop, Walk, before, final_value, renamed, substituted
from polyrhythm.compiler.legality.prover import Piece
from polyrhythm.compiler.legality.reads import Read, check_read
from polyrhythm.compiler.legality.subject import Subject
from polyrhythm.compiler.loops.ir import LoopProgram, Steps


def scenarios(program: LoopProgram) -> list[Scenario]:
    """Every way in which loops of a program may end: each bound found in one of the loops that stop for it, or not at
    all."""
    loops: dict[Symbol, list[int]] = {}
    for stop in Walk(program).stops:
        loops.setdefault(stop.stop.bound, []).append(stop.number)
    choices = [[None, *((bound, number) for number in numbers)] for bound, numbers in loops.items()]
    return [
        Scenario({bound: (final_value(bound), number) for bound, number in filter(None, chosen)})
        for chosen in product(*choices)
    ]


def check_stops(subject: Subject) -> None:
    """Prove what is asked of loops that end early; raise an IllegalProgramError otherwise."""
    stops = subject.walk.stops
    by_bound = {dim.bound: dim for dim in subject.graph.until}
    if {stop.stop.bound for stop in stops} - by_bound.keys():
        raise subject.fault("until", "a loop ends early for a bound that no stopping condition decides")
    for dim, name in subject.graph.until.items():
        own = [stop for stop in stops if stop.stop.bound is dim.bound]
        if subject.early:
            _check_once(subject, own)
        else:
            _check_looks(subject, dim, name, own)


def _length(stop: StopLoop) -> Term:
    return stop.stop.length.substitute(stop.values)


def _check_once(subject: Subject, stops: list[StopLoop]) -> None:
    """After a loop has stopped, no later one for the same bound runs at all."""
    for stop in stops:
        for bound, (_, number) in subject.scenario.ends.items():
            if stop.stop.bound is bound and stop.number > number and not subject.prover.impossible(stop.domain):
                raise subject.fault("until", f"{bound} is decided again after the loop that finds it has ended")


def _check_looks(subject: Subject, dim: Symbol, name: str, stops: list[StopLoop]) -> None:
    node = subject.graph[name]
    prover = subject.prover
    pieces = []
    for stop in stops:
        length = _length(stop)
        if stop.nested or not dims_of(stop.counter) <= set(stop.counters):
            raise subject.fault("until", f"the loop that ends {dim} early is inside another loop", node.at)
        if stop.counters and (not length.linear_in(stop.counters[-1]) or length.coefficient(stop.counters[-1]) < 1):
            raise subject.fault("until", f"the lengths that the loop over {dim} tries do not grow", node.at)
        place = subject.place(stop.stop.done.place)
        slots = [entry for entry in stop.stop.done.index if not isinstance(entry, Steps)]
        index = tuple(slot.substitute(stop.values) for slot in slots)
        if len(index) != len(place.slots):
            raise subject.fault("until", f"{stop.stop.done} is not the condition that ends {dim}", node.at)
        for slot, count in zip(index, place.slots, strict=True):
            if not prover.implied(stop.domain, conjunction(ge(slot, 0), lt(slot, count))):
                raise subject.fault("until", f"{stop.stop.done} is outside of its place in some iteration", node.at)
        step = length - 1
        exists = subject.points(node).substitute({dim: step})
        read = Read(
            None,
            f"the end of the loop over {dim}",
            stop.time,
            conjunction(stop.domain, exists),
            node,
            (step,),
            index,
            place,
            node.at,
        )
        check_read(subject, read)
        _check_silent(subject, dim, node, stop)
        solved = conjunction(stop.domain, eq(Term.of(dim), step))
        pieces.append(Piece(solved, stop.counters))
    for one, other in combinations(stops, 2):
        roles = {c: Term.of(renamed(c, serials.LATER)) for c in other.counters}
        both = conjunction(one.domain, other.domain.substitute(roles))
        if not prover.impossible(both, ge(_length(one), _length(other).substitute(roles))):
            raise subject.fault("until", f"the loops that may end {dim} do not try lengths in order", node.at)
    missing = prover.uncovered(subject.points(node), pieces)
    if missing is not None:
        raise subject.fault("until", f"nothing looks whether {dim} ends at step {missing.get(dim, 0)}", node.at)


def _check_silent(subject: Subject, dim: Symbol, node: Node, stop: StopLoop) -> None:
    """Iterations before the first step read what nobody has written."""
    for storing in subject.storings[stop.stop.done.place]:
        occurrence = storing.computation.occurrence
        roles = {c: Term.of(renamed(c, serials.LATER)) for c in occurrence.counters}
        time = substituted(storing.time, roles)
        written = conjunction(stop.domain, le(_length(stop), 0), occurrence.domain.substitute(roles))
        if not subject.prover.impossible(written, disjunction(*before(time, stop.time))):
            raise subject.fault("until", f"a condition is looked at before the first step of {dim}", node.at)
