"""How much the steps of a loop do, for the cost model: operations, and the bytes that move.

XLA fuses elementwise operations, so their values do not move. What counts is what goes into a contraction, a reduction
or another operation that is not elementwise, and what comes out of one; and what all steps read alike. What steps read
in one place but each in its own way, masked to its length or gathered, is their own when they run at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from polyrhythm.compiler.ir.intervals import interval
from polyrhythm.compiler.ir.ops import record
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.terms import Symbol, Term, product
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.loops.cost import Lanes
from polyrhythm.compiler.loops.ir import Block, Compute, For, Item, Load, Site, Steps, sites, walk

if TYPE_CHECKING:
    from polyrhythm.compiler.backends.jax.trace.lowering import Lowering

PRODUCT = 1e-10
"""Seconds that a multiplication of a contraction takes, as a round figure."""

COMPARISON = 4e-9
"""Seconds that a comparison of a sort takes, as a round figure."""


BRANCH = 8
"""How many launches a branch may cost. XLA updates buffers inside of it in place, so their size does not count."""


NOMINAL_ITERATIONS = 256
"""How often a loop is taken to run if it is as long as a bound that sizes no array."""


def is_worth_skipping(lowering: Lowering, items: Sequence[Item]) -> bool:
    """Whether some items, without their loops, take clearly longer than a branch."""
    seconds = sum(_seconds(lowering, item) for item in items if isinstance(item, Block))
    return seconds > BRANCH * lowering.program.machine.launch


def _seconds(lowering: Lowering, block: Block) -> float:
    """What the contractions and sorts of a block take; the rest is cheap enough to be masked."""
    types = block.types
    seconds = 0.0
    for compute in block.body:
        given = compute.kinds(types)
        if compute.op == "einsum":
            labels = "".join(parse_spec(compute.attributes["spec"])[0])
            lengths = dict(zip(labels, (n for kind in given for n in kind.shape), strict=True))
            seconds += PRODUCT * lowering.capacity(product(tuple(lengths.values())))
        elif compute.op == "argsort":
            size = lowering.capacity(product(given[0].shape))
            along = lowering.capacity(given[0].shape[compute.attributes["axis"]])
            # A branch around it costs one launch: XLA computes a sort by itself, masked or not.
            seconds += BRANCH * COMPARISON * size * along.bit_length()
    return seconds


def _iterations(lowering: Lowering, loop: For) -> int:
    """How often a loop inside runs, at most; where no bound of it sizes anything, some number."""
    length = loop.end - loop.first
    free = {s for s in interval(length, lowering.ranges)[1].symbols if not isinstance(lowering.symbols.get(s), int)}
    return max(1, lowering.capacity(length)) if free <= lowering.capacities.keys() else NOMINAL_ITERATIONS


def sites_within(lowering: Lowering, loop: For) -> Iterator[Site]:
    """The blocks of a loop, each while it is known between which values the counters of the loops around it lie."""
    ranges = dict(lowering.ranges)
    try:
        for site in sites(loop.body):
            for inner in site.loops:
                lowering.note_range(inner)
            yield site
    finally:
        lowering.ranges.clear()
        lowering.ranges.update(ranges)


def work_of(lowering: Lowering, loop: For) -> Lanes:
    """What the steps of a loop do, at the capacities of a trace."""
    operations = own = 0
    shared: dict[str, int] = {}

    for site in sites_within(lowering, loop):
        launches = repeats = 1
        for inner in site.loops:
            iterations = _iterations(lowering, inner)
            launches *= 1 if inner.lanes is not None else iterations
            repeats *= iterations
        count, moved = _block(lowering, loop, site.block, shared)
        operations += launches * count
        own += repeats * moved
    return Lanes(lowering.capacity(loop.end - loop.first), max(1, operations), own, sum(shared.values()))


def _block(lowering: Lowering, loop: For, block: Block, shared: dict[str, int]) -> tuple[int, int]:
    """The operations of a block that are not fused, and the bytes of a step that go into them and come out."""
    moving: dict[str, TensorType] = {}
    operations = 0
    types = block.types
    for compute in block.body:
        copied = copied_reads(lowering, loop, compute, types)
        moving.update({f"{load.place} {len(moving) + n}": load.type for n, load in enumerate(copied)})
        for operand in compute.operands:
            if operand in copied:
                continue
            if isinstance(operand, Load) and not any(_is_own(entry, loop) for entry in operand.index):
                place = lowering.program.places[operand.place]
                shared[operand.place] = math.prod(lowering.room(place)) * place.type.dtype.itemsize
        if not record(compute.op).fused:
            operations += 1
            moving[compute.result] = compute.type
            moving.update({name: types[name] for name in compute.locals})
    return operations, sum(_bytes(lowering, kind) for kind in moving.values())


def copied_reads(lowering: Lowering, loop: For, compute: Compute, types: Mapping[str, TensorType]) -> list[Load]:
    """What steps that run at once have a copy of each, though it lies in one place: gathered, or masked.

    What they read from different starts on is gathered, unless it is as well read where it lies: by a contraction, to
    the end of an axis. What they read up to different lengths is masked by each, if the operation combines elements
    along that axis, and XLA stores what is masked. Of two operands that are contracted only the smaller one is (see
    `ops/contraction.py`). `types` are those of the values of the block.
    """
    loads = [operand for operand in compute.operands if isinstance(operand, Load)]
    in_place = compute.op == "einsum"
    found = [load for load in loads if is_gathered(load, loop.counter, in_place)]
    if not any(n.symbols for load in loads for n in load.type.shape):
        return found
    signature = compute.signature(types)
    sizes = [lowering.capacity(product(kind.shape)) for kind in compute.kinds(types)]
    counters = {loop.counter, *(item.counter for item in walk(loop.body) if isinstance(item, For))}
    for number, (operand, labels) in enumerate(zip(compute.operands, signature.operands, strict=True)):
        if not isinstance(operand, Load) or operand in found:
            continue
        uneven = {label for label, n in zip(labels, operand.type.shape, strict=True) if n.symbols & counters}
        combined = {label for label in uneven if label is not None and signature.roles[label].kind == "reduce"}
        others = [other for other, own in enumerate(signature.operands) if other != number and combined & {*own}]
        if combined and all((sizes[number], number) < (sizes[other], other) for other in others):
            found.append(operand)
    return found


def is_gathered(load: Load, counter: Symbol, in_place: bool = False) -> bool:
    """Whether steps that run at once read from different starts on: XLA then copies what each of them reads.

    `in_place` says that ranges which end alike are read where they lie.
    """
    starts = (entry for entry in load.index if isinstance(entry, Steps) and counter in entry.start.symbols)
    return any(not (in_place and _ends_alike(entry, counter)) for entry in starts)


def _ends_alike(entry: Steps, counter: Symbol) -> bool:
    """Whether a range ends at the same place for all steps that run at once, as `x[t : T]` does."""
    plain = entry.ring is None and entry.step == 1 and bool(entry.length.symbols)
    return plain and counter not in (entry.start + entry.length).symbols


def _is_own(entry: Term | Steps, loop: For) -> bool:
    """Whether each step of a loop reads a slot of its own along an axis."""
    return not isinstance(entry, Steps) and loop.counter in entry.symbols


def cut_out(lowering: Lowering, loop: For) -> int:
    """The bytes that a step has of what XLA cuts out for all that run at once: of places that are longer than they are.

    A contraction reads all slots of a place where they lie, but only some of them as a copy.
    """
    count, held, cut = lowering.capacity(loop.end - loop.first), lowering.program.places, 1
    for site in sites_within(lowering, loop):
        read = (operand for compute in site.block.body if compute.op == "einsum" for operand in compute.operands)
        for load in (operand for operand in read if isinstance(operand, Load)):
            entries = zip(held[load.place].slots, load.index, strict=True)
            if any(_is_own(entry, loop) and lowering.capacity(n) != count for n, entry in entries):
                cut = max(cut, _bytes(lowering, load.type))
    return cut


def _bytes(lowering: Lowering, kind: TensorType) -> int:
    return lowering.capacity(product(kind.shape)) * kind.dtype.itemsize
