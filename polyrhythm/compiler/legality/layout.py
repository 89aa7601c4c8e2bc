"""Values are read where the program says they lie: what `loops/layout.py` has written to it holds at every instance.

Without what is checked here the loops are those that the other rules prove right, and every slot is read by its index.
Proved of what is added, so that a backend may go by it:

- *axes*: a place keeps every axis of more than one slot, once;
- *limits*: a length is nowhere larger than its limit, so an array of that capacity holds it;
- *slice*: the slots from the start on, as many as the limit, are inside of the axis, or all of it is read from 0 on;
- *rows*: the start is one of the first `step` slots;
- *ring*: the slots in use are the first ones, and wherever their order goes, by the signatures of the operations, only
  parallel and reduced axes meet it, all in the same order, and none is stored;
- *zeros*: the place holds zeros at first, and no store before the read is beyond what is read.
"""

from __future__ import annotations

from collections.abc import Iterator

from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import Condition, conjunction, disjunction, eq, ge, le, lt
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.terms import ONE, Term, maximum
from polyrhythm.compiler.legality.failure import IllegalProgramError
from polyrhythm.compiler.legality.instances import Occurrence, before, substituted
from polyrhythm.compiler.legality.subject import Storing, Subject, failure
from polyrhythm.compiler.loops.ir import Compute, For, Load, LoopProgram, Place, Split, Steps, sites, walk

Order = tuple[Steps | None, ...]
"""For each axis of a value, the ring whose order in memory its elements have."""


def check_layout(subject: Subject) -> None:
    """Prove what is said of places and reads; raise an IllegalProgramError otherwise."""
    for place in subject.program.places.values():
        if place.axes and not _holds_all(place):
            raise subject.fault("layout", f"{place.name} is kept with axes {place.axes} of {place.whole}", place.at)
    for occurrence in subject.occurrences:
        extents = [loop.end - loop.first for loop in occurrence.around if loop.parallel]
        for compute in occurrence.block.body:
            kinds = (compute.type, *(load.type for load in compute.loads))
            for length in (*extents, *(n for kind in kinds for n in kind.shape)):
                if length in subject.program.limits:
                    most = le(length, subject.program.limits[length])
                    _prove(subject, occurrence, compute, f"a length of {length} exceeds its limit", most)
            for load in compute.loads:
                _check_load(subject, occurrence, compute, load)
        _check_order(subject, occurrence)


def check_splits(program: LoopProgram) -> None:
    """The places that a loop keeps apart are read there only from one remainder on, the same for all reads of a block.

    What is read as rows begins at one of the first slots, which is proved above.
    """
    for loop in (item for item in walk(program.body) if isinstance(item, For)):
        apart = {split.place: split for split in loop.splits}
        for site in sites(loop.body) if apart else ():
            found = {_read_apart(load, apart[load.place]) for load in site.block.loads if load.place in apart}
            used = bool(found) or any(store.place in apart for store in site.block.stores)
            if None in found or len(found) > 1 or (used and site.loops):
                what = f"what {site.block.name} uses cannot be kept apart by the loop over {loop.counter}"
                raise IllegalProgramError("layout", what, at=next((c.at for c in site.block.body), None))
        for name in apart:
            if program.places[name].kind != "buffer":
                raise IllegalProgramError("layout", f"{name} cannot be kept apart", at=program.places[name].at)


def _read_apart(load: Load, split: Split) -> tuple[Term, int] | None:
    """The remainder that a load reads of a place that is kept apart, and of how many; None if it reads otherwise."""
    ranges = [(axis, entry) for axis, entry in enumerate(load.index) if isinstance(entry, Steps)]
    if [(axis, entry.step, entry.via) for axis, entry in ranges] != [(split.axis, split.step, "rows")]:
        return None
    return ranges[0][1].start, split.step


def _holds_all(place: Place) -> bool:
    """Whether the axes are those of a place, each once, but for some of length one."""
    every = range(len(place.whole))
    left_out = [axis for axis in every if axis not in place.axes]
    once = len(set(place.axes)) == len(place.axes) and set(place.axes) <= set(every)
    return once and all(place.whole[axis] is ONE for axis in left_out)


def _prove(subject: Subject, occurrence: Occurrence, compute: Compute, what: str, claim: Condition) -> None:
    """Refuse a program unless a claim, over the symbols of its code, holds at every instance of a block."""
    claim = claim.substitute(occurrence.values)
    if (at := subject.prover.violation(occurrence.domain, claim)) is not None:
        raise failure("layout", f"{what} in {occurrence.block.name}", occurrence, at, compute.at)


def _check_load(subject: Subject, occurrence: Occurrence, compute: Compute, load: Load) -> None:
    slots = subject.place(load.place, occurrence).slots
    for entry, count in zip(load.index, slots, strict=True):
        if isinstance(entry, Steps) and entry.via is not None:
            _prove(
                subject, occurrence, compute, f"{load} cannot be read as {entry.via}", _readable(subject, entry, count)
            )
    if load.zeros:
        _check_zeros(subject, occurrence, compute, load)


def _readable(subject: Subject, entry: Steps, count: Term) -> Condition:
    """What must hold for several slots to be fetched the way they are."""
    wrong = lt(Term(0), 0)
    if entry.via == "ring":
        from_first = conjunction(eq(entry.start, 0), le(entry.length, count))
        same = entry.ring is not None and entry.step == 1 and count is Term(entry.ring)
        return disjunction(eq(entry.length, count), from_first) if same else wrong
    if entry.ring is not None:
        return wrong
    if entry.via == "rows":
        return conjunction(ge(entry.start, 0), lt(entry.start, entry.step)) if entry.step > 1 else wrong
    limit = entry.length if entry.length.is_constant else subject.program.limits.get(entry.length)
    if limit is None or entry.step != 1:
        return wrong
    inside = le(entry.start + limit, maximum(Term.of(limit), count))
    return conjunction(ge(entry.start, 0), inside)


def _check_zeros(subject: Subject, occurrence: Occurrence, compute: Compute, load: Load) -> None:
    place = subject.place(load.place, occurrence)
    ranges = {axis: entry for axis, entry in enumerate(load.index) if isinstance(entry, Steps)}
    known = all(entry.step >= 1 and (entry.ring is None or entry.via == "ring") for entry in ranges.values())
    if place.kind != "buffer" or not known or any(n.symbols for n in place.type.shape):
        raise subject.fault("layout", f"{load} cannot know what lies beyond it", compute.at)
    ends = {a: e.length if e.via == "ring" else e.start + (e.length - 1) * e.step + 1 for a, e in ranges.items()}
    ends = {axis: end.substitute(occurrence.values) for axis, end in ends.items()}
    for storing in subject.storings[load.place]:
        for index, earlier in _earlier(occurrence, load, storing):
            beyond = disjunction(*(ge(index[axis], end) for axis, end in ends.items()))
            if (at := subject.prover.witness(earlier, beyond)) is not None:
                what = f"{load} does not read all that {storing.computation.occurrence.block.name} has stored before"
                raise failure("layout", what, occurrence, at, compute.at)


def _earlier(occurrence: Occurrence, load: Load, storing: Storing) -> Iterator[tuple[tuple[Term, ...], Condition]]:
    """The slot of a store that comes before a load and may be among what it reads, and when that is so."""
    other = storing.computation.occurrence
    roles = other.role(serials.WRITER)
    index = tuple(term.substitute(roles) for term in storing.index)
    picked = zip(index, load.index, strict=True)
    same = [eq(slot, entry.substitute(occurrence.values)) for slot, entry in picked if isinstance(entry, Term)]
    both = conjunction(occurrence.domain, other.domain.substitute(roles), *same)
    for order in before(substituted(storing.time, roles), (*occurrence.time, 0)):
        yield index, conjunction(both, order)


def _check_order(subject: Subject, occurrence: Occurrence) -> None:
    """The order of rings as they lie in memory is lost before anyone can see it."""
    block = occurrence.block
    orders: dict[str, Order] = {}
    for compute in block.body:
        own = [_order(o) if isinstance(o, Load) else orders[o.name] for o in compute.operands]
        orders[compute.result] = (None,) * compute.type.rank
        if not any(ring for order in own for ring in order):
            continue
        meeting: dict[int | None, set[Steps | None]] = {None: {None}}
        kinds: dict[int | None, str] = {None: "opaque"}
        if compute.op in TABLE:
            signature = compute.signature(block.types)
            kinds |= {label: role.kind for label, role in enumerate(signature.roles)}
            for labels, order in zip(signature.operands, own, strict=True):
                for label, ring in zip(labels, order, strict=True):
                    meeting.setdefault(label, set()).add(ring)
            orders[compute.result] = tuple(next(iter(meeting.get(label, {None}))) for label in signature.result)
        else:
            meeting[None] |= {ring for order in own for ring in order}
        for label, rings in meeting.items():
            if rings != {None} and (len(rings) > 1 or kinds[label] not in ("parallel", "reduce")):
                raise subject.fault("layout", f"{compute.result} depends on the order of a ring in memory", compute.at)
    for store in block.stores:
        if any(orders[store.value]):
            raise subject.fault("layout", f"{store.place} is stored in the order of a ring in memory")


def _order(load: Load) -> Order:
    leading = [entry if entry.via == "ring" else None for entry in load.index if isinstance(entry, Steps)]
    return (*leading, *(None,) * (load.type.rank - len(leading)))
