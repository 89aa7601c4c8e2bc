"""Runs without values in compiled code: `engine.c` does what the engine and the operators do, event for event.

Values are numbers there. Equal tiles, selectors and tuples get the same number, so what an operator makes of them, and
how long that takes, is asked of the operator once and remembered. What is not known to the C code, or goes wrong in it,
is left to the engine in Python, which finds everything as it was. So is all without a C compiler.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_void_p
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, cast

from polyrhythm.compiler.backends.native import Built, built
from polyrhythm.stream.engine import Channel, Engine, Process
from polyrhythm.stream.operators.common import affine_walk, chosen_targets, endless_inputs, load_cycles, moved
from polyrhythm.stream.operators.higher import START, State
from polyrhythm.stream.operators.offchip import LinearOffChipStore, RandomOffChipStore
from polyrhythm.stream.operators.routing import hot_of
from polyrhythm.stream.tokens import EMPTY, Token
from polyrhythm.stream.types import BufferValue, SelectorValue, TileValue

NOTHING = -1
"""The number of EMPTY, and of what there is not."""

_ARRAY = POINTER(c_int64)
_ASK = ctypes.CFUNCTYPE(c_int, c_int64, c_int64, _ARRAY, _ARRAY)
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "engine_new": (c_void_p, c_double, c_double, c_int64, c_int64, c_int64, _ASK),
    "engine_free": (None, c_void_p),
    "engine_run": (c_int, c_void_p),
    "add_tokens": (c_int64, c_void_p, c_int64, _ARRAY, _ARRAY),
    "add_value": (c_int64, c_void_p, c_int64, c_int64, c_int64, c_int64),
    "add_channel": (c_int64, c_void_p, c_int64, c_int64, c_int64, c_int64),
    "prime": (None, c_void_p, c_int64, c_int64, c_int64),
    "add_process": (c_int, c_void_p, c_char_p, c_int64, *3 * (c_int64, _ARRAY)),
    "bytes_moved": (c_int64, c_void_p),
    "read_numbers": (c_int64, c_void_p, c_int64, c_int64, _ARRAY),
}
_PROCESS, _CHANNEL, _LOG, _ITEMS, _KEPT, _BUFFER = range(6)
_ANSWERS = ("map", "fold", "state", "tuple", "moved", "targets", "expand", "fetch")
_TOGETHER = ("map", "zip", "accum", "scan")
_PLAIN = ("broadcast", "flat_map", "flatten", "promote", "expand", "repeat", "bufferize", "partition", "parallelize")
"""Operators whose numbers, in the order of their fields, are all that the C code wants to know."""


class _NotCompiledError(Exception):
    """Something that only the engine in Python does."""


@lru_cache
def library() -> Built:
    """The compiled engine, or why there is none."""
    source = Path(__file__).with_name("engine.c")
    found = built(source, "-ffp-contract=off", header=source.with_name("operators.h").read_bytes())
    for name, (result, *arguments) in _FUNCTIONS.items() if found.library is not None else ():
        function = getattr(found.library, name)
        function.restype, function.argtypes = result, arguments
    return found


def run_compiled(engine: Engine) -> bool:
    """Run an engine to its end in compiled code. False if that cannot be done; the engine is as before then."""
    if engine.functional or engine.tracing or library().library is None:
        return False
    try:
        return _Run(engine).run()
    except (_NotCompiledError, ctypes.ArgumentError):  # the latter for hardware in parts of cycles
        return False


class _Run:
    """One engine in compiled code: its values by number, and what C asks of operators."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.c = cast("Any", library().library)
        self.objects: dict[int, Any] = {NOTHING: EMPTY}
        self.states: dict[int, State] = {NOTHING: START}
        self.numbers: dict[Any, int] = {}
        self.interrupt: BaseException | None = None
        self.ask = _ASK(self._asked)
        own = engine.hardware
        times = (own.element_cycles, own.switch_cycles, own.reconfigure_cycles)
        self.handle = self.c.engine_new(own.memory_bandwidth, own.loader_bandwidth, *times, self.ask)

    def run(self) -> bool:
        """Build, run, and bring everything back."""
        try:
            channels = {c: 0 for p in self.engine.processes for group in (*p.inputs, *p.outputs) for c in group}
            for channel in channels:
                sizes = (channel.credit, channel.latency, channel.log is not None, channel.is_drain)
                channels[channel] = self.c.add_channel(self.handle, *sizes)
                for value, level, _ in channel.items:
                    self.c.prime(self.handle, channels[channel], self.number(value), level)
            nodes: dict[Any, int] = {}
            for process in self.engine.processes:
                label = process.node.operator.label if process.kept is None else "drain"
                ends = [[channels[c] for group in side for c in group] for side in (process.inputs, process.outputs)]
                numbers = (*ends, self._given(process, label))
                lists = [part for given in numbers for part in (len(given), _array(given))]
                node = nodes.setdefault(process.node, len(nodes))
                if not self.c.add_process(self.handle, label.encode(), node, *lists):
                    raise _NotCompiledError
            if self.c.engine_run(self.handle):
                self._bring_back(channels)
                return True
            if self.interrupt is not None:
                raise self.interrupt
            return False
        finally:
            self.c.engine_free(self.handle)

    def _bring_back(self, channels: dict[Channel, int]) -> None:
        for number, process in enumerate(self.engine.processes):
            process.clock, process.busy, process.work_done = self._read(_PROCESS, number)
            process.finished = True
            if process.kept is not None:
                process.kept.extend(self._tokens(_KEPT, number))
        for channel, number in channels.items():
            channel.stalled, channel.starved = self._read(_CHANNEL, number)
            channel.items.clear()
            channel.items.extend((*token, 0) for token in self._tokens(_ITEMS, number))
            if channel.log is not None:
                logged = self._read(_LOG, number)
                channel.log.extend((0, level) if level >= 0 else (EMPTY, ~level) for level in logged)
        self.engine.memory.bytes_moved = self.c.bytes_moved(self.handle)

    def _read(self, what: int, number: int) -> Any:
        found = _array([0] * self.c.read_numbers(self.handle, what, number, None))
        self.c.read_numbers(self.handle, what, number, found)
        return found

    def _tokens(self, what: int, number: int) -> list[Token]:
        found = self._read(what, number)
        return [(self.object(value), level) for value, level in zip(found[::2], found[1::2], strict=True)]

    def number(self, value: Any) -> int:
        """The number of a value; equal values have the same one."""
        address = NOTHING
        targets: tuple[int, ...] = ()
        if value is EMPTY:
            return NOTHING
        if type(value) is TileValue:
            data = value.data
            content = None if data is None else (data.dtype.str, data.tobytes())
            key: Any = (value.rows, value.cols, value.nbytes, value.valid, value.from_memory, content)
            if data is not None and data.size and data.dtype.kind in "iu":
                address = max(int(data[0, 0]), NOTHING)
        elif type(value) is SelectorValue:
            key, targets = (value.targets, value.nbytes, value.from_memory), value.targets
        elif type(value) is tuple:
            key = ("tuple", *(self.number(part) for part in value))
        else:
            raise _NotCompiledError
        found = self.numbers.get(key)
        if found is None:
            first = self._pool([(target, 0) for target in targets]) if targets else 0
            load = load_cycles(self.engine.processes[0], value)
            found = self.numbers[key] = self.c.add_value(self.handle, load, address, first, len(targets))
            self.objects[found] = value
        return found

    def object(self, number: int) -> Any:
        """The value of a number. Buffers are made in C."""
        if number not in self.objects:
            self.objects[number] = BufferValue(self._tokens(_BUFFER, number))
        return self.objects[number]

    def _pool(self, tokens: Sequence[tuple[int, int]]) -> int:
        values, levels = _array([value for value, _ in tokens]), _array([level for _, level in tokens])
        return int(self.c.add_tokens(self.handle, len(tokens), values, levels))

    def _asked(self, kind: int, number: int, arguments: Any, found: Any) -> int:
        try:
            for place, result in enumerate(self._answer(_ANSWERS[kind], self.engine.processes[number], arguments)):
                found[place] = result
        except BaseException as error:  # the engine in Python repeats the run, and raises it; but not an interrupt
            self.interrupt = None if isinstance(error, Exception) else error
            return 0
        return 1

    def _answer(self, what: str, process: Process, arguments: Any) -> tuple[int, ...]:
        """What an operator makes of values: by number, with the cycles and FLOPs for it."""
        operator: Any = process.node.operator
        first, count = 2 * (what == "fold"), len(process.inputs) * (what in ("map", "tuple", "fold"))
        several = tuple(self.object(arguments[first + n]) for n in range(count))
        if what == "map":
            value, cycles, flops = operator.apply(process, several)
            return self.number(value), cycles, flops
        if what == "tuple":
            return (self.number(several),)
        if what == "fold":
            state, cycles, flops = operator.fold(process, self.states[arguments[0]], several, bool(arguments[1]))
            number = self.numbers.setdefault(("state", state.rows, state.cols, state.valid), len(self.states))
            self.states[number] = state
            return number, cycles, flops
        if what == "state":
            return (self.number(operator.value(process, self.states[arguments[0]])),)
        if what == "fetch":
            return (self.number(operator.value(process, arguments[0])),)
        value = self.object(arguments[0])
        if what == "moved":
            value, cycles = moved(process, value, bool(arguments[1]))
            return arguments[0] if type(value) is BufferValue else self.number(value), cycles
        if what == "targets":
            sides = process.outputs if operator.label == "partition" else process.inputs
            chosen_targets(process, value, len(sides[0]), hot_of(process))
            return ()
        made = [(self.number(item), level) for item, level in operator.expand(value, process.copy)]
        return self._pool(made), len(made)

    def _given(self, process: Process, label: str) -> list[int]:
        """What the C code is given of an operator, as it says there."""
        operator: Any = process.node.operator
        numbers = [int(value) for value in vars(operator).values() if isinstance(value, int)]
        if label in (*_PLAIN, "drain"):
            return numbers
        if label in _TOGETHER and len(process.inputs) <= 4:
            endless = sum(is_endless << place for place, is_endless in enumerate(endless_inputs(process)))
            return [_TOGETHER.index(label), endless, getattr(operator, "rank", 0), 0, *(0 for _ in process.inputs)]
        if label == "source":
            tokens = [(self.number(value), level) for value, level in operator.tokens[process.copy]]
            return [self._pool(tokens), len(tokens)]
        if label == "reshape":
            padding = NOTHING if operator.padding is None else self.number(operator.pad_value(process))
            return [operator.chunk, operator.dim, padding]
        if label == "streamify" and operator.view is None:
            turns = list(affine_walk(operator.repeat, (0,) * len(operator.repeat)))
            by = NOTHING if operator.repeat_rank is None else operator.repeat_rank
            return [operator.depth, self._pool(turns), len(turns), by, len(operator.repeat)]
        if label == "window":
            sent = [(NOTHING if place is EMPTY else place, level) for place, level in operator.sent]
            return [operator.rank, operator.depth, operator.groups, self._pool(sent), len(sent)]
        if label == "reassemble":
            return [*numbers, *(0 for _ in process.inputs[0])]
        if label == "eager_merge":
            count = len(process.inputs[0])
            return [operator.rank, *(self.number(SelectorValue((place,), count)) for place in range(count))]
        if hasattr(operator, "tensor"):
            return self._off_chip(process, operator)
        raise _NotCompiledError

    def _off_chip(self, process: Process, operator: Any) -> list[int]:
        writes = isinstance(operator, LinearOffChipStore | RandomOffChipStore)
        base, tiles = operator.slab(process)
        value = NOTHING
        if isinstance(operator, RandomOffChipStore):
            value = self.number(operator.acknowledgement())
        elif not writes and not operator.tensor.steers:
            value = self.number(operator.value(process, 0))
        count = tiles if operator.label == "linear_store" else operator.count
        given = [*operator.transfer(process.hardware, "write" if writes else "read"), count, value]
        if operator.label == "random_load":
            return [*given, tiles if operator.tensor.slabs > 1 else 0]
        if operator.label != "linear_load":
            return given
        if 0 in operator.walk:
            raise _NotCompiledError
        key = ("walk", process.node, base)
        if key not in self.numbers:
            walk = affine_walk(operator.walk, operator.stride)
            self.numbers[key] = self._pool([(base + index % tiles, level) for index, level in walk])
        return [*given, operator.held, len(operator.walk), self.numbers[key], prod(operator.walk)]


def _array(numbers: Sequence[int]) -> Any:
    return (c_int64 * len(numbers))(*numbers)
