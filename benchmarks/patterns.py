"""Attention in patterns that nothing was written for: their cost per key against that of the plain causal pattern.

Every model writes from one token on, as many tokens as make the mean number of keys that a step sees about the same.
The models take turns; a ratio is the median over rounds of the time per key over that of the causal pattern. A stride
of two reads as many keys from twice as many steps, which take twice the memory. So the causal pattern with as many
steps is timed too: what it costs per byte that it reads tells what a larger memory costs by itself.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import polyrhythm as pr
from benchmarks.harness import Fact, Result, interleaved
from polyrhythm import llm

KEYS, LIMIT = (128, 256, 512), 1.3
SLOPES = np.array([[0.5], [0.25], [0.125], [0.0625]], "float32")


def every_second(t: pr.Dim) -> slice:
    return slice(t % 2, t + 1, 2)


def distant(t: pr.Dim) -> llm.Seen:
    return llm.Seen(slice(0, t + 1), -SLOPES * (pr.value(t) - pr.arange(t + 1)))


def prefixed(keys: int) -> Callable[[pr.Dim], list[slice]]:
    first = keys // 16
    return lambda t: [slice(0, pr.min(first, t + 1)), slice(pr.max(first, t - (keys - first) + 1), t + 1)]


def run(quick: bool) -> list[Result | Fact]:
    """The time of a token and key in each pattern over that in the plain one, for some numbers of keys."""
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"hidden_size": 256, "intermediate_size": 64, "num_hidden_layers": 4, "num_key_value_heads": 4}
        model = llm.load(llm.write_random(folder, max_position_embeddings=8192, eos_token_id=None, **sizes))
        counts, rounds = ((64,), 3) if quick else (KEYS, 9)
        return [fact for keys in counts for fact in compared(model, keys, rounds)]


def compared(model: llm.Model, keys: int, rounds: int) -> list[Fact]:
    """All patterns with so many keys in the mean, taking turns."""
    steps, twice = np.arange(2 * keys), np.arange(4 * keys)
    patterns: dict[str, tuple[Any, np.ndarray]] = {
        "causal": (llm.causal, steps + 1),
        "stride of two": (every_second, twice // 2 + 1),
        "distance bias": (distant, steps + 1),
        "prefix and window": (prefixed(keys), np.minimum(twice + 1, keys)),
        "window": (llm.window(keys), np.minimum(twice + 1, keys)),
        "causal, twice the steps": (llm.causal, twice + 1),
    }
    ways = {
        name: partial(model.attending(pattern).generate, [1], len(seen)) for name, (pattern, seen) in patterns.items()
    }
    for write in ways.values():
        write()
    times = interleaved(ways, rounds)
    found = []
    for name, (_, seen) in patterns.items():
        own = [seconds / seen.sum() for seconds in times[name]]
        plain = [seconds / patterns["causal"][1].sum() for seconds in times["causal"]]
        ratio = float(statistics.median(a / b for a, b in zip(own, plain, strict=True)))
        each = 1e3 * statistics.median(times[name]) / len(seen)
        note = f"{each:.3f} ms a token, {seen.mean():.0f} keys in the mean"
        limit = None if name.startswith("causal") else LIMIT
        found.append(Fact(f"{name}, {keys}", ratio, "times the causal pattern, per key", limit, note))
    return found
