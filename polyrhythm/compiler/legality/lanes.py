"""Lanes of a loop run in any grouping, in lockstep or one after the other: none sees or overwrites what another makes.

That the iterations of the loop do not pass values to each other is the rule of *parallel*. Proved here of what the
lanes have to themselves:

- a place that they write is written by each lane at its own position of one axis only, `counter + offset`, where the
  offset is the same for the whole loop, so that two lanes never meet in a slot; or at that modulo the slots of a ring,
  if it has a slot for each lane; it is read there, or where no lane writes in the same iteration of the loops around;
- of a private place, or a variable, each lane has a copy: whoever reads it outside of the loop never reads what a lane
  has put there;
- lanes that fill a place have exactly the positions of its axis, so that their mask leaves nothing out and keeps
  nothing of what was there;
- no host function is called, and the loop does not end early.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import TRUE, conjunction, eq, le
from polyrhythm.compiler.ir.terms import ZERO, Term
from polyrhythm.compiler.legality.failure import IllegalProgramError
from polyrhythm.compiler.legality.instances import Occurrence
from polyrhythm.compiler.legality.reads import match_of, read_of
from polyrhythm.compiler.legality.subject import Computation, Subject
from polyrhythm.compiler.loops.ir import For, Lanes, Load, Own, Steps, blocks_of, line_of, walk


def check_lanes(subject: Subject) -> None:
    """Prove that lanes have to themselves what they use; raise an IllegalProgramError otherwise."""
    for loop in walk(subject.program.body):
        if isinstance(loop, For) and loop.lanes is not None:
            _check_loop(subject, loop, loop.lanes)


def _check_loop(subject: Subject, loop: For, lanes: Lanes) -> None:
    blocks = list(blocks_of(loop.body))
    if not loop.parallel or loop.stop is not None or any(block.host for block in blocks):
        raise _wrong(subject, loop, "its iterations do not run in any order")
    inner = {item.counter for item in walk(loop.body) if isinstance(item, For)}
    owned = {own.place: own for own in lanes.written}
    for own in lanes.written:
        place = subject.place(own.place)
        if {loop.counter, *inner} & own.offset.symbols or own.axis >= len(place.slots) or place.kind == "input":
            raise _wrong(subject, loop, f"{own.place} is not theirs at {own.offset}")
        _check_filled(subject, loop, own, place.slots[own.axis])
        if own.ring:
            _check_ring(subject, loop, own)
    stored = {store.place for block in blocks for store in block.stores}
    for block in blocks:
        uses: list[tuple[str, tuple[Term | Steps, ...]]] = [(store.place, store.index) for store in block.stores]
        for name, index in uses:
            if name in owned and not _is_own(loop, owned[name], index):
                raise _wrong(subject, loop, f"{block.name} uses {name} at another position than its own")
        for load in block.loads:
            if load.place in owned and not _is_own(loop, owned[load.place], load.index):
                _check_elsewhere(subject, loop, load)
    for name in stored - owned.keys():
        if name not in lanes.private and subject.place(name).kind != "variable":
            raise _wrong(subject, loop, f"{name} is neither theirs nor private")
        _check_private(subject, loop, name)


def _is_own(loop: For, own: Own, index: tuple[Term | Steps, ...]) -> bool:
    step = Term.of(loop.counter) + own.offset
    return index[own.axis] is (step % own.ring if own.ring else step)


def _check_elsewhere(subject: Subject, loop: For, load: Load) -> None:
    """No lane writes what is read, in any iteration of the loops inside, while those around it stand still."""
    readers = [o for o in subject.occurrences if _within(loop, o) and any(load is other for other in o.block.loads)]
    for reader, storing in product(readers, subject.storings[load.place]):
        writer = storing.computation.occurrence
        if not _within(loop, writer):
            continue
        roles = writer.role(serials.WRITER)
        still = next(level for level, around in enumerate(reader.around) if around is loop)
        pairs = zip(reader.loops[:still], writer.loops[:still], strict=True)
        around = [eq(mine, theirs.substitute(roles)) for (_, mine), (_, theirs) in pairs]
        slots = [
            eq(slot.substitute(roles), entry.substitute(reader.values))
            for slot, entry in zip(storing.index, load.index, strict=True)
            if isinstance(entry, Term)
        ]
        both = conjunction(reader.domain, writer.domain.substitute(roles), *around, *slots)
        if not subject.prover.impossible(both):
            raise _wrong(subject, loop, f"{reader.block.name} reads {load} at another position than its own")


def _check_filled(subject: Subject, loop: For, own: Own, count: Term) -> None:
    same = subject.prover.same
    if own.fills and not (same(loop.first + own.offset, ZERO, TRUE) and same(loop.end + own.offset, count, TRUE)):
        raise _wrong(subject, loop, f"they do not fill the {count} slots of {own.place}")


def _check_ring(subject: Subject, loop: For, own: Own) -> None:
    """There are no more lanes than slots in a ring, or two of them would meet in one."""
    for occurrence in subject.occurrences:
        if _within(loop, occurrence):
            count = (loop.end - loop.first).substitute(occurrence.values)
            if not subject.prover.implied(occurrence.domain, le(count, own.ring)):
                raise _wrong(subject, loop, f"{own.place} has {own.ring} slots, for more iterations")


def _check_private(subject: Subject, loop: For, name: str) -> None:
    """Nothing outside of a loop reads what its iterations put into a place."""
    if name in subject.program.outputs or any(stop.stop.done.place == name for stop in subject.walk.stops):
        raise _wrong(subject, loop, f"{name} is looked at afterwards")
    inside = [s for s in subject.storings[name] if _within(loop, s.computation.occurrence)]
    for computation, number in _readers(subject, loop, name):
        access, load, where = list(computation.reads())[number]
        assert isinstance(load, Load)
        read = read_of(subject, computation, access, load, where)
        for storing in inside:
            match = match_of(read, storing)
            if storing.computation.node is read.node and not subject.prover.impossible(read.domain, match.condition):
                raise _wrong(subject, loop, f"{computation.occurrence.block.name} reads {name} after them")


def _within(loop: For, occurrence: Occurrence) -> bool:
    return any(around is loop for around in occurrence.around)


def _readers(subject: Subject, loop: For, name: str) -> Iterator[tuple[Computation, int]]:
    """The computations outside of a loop that read a place, and the number of the operand."""
    for occurrence, computations in subject.computations.items():
        if not _within(loop, occurrence):
            for computation in computations:
                for number, operand in enumerate(computation.compute.operands):
                    if isinstance(operand, Load) and operand.place == name:
                        yield computation, number


def _wrong(subject: Subject, loop: For, what: str) -> IllegalProgramError:
    return subject.fault("lanes", f"the iterations of {loop.counter} cannot run together: {what}", line_of(loop.body))
