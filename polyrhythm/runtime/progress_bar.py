"""Progress of long runs: a bar on a terminal, plain lines elsewhere, and nothing at all for short runs.

A run reports its position, also from inside of XLA (`backends/jax/run/watch.py`): the iterations done, their rate and
the time left. Where it cannot, for lack of a C compiler, the seconds are shown. Long compilations are announced.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from polyrhythm.compiler.loops.ir import LoopProgram
from polyrhythm.compiler.loops.units import units

DELAY = 2.0
"""Seconds before anything is shown."""

INTERVAL = 5.0
"""Seconds between plain lines."""

ANNOUNCED = 1.0
"""Seconds after which a compilation is announced."""


class Reporter:
    """Shows how far a run is, once it has taken `DELAY` seconds."""

    def __init__(self, program: LoopProgram, bounds: Mapping[str, int], wanted: bool = True) -> None:
        self.wanted = wanted
        self._program, self._bounds = program, bounds
        self._started = time.monotonic()
        self._running = 0.0
        self._due = self._started + DELAY
        self._before: list[int] = []
        self._first: list[int] = []
        self._bar: Any = None
        self._task: Any = None

    def at(self, unit: int, after: int) -> None:
        """The run is at a position. Called often, so it does nothing most of the time."""
        if not self._running:
            self._running = time.monotonic()  # what was compiled before is no part of the rate
        if self.wanted and time.monotonic() >= self._due:
            self._show(unit, after)

    def _show(self, unit: int, after: int) -> None:
        if unit < 0:
            self._show_seconds()
            return
        if not self._before:
            self._measure()
        last = len(self._before) - 1
        done = self._before[min(unit, last)] + (after - self._first[unit] if unit < last else 0)
        total = max(1, self._before[-1])
        if sys.stderr.isatty():
            self._due = time.monotonic() + 0.1
            if self._bar is None:
                self._bar = _bar()
                self._task = self._bar.add_task("running", total=total, rate="")
                self._bar.start()
            self._bar.update(self._task, completed=done, rate=_rate(done, self._seconds))
        else:
            self._due = time.monotonic() + INTERVAL
            left = (total - done) * self._seconds / max(1, done)
            told = f"{done} of {total} iterations after {self._seconds:.0f} s"
            rest = f"{_rate(done, self._seconds)}, {left:.0f} s left"
            print(f"polyrhythm: {told}, {rest}", file=sys.stderr, flush=True)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - (self._running or self._started)

    def _show_seconds(self) -> None:
        self._due = time.monotonic() + INTERVAL
        print(f"polyrhythm: running for {self._seconds:.0f} s", file=sys.stderr, flush=True)

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


def _rate(done: int, seconds: float) -> str:
    """Iterations a second, or the seconds of one.

    >>> _rate(5000, 2.0), _rate(3, 6.0)
    ('2,500/s', '2.0 s each')
    """
    each = seconds / max(1, done)
    return f"{1 / each:,.0f}/s" if each < 1 else f"{each:.1f} s each"


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

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True)


def compiling(title: str, wanted: bool = True) -> Callable[[Any, Mapping[str, int]], Any]:
    """How a backend compiles: in a thread, so that an interrupt is heard; what takes long is announced."""

    def compile(lowered: Any, capacities: Mapping[str, int]) -> Any:
        from polyrhythm.compiler.backends.jax.run.small_loops import compile_lowered

        made: list[Any] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                made.append(compile_lowered(lowered))
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=work, name="polyrhythm-compile", daemon=True)
        started = time.monotonic()
        thread.start()
        thread.join(ANNOUNCED)
        told = wanted and thread.is_alive()
        if told:
            sizes = ", ".join(f"{name} up to {size:,}" for name, size in capacities.items())
            said = f"polyrhythm: compiling {title}{', capacity ' + sizes if sizes else ''} ..."
            print(said, end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)
        try:
            while thread.is_alive():
                thread.join(0.2)  # an interrupt that another thread hears must not wait for the end
        finally:
            if told and sys.stderr.isatty():
                print(f" {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        if failed:
            raise failed[0]
        return made[0]

    return compile
