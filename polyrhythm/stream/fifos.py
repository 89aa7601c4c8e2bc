"""FIFO depths: the smallest that neither deadlock nor slow a program down.

FIFOs start with one slot. Those that a deadlock names are doubled, and so are those whose writers wait longest, until
the program is as fast as with FIFOs that never fill. In the end every depth is cut to its high-water mark, and given
back the slots that a deadlock then asks for. A run for every step; streams of one name get one depth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from polyrhythm.stream.errors import Deadlock
from polyrhythm.stream.graph import Program
from polyrhythm.stream.hardware import Hardware
from polyrhythm.stream.metrics import measure
from polyrhythm.stream.simulate import Run, simulate

UNLIMITED = 1 << 40


@dataclass(frozen=True)
class FifoDepths:
    """Depths by the name of a stream, the cycles with them and with FIFOs that never fill, and their bytes."""

    depths: Mapping[str, int]
    cycles: int
    unlimited: int
    nbytes: int
    runs: int

    def on(self, hardware: Hardware) -> Hardware:
        """An accelerator with these depths.

        >>> FifoDepths({"x": 4}, 0, 0, 0, 0).on(Hardware()).depth("", "x")
        4
        """
        return replace(hardware, fifo_depth=1, fifo_depths=self.depths)


def smallest_fifos(program: Program, hardware: Hardware | None = None, tolerance: float = 0.0) -> FifoDepths:
    """The smallest FIFO depths without deadlock, and without a slowdown beyond a tolerance.

    >>> from polyrhythm.stream import accum, expand, map_tiles, promote, source, static
    >>> x = source("x", [[1.0] * 8], (static(1), static(8)))
    >>> mean = expand(promote(accum("add", x), 0), x, 1)
    >>> found = smallest_fifos(Program(map_tiles("subtract", x, mean)))
    >>> found.depths["broadcast x.2"], found.cycles == found.unlimited
    (7, True)
    """
    hardware = replace(hardware or Hardware(), fifo_depths={}, fifo_depth=UNLIMITED, on_chip_capacity=None)
    ideal = simulate(program, hardware, functional=False, tracing=True)
    most = _high_water(ideal)
    depths = dict.fromkeys(most, 1)
    runs = 1
    while True:
        runs += 1
        try:
            run = simulate(program, replace(hardware, fifo_depth=1, fifo_depths=depths), functional=False, tracing=True)
        except Deadlock as error:
            wanted = [name for name in error.fifos if depths[name] < most[name]]
        else:
            stalls: dict[str, int] = {}
            for fifo in run.fifos:
                stalls[fifo.stream.name] = max(stalls.get(fifo.stream.name, 0), fifo.stalled)
            able = {name: cycles for name, cycles in stalls.items() if cycles and depths[name] < most[name]}
            if run.cycles <= ideal.cycles * (1 + tolerance) or not able:
                break
            wanted = [name for name, cycles in able.items() if 2 * cycles >= max(able.values())]
        # A cycle whose FIFOs are all as deep as they ever get waits for others.
        for name in wanted or [name for name in depths if depths[name] < most[name]]:
            depths[name] = min(2 * depths[name], most[name])
    tight = _high_water(run)
    while tight != depths:
        runs += 1
        try:
            again = simulate(program, replace(hardware, fifo_depth=1, fifo_depths=tight), functional=False)
        except Deadlock as error:
            tight |= {name: min(tight[name] + 1, depths[name]) for name in error.fifos}
        else:
            if again.cycles <= run.cycles:
                break
            tight = depths
    chosen = replace(hardware, fifo_depth=1, fifo_depths=tight)
    nbytes = measure(program, chosen).evaluate(run.bindings)["fifo"]
    return FifoDepths(tight, run.cycles, ideal.cycles, nbytes, runs)


def _high_water(run: Run) -> dict[str, int]:
    """The most slots that any copy of each stream used, never less than one."""
    found: dict[str, int] = {}
    for fifo in run.fifos:
        found[fifo.stream.name] = max(found.get(fifo.stream.name, 1), fifo.high_water or 1)
    return found
