"""Generation that ends early, for one sequence and per index of a batch."""

from __future__ import annotations

import numpy as np

import polyrhythm as pr
from tests.programs.case import Arrays, Bounds, Built, Case, steps

END, VOCABULARY = 0, 5


def build_generation() -> Built:
    """Greedy decoding after a prompt; attention to everything before is a weighted count of earlier tokens."""
    t, T = pr.dim("t")
    p, P = pr.dim("p")
    prompt = pr.input("prompt", (), (p,), "int32")
    table = pr.input("table", (VOCABULARY, VOCABULARY))
    token = pr.recurrent((), (t,), "int32")
    seen = pr.one_hot(token, VOCABULARY)
    scores = (seen[0 : t + 1] @ table).mean(0)
    token[t < P] = prompt[t]
    token[t >= P] = scores[t - 1].argmax().cast("int32")
    return Built({"tokens": token, "last": token[T - 1]}, until={t: (token == END) & (t >= P)})


def generation(inputs: Arrays, bounds: Bounds) -> Arrays:
    tokens: list[int] = []
    table = inputs["table"].astype("float64")
    for t in range(bounds["T"]):
        if t < bounds["P"]:
            tokens.append(int(inputs["prompt"][t]))
            continue
        scores = sum(table[token] for token in tokens) / len(tokens)
        tokens.append(int(np.argmax(scores)))
        if tokens[-1] == END:
            break
    return {"tokens": np.array(tokens, "int32"), "last": np.int32(tokens[-1])}


def generation_inputs(rng: np.random.Generator, bounds: Bounds) -> Arrays:
    return {
        "prompt": rng.integers(1, VOCABULARY, bounds["P"], "int32"),
        "table": rng.normal(size=(VOCABULARY, VOCABULARY)).astype("float32"),
    }


def build_batch_generation() -> Built:
    """A linear congruence per sequence until it meets the end; sums and last elements are those of each sequence."""
    b, _ = pr.dim("b")
    t, T = pr.dim("t")
    start = pr.input("start", (), (b,), "int32")
    token = pr.recurrent((), (b, t), "int32")
    token[b, 0] = start
    token[b, t + 1] = (5 * token + 3) % 16
    return Built(
        {"tokens": token, "sum": token[b, 0:T].sum(), "last": token[b, T - 1]},
        until={t: token == END},
    )


def batch_generation(inputs: Arrays, bounds: Bounds) -> Arrays:
    rows = []
    for start in inputs["start"]:
        row = [int(start)]
        while row[-1] != END and len(row) < bounds["T"]:
            row.append((5 * row[-1] + 3) % 16)
        rows.append(row)
    return {
        "tokens": pr.Ragged.of([np.array(row, "int32") for row in rows]),
        "sum": np.array([sum(row) for row in rows], "int32"),
        "last": np.array([row[-1] for row in rows], "int32"),
    }


CASES = [
    Case(
        "generation",
        build_generation,
        generation_inputs,
        tuple({"P": p, "T": t} for p, t in [(1, 1), (1, 2), (3, 3), (2, 9), (1, 30), (5, 17)]),
        generation,
        ("T",),
    ),
    Case(
        "batch_generation",
        build_batch_generation,
        lambda rng, bounds: {"start": rng.integers(0, 16, bounds["B"], "int32")},
        (*steps(1, 2, 9, 30, B=3), *steps(4, B=0), *steps(16, B=1)),
        batch_generation,
        ("T",),
    ),
]
