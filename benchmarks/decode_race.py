"""`python -m benchmarks.decode_race [--only config=4x256,T=256] [--rounds 9]`: decoders in one process, taking turns.

On a busy or virtual machine two processes may differ by half for reasons of their own, so the ratios that count are
measured here, a fresh process for each row; what each system costs by itself is in `decode`. The rows and the peers are
the same. A long row is timed over its last 64 tokens: ours goes on from the prompt to there, the peers start from a
state that the prompt and our tokens have filled. Rows go to `build/benchmarks/decode_race.json` as they finish.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.decode import EVERY, ROWS, agreeing, bandwidth, make, prompt_of, weight_bytes, write_model
from benchmarks.decode_systems import CHUNK, Late, Row, now
from benchmarks.rows import Only, Rows, add_options

OUT = Path("build/benchmarks/decode_race.json")
KEYS = ("config", "attention", "T", "batch")
PEERS = EVERY[1:]
FAR = 3
"""A peer that takes so many times as long as we do in its first round is not timed again."""


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--table", action="store_true", help="measure nothing, show what the file has")
    parser.add_argument("--peers", default="|".join(PEERS), help="some of them: 'jax padded|jax expert' for example")
    add_options(parser)
    given = parser.parse_args()
    peers = tuple(given.peers.split("|"))
    if unknown := set(peers) - set(PEERS):
        raise SystemExit(f"--peers: no {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    kept, only = Rows(OUT, KEYS), Only(given.only)
    kept.facts["name"] = "decode_race"
    for row in [] if given.table else ROWS:
        if only(asdict(row)) and (given.again or kept.get(asdict(row)) is None):
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
                kept.add(fresh.submit(raced, row, given.rounds, peers).result())
            report(kept)
    if given.table:
        report(kept)


def raced(row: Row, rounds: int, peers: Sequence[str]) -> dict[str, Any]:
    """The times of some systems on one row, and our time over theirs: medians over rounds."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), row)
        ours, prompt = make("ours", Path(folder), row), prompt_of(row)
        mine = decoded(ours, prompt, row).tokens
        known = len(mine) - CHUNK if row.is_long else 0
        told = np.concatenate([prompt, mine[:known]])
        systems = {"ours": (ours, prompt), **{name: (make(name, Path(folder), row), told) for name in peers}}
        equal, times = {}, {name: [] for name in systems}  # type: dict[str, int], dict[str, list[Late]]
        for name in peers:
            theirs = decoded(*systems[name], row).tokens.tolist()
            equal[name] = agreeing({"tokens": mine[known:]}, {"system": name, "tokens": theirs})
        for number in range(rounds):
            for name, (system, given) in systems.items():
                if number == 0 or times[name][0].seconds_per_token < FAR * times["ours"][0].seconds_per_token:
                    times[name].append(decoded(system, given, row))
    entry: dict[str, Any] = {**asdict(row), "rounds": rounds, "equal_tokens": equal, "bandwidth_gb_s": bandwidth()}
    for what, field in (("ms", "seconds_per_token"), ("processor_ms", "processor_per_token")):
        each = {name: np.array([getattr(one, field) for one in found]) for name, found in times.items()}
        entry[what] = {name: 1e3 * float(np.median(found)) for name, found in each.items()}
        over = {name: statistics.median((each["ours"][: len(each[name])] / each[name]).tolist()) for name in peers}
        entry["over" if what == "ms" else "processor_over"] = over
    entry["weights_gb_s"] = weight_bytes(row) / entry["ms"]["ours"] / 1e6
    return entry


def decoded(system: Any, prompt: np.ndarray, row: Row) -> Late:
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
    for heading in (*KEYS, "ours, ms", *PEERS, "weights, GB/s", "rounds", "load"):
        table.add_column(heading, justify="left" if heading in KEYS[:2] else "right")
    for entry in filter(None, (kept.get(asdict(row)) for row in ROWS)):
        pairs = [(entry["over"].get(name), entry["processor_over"].get(name)) for name in PEERS]
        ratios = ["" if clock is None else f"{clock:.2f} ({processor:.2f})" for clock, processor in pairs]
        reads = f"{entry['weights_gb_s']:.1f} of {entry['bandwidth_gb_s']:.1f}"
        last = (reads, entry["rounds"], entry["load"])
        table.add_row(*(str(entry[key]) for key in KEYS), f"{entry['ms']['ours']:.2f}", *ratios, *map(str, last))
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
