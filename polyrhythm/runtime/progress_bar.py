"""Progress of long runs: a bar on a terminal, plain lines elsewhere, and nothing at all for short runs.

A run that reports its position shows how far it is. A single XLA call cannot report; for such a call one thread of
the process shows how long it has taken.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from polyrhythm.compiler.loops.ir import LoopProgram
from polyrhythm.compiler.loops.units import units

DELAY = 2.0
"""Seconds before anything is shown."""

INTERVAL = 5.0
"""Seconds between plain lines."""


class Reporter:
    """Shows how far a run is, once it has taken `DELAY` seconds."""

    def __init__(self, program: LoopProgram, bounds: Mapping[str, int], wanted: bool = True) -> None:
        self.wanted = wanted
        self._program, self._bounds = program, bounds
        self._started = time.monotonic()
        self._due = self._started + DELAY
        self._before: list[int] = []
        self._first: list[int] = []
        self._bar: Any = None
        self._task: Any = None

    def at(self, unit: int, after: int) -> None:
        """The run is at a position. Called often, so it does nothing most of the time."""
        if self.wanted and time.monotonic() >= self._due:
            self._show(unit, after)

    def _show(self, unit: int, after: int) -> None:
        if not self._before:
            self._measure()
        last = len(self._before) - 1
        done = self._before[min(unit, last)] + (after - self._first[unit] if unit < last else 0)
        total = max(1, self._before[-1])
        if sys.stderr.isatty():
            self._due = time.monotonic() + 0.1
            if self._bar is None:
                self._bar = _bar()
                self._task = self._bar.add_task("running", total=total)
                self._bar.start()
            self._bar.update(self._task, completed=done)
        else:
            seconds = time.monotonic() - self._started
            self._due = time.monotonic() + INTERVAL
            print(f"polyrhythm: {done} of {total} iterations after {seconds:.0f} s", file=sys.stderr, flush=True)

    def _measure(self) -> None:
        total = 0
        for unit in units(self._program.body):
            iterations = unit.iterations(lambda symbol: self._bounds[symbol.name])
            self._before.append(total)
            self._first.append(iterations.start)
            total += len(iterations)
        self._before.append(total)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def following(self, positions: Iterator[tuple[int, int]]) -> None:
        """Run to the end, showing progress."""
        try:
            for unit, after in positions:
                self.at(unit, after)
        finally:
            self.close()


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)


class _Watch:
    """One thread that shows how long calls take that cannot report themselves."""

    def __init__(self) -> None:
        self.active: dict[int, tuple[float, float]] = {}
        self._thread: threading.Thread | None = None

    def begin(self) -> int:
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="polyrhythm-progress", daemon=True)
            self._thread.start()
        now = time.monotonic()
        key = threading.get_ident()
        self.active[key] = (now, now + DELAY)
        return key

    def end(self, key: int) -> None:
        shown = self.active.pop(key, (0.0, 0.0))
        if shown[1] > shown[0] + DELAY and sys.stderr.isatty():
            print(file=sys.stderr)

    def _look(self) -> None:
        while True:
            time.sleep(0.5)
            now = time.monotonic()
            for key, (started, due) in list(self.active.items()):
                if now >= due and key in self.active:
                    self.active[key] = (started, now + (1.0 if sys.stderr.isatty() else INTERVAL))
                    start, end = ("\r", "") if sys.stderr.isatty() else ("", "\n")
                    print(f"{start}polyrhythm: running for {now - started:.0f} s", end=end, file=sys.stderr, flush=True)


_watch = _Watch()


@contextmanager
def elapsed(wanted: bool) -> Iterator[None]:
    """Show how long something takes that cannot report its progress."""
    if not wanted:
        yield
        return
    key = _watch.begin()
    try:
        yield
    finally:
        _watch.end(key)
