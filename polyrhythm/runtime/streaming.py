"""Streams: the outputs of a program step by step, each as soon as it is computed.

The run is held between iterations of its outermost loops. A step is handed out when nothing that is still to run
stores to it (`loops/units.py`); a program that needs the future hands its steps out late, but always in order. Items of
an input that comes from an iterator are taken just before the iteration that reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyrhythm.compiler.ir.graph import Graph
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.compiler.loops.ir import LoopProgram
from polyrhythm.compiler.loops.units import Marks, frontier, frontier_marks, lookup_of, needed, stops, units
from polyrhythm.errors import UnsupportedError
from polyrhythm.runtime.feeding import Items

Positions = Iterator[tuple[int, int]]


class Stream:
    """An iterator over the steps of a program.

    Each item has the structure of the outputs, with one step of each output that varies along the dim, and None for
    the others and for those that have ended. When the steps are exhausted `result` is what calling the program
    returns: every output, whole. Closing a stream early ends the run.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> y = pr.recurrent((), (t,))
    >>> y[0] = x[0]
    >>> y[t + 1] = y + x[t + 1]
    >>> stream = pr.compile({"y": y, "last": y[T - 1]}, backend="numpy").stream(over=t, x=[1.0, 2.0, 3.0])
    >>> [float(step["y"]) for step in stream]
    [1.0, 3.0, 6.0]
    >>> float(stream.result["last"])
    6.0
    """

    def __init__(
        self,
        steps: Iterator[Any],
        finish: Callable[[], Any],
        replace: Callable[[str, Any, Any], None] | None = None,
        stored: Callable[[str, Any], np.ndarray] | None = None,
    ) -> None:
        self._steps, self._finish, self._replace, self._stored = steps, finish, replace, stored
        self._done = False
        self._result: Any = None

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        if self._done:
            raise StopIteration(self._result)
        try:
            return next(self._steps)
        except StopIteration:
            self._done, self._result = True, self._finish()
            raise StopIteration(self._result) from None

    @property
    def result(self) -> Any:
        """Every output, whole; steps that were not asked for are run first."""
        while not self._done:
            next(self, None)
        return self._result

    def replace(self, name: str, index: Sequence[Any], values: Any) -> None:
        """Replace stored values of a tensor by some that were computed elsewhere; the steps that follow read those.

        The tensor must be stored (see `program.memory`) and have been given a name. What the next step of a recurrence
        takes over from the last one is not replaced. The index has an entry for each
        of its dims, then perhaps for its axes: an integer, a slice, or an array of integers. Steps are those of the
        tensor, whatever part of them is stored; which are still stored is the caller's to know.

        >>> import numpy as np
        >>> import polyrhythm as pr
        >>> t, T = pr.dim("t")
        >>> x = pr.input("x", (), (t,))
        >>> y = pr.sqrt(x)
        >>> y.name = "y"
        >>> stream = pr.compile(y[pr.max(0, t - 2) : t + 1].sum(0), backend="numpy").stream(over=t, x=[1.0] * 5)
        >>> float(next(stream)), float(next(stream))
        (1.0, 2.0)
        >>> stream.replace("y", [np.array([0, 1])], np.array([10.0, 20.0]))
        >>> float(next(stream))
        31.0
        """
        if self._replace is None:
            raise _nothing_stored()
        self._replace(name, index, values)

    def stored(self, name: str, *steps: int) -> np.ndarray:
        """A copy of what is stored of a tensor at a step along each of its dims.

        The tensor must be stored and have been given a name, as for `replace`; which steps are still stored is the
        caller's to know: the last one is, if a later step reads it. Axes whose lengths vary are as long as the buffer.

        >>> import polyrhythm as pr
        >>> t, T = pr.dim("t")
        >>> x = pr.input("x", (2,), (t,))
        >>> y = pr.sqrt(x)
        >>> y.name = "y"
        >>> stream = pr.compile(y[pr.max(0, t - 2) : t + 1].sum(), backend="numpy").stream(over=t, x=[[1.0, 4.0]] * 5)
        >>> float(next(stream)), stream.stored("y", 0)
        (3.0, array([1., 2.], dtype=float32))
        """
        if self._stored is None:
            raise _nothing_stored()
        return self._stored(name, steps)

    def close(self) -> None:
        """End the run here. Iterators that feed it are not asked again."""
        self._done = True
        close = getattr(self._steps, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _nothing_stored() -> UnsupportedError:
    return UnsupportedError("this stream has no stored values", fix="stream a compiled program")


@dataclass
class Readiness:
    """Which steps of the outputs are final at a position of the run."""

    program: LoopProgram
    graph: Graph
    dim: Symbol
    bounds: Mapping[str, int]
    marks: dict[int, Marks] = field(init=False)

    def __post_init__(self) -> None:
        self.axes = {n: self.graph[name].symbols.index(self.dim) for n, name in self.streamed()}
        self.marks = {n: frontier_marks(self.program, self.program.outputs[n], axis) for n, axis in self.axes.items()}
        self.units = units(self.program.body)
        self.stops = list(stops(self.program))
        self.alive = {stop.bound.name: min(1, self.bounds[stop.bound.name]) for _, stop in self.stops}

    def streamed(self) -> list[tuple[int, str]]:
        """The outputs that vary along the dim, with their numbers."""
        names = enumerate(self.program.outputs)
        return [(n, name) for n, name in names if self.dim in self.graph[name].symbols]

    def touched(self, unit: int) -> bool:
        """Whether a unit stores to a streamed output."""
        return any(marks.inside[unit] for marks in self.marks.values())

    def at(self, unit: int, after: int, found: Mapping[str, int]) -> tuple[int, int]:
        """How many leading steps are final, and how many there are for certain."""
        self._survive(unit, after, found)
        least, most = {**self.bounds, **self.alive}, {**self.bounds, **found}
        final, certain = None, 0
        for number, marks in self.marks.items():
            extent = self.extent(number, least)
            certain = max(certain, extent)
            # A bound that may still shrink is somewhere between the two.
            reached = min(frontier(marks, unit, after, lookup_of(values)) for values in (least, most))
            if reached < extent or extent < self.extent(number, most):
                final = min(reached, extent) if final is None else min(final, reached, extent)
        return certain if final is None else final, certain

    def extent(self, number: int, bounds: Mapping[str, int]) -> int:
        """The number of steps of an output."""
        node = self.graph[self.program.outputs[number]]
        return max(0, node.dims[self.axes[number]].extent.evaluate(lookup_of(bounds)))

    def _survive(self, unit: int, after: int, found: Mapping[str, int]) -> None:
        """What is known of the lengths that stopping conditions decide: a step that did not stop has a next one."""
        for number, stop in self.stops:
            name = stop.bound.name
            if unit > number:
                self.alive[name] = found[name]
            elif unit == number:
                loop = self.units[number].loop
                assert loop is not None
                counter, values = loop.counter, lookup_of(self.bounds)
                if after > loop.first.evaluate(values):
                    length = stop.length.evaluate(lambda s: after - 1 if s is counter else values(s))  # noqa: B023
                    self.alive[name] = max(self.alive[name], min(length + 1, self.bounds[name]))


@dataclass
class Feeder:
    """Takes the items of one input from an iterator and writes them where the program reads them."""

    items: Items
    write: Callable[[int, np.ndarray], None]
    marks: Marks

    def feed(self, unit: int, first: int, last: int, lookup: Callable[[Symbol], int]) -> None:
        """Make sure that the steps which some iterations read are there."""
        start = self.items.taken
        items = self.items.until(min(self.items.length, needed(self.marks, unit, first, last, lookup)))
        if items:
            self.write(start, np.stack(items))


def steps(
    positions: Positions,
    ready: Readiness,
    feeders: Sequence[Feeder],
    items: Sequence[Items],
    found: Callable[[], Mapping[str, int]],
    chunk_of: Callable[[int], int | None],
    observe: Callable[[int, int], None],
) -> Iterator[int]:
    """The numbers of the steps, each as soon as it is final."""
    every = ready.units
    handed = 0
    try:
        for unit, after in positions:
            observe(unit, after)
            values = {**ready.bounds, **found()}
            final, _ = ready.at(unit, after, values)
            while handed < final:
                yield handed
                handed += 1
            if unit < len(every) and feeders:
                lookup = lookup_of(values)
                iterations = every[unit].iterations(lookup)
                chunk = chunk_of(unit) or len(iterations)
                last = min(after + chunk, iterations.stop) - 1
                for one in feeders if last >= after else ():
                    one.feed(unit, after, last, lookup)
    finally:
        for taken in items:
            taken.close()
