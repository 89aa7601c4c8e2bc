"""Attention in any pattern is a slice of the past; what has to be stored follows, and is proved.

Each line of `PATTERNS` is one kind of attention. The table that is printed says how many steps of keys the compiler
keeps for it, and why.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import polyrhythm as pr

WIDTH = 8
Slices = Callable[[pr.Dim], list[slice]]
PATTERNS: dict[str, Slices] = {
    "causal": lambda t: [slice(0, t + 1)],
    "window of 6": lambda t: [slice(pr.max(0, t - 5), t + 1)],
    "every third": lambda t: [slice(t % 3, t + 1, 3)],
    "2 sinks and a window of 4": lambda t: [slice(0, pr.min(2, t + 1)), slice(pr.max(2, t - 3), t + 1)],
    "blocks of 4": lambda t: [slice(t - t % 4, t + 1)],
}


def build(slices: Slices) -> tuple[pr.Program, pr.Bound]:
    """A recurrence whose next state attends to some of the states so far."""
    t, T = pr.dim("t")
    start, w_k = pr.input("start", (WIDTH,)), pr.input("w_k", (WIDTH, WIDTH))
    h = pr.recurrent((WIDTH,), (t,))
    keys = h @ w_k
    seen = pr.concat([keys[part] for part in slices(t)], 0)
    h[0] = start
    h[t + 1] = pr.tanh(pr.softmax(seen @ h, 0) @ seen)
    return pr.compile(h[T - 1], backend="numpy"), T


def reference(slices: Callable[[int], list[int]], start: np.ndarray, w_k: np.ndarray, steps: int) -> np.ndarray:
    h = [start]
    for t in range(steps - 1):
        keys = np.array([h[s] @ w_k for s in slices(t)])
        scores = keys @ h[t]
        weights = np.exp(scores - scores.max())
        h.append(np.tanh(weights / weights.sum() @ keys))
    return h[-1]


def main() -> None:
    rng = np.random.default_rng(0)
    start, w_k = rng.normal(size=WIDTH).astype("float32"), rng.normal(size=(WIDTH, WIDTH)).astype("float32") / 2
    chosen: dict[str, Callable[[int], list[int]]] = {
        "causal": lambda t: list(range(t + 1)),
        "window of 6": lambda t: list(range(max(0, t - 5), t + 1)),
        "every third": lambda t: list(range(t % 3, t + 1, 3)),
        "2 sinks and a window of 4": lambda t: [*range(min(2, t + 1)), *range(max(2, t - 3), t + 1)],
        "blocks of 4": lambda t: list(range(t - t % 4, t + 1)),
    }
    for name, slices in PATTERNS.items():
        program, T = build(slices)
        found = program(start=start, w_k=w_k, bounds={T: 30})
        assert np.allclose(found, reference(chosen[name], start, w_k, 30), atol=1e-4), name
        places = [place for place in program.compiled.loops.places.values() if place.kind == "buffer"]
        kept = ", ".join(f"{place.name}: {'; '.join(place.folded)}" for place in places) or "one value"
        print(f"{name:28} {program.memory.kept({T: 1000}):>7,} bytes at T = 1,000   {kept}")


if __name__ == "__main__":
    main()
