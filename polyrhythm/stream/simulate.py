"""Running a program: build channels and processes, run the engine, report.

The functional mode moves real tiles and the timing mode only their shapes; channels, clocks and operators are the same,
so a program has the same cycles in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from polyrhythm.stream.compiled import run_compiled
from polyrhythm.stream.deadlock import report_deadlock
from polyrhythm.stream.engine import UNBOUNDED, Channel, Engine, Process, Steps
from polyrhythm.stream.errors import CapacityExceeded, StopMismatch
from polyrhythm.stream.expr import Symbol, total
from polyrhythm.stream.graph import Node, Program, Stream, connections
from polyrhythm.stream.hardware import Hardware
from polyrhythm.stream.metrics import measure, named_symbols, observed_bindings
from polyrhythm.stream.operators.common import endless_inputs, is_feedback
from polyrhythm.stream.operators.offchip import OffChip
from polyrhythm.stream.operators.structure import Feedback, Restate, Source, Stack, Unstack, check_source
from polyrhythm.stream.tokens import EMPTY, Token, decode
from polyrhythm.stream.types import BufferValue, SelectorValue, TileValue


@dataclass(frozen=True)
class NodeReport:
    """What one copy of a node did: cycles it was busy, and FLOPs it performed."""

    node: Node
    copy: int
    busy: int
    flops: int
    finished_at: int
    intervals: tuple[tuple[int, int], ...] = ()

    @property
    def name(self) -> str:
        """The name of the node, with the copy where there are several."""
        return f"{self.node.name}[{self.copy}]" if self.node.copies > 1 else self.node.name


@dataclass(frozen=True)
class FifoReport:
    """What one FIFO did: cycles that its writer waited for space and its reader for a token.

    `high_water` is the most tokens that were in it at one time; None in a run without tracing.
    """

    stream: Stream
    name: str
    writer: str
    reader: str
    depth: int
    stalled: int
    starved: int
    high_water: int | None


@dataclass(frozen=True)
class Run:
    """The result of a simulation: cycles, FLOPs, bytes moved, off-chip arrays, and a report of every node.

    >>> from polyrhythm.stream import map_tiles, source, static
    >>> run = simulate(Program(map_tiles("exp", source("x", [1.0], (static(1),)))), Hardware(compute=1))
    >>> run.cycles, run.flops, run.utilisation
    (4, 4, 1.0)
    """

    program: Program
    hardware: Hardware
    cycles: int
    flops: int
    allocated_flops: int
    bytes_moved: int
    reports: tuple[NodeReport, ...]
    arrays: Mapping[str, np.ndarray]
    bindings: Mapping[str, Any]
    fifos: tuple[FifoReport, ...] = ()
    given: Mapping[str, np.ndarray] = field(repr=False, default_factory=dict)
    _drained: Mapping[Stream, list[list[Token]]] = field(repr=False, default_factory=dict)

    @property
    def utilisation(self) -> float:
        """FLOPs performed over FLOPs that the allocated units could have performed."""
        return self.flops / (self.allocated_flops * self.cycles) if self.cycles and self.allocated_flops else 0.0

    def tokens(self, end: Stream, copy: int = 0) -> list[Token]:
        """The tokens that left the program at one of its ends.

        >>> from polyrhythm.stream import ragged, source, static
        >>> end = source("numbers", [[1.0], []], (static(2), ragged("r", 1)))
        >>> simulate(Program(end)).tokens(end)[1]
        (EMPTY, 1)
        """
        return self._drained[self.program.tap(end)][copy]

    def nested(self, end: Stream, copy: int = 0) -> list[Any]:
        """The values that left the program at one of its ends, as nested lists.

        >>> from polyrhythm.stream import ragged, source, static
        >>> end = source("numbers", [[1.0], []], (static(2), ragged("r", 1)))
        >>> simulate(Program(end)).nested(end)
        [[array([[1.]])], []]
        """
        return decode([(plain(value), level) for value, level in self.tokens(end, copy)], end.rank)


def plain(value: Any) -> Any:
    """A run-time value as arrays, tuples and lists.

    >>> plain(SelectorValue((1, 2)))
    (1, 2)
    """
    if isinstance(value, TileValue):
        return value.data
    if isinstance(value, SelectorValue):
        return value.targets
    if isinstance(value, BufferValue):
        return [(plain(item), level) for item, level in value.tokens]
    if isinstance(value, tuple):
        return tuple(plain(part) for part in value)
    return value


def _drain(process: Process, kept: list[Token]) -> Steps:
    """Takes whatever arrives at an end of the program."""
    while (token := (yield from process.get(process.inputs[0][0]))) is not None:
        kept.append(token)


class _Wiring:
    """The channels of a program: one for every copy of every stream that a process writes."""

    def __init__(self, program: Program, hardware: Hardware) -> None:
        self.program = program
        self.hardware = hardware
        self.written: dict[Stream, list[Channel]] = {}
        made = [node for node in program.nodes if not node.operator.virtual]
        for stream in (Stream(node, port) for node in made for port in range(len(node.outputs))):
            depth = hardware.depth(stream.role, stream.name)
            names = [stream.name] if stream.copies == 1 else [f"{stream.name}[{i}]" for i in range(stream.copies)]
            self.written[stream] = [Channel(name, depth, hardware.fifo_latency) for name in names]

    def of(self, stream: Stream) -> list[Channel]:
        """The channels of a stream; virtual nodes only rename those of their inputs."""
        node = stream.node
        if not node.operator.virtual:
            return self.written[stream]
        inputs = [self.of(self.program.read_by(node, index)) for index in range(len(connections(node)))]
        if isinstance(node.operator, Stack):
            return [channel for together in zip(*inputs, strict=True) for channel in together]
        if isinstance(node.operator, Unstack):
            return inputs[0][stream.port :: len(node.outputs)]
        assert isinstance(node.operator, Restate | Feedback)
        return inputs[0]

    def prime(self) -> None:
        """Give renamed streams the depth of their role, then put the initial tokens of feedback loops in place."""
        renamed = [node for node in self.program.nodes if isinstance(node.operator, Restate | Feedback)]
        for node in renamed:
            if node.outputs[0].role:
                for channel in self.of(Stream(node, 0)):
                    channel.capacity = channel.credit = self.hardware.depth(node.outputs[0].role)
        for node in renamed:
            if isinstance(node.operator, Feedback):
                for channel in self.of(Stream(node, 0)):
                    channel.prime(node.operator.initial)


def simulate(
    program: Program,
    hardware: Hardware | None = None,
    *,
    functional: bool = True,
    tracing: bool = False,
    arrays: Mapping[str, np.ndarray] | None = None,
) -> Run:
    """Run a program on simulated hardware; `arrays` are contents of off-chip tensors, by name, for this run.

    >>> from polyrhythm.stream import map_tiles, source, static
    >>> numbers = source("numbers", [1.0, 2.0], (static(2),))
    >>> total = map_tiles("add", numbers, numbers)
    >>> run = simulate(Program(total))
    >>> run.nested(total), run.cycles
    ([array([[2.]]), array([[4.]])], 2)
    """
    hardware = hardware or Hardware()
    engine = Engine(hardware, functional, tracing)
    wiring = _Wiring(program, hardware)
    wiring.prime()
    drained: dict[Stream, list[list[Token]]] = {}
    for node in (node for node in program.nodes if not node.operator.virtual):
        _load_arrays(engine, node, arrays or {})
        if isinstance(node.operator, Source):
            check_source(node)
        for copy in range(node.copies):
            _add_process(engine, wiring, node, copy)
    for stream in program.drains:
        drained[stream] = [[] for _ in range(stream.copies)]
        for copy, channel in enumerate(wiring.of(stream)):
            process = engine.add(f"drain {channel.name}", stream.node, copy)
            channel.capacity = channel.credit = UNBOUNDED
            process.inputs = [[channel]]
            channel.reader = process
            process.kept = drained[stream][copy]
            process.steps = _drain(process, process.kept)
    logs = _log_channels(program, wiring)
    for channel in (c for channels in wiring.written.values() for c in channels if tracing):
        channel.puts, channel.gets = [], []
    if hardware.hop_cycles:
        _place(engine, wiring)
    if not run_compiled(engine) and not engine.run():
        raise report_deadlock(engine)
    _check_left_over(wiring)
    run = _result(program, hardware, engine, drained, logs, wiring, arrays or {})
    if hardware.on_chip_capacity is not None:
        _check_capacity(run, hardware.on_chip_capacity)
    return run


def _place(engine: Engine, wiring: _Wiring) -> None:
    """Let tokens take the time of the way between the processes of their FIFO."""
    number = {process: place for place, process in enumerate(engine.processes)}
    for channel in (channel for channels in wiring.written.values() for channel in channels):
        if channel.writer is not None and channel.reader is not None:
            hops = engine.hardware.distance(number[channel.writer], number[channel.reader], len(number))
            channel.latency += engine.hardware.hop_cycles * hops


def _check_capacity(run: Run, capacity: int) -> None:
    """Refuse a run that needs more on-chip memory than there is, and say where it goes."""
    needed = measure(run.program, run.hardware).evaluate(run.bindings)
    if needed["on_chip"] + needed["fifo"] <= capacity:
        return
    sizes = {
        node: int(total(node.operator.on_chip(node, paper=False), node.copies).evaluate(run.bindings))
        for node in run.program.nodes
    }
    most = sorted(sizes, key=lambda node: -sizes[node])[:3]
    raise CapacityExceeded(
        f"{needed['on_chip']:,} bytes of on-chip memory and {needed['fifo']:,} of FIFOs are needed, "
        f"and the hardware has {capacity:,}",
        fix="choose smaller tiles, fewer regions or shallower FIFOs; most is held by "
        + ", ".join(f"{node.name} ({sizes[node]:,})" for node in most),
        at=most[0].source,
    )


def _check_left_over(wiring: _Wiring) -> None:
    """Nothing is left in a FIFO at the end, but for what primes a feedback loop."""
    for stream, channels in wiring.written.items():
        for channel in channels:
            left = sum(value is not EMPTY for value, _, _ in channel.items)
            reader = channel.reader
            if left and reader is not None and not is_feedback(stream) and not any(endless_inputs(reader)):
                raise StopMismatch(
                    f"{reader.name} has ended, and {left} elements of {channel.name} are left",
                    fix="the streams that it reads have different lengths; derive them from one stream",
                    at=reader.node.source,
                )


def _load_arrays(engine: Engine, node: Node, given: Mapping[str, np.ndarray]) -> None:
    """The contents of off-chip memory; without values, only whole numbers, which may steer."""
    tensor = getattr(node.operator, "tensor", None)
    if isinstance(tensor, OffChip) and tensor.key not in engine.arrays and (engine.functional or tensor.steers):
        shape = (tensor.rows, tensor.cols) if tensor.slabs == 1 else (tensor.slabs, tensor.rows, tensor.cols)
        data = np.moveaxis(given[tensor.name], tensor.slab_axis, 0) if tensor.name in given else tensor.data
        engine.arrays[tensor.key] = np.zeros(shape) if data is None else np.array(data).reshape(shape)


def _add_process(engine: Engine, wiring: _Wiring, node: Node, copy: int) -> None:
    name = f"{node.name}[{copy}]" if node.copies > 1 else node.name
    process = engine.add(name, node, copy)
    read = [wiring.of(wiring.program.read_by(node, index)) for index in range(len(node.inputs))]
    written = [wiring.written[Stream(node, port)] for port in range(len(node.outputs))]
    process.inputs, process.outputs = ([_share(c, node.copies, copy) for c in side] for side in (read, written))
    for channel in chain(*process.inputs):
        channel.reader = process
    for channel in chain(*process.outputs):
        channel.writer = process
    process.steps = node.operator.run(process)


def _share(channels: list[Channel], copies: int, copy: int) -> list[Channel]:
    """The consecutive channels that belong to one copy of a node."""
    width = len(channels) // copies
    return channels[copy * width : (copy + 1) * width]


def _log_channels(program: Program, wiring: _Wiring) -> list[tuple[Stream, list[Channel]]]:
    """Let channels remember their levels where the shape names symbols that only a run can tell, each once."""
    logged = []
    known: set[Symbol] = set()
    for stream, channels in wiring.written.items():
        if not known.issuperset(named := named_symbols(stream.shape)):
            known |= named
            for channel in channels:
                channel.log = []
            logged.append((stream, channels))
    return logged


def _result(
    program: Program,
    hardware: Hardware,
    engine: Engine,
    drained: dict[Stream, list[list[Token]]],
    logs: list[tuple[Stream, list[Channel]]],
    wiring: _Wiring,
    given: Mapping[str, np.ndarray],
) -> Run:
    working = [process for process in engine.processes if process.kept is None]
    reports = tuple(NodeReport(p.node, p.copy, p.busy, p.work_done, p.clock, tuple(p.record or ())) for p in working)
    allocated = sum(p.compute for p in working if p.node.operator.computes)
    return Run(
        program,
        hardware,
        max((p.clock for p in engine.processes), default=0),
        sum(p.work_done for p in working),
        allocated,
        engine.memory.bytes_moved,
        reports,
        engine.arrays,
        observed_bindings([(stream.shape, [c.log or [] for c in channels]) for stream, channels in logs]),
        tuple(
            FifoReport(s, c.name, c.writer.name, c.reader.name, c.capacity, c.stalled, c.starved, c.high_water)
            for s, channels in wiring.written.items()
            for c in channels
            if c.reader is not None and c.writer is not None and not c.is_drain
        ),
        given,
        drained,
    )
