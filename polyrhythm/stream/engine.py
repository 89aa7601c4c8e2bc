"""The engine: generators with local clocks, bounded FIFOs, and one heap for what needs global time.

Every copy of a node is a process with its own clock. Taking a token advances the clock to the time the token was
there; sending into a full FIFO advances it to the time a slot was freed. That needs no global order, so processes
run as far as they can. Only two things depend on what *others* do at the same time: off-chip memory, and operators
that ask which input arrives first. They wait in a heap, and the earliest entry is served when nothing else can run.
That is conservative: whatever still sleeps can only be woken by a later entry, and clocks never go back. Ties are
broken by a fixed order, so a run is deterministic.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from typing import Any

import numpy as np

from polyrhythm.stream.hardware import Hardware
from polyrhythm.stream.memory import FluidMemory
from polyrhythm.stream.tokens import EMPTY, Token

Steps = Generator[None, None, Any]


class Channel:
    """A bounded FIFO between two processes. Slots are freed at the clock of the reader.

    >>> Channel("tokens", capacity=2).capacity
    2
    """

    def __init__(self, name: str, capacity: int, latency: int = 0) -> None:
        self.name, self.latency = name, latency
        self.capacity = capacity
        self.credit = capacity
        self.items: deque[tuple[Any, int, int]] = deque()
        self.frees: deque[int] = deque()
        self.closed_at: int | None = None
        self.reader_gone = False
        self.reader: Process | None = None
        self.writer: Process | None = None
        self.reader_waits = False
        self.writer_waits = False
        self.log: list[Token] | None = None
        self.for_token: tuple[str, tuple[Channel, ...]] = ("item", (self,))
        self.for_space: tuple[str, tuple[Channel, ...]] = ("space", (self,))
        self.stalled = self.starved = 0
        self.puts: list[int] | None = None
        self.gets: list[int] | None = None

    @property
    def high_water(self) -> int | None:
        """The most tokens that were in the FIFO at one time, where the times of tokens were kept.

        >>> channel = Channel("tokens", capacity=4)
        >>> channel.puts, channel.gets = [0, 0, 5], [3, 6, 6]
        >>> channel.high_water
        2
        """
        if self.puts is None or self.gets is None:
            return None
        primed = len(self.gets) + len(self.items) - len(self.puts)
        taken = np.searchsorted(np.array(self.gets, np.int64), np.array(self.puts, np.int64), side="right")
        return int(max((np.arange(1, len(self.puts) + 1) + primed - taken).max(initial=primed), 0))

    def prime(self, tokens: Sequence[Token]) -> None:
        """Put tokens in before the run, as the start of a feedback loop needs."""
        self.capacity = max(self.capacity, len(tokens))
        self.credit = self.capacity - len(tokens)
        self.items.extend((value, level, 0) for value, level in tokens)


class Process:
    """One copy of a node at run time: a clock, its channels, and helpers that operators call with `yield from`.

    `inputs` and `outputs` list, for every stream of the node, the channels that belong to this copy.
    """

    def __init__(self, engine: Engine, name: str, node: Any, copy: int) -> None:
        self.engine = engine
        self.hardware = engine.hardware
        self.name = name
        self.node = node
        self.copy = copy
        self.compute = engine.hardware.compute_of.get(node.name, engine.hardware.compute)
        self.inputs: list[list[Channel]] = []
        self.outputs: list[list[Channel]] = []
        self.clock = 0
        self.busy = 0
        self.work_done = 0
        self.worked_out: dict[Any, tuple[int, ...]] = {}
        self.steps: Steps | None = None
        self.finished = False
        self.queued = False
        self.decided = False
        self.waits_for: tuple[str, tuple[Channel, ...]] = ("start", ())
        self.record: list[tuple[int, int]] | None = [] if engine.tracing else None

    def get(self, channel: Channel) -> Steps:
        """Take the next token, or None at the end of the stream."""
        while not channel.items:
            if channel.closed_at is not None:
                self.clock = max(self.clock, channel.closed_at)
                return None
            channel.reader_waits = True
            self.waits_for = channel.for_token
            yield
        return self.take(channel)

    def take(self, channel: Channel) -> Token:
        """Take the next token of a channel that has one; that saves a generator."""
        value, level, time = channel.items.popleft()
        if time > self.clock:
            channel.starved += time - self.clock
            self.clock = time
        channel.frees.append(self.clock)
        if channel.gets is not None:
            channel.gets.append(self.clock)
        if channel.writer_waits:
            channel.writer_waits = False
            self.engine.wake(channel.writer)
        return value, level

    def peek(self, channel: Channel) -> Steps:
        """Look at the next token without freeing its slot, or None at the end of the stream."""
        while not channel.items:
            if channel.closed_at is not None:
                self.clock = max(self.clock, channel.closed_at)
                return None
            channel.reader_waits = True
            self.waits_for = channel.for_token
            yield
        value, level, time = channel.items[0]
        if time > self.clock:
            channel.starved += time - self.clock
            self.clock = time
        return value, level

    def put(self, channel: Channel, value: Any, level: int) -> Iterable[None]:
        """Send a token, waiting for a free slot. Tokens to a reader that has finished are dropped.

        Most of the time there is a slot, and then there is nothing to iterate over: that saves a generator.
        """
        if channel.credit:
            channel.credit -= 1
        elif channel.frees:
            freed = channel.frees.popleft()
            if freed > self.clock:
                channel.stalled += freed - self.clock
                self.clock = freed
        else:
            return self._put_later(channel, value, level)
        channel.items.append((value, level, self.clock + channel.latency))
        if channel.log is not None:
            channel.log.append((value if value is EMPTY else 0, level))
        if channel.puts is not None:
            channel.puts.append(self.clock)
        if channel.reader_waits:
            channel.reader_waits = False
            self.engine.wake(channel.reader)
        return ()

    def _put_later(self, channel: Channel, value: Any, level: int) -> Steps:
        while not channel.frees and not channel.reader_gone:
            channel.writer_waits = True
            self.waits_for = channel.for_space
            yield
        if channel.frees:
            yield from self.put(channel, value, level)

    def wait_space(self, channel: Channel) -> Iterable[None]:
        """Advance the clock to when the channel has a free slot, without taking it."""
        if channel.credit or channel.reader_gone:
            return ()
        if not channel.frees:
            return self._space_later(channel)
        if channel.frees[0] > self.clock:
            channel.stalled += channel.frees[0] - self.clock
            self.clock = channel.frees[0]
        return ()

    def _space_later(self, channel: Channel) -> Steps:
        while not channel.frees and not channel.reader_gone:
            channel.writer_waits = True
            self.waits_for = channel.for_space
            yield
        yield from self.wait_space(channel)

    def first_of(self, channels: Sequence[Channel]) -> Steps:
        """The index of the channel whose next token arrives first, or None when all have ended.

        Waits in the heap until no other process can still send an earlier token; ties go to the lowest index.
        """
        while True:
            heads = [(c.items[0][2], index) for index, c in enumerate(channels) if c.items]
            if heads:
                self.decided = False
                self.engine.schedule(min(heads)[0], 1, self, 0, 0)
                self.waits_for = ("decision", ())
                while not self.decided:
                    yield
                return min((c.items[0][2], index) for index, c in enumerate(channels) if c.items)[1]
            still_open = tuple(c for c in channels if c.closed_at is None)
            if not still_open:
                self.clock = max([self.clock, *(c.closed_at for c in channels if c.closed_at is not None)])
                return None
            for channel in still_open:
                channel.reader_waits = True
            self.waits_for = ("item", still_open)
            yield

    def transfer(self, nbytes: int, latency: int) -> Steps:
        """Move bytes to or from off-chip memory and wait until they have all arrived."""
        started = self.clock
        self.decided = False
        self.engine.schedule(started, 0, self, nbytes, latency)
        self.waits_for = ("memory", ())
        while not self.decided:
            yield
        self.busy += self.clock - started
        if self.record is not None:
            self.record.append((started, self.clock))

    def work(self, cycles: int) -> None:
        """Keep the unit busy."""
        if cycles:
            if self.record is not None:
                self.record.append((self.clock, self.clock + cycles))
            self.clock += cycles
            self.busy += cycles


class Engine:
    """Runs processes to completion. One engine serves functional and timing mode.

    `functional` says whether tiles carry data, and `arrays` are then the contents of off-chip memory. `tracing` keeps
    the busy intervals of every process.
    """

    def __init__(self, hardware: Hardware, functional: bool, tracing: bool = False) -> None:
        self.hardware = hardware
        self.functional = functional
        self.tracing = tracing
        self.memory = FluidMemory(hardware.memory_bandwidth)
        self.processes: list[Process] = []
        self.arrays: dict[str, np.ndarray] = {}
        self._ready: deque[Process] = deque()
        self._heap: list[tuple[int, int, int, Process, int, int]] = []
        self._sequence = 0

    def add(self, name: str, node: Any, copy: int) -> Process:
        """A new process, to be given channels and steps by the caller."""
        process = Process(self, name, node, copy)
        self.processes.append(process)
        return process

    def wake(self, process: Process | None) -> None:
        """Let a sleeping process look again at what it waits for."""
        if process is not None and not process.queued and not process.finished:
            process.queued = True
            self._ready.append(process)

    def schedule(self, time: int, kind: int, process: Process, nbytes: int, latency: int) -> None:
        """Enter something that depends on global time; at equal times memory requests come before decisions."""
        self._sequence += 1
        heapq.heappush(self._heap, (time, kind, self._sequence, process, nbytes, latency))

    def run(self) -> bool:
        """Run until nothing can move. True when every process has finished."""
        for process in self.processes:
            self.wake(process)
        while True:
            self._run_ready()
            due = self.memory.next_completion
            if due is not None and (not self._heap or due <= self._heap[0][0]):
                arrival = math.ceil(due - 1e-6)
                for process, latency in self.memory.finish_due():
                    self._resume(process, arrival + latency)
            elif self._heap:
                time, kind, _, process, nbytes, latency = heapq.heappop(self._heap)
                if kind == 0:
                    self.memory.start(time, nbytes, self.hardware.loader_bandwidth, (process, latency))
                else:
                    self._resume(process, process.clock)
            else:
                return all(process.finished for process in self.processes)

    def _resume(self, process: Process, clock: int) -> None:
        process.clock = max(process.clock, clock)
        process.decided = True
        self.wake(process)

    def _run_ready(self) -> None:
        ready = self._ready
        while ready:
            process = ready.popleft()
            process.queued = False
            assert process.steps is not None
            try:
                next(process.steps)
            except StopIteration:
                self._finish(process)

    def _finish(self, process: Process) -> None:
        process.finished = True
        for group in process.outputs:
            for channel in group:
                channel.closed_at = process.clock + channel.latency
                if channel.reader_waits:
                    channel.reader_waits = False
                    self.wake(channel.reader)
        for group in process.inputs:
            for channel in group:
                channel.reader_gone = True
                if channel.writer_waits:
                    channel.writer_waits = False
                    self.wake(channel.writer)
