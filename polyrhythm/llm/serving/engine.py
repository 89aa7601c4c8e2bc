"""The thread that runs the model for a server.

Requests wait in a bounded queue. Texts of usual length go into the slots of one program that goes on (`slots.py`): each
begins as soon as a slot is free and gets the tokens that it gets alone, also those that it draws; one for several
samples of a prompt begins when as many are free. Requests for longer ones, for more samples than there are slots or for
more than text, and all those of models that cannot be run so, are taken
from the front when the slots have emptied. Those that are greedy and alike then run as one batch: each row begins at
its own prompt and ends at its own step. In such a batch a draw depends on the rows beside it, so a request that samples
runs by itself. The number of rows is rounded up to a power of two, so that few programs are compiled; what fills it up
are copies of the shortest.

A request that is cancelled or too late is no longer delivered to, and when no row of a batch is left the run ends.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from polyrhythm.errors import PolyrhythmError
from polyrhythm.llm.model import Model
from polyrhythm.llm.serving.requests import Busy, Request
from polyrhythm.llm.serving.slots import Slots
from polyrhythm.llm.writing import Piece

CONTEXT = 512
"""The longest text that runs in a slot, prompt included: what is stored for each slot grows with it."""

LONG = 64
"""A prompt of more tokens that nobody waits behind, and that slots cannot read in chunks yet, runs by itself."""


@dataclass
class Counts:
    """What an engine has done so far."""

    requests: int = 0
    finished: int = 0
    cancelled: int = 0
    rejected: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    completion_tokens: int = 0
    batches: int = 0
    steps: int = 0


class Engine:
    """A model that answers requests one batch after the other."""

    def __init__(self, model: Model, rows: int = 8, waiting: int = 64, chunk: int = 4, context: int = CONTEXT) -> None:
        self.model, self.rows, self.waiting, self.chunk = model, rows, waiting, chunk
        self.slots = Slots(model, rows, context) if context else None
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
        return len(self._running) + (0 if self.slots is None else len(self.slots.requests))

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
        for request in [*self._running, *([] if self.slots is None else self.slots.requests)]:
            request.cancelled = True  # those that did not finish in time

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closed and not self._in_slots:
                    self._changed.wait()
                if not self._queue and not self._in_slots:
                    return
                self._fill()
                self._running = self._taken() if self._queue and not self._in_slots else []
            try:
                if self._running:
                    self._run(self._running)
                else:
                    self._advance()
            except Exception as error:  # whatever happens to one batch, the next ones are answered
                self._failed(error)
            self._running = []

    @property
    def _in_slots(self) -> list[Request]:
        return [] if self.slots is None else self.slots.requests

    def _fill(self) -> None:
        """Let requests from the front of the queue into free slots; one that is not for slots waits until all end.

        One with wrong options is told so at once: nobody waits for it.
        """
        while self._queue and self.slots is not None:
            if self._dropped(self._queue[0]) or self._wrong(self._queue[0]):
                self._queue.popleft()
                continue
            first = self._queue[0]
            alone = len(self._queue) == 1 and not self.slots.requests and len(first.tokens) > LONG
            alone = alone and not self.slots.reads(first)
            if not alone and self.slots.takes(first) and self.slots.begin(first):
                self._queue.popleft()
                self.counts.prompt_tokens += len(first.tokens)
                self.counts.reused_tokens += first.reused
            else:
                return

    def _wrong(self, request: Request) -> bool:
        """Whether the options of a request make no sense, which it hears."""
        assert self.slots is not None
        try:
            self.slots.how(request)
            if self.slots.takes(request):
                self.slots.drawings(request)
        except PolyrhythmError as error:
            self.counts.failed += 1
            request.deliver(error)
            return True
        return False

    def _advance(self) -> None:
        """One step of the slots."""
        if self.slots is None or not self.slots.requests:
            return
        self.counts.steps += 1
        ended: dict[Request, None] = {}
        for request, sample, piece in self.slots.step():
            self.counts.completion_tokens += 1
            request.deliver((sample, piece))
            if piece.finish_reason is not None:
                ended[request] = None
        for request in ended:
            if request not in self.slots.requests:  # no sample of it goes on
                self.counts.finished += 1
                request.deliver(None)
        for request in self.slots.requests:
            if self._dropped(request):
                self.slots.drop(request)

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
        for request in self._running or self._in_slots:
            self.counts.failed += 1
            request.deliver(error)
        if self.slots is not None and not self._running:
            self.slots.clear()

    def _run(self, batch: list[Request]) -> None:
        batch = [request for request in batch if not self._dropped(request)]
        if not batch:
            return
        self.counts.batches += 1
        if batch[0].work is not None:
            (request,) = batch
            request.deliver((0, batch[0].work(self.model)))
            self.counts.finished += 1
            self.counts.prompt_tokens += len(request.tokens)
            request.deliver(None)
            return
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
