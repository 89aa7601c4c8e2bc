"""The engine: generators with local clocks, bounded FIFOs, and one heap for what needs global time.

Every copy of a node is a process with its own clock. Taking a token advances the clock to the time the token was
there; sending into a full FIFO advances it to the time a slot was freed. That needs no global order, so processes
run as far as they can. Only two things depend on what *others* do at the same time: off-chip memory, and operators
that ask which input arrives first. They wait in a heap, and the earliest entry is served when nothing else can run.
That is conservative: whatever still sleeps can only be woken by a later entry, and clocks never go back. Ties are
broken by a fixed order, so a run is deterministic.

Off-chip memory as a fluid server: every tile in flight gets a max-min fair share of the bandwidth.

A transfer asks for at most `cap` bytes a cycle. Transfers of one cap progress alike, so each cap keeps one *virtual
time*, the bytes that a transfer present since the beginning would have received; a transfer is done when the virtual
time has advanced by its size. Starting or finishing a transfer then costs the logarithm of the number in flight, and
shares are recomputed only at those moments. A whole tile is one transfer: never one message a burst.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from polyrhythm.stream.hardware import Hardware
from polyrhythm.stream.tokens import EMPTY, Token


class _Class:
    """The transfers that share one cap."""

    __slots__ = ("cap", "finishing", "rate", "virtual")

    def __init__(self, cap: float) -> None:
        self.cap = cap
        self.virtual = 0.0
        self.rate = 0.0
        self.finishing: list[tuple[float, int, Any]] = []


class FluidMemory:
    """A bandwidth shared by transfers.

    >>> memory = FluidMemory(bandwidth=100)
    >>> memory.start(0, nbytes=600, cap=64, owner="a")
    >>> memory.start(0, nbytes=600, cap=64, owner="b")
    >>> memory.next_completion
    12.0
    >>> memory.finish_due()
    ['a', 'b']
    """

    _TOLERANCE = 1e-6

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth
        self.bytes_moved = 0
        self.next_completion: float | None = None
        self._now = 0.0
        self._classes: dict[float, _Class] = {}
        self._count = 0

    def start(self, time: float, nbytes: int, cap: float, owner: Any) -> None:
        """Begin a transfer at `time`; times must not decrease."""
        self._advance(time)
        group = self._classes.get(cap)
        if group is None:
            group = self._classes[cap] = _Class(cap)
        self._count += 1
        self.bytes_moved += nbytes
        heapq.heappush(group.finishing, (group.virtual + nbytes, self._count, owner))
        self._share()

    def finish_due(self) -> list[Any]:
        """Advance to the next completion and return the owners of all transfers that end there, in starting order."""
        assert self.next_completion is not None
        self._advance(self.next_completion)
        done: list[tuple[int, Any]] = []
        for group in self._classes.values():
            while group.finishing and group.finishing[0][0] <= group.virtual + self._TOLERANCE:
                _, order, owner = heapq.heappop(group.finishing)
                done.append((order, owner))
            if not group.finishing:
                group.virtual = 0.0
        self._share()
        return [owner for _, owner in sorted(done, key=lambda pair: pair[0])]

    def _advance(self, time: float) -> None:
        elapsed = time - self._now
        if elapsed > 0:
            for group in self._classes.values():
                if group.finishing:
                    group.virtual += group.rate * elapsed
            self._now = time

    def _share(self) -> None:
        """Max-min shares: small caps are filled first, the rest is divided evenly."""
        active = [group for group in self._classes.values() if group.finishing]
        if len(active) > 1:
            active.sort(key=lambda group: group.cap)
        left, waiting = self.bandwidth, sum(len(group.finishing) for group in active)
        soonest: float | None = None
        for group in active:
            group.rate = min(group.cap, left / waiting)
            left -= group.rate * len(group.finishing)
            waiting -= len(group.finishing)
            end = self._now + max(0.0, group.finishing[0][0] - group.virtual) / group.rate
            soonest = end if soonest is None else min(soonest, end)
        self.next_completion = soonest


Steps = Generator[None, None, Any]
UNBOUNDED = 1 << 60


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
    def is_drain(self) -> bool:
        """Whether everything fits: what leaves the program waits for nobody."""
        return self.capacity >= UNBOUNDED

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

    `inputs` and `outputs` list, for every stream of the node, the channels that belong to this copy. A process that
    takes what arrives at an end of the program has it in `kept`.
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
        self.steps: Steps | None = None
        self.kept: list[Token] | None = None
        self.finished = False
        self.queued = False
        self.decided = False
        self.waits_for: tuple[str, tuple[Channel, ...]] = ("start", ())
        self.record: list[tuple[int, int]] | None = [] if engine.tracing else None

    def get(self, channel: Channel) -> Steps:
        """Take the next token, or None at the end of the stream."""
        return self.take(channel) if (yield from self._arrived(channel)) else None

    def _arrived(self, channel: Channel) -> Steps:
        """Wait for a token; whether there is one, or the stream has ended."""
        while not channel.items:
            if channel.closed_at is not None:
                self.clock = max(self.clock, channel.closed_at)
                return False
            channel.reader_waits = True
            self.waits_for = channel.for_token
            yield
        return True

    def take(self, channel: Channel) -> Token:
        """Take the next token of a channel that has one; that saves a generator."""
        value, level = self._look(channel)
        channel.items.popleft()
        channel.frees.append(self.clock)
        if channel.gets is not None:
            channel.gets.append(self.clock)
        if channel.writer_waits:
            channel.writer_waits = False
            self.engine.wake(channel.writer)
        return value, level

    def peek(self, channel: Channel) -> Steps:
        """Look at the next token without freeing its slot, or None at the end of the stream."""
        return self._look(channel) if (yield from self._arrived(channel)) else None

    def _look(self, channel: Channel) -> Token:
        value, level, time = channel.items[0]
        if time > self.clock:
            channel.starved += time - self.clock
            self.clock = time
        return value, level

    def put(self, channel: Channel, value: Any, level: int) -> Iterable[None]:
        """Send a token, waiting for a free slot. Tokens to a reader that has finished are dropped.

        Most of the time there is a slot, and then there is nothing to iterate over: that saves a generator.
        """
        if not channel.credit and not channel.frees and not channel.reader_gone:
            return self._with_space(channel, lambda: self.put(channel, value, level))
        if channel.credit:
            channel.credit -= 1
        elif channel.frees:
            self._stall(channel, channel.frees.popleft())
        else:
            return ()
        channel.items.append((value, level, self.clock + channel.latency))
        if channel.log is not None:
            channel.log.append((value if value is EMPTY else 0, level))
        if channel.puts is not None:
            channel.puts.append(self.clock)
        if channel.reader_waits:
            channel.reader_waits = False
            self.engine.wake(channel.reader)
        return ()

    def wait_space(self, channel: Channel) -> Iterable[None]:
        """Advance the clock to when the channel has a free slot, without taking it."""
        if not channel.credit and not channel.reader_gone:
            if not channel.frees:
                return self._with_space(channel, lambda: self.wait_space(channel))
            self._stall(channel, channel.frees[0])
        return ()

    def _with_space(self, channel: Channel, then: Callable[[], Iterable[None]]) -> Steps:
        while not channel.frees and not channel.reader_gone:
            channel.writer_waits = True
            self.waits_for = channel.for_space
            yield
        yield from then()

    def _stall(self, channel: Channel, until: int) -> None:
        if until > self.clock:
            channel.stalled += until - self.clock
            self.clock = until

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
        for channel in chain(*process.outputs):
            channel.closed_at = process.clock + channel.latency
            if channel.reader_waits:
                channel.reader_waits = False
                self.wake(channel.reader)
        for channel in chain(*process.inputs):
            channel.reader_gone = True
            if channel.writer_waits:
                channel.writer_waits = False
                self.wake(channel.writer)
