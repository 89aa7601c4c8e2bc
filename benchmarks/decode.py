"""`python -m benchmarks.decode [--only config=4x256,T=256]`: decoding one checkpoint, ours and other decoders.

Each row (a configuration and a system) runs in a process of its own. All systems read the same folder, written here
with random weights, and must write the same tokens before their times count. With 4 layers of 256 and up to T = 1024
the whole text is decoded from one token, and the time per token is that of the run; beyond that, and with the larger
model, a state is filled first and 64 tokens are timed.
While others keep the machine busy, the time of the processor says more than that of the clock; both are given.

Rows go to `build/benchmarks/decode.json` as they finish, and a run that was stopped goes on with what is missing. The
table at the end has all rows of the file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.decode_systems import CHUNK, SYSTEMS, Row
from benchmarks.rows import Only, Rows, add_options, own_peak_mb

OUT = Path("build/benchmarks/decode.json")
TORCH = ("torch eager", "torch compile", "transformers dynamic", "transformers static")
EVERY = (*SYSTEMS, *TORCH)
KEYS = ("config", "attention", "T", "batch", "system")
SURE_TOKENS = 64
"""Rounding may let two systems part when two tokens are equally likely; sooner than this, or than half of the text, it
is a fault. Half of a text is beyond the first turn of a ring and the first growth of a buffer."""

ROWS = [
    Row(config, attention, T, batch)
    for config in ("4x256", "12x768")
    for attention, lengths in (("causal", (256, 1024, 4096)), ("window 128", (1024, 4096)))
    for T in lengths
    for batch in (1, 4)
]
QUICK = [Row("4x256", "causal", 256, 1), Row("4x256", "window 128", 1024, 1)]


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rows, without torch.compile")
    parser.add_argument("--rounds", type=int, default=1, help="processes for each row and system; the median counts")
    parser.add_argument("--table", action="store_true", help="measure nothing, show what the file has")
    add_options(parser)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.row:
        print(json.dumps(measured(**json.loads(given.row))))
        return
    kept, only = Rows(OUT, KEYS), Only(given.only)
    if not given.table:
        kept.facts |= {"name": "decode", "bandwidth_gb_s": bandwidth()}
        systems = [s for s in EVERY if not (given.quick and "compile" in s)]
        for row in QUICK if given.quick else ROWS:
            wanted = [s for s in systems if only({**asdict(row), "system": s})]
            raced(kept, row, [s for s in wanted if given.again or kept.get(key_of(row, s)) is None], given)
    report(kept)


def key_of(row: Row, system: str) -> dict[str, Any]:
    """The columns that say which row of which system it is."""
    return {**asdict(row), "system": system}


def raced(kept: Rows, row: Row, systems: list[str], given: argparse.Namespace) -> None:
    """Some systems on one row, taking turns; how many of their tokens are ours is noted."""
    if not systems:
        return
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), row)
        for number in range(given.rounds):
            for system in systems:
                entry = in_process(Path(folder), row, system, given.limit)
                past = kept.get(entry) if number else None
                if "failed" not in entry:
                    entry["rounds"] = [*(past or {"rounds": []})["rounds"], entry["ms_per_token"]]
                    entry["ms_per_token"] = statistics.median(entry["rounds"])
                    ours = entry if system == "ours" else kept.get(key_of(row, "ours"))
                    entry["equal_tokens"] = agreeing(ours, entry)
                kept.add(entry)
                print(json.dumps({k: v for k, v in entry.items() if k != "tokens"}), flush=True)


def agreeing(ours: dict[str, Any] | None, entry: dict[str, Any]) -> int:
    """How many tokens are ours; too few of them is an error."""
    if ours is None:
        raise SystemExit("there are no tokens of ours to compare with: measure --only system=ours first")
    mine, theirs = np.array(ours["tokens"]), np.array(entry["tokens"])
    assert mine.shape == theirs.shape, f"{entry['system']}: {theirs.shape} tokens, ours {mine.shape}"
    differ = np.flatnonzero((mine != theirs).any(1))
    equal = int(differ[0]) if differ.size else len(mine)
    sure = min(max(SURE_TOKENS, len(mine) // 2), len(mine))
    assert equal >= sure, f"{entry['system']} writes other tokens from step {equal} on: {entry}"
    return equal


def write_model(folder: Path, row: Row) -> None:
    """A Llama of random weights, a Mistral if there is a window."""
    from polyrhythm import llm

    s = row.shape
    llm.write_random(
        folder,
        "llama" if s.window is None else "mistral",
        vocab_size=s.vocabulary,
        hidden_size=s.width,
        intermediate_size=s.hidden,
        num_hidden_layers=s.layers,
        num_attention_heads=s.heads,
        num_key_value_heads=s.kv_heads,
        max_position_embeddings=8192,
        rms_norm_eps=1e-6,
        eos_token_id=None,
        **({} if s.window is None else {"sliding_window": s.window}),
    )


def in_process(folder: Path, row: Row, system: str, limit: int) -> dict[str, Any]:
    """One row of one system in a fresh process; an entry with `failed` if it does not finish."""
    what = json.dumps({"folder": str(folder), "row": asdict(row), "system": system})
    # What an earlier run has compiled would hide the time of compiling.
    environment = {**os.environ, "POLYRHYTHM_CACHE": "", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "benchmarks.decode", "--row", what]
    failed: dict[str, Any] = {**asdict(row), "system": system}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {**failed, "failed": f"not finished after {limit} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return {**failed, "failed": lines[-1][:300]}
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def measured(folder: str, row: dict[str, Any], system: str) -> dict[str, Any]:
    """In the process of the row: the tokens and the times."""
    one = Row(**row)
    made = make(system, Path(folder), one)
    prompt = prompt_of(one)
    began = time.perf_counter()
    made.decode(prompt[:1], 1)
    first = time.perf_counter() - began
    if one.is_long:
        late = made.late(prompt, one.T - len(prompt))
        tokens, seconds, processor = late.tokens, late.seconds_per_token, late.processor_per_token
    else:
        count = one.T - 1
        tokens, times, used = made.decode(prompt, count), [], []
        for _ in range(3):
            began, busy = time.perf_counter(), time.process_time()
            made.decode(prompt, count)
            times.append((time.perf_counter() - began) / count)
            used.append((time.process_time() - busy) / count)
        seconds, processor = statistics.median(times), statistics.median(used)
    return {
        **row,
        "system": system,
        "ms_per_token": seconds * 1e3,
        "processor_ms_per_token": processor * 1e3,
        "compile_s": made.compile_seconds(),
        "first_token_s": first,
        "peak_rss_mb": own_peak_mb(),
        "weights_gb_s": weight_bytes(one) / seconds / 1e9,
        "tokens": tokens.tolist(),
    }


def make(system: str, folder: Path, row: Row) -> Any:
    """A system by its name."""
    if system in SYSTEMS:
        return SYSTEMS[system](folder, row)
    from benchmarks import decode_torch as torches

    makers = (torches.Eager, torches.Compiled, torches.Transformers, torches.Static)
    return dict(zip(TORCH, makers, strict=True))[system](folder, row)


def prompt_of(row: Row) -> np.ndarray:
    """One token a text, or enough of them to leave three chunks."""
    length = row.T - 3 * CHUNK if row.is_long else 1
    return np.random.default_rng(0).integers(0, row.shape.vocabulary, (length, row.batch)).astype(np.int32)


def weight_bytes(row: Row) -> int:
    """What a step reads of the weights: all but the rows of the embedding that are not asked for."""
    s = row.shape
    layer = 4 * s.width * s.width + 3 * s.width * s.hidden + 2 * s.width
    return 4 * (s.layers * layer + s.width * (s.vocabulary + 1))


def bandwidth() -> float:
    """Bytes a second of a product that reads a matrix larger than the caches, as GB."""
    import jax

    matrix, vector = jax.numpy.ones((8192, 8192)), jax.numpy.ones(8192)
    product = jax.jit(lambda a, b: a @ b)
    product(matrix, vector).block_until_ready()
    times = []
    for _ in range(7):
        began = time.perf_counter()
        product(matrix, vector).block_until_ready()
        times.append(time.perf_counter() - began)
    return matrix.nbytes / statistics.median(times) / 1e9


def report(kept: Rows) -> None:
    """All rows so far as a table, in the order of the benchmark."""
    order = [key_of(row, system) for row in ROWS for system in EVERY]
    entries = [entry for key in order if (entry := kept.entry(key)) is not None]
    reach = kept.facts.get("bandwidth_gb_s", float("nan"))
    table = Table(title=f"ms per token; memory is read at {reach:.1f} GB/s")
    words = ("config", "attention", "system")
    for heading in (*words[:2], "T", "batch", words[2], "ms/token", "over ours", "processor", "over ours"):
        table.add_column(heading, justify="left" if heading in words else "right")
    for heading in ("compile s", "first s", "MB", "GB/s", "load"):
        table.add_column(heading, justify="right")
    for entry in entries:
        key = [entry[k] for k in ("config", "attention", "T", "batch")]
        same = [e for e in entries if [e[k] for k in ("config", "attention", "T", "batch")] == key]
        ours = next((e for e in same if e["system"] == "ours" and "failed" not in e), entry)
        if "failed" in entry:
            table.add_row(*map(str, key), entry["system"], entry["failed"])
            continue
        pairs = [(entry[k], entry[k] / ours[k]) for k in ("ms_per_token", "processor_ms_per_token")]
        times = [text for time_, over in pairs for text in (f"{time_:.3f}", f"{over:.2f}")]
        costs = (entry["compile_s"], entry["first_token_s"], entry["peak_rss_mb"], entry["weights_gb_s"], entry["load"])
        table.add_row(*map(str, key), entry["system"], *times, *(f"{cost:.1f}" for cost in costs))
    Console(width=150).print(table)
    print(f"written to {kept.path}")


if __name__ == "__main__":
    main()
