"""How many bytes a program needs, told before it runs.

A place takes its slots times the bytes of one. Besides, a block needs room for the values it computes: each lives
from its computation to its last use. The largest sum over all blocks is what the program needs on top of its
places, for blocks run one after the other. A backend that does independent iterations all at once needs room for the
values of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from polyrhythm.compiler.ir.intervals import Interval, interval
from polyrhythm.compiler.ir.ops import record
from polyrhythm.compiler.ir.terms import Symbol, Term, minimum, product
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.loops.ir import Block, For, If, Item, Load, Local, LoopProgram, Place, Steps, blocks_of
from polyrhythm.errors import MemoryBudgetError

Lookup = Callable[[Symbol], int]


NOMINAL_BOUND = 1024
"""Steps along a bound without a maximum, by which tensors are ordered for people; nothing depends on it."""


@dataclass(frozen=True)
class Memory:
    """The storage plan of a program.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> y = pr.recurrent((), (t,))
    >>> y[0] = x[0]
    >>> y[t + 1] = 0.5 * y + x[t + 1]
    >>> plan = pr.compile(y[T - 1], backend="numpy").memory
    >>> plan.bytes({T: 1000}), plan.kept({T: 1000})
    (4012, 8)
    >>> plan.peak({T: 1000}) == plan.bytes({T: 1000}) + plan.temporary({T: 1000})
    True
    """

    program: LoopProgram
    at_once: bool = False  # whether independent iterations are done together
    twice: tuple[Place, ...] = ()  # the places of which a backend has another copy while a loop runs

    def bytes(self, bounds: Mapping[Any, int]) -> int:
        """All bytes of the places at given bounds: inputs, outputs and what is kept in between."""
        return sum(self.bytes_of(place, bounds) for place in self.program.places.values())

    def kept(self, bounds: Mapping[Any, int]) -> int:
        """The bytes kept in between: variables and buffers."""
        places = (p for p in self.program.places.values() if p.kind in ("variable", "buffer"))
        return sum(self.bytes_of(place, bounds) for place in places)

    def bytes_of(self, place: Place, bounds: Mapping[Any, int]) -> int:
        """The bytes of one place."""
        return _bytes(TensorType(place.whole, place.type.dtype), {}, _lookup(bounds))

    def temporary(self, bounds: Mapping[Any, int]) -> int:
        """The largest sum of values alive at one time inside any block, and copies of places that loops work on."""
        copies = sum(self.bytes_of(place, bounds) for place in self.twice)
        return copies + max((size for _, size in self._blocks(bounds)), default=0)

    def peak(self, bounds: Mapping[Any, int]) -> int:
        """Everything: the places, and the temporaries of the block that needs most."""
        return self.bytes(bounds) + self.temporary(bounds)

    def _blocks(self, bounds: Mapping[Any, int]) -> list[tuple[str, int]]:
        lookup, found = _lookup(bounds), []

        def visit(items: tuple[Item, ...], ranges: Mapping[Symbol, Interval], lanes: int, collected: int) -> None:
            for item in items:
                if isinstance(item, Block):
                    found.append((item.name, max(collected, lanes * _alive(item, ranges, lookup))))
                elif isinstance(item, If):
                    visit(item.body, ranges, lanes, collected)
                else:
                    count = self._lanes(item, ranges, lookup)
                    rows = self._written(item, bounds) if count > 1 else 0
                    inner = {**ranges, item.counter: _range(item, ranges)}
                    visit(item.body, inner, lanes * count, max(collected, rows))

        visit(self.program.body, {}, 1, 0)
        return found

    def _written(self, loop: For, bounds: Mapping[Any, int]) -> int:
        """The bytes of the places that a loop stores to: what its iterations make is collected before it is stored."""
        names = {store.place for block in blocks_of(loop.body) for store in block.stores}
        places = (self.program.places[name] for name in names)
        return sum(self.bytes_of(place, bounds) for place in places if place.kind != "variable")

    def _lanes(self, loop: For, ranges: Mapping[Symbol, Interval], lookup: Lookup) -> int:
        """How many iterations of a loop are done together."""
        if not (self.at_once and loop.parallel and loop.stop is None):
            return 1
        every = max(1, interval(loop.end - loop.first, ranges)[1].evaluate(lookup))
        chosen = self.program.chunks.get(loop.counter.name)
        return every if chosen is None or chosen.steps is None else min(every, chosen.steps)

    def table(self, bounds: Mapping[Any, int]) -> str:
        """The plan at given bounds, a line per place, as a table."""
        from rich.console import Console
        from rich.table import Table

        given = ", ".join(f"{bound} = {value}" for bound, value in bounds.items())
        table = Table(title=f"memory at {given}" if given else "memory")
        for column in ("place", "kind", "slots", "bytes", "why"):
            table.add_column(column, justify="right" if column == "bytes" else "left")
        places = self.program.places.values()
        for place in sorted(places, key=lambda place: self.bytes_of(place, bounds), reverse=True):
            slots = "; ".join(place.folded) or "-"
            table.add_row(place.name, place.kind, slots, f"{self.bytes_of(place, bounds):,}", place.why)
        name, size = max(self._blocks(bounds), key=lambda entry: entry[1], default=("-", 0))
        table.add_row("(temporaries)", "", "", f"{size:,}", f"the most that one block needs: {name}")
        for place in self.twice:
            size = self.bytes_of(place, bounds)
            table.add_row("(copy)", "", "", f"{size:,}", f"{place.name} by remainders, since it is read in strides")
        table.add_row("(peak)", "", "", f"{self.peak(bounds):,}", "")
        console = Console(width=120, no_color=True)
        with console.capture() as captured:
            console.print(table)
        return captured.get()

    def __rich__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        lines = []
        for place in sorted(self.program.places.values(), key=_nominal_bytes, reverse=True):
            folded = f" ({'; '.join(place.folded)})" if place.folded else ""
            why = f": {place.why}" if place.why else ""
            kind = TensorType(place.whole, place.type.dtype)
            lines.append(f"{place.kind:8} {place.name:20} {kind}, {_size(place)} bytes{folded}{why}")
        return "\n".join(lines)


def _size(place: Place) -> Term:
    """The bytes of a place, as a term over the bounds."""
    return product(list(place.whole)) * place.type.dtype.itemsize


def _nominal_bytes(place: Place) -> int:
    """The bytes of a place where bounds have their largest value, or else one that is much larger than constants."""

    def value(symbol: Symbol) -> int:
        return NOMINAL_BOUND if symbol.max is None else symbol.max.evaluate(value)

    return _size(place).evaluate(value)


def check_budget(program: LoopProgram, bounds: Mapping[Any, int]) -> None:
    """Refuse a run whose places alone take more than the budget."""
    if program.budget is None:
        return
    memory = Memory(program)
    needed = memory.bytes(bounds)
    if needed > program.budget:
        largest = max(program.places.values(), key=lambda place: memory.bytes_of(place, bounds))
        raise MemoryBudgetError(
            f"{needed:,} bytes are needed, but the budget is {program.budget:,}; {largest.kind} {largest.name} takes "
            f"{memory.bytes_of(largest, bounds):,} of them" + (f", {largest.why}" if largest.why else ""),
            fix="raise memory_budget, use smaller bounds, or read fewer steps of it later",
            at=largest.at,
        )


def _alive(block: Block, ranges: Mapping[Symbol, Interval], lookup: Lookup) -> int:
    """The largest sum of bytes of values that live at the same time in a block; views share their operand."""
    owner: dict[str, str] = {}
    last: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for number, compute in enumerate(block.body):
        local = [owner[operand.name] for operand in compute.operands if isinstance(operand, Local)]
        shared = record(compute.op).view
        owner[compute.result] = local[0] if shared and local else compute.result
        if not shared:
            sizes[compute.result] = _bytes(compute.type, ranges, lookup)
        for name in (*local, owner[compute.result]):
            last[name] = number
    for store in block.stores:
        last[owner[store.value]] = len(block.body)
    most = now = 0
    for number, compute in enumerate(block.body):
        now += sizes.get(compute.result, 0)
        # Several slots of a ring are gathered; other reads are views.
        rings = [o for o in compute.operands if isinstance(o, Load) and any(map(_is_ring, o.index))]
        most = max(most, now + sum(_gathered(load, ranges, lookup) for load in rings))
        now -= sum(sizes.get(name, 0) for name, end in last.items() if end == number)
    return most


def _gathered(load: Load, ranges: Mapping[Symbol, Interval], lookup: Lookup) -> int:
    """The bytes of what is gathered from a ring: no more than there are slots."""
    lengths = list(load.type.shape)
    for axis, steps in enumerate(entry for entry in load.index if isinstance(entry, Steps)):
        if steps.ring is not None:
            lengths[axis] = minimum(interval(lengths[axis], ranges)[1], Term.of(steps.ring))
    return _bytes(TensorType(tuple(lengths), load.type.dtype), ranges, lookup)


def _is_ring(entry: Term | Steps) -> bool:
    return isinstance(entry, Steps) and entry.ring is not None


def _range(loop: For, ranges: Mapping[Symbol, Interval]) -> Interval:
    return interval(loop.first, ranges)[0], interval(loop.end - 1, ranges)[1]


def _bytes(kind: TensorType, ranges: Mapping[Symbol, Interval], lookup: Lookup) -> int:
    size: Term = product(tuple(interval(n, ranges)[1] for n in kind.shape))
    return max(0, size.evaluate(lookup)) * kind.dtype.itemsize


def _lookup(bounds: Mapping[Any, int]) -> Lookup:
    values = {str(key): value for key, value in bounds.items()}
    return lambda symbol: values[symbol.name]
