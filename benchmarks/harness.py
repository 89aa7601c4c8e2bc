"""Interleaved timing of several ways to compute the same thing.

Two cores shared with others drift by half from one second to the next. So the ways take turns, in an order that
changes each round, and what is reported of two of them is the median of the ratios within a round. Nothing is timed
before all of them agree on the result.

When other processes want the cores as well, a way that happens to be interrupted looks slow. So the processor time
(of all threads) and the fastest round are reported too, and limits are held against the processor time while the
load is above one process per core. Tables go to the terminal, JSON to `build/benchmarks`.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

OUT = Path("build/benchmarks")
OURS = "ours"

Way = Callable[[], Any]
"""One way to compute the result; the harness waits until it is there."""

Times = tuple[dict[str, list[float]], dict[str, list[float]]]
"""Seconds of each way in each round, by the clock and by the processor."""


@dataclass(frozen=True)
class Result:
    """Seconds of each way, and ours over each other's: medians over rounds, and the fastest round of each."""

    name: str
    seconds: dict[str, float]
    processor_seconds: dict[str, float]
    fastest: dict[str, float]
    ratios: dict[str, float]
    processor_ratios: dict[str, float]
    limits: dict[str, float] = field(default_factory=dict)  # peer to the most our ratio may be
    load: float = 0.0
    note: str = ""

    @property
    def judged(self) -> dict[str, float]:
        """The ratios that limits are held against."""
        return self.processor_ratios if is_busy(self.load) else self.ratios

    @property
    def met(self) -> bool:
        """Whether every limit is kept."""
        return all(self.judged[peer] <= limit for peer, limit in self.limits.items())


@dataclass(frozen=True)
class Fact:
    """A number that is not a race: a growth, an overhead."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether the limit is kept."""
        return self.limit is None or self.value <= self.limit


def race(
    name: str,
    ways: Mapping[str, Way],
    limits: Mapping[str, float] | None = None,
    rounds: int = 15,
    tolerance: float = 1e-4,
    note: str = "",
) -> Result:
    """Time ways that must agree; `ways["ours"]` is compared with every other."""
    agree(name, ways, tolerance)
    return raced(name, measured(ways, rounds), limits, note)


def raced(name: str, times: Times, limits: Mapping[str, float] | None = None, note: str = "") -> Result:
    """The result of times that were measured."""
    wall, processor = times
    peers = [peer for peer in wall if peer != OURS]

    def ratios(times: Mapping[str, list[float]]) -> dict[str, float]:
        return {p: statistics.median(a / b for a, b in zip(times[OURS], times[p], strict=True)) for p in peers}

    def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
        return {way: statistics.median(values) for way, values in times.items()}

    return Result(
        name,
        medians(wall),
        medians(processor),
        {way: min(values) for way, values in wall.items()},
        ratios(wall),
        ratios(processor),
        dict(limits or {}),
        os.getloadavg()[0],
        note,
    )


def agree(name: str, ways: Mapping[str, Way], tolerance: float) -> None:
    """All ways return the same arrays, up to a tolerance relative to their magnitude."""
    results = {way: jax.tree.leaves(run()) for way, run in ways.items()}
    expected = [np.asarray(leaf) for leaf in results[OURS]]
    scale = [max(1.0, float(np.abs(leaf).max(initial=0))) for leaf in expected]
    for way, leaves in results.items():
        assert len(leaves) == len(expected), f"{name}: {way} returns {len(leaves)} arrays, ours {len(expected)}"
        for want, have, size in zip(expected, leaves, scale, strict=True):
            np.testing.assert_allclose(np.asarray(have), want, rtol=0, atol=tolerance * size, err_msg=f"{name}: {way}")


def is_busy(load: float) -> bool:
    """Whether more processes want to run than there are cores."""
    return load > (os.cpu_count() or 1)


def interleaved(ways: Mapping[str, Way], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way in each round; of the processor if others keep it busy."""
    wall, processor = measured(ways, rounds)
    return processor if is_busy(os.getloadavg()[0]) else wall


def measured(ways: Mapping[str, Way], rounds: int) -> Times:
    """Seconds of each way in each round, by the clock and by the processor; who goes first changes each round."""
    wall: dict[str, list[float]] = {way: [] for way in ways}
    processor: dict[str, list[float]] = {way: [] for way in ways}
    order = list(ways)
    for number in range(rounds):
        turn = number % len(order)
        for way in order[turn:] + order[:turn]:
            started, used = time.perf_counter(), time.process_time()
            jax.block_until_ready(ways[way]())
            wall[way].append(time.perf_counter() - started)
            processor[way].append(time.process_time() - used)
    return wall, processor


def report(name: str, results: list[Result | Fact]) -> None:
    """Print a table and write JSON."""
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"{name}.json"
    entries = [{**asdict(result), "kind": type(result).__name__.lower(), "met": result.met} for result in results]
    path.write_text(json.dumps({**where_and_when(name), "results": entries}, indent=1) + "\n")
    console = Console(width=150)
    console.print(races_table(name, [r for r in results if isinstance(r, Result)]))
    console.print(facts_table([r for r in results if isinstance(r, Fact)]))
    console.print(f"written to {path}")


def where_and_when(name: str) -> dict[str, str]:
    """The command of a benchmark, the machine as it is, and the day."""
    load = os.getloadavg()[0]
    versions = f"Python {platform.python_version()}, JAX {jax.__version__}, NumPy {np.__version__}"
    return {
        "command": f"python -m benchmarks {name}",
        "machine": f"{os.cpu_count()} cores, load {load:.1f}, {versions}",
        "when": time.strftime("%d %B %Y").lstrip("0"),
    }


def races_table(name: str, results: list[Result]) -> Table:
    """One line per peer."""
    load = max((result.load for result in results), default=0.0)
    table = Table(title=f"{name}: ours against peers, interleaved, medians; load {load:.1f} on {os.cpu_count()} cores")
    headings = ("benchmark", "peer", "ours", "peer's", "ratio", "processor", "fastest", "limit", "")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("benchmark", "peer", "") else "right")
    for result in results:
        for number, (peer, ratio) in enumerate(result.ratios.items()):
            limit = result.limits.get(peer)
            verdict = "" if limit is None else "ok" if result.judged[peer] <= limit else "LOST"
            table.add_row(
                result.name if number == 0 else "",
                peer,
                duration(result.seconds[OURS]),
                duration(result.seconds[peer]),
                f"{ratio:.2f}",
                f"{result.processor_ratios[peer]:.2f}",
                f"{result.fastest[OURS] / result.fastest[peer]:.2f}",
                "" if limit is None else f"{limit:.2f}",
                f"{verdict} {result.note}".strip() if number == 0 else verdict,
            )
    return table


def facts_table(facts: list[Fact]) -> Table:
    """One line per number."""
    table = Table(title="growth and overheads")
    for heading in ("what", "value", "unit", "limit", ""):
        table.add_column(heading, justify="right" if heading in ("value", "limit") else "left")
    for fact in facts:
        limit = "" if fact.limit is None else f"{fact.limit:g}"
        verdict = "" if fact.limit is None else "ok" if fact.met else "LOST"
        table.add_row(fact.name, f"{fact.value:.3g}", fact.unit, limit, f"{verdict} {fact.note}".strip())
    return table


def duration(seconds: float) -> str:
    """Seconds as people read them.

    >>> duration(0.00123), duration(1.5)
    ('1.23 ms', '1.5 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
