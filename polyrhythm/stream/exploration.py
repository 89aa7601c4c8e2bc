"""Exploration: which schedule is best for this accelerator?

`explore` lowers every schedule of a space, prunes by the symbolic metrics before anything runs, simulates what is left
for timing, and keeps the Pareto front. A schedule is pruned when its memory is above a limit, or when a point that was
simulated is at least as good in every objective even if this one took only as long as its off-chip traffic must. Both
need counts that are known when the program is lowered; where a run decides them, the point is simulated. FIFOs have the
depths that are asked for, or that of the hardware, deepened where it deadlocks. A batch is shared by processes that are
forked, and the results so far are kept in a file.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from math import inf, prod
from pathlib import Path
from typing import Any

import numpy as np

from polyrhythm.language.trees import flattened
from polyrhythm.runtime.report.drawing import scatter
from polyrhythm.stream.bottlenecks import bottleneck
from polyrhythm.stream.compiled import library
from polyrhythm.stream.directives import Directive, Policy, parallelize, tile, time_multiplex
from polyrhythm.stream.errors import DataMismatch, Deadlock, DirectiveMismatch, StreamError, UnboundSymbol
from polyrhythm.stream.graph import Program
from polyrhythm.stream.hardware import Hardware
from polyrhythm.stream.lowering import lowered_streams
from polyrhythm.stream.lowering.gathers import gathers_for_one_hots, taken_part
from polyrhythm.stream.lowering.problem import Problem, prepared
from polyrhythm.stream.metrics import measure, observed_bindings
from polyrhythm.stream.operators.routing import Partition
from polyrhythm.stream.operators.structure import Restate, Source
from polyrhythm.stream.simulate import simulate
from polyrhythm.stream.types import F32, DataType

Space = Sequence[Sequence[Directive | None]]
FIGURES = ("cycles", "on_chip_bytes", "off_chip_bytes", "fifo_bytes", "energy", "area")
DEEPEST = 1 << 16


@dataclass(frozen=True)
class Point:
    """A schedule and what became of it: `simulated`, `pruned`, `refused`, `over a limit` or `deadlock`."""

    schedule: str
    status: str
    figures: Mapping[str, float] = field(default_factory=dict)
    fifo_depth: int = 0
    bound: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Exploration:
    """All points, and which figures they are compared by.

    >>> points = (Point("a", "simulated", {"cycles": 4, "on_chip_bytes": 9}), Point("b", "refused"))
    >>> print(Exploration(points, ("cycles", "on_chip_bytes")).table())
    | schedule | cycles | on_chip_bytes | FIFO depth | bound by |
    |---|---|---|---|---|
    | a | 4 | 9 | 0 |  |
    """

    points: tuple[Point, ...]
    objective: tuple[str, ...]

    @property
    def front(self) -> list[Point]:
        """The simulated points that no other one beats in every objective, best first."""
        done = [point for point in self.points if point.status == "simulated"]
        kept = [p for p in done if not any(_beats(o.figures, p.figures, self.objective) for o in done)]
        unique = {tuple(p.figures[name] for name in self.objective): p for p in reversed(kept)}
        return sorted(unique.values(), key=lambda point: [point.figures[name] for name in self.objective])

    @property
    def best(self) -> Point:
        """The point of the front that comes first in the first objective."""
        if not self.front:
            reasons = "; ".join(dict.fromkeys(f"{p.schedule}: {p.status}, {p.reason}" for p in self.points[:3]))
            raise StreamError(f"no schedule of the space fits ({reasons})", fix="widen the space or the limits")
        return self.front[0]

    def table(self) -> str:
        """The front as a Markdown table."""
        shown = [name for name in FIGURES if any(name in point.figures for point in self.front)]
        lines = [f"| schedule | {' | '.join(shown)} | FIFO depth | bound by |", "|---|" + "---|" * (len(shown) + 2)]
        for point in self.front:
            figures = " | ".join(f"{point.figures[name]:,.0f}" for name in shown)
            lines.append(f"| {point.schedule} | {figures} | {point.fifo_depth} | {point.bound} |")
        return "\n".join(lines)

    def json(self) -> str:
        """Everything as JSON."""
        return json.dumps({"objective": self.objective, "points": [asdict(point) for point in self.points]}, indent=1)

    def svg(self) -> str:
        """The first two objectives of all simulated points; the front is filled."""
        across, up = self.objective[0], self.objective[-1]
        done = [point for point in self.points if point.status == "simulated"]
        front = {point.schedule for point in self.front}
        names = [f"{p.schedule}: {p.figures[across]:,.0f} {across}, {p.figures[up]:,.0f} {up}" for p in done]
        points = [(p.figures[across], p.figures[up], n, p.schedule in front) for p, n in zip(done, names, strict=True)]
        return scatter(points, across, up)


def explore(
    outputs: Any,
    data: Mapping[str, Any] | None = None,
    hardware: Hardware | None = None,
    *,
    space: Space | None = None,
    bounds: Mapping[Any, int] | None = None,
    storage: DataType = F32,
    objective: Sequence[str] = ("cycles", "on_chip_bytes"),
    limits: Mapping[str, float] | None = None,
    fifo_depths: Sequence[int] = (),
    most: int = 500,
    jobs: int | None = None,
    path: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Exploration:
    """Search schedules of a program for an accelerator.

    `space` lists, for every choice, its alternatives: directives, or None for none; by default those that make sense
    for the program, of which at most `most` combinations are drawn. Each is tried with every one of `fifo_depths`, or
    with that of the hardware, deepened where it deadlocks. `objective` and `limits` name figures: cycles,
    on_chip_bytes, off_chip_bytes, fifo_bytes, energy, area. `jobs` processes work on it, all cores by default. With a
    `path`, points that are there already are not run.

    >>> import numpy as np, polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (4,), (t,))
    >>> space = [[None, tile(t, 2), tile(t, dynamic=True)]]
    >>> found = explore((x * x)[0:T].sum(0), {"x": np.ones((8, 4), "float32")}, space=space)
    >>> found.best.schedule
    "tile('t', dynamic=True)"
    """
    hardware = hardware or Hardware()
    limits = dict(limits or {})
    unknown = [name for name in (*objective, *limits) if name not in FIGURES]
    if unknown:
        raise StreamError(f"explore: there is no figure {unknown[0]}", fix=f"choose {', '.join(FIGURES)}")
    tensors, _ = flattened(outputs)
    given = [directive for choice in space or () for directive in choice if directive is not None]
    problem = gathers_for_one_hots(prepared(tensors, (), data or {}, bounds or {}, storage, given))
    drawn = _schedules(space if space is not None else schedule_space(problem), most)
    schedules = [_Candidate(schedule, depth) for schedule in drawn for depth in fifo_depths or (None,)]
    file, signature = Path(path) if path is not None else None, _signature(problem, hardware, limits, objective)
    search = _Search(problem, hardware, tuple(objective), limits)
    found = _kept(file, signature)
    waiting = [schedule for schedule in schedules if str(schedule) not in found]
    jobs = jobs or os.cpu_count() or 1
    started, width = time.monotonic(), jobs * 4
    library()  # is compiled before there are several processes
    # What may be best by its bounds comes first: then it prunes most of the rest.
    search.known.update((point.schedule, point) for point in _shared(search.bounded, waiting, jobs))
    waiting.sort(key=lambda schedule: prod(search.bounded(schedule).figures.get(name, inf) for name in objective))
    for first in range(0, len(waiting), width):
        batch = waiting[first : first + width]
        seen = [point.figures for point in found.values() if point.status == "simulated"]
        for point in _shared(lambda schedule, seen=seen: search.run(schedule, seen), batch, jobs):  # type: ignore[misc]
            found[point.schedule] = point
        if file is not None:
            _keep(file, signature, found.values())
        if progress:
            _show(min(first + width, len(waiting)), len(waiting), time.monotonic() - started)
    return Exploration(tuple(found[str(schedule)] for schedule in schedules), tuple(objective))


def _show(done: int, total: int, seconds: float) -> None:
    """A bar on a terminal, lines elsewhere."""
    bar = f"explore [{'#' * (30 * done // total):<30}] {done} of {total} schedules, {seconds:.0f} s"
    ends = done == total or not sys.stderr.isatty()
    print(f"\r{bar}", end="\n" if ends else "", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class _Candidate:
    """A schedule, and the depth of FIFOs where several are tried."""

    schedule: tuple[Directive, ...]
    depth: int | None

    def __str__(self) -> str:
        depth = () if self.depth is None else (f"FIFOs of {self.depth}",)
        return ", ".join([*map(str, self.schedule), *depth]) or "none"

    def on(self, hardware: Hardware) -> Hardware:
        return hardware if self.depth is None else replace(hardware, fifo_depth=self.depth)


@dataclass(frozen=True)
class _Search:
    problem: Problem
    hardware: Hardware
    objective: tuple[str, ...]
    limits: Mapping[str, float]
    known: dict[str, Point] = field(default_factory=dict)

    def run(self, candidate: _Candidate, seen: Sequence[Mapping[str, float]]) -> Point:
        """One schedule: lowered, measured, and simulated if it may be among the best."""
        bounded = self.bounded(candidate)
        if bounded.status != "bounded":
            return bounded
        name, known = bounded.schedule, bounded.figures
        comparable = all(figure in known for figure in self.objective)
        if comparable and any(_beats(other, known, self.objective) for other in seen):
            return Point(name, "pruned", known, reason="a simulated point is better than its lower bounds")
        return self._simulated(candidate, lowered_streams(self.problem.scheduled(candidate.schedule))[0])

    def bounded(self, candidate: _Candidate) -> Point:
        """One schedule, lowered and measured: its lower bounds, or why it is no candidate."""
        name = str(candidate)
        if name not in self.known:
            self.known[name] = self._bounded(name, candidate)
        return self.known[name]

    def _bounded(self, name: str, candidate: _Candidate) -> Point:
        try:
            program, _ = lowered_streams(self.problem.scheduled(candidate.schedule))
        except StreamError as error:
            return Point(name, "refused", reason=error.what.splitlines()[0])
        known = _known_figures(program, candidate.on(self.hardware))
        for figure, limit in self.limits.items():
            if known.get(figure, 0) > limit:
                return Point(name, "over a limit", known, reason=f"{figure} {known[figure]:,.0f} > {limit:,.0f}")
        return Point(name, "bounded", known)

    def _simulated(self, candidate: _Candidate, program: Program) -> Point:
        name, hardware, functional = str(candidate), candidate.on(self.hardware), False
        while True:
            try:
                run = simulate(program, hardware, functional=functional)
                break
            except DataMismatch:
                if functional:
                    raise
                functional = True  # what is computed decides what is read
            except Deadlock as error:
                if candidate.depth is not None or hardware.fifo_depth >= DEEPEST:
                    return Point(name, "deadlock", fifo_depth=hardware.fifo_depth, reason=error.what.splitlines()[0])
                hardware = replace(hardware, fifo_depth=hardware.fifo_depth * 4)
            except StreamError as error:
                return Point(name, "refused", reason=error.what.splitlines()[0])
        report = bottleneck(run)
        values = measure(program, hardware).evaluate(run.bindings)
        figures = {
            "cycles": run.cycles,
            "on_chip_bytes": values["on_chip"],
            "off_chip_bytes": run.bytes_moved,
            "fifo_bytes": values["fifo"],
            "energy": report.energy,
            "area": report.area,
        }
        over = [f"{f} {figures[f]:,.0f} > {limit:,.0f}" for f, limit in self.limits.items() if figures[f] > limit]
        status = "over a limit" if over else "simulated"
        return Point(name, status, figures, hardware.fifo_depth, report.kind, "; ".join(over))


def schedule_space(problem: Problem) -> Space:
    """The choices that make sense for a program: tiles of the dims of inputs, shared regions, dealt dims.

    Static tiles are powers of two (that divide, except for steps that are routed) and the whole dim.
    """
    graph = problem.graph
    parts = [part for node in graph if (part := taken_part(problem, node)) is not None]
    branches = {branch for _, _, branch in parts}
    routed = {symbol for _, index, _ in parts for symbol in index.symbols}
    inputs = [node for node in graph.inputs.values() if node.dtype.kind == "f"]
    sizes = {symbol: problem.extent(node, symbol) for node in inputs for symbol in node.symbols}
    space: list[list[Directive | None]] = []
    for symbol, size in sizes.items():
        powers = [2**k for k in range(size.bit_length()) if symbol in routed or size % 2**k == 0]
        if symbol in branches:
            space.append([None, *(time_multiplex(str(symbol), n) for n in powers if n < size)])
        else:
            space.append(
                [None, tile(str(symbol), dynamic=True), *(tile(str(symbol), n) for n in powers if 1 < n < size)]
            )
    policies: tuple[Policy, ...] = ("coarse", "interleave", "dynamic")
    entries = [
        s for s in dict.fromkeys(node.symbols[0] for node in inputs if node.symbols) if s not in branches | routed
    ]
    dealt = [
        parallelize(str(symbol), regions, policy, -(-sizes[symbol] // regions))
        for symbol in entries
        for regions in (2, 4, 8)
        for policy in policies
        if 1 < regions <= sizes[symbol]
    ]
    return [*space, [None, *dealt]]


def _schedules(space: Space, most: int) -> list[tuple[Directive, ...]]:
    """All combinations, or as many as wanted drawn at random, always the same ones."""
    count = prod(len(choice) for choice in space)
    drawn = range(count) if count <= most else random.Random(0).sample(range(count), most)
    sizes = [len(choice) for choice in space]
    found = []
    for number in drawn:
        chosen = [choice[int(at)] for choice, at in zip(space, np.unravel_index(number, sizes), strict=True)]
        found.append(tuple(directive for directive in chosen if directive is not None))
    return list(dict.fromkeys(found))


def _beats(one: Mapping[str, float], other: Mapping[str, float], objective: Sequence[str]) -> bool:
    """Whether one point is at least as good in every objective and better in one."""
    pairs = [(one[name], other[name]) for name in objective]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def _known_figures(program: Program, hardware: Hardware) -> dict[str, float]:
    """Figures that need no run, as far as the counts are known: memory, traffic, and the least cycles.

    Traffic takes the time of the whole bandwidth; each loader and each unit the time of what it does alone.
    """
    metrics, bindings = measure(program, hardware), _known_counts(program)
    found: dict[str, float] = {}
    for name, expression in (
        ("on_chip_bytes", metrics.on_chip),
        ("off_chip_bytes", metrics.off_chip_burst),
        ("fifo_bytes", metrics.fifo),
    ):
        try:
            found[name] = int(expression.evaluate(bindings))
        except UnboundSymbol:
            continue
    if "off_chip_bytes" in found:
        found["cycles"] = found["off_chip_bytes"] / hardware.memory_bandwidth
        for node in program.nodes:
            with suppress(UnboundSymbol):
                moved = node.operator.off_chip(node, hardware.burst).evaluate(bindings)
                done = node.operator.flops(node).evaluate(bindings)
                compute = hardware.compute_of.get(node.name, hardware.compute)
                alone = max(np.max(moved) / hardware.loader_bandwidth, np.max(done) / compute)
                found["cycles"] = max(found["cycles"], float(alone))
    return found


def _known_counts(program: Program) -> dict[str, Any]:
    """The counts that sources decide: their own dims, and how often their selectors name each target."""
    sources = [node for node in program.nodes if isinstance(node.operator, Source)]
    logs = [(node.outputs[0].shape, [list(part) for part in node.operator.tokens]) for node in sources]  # type: ignore[attr-defined]
    counts = observed_bindings(logs)
    for node in program.nodes:
        if isinstance(node.operator, Partition):
            selector = node.inputs[1].node
            while isinstance(selector.operator, Restate):
                selector = selector.inputs[0].node
            kind = selector.outputs[0].element
            if isinstance(selector.operator, Source):
                named = [
                    t for part in selector.operator.tokens for value, _ in part for t in getattr(value, "targets", ())
                ]
                counts[kind.name] = np.bincount(named, minlength=kind.targets)  # type: ignore[union-attr]
    return counts


def _shared(run: Callable[[Any], Point], batch: Sequence[Any], jobs: int) -> list[Point]:
    """The points of a batch, from several processes where the system can fork."""
    if jobs <= 1 or "fork" not in multiprocessing.get_all_start_methods():
        return [run(item) for item in batch]
    context = multiprocessing.get_context("fork")
    shares = [batch[job::jobs] for job in range(jobs) if batch[job::jobs]]
    queues = [context.SimpleQueue() for _ in shares]
    workers = [
        context.Process(target=lambda share=share, queue=queue: queue.put([run(item) for item in share]))
        for share, queue in zip(shares, queues, strict=True)
    ]
    with warnings.catch_warnings():
        # Others warn that their threads do not survive a fork; the workers use none of them.
        warnings.simplefilter("ignore")
        for worker in workers:
            worker.start()
    found = [point for queue in queues for point in queue.get()]
    for worker in workers:
        worker.join()
    return found


def _kept(path: Path | None, signature: str) -> dict[str, Point]:
    """The points in a file, which has a signature of what they belong to."""
    if path is None or not path.exists():
        return {}
    kept = json.loads(path.read_text())
    if kept["signature"] != signature:
        raise DirectiveMismatch(
            f"explore: {path} has points of another program, accelerator or objective",
            fix="give another path, or remove the file",
        )
    return {point["schedule"]: Point(**point) for point in kept["points"]}


def _keep(path: Path, signature: str, points: Iterable[Point]) -> None:
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps({"signature": signature, "points": [asdict(point) for point in points]}, indent=1))
    partial.replace(path)


def _signature(problem: Problem, hardware: Hardware, limits: Mapping[str, float], objective: Sequence[str]) -> str:
    nodes = [(node.name, [definition.op for definition in node.definitions]) for node in problem.graph]
    numbers = [
        (name, array.shape, array.tobytes() if array.dtype.kind in "ib" else b"")
        for name, array in problem.arrays.items()
        if array is not None
    ]
    bounds = sorted((str(symbol), value) for symbol, value in problem.bounds.items())
    text = repr((nodes, numbers, bounds, hardware, sorted(limits.items()), tuple(objective)))
    return hashlib.sha256(text.encode()).hexdigest()
