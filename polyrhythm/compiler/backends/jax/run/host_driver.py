"""The loop in Python that drives the regions of a program with host functions.

It is generated as straight Python: places and counters are local variables, and a host call is made, looked at and
packed in place. A loop that calls the host once an iteration costs little more than the function and one dispatch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from polyrhythm.compiler.backends.jax.run.executor import Account, Executor
from polyrhythm.compiler.backends.jax.run.host_regions import Action, Arrays, Guard, Loop, Planner, Region, Straight
from polyrhythm.compiler.backends.jax.run.packing import HostCall, Packs, Spot, make_packs, operand_spots, result_spots
from polyrhythm.compiler.backends.jax.trace.lowering import Lowering
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.loops.ir import Block, For, LoopProgram
from polyrhythm.compiler.loops.python import condition_source, term_source

Drive = Callable[[Arrays, dict[Symbol, int], jax.Array, range], bool]
"""Runs actions on places and symbols, both changed in place; whether the driven loop has ended early."""


@dataclass
class Driver:
    """Runs one program at one set of capacities."""

    program: LoopProgram
    capacities: Mapping[Symbol, int]
    executor: Executor
    _whole: tuple[Drive, list[Region]] | None = None
    _units: dict[int, Drive] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.packs = make_packs(self.program, self.capacities)

    def run(
        self, inputs: Mapping[str, jax.Array], bounds: Mapping[Symbol, int], seed: np.ndarray
    ) -> tuple[list[jax.Array], dict[Symbol, int]]:
        """The outputs at capacity, and the bounds found on the way."""
        drive, _ = self._made()
        sizes = Lowering(self.program, self.capacities, {}, None)
        state = dict(inputs)
        for name, place in self.program.places.items():
            if place.kind != "input":
                state[name] = jax.device_put(np.zeros(sizes.room(place), place.type.dtype))
        symbols = dict(bounds)
        drive(state, symbols, jax.device_put(seed), range(0))
        found = {symbol: symbols[symbol] for symbol in self.program.found}
        return [state[name] for name in self.program.outputs], found

    def planned(self) -> Account:
        """What a run allocates: all places, packs on both sides, and what the largest region needs beside them."""
        sizes = Lowering(self.program, self.capacities, {}, None)
        held = sum(math.prod(sizes.room(p)) * p.type.dtype.itemsize for p in self.program.places.values())
        held += sum(2 * pack.size * pack.dtype.itemsize for pack in self.packs.values())
        accounts = [region.account() for region in self._made()[1]]
        return Account(held, temporaries=max((one.peak - one.arguments for one in accounts), default=0))

    def _made(self) -> tuple[Drive, list[Region]]:
        """The function that runs the whole program, and its regions."""
        if self._whole is None:
            planner = self._planner("whole")
            actions = planner.actions(self.program.body, set(self.program.outputs))
            self._whole = generated(self.program, self.packs, actions), planner.regions
        return self._whole

    def advance(
        self, item: For | Block, state: Arrays, symbols: dict[Symbol, int], seed: np.ndarray, iterations: range
    ) -> bool:
        """Some iterations of an outermost loop, or a block; whether the loop has ended early."""
        if id(item) not in self._units:
            (action,) = self._planner(len(self._units)).actions((item,), set(self.program.places))
            self._units[id(item)] = generated(self.program, self.packs, (action,), driven=isinstance(item, For))
        return self._units[id(item)](state, symbols, jax.device_put(seed), iterations)

    def _planner(self, part: int | str) -> Planner:
        key = part, *self.capacities.values()
        return Planner(self.program, self.capacities, self.packs, self.executor, key)


def generated(program: LoopProgram, packs: Packs, actions: Sequence[Action], driven: bool = False) -> Drive:
    """A function that runs actions; if `driven`, the iterations of the only loop that is given to it."""
    writer = _Writer(program, packs)
    lines = [line for action in actions for line in writer.action(action, "    ", driven)]
    source = "\n".join(["def drive(state, symbols, seed, iterations):", *writer.opening(), *lines, *writer.closing()])
    exec(compile(source, "<driver>", "exec"), writer.namespace)
    drive: Drive = writer.namespace["drive"]
    return drive


class _Writer:
    """Python source of actions, and the objects it names."""

    def __init__(self, program: LoopProgram, packs: Packs) -> None:
        self.program, self.packs = program, packs
        self.pack_names = {kind: f"k{n}" for n, kind in enumerate(packs)}
        self.places: dict[str, str] = {}
        self.changed: set[str] = set()
        self.symbols: dict[Symbol, str] = {symbol: f"s{n}" for n, symbol in enumerate(program.bounds)}
        self.count = 0
        self.namespace: dict[str, Any] = {
            "array": np.array,
            "int32": np.dtype(np.int32),
            "ndarray": np.ndarray,
        }

    def opening(self) -> Iterator[str]:
        """Places and bounds become local variables."""
        for symbol in self.program.bounds:
            yield f"    {self.symbols[symbol]} = symbols[{self._object(symbol, 'S')}]"
        for name, local in self.places.items():
            yield f"    {local} = state[{name!r}]"
        for kind, local in self.pack_names.items():
            yield f"    {local} = {self._object(self.packs[kind], 'pack')}.join(state)"
        yield "    done = False"

    def closing(self) -> Iterator[str]:
        """What has changed goes back."""
        for symbol in self.program.found:
            yield f"    symbols[{self._object(symbol, 'S')}] = {self.symbols[symbol]}"
        for name in sorted(self.changed):
            yield f"    state[{name!r}] = {self.places[name]}"
        for kind, local in self.pack_names.items():
            yield f"    {self._object(self.packs[kind], 'pack')}.split({local}, state)"
        yield "    return done"

    def action(self, action: Action, indent: str, driven: bool = False) -> Iterator[str]:
        if isinstance(action, Straight):
            yield from self._straight(action, indent)
        elif isinstance(action, Guard):
            yield f"{indent}if {condition_source(action.condition, self._symbol)}:"
            yield from self._block((line for a in action.body for line in self.action(a, indent + "    ")), indent)
        elif action.between is not None and not driven:
            yield from self._joined(action, action.between, indent)
        else:
            yield from self._loop(action, indent, driven)

    def _loop(self, action: Loop, indent: str, driven: bool) -> Iterator[str]:
        loop, inner = action.loop, indent + "    "
        over = "iterations" if driven else f"range({self._term(loop.first)}, {self._term(loop.end)})"
        yield f"{indent}for {self._symbol(loop.counter)} in {over}:"
        yield from self._block((line for a in action.body for line in self.action(a, inner)), indent)
        if loop.stop is not None:
            index = "".join(f"{self._term(e)}, " for e in loop.stop.done.index if isinstance(e, Term))
            yield f"{inner}done = bool({self._whole(loop.stop.done.place)}[({index})])"
            yield f"{inner}if done:"
            yield f"{inner}    {self._symbol(loop.stop.bound)} = {self._term(loop.stop.length)}"
            yield f"{inner}    break"

    def _joined(self, action: Loop, between: Region, indent: str) -> Iterator[str]:
        """The part before the first call of an iteration runs together with the end of the iteration before it."""
        (straight,) = action.body
        assert isinstance(straight, Straight)
        counter, first, end = self._symbol(action.loop.counter), self._fresh("first"), self._fresh("end")
        inner, deep = indent + "    ", indent + "        "
        yield f"{indent}{first}, {end} = {self._term(action.loop.first)}, {self._term(action.loop.end)}"
        yield f"{indent}if {first} < {end}:"
        yield f"{inner}{counter} = {first}"
        asked, lines = self._region(straight.regions[0], [], inner)
        yield from lines
        yield f"{inner}for {counter} in range({first}, {end}):"
        now = asked
        for call, region in zip(straight.calls[:-1], straight.regions[1:-1], strict=True):
            packed, lines = self._call(call, now, deep)
            yield from lines
            now, lines = self._region(region, packed, deep)
            yield from lines
        packed, lines = self._call(straight.calls[-1], now, deep)
        yield from lines
        yield f"{deep}if {counter} == {end} - 1:"
        yield f"{deep}    break"
        again, lines = self._region(between, packed, deep)
        yield from lines
        yield from (f"{deep}{old} = {new}" for old, new in zip(asked, again, strict=True))
        _, lines = self._region(straight.regions[-1], packed, inner)
        yield from lines

    def _straight(self, action: Straight, indent: str) -> Iterator[str]:
        asked, lines = self._region(action.regions[0], [], indent)
        yield from lines
        for call, region in zip(action.calls, action.regions[1:], strict=True):
            packed, lines = self._call(call, asked, indent)
            yield from lines
            asked, lines = self._region(region, packed, indent)
            yield from lines

    def _region(self, region: Region, returned: Sequence[str], indent: str) -> tuple[list[str], list[str]]:
        """The large operands it asks for, and the lines that run it. `returned` are the large results of a call."""
        asked = [self._fresh("asked") for spot in region.asks if spot.pack is None]
        places = [self._place(name) for name in region.takes] + [self.pack_names[kind] for kind in region.uses]
        packs = [self.pack_names[kind] for kind in region.makes]
        results = [*(self._place(name) for name in region.results), *packs, *asked]
        self.changed.update(region.results)
        if not results:
            return asked, []
        given = [*places, *returned]
        if region.random:
            given.insert(0, "seed")
        if region.symbols:
            given.insert(0, f"array(({''.join(self._symbol(s) + ', ' for s in region.symbols)}), int32)")
        return asked, [f"{indent}{', '.join(results)}, = {self._object(region, 'region')}({', '.join(given)})"]

    def _call(self, call: HostCall, asked: Sequence[str], indent: str) -> tuple[list[str], list[str]]:
        """The large results, and the lines that call the function.

        The packs it takes from or gives to are copied to the host: the operands in them are the function's own.
        """
        takes, gives = operand_spots(self.packs, call), result_spots(self.packs, call)
        kinds = dict.fromkeys(spot.pack for spot in (*takes, *gives) if spot.pack is not None)
        lines = [f"{indent}{self.pack_names[kind]} = array({self.pack_names[kind]})" for kind in kinds]
        large = iter(asked)
        operands = [f"array({next(large)})" if spot.pack is None else self._part(spot) for spot in takes]
        me, result = self._object(call, "call"), self._fresh("result")
        pairs = [f"{self._object(symbol, 'S')}: {self._symbol(symbol)}" for symbol in call.symbols]
        known = f"{{{', '.join(pairs)}}}"
        if call.symbols:
            operands = [f"*{me}.cut(({''.join(f'{o}, ' for o in operands)}), {known})"]
        lines.append(f"{indent}{result} = {self._object(call.function.call, 'function')}({', '.join(operands)})")
        parts = [result] if call.function.single else [f"{result}[{n}]" for n in range(len(gives))]
        checked = f"{result} = {me}.checked({result}, {known})"
        if call.symbols:
            lines.append(f"{indent}{checked}")
        else:
            lines += [f"{indent}if {self._unlike(call, result, parts)}:", f"{indent}    {checked}"]
        own = []
        for part, spot in zip(parts, gives, strict=True):
            if spot.pack is None:
                own.append(self._fresh("returned"))
                lines.append(f"{indent}{own[-1]} = array({part})")
            else:
                flat = f"{part}.ravel()" if len(spot.shape) > 1 else part
                where = f"{spot.where.start}:{spot.where.stop}" if spot.shape else f"{spot.where.start}"
                lines.append(f"{indent}{self.pack_names[spot.pack]}[{where}] = {flat}")
        return own, lines

    def _unlike(self, call: HostCall, result: str, parts: Sequence[str]) -> str:
        """A condition: what was returned is not just as declared, and has to be looked at.

        It is evaluated at every step, so it is short, and true of some results that turn out to be right.
        """
        tests = [] if call.function.single else [f"type({result}) is not tuple", f"len({result}) != {len(parts)}"]
        for part, (room, dtype) in zip(parts, call.gives, strict=True):
            if room:
                kind = self._object(dtype, "dtype")
                tests += [f"type({part}) is not ndarray", f"{part}.dtype is not {kind}", f"{part}.shape != {room}"]
            else:
                tests.append(f"type({part}) is not {self._object(dtype.type, 'scalar')}")
        return " or ".join(tests)

    def _part(self, spot: Spot) -> str:
        """A value in a pack."""
        assert spot.pack is not None
        part = f"{self.pack_names[spot.pack]}[{spot.where.start}:{spot.where.stop}]"
        return part if len(spot.shape) == 1 else f"{part}.reshape({spot.shape})"

    def _block(self, lines: Iterator[str], indent: str) -> Iterator[str]:
        """The lines of a block; an empty one needs a line too."""
        empty = True
        for line in lines:
            empty = False
            yield line
        if empty:
            yield f"{indent}    pass"

    def _place(self, name: str) -> str:
        return self.places.setdefault(name, f"p{len(self.places)}")

    def _whole(self, name: str) -> str:
        """A place, wherever it is kept."""
        for pack in self.packs.values():
            if name in pack.entries:
                return self._part(pack.entries[name])
        return self._place(name)

    def _symbol(self, symbol: Symbol) -> str:
        return self.symbols.setdefault(symbol, f"s{len(self.symbols)}")

    def _term(self, term: Term) -> str:
        return term_source(term, self._symbol)

    def _fresh(self, what: str) -> str:
        self.count += 1
        return f"{what}{self.count}"

    def _object(self, thing: Any, what: str) -> str:
        """A global name for an object; the same name for the same object."""
        for name, known in self.namespace.items():
            if known is thing:
                return name
        name = self._fresh(what)
        self.namespace[name] = thing
        return name
