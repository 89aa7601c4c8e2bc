"""`python -m benchmarks.decode_race [--only config=4x256,T=256] [--rounds 9]`: decoders in one process, taking turns.

On a busy or virtual machine two processes may differ by half for reasons of their own, so the ratios that count are
measured here; what each system costs by itself, and those that want a process of their own, are in `decode`. The
rows and the peers are the same. Rows go to `build/benchmarks/decode_race.json` as they finish.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.decode import ROWS, agreeing, prompt_of, write_model
from benchmarks.decode_systems import SYSTEMS, Late, Row, now
from benchmarks.decode_torch import Eager
from benchmarks.rows import Only, Rows, add_options

OUT = Path("build/benchmarks/decode_race.json")
KEYS = ("config", "attention", "T", "batch")
PEERS = ("jax padded", "jax expert", "torch eager")


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--table", action="store_true", help="measure nothing, show what the file has")
    add_options(parser)
    given = parser.parse_args()
    kept, only = Rows(OUT, KEYS), Only(given.only)
    kept.facts["name"] = "decode_race"
    for row in [] if given.table else ROWS:
        if only(asdict(row)) and (given.again or kept.get(asdict(row)) is None):
            kept.add(raced(row, given.rounds))
            report(kept)
    if given.table:
        report(kept)


def raced(row: Row, rounds: int) -> dict[str, Any]:
    """The times of all systems on one row, and our time over theirs: medians over rounds."""
    makers: dict[str, Any] = {**SYSTEMS, "torch eager": Eager}
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), row)
        systems = {name: make(Path(folder), row) for name, make in makers.items()}
        prompt = prompt_of(row)
        ways = {name: partial(decoded, system, row, prompt) for name, system in systems.items()}
        tokens = {name: way().tokens.tolist() for name, way in ways.items()}
        equal = {name: agreeing({"tokens": tokens["ours"]}, {"system": name, "tokens": tokens[name]}) for name in PEERS}
        times = {name: [] for name in ways}  # type: dict[str, list[Late]]
        for _ in range(rounds):
            for name, way in ways.items():
                times[name].append(way())
    entry: dict[str, Any] = {**asdict(row), "rounds": rounds, "equal_tokens": equal}
    for what, field in (("ms", "seconds_per_token"), ("processor_ms", "processor_per_token")):
        each = {name: np.array([getattr(one, field) for one in found]) for name, found in times.items()}
        entry[what] = {name: 1e3 * float(np.median(found)) for name, found in each.items()}
        over = {name: statistics.median((each["ours"] / each[name]).tolist()) for name in PEERS}
        entry["over" if what == "ms" else "processor_over"] = over
    return entry


def decoded(system: Any, row: Row, prompt: np.ndarray) -> Late:
    """The text after a prompt, and what a token took."""
    count = row.T - len(prompt)
    if row.is_long:
        return system.late(prompt, count)  # type: ignore[no-any-return]
    began = now()
    tokens = system.decode(prompt, count)
    return Late(tokens, *((now() - began) / count))


def report(kept: Rows) -> None:
    """All rows so far as a table, in the order of the benchmark."""
    table = Table(title="our time over that of a peer, by the clock and of the processor; medians of rounds in turn")
    for heading in (*KEYS, "ours, ms", *PEERS, "rounds", "load"):
        table.add_column(heading, justify="left" if heading in KEYS[:2] else "right")
    for entry in filter(None, (kept.get(asdict(row)) for row in ROWS)):
        ratios = [f"{entry['over'][name]:.2f} ({entry['processor_over'][name]:.2f})" for name in PEERS]
        cells = [*(entry[key] for key in KEYS), f"{entry['ms']['ours']:.2f}", *ratios, entry["rounds"], entry["load"]]
        table.add_row(*map(str, cells))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
