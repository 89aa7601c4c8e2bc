"""Inputs that come from iterators: each item is one step of the first dim.

A program that is called needs the whole input, so the items are read into one array, chunk by chunk, while a thread
prefetches the next ones. A stream takes an item just before the step that reads it, or some earlier if asked to
prefetch. The thread ends when the iterator does, when it fails, and when the reader closes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


def collected(name: str, items: Iterable[Any], node: Node) -> np.ndarray:
    """All items of an iterator over the first dim of an input, as one array."""
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
        rest = (*(dim.extent for dim in node.dims[1:]), *node.shape)
        return np.zeros((0, *(n.constant if n.is_constant else 0 for n in rest)), node.dtype)
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
