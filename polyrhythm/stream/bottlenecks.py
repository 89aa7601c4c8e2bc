"""What a run waits for: memory, compute, dispatch or FIFOs, and the chain of waits that decides its length.

A process knows how long it was busy, and a FIFO how long its reader waited for a token and its writer for space.
From the process that ends last the report follows the longest wait, to the writer that was late or to the reader that
was slow, until it meets a process that was mostly busy, or one that it has met before.

FIFO depths: the smallest that neither deadlock nor slow a program down.

FIFOs start with one slot. Those that a deadlock names are doubled, and so are those whose writers wait longest, until
the program is as fast as with FIFOs that never fill. In the end every depth is cut to its high-water mark, and given
back the slots that a deadlock then asks for. A run for every step; streams of one name get one depth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from polyrhythm.stream.errors import Deadlock
from polyrhythm.stream.graph import Program
from polyrhythm.stream.hardware import Hardware
from polyrhythm.stream.metrics import measure
from polyrhythm.stream.operators.offchip import OffChip
from polyrhythm.stream.simulate import FifoReport, NodeReport, Run, simulate

MOSTLY = 0.7
"""The share of all cycles from which on a process, or the memory, is what a run waits for."""


@dataclass(frozen=True)
class Wait:
    """One link of the chain: a process, the cycles it was busy, and what it waited for most."""

    process: str
    busy: int
    waited: int
    reason: str


@dataclass(frozen=True)
class Bottleneck:
    """Why a run takes as long as it does. Shares are of all cycles; `energy` in picojoules, `area` in um2."""

    kind: str
    cycles: int
    memory: float
    loader: float
    compute: float
    stalled: float
    chain: tuple[Wait, ...]
    energy: float
    area: float

    def __str__(self) -> str:
        lines = [
            f"{self.kind}-bound, {self.cycles:,} cycles",
            f"  memory bandwidth used {self.memory:.0%}, busiest loader {self.loader:.0%}, "
            f"busiest unit {self.compute:.0%}, longest wait for FIFO space {self.stalled:.0%}",
            f"  energy {self.energy / 1e6:,.2f} uJ, area {self.area / 1e6:,.2f} mm2",
            *(f"  {wait.process}: busy {wait.busy:,}, {wait.reason} {wait.waited:,}" for wait in self.chain),
        ]
        return "\n".join(lines)


def bottleneck(run: Run) -> Bottleneck:
    """The bottleneck of a run.

    >>> from polyrhythm.stream import Hardware, OffChip, Program, linear_load, map_tiles, simulate
    >>> load = linear_load(OffChip("x", 256, 64), (64, 64), (4,))
    >>> bottleneck(simulate(Program(map_tiles("exp", load)), Hardware(compute=1))).kind
    'compute'
    >>> bottleneck(simulate(Program(map_tiles("exp", load)), Hardware(channels=1))).kind
    'memory'
    """
    cycles = max(run.cycles, 1)
    off_chip = [report for report in run.reports if _is_off_chip(report)]
    units = [report for report in run.reports if report.node.operator.computes]
    memory = run.bytes_moved / (run.hardware.memory_bandwidth * cycles)
    chain = _chain(run)
    last = next(report for report in run.reports if report.name == chain[-1].process)
    if chain[-1].busy <= MOSTLY * cycles:
        kind = "FIFO" if any(wait.reason.startswith("space") for wait in chain) else "dispatch"
    elif _is_off_chip(last):
        kind = "memory" if memory > MOSTLY else "dispatch"
    else:
        kind = "compute" if last.node.operator.computes else "dispatch"
    values = measure(run.program, run.hardware).evaluate(run.bindings)
    costs, nodes = run.hardware.costs, len(run.reports)
    energy = run.bytes_moved * costs.off_chip_byte + run.flops * costs.flop + nodes * run.cycles * costs.node_cycle
    area = run.allocated_flops * costs.flop_area + nodes * costs.node_area
    return Bottleneck(
        kind,
        run.cycles,
        memory,
        max((report.busy for report in off_chip), default=0) / cycles,
        max((report.busy for report in units), default=0) / cycles,
        max((fifo.stalled for fifo in run.fifos), default=0) / cycles,
        chain,
        energy,
        area + (values["on_chip"] + values["fifo"]) * costs.byte_area,
    )


def _is_off_chip(report: NodeReport) -> bool:
    return isinstance(getattr(report.node.operator, "tensor", None), OffChip)


def _chain(run: Run) -> tuple[Wait, ...]:
    waits: dict[str, tuple[int, str, str]] = {}
    for fifo in run.fifos:
        for process, cycles, reason, other in (
            (fifo.reader, fifo.starved, f"tokens of {fifo.name}", fifo.writer),
            (fifo.writer, fifo.stalled, f"space in {fifo.name}", fifo.reader),
        ):
            waits[process] = max(waits.get(process, (0, "", "")), (cycles, reason, other))
    busy = {report.name: report.busy for report in run.reports}
    current = max(run.reports, key=lambda report: report.finished_at).name
    chain: list[Wait] = []
    while True:
        waited, reason, other = waits.get(current, (0, "nothing", ""))
        chain.append(Wait(current, busy[current], waited, reason or "nothing"))
        if busy[current] > MOSTLY * run.cycles or other not in busy or any(wait.process == other for wait in chain):
            return tuple(chain)
        current = other


def utilisation_over_time(run: Run, parts: int = 20) -> dict[str, list[float]]:
    """The share of every part of a run in which each copy of a node was busy; needs a run with tracing.

    >>> from polyrhythm.stream import Hardware, Program, map_tiles, simulate, source, static
    >>> x = source("x", [1.0, 2.0], (static(2),))
    >>> utilisation_over_time(simulate(Program(map_tiles("exp", x)), Hardware(compute=1), tracing=True), 2)["exp"]
    [1.0, 1.0]
    """
    width = max(run.cycles, 1) / parts
    found: dict[str, list[float]] = {}
    for report in run.reports:
        shares = [0.0] * parts
        for start, end in report.intervals:
            for part in range(int(start // width), min(int((end - 1) // width), parts - 1) + 1):
                shares[part] += (min(end, (part + 1) * width) - max(start, part * width)) / width
        if report.intervals:
            found[report.name] = [round(share, 4) for share in shares]
    return found


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
    most = _most(ideal, _slots)
    depths = dict.fromkeys(most, 1)
    runs = 1
    while True:
        runs += 1
        try:
            run = simulate(program, replace(hardware, fifo_depth=1, fifo_depths=depths), functional=False, tracing=True)
        except Deadlock as error:
            wanted = [name for name in error.fifos if depths[name] < most[name]]
        else:
            stalls = _most(run, lambda fifo: fifo.stalled)
            able = {name: cycles for name, cycles in stalls.items() if cycles and depths[name] < most[name]}
            if run.cycles <= ideal.cycles * (1 + tolerance) or not able:
                break
            wanted = [name for name, cycles in able.items() if 2 * cycles >= max(able.values())]
        # A cycle whose FIFOs are all as deep as they ever get waits for others.
        for name in wanted or [name for name in depths if depths[name] < most[name]]:
            depths[name] = min(2 * depths[name], most[name])
    tight = _most(run, _slots)
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


def _slots(fifo: FifoReport) -> int:
    """The most slots that were in use, never less than one."""
    return fifo.high_water or 1


def _most(run: Run, figure: Callable[[FifoReport], int]) -> dict[str, int]:
    """The largest figure that any copy of each stream has."""
    found: dict[str, int] = {}
    for fifo in run.fifos:
        found[fifo.stream.name] = max(found.get(fifo.stream.name, 0), figure(fifo))
    return found
