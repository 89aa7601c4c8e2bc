"""Where the time of a run goes: `program.profile(...)`.

Nothing is inserted into the program, so a run that is not profiled costs what it always costs. While a profiled run
goes on, a second thread looks at it. On NumPy and torch it sees which line of the generated code is being executed. On
JAX it lets XLA record its operations for a few milliseconds at a time, a small share of the run, since recording a loop
of tiny operations takes many times as long as running it. Every operation of the XLA program carries the name of its
block and of its loops (`jax.named_scope`), which any other profiler of JAX shows too. What was seen is scaled to the
whole run. The memory is that of the process. A short run is repeated, unless it calls host functions.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.compiler.loops.ir import Block, For, Item, Site, blocks_of, sites

if TYPE_CHECKING:
    from polyrhythm.runtime.program import Program

ENOUGH = 0.5
"""Seconds of running that are looked at, at least, unless that takes more than `MOST_RUNS` runs."""

MOST_RUNS = 200

PATIENCE = 20
"""How many times `ENOUGH` a run is repeated for when looking has met none of its blocks: a busy machine runs the
watching thread late."""

WINDOW, SHARE = 0.003, 10
"""Seconds that XLA records at a time; between two times passes so many times as long as recording and reading took."""

TICK = 0.001
"""Seconds between looks at generated code and at the memory."""

OTHER = "(other)"
"""What belongs to no block: copies of inputs and outputs, counters of loops."""

SCOPED = re.compile(r"%?([\w.-]+) = .*op_name=\"([^\"]*)\"")
INNER = re.compile(r"^(?:\w+\()*([^()]*)\)*$")

Slice = tuple[str, float, float]
"""What ran, from which second of the run on, for how many."""


@dataclass
class Profile:
    """The seconds of each block of a run, and the memory of the process over it.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> y = pr.recurrent((), (t,))
    >>> y[0] = 0.0
    >>> y[t + 1] = y + 1
    >>> profile = pr.compile(y[T - 1], backend="numpy").profile(bounds={T: 2000})
    >>> float(profile.results), profile.seconds > 0, sum(profile.blocks.values()) <= 1.01 * profile.seconds
    (1999.0, True, True)
    """

    seconds: float
    blocks: dict[str, float]
    loops: dict[str, float]
    sites: list[float]
    memory: list[tuple[float, int]]
    results: Any
    slices: list[Slice] = field(default_factory=list, repr=False)

    def save(self, path: str | Path) -> Path:
        """Write what was seen as a trace for ui.perfetto.dev or chrome://tracing."""
        events: list[dict[str, Any]] = [
            {"ph": "X", "name": name, "ts": start * 1e6, "dur": long * 1e6, "pid": 1, "tid": 1}
            for name, start, long in self.slices
        ]
        events += [
            {"ph": "C", "name": "memory", "ts": at * 1e6, "pid": 1, "args": {"bytes": held}} for at, held in self.memory
        ]
        target = Path(path)
        target.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}), encoding="utf-8")
        return target

    def as_data(self) -> dict[str, Any]:
        """What the report shows."""
        return {"seconds": self.seconds, "blocks": self.blocks, "sites": self.sites, "memory": self.memory}

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        table = Table(title=f"one run: {_shown(self.seconds)}")
        for column in ("where", "time", "share"):
            table.add_column(column, justify="left" if column == "where" else "right")
        for part in (self.loops, self.blocks):
            for name, spent in sorted(part.items(), key=lambda entry: -entry[1])[:20]:
                table.add_row(name, _shown(spent), f"{100 * spent / max(self.seconds, 1e-12):.1f} %")
            table.add_section()
        console = Console(width=100, no_color=True)
        with console.capture() as captured:
            console.print(table)
        return captured.get()

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def _shown(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3f} ms"


def profile(program: Program, given: Mapping[str, Any]) -> Profile:
    """Run a program and look where its time goes."""
    pure = not any(block.host for block in blocks_of(program.compiled.loops.body))
    jax = program.options.backend == "jax"
    if jax and pure:
        _finished(program(**given))  # what is compiled now is not part of the run
    watch = _XlaWatch(program) if jax else _CodeWatch(program)
    spent: list[float] = []
    watch.begin()
    try:
        while not spent or (pure and len(spent) < MOST_RUNS and sum(spent) < ENOUGH * (1 if watch.met else PATIENCE)):
            started = time.perf_counter()
            results = _finished(program(**given))
            spent.append(time.perf_counter() - started)
    finally:
        watch.end()
    seconds = sorted(spent)[len(spent) // 2]
    scale = seconds / max(sum(watch.seen.values()), 1e-12)
    blocks = {name: found * scale for name, found in watch.seen.items()}
    found, loops = _sites(program, blocks), dict[str, float]()
    _loops(program.compiled.loops.body, iter(found), loops)
    return Profile(seconds, blocks, loops, found, watch.memory, results, watch.slices)


def _finished(results: Any) -> Any:
    """Results that are there: those of JAX come before they are computed."""
    if "jax" in sys.modules:
        sys.modules["jax"].block_until_ready(results)
    return results


def _sites(program: Program, blocks: Mapping[str, float]) -> list[float]:
    """The seconds of every block in the order of the text; blocks of one name share theirs by how often they run."""
    bounds = program.stats.bounds
    found = [(site.block.name, _times(site, bounds)) for site in sites(program.compiled.loops.body)]
    whole: dict[str, int] = {}
    for name, times in found:
        whole[name] = whole.get(name, 0) + times
    return [blocks.get(name, 0.0) * times / max(1, whole[name]) for name, times in found]


def _times(site: Site, bounds: Mapping[str, int]) -> int:
    """How often a block runs, guards not counted; a loop that begins or ends at a counter has half of its steps."""
    values: dict[Symbol, int] = {}

    def lookup(symbol: Symbol) -> int:
        return values.get(symbol, bounds.get(symbol.name, 1))

    times = 1
    for loop in site.loops:
        first, end = loop.first.evaluate(lookup), loop.end.evaluate(lookup)
        values[loop.counter] = (first + end) // 2
        times *= max(0, end - first)
    return times


def _loops(items: Sequence[Item], spent: Iterator[float], found: dict[str, float]) -> float:
    """Note the seconds of every loop, those of the blocks in it; the seconds of all."""
    total = 0.0
    for item in items:
        if isinstance(item, Block):
            total += next(spent)
            continue
        inside = _loops(item.body, spent, found)
        if isinstance(item, For) and not (item.known is not None and len(item.known) < 2):
            text = f"for {item.counter} in {item.first} .. {item.end - 1}"
            found[text] = found.get(text, 0.0) + inside
        total += inside
    return total


class _Watch:
    """A thread that looks at a run until it is told to end."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.seen: dict[str, float] = {}
        self.memory: list[tuple[float, int]] = []
        self.slices: list[Slice] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="polyrhythm-profile", daemon=True)
        self._watched = threading.get_ident()
        self._started = 0.0

    def begin(self) -> None:
        self._started = time.perf_counter()
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def met(self) -> bool:
        """Whether a block of the program was seen running."""
        return any(name != OTHER for name in list(self.seen))

    def now(self) -> float:
        return time.perf_counter() - self._started

    def note_memory(self) -> None:
        held = resident()
        if held is not None:
            self.memory.append((round(self.now(), 6), held))

    def note(self, name: str, start: float, long: float) -> None:
        self.seen[name] = self.seen.get(name, 0.0) + long
        self.slices.append((name, start, long))

    def _follow(self) -> None:
        raise NotImplementedError


class _CodeWatch(_Watch):
    """Looks at the line of generated code that a thread executes."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._names = _names_of_lines(program.backend.source.text)
        self._interval = sys.getswitchinterval()

    def begin(self) -> None:
        sys.setswitchinterval(TICK / 2)
        super().begin()

    def end(self) -> None:
        super().end()
        sys.setswitchinterval(self._interval)

    def _follow(self) -> None:
        before = self.now()
        while not self._ended.wait(TICK):
            frame, now = sys._current_frames().get(self._watched), self.now()
            self.note(self._block(frame), before, now - before)
            before = now
            if len(self.memory) < 100 or now - self.memory[-1][0] > 0.02:
                self.note_memory()

    def _block(self, frame: FrameType | None) -> str:
        while frame is not None:
            if frame.f_code.co_filename in ("<polyrhythm numpy>", "<polyrhythm torch>"):
                return self._names.get(frame.f_lineno, OTHER)
            frame = frame.f_back
        return OTHER


def _names_of_lines(text: str) -> dict[int, str]:
    """The block that each line of generated code belongs to; a comment with its name begins it.

    >>> _names_of_lines("x = 1\\n# y\\ny = 2\\n")
    {2: 'y', 3: 'y'}
    """
    names, name = {}, ""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip().startswith("# "):
            name = line.strip()[2:]
        if name and line:
            names[number] = name
    return names


class _XlaWatch(_Watch):
    """Lets XLA record its operations now and then."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._read: set[Any] = set()
        self._found: dict[str, str] = {}

    def _follow(self) -> None:
        pause = WINDOW
        while not self._ended.wait(pause):
            started = time.perf_counter()
            at, recorded = self.now(), _recorded(WINDOW)
            self.note_memory()
            self._take(recorded, at)
            pause = max(0.02, SHARE * (time.perf_counter() - started))
            until = time.perf_counter() + pause
            while time.perf_counter() < until and not self._ended.wait(0.005):
                self.note_memory()
            pause = 0.0
        if not self.seen:
            self.seen[OTHER] = 1.0

    def _take(self, recorded: Any, at: float) -> None:
        known = {block.name for block in blocks_of(self.program.compiled.loops.body)}
        scopes = self._scopes()
        for plane in recorded.planes:
            for line in plane.lines:
                for name, start, own in _own_times(line.events):
                    if name not in scopes:
                        continue
                    parts = [INNER.sub(r"\1", part) for part in scopes[name].split("/")]
                    block = next((part for part in reversed(parts) if part in known), OTHER)
                    self.note(block, at + start, own)

    def _scopes(self) -> dict[str, str]:
        """The scope of every operation of the compiled programs, by its name; the text of a program is read once."""
        for key, made in list(self.program.backend.executor.programs.items()):
            if key not in self._read:
                self._read.add(key)
                self._found.update(match.groups() for match in SCOPED.finditer(made.as_text()))  # type: ignore[misc]
        return self._found


def _recorded(seconds: float) -> Any:
    """What XLA does within some seconds."""
    import jax
    from jax._src.lib import _profiler

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level, options.host_tracer_level = 0, 2
    session = _profiler.ProfilerSession(options)
    time.sleep(seconds)
    return jax.profiler.ProfileData.from_serialized_xspace(session.stop())


def _own_times(events: Any) -> Iterator[tuple[str, float, float]]:
    """The operations of one thread that have none inside: name, start and seconds.

    What a loop takes beside them is for the most part the recording itself.
    """
    ordered = sorted((e.start_ns, -e.duration_ns, e.name) for e in events if e.duration_ns > 0)
    ordered = [event for event in ordered if not event[2].startswith("end: ")]
    for (start, long, name), following in zip(ordered, (*ordered[1:], None), strict=True):
        if following is None or following[0] >= start - long:
            yield name, start / 1e9, -long / 1e9


def resident() -> int | None:
    """The bytes of memory that the process has; None where the system does not say it.

    >>> (resident() or 1) > 0
    True
    """
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * 4096
