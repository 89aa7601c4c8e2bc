"""The CTC loss, written as its recurrence over time and positions; the gradient comes with it.

`alpha[t, s]` is the log-probability of all alignments of the first t frames that end at position s of the label with
blanks between its symbols. Its definitions by cases are the whole algorithm: no kernel, no backward pass.
"""

from __future__ import annotations

import itertools

import numpy as np

import polyrhythm as pr

BLANK, SYMBOLS = 0, 4


def build() -> pr.Program:
    """The loss of one sequence and its gradient by the frames' logits."""
    t, T = pr.dim("t")
    s, S = pr.dim("s")
    logits = pr.input("logits", (SYMBOLS,), (t,))
    label = pr.input("label", (), (s,), "int32")  # blank, first symbol, blank, second symbol, ..., blank
    log_p = pr.log_softmax(logits, 0)
    here = (log_p * pr.one_hot(label, SYMBOLS)).sum(0)  # over t and s
    alpha = pr.recurrent((), (t, s))
    stay = alpha
    step = pr.where(s >= 1, alpha[{s: pr.max(0, s - 1)}], -1e30)
    may_skip = (label != BLANK) & (label != label[pr.max(0, s - 2)])
    skip = pr.where(s >= 2, pr.where(may_skip, alpha[{s: pr.max(0, s - 2)}], -1e30), -1e30)
    alpha[0, s] = pr.where(s <= 1, here[{t: 0}], -1e30)
    alpha[t + 1, s] = pr.logsumexp(pr.stack([stay, step, skip]), 0) + here[{t: t + 1}]
    last = pr.stack([alpha[T - 1, S - 1], alpha[T - 1, S - 2]])
    loss = -pr.logsumexp(last, 0)
    return pr.compile({"loss": loss, "gradient": pr.grad(loss, logits)})


def brute_force(logits: np.ndarray, symbols: list[int]) -> float:
    """Minus the logarithm of the sum over all ways to write the symbols with repetitions and blanks."""
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    total = 0.0
    for path in itertools.product(range(SYMBOLS), repeat=len(logits)):
        if [a for a, _ in itertools.groupby(path) if a != BLANK] == symbols:
            total += float(np.prod([p[t, a] for t, a in enumerate(path)]))
    return -np.log(total)


def main() -> None:
    rng = np.random.default_rng(0)
    program = build()
    for symbols in ([1, 2], [3, 3], [2]):
        logits = rng.normal(size=(6, SYMBOLS)).astype("float32")
        label = [BLANK]
        for symbol in symbols:
            label += [symbol, BLANK]
        found = program(logits=logits, label=np.array(label, "int32"))
        assert abs(float(found["loss"]) - brute_force(logits, symbols)) < 1e-4
        wiggled = logits.copy()
        wiggled[2, 1] += 1e-2
        slope = (brute_force(wiggled, symbols) - brute_force(logits, symbols)) / 1e-2
        assert abs(slope - found["gradient"][2, 1]) < 1e-2
        print(f"label {symbols}: loss {float(found['loss']):.4f}, as over all {SYMBOLS**6:,} alignments")


if __name__ == "__main__":
    main()
