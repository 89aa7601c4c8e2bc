"""Attention as an index: causal, windowed, with a stride, with a prefix and a window, with a distance bias.

All have a batch and two heads. The reference goes through the keys one by one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import polyrhythm as pr
from tests.programs.case import Arrays, Bounds, Built, Case

WIDTH, HEADS, DEPTH = 6, 2, 3
WINDOW = 4
Pattern = Callable[[int, Bounds], list[int]]


def projected() -> tuple[pr.Dim, pr.Dim, pr.Tensor, pr.Tensor, pr.Tensor]:
    """The dims, queries, keys and values of a batch of sequences, by head."""
    b, _ = pr.dim("b")
    t, _ = pr.dim("t")
    x = pr.input("x", (WIDTH,), (b, t))
    q, k, v = ((x @ pr.input(name, (WIDTH, WIDTH))).reshape(HEADS, DEPTH) for name in ("wq", "wk", "wv"))
    return b, t, q, k, v


def attended(q: pr.Tensor, k: pr.Tensor, v: pr.Tensor, bias: pr.Tensor | float = 0.0) -> pr.Tensor:
    """A query attends to the keys along the leading axis."""
    scores = pr.einsum("hd,shd->hs", q, k) / np.sqrt(DEPTH) + bias
    return pr.einsum("hs,shd->hd", scores.softmax(-1), v).reshape(WIDTH)


def build_causal() -> Built:
    b, t, q, k, v = projected()
    return Built({"y": attended(q, k[b, 0 : t + 1], v[b, 0 : t + 1])})


def build_windowed() -> Built:
    _, t, q, k, v = projected()
    return Built({"y": attended(q, pr.window(k, t, WINDOW), pr.window(v, t, WINDOW))})


def build_strided() -> Built:
    b, t, q, k, v = projected()
    return Built({"y": attended(q, k[b, t % 2 : t + 1 : 2], v[b, t % 2 : t + 1 : 2])})


def build_backwards() -> Built:
    """Every second step, the newest first."""
    b, t, q, k, v = projected()
    return Built({"y": attended(q, k[b, t:-1:-2], v[b, t:-1:-2])})


def build_prefix() -> Built:
    b, t, q, k, v = projected()
    P = pr.size("P")
    late = slice(pr.max(P, t - WINDOW + 1), t + 1)
    keys, values = (pr.concat([z[b, 0 : pr.min(P, t + 1)], z[b, late]]) for z in (k, v))
    return Built({"y": attended(q, keys, values), "count": pr.value(keys.shape[0])})


def build_distance() -> Built:
    """A bias that falls with the distance (ALiBi), one slope per head."""
    b, t, q, k, v = projected()
    slopes = pr.constant([[0.5], [0.25]])
    distance = pr.value(t) - pr.arange(t + 1)
    return Built({"y": attended(q, k[b, 0 : t + 1], v[b, 0 : t + 1], -slopes * distance)})


def build_full() -> Built:
    b, _, q, k, v = projected()
    return Built({"y": attended(q, k[b, :], v[b, :])})


def reference(pattern: Pattern, inputs: Arrays, bounds: Bounds, slopes: tuple[float, ...] = (0.0, 0.0)) -> np.ndarray:
    """Attention of every step to the steps a pattern lists."""
    x = inputs["x"].astype("float64")
    y = np.zeros_like(x)
    for b in range(bounds["B"]):
        for t in range(bounds["T"]):
            for h in range(HEADS):
                part = slice(h * DEPTH, (h + 1) * DEPTH)
                q = (x[b, t] @ inputs["wq"])[part]
                seen = pattern(t, bounds)
                scores = [q @ (x[b, s] @ inputs["wk"])[part] / np.sqrt(DEPTH) - slopes[h] * (t - s) for s in seen]
                weights = np.exp(np.array(scores) - max(scores))
                weights /= weights.sum()
                for weight, s in zip(weights, seen, strict=True):
                    y[b, t, part] += weight * (x[b, s] @ inputs["wv"])[part]
    return y


def causal(t: int, bounds: Bounds) -> list[int]:
    return list(range(t + 1))


def windowed(t: int, bounds: Bounds) -> list[int]:
    return [s for s in range(t + 1) if s > t - WINDOW]


def strided(t: int, bounds: Bounds) -> list[int]:
    return [s for s in range(t + 1) if (t - s) % 2 == 0]


def prefix(t: int, bounds: Bounds) -> list[int]:
    return [s for s in range(t + 1) if s < bounds["P"] or s > t - WINDOW]


def everywhere(t: int, bounds: Bounds) -> list[int]:
    return list(range(bounds["T"]))


def with_count(inputs: Arrays, bounds: Bounds) -> Arrays:
    count = np.array([len(prefix(t, bounds)) for t in range(bounds["T"])], "int32")
    return {"y": reference(prefix, inputs, bounds), "count": count}


def make_inputs(rng: np.random.Generator, bounds: Bounds) -> Arrays:
    x = rng.normal(size=(bounds["B"], bounds["T"], WIDTH)).astype("float32")
    return {"x": x} | {w: rng.normal(size=(WIDTH, WIDTH)).astype("float32") / 2 for w in ("wq", "wk", "wv")}


def plain(name: str, build: Callable[[], Built], pattern: Pattern, slopes: tuple[float, ...] = (0.0, 0.0)) -> Case:
    """A case whose only output is the attended value."""
    bounds = tuple({"B": b, "T": t} for b, t in [(0, 2), (2, 0), (1, 1), (1, 3), (1, 4), (2, 5), (1, 9)])
    return Case(name, build, make_inputs, bounds, lambda i, b: {"y": reference(pattern, i, b, slopes)})


CASES = [
    plain("causal_attention", build_causal, causal),
    plain("windowed_attention", build_windowed, windowed),
    plain("strided_attention", build_strided, strided),
    plain("strided_attention_backwards", build_backwards, strided),
    plain("full_attention", build_full, everywhere),
    plain("distance_attention", build_distance, causal, (0.5, 0.25)),
    Case(
        "prefix_attention",
        build_prefix,
        make_inputs,
        tuple(
            {"B": b, "T": t, "P": p}
            for b, t, p in [(1, 0, 0), (1, 1, 0), (1, 1, 3), (2, 7, 2), (1, 9, 0), (1, 9, 5), (1, 5, 9)]
        ),
        with_count,
        ("P",),
    ),
]
