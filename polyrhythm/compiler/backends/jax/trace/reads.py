"""What is known of the reads of a program before it is traced, so that large buffers are read where they lie.

Copying a buffer at every step costs more than the step. Found here, once per program, by proofs over integer sets:

- *limits*: the largest value of a length that no bound enlarges, such as that of a window;
- *spans*: for a length that is read from slot 0 on, the axes it is read from, or of a strided read their rows. Their
  capacity is the capacity of the length, or the axis would have to be cut;
- *orders*: the order in which a buffer keeps its axes. A batched dot wants the batch axes first and no axis of length
  one; a buffer that is kept so goes into the dot as it is;
- *contiguous* reads, which are one slice of an axis that surely holds it, instead of a gather;
- *strided* reads of every other step (or fewer) from one of the first on, which are one slice of the axis seen as rows;
- *unordered* reads: a ring may be read in the order it lies in memory if all that is done along that axis is parallel
  or a reduction (the signatures of the operations tell), and if the slots in use are the first ones;
- *fresh* reads: nothing has been stored beyond what is read, so the buffer still has its zeros there, and a
  contraction or a sum need not mask it;
- *multiplied* places: a contraction reads their values, so these are there as arrays and not fused into their readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from polyrhythm.compiler.ir.conditions import Condition, conjunction, disjunction, eq, ge, le, lt
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.sets import facts, proves, solutions
from polyrhythm.compiler.ir.terms import ONE, ZERO, Symbol, Term, maximum
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.loops.ir import Block, Compute, Load, Local, LoopProgram, Site, Steps, Store
from polyrhythm.compiler.loops.ir import sites as sites_of

Key = tuple[str, Load]
"""A read: the name of its block, and the load. What is said of it holds wherever the block occurs."""


@dataclass(frozen=True)
class Reads:
    """What is known; see the module."""

    limits: Mapping[Term, int]
    spans: Mapping[Term, frozenset[Term]]
    orders: Mapping[str, tuple[int, ...]]
    contiguous: frozenset[Key]
    strided: frozenset[Key]
    unordered: frozenset[Key]
    fresh: frozenset[Key]
    multiplied: frozenset[str]


class _Same:
    """A program by identity."""

    def __init__(self, program: LoopProgram) -> None:
        self.program = program

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.program is other.program

    def __hash__(self) -> int:
        return id(self.program)


def known_reads(program: LoopProgram) -> Reads:
    """What is known of the reads of a program; found once."""
    return _known_reads(_Same(program))


@lru_cache(32)
def _known_reads(same: _Same) -> Reads:
    program = same.program
    sites = list(sites_of(program.body))
    limits = _limits(sites)
    reads = [(site, key) for site in sites for key in _ranged(site)]
    sums = [(site, key) for site in sites for op in ("einsum", "reduce") for key in _ranged(site, op)]
    shuffled = {id(site): _unordered(site) for site in sites}
    unordered = _everywhere((key, key in shuffled[id(site)]) for site, key in reads)
    contiguous = _everywhere((key, _is_contiguous(program, site, key[1], limits)) for site, key in reads)
    strided = _everywhere((key, _is_strided(site, key[1])) for site, key in reads)
    fresh = _everywhere((key, _is_fresh(program, site, sites, key[1], key in unordered)) for site, key in sums)
    orders, spans = _orders(program, sites), _spans(program, sites, strided)
    return Reads(limits, spans, orders, contiguous, strided, unordered, fresh, _multiplied(sites))


def _multiplied(sites: Sequence[Site]) -> frozenset[str]:
    """The places that contractions of two operands read."""
    products = (c for site in sites for c in site.block.body if c.op == "einsum" and len(c.operands) == 2)
    return frozenset(o.place for compute in products for o in compute.operands if isinstance(o, Load))


def _everywhere(found: Iterable[tuple[Key, bool]]) -> frozenset[Key]:
    """The reads of which something holds wherever they occur."""
    holds: dict[Key, bool] = {}
    for key, here in found:
        holds[key] = here and holds.get(key, True)
    return frozenset(key for key, here in holds.items() if here)


def _ranged(site: Site, op: str | None = None) -> Iterator[Key]:
    """The reads of ranges in a block, or those by one operation."""
    for compute in site.block.body:
        if op is None or compute.op == op:
            for load in compute.operands:
                if isinstance(load, Load) and any(isinstance(entry, Steps) for entry in load.index):
                    yield site.block.name, load


def _limits(sites: Sequence[Site]) -> dict[Term, int]:
    """The largest value of each length that depends on counters, where there is one for all bounds."""
    found: dict[Term, int | None] = {}
    for site in sites:
        for compute in site.block.body:
            loads = (o for o in compute.operands if isinstance(o, Load))
            for term in {n for kind in (compute.type, *(load.type for load in loads)) for n in kind.shape}:
                if any(s.kind == "dim" for s in term.symbols) and found.get(term, 0) is not None:
                    largest = _largest(term, site.known)
                    found[term] = None if largest is None else max(largest, found.get(term) or 0)
    return {term: value for term, value in found.items() if value is not None}


def _largest(term: Term, known: Condition) -> int | None:
    value = Symbol("value", "dim", serial=-30)
    where = conjunction(known, facts(known.symbols | term.symbols), eq(Term.of(value), term))
    values = solutions(where)
    return 0 if values.is_empty else values.largest_value(Term.of(value))


def _spans(program: LoopProgram, sites: Sequence[Site], strided: frozenset[Key]) -> dict[Term, frozenset[Term]]:
    found: dict[Term, set[Term]] = {}
    for site in sites:
        for compute in site.block.body:
            for load in compute.operands:
                if isinstance(load, Load):
                    rows = (site.block.name, load) in strided
                    for slots, entry in zip(program.places[load.place].slots, load.index, strict=False):
                        if isinstance(entry, Steps) and (rows or _is_beginning(entry)):
                            found.setdefault(entry.length, set()).add((slots + entry.step - 1) // entry.step)
    return {length: frozenset(axes) for length, axes in found.items() if not length.is_constant}


def _is_beginning(entry: Steps) -> bool:
    return entry.start is ZERO and entry.step == 1 and not entry.ring


def _is_contiguous(program: LoopProgram, site: Site, load: Load, limits: Mapping[Term, int]) -> bool:
    """Whether a slice as long as the longest read fits; or the axis is shorter, and it starts at 0."""
    for slots, entry in zip(program.places[load.place].slots, load.index, strict=True):
        if isinstance(entry, Steps):
            limit = limits.get(entry.length, entry.length.constant if entry.length.is_constant else None)
            if entry.ring is not None or entry.step != 1 or limit is None:
                return False
            fits = le(entry.start + limit, maximum(Term(limit), slots))
            if not proves(site.known, conjunction(fits, ge(entry.start, 0))):
                return False
    return True


def _is_strided(site: Site, load: Load) -> bool:
    """Whether every range has a step greater than one and starts at one of the first slots."""
    ranges = [entry for entry in load.index if isinstance(entry, Steps)]
    if any(entry.ring is not None or entry.step <= 1 for entry in ranges):
        return False
    first = (conjunction(ge(entry.start, 0), lt(entry.start, entry.step)) for entry in ranges)
    return proves(site.known, conjunction(*first))


def _orders(program: LoopProgram, sites: Sequence[Site]) -> dict[str, tuple[int, ...]]:
    """For buffers of which ranges go into dots: their axes as they lie in memory, those of length one left out."""
    found: dict[str, tuple[int, ...] | None] = {}
    for site in sites:
        for compute in site.block.body:
            for number, load in enumerate(compute.operands):
                if isinstance(load, Load) and any(isinstance(entry, Steps) for entry in load.index):
                    order = _wished_order(program, compute, number, load)
                    if order is not None and found.setdefault(load.place, order) != order:
                        found[load.place] = None
    return {name: order for name, order in found.items() if order is not None}


def _wished_order(program: LoopProgram, compute: Compute, number: int, load: Load) -> tuple[int, ...] | None:
    if compute.op != "einsum" or len(compute.operands) != 2 or program.places[load.place].kind != "buffer":
        return None
    words, output = parse_spec(compute.attributes["spec"])
    own, other = words[number], words[1 - number]
    place = program.places[load.place]
    picked = [axis for axis, entry in enumerate(load.index) if isinstance(entry, Term)]
    axes = [axis for axis in range(len(place.whole)) if axis not in picked]
    batch = [axis for axis, label in zip(axes, own, strict=True) if label in other and label in output]
    rest = [axis for axis in axes if axis not in batch]
    slots = len(place.slots)
    return tuple(axis for axis in (*picked, *batch, *rest) if axis < slots or place.whole[axis] is not ONE)


Tag = Steps
Tags = tuple[Tag | None, ...]
"""For each axis of a value, the read that shuffles it, if any."""


def _unordered(site: Site) -> set[Key]:
    """The reads of rings in a block that may come in any order."""
    block = site.block
    loads = [o for compute in block.body for o in compute.operands if isinstance(o, Load)]
    tags = {entry for load in loads for entry in load.index if isinstance(entry, Steps) and _fills(site, entry)}
    while tags:
        spoiled = _spoiled(block, tags)
        if not spoiled:
            break
        tags -= spoiled
    rings = {load: [entry for entry in load.index if isinstance(entry, Steps)] for load in loads}
    return {(block.name, load) for load, entries in rings.items() if entries and all(e in tags for e in entries)}


def _fills(site: Site, entry: Steps) -> bool:
    """Whether the slots of a ring in use are its first ones: all of them, or those from step 0 on."""
    if entry.ring is None or entry.step != 1:
        return False
    from_zero = conjunction(eq(entry.start, 0), le(entry.length, entry.ring))
    return proves(site.known, disjunction(eq(entry.length, entry.ring), from_zero))


def _spoiled(block: Block, tags: set[Tag]) -> set[Tag]:
    """The tags along whose axes the order of the elements matters."""
    values: dict[str, Tags] = {}
    types: dict[str, TensorType] = {}
    for compute in block.body:
        own = [_operand_tags(operand, values, tags) for operand in compute.operands]
        types[compute.result] = compute.type
        if not any(tag for operand in own for tag in operand):
            values[compute.result] = (None,) * compute.type.rank
            continue
        if compute.op not in TABLE:
            return {tag for operand in own for tag in operand if tag}
        kinds = tuple(types[o.name] if isinstance(o, Local) else o.type for o in compute.operands)
        signature = TABLE[compute.op].signature(kinds, compute.attributes)
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


def _is_fresh(program: LoopProgram, site: Site, sites: Sequence[Site], load: Load, unordered: bool) -> bool:
    """Whether everything stored before a read lies within what is read, along all axes it reads ranges of."""
    place = program.places[load.place]
    ranges = {axis: entry for axis, entry in enumerate(load.index) if isinstance(entry, Steps)}
    if place.kind != "buffer" or any(n.symbols for n in place.type.shape):
        return False
    if any(entry.step < 1 or (entry.ring is not None and not unordered) for entry in ranges.values()):
        return False
    ends = {a: e.length if unordered else e.start + (e.length - 1) * e.step + 1 for a, e in ranges.items()}
    for other in sites:
        for store in other.block.stores:
            if store.place == load.place:
                for index, earlier in _earlier(program, site, load, other, store):
                    if not proves(earlier, conjunction(*(lt(index[axis], end) for axis, end in ends.items()))):
                        return False
    return True


def _earlier(
    program: LoopProgram, site: Site, load: Load, other: Site, store: Store
) -> Iterator[tuple[tuple[Term, ...], Condition]]:
    """The slot of each store that comes before a read of the same slots elsewhere, one level of loops at a time."""
    renamed = {s: Term.of(Symbol(s.name, "dim", serial=-31)) for s in other.counters}
    # A bound that the program finds itself may have been another when the store was done.
    past = {s: Term.of(Symbol(s.name, "bound", serial=-32)) for s in program.found}
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
