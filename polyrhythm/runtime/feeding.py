"""Inputs that come piece by piece: from iterators, of which each item is one step of the first dim, or from files.

Where a program reads few steps of an input at a time, on JAX, a run holds a window of them (`loops/feeding.py`): the
items of an iterator are taken just before the iterations that read them, and dropped after those; a memory-mapped array
is read as the run goes. Otherwise a call reads all items into one array, chunk by chunk, while a thread prefetches the
next ones, and a stream takes an item just before the step that reads it, or some earlier if asked to prefetch. The
thread ends when the iterator does, when it fails, and when the reader closes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any

import numpy as np

from polyrhythm.compiler.analysis.calls import Ragged
from polyrhythm.compiler.ir.graph import Node
from polyrhythm.errors import InputShapeError
from polyrhythm.runtime.arrays import as_numpy, library

CHUNK = 256
"""How many items are stacked at a time."""

WINDOW = 16 << 20
"""Bytes of an input that a call holds at a time, if one iteration reads no more; files with fewer are read whole."""


def is_iterator(value: Any) -> bool:
    """Whether an input comes item by item.

    >>> is_iterator(iter([1, 2])), is_iterator([1, 2])
    (True, False)
    """
    if library(value) is not None or isinstance(value, (list, tuple, str, Ragged)) or hasattr(value, "__array__"):
        return False
    return isinstance(value, Iterable)


class Prefetch:
    """The items of an iterator, taken ahead of time by a thread: at most `depth` wait.

    What the iterator raises is raised here, in its turn. `close` ends the thread.

    >>> with Prefetch(iter("abc"), 2) as items:
    ...     print(list(items))
    ['a', 'b', 'c']
    """

    def __init__(self, items: Iterable[Any], depth: int) -> None:
        self._queue: Queue[tuple[str, Any]] = Queue(max(1, depth))
        self._closed = Event()
        self._ended = False
        self._thread = Thread(target=self._fill, args=(items,), name="polyrhythm-prefetch", daemon=True)
        self._thread.start()

    def _fill(self, items: Iterable[Any]) -> None:
        try:
            for item in items:
                if not self._put(("item", item)):
                    return
            self._put(("end", None))
        except BaseException as error:
            self._put(("error", error))

    def _put(self, entry: tuple[str, Any]) -> bool:
        while not self._closed.is_set():
            try:
                self._queue.put(entry, timeout=0.05)
                return True
            except Full:
                continue
        return False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        what, value = self._queue.get()
        self._ended = what != "item"
        if what == "error":
            raise value
        if what == "end":
            raise StopIteration
        return value

    def close(self) -> None:
        """Take no more items and end the thread; an item that is being made is waited for."""
        self._closed.set()
        while True:
            try:
                self._queue.get_nowait()
            except Empty:
                break
        self._thread.join(timeout=5)

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def is_file(value: Any) -> bool:
    """Whether an input is a memory-mapped array that is worth reading piece by piece.

    >>> is_file(np.zeros(1 << 23))
    False
    """
    whole = value
    while isinstance(whole, np.ndarray) and not isinstance(whole, np.memmap):
        whole = whole.base
    return isinstance(whole, np.memmap) and value.nbytes > WINDOW


@dataclass
class Items:
    """The items of an iterator over the first dim of an input, counted and checked."""

    name: str
    items: Iterator[Any]
    length: int
    shape: tuple[int, ...]
    dtype: np.dtype
    taken: int = 0
    _held: deque[np.ndarray] = field(default_factory=deque)

    def until(self, wanted: int) -> list[np.ndarray]:
        """The items that are to be taken until there are so many."""
        found = []
        while self.taken < wanted:
            try:
                item = as_numpy(next(self.items))
            except StopIteration:
                raise InputShapeError(
                    f"the iterator for {self.name!r} ended after {self.taken} items, but {self.length} are needed",
                    fix="give it more items, or give smaller bounds",
                ) from None
            if item.shape != self.shape:
                raise InputShapeError(
                    f"item {self.taken} of {self.name!r} has shape {item.shape}, but one step is {self.shape}",
                    fix="make every item one step of the input",
                )
            found.append(item)
            self.taken += 1
        return found

    def rows(self, steps: range) -> np.ndarray:
        """Some steps, of which those before were not forgotten."""
        self._held.extend(np.array(item, self.dtype) for item in self.until(steps.stop))
        first = self.taken - len(self._held)
        return np.stack([self._held[step - first] for step in steps])

    def forget(self, before: int) -> None:
        """Drop the steps before one."""
        while self._held and self.taken - len(self._held) < before:
            self._held.popleft()

    def close(self) -> None:
        """Take no more items."""
        if isinstance(self.items, Prefetch):
            self.items.close()


def collected(name: str, items: Iterable[Any], node: Node, bounds: Mapping[Any, int] | None = None) -> np.ndarray:
    """All items of an iterator over the first dim of an input, as one array; without any, `bounds` tell its shape."""
    chunks: list[np.ndarray] = []
    with Prefetch(items, CHUNK) as ahead:
        waiting: list[np.ndarray] = []
        for item in ahead:
            waiting.append(as_numpy(item))
            if len(waiting) == CHUNK:
                chunks.append(_stacked(name, waiting))
                waiting = []
        if waiting:
            chunks.append(_stacked(name, waiting))
    if not chunks:
        named = {str(bound): value for bound, value in (bounds or {}).items()}
        rest = (*(dim.extent for dim in node.dims[1:]), *node.shape)
        return np.zeros((0, *(max(0, n.evaluate(lambda s: named.get(s.name, 0))) for n in rest)), node.dtype)
    _same(name, [chunk.shape[1:] for chunk in chunks])
    return np.concatenate(chunks) if len(chunks) > 1 else chunks[0]


def _stacked(name: str, items: list[np.ndarray]) -> np.ndarray:
    _same(name, [item.shape for item in items])
    return np.stack(items)


def _same(name: str, shapes: list[tuple[int, ...]]) -> None:
    if len(set(shapes)) > 1:
        first, other = list(dict.fromkeys(shapes))[:2]
        raise InputShapeError(
            f"the items of {name!r} have different shapes, {first} and {other}",
            fix="make every item of one shape; each is one step",
        )
