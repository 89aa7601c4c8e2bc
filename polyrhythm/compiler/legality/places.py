"""Places are used as they were made: indices stay inside, values fit, and outputs hold their tensors at the end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from polyrhythm.compiler.ir.conditions import TRUE, Condition, conjunction, ge, le, lt
from polyrhythm.compiler.ir.graph import Node
from polyrhythm.compiler.ir.terms import Term, nested
from polyrhythm.compiler.legality.reads import shown_slot, stored_at_point
from polyrhythm.compiler.legality.subject import Storing, Subject, failure
from polyrhythm.compiler.loops.ir import Place, Steps


def check_places(subject: Subject) -> None:
    """Prove what is asked of places; raise an IllegalProgramError otherwise."""
    for name, place in subject.program.places.items():
        if place.name != name or (place.kind == "variable" and place.slots):
            raise subject.fault("form", f"the place {name} is not made right", place.at)
    for name, place_name in subject.program.inputs.items():
        node = subject.graph.inputs.get(name)
        place = subject.place(place_name)
        if node is None or place.kind != "input" or not _holds(subject, place, node):
            raise subject.fault("form", f"the place {place_name} is not one for the input {name}", place.at)
    _check_separate(subject)
    for storings in subject.storings.values():
        for storing in storings:
            _check_index(subject, storing)
            _check_fits(subject, storing)
    if len(subject.program.outputs) != len(subject.graph.outputs):
        raise subject.fault("form", "the program does not return what the graph does")
    for place_name, name in zip(subject.program.outputs, subject.graph.outputs, strict=True):
        _check_output(subject, subject.place(place_name), subject.graph[name])


def _check_separate(subject: Subject) -> None:
    """Slots that are arrays of their own are known before anything runs: only unrolled loops count through them."""
    for occurrence in subject.occurrences:
        block = occurrence.block
        known = {loop.counter for loop in occurrence.around if loop.unrolled and loop.known is not None}
        uses: list[tuple[str, tuple[Term | Steps, ...]]] = [(store.place, store.index) for store in block.stores]
        uses += [(load.place, load.index) for load in block.loads]
        for name, index in uses:
            place = subject.place(name, occurrence)
            for axis in place.separate if place.kind != "input" else ():
                entry = index[axis]
                if not isinstance(entry, Term) or not entry.symbols <= known:
                    what = f"{block.name} uses {name}, whose slots along axis {axis} are separate, at {entry}"
                    raise subject.fault("form", what, place.at)


def _holds(subject: Subject, place: Place, node: Node) -> bool:
    """Whether a place has a slot of the right type for every point of a node."""
    wanted = (*(dim.extent for dim in node.dims), *node.shape)
    if len(place.slots) != len(node.dims) or len(place.whole) != len(wanted) or place.type.dtype != node.dtype:
        return False
    return all(subject.prover.same(a, b, TRUE) for a, b in zip(place.whole, wanted, strict=True))


def _check_index(subject: Subject, storing: Storing) -> None:
    """The slot exists. A point kept under its own number exists because the point does (see `completeness.py`)."""
    computation, place = storing.computation, subject.place(storing.store.place)
    node, domain = computation.node, computation.occurrence.domain
    for position, (slot, count) in enumerate(zip(storing.index, place.slots, strict=True)):
        own = len(place.slots) == len(node.dims) and slot is computation.step[position]
        if own and count is node.dims[position].extent and not subject.early:
            continue
        inside = conjunction(ge(slot, 0), lt(slot, count))
        if (at := subject.prover.violation(domain, inside)) is not None:
            what = f"{computation.occurrence.block.name} stores into {shown_slot(place, storing.index, at)}"
            raise failure("storage", f"{what}, which does not exist", computation.occurrence, at, computation.at)


def _check_fits(subject: Subject, storing: Storing) -> None:
    """A slot has room for the value."""
    computation, place = storing.computation, subject.place(storing.store.place)
    occurrence = computation.occurrence
    shape = tuple(n.substitute(occurrence.values) for n in computation.compute.type.shape)
    fits = place.type.dtype == computation.compute.type.dtype and len(shape) == place.type.rank
    for length, room in zip(shape, place.type.shape, strict=False):
        if fits and length is not room:
            known = conjunction(occurrence.domain, *_larger_products(subject, occurrence.domain, length, room))
            fits = subject.prover.implied(known, le(length, room))
    if not fits:
        at = subject.prover.example(occurrence.domain)
        what = f"{occurrence.block.name} stores {computation.compute.type} into {place.name}, which holds {place.type}"
        raise failure("storage", what, occurrence, at, computation.at)


def _larger_products(subject: Subject, where: Condition, length: Term, room: Term) -> Iterator[Condition]:
    """Products are not affine; but one is no larger than another if its factors are not, and none is negative."""
    products = [[monomial for part in nested(term) for monomial, _ in part.monomials] for term in (length, room)]
    for own, other in product(*products):
        if len(own) == len(other) > 1:
            pairs = [(Term(0, (((a,), 1),)), Term(0, (((b,), 1),))) for a, b in zip(own, other, strict=True)]
            if subject.prover.implied(where, conjunction(*(c for a, b in pairs for c in (ge(a, 0), le(a, b))))):
                yield le(Term(0, ((own, 1),)), Term(0, ((other, 1),)))


def _check_output(subject: Subject, place: Place, node: Node) -> None:
    """Every point of an output ends up under its own index: only this tensor is put there, each point once."""
    if not _holds(subject, place, node):
        raise subject.fault("storage", f"the place {place.name} is not one for the output {node.name}", node.at)
    if place.kind == "input":
        if place.name != subject.program.inputs.get(_input_name(node)):
            raise subject.fault("storage", f"the output {node.name} is another input", node.at)
        return
    if place.kind != "output":
        raise subject.fault("storage", f"the output {node.name} is kept in the {place.kind} {place.name}", node.at)
    storings = subject.storings[place.name]
    for storing in storings:
        if storing.computation.node is not node or not stored_at_point(subject, storing):
            what = (
                f"{storing.computation.occurrence.block.name} puts {storing.store.value} into the output {place.name}"
            )
            at = subject.prover.example(storing.computation.occurrence.domain)
            raise failure("storage", what, storing.computation.occurrence, at, node.at)
    stored = {storing.computation for storing in storings}
    for computations in subject.computations.values():
        for computation in computations:
            if computation.node is node and computation not in stored:
                at = subject.prover.example(computation.occurrence.domain)
                what = f"{computation.occurrence.block.name} does not put {node.name} into the output"
                raise failure("storage", what, computation.occurrence, at, node.at)


def _input_name(node: Node) -> str:
    return str(next((d.attributes["name"] for d in node.definitions if d.op == "input"), ""))
