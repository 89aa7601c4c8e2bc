"""The Loop IR: what a backend runs.

A program is a sequence of items executed in order: `For` loops, `If` guards, and `Block`s. A block computes
values in single assignment: what it loads is read, values are computed one after the other, then results are
stored: a block never reads what it stores. Places
(inputs, variables, buffers, outputs) hold values between blocks. Index terms are over loop counters, bounds and
sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from polyrhythm.compiler.ir.conditions import Condition, conjunction, ge, lt
from polyrhythm.compiler.ir.graph import Requirement
from polyrhythm.compiler.ir.intervals import Interval, interval
from polyrhythm.compiler.ir.ops import record
from polyrhythm.compiler.ir.ops.record import Signature
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.ir.types import Shape, TensorType
from polyrhythm.compiler.loops.cost import Machine
from polyrhythm.language.chunks import Chunk
from polyrhythm.source import Source

if TYPE_CHECKING:
    from polyrhythm.compiler.loops.growth import Growth
    from polyrhythm.compiler.loops.sharding import Sharding
    from polyrhythm.compiler.loops.spilling import HostMemory, SpillFile


@dataclass(frozen=True)
class Place:
    """Something that holds values between blocks.

    `slots` are the leading axes that an index selects from; `type` is the type of one slot, with each varying axis
    at its largest. A place without slots that is neither input nor output is a variable. Along the axes in `separate`
    every slot may be an array of its own (see `unroll.py`). `axes` is the order of the axes of `whole` in memory, those
    of length one perhaps left out; without them it is as they are. What products read is `multiplied`.
    """

    name: str
    kind: Literal["input", "variable", "buffer", "output"]
    slots: Shape
    type: TensorType
    folded: tuple[str, ...] = ()  # how each dim of the tensor is kept, for people
    why: str = ""
    at: Source | None = field(default=None, compare=False)
    separate: tuple[int, ...] = ()
    part_of: tuple[str, tuple[int | None, ...]] | None = None  # a place, and the slot of each axis that is picked
    axes: tuple[int, ...] = ()
    multiplied: bool = False
    dims: tuple[str, ...] = ()  # the dim that each axis of slots keeps whole, by name; empty where it is folded
    label: str | None = field(default=None, compare=False)  # the user's name of the tensor, if it has one
    spill: SpillFile | HostMemory | None = None  # where it lies, if not in memory

    @property
    def whole(self) -> Shape:
        """The shape of all slots together."""
        return (*self.slots, *self.type.shape)


@dataclass(frozen=True)
class Steps:
    """Several slots at once: `start, start + step, ...`, `length` of them, modulo the number of slots if `ring`.

    They are fetched `via` one slice, a column of the axis seen as rows of `step` slots, or as the ring lies in memory;
    without it they are gathered.
    """

    start: Term
    length: Term
    step: int = 1
    ring: int | None = None
    via: Literal["slice", "rows", "ring"] | None = None

    def __str__(self) -> str:
        shown = f"{self.start} +: {self.length}" + (f" by {self.step}" if self.step != 1 else "")
        return (f"({shown}) % {self.ring}" if self.ring else shown) + (f" as {self.via}" if self.via else "")


@dataclass(frozen=True)
class Load:
    """A read of a place: one slot index, or several slots, per axis of slots; `type` is what is read.

    What lies beyond the slots that are read is known to be `zeros`. A `held` load is of a slot whose value is at hand,
    since this iteration or the one before has stored it (see `hold.py`). A `spilled` one is fetched from a file.
    """

    place: str
    index: tuple[Term | Steps, ...]
    type: TensorType
    zeros: bool = False
    held: bool = False
    spilled: bool = False

    def __str__(self) -> str:
        entries = ", ".join(map(str, self.index)) + (" else 0" if self.zeros else "")
        return ("held " if self.held else "") + (f"{self.place}[{entries}]" if self.index else self.place)


@dataclass(frozen=True)
class Local:
    """A value computed earlier in the same block."""

    name: str

    def __str__(self) -> str:
        return self.name


Operand = Load | Local


@dataclass(frozen=True)
class RowSum:
    """A contraction over rows and their steps, row by row: beyond the end of each an operand is zero.

    `label` is that of the rows in the spec of the contraction, `bound` the longest row, `lengths` reads all lengths.
    """

    bound: Symbol
    label: str
    lengths: Load


@dataclass(frozen=True)
class Compute:
    """`result = op(operands)`: the value of the tensor `node` at the point `step`, the key of random numbers."""

    result: str
    op: str
    operands: tuple[Operand, ...]
    attributes: Mapping[str, Any]
    type: TensorType
    step: tuple[Term, ...] = ()
    at: Source | None = field(default=None, compare=False)
    node: str = ""
    rows: RowSum | None = None

    @property
    def loads(self) -> Iterator[Load]:
        """What it reads from places."""
        return (operand for operand in self.operands if isinstance(operand, Load))

    @property
    def locals(self) -> tuple[str, ...]:
        """The values of its block that it is made of."""
        return tuple(operand.name for operand in self.operands if isinstance(operand, Local))

    def kinds(self, types: Mapping[str, TensorType]) -> tuple[TensorType, ...]:
        """The types of its operands, given those of the values of its block."""
        return tuple(types[o.name] if isinstance(o, Local) else o.type for o in self.operands)

    def signature(self, types: Mapping[str, TensorType]) -> Signature:
        """What its operation does along every axis."""
        return record(self.op).signature(self.kinds(types), self.attributes)


@dataclass(frozen=True)
class Store:
    """Keep a value in a slot of a place."""

    place: str
    index: tuple[Term, ...]
    value: str


@dataclass(frozen=True)
class Block:
    """Loads, then computations, then stores."""

    name: str
    body: tuple[Compute, ...]
    stores: tuple[Store, ...]

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """What it reads from places."""
        return tuple(load for compute in self.body for load in compute.loads)

    @cached_property
    def types(self) -> dict[str, TensorType]:
        """The type of every value."""
        return {compute.result: compute.type for compute in self.body}

    @cached_property
    def sources(self) -> frozenset[str]:
        """The places that it reads."""
        return frozenset(load.place for load in self.loads)

    @property
    def host(self) -> bool:
        """Whether the block calls a host function."""
        return any(compute.op == "host" for compute in self.body)

    def loading(self, load: Callable[[Load], Load]) -> Block:
        """The block with other loads in the place of its own."""

        def changed(compute: Compute) -> Compute:
            operands = (load(operand) if isinstance(operand, Load) else operand for operand in compute.operands)
            return replace(compute, operands=tuple(operands))

        return replace(self, body=tuple(map(changed, self.body)))


@dataclass(frozen=True)
class If:
    """Do the body where a condition on the counters and bounds holds."""

    condition: Condition
    body: tuple[Item, ...]


@dataclass(frozen=True)
class Stop:
    """End a loop early: when what `done` reads is true after an iteration, `bound` becomes `length`."""

    done: Load
    bound: Symbol
    length: Term


@dataclass(frozen=True)
class Register:
    """A slot that each iteration stores to and the next one reads: `before` is its index there, `now` where stored."""

    place: str
    before: tuple[Term, ...]
    now: tuple[Term, ...]


@dataclass(frozen=True)
class Own:
    """What one lane has of a place: position `counter + offset` of an axis. Lanes that have all of them `fill` it.

    Of a `ring` it is the position modulo its slots, of which there are no fewer than lanes.
    """

    place: str
    axis: int
    offset: Term
    counter: Symbol
    fills: bool = False
    ring: int = 0


@dataclass(frozen=True)
class Lanes:
    """How the iterations of a loop run together: what each of them has to itself of the places that it writes.

    Of the `private` places each has a copy, as of variables. All others they share, and do not write.
    """

    written: tuple[Own, ...]
    private: frozenset[str] = frozenset()

    @property
    def in_part(self) -> Lanes:
        """Those of some of the iterations: they fill nothing."""
        return replace(self, written=tuple(replace(own, fills=False) for own in self.written))


@dataclass(frozen=True)
class Rows:
    """Lanes that are rows of different lengths: the bound of the longest, and what reads the length of each.

    Those of similar length may run together, with `bound` at what they need: see `rows.py`.
    """

    bound: Symbol
    owner: Symbol
    lengths: Load


@dataclass(frozen=True)
class Split:
    """A place that a loop keeps as `step` arrays: slot s of an axis is at s // step of array s % step."""

    place: str
    axis: int
    step: int


@dataclass(frozen=True)
class For:
    """Count upwards from `first` to before `end`; with `stop`, until a condition holds.

    The iterations of a `parallel` loop do not depend on each other: they may run in any order, or all at once.
    `private` are the buffers that each of them fills and reads by itself.
    Those that can run together are `lanes`, or it is `refused` for a reason (see `lanes.py`).
    An `unrolled` loop has a known number of iterations, and is better written out. Values that each iteration passes to
    the next beside their buffers are in `registers`; the first iteration finds what is in the buffer. The places in
    `splits` are kept apart by remainder while the loop runs (see `stride_split.py`). Lanes that are `rows` of different
    lengths need not all run as long as the longest.
    """

    counter: Symbol
    first: Term
    end: Term
    body: tuple[Item, ...]
    stop: Stop | None = None
    parallel: bool = False
    unrolled: bool = False
    private: frozenset[str] = frozenset()
    registers: tuple[Register, ...] = ()
    lanes: Lanes | None = None
    refused: str = ""
    splits: tuple[Split, ...] = ()
    rows: Rows | None = None

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """Its blocks with what is around them, itself included."""
        return tuple(sites((self,)))

    def span(self, ranges: Mapping[Symbol, Interval]) -> Interval:
        """Between which values the counter lies, given those of the loops around."""
        return interval(self.first, ranges)[0], interval(self.end - 1, ranges)[1]

    @property
    def known(self) -> range | None:
        """The values of the counter, if they are known before anything runs."""
        if self.stop is None and self.first.is_constant and self.end.is_constant:
            return range(self.first.constant, self.end.constant)
        return None


Item = For | If | Block


@dataclass(frozen=True)
class LoopProgram:
    """A whole program: its places, its inputs and outputs by place, and what to do.

    `bounds` are the bounds and sizes it needs; `found` those it finds itself. `budget` is how many bytes a run may
    take; `chunks` how many steps of a dim, by its name, run at once where that has been chosen; `machine` is what the
    other choices follow from. `limits` are the largest values of lengths that no bound enlarges, and `spans` the axes
    that a length is read from the first slot of: its capacity is theirs (see `layout.py`). `growth` is the loop whose
    buffers grow while it runs. `sharding` spreads it over devices; `precision` is that of
    products on accelerators.
    """

    places: Mapping[str, Place]
    inputs: Mapping[str, str]
    outputs: tuple[str, ...]
    body: tuple[Item, ...]
    bounds: tuple[Symbol, ...]
    found: tuple[Symbol, ...] = ()
    requirements: tuple[Requirement, ...] = ()
    budget: int | None = None
    chunks: Mapping[str, Chunk] = field(default_factory=dict)
    machine: Machine = field(default_factory=Machine)
    limits: Mapping[Term, int] = field(default_factory=dict)
    spans: Mapping[Term, frozenset[Term]] = field(default_factory=dict)
    growth: Growth | None = None
    sharding: Sharding | None = None
    precision: str = "float32"


def output_shapes(program: LoopProgram, bounds: Mapping[str, int]) -> list[tuple[int, ...]]:
    """The shape of each output for given bounds, those found while running included."""

    def lookup(symbol: Symbol) -> int:
        return bounds[symbol.name]

    places = (program.places[name] for name in program.outputs)
    return [tuple(max(0, n.evaluate(lookup)) for n in place.whole) for place in places]


def walk(items: Sequence[Item]) -> Iterator[Item]:
    """Every item of a tree, outer ones first."""
    for item in items:
        yield item
        if not isinstance(item, Block):
            yield from walk(item.body)


def blocks_of(items: Sequence[Item]) -> Iterator[Block]:
    """Every block of a tree, in order."""
    return (item for item in walk(items) if isinstance(item, Block))


def mentioned(thing: Any) -> set[Symbol]:
    """The symbols that occur anywhere in items, blocks, places."""
    if isinstance(thing, (Term, Condition)):
        return set(thing.symbols)
    if isinstance(thing, Mapping):
        return mentioned(list(thing.values()))
    if isinstance(thing, (tuple, list)):
        return set().union(*map(mentioned, thing))
    if isinstance(thing, Compute) and thing.op != "random_bits":
        thing = replace(thing, step=())  # the step is for random numbers
    if is_dataclass(thing):
        return mentioned([getattr(thing, part.name) for part in fields(thing)])
    return {thing} if isinstance(thing, Symbol) else set()


def line_of(items: Sequence[Item]) -> Source | None:
    """The line of the first computation in a tree that has one."""
    return next((compute.at for block in blocks_of(items) for compute in block.body if compute.at is not None), None)


@dataclass(frozen=True, eq=False)
class Site:
    """A block where it stands: the loops and guards around it, outermost first, and its position in the text."""

    block: Block
    loops: tuple[For, ...] = ()
    guards: tuple[Condition, ...] = ()
    position: tuple[int, ...] = ()

    @property
    def counters(self) -> tuple[Symbol, ...]:
        return tuple(loop.counter for loop in self.loops)

    @property
    def uses(self) -> Iterator[Use]:
        """What the block loads, then what it stores."""
        yield from (Use(load.place, load.index, self) for load in self.block.loads)
        yield from (Use(store.place, store.index, self, stored=True) for store in self.block.stores)

    @cached_property
    def known(self) -> Condition:
        """What the guards and the limits of the loops say."""
        limits = (c for i in self.loops for c in (ge(Term.of(i.counter), i.first), lt(Term.of(i.counter), i.end)))
        return conjunction(*limits, *self.guards)


@dataclass(frozen=True)
class Use:
    """A load or a store of a place, and where it stands."""

    place: str
    index: tuple[Term | Steps, ...]
    site: Site
    stored: bool = False


def sites(items: Sequence[Item]) -> Iterator[Site]:
    """Every block of a tree with what is around it there, in order."""

    def visit(items: Sequence[Item], around: Site) -> Iterator[Site]:
        for number, item in enumerate(items):
            loops, guards, position = around.loops, around.guards, (*around.position, number)
            if isinstance(item, Block):
                yield Site(item, loops, guards, position)
            elif isinstance(item, If):
                yield from visit(item.body, Site(around.block, loops, (*guards, item.condition), position))
            else:
                yield from visit(item.body, Site(around.block, (*loops, item), guards, position))

    return visit(items, Site(Block("", (), ())))


def mapped(items: Sequence[Item], change: Callable[[Item], Item]) -> tuple[Item, ...]:
    """A tree with every item changed, then those inside of what it has become."""
    changed = map(change, items)
    return tuple(i if isinstance(i, Block) else replace(i, body=mapped(i.body, change)) for i in changed)
