"""The thread that runs the model for a server.

Requests wait in a bounded queue. The engine takes those that are greedy and alike from its front, up to a number of
rows, and runs them as one batch: each row begins at its own prompt and ends at its own step, so every request gets the
tokens that it gets alone. A draw depends on the rows beside it, so a request that samples runs by itself. The number of
rows is rounded up to a power of two, so that few programs are compiled; what fills it up are copies of the shortest.

A request that is cancelled or too late is no longer delivered to, and when no row of a batch is left the run ends.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from polyrhythm.llm.model import Model
from polyrhythm.llm.writing import Piece

Delivery = Callable[[Any], None]
"""Takes the pieces of a sequence as (row, piece), then None, or an error."""


class Busy(Exception):
    """The queue of an engine is full, or it has been closed."""


@dataclass(eq=False)
class Request:
    """A prompt with its options, and where its pieces go."""

    tokens: list[int]
    max_new_tokens: int
    options: Mapping[str, Any]
    deliver: Delivery
    deadline: float = float("inf")
    cancelled: bool = False
    begun: float = field(default_factory=time.monotonic)

    @property
    def batched(self) -> bool:
        """Whether the request may share a batch: its tokens do not depend on the rows beside it."""
        return not self.options.get("temperature") and self.options.get("n", 1) == 1

    def late(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.cancelled or time.monotonic() > self.deadline


@dataclass
class Counts:
    """What an engine has done so far."""

    requests: int = 0
    finished: int = 0
    cancelled: int = 0
    rejected: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    batches: int = 0


class Engine:
    """A model that answers requests one batch after the other."""

    def __init__(self, model: Model, rows: int = 8, waiting: int = 64, chunk: int = 4) -> None:
        self.model, self.rows, self.waiting, self.chunk = model, rows, waiting, chunk
        self.counts = Counts()
        self._queue: deque[Request] = deque()
        self._changed = threading.Condition()
        self._running: list[Request] = []
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="polyrhythm-engine", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """How many requests wait."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """How many requests are being answered."""
        return len(self._running)

    def submit(self, request: Request) -> None:
        """Put a request into the queue; `Busy` if it is full."""
        with self._changed:
            if self._closed or len(self._queue) >= self.waiting:
                self.counts.rejected += 1
                raise Busy
            self.counts.requests += 1
            self._queue.append(request)
            self._changed.notify()

    def close(self, timeout: float = 30.0) -> None:
        """Take no more requests, finish those that run, and refuse those that wait."""
        with self._changed:
            self._closed = True
            left, self._queue = list(self._queue), deque()
            self._changed.notify()
        for request in left:
            request.deliver(Busy())
        self._thread.join(timeout)
        for request in self._running:  # those that did not finish in time
            request.cancelled = True

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closed:
                    self._changed.wait()
                if not self._queue:
                    return
                self._running = self._taken()
            try:
                self._run(self._running)
            except Exception as error:  # whatever happens to one batch, the next ones are answered
                self._failed(error)
            self._running = []

    def _taken(self) -> list[Request]:
        """The first request, and those behind it that fit into its batch."""
        first = self._queue.popleft()
        batch = [first]
        if first.batched:
            for other in list(self._queue):
                if len(batch) < self.rows and other.batched and other.options == first.options:
                    self._queue.remove(other)
                    batch.append(other)
        return batch

    def _failed(self, error: Exception) -> None:
        for request in self._running:
            self.counts.failed += 1
            request.deliver(error)

    def _run(self, batch: list[Request]) -> None:
        batch = [request for request in batch if not self._dropped(request)]
        if not batch:
            return
        self.counts.batches += 1
        samples = batch[0].options.get("n", 1)
        rows = [request.tokens for request in batch]
        limits = [request.max_new_tokens for request in batch]
        if samples == 1:  # a sampled batch is one request, whose rows the model makes itself
            shortest = min(range(len(rows)), key=lambda n: len(rows[n]))
            missing = (1 << (len(rows) - 1).bit_length()) - len(rows)
            rows, limits = [*rows, *[rows[shortest]] * missing], [*limits, *[1] * missing]
        self.counts.prompt_tokens += sum(len(request.tokens) for request in batch)
        owners = [(request, row) for request in batch for row in range(samples)]
        open_rows = dict.fromkeys(batch, samples)
        for step in self.model.stream(rows, limits, self.chunk, **dict(batch[0].options)):
            for (request, row), piece in zip(owners, step, strict=False):
                if piece is not None and request in open_rows:
                    self._deliver(request, row, piece, open_rows)
            for request in [request for request in open_rows if self._dropped(request)]:
                del open_rows[request]
            if not open_rows:
                return

    def _deliver(self, request: Request, row: int, piece: Piece, open_rows: dict[Request, int]) -> None:
        self.counts.completion_tokens += 1
        request.deliver((row, piece))
        if piece.finish_reason is not None:
            open_rows[request] -= 1
            if not open_rows[request]:
                del open_rows[request]
                self.counts.finished += 1
                request.deliver(None)

    def _dropped(self, request: Request) -> bool:
        """Whether a request is given up; one that is late hears of it."""
        if not request.late():
            return False
        self.counts.cancelled += 1
        if not request.cancelled:
            request.deliver(TimeoutError())
        return True
