"""Programs with host functions on JAX: device regions driven by a thin Python loop.

Everything between two host calls is one *region*, one XLA program that takes the places it uses and returns those it
changes. Loops that contain a host call run in Python. In the common case of a loop with one host call per iteration,
the part after the call and the part before the next one are one region, so that an iteration costs one dispatch and
one call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from polyrhythm.backends.jax.lowering import Lowering, State
from polyrhythm.backends.jax.ops import Padded
from polyrhythm.backends.numpy import checked_results
from polyrhythm.ir.graph import HostFunction
from polyrhythm.ir.intervals import Interval, interval
from polyrhythm.ir.terms import Symbol, Term
from polyrhythm.loops.ir import Block, Compute, For, If, Item, Load, LoopProgram, blocks_of
from polyrhythm.loops.liveness import live_before, written

Arrays = dict[str, jax.Array]


def has_host(items: Sequence[Item]) -> bool:
    """Whether some items call the host."""
    return any(block.host for block in blocks_of(tuple(items)))


@dataclass(frozen=True)
class _Piece:
    """Part of a region: store what the host returned, or run items, at given counters."""

    items: tuple[Item, ...] = ()
    returned: Block | None = None  # a host block whose results are stored
    asked: Block | None = None  # a host block whose operands are wanted
    shift: int = 0  # how far the counter of the driving loop is ahead


@dataclass
class Driver:
    """Runs one program at one set of capacities."""

    program: LoopProgram
    capacities: Mapping[Symbol, int]
    note_compilation: Callable[[], None]
    ranges: dict[Symbol, Interval] = field(default_factory=dict)
    regions: dict[Any, Any] = field(default_factory=dict)

    def run(
        self, inputs: Mapping[str, jax.Array], bounds: Mapping[Symbol, int], seed: np.ndarray
    ) -> tuple[list[jax.Array], dict[Symbol, int]]:
        """The outputs at capacity, and the bounds found on the way."""
        state: Arrays = {}
        for name, place in self.program.places.items():
            if place.kind == "input":
                state[name] = inputs[name]
            else:
                room = Lowering(self.program, self.capacities, {}, None, self.ranges).room(place)
                state[name] = jax.device_put(np.zeros(room, place.type.dtype))
        run = _Run(self, state, dict(bounds), seed)
        run.items(self.program.body)
        found = {symbol: run.symbols[symbol] for symbol in self.program.found}
        return [run.state[name] for name in self.program.outputs], found

    def started(self, state: Arrays, symbols: dict[Symbol, int], seed: np.ndarray) -> _Run:
        """A run that is driven from outside, iteration by iteration."""
        return _Run(self, state, symbols, seed)

    def _capacity(self, term: Term) -> int:
        return Lowering(self.program, self.capacities, {}, None, self.ranges).capacity(term)

    def region(self, pieces: tuple[_Piece, ...], symbols: tuple[Symbol, ...], counter: Symbol | None) -> Any:
        """The compiled function of a region; made once."""
        key = (tuple((id(p.items), id(p.returned), id(p.asked), p.shift) for p in pieces), symbols)
        if key not in self.regions:
            self.regions[key] = _Region(self, pieces, symbols, counter)
            self.note_compilation()
        return self.regions[key]


class _Region:
    """One XLA program between host calls."""

    def __init__(
        self, driver: Driver, pieces: tuple[_Piece, ...], symbols: tuple[Symbol, ...], counter: Symbol | None
    ) -> None:
        self.driver, self.pieces, self.symbols, self.counter = driver, pieces, symbols, counter
        self.ranges = dict(driver.ranges)
        program = driver.program
        items = tuple(item for piece in pieces for item in piece.items)
        stores = {s.place for p in pieces if p.returned for s in p.returned.stores}
        self.changed = sorted(written(items) | stores)
        loads = {
            o.place
            for p in pieces
            if p.asked is not None
            for c in p.asked.body
            for o in c.operands
            if isinstance(o, Load)
        }
        variables = {n for n in self.changed if program.places[n].kind == "variable"}
        needed = live_before(items, set(), program) | loads | (set(self.changed) - variables)
        # A variable that is written only under a mask, or not on every path, keeps its old value.
        self.needed = sorted(needed | variables)
        self.kept = [n for n in self.needed if n not in self.changed]
        self.call = jax.jit(self._trace, donate_argnums=(0,))

    def _trace(
        self, changed: Arrays, kept: Arrays, values: jax.Array, seed: jax.Array, returned: list[list[jax.Array]]
    ) -> tuple[Arrays, list[list[jax.Array]]]:
        program = self.driver.program
        symbols: dict[Symbol, Any] = {s: values[i] for i, s in enumerate(self.symbols)}
        lowering = Lowering(program, self.driver.capacities, dict(symbols), seed, dict(self.ranges))
        state: State = {}
        for name, array in {**changed, **kept}.items():
            state[name] = Padded(array, lowering.lengths(program.places[name].whole))
        asked: list[list[jax.Array]] = []
        waiting = list(returned)
        everything = set(program.places)
        for piece in self.pieces:
            if self.counter is not None:
                lowering.symbols[self.counter] = symbols[self.counter] + np.int32(piece.shift)
            if piece.returned is not None:
                _store_results(lowering, piece.returned, waiting.pop(0), state)
            lowering.items(piece.items, state, everything, None)
            if piece.asked is not None:
                asked.append(_operands(lowering, piece.asked, state))
        return {name: state[name].array for name in self.changed}, asked


def _operands(lowering: Lowering, block: Block, state: State) -> list[jax.Array]:
    """The operands of a host call; values remade for it are computed on the way."""
    values: dict[str, Padded] = {}
    for compute in block.body:
        operands = [
            values[o.name] if not isinstance(o, Load) else lowering.load(o, state, block) for o in compute.operands
        ]
        if compute.op == "host":
            return [operand.array for operand in operands]
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


@dataclass
class _Run:
    """One run: the contents of the places and the values of the symbols."""

    driver: Driver
    state: Arrays
    symbols: dict[Symbol, int]
    seed: np.ndarray

    def items(self, items: Sequence[Item]) -> None:
        """Run items in order; neighbours without host calls make one region."""
        quiet: list[Item] = []
        for item in items:
            if not has_host((item,)):
                quiet.append(item)
                continue
            self._flush(quiet)
            quiet = []
            if isinstance(item, Block):
                self._call(item)
            elif isinstance(item, If):
                if item.condition.evaluate(self.symbols.__getitem__):
                    self.items(item.body)
            else:
                self._loop(item)
        self._flush(quiet)

    def iteration(self, item: For | Block, counter: int) -> bool:
        """One iteration of an outermost loop, or a block; whether it has ended the loop early."""
        if isinstance(item, Block):
            self.items((item,))
            return False
        low = interval(item.first, self.driver.ranges)[0]
        self.driver.ranges[item.counter] = (low, interval(item.end - 1, self.driver.ranges)[1])
        self.symbols[item.counter] = counter
        self.items(item.body)
        return item.stop is not None and self._stopped(item)

    def _flush(self, quiet: list[Item]) -> None:
        if quiet:
            self._region((_Piece(items=_shared(self.driver, quiet)),), None)

    def _call(self, block: Block) -> None:
        asked = self._region((_Piece(asked=block),), None)
        self._region((_Piece(returned=block),), None, [self._host(block, asked[0])])

    def _loop(self, loop: For) -> None:
        low = interval(loop.first, self.driver.ranges)[0]
        high = interval(loop.end - 1, self.driver.ranges)[1]
        self.driver.ranges[loop.counter] = (low, high)
        first, end = (term.evaluate(self.symbols.__getitem__) for term in (loop.first, loop.end))
        calls = [item for item in loop.body if isinstance(item, Block) and item.host]
        others = [item for item in loop.body if has_host((item,)) and item not in calls]
        if len(calls) == 1 and not others and loop.stop is None and end > first:
            self._one_call_loop(loop, calls[0], first, end)
            return
        for counter in range(first, end):
            self.symbols[loop.counter] = counter
            self.items(loop.body)
            if loop.stop is not None and self._stopped(loop):
                return

    def _one_call_loop(self, loop: For, block: Block, first: int, end: int) -> None:
        """Rotate the loop: what follows a call and what precedes the next are one region."""
        place = loop.body.index(block)
        before, after = _shared(self.driver, loop.body[:place]), _shared(self.driver, loop.body[place + 1 :])
        self.symbols[loop.counter] = first
        asked = self._region((_Piece(items=before, asked=block),), loop.counter)
        between = (_Piece(items=after, returned=block), _Piece(items=before, asked=block, shift=1))
        for counter in range(first, end - 1):
            self.symbols[loop.counter] = counter
            asked = self._region(between, loop.counter, [self._host(block, asked[0])])
        self.symbols[loop.counter] = end - 1
        self._region((_Piece(items=after, returned=block),), loop.counter, [self._host(block, asked[0])])

    def _stopped(self, loop: For) -> bool:
        stop = loop.stop
        assert stop is not None
        index = tuple(entry.evaluate(self.symbols.__getitem__) for entry in stop.done.index if isinstance(entry, Term))
        if not bool(np.asarray(self.state[stop.done.place])[index]):
            return False
        self.symbols[stop.bound] = stop.length.evaluate(self.symbols.__getitem__)
        return True

    def _region(
        self, pieces: tuple[_Piece, ...], counter: Symbol | None, returned: Sequence[Sequence[Any]] = ()
    ) -> list[list[jax.Array]]:
        names = tuple(sorted(self.symbols, key=lambda s: (s.name, s.serial)))
        region = self.driver.region(pieces, names, counter)
        values = np.array([self.symbols[s] for s in names], np.int32)
        changed = {name: self.state[name] for name in region.changed}
        kept = {name: self.state[name] for name in region.kept}
        new, asked = region.call(changed, kept, values, self.seed, [list(r) for r in returned])
        self.state.update(new)
        return asked  # type: ignore[no-any-return]

    def _host(self, block: Block, operands: Sequence[jax.Array]) -> list[np.ndarray]:
        """Call the function with the operands cut to their lengths; its results padded to their capacity."""
        compute = next(c for c in block.body if c.op == "host")
        function: HostFunction = compute.attributes["function"]
        lookup = self.symbols.__getitem__
        arrays = [_cut(np.asarray(o), kind, lookup) for o, kind in zip(operands, _types(block, compute), strict=True)]
        returned = function.call(*arrays)
        results = (returned,) if function.single else tuple(returned)
        shapes = [tuple(n.evaluate(lookup) for n in shape) for shape in compute.attributes["shapes"]]
        checked = checked_results(function, results, shapes)
        rooms = [tuple(self.driver._capacity(n) for n in shape) for shape in compute.attributes["shapes"]]
        return [_grown(array, room) for array, room in zip(checked, rooms, strict=True)]


def _types(block: Block, call: Compute) -> list[tuple[Term, ...]]:
    """The shapes of a call's operands."""
    made = {compute.result: compute.type.shape for compute in block.body}
    return [o.type.shape if isinstance(o, Load) else made[o.name] for o in call.operands]


def _cut(array: np.ndarray, shape: Sequence[Term], lookup: Callable[[Symbol], int]) -> np.ndarray:
    return np.array(array[tuple(slice(0, n.evaluate(lookup)) for n in shape)])


def _grown(array: np.ndarray, room: tuple[int, ...]) -> np.ndarray:
    if array.shape == room:
        return array
    return np.pad(array, [(0, n - m) for n, m in zip(room, array.shape, strict=True)])


def _shared(driver: Driver, items: Sequence[Item]) -> tuple[Item, ...]:
    """One tuple object per sequence of items, so that regions are found again by identity."""
    key = tuple(map(id, items))
    return driver.regions.setdefault(("items", key), tuple(items))  # type: ignore[no-any-return]
