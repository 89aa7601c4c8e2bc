"""How the time of a decoded token grows: in proportion to t with all steps before, not at all with a window.

A run to 2T does what a run to T does and T tokens more, so the difference is the time of tokens between T and 2T. A
line is fitted to it over the mean t of these tokens. Runs of all lengths take turns, and the fastest of each counts,
since a difference of two noisy medians is mostly noise. Memory: XLA's plan of the longest run over ours.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np

import polyrhythm as pr
from benchmarks import programs
from benchmarks.harness import Fact, Result, interleaved
from benchmarks.inside import executables, planned

HEADS, DEPTH, WINDOW = 4, 64, 128
WIDTH = HEADS * DEPTH


def run(quick: bool) -> list[Result | Fact]:
    """Causal and windowed; `quick` only shows that it runs."""
    lengths = (128, 256, 512) if quick else (512, 1024, 2048, 4096, 8192)
    rounds = 2 if quick else 7
    results: list[Result | Fact] = []
    for window in (None, WINDOW):
        results += grown(lengths, window, rounds)
    return results


def grown(lengths: tuple[int, ...], window: int | None, rounds: int) -> list[Result | Fact]:
    """The time of a token between each two lengths, the line through them, and the memory."""
    rng = np.random.default_rng(0)
    given = {name: jnp.asarray(rng.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5, "float32") for name in ("wq", "wk", "wv")}
    given["first"] = jnp.asarray(rng.normal(size=WIDTH), "float32")
    program = pr.compile(programs.decode(HEADS, DEPTH, window))

    def call(steps: int) -> Any:
        return program(bounds={"T": steps}, **given)

    for steps in lengths:
        call(steps)
    times = interleaved({str(steps): lambda steps=steps: call(steps) for steps in lengths}, rounds)  # type: ignore[misc]
    total = {steps: min(times[str(steps)]) for steps in lengths}
    name = "causal" if window is None else f"window {window}"
    middles = [(a + b) / 2 for a, b in pairwise(lengths)]
    tokens = [(total[b] - total[a]) / (b - a) * 1e6 for a, b in pairwise(lengths)]
    results: list[Result | Fact] = [
        Fact(f"{name}: a token between {a} and {b}", value, "us")
        for (a, b), value in zip(pairwise(lengths), tokens, strict=True)
    ]
    slope, start, r2 = line(middles, tokens)
    results += [
        Fact(f"{name}: slope", slope * 1e3, "us per 1000 steps before"),
        Fact(f"{name}: at t = 0", start, "us"),
        Fact(f"{name}: r2 of the line", r2, ""),
        Fact(f"{name}: last token over first", tokens[-1] / tokens[0], "", None if window is None else 1.35),
    ]
    longest = max(planned(one) for one in executables(program).values())
    plan = program.memory.peak({"T": lengths[-1]})
    results.append(Fact(f"{name}: XLA's bytes over planned bytes", longest / plan, "", 1.5, f"{plan:,} planned"))
    return results


def line(x: list[float], y: list[float]) -> tuple[float, float, float]:
    """The slope and start of the line through some points, and how much of their variation it explains.

    >>> [round(value, 6) for value in line([1.0, 2.0, 3.0], [3.0, 5.0, 7.0])]
    [2.0, 1.0, 1.0]
    """
    slope, start = np.polyfit(x, y, 1)
    left = np.asarray(y) - (slope * np.asarray(x) + start)
    return float(slope), float(start), float(1 - left.var() / max(1e-12, np.var(y)))
