"""How many bytes the values of each block of a program take while it runs, one block after the other.

Loops of which many iterations run together on NumPy and torch take the values of as many: those of full chunks or of
the last one, with what the iterations keep meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from polyrhythm.compiler.backends.python.batched import Batch, batched, elements
from polyrhythm.compiler.ir.intervals import Interval, interval
from polyrhythm.compiler.ir.ops import record
from polyrhythm.compiler.ir.ops.contraction import lies_as_matrices, parse_spec
from polyrhythm.compiler.ir.terms import Symbol, Term, minimum, product
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.loops.ir import Block, Compute, For, If, Item, Load, Local, LoopProgram, Steps

Lookup = Callable[[Symbol], int]
Sizing = Callable[[TensorType], int]
"""The most bytes that a value takes."""

Ranges = Mapping[Symbol, Interval]
Exact = Mapping[Symbol, Term]
Taken = tuple[str, int]
"""A block and how many bytes it takes."""


def taken(program: LoopProgram, lookup: Lookup) -> list[Taken]:
    """The bytes that the values of each block take; of loops whose iterations run together, at the worst block."""
    chunks, found = _Chunks(lookup, elements(program)), list[Taken]()

    def visit(items: Sequence[Item], ranges: Ranges) -> None:
        for item in items:
            if isinstance(item, Block):
                found.append((item.name, _alive(item, sizing({}, ranges, lookup))))
            elif isinstance(item, If):
                visit(item.body, ranges)
            elif (batch := batched(program, item)) is not None:
                found.append(chunks.of(batch, {}, ranges))
            else:
                visit(item.body, {**ranges, item.counter: item.span(ranges)})

    visit(program.body, {})
    return found


def sizing(exact: Exact, ranges: Ranges, lookup: Lookup) -> Sizing:
    """That of values at bounds, where some symbols are terms of others and some lie between two."""

    def size(kind: TensorType) -> int:
        total: Term = product(tuple(interval(_substituted(n, exact), ranges)[1] for n in kind.shape))
        return max(0, total.evaluate(lookup)) * kind.dtype.itemsize

    return size


def _substituted(term: Term, exact: Exact) -> Term:
    for _ in exact:
        term = term.substitute(exact)
    return term


@dataclass(frozen=True)
class _Chunks:
    """What loops take of which some iterations run together, about so many elements at once."""

    lookup: Lookup
    elements: int

    def of(self, batch: Batch, exact: Exact, ranges: Ranges) -> Taken:
        """The most that a loop takes: in a full chunk, or in the last."""
        lane, none = batch.lane, ("", 0)

        def ends(term: Term) -> list[int]:
            return [end.evaluate(self.lookup) for end in interval(_substituted(term, exact), ranges)]

        steps = ends(lane.end - lane.first)[1]
        if steps <= 0:
            return none
        if batch.rows:
            return self.inside(batch, {**exact, **batch.at_once}, ranges)
        low, high = ends(lane.first)[0], ends(lane.end)[1]
        most = max(1, self.elements // max(1, *(ends(size)[0] for size in batch.sizes), 1))
        room, found = Term(min(most, steps)), [none]
        for count in {min(most, steps), steps % most} - {0}:
            own = {lane.counter: (Term(low), Term(max(low, high - count))), lane.count: (Term(count), Term(count))}
            found.append(self.inside(batch, exact, {**ranges, **own, lane.most: (room, room)}))
        return max(found, key=_bytes)

    def inside(self, batch: Batch, exact: Exact, ranges: Ranges) -> Taken:
        """That of a chunk, with the rooms and variables that it has meanwhile."""
        size, kept, most = sizing(exact, ranges, self.lookup), dict(batch.variables), ("", 0)
        held = sum(size(TensorType(room.whole, room.type.dtype)) for room in batch.rooms)

        def visit(items: Sequence[Item | Batch], ranges: Ranges) -> None:
            nonlocal most, held
            for item in items:
                if isinstance(item, If | For):
                    span = {item.counter: item.span(ranges)} if isinstance(item, For) else {}
                    visit(item.body, {**ranges, **span})
                    continue
                now = exact
                if isinstance(item, Batch):
                    name, own = self.of(item, exact, ranges)
                    now = {**exact, **item.at_once}
                    places = [store.place for block in item.blocks for store in block.stores]
                else:
                    name, own = item.name, _alive(item, sizing(exact, ranges, self.lookup))
                    places = [store.place for store in item.stores]
                most = max(most, (name, held + own), key=_bytes)
                stored = [kept.pop(place) for place in dict.fromkeys(places) if place in kept]
                held += sum(map(sizing(now, ranges, self.lookup), stored))

        visit(batch.body, ranges)
        return most


def _bytes(entry: Taken) -> int:
    return entry[1]


def _alive(block: Block, size: Sizing) -> int:
    """The largest sum of bytes of values that live at the same time in a block; views share their operand."""
    owner: dict[str, str] = {}
    last: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for number, compute in enumerate(block.body):
        local = [owner[operand.name] for operand in compute.operands if isinstance(operand, Local)]
        shared = record(compute.op).view
        owner[compute.result] = local[0] if shared and local else compute.result
        if not shared:
            sizes[compute.result] = size(compute.type)
        for name in (*local, owner[compute.result]):
            last[name] = number
    for store in block.stores:
        last[owner[store.value]] = len(block.body)
    types = {compute.result: compute.type for compute in block.body}
    most = now = 0
    for number, compute in enumerate(block.body):
        now += sizes.get(compute.result, 0)
        # Several slots of a ring are gathered; other reads are views.
        rings = [o for o in compute.operands if isinstance(o, Load) and any(map(_is_ring, o.index))]
        most = max(most, now + _transposed(compute, types, size) + sum(_gathered(load, size) for load in rings))
        now -= sum(sizes.get(name, 0) for name, end in last.items() if end == number)
    return most


def _transposed(compute: Compute, types: Mapping[str, TensorType], size: Sizing) -> int:
    """The bytes of the operands that a product transposes first, in a copy."""
    if compute.op != "einsum" or len(compute.operands) != 2:
        return 0
    words, output = parse_spec(compute.attributes["spec"])
    shared = {*words[0]} & {*words[1]}
    batch, contracted = shared & {*output}, shared - {*output}
    kinds = [o.type if isinstance(o, Load) else types[o.name] for o in compute.operands]
    turned = (not lies_as_matrices(word, batch, contracted) for word in words)
    return sum(size(kind) for kind, copied in zip(kinds, turned, strict=True) if copied)


def _gathered(load: Load, size: Sizing) -> int:
    """The bytes of what is gathered from a ring: no more than there are slots."""
    lengths = list(load.type.shape)
    for axis, steps in enumerate(entry for entry in load.index if isinstance(entry, Steps)):
        if steps.ring is not None:
            lengths[axis] = minimum(lengths[axis], Term.of(steps.ring))
    return size(TensorType(tuple(lengths), load.type.dtype))


def _is_ring(entry: Term | Steps) -> bool:
    return isinstance(entry, Steps) and entry.ring is not None
