"""How values lie in memory and how they are read there, so that large buffers are read where they lie.

Copying a buffer at every step costs more than the step. `laid_out` writes into the program, by proofs over integer
sets that may use the requirements on bounds, and the checker proves again (`legality/layout.py`):

- `Place.axes`, the order in which a buffer keeps its axes. A batched dot wants the batch axes first and no axis of
  length one; a buffer that is kept so goes into the dot as it is;
- `Steps.via`, how several slots are fetched: as one *slice* of an axis that surely holds it; as *rows*, every other
  step (or fewer) from one of the first on, one slice of the axis seen as rows; or a *ring* in the order it lies in
  memory, if all that is done along that axis is parallel or a reduction (the signatures of the operations tell), and
  if the slots in use are the first ones. Otherwise they are gathered;
- `Load.zeros`: nothing has been stored beyond what is read, so the buffer still has its zeros there, and a contraction
  or a sum need not mask it;
- `LoopProgram.limits`, the largest value of a length that no bound enlarges, such as that of a window;
- `LoopProgram.spans`, for a length that is read from slot 0 on, the axes it is read from, or of rows theirs. Their
  capacity is the capacity of the length, or the axis would have to be cut;
- `Place.multiplied`: a contraction reads its values, so these are there as arrays and not fused into their readers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from polyrhythm.compiler.ir import serials
from polyrhythm.compiler.ir.conditions import Condition, conjunction, disjunction, eq, ge, le, lt
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.sets import largest, proves
from polyrhythm.compiler.ir.terms import ONE, ZERO, Symbol, Term, maximum
from polyrhythm.compiler.loops.ir import (
    Block,
    Compute,
    Load,
    Local,
    LoopProgram,
    Place,
    Site,
    Steps,
    Store,
    mapped,
    sites,
)

SUMS = ("einsum", "reduce")
"""Operations to which zeros beyond what is read make no difference."""


def laid_out(program: LoopProgram) -> LoopProgram:
    """The program with the layout of its places and the way of its reads written to it."""
    every = list(sites(program.body))
    limits = _limits(every)
    reader = _Reader(program, every, limits, conjunction(*(r.condition for r in program.requirements)))
    blocks = [reader.block(site) for site in every]
    places = _places(program, every)
    again = iter(blocks)
    body = mapped(program.body, lambda item: next(again) if isinstance(item, Block) else item)
    return replace(program, places=places, body=body, limits=limits, spans=_spans(places, blocks))


@dataclass(frozen=True)
class _Reader:
    """Finds how the blocks of a program read, each where it stands."""

    program: LoopProgram
    sites: Sequence[Site]
    limits: Mapping[Term, int]
    required: Condition

    def block(self, site: Site) -> Block:
        """A block with the way of its reads."""
        rings = _unordered(self, site)
        found = {load: self._load(site, load, rings) for load in site.block.loads}

        def compute(old: Compute) -> Compute:
            loads = {o: found[o] for o in old.loads}
            if old.op in SUMS:
                loads = {old: replace(new, zeros=self._has_zeros(site, new)) for old, new in loads.items()}
            operands = (loads[o] if isinstance(o, Load) else o for o in old.operands)
            return replace(old, operands=tuple(operands))

        return replace(site.block, body=tuple(map(compute, site.block.body)))

    def proves(self, known: Condition, claim: Condition) -> bool:
        """Whether a claim holds; what is required of bounds is used only where it is needed."""
        required = conjunction(known, self.required)
        return proves(known, claim) or (required is not known and proves(required, claim))

    def _load(self, site: Site, load: Load, rings: set[Steps]) -> Load:
        slots = self.program.places[load.place].slots
        index = [
            self._steps(site, entry, count, rings) if isinstance(entry, Steps) else entry
            for entry, count in zip(load.index, slots, strict=True)
        ]
        return replace(load, index=tuple(index))

    def _steps(self, site: Site, entry: Steps, slots: Term, rings: set[Steps]) -> Steps:
        if entry in rings:
            return replace(entry, via="ring")
        limit = self.limits.get(entry.length, entry.length.constant if entry.length.is_constant else None)
        if entry.ring is not None or (entry.step == 1 and limit is None):
            return entry
        if entry.step > 1:
            first = conjunction(ge(entry.start, 0), lt(entry.start, entry.step))
            return replace(entry, via="rows") if self.proves(site.known, first) else entry
        if entry.step < 1 or limit is None:
            return entry
        # A slice as long as the longest read fits; or the axis is shorter, and it starts at 0.
        fits = conjunction(le(entry.start + limit, maximum(Term(limit), slots)), ge(entry.start, 0))
        return replace(entry, via="slice") if self.proves(site.known, fits) else entry

    def _has_zeros(self, site: Site, load: Load) -> bool:
        """Whether everything stored before a read lies within what is read, along all axes it reads ranges of."""
        place = self.program.places[load.place]
        ranges = {axis: entry for axis, entry in enumerate(load.index) if isinstance(entry, Steps)}
        if not ranges or place.kind != "buffer" or any(n.symbols for n in place.type.shape):
            return False
        if any(entry.step < 1 or (entry.ring is not None and entry.via != "ring") for entry in ranges.values()):
            return False
        ends = {a: e.length if e.via == "ring" else e.start + (e.length - 1) * e.step + 1 for a, e in ranges.items()}
        for other in self.sites:
            for store in other.block.stores:
                if store.place == load.place:
                    for index, earlier in _earlier(self.program, site, load, other, store):
                        within = conjunction(*(lt(index[axis], end) for axis, end in ends.items()))
                        if not self.proves(earlier, within):
                            return False
        return True


def _earlier(
    program: LoopProgram, site: Site, load: Load, other: Site, store: Store
) -> Iterator[tuple[tuple[Term, ...], Condition]]:
    """The slot of each store that comes before a read of the same slots elsewhere, one level of loops at a time."""
    renamed = {s: Term.of(Symbol(s.name, "dim", serial=serials.SECOND)) for s in other.counters}
    # A bound that the program finds itself may have been another when the store was done.
    past = {s: Term.of(Symbol(s.name, "bound", serial=serials.PAST)) for s in program.found}
    index = tuple(term.substitute({**renamed, **past}) for term in store.index)
    known = other.known.substitute({**renamed, **past})
    same = [eq(a, b) for a, b in zip(index, load.index, strict=True) if isinstance(b, Term)]
    known = conjunction(site.known, known, *same)
    for mine, theirs in zip(site.loops, other.loops, strict=False):
        if mine is not theirs:
            break
        now = Term.of(mine.counter)
        yield index, conjunction(known, lt(renamed[mine.counter], now))
        known = conjunction(known, eq(renamed[mine.counter], now))
    if other.position < site.position:
        yield index, known


def _limits(every: Sequence[Site]) -> dict[Term, int]:
    """The largest value of each length that depends on counters, where there is one for all bounds.

    The number of iterations of a parallel loop is one, since they may run all at once.
    """
    found: dict[Term, int | None] = {}
    for site in every:
        kinds = (*(compute.type for compute in site.block.body), *(load.type for load in site.block.loads))
        extents = {loop.end - loop.first for loop in site.loops if loop.parallel}
        for term in {n for kind in kinds for n in kind.shape} | extents:
            if any(s.kind == "dim" for s in term.symbols) and found.get(term, 0) is not None:
                most = largest(term, site.known)
                found[term] = None if most is None else max(most, found.get(term) or 0)
    return {term: value for term, value in found.items() if value is not None}


def _spans(places: Mapping[str, Place], blocks: Sequence[Block]) -> dict[Term, frozenset[Term]]:
    found: dict[Term, set[Term]] = {}
    for load in (load for block in blocks for load in block.loads):
        for slots, entry in zip(places[load.place].slots, load.index, strict=True):
            if isinstance(entry, Steps) and (entry.via == "rows" or _is_beginning(entry)):
                found.setdefault(entry.length, set()).add((slots + entry.step - 1) // entry.step)
    return {length: frozenset(axes) for length, axes in found.items() if not length.is_constant}


def _is_beginning(entry: Steps) -> bool:
    return entry.start is ZERO and entry.step == 1 and not entry.ring


def _places(program: LoopProgram, every: Sequence[Site]) -> dict[str, Place]:
    """The places with the order of their axes: that which all dots wish that read ranges of it."""
    orders: dict[str, tuple[int, ...]] = {}
    multiplied: set[str] = set()
    for compute in (compute for site in every for compute in site.block.body):
        if compute.op != "einsum" or len(compute.operands) != 2:
            continue
        for number, load in enumerate(compute.operands):
            if isinstance(load, Load):
                multiplied.add(load.place)
                order = _wished_order(program, compute, number, load)
                if order is not None and orders.setdefault(load.place, order) != order:
                    orders[load.place] = ()
    return {
        name: replace(place, axes=orders.get(name, ()), multiplied=name in multiplied)
        for name, place in program.places.items()
    }


def _wished_order(program: LoopProgram, compute: Compute, number: int, load: Load) -> tuple[int, ...] | None:
    """The axes of a buffer as a dot wants them in memory, those of length one left out."""
    place = program.places[load.place]
    if place.kind != "buffer" or not any(isinstance(entry, Steps) for entry in load.index):
        return None
    words, output = parse_spec(compute.attributes["spec"])
    own, other = words[number], words[1 - number]
    picked = [axis for axis, entry in enumerate(load.index) if isinstance(entry, Term)]
    axes = [axis for axis in range(len(place.whole)) if axis not in picked]
    batch = [axis for axis, label in zip(axes, own, strict=True) if label in other and label in output]
    rest = [axis for axis in axes if axis not in batch]
    slots = len(place.slots)
    order = (*picked, *batch, *rest)
    # One that is left out is not the last of a value: what a lane sees of the place would have no axes to name.
    found = tuple(axis for axis in order if axis < slots or place.whole[axis] is not ONE)
    return found if max(found) >= slots else order


Tag = Steps
Tags = tuple[Tag | None, ...]
"""For each axis of a value, the read that shuffles it, if any."""


def _unordered(reader: _Reader, site: Site) -> set[Steps]:
    """The reads of rings in a block that may come in any order."""
    block = site.block
    ranges = (entry for load in block.loads for entry in load.index if isinstance(entry, Steps))
    tags = {entry for entry in ranges if _fills(reader, site, entry)}
    while tags:
        spoiled = _spoiled(block, tags)
        if not spoiled:
            break
        tags -= spoiled
    return tags


def _fills(reader: _Reader, site: Site, entry: Steps) -> bool:
    """Whether the slots of a ring in use are its first ones: all of them, or those from step 0 on."""
    if entry.ring is None or entry.step != 1:
        return False
    from_zero = conjunction(eq(entry.start, 0), le(entry.length, entry.ring))
    return reader.proves(site.known, disjunction(eq(entry.length, entry.ring), from_zero))


def _spoiled(block: Block, tags: set[Tag]) -> set[Tag]:
    """The tags along whose axes the order of the elements matters."""
    values: dict[str, Tags] = {}
    for compute in block.body:
        own = [_operand_tags(operand, values, tags) for operand in compute.operands]
        if not any(tag for operand in own for tag in operand):
            values[compute.result] = (None,) * compute.type.rank
            continue
        if compute.op not in TABLE:
            return {tag for operand in own for tag in operand if tag}
        signature = compute.signature(block.types)
        carried: dict[int, Tag] = {}
        for labels, operand in zip(signature.operands, own, strict=True):
            for label, tag in zip(labels, operand, strict=True):
                if tag and (label is None or signature.roles[label].kind not in ("parallel", "reduce")):
                    return {tag}
                if tag and label is not None and carried.setdefault(label, tag) != tag:
                    return {tag, carried[label]}
        for labels, operand in zip(signature.operands, own, strict=True):
            for label, tag in zip(labels, operand, strict=True):
                if label in carried and tag is None:
                    return {carried[label]}
        values[compute.result] = tuple(None if label is None else carried.get(label) for label in signature.result)
    return {tag for store in block.stores for tag in values[store.value] if tag}


def _operand_tags(operand: Load | Local, values: Mapping[str, Tags], tags: set[Tag]) -> Tags:
    if isinstance(operand, Local):
        return values[operand.name]
    leading = [entry if entry in tags else None for entry in operand.index if isinstance(entry, Steps)]
    return (*leading, *(None,) * (operand.type.rank - len(leading)))
