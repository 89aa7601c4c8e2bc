"""Programs with host functions on JAX: the regions that run on the device, and the plan that connects them.

Everything between two host calls is one *region*, one XLA program that takes the places it uses and returns those
that are still needed. Loops that contain a host call run in Python (`host_driver.py`). In a loop whose body is
straight, the part after the last call and the part before the first call of the next iteration are one region, so
that an iteration with one call costs one dispatch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from polyrhythm.compiler.backends.jax.ops import Padded
from polyrhythm.compiler.backends.jax.run.executor import Account, Advance, Executor
from polyrhythm.compiler.backends.jax.run.packing import HostCall, Packs, Room, operand_spots, result_spots
from polyrhythm.compiler.backends.jax.trace.lowering import Lowering
from polyrhythm.compiler.backends.jax.trace.places import State
from polyrhythm.compiler.ir.conditions import Condition
from polyrhythm.compiler.ir.intervals import Interval
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.compiler.loops.ir import Block, For, If, Item, Load, LoopProgram, blocks_of, mentioned, walk
from polyrhythm.compiler.loops.liveness import carried, live_before, written

Arrays = dict[str, jax.Array]
Ranges = dict[Symbol, Interval]


def has_host(items: Sequence[Item]) -> bool:
    """Whether some items call the host."""
    return any(block.host for block in blocks_of(tuple(items)))


@dataclass(frozen=True)
class _Piece:
    """Part of a region: store what the host returned, run items, ask for the operands of the next call."""

    items: tuple[Item, ...] = ()
    returned: HostCall | None = None
    asked: HostCall | None = None
    shift: int = 0  # how far the counter of the driving loop is ahead


class Region:
    """One XLA program between host calls. `live` are the places that matter afterwards."""

    def __init__(self, plan: Planner, pieces: tuple[_Piece, ...], live: set[str], loops: tuple[For, ...]) -> None:
        self.plan, self.pieces = plan, pieces
        self.counter = loops[-1].counter if loops else None
        self.ranges = dict(plan.ranges)
        program = plan.program
        changed: set[str] = set()
        for piece in pieces:
            changed |= written(piece.items) | (written((piece.returned.block,)) if piece.returned else set())
        self.results = sorted(changed & live)
        needed = set(self.results)
        for piece in reversed(pieces):
            if piece.asked is not None:
                needed |= {load.place for load in piece.asked.block.loads}
            needed = live_before(piece.items, needed, program)
            if piece.returned is not None:
                needed = _live_before_results(piece.returned.block, needed, program)
        # Donating a buffer lets XLA update it in place; for a small variable it costs more than it saves.
        owned = {n for n in changed if program.places[n].kind != "variable"}
        packs = plan.packs
        packed = {name for pack in packs.values() for name in pack.entries}
        first, last = pieces[0].returned, pieces[-1].asked
        self.asks = [] if last is None else operand_spots(packs, last)
        self.gets = [] if first is None else result_spots(packs, first)
        # A pack comes in if something is read or kept from it, and goes out if it has changed.
        asked, got = ({spot.pack for spot in spots} for spots in (self.asks, self.gets))
        self.makes = [k for k, pack in packs.items() if k in asked or not pack.entries.keys().isdisjoint(self.results)]
        read = [k for k, pack in packs.items() if k in got or not pack.entries.keys().isdisjoint(needed)]
        self.uses = [k for k in packs if k in self.makes or k in read]
        self.kept = packed.intersection(self.results)
        self.results = [name for name in self.results if name not in packed]
        needed -= packed
        self.takes = (*sorted(needed & owned), *sorted(needed - owned))
        unpacked = {name for kind in self.uses for name in packs[kind].entries}
        code = [(piece.items, *(call.block for call in (piece.returned, piece.asked) if call)) for piece in pieces]
        used = mentioned((code, [program.places[name] for name in {*needed, *unpacked, *self.results}]))
        self.symbols = tuple(s for s in (*program.bounds, *(loop.counter for loop in loops)) if s in used)
        blocks = [b for piece in pieces for b in blocks_of(piece.items)]
        blocks += [piece.asked.block for piece in pieces if piece.asked is not None]
        self.random = any(compute.op == "random_bits" for block in blocks for compute in block.body)
        # Arguments are flat, and only those that matter: each costs time at every step.
        start = bool(self.symbols) + self.random
        key, donated = ("region", len(plan.regions), *plan.key), tuple(range(start, start + len(needed & owned)))
        self.advance = Advance(key, self._trace, plan.capacities, "a region between host calls", donated)
        plan.regions.append(self)
        self._compiled: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Run it; it is compiled when it first runs."""
        if self._compiled is None:
            self._compiled = self.plan.executor.compiled(self.advance, arguments)
        return self._compiled(*arguments)

    def account(self) -> Account:
        """What it allocates, its arguments included."""
        sizes, places = Lowering(self.plan.program, self.plan.capacities, {}, None), self.plan.program.places
        shapes: list[Room] = [((len(self.symbols),), np.dtype(np.int32))] if self.symbols else []
        shapes += [((2,), np.dtype(np.uint32))] if self.random else []
        shapes += [(sizes.room(places[name]), places[name].type.dtype) for name in self.takes]
        shapes += [((self.plan.packs[kind].size,), kind) for kind in self.uses]
        returned = self.pieces[0].returned.gives if self.pieces[0].returned is not None else ()
        shapes += [room for room, spot in zip(returned, self.gets, strict=True) if spot.pack is None]
        arguments = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes)
        return self.plan.executor.account(self.advance, arguments)

    def _trace(self, *arguments: jax.Array) -> tuple[jax.Array, ...]:
        """Takes the values of the symbols and the seed if it needs them, the places, and what the host returned."""
        program = self.plan.program
        arrays = list(arguments)
        values = arrays.pop(0) if self.symbols else ()
        seed = arrays.pop(0) if self.random else None
        symbols: dict[Symbol, Any] = {s: values[i] for i, s in enumerate(self.symbols)}
        lowering = Lowering(program, self.plan.capacities, dict(symbols), seed, dict(self.ranges))
        places, packs = arrays[: len(self.takes)], arrays[len(self.takes) : len(self.takes) + len(self.uses)]
        own = iter(arrays[len(self.takes) + len(self.uses) :])
        given = dict(zip(self.takes, places, strict=True))
        before = dict(zip(self.uses, packs, strict=True))
        for kind, pack in before.items():
            given.update(self.plan.packs[kind].unpacked(pack))
        returned = [next(own) if s.pack is None else before[s.pack][s.where].reshape(s.shape) for s in self.gets]
        state = lowering.stored(given)
        asked: tuple[jax.Array, ...] = ()
        everything = set(program.places)
        for piece in self.pieces:
            if self.counter in symbols:
                lowering.symbols[self.counter] = symbols[self.counter] + np.int32(piece.shift)
            if piece.returned is not None:
                _store_results(lowering, piece.returned.block, returned, state)
            lowering.items(piece.items, state, everything, None)
            if piece.asked is not None:
                asked = _operands(lowering, piece.asked.block, state)
        lowering.begin(state, (*self.results, *self.kept))  # a loop without iterations has left nothing there
        after = []
        for kind in self.makes:
            own_pack = self.plan.packs[kind]
            new = {name: state[name].array for name in own_pack.entries if name in self.kept}
            operands = [array for array, spot in zip(asked, self.asks, strict=True) if spot.pack == kind]
            after.append(own_pack.packed(before[kind], new, operands))
        large = [array for array, spot in zip(asked, self.asks, strict=True) if spot.pack is None]
        return (*(state[name].array for name in self.results), *after, *large)


def _operands(lowering: Lowering, block: Block, state: State) -> tuple[jax.Array, ...]:
    """The operands of a host call; values remade for it are computed on the way."""
    values: dict[str, Padded] = {}
    for compute in block.body:
        operands = [
            lowering.load(operand, state) if isinstance(operand, Load) else values[operand.name]
            for operand in compute.operands
        ]
        if compute.op == "host":
            kinds = compute.kinds(block.types)
            return tuple(lowering.from_zero(o, kind.shape) for o, kind in zip(operands, kinds, strict=True))
        values[compute.result] = lowering.compute(compute, operands, block)
    raise AssertionError("a host block calls the host")


def _store_results(lowering: Lowering, block: Block, results: Sequence[jax.Array], state: State) -> None:
    values = {}
    for compute in block.body:
        if compute.op == "host":
            array = results[compute.attributes["result"]]
            values[compute.result] = Padded(array, lowering.lengths(compute.type.shape))
    for store in block.stores:
        lowering.store(store, values[store.value], state, None)


def _live_before_results(block: Block, live: set[str], program: LoopProgram) -> set[str]:
    """What matters after a host function has been called and before its results are stored."""
    return live_before((replace(block, body=()),), live, program)


@dataclass(frozen=True)
class Straight:
    """Regions with calls between them, one after the other."""

    regions: tuple[Region, ...]
    calls: tuple[HostCall, ...]


@dataclass(frozen=True)
class Guard:
    """Actions under a condition."""

    condition: Condition
    body: tuple[Action, ...]


@dataclass(frozen=True)
class Loop:
    """A loop in Python. `between` joins the end of one iteration with the beginning of the next."""

    loop: For
    body: tuple[Action, ...]
    between: Region | None = None


Action = Straight | Guard | Loop


@dataclass
class Planner:
    """Turns items into actions, at one set of capacities."""

    program: LoopProgram
    capacities: Mapping[Symbol, int]
    packs: Packs
    executor: Executor
    key: tuple[Any, ...]
    ranges: Ranges = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)

    def actions(self, items: Sequence[Item], live: set[str], loops: tuple[For, ...] = ()) -> tuple[Action, ...]:
        """What to do for some items, given the places that matter after them."""
        done: list[Action] = []
        straight: list[Item] = []
        for number, item in enumerate(items):
            after = live_before(items[number + 1 :], live, self.program)
            # Where a loop ends early the driver has to know, so it does not run in a region.
            ends = any(isinstance(inner, For) and inner.stop is not None for inner in walk((item,)))
            if isinstance(item, Block) or not (has_host((item,)) or ends):
                straight.append(item)
                continue
            before = live_before(items[number:], live, self.program)
            done += self._straight(straight, before, loops)
            straight = []
            if isinstance(item, If):
                done.append(Guard(item.condition, self.actions(item.body, after, loops)))
            else:
                done.append(self.loop(item, after, loops))
        return (*done, *self._straight(straight, live, loops))

    def loop(self, loop: For, live: set[str], loops: tuple[For, ...]) -> Loop:
        self.ranges[loop.counter] = loop.span(self.ranges)
        stop = {loop.stop.done.place} if loop.stop is not None else set()
        around = live | set(carried(loop, live | stop, self.program)) | stop
        around |= live_before(loop.body, around, self.program)
        body = self.actions(loop.body, around, (*loops, loop))
        if loop.stop is not None or len(body) != 1 or not isinstance(body[0], Straight) or not body[0].calls:
            return Loop(loop, body)
        head, tail = body[0].regions[0].pieces[0], body[0].regions[-1].pieces[0]
        ahead = _Piece(head.items, None, head.asked, 1)
        assert head.asked is not None
        place = loop.body.index(head.asked.block)
        live_at_call = self._live_in_call(loop.body[place:], around)
        return Loop(loop, body, Region(self, (tail, ahead), live_at_call, (*loops, loop)))

    def _straight(self, items: Sequence[Item], live: set[str], loops: tuple[For, ...]) -> tuple[Action, ...]:
        if not items:
            return ()
        sizes = Lowering(self.program, self.capacities, {}, None, self.ranges)
        calls = {n: HostCall(item, sizes) for n, item in enumerate(items) if isinstance(item, Block) and item.host}
        regions = []
        for start, end in zip([-1, *calls], [*calls, len(items)], strict=True):
            piece = _Piece(tuple(items[start + 1 : end]), calls.get(start), calls.get(end))
            after = self._live_in_call(items[end:], live) if end in calls else live
            regions.append(Region(self, (piece,), after, loops))
        return (Straight(tuple(regions), tuple(calls.values())),)

    def _live_in_call(self, items: Sequence[Item], live: set[str]) -> set[str]:
        """What matters while the host call that some items begin with goes on."""
        block, *rest = items
        assert isinstance(block, Block)
        return _live_before_results(block, live_before(rest, live, self.program), self.program)
