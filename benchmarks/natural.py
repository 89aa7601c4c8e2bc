"""`python -m benchmarks.natural [--quick] [--growth] [NAME ...]`: natural programs against the JAX of an expert.

The dependence should decide time and memory, not the spelling. Every program of `natural_programs` is compiled and
called beside its peer, which is jitted; results must be equal before anything is timed. Reported are the ratio of the
times, both first calls, with compilation, and the bytes both need: arguments, results and what is temporary. With
`--growth` both are timed at T, 2 T and 4 T; an exponent of one is linear. Each row is measured in a process of its
own, so that one does not warm up another, and kept in `build/benchmarks/natural.json` at once. The table of all rows
that are kept is in `natural_table.json`, for `benchmarks.tables --take natural_table`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

import polyrhythm as pr
from benchmarks.harness import OURS, OUT, Way, duration, interleaved, is_busy, race
from benchmarks.inside import executables, planned
from benchmarks.natural_programs import Natural, rows
from benchmarks.rows import Entry, Rows

RUN, FIRST, FIRST_SECONDS, LIVE = 1.3, 3.0, 1.0, 1.2
"""Targets: ours over the peer's, for a run, a first call (plus seconds), and bytes."""

SMALL = 64
"""The steps of a quick run."""


def measured(row: Natural, steps: int, growth: bool, rounds: int) -> Entry:
    """Everything about a row; by the processor, first calls too, while others want the cores."""
    seconds = time.process_time if is_busy(os.getloadavg()[0]) else time.perf_counter
    given = {name: jnp.asarray(array) for name, array in row.given(steps).items()}
    started = seconds()
    program = row.compiled()
    bounds = dict(row.bounds(steps))

    def ours() -> Any:
        return program(bounds=bounds, **given)

    jax.block_until_ready(ours())
    first = seconds() - started
    jitted = jax.jit(row.peer_of(steps))
    started = seconds()
    lowered = jitted.lower(**given).compile()
    jax.block_until_ready(lowered(**given))
    peer_first = seconds() - started
    result = race(row.name, {OURS: ours, "peer": lambda: lowered(**given)}, rounds=rounds, tolerance=row.tolerance)
    live = max(planned(one) for one in executables(program).values())
    entry: Entry = {
        "name": row.name,
        "steps": steps,
        "seconds": result.seconds[OURS],
        "peer_seconds": result.seconds["peer"],
        "ratio": result.judged["peer"],
        "by": "processor" if is_busy(result.load) else "clock",
        "first": first,
        "peer_first": peer_first,
        "live": live,
        "plan": program.memory.peak({**told(program, given), **bounds}),
        "peer_live": planned(lowered),
        "reason": row.reason,
    }
    if growth:
        entry |= grown(row, steps, rounds)
    return entry


def told(program: pr.Program, given: Any) -> dict[str, int]:
    """The bounds that inputs tell, by name."""
    found: dict[str, int] = {}
    for name, node in program.compiled.graph.inputs.items():
        for dim, length in zip(node.dims, given[name].shape, strict=False):
            if dim.extent.symbols and (bound := next(iter(dim.extent.symbols))) not in found:
                found[bound.name] = length - (dim.extent - pr_term(bound)).constant
    return found


def pr_term(symbol: Any) -> Any:
    """A symbol as a term."""
    return symbol.term


def grown(row: Natural, steps: int, rounds: int) -> Entry:
    """The exponents by which time and bytes grow, of both."""
    program = row.compiled()
    times: dict[str, list[float]] = {OURS: [], "peer": []}
    live: dict[str, list[float]] = {OURS: [], "peer": []}
    for size in (steps, 2 * steps, 4 * steps):
        given = {name: jnp.asarray(array) for name, array in row.given(size).items()}
        bounds = dict(row.bounds(size))
        lowered = jax.jit(row.peer_of(size)).lower(**given).compile()
        ways: dict[str, Way] = {
            OURS: lambda given=given, bounds=bounds: program(bounds=bounds, **given),
            "peer": lambda lowered=lowered, given=given: lowered(**given),
        }
        for way in ways.values():
            jax.block_until_ready(way())
        for name, values in interleaved(ways, rounds).items():
            times[name].append(sorted(values)[len(values) // 2])
        live[OURS].append(planned(list(executables(program).values())[-1]))
        live["peer"].append(planned(lowered))
    return {
        "exponent": exponent(times[OURS]),
        "peer_exponent": exponent(times["peer"]),
        "live_exponent": exponent(live[OURS]),
        "peer_live_exponent": exponent(live["peer"]),
    }


def exponent(values: list[float]) -> float:
    """The mean exponent over two doublings.

    >>> exponent([1.0, 2.0, 4.0]), exponent([1.0, 4.0, 16.0])
    (1.0, 2.0)
    """
    return math.log2(values[-1] / values[0]) / (len(values) - 1)


def missed(entry: Entry) -> list[str]:
    """The targets that a row misses."""
    if "failed" in entry:
        return ["failed"]
    found = []
    if entry["ratio"] > RUN:
        found.append("run")
    if entry["first"] > FIRST * entry["peer_first"] + FIRST_SECONDS:
        found.append("first call")
    if entry["live"] > LIVE * entry["peer_live"]:
        found.append("bytes")
    if "exponent" in entry and entry["exponent"] > max(1.0, entry["peer_exponent"]) + 0.25:
        found.append("growth")
    return found


def table(entries: list[Entry]) -> Table:
    """One line for each row."""
    shown = Table(title="natural programs against expert JAX")
    headings = (
        "program",
        "T",
        "ours",
        "peer",
        "run",
        "first",
        "peer's",
        "MB",
        "peer's",
        "exponent",
        "peer's",
        "misses",
    )
    for heading in headings:
        shown.add_column(heading, justify="left" if heading in ("program", "misses") else "right")
    for entry in entries:
        if "failed" in entry:
            shown.add_row(entry["name"], str(entry["steps"]), *[""] * 9, entry["failed"][-60:])
            continue
        shown.add_row(
            entry["name"],
            str(entry["steps"]),
            duration(entry["seconds"]),
            duration(entry["peer_seconds"]),
            f"{entry['ratio']:.2f}",
            f"{entry['first']:.1f} s",
            f"{entry['peer_first']:.1f} s",
            f"{entry['live'] / 1e6:.2f}",
            f"{entry['peer_live'] / 1e6:.2f}",
            f"{entry['exponent']:.2f}" if "exponent" in entry else "",
            f"{entry['peer_exponent']:.2f}" if "exponent" in entry else "",
            ", ".join(missed(entry)) + (f": {entry['reason']}" if missed(entry) and entry["reason"] else ""),
        )
    return shown


def tidy(entry: Entry) -> Entry:
    """A row as `docs/benchmarks.md` shows it."""
    if "failed" in entry:
        return {"program": entry["name"], "T": entry["steps"], "misses": entry["failed"][-60:]}
    missing = ", ".join(missed(entry))
    return {
        "program": entry["name"],
        "T": entry["steps"],
        "ours": duration(entry["seconds"]),
        "run over the peer's": f"{entry['ratio']:.2f}" if entry["ratio"] <= RUN else f"**{entry['ratio']:.2f}**",
        "first call": f"{entry['first']:.1f} s / {entry['peer_first']:.1f} s",
        "MB": f"{entry['live'] / 1e6:.2f} / {entry['peer_live'] / 1e6:.2f}",
        "growth": f"{entry['exponent']:.2f} / {entry['peer_exponent']:.2f}" if "exponent" in entry else "",
        "load": entry["load"],
        "misses": missing + (f": {entry['reason']}" if missing and entry["reason"] else ""),
    }


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description="natural programs against expert JAX")
    parser.add_argument("names", nargs="*", help="rows, by a part of their name; all of them if left out")
    parser.add_argument("--quick", action="store_true", help="few steps and rounds, to see that it runs")
    parser.add_argument("--growth", action="store_true", help="also at two and four times the steps")
    parser.add_argument("--limit", type=int, default=300, help="the seconds that a row may take")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ["POLYRHYTHM_CACHE"] = ""  # what an earlier run has compiled would hide the time of compiling
    known = rows()
    chosen = [row for name, row in known.items() if not arguments.names or any(n in name for n in arguments.names)]
    rounds = 3 if arguments.quick else 11
    if arguments.one:
        (row,) = (known[name] for name in arguments.names)
        steps = min(SMALL, row.steps) if arguments.quick else row.steps
        print(json.dumps(measured(row, steps, arguments.growth, rounds)))
        return
    kept = Rows(OUT / "natural.json", ("name", "steps"))
    entries = []
    for row in chosen:
        steps = min(SMALL, row.steps) if arguments.quick else row.steps
        options = ["--quick"] * arguments.quick + ["--growth"] * arguments.growth
        command = [sys.executable, "-m", "benchmarks.natural", "--one", *options, row.name]
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=arguments.limit, check=False)
            entry = json.loads(run.stdout.splitlines()[-1]) if run.returncode == 0 else None
            why = run.stderr.strip()[-300:]
        except subprocess.TimeoutExpired:
            entry, why = None, f"not done in {arguments.limit} s"
        entries.append(entry or {"name": row.name, "steps": steps, "failed": why})
        kept.add(entries[-1])
        if "failed" in entries[-1]:
            print(row.name, "failed:", why)
        else:
            print(f"{row.name}: {entries[-1]['ratio']:.2f}", ", ".join(missed(entries[-1])), flush=True)
    shown = {"command": "python -m benchmarks.natural --growth", "results": [tidy(entry) for entry in kept.entries]}
    (OUT / "natural_table.json").write_text(json.dumps(shown, indent=1) + "\n", encoding="utf-8")
    Console(width=170).print(table(entries))


if __name__ == "__main__":
    main()
