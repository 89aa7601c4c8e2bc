"""`python -m benchmarks.decode_race [--only config=4x256,T=256] [--processes 3]`: decoders that take turns.

On a busy or virtual machine two processes may differ by half for reasons of their own, so the ratios that count are
measured here; what each system costs by itself is in `decode`. The rows and the peers are the same. A row is raced in
several fresh processes; each has the median of its rounds, and what counts is the median of those. A long row is timed
over its last 64 tokens: ours goes on from the prompt to there, the peers start from a state that the prompt and our
tokens have filled. Rows go to `build/benchmarks/decode_race.json` as they finish.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from statistics import median
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
MEASURED = ("ms", "processor_ms", "over", "processor_over", "bandwidth_gb_s", "weights_gb_s")
"""The columns of which processes have a median; the others are the same in all, or those of the first."""
SHORT = 1024
"""As many tokens at least are decoded in a round; a shorter text several times."""
FAR = 3
"""A peer that takes so many times as long as we do in its first two rounds is not timed again."""


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often a process times each system")
    parser.add_argument("--processes", type=int, default=3, help="how many processes race a row")
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
        known = kept.get(asdict(row))
        if only(asdict(row)) and (given.again or known is None or set(peers) - known["over"].keys()):
            kept.add(joined([in_process(row, given.rounds, peers) for _ in range(given.processes)]))
            report(kept)
    if given.table:
        report(kept)


def in_process(row: Row, rounds: int, peers: Sequence[str]) -> dict[str, Any]:
    """A race in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(raced, row, rounds, peers).result()


def joined(races: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The races of one row as one: medians over processes, and the ratios of each.

    >>> joined([{"T": 8, "over": {"B": ratio}, "ms": {"ours": 2.0}} for ratio in (0.9, 1.2, 1.0)])
    {'T': 8, 'over': {'B': 1.0}, 'ms': {'ours': 2.0}, 'processes': 3, 'over_each': {'B': [0.9, 1.2, 1.0]}}
    """
    entry = dict(races[0])
    for field, value in races[0].items():
        if field in MEASURED:
            each = [race[field] for race in races]
            is_table = isinstance(value, dict)
            entry[field] = {k: median(e[k] for e in each) for k in value} if is_table else median(each)
    each_over = {name: [race["over"][name] for race in races] for name in races[0]["over"]}
    return {**entry, "processes": len(races), "over_each": each_over}


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
            names = list(systems)
            for name in names[number % len(names) :] + names[: number % len(names)]:  # none is always first
                if number < 2 or not is_far(times[name], times["ours"]):
                    times[name].append(decoded(*systems[name], row))
    entry: dict[str, Any] = {**asdict(row), "rounds": rounds, "equal_tokens": equal, "bandwidth_gb_s": bandwidth()}
    for what, field in (("ms", "seconds_per_token"), ("processor_ms", "processor_per_token")):
        each = {name: np.array([getattr(one, field) for one in found]) for name, found in times.items()}
        entry[what] = {name: 1e3 * float(np.median(found)) for name, found in each.items()}
        over = {name: median((each["ours"][: len(each[name])] / each[name]).tolist()) for name in peers}
        entry["over" if what == "ms" else "processor_over"] = over
    entry["weights_gb_s"] = weight_bytes(row) / entry["ms"]["ours"] / 1e6
    return entry


def is_far(theirs: Sequence[Late], ours: Sequence[Late]) -> bool:
    """Whether a peer took so much longer in the first two rounds that more of them tell nothing."""
    pairs = zip(theirs[:2], ours[:2], strict=True)
    return all(their.seconds_per_token >= FAR * our.seconds_per_token for their, our in pairs)


def decoded(system: Any, prompt: np.ndarray, row: Row) -> Late:
    """The text after a prompt, and what a token took."""
    count = row.T - len(prompt)
    if row.is_long:
        return system.late(prompt, count)  # type: ignore[no-any-return]
    times = max(1, SHORT // count)
    began = now()
    for _ in range(times):
        tokens = system.decode(prompt, count)
    return Late(tokens, *((now() - began) / (count * times)))


def report(kept: Rows) -> None:
    """All rows so far as a table, in the order of the benchmark."""
    table = Table(title="our time over that of a peer, by the clock and of the processor; medians")
    for heading in (*KEYS, "ours, ms", *PEERS, "weights, GB/s", "processes x rounds", "load"):
        table.add_column(heading, justify="left" if heading in KEYS[:2] else "right")
    for entry in filter(None, (kept.get(asdict(row)) for row in ROWS)):
        reads = f"{entry['weights_gb_s']:.1f} of {entry['bandwidth_gb_s']:.1f}"
        ratios, ours = [shown(entry, name) for name in PEERS], f"{entry['ms']['ours']:.2f}"
        last = (reads, f"{entry['processes']} x {entry['rounds']}", entry["load"])
        table.add_row(*(str(entry[key]) for key in KEYS), ours, *ratios, *map(str, last))
    Console(width=220).print(table)


def shown(entry: dict[str, Any], name: str) -> str:
    """Our time over that of a peer, of the processor, and what processes differ by."""
    if name not in entry["over"]:
        return ""
    each = entry["over_each"][name]
    spread = f" {min(each):.2f} to {max(each):.2f}" if len(each) > 1 else ""
    return f"{entry['over'][name]:.2f} ({entry['processor_over'][name]:.2f}){spread}"


if __name__ == "__main__":
    main()
