"""Programs with host functions on JAX: device regions driven by a thin Python loop.

Everything between two host calls is one *region*, one XLA program that takes the places it uses and returns those
that are still needed. Loops that contain a host call run in Python. The regions and what connects them are planned
once. In a loop whose body is straight, the part after the last call and the part before the first call of the
next iteration are one region, so that an iteration with one call costs one dispatch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import jax
import numpy as np

from polyrhythm.backends.jax.host_calls import HostCall
from polyrhythm.backends.jax.lowering import Lowering, State
from polyrhythm.backends.jax.ops import Padded
from polyrhythm.ir.conditions import Condition
from polyrhythm.ir.intervals import Interval, interval
from polyrhythm.ir.terms import Symbol, Term
from polyrhythm.loops.ir import Block, For, If, Item, Load, LoopProgram, blocks_of
from polyrhythm.loops.liveness import carried, live_before, written

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


NOTHING = np.zeros(0, np.int32)


def _mentioned(thing: Any) -> set[Symbol]:
    """The symbols that occur anywhere in items, blocks, places."""
    if isinstance(thing, (Term, Condition)):
        return set(thing.symbols)
    if isinstance(thing, Mapping):
        return _mentioned(list(thing.values()))
    if isinstance(thing, (tuple, list)):
        return set().union(*map(_mentioned, thing))
    if isinstance(thing, HostCall):
        return _mentioned(thing.block)
    if is_dataclass(thing):
        return _mentioned([getattr(thing, part.name) for part in fields(thing)])
    return {thing} if isinstance(thing, Symbol) else set()


class _Region:
    """One XLA program between host calls. `live` are the places that matter afterwards."""

    def __init__(self, plan: _Planner, pieces: tuple[_Piece, ...], live: set[str], loops: tuple[For, ...]) -> None:
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
                needed |= {o.place for c in piece.asked.block.body for o in c.operands if isinstance(o, Load)}
            needed = live_before(piece.items, needed, program)
            if piece.returned is not None:
                needed = _live_before_results(piece.returned.block, needed, program)
        # Donating a buffer lets XLA update it in place; for a small variable it costs more than it saves.
        owned = {n for n in changed if program.places[n].kind != "variable"}
        self.donated = sorted(needed & owned)
        self.kept = sorted(needed - owned)
        used = _mentioned((pieces, [program.places[name] for name in needed]))
        self.symbols = tuple(s for s in (*program.bounds, *(loop.counter for loop in loops)) if s in used)
        self.call = jax.jit(self._trace, donate_argnums=(0,))
        plan.note_compilation()

    def run(self, run: Run, returned: Sequence[np.ndarray]) -> tuple[jax.Array, ...]:
        """Run it and store what it returns; the operands of the next call."""
        state = run.state
        values = NOTHING
        if self.symbols:
            symbols = run.symbols
            values = np.array([symbols[s] for s in self.symbols], np.int32)
        donated, kept = [state[n] for n in self.donated], [state[n] for n in self.kept]
        new, asked = self.call(donated, kept, values, run.seed, returned)
        state.update(zip(self.results, new))  # noqa: B905, this is done at every step
        return asked

    def _trace(
        self,
        donated: list[jax.Array],
        kept: list[jax.Array],
        values: jax.Array,
        seed: jax.Array,
        returned: Sequence[jax.Array],
    ) -> tuple[list[jax.Array], tuple[jax.Array, ...]]:
        program = self.plan.program
        symbols: dict[Symbol, Any] = {s: values[i] for i, s in enumerate(self.symbols)}
        lowering = Lowering(program, self.plan.capacities, dict(symbols), seed, dict(self.ranges))
        state: State = {}
        for name, array in zip((*self.donated, *self.kept), (*donated, *kept), strict=True):
            state[name] = Padded(array, lowering.lengths(program.places[name].whole))
        asked: tuple[jax.Array, ...] = ()
        everything = set(program.places)
        for piece in self.pieces:
            if self.counter in symbols:
                lowering.symbols[self.counter] = symbols[self.counter] + np.int32(piece.shift)
            if piece.returned is not None:
                _store_results(lowering, piece.returned.block, piece.returned.unpacked(returned), state)
            lowering.items(piece.items, state, everything, None)
            if piece.asked is not None:
                asked = _operands(lowering, piece.asked.block, state)
        return [state[name].array for name in self.results], asked


def _operands(lowering: Lowering, block: Block, state: State) -> tuple[jax.Array, ...]:
    """The operands of a host call; values remade for it are computed on the way."""
    values: dict[str, Padded] = {}
    for compute in block.body:
        operands = [
            lowering.load(operand, state, block) if isinstance(operand, Load) else values[operand.name]
            for operand in compute.operands
        ]
        if compute.op == "host":
            return tuple(operand.array for operand in operands)
        values[compute.result] = lowering.compute(compute, operands)
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
class _Straight:
    """Regions with calls between them, one after the other."""

    regions: tuple[_Region, ...]
    calls: tuple[HostCall, ...]

    def run(self, run: Run) -> None:
        asked = self.regions[0].run(run, ())
        for call, region in zip(self.calls, self.regions[1:], strict=True):
            asked = region.run(run, call.run(run.symbols, asked))


@dataclass(frozen=True)
class _Guard:
    """Actions under a condition."""

    condition: Condition
    body: tuple[Action, ...]

    def run(self, run: Run) -> None:
        if self.condition.evaluate(run.symbols.__getitem__):
            for action in self.body:
                action.run(run)


@dataclass(frozen=True)
class _Loop:
    """A loop in Python. `between` joins the end of one iteration with the beginning of the next."""

    loop: For
    body: tuple[Action, ...]
    between: _Region | None = None

    def run(self, run: Run) -> None:
        loop, symbols = self.loop, run.symbols
        first, end = (term.evaluate(symbols.__getitem__) for term in (loop.first, loop.end))
        if self.between is not None and end > first:
            self._run_joined(run, first, end)
            return
        for counter in range(first, end):
            symbols[loop.counter] = counter
            for action in self.body:
                action.run(run)
            if loop.stop is not None and run.stopped(loop):
                return

    def _run_joined(self, run: Run, first: int, end: int) -> None:
        (straight,) = self.body
        assert isinstance(straight, _Straight)
        assert self.between is not None
        counter, regions, calls = self.loop.counter, straight.regions, straight.calls
        middle = list(zip(calls, regions[1:-1], strict=False))
        last_call = calls[-1]
        run.symbols[counter] = first
        asked = regions[0].run(run, ())
        for step in range(first, end):
            run.symbols[counter] = step
            for call, region in middle:
                asked = region.run(run, call.run(run.symbols, asked))
            joined = self.between if step + 1 < end else regions[-1]
            asked = joined.run(run, last_call.run(run.symbols, asked))


Action = _Straight | _Guard | _Loop


@dataclass
class _Planner:
    """Turns items into actions, at one set of capacities."""

    program: LoopProgram
    capacities: Mapping[Symbol, int]
    note_compilation: Callable[[], None]
    ranges: Ranges = field(default_factory=dict)

    def actions(self, items: Sequence[Item], live: set[str], loops: tuple[For, ...] = ()) -> tuple[Action, ...]:
        """What to do for some items, given the places that matter after them."""
        done: list[Action] = []
        straight: list[Item] = []
        for number, item in enumerate(items):
            after = live_before(items[number + 1 :], live, self.program)
            if isinstance(item, Block) or not has_host((item,)):
                straight.append(item)
                continue
            before = live_before(items[number:], live, self.program)
            done += self._straight(straight, before, loops)
            straight = []
            if isinstance(item, If):
                done.append(_Guard(item.condition, self.actions(item.body, after, loops)))
            else:
                done.append(self.loop(item, after, loops))
        return (*done, *self._straight(straight, live, loops))

    def loop(self, loop: For, live: set[str], loops: tuple[For, ...]) -> _Loop:
        low, high = interval(loop.first, self.ranges)[0], interval(loop.end - 1, self.ranges)[1]
        self.ranges[loop.counter] = (low, high)
        stop = {loop.stop.done.place} if loop.stop is not None else set()
        around = live | set(carried(loop, live | stop, self.program)) | stop
        around |= live_before(loop.body, around, self.program)
        body = self.actions(loop.body, around, (*loops, loop))
        if loop.stop is not None or len(body) != 1 or not isinstance(body[0], _Straight) or not body[0].calls:
            return _Loop(loop, body)
        head, tail = body[0].regions[0].pieces[0], body[0].regions[-1].pieces[0]
        ahead = _Piece(head.items, None, head.asked, 1)
        assert head.asked is not None
        place = loop.body.index(head.asked.block)
        live_at_call = self._live_in_call(loop.body[place:], around)
        return _Loop(loop, body, _Region(self, (tail, ahead), live_at_call, (*loops, loop)))

    def _straight(self, items: Sequence[Item], live: set[str], loops: tuple[For, ...]) -> tuple[Action, ...]:
        if not items:
            return ()
        sizes = Lowering(self.program, self.capacities, {}, None, self.ranges)
        calls = {n: HostCall(item, sizes) for n, item in enumerate(items) if isinstance(item, Block) and item.host}
        regions = []
        for start, end in zip([-1, *calls], [*calls, len(items)], strict=True):
            piece = _Piece(tuple(items[start + 1 : end]), calls.get(start), calls.get(end))
            after = self._live_in_call(items[end:], live) if end in calls else live
            regions.append(_Region(self, (piece,), after, loops))
        return (_Straight(tuple(regions), tuple(calls.values())),)

    def _live_in_call(self, items: Sequence[Item], live: set[str]) -> set[str]:
        """What matters while the host call that some items begin with goes on."""
        block, *rest = items
        assert isinstance(block, Block)
        return _live_before_results(block, live_before(rest, live, self.program), self.program)


@dataclass
class Run:
    """One run: the contents of the places and the values of the symbols."""

    driver: Driver
    state: Arrays
    symbols: dict[Symbol, int]
    seed: jax.Array

    def iteration(self, item: For | Block, counter: int) -> bool:
        """One iteration of an outermost loop, or a block; whether it has ended the loop early."""
        action = self.driver.unit(item)
        if isinstance(item, Block):
            action.run(self)
            return False
        assert isinstance(action, _Loop)
        self.symbols[item.counter] = counter
        for inner in action.body:
            inner.run(self)
        return item.stop is not None and self.stopped(item)

    def stopped(self, loop: For) -> bool:
        """Whether the condition of a loop holds; if so its bound is known."""
        stop = loop.stop
        assert stop is not None
        index = tuple(entry.evaluate(self.symbols.__getitem__) for entry in stop.done.index if isinstance(entry, Term))
        if not bool(np.asarray(self.state[stop.done.place])[index]):
            return False
        self.symbols[stop.bound] = stop.length.evaluate(self.symbols.__getitem__)
        return True


@dataclass
class Driver:
    """Runs one program at one set of capacities."""

    program: LoopProgram
    capacities: Mapping[Symbol, int]
    note_compilation: Callable[[], None]
    _actions: tuple[Action, ...] | None = None
    _units: dict[int, Action] = field(default_factory=dict)

    def run(
        self, inputs: Mapping[str, jax.Array], bounds: Mapping[Symbol, int], seed: np.ndarray
    ) -> tuple[list[jax.Array], dict[Symbol, int]]:
        """The outputs at capacity, and the bounds found on the way."""
        if self._actions is None:
            planner = _Planner(self.program, self.capacities, self.note_compilation)
            self._actions = planner.actions(self.program.body, set(self.program.outputs))
        sizes = Lowering(self.program, self.capacities, {}, None)
        state = dict(inputs)
        for name, place in self.program.places.items():
            if place.kind != "input":
                state[name] = jax.device_put(np.zeros(sizes.room(place), place.type.dtype))
        run = self.started(state, dict(bounds), seed)
        for action in self._actions:
            action.run(run)
        found = {symbol: run.symbols[symbol] for symbol in self.program.found}
        return [run.state[name] for name in self.program.outputs], found

    def started(self, state: Arrays, symbols: dict[Symbol, int], seed: np.ndarray) -> Run:
        """A run that may be driven from outside, iteration by iteration."""
        return Run(self, state, symbols, jax.device_put(seed))

    def unit(self, item: For | Block) -> Action:
        """The actions of an outermost loop or block, after which every place matters."""
        if id(item) not in self._units:
            planner = _Planner(self.program, self.capacities, self.note_compilation)
            (self._units[id(item)],) = planner.actions((item,), set(self.program.places))
        return self._units[id(item)]
