"""Decoding without a KV cache: attention over everything generated so far, and the cache follows from the slice.

`keys[0:t + 1]` is what a token attends to. The compiler sees that step t reads all keys up to t, so it keeps them; with
`pr.window(keys, t, 8)` it keeps eight. The model is a random one-layer decoder that feeds its own tokens back.
"""

from __future__ import annotations

import numpy as np

import polyrhythm as pr

VOCABULARY, WIDTH = 16, 8


def build(window: int | None = None) -> tuple[pr.Program, pr.Bound]:
    """Greedy decoding from a first token; attention sees everything so far, or a window."""
    t, T = pr.dim("t")
    first = pr.input("first", (), (), "int32")
    embed, out = pr.input("embed", (VOCABULARY, WIDTH)), pr.input("out", (WIDTH, VOCABULARY))
    w_q, w_k, w_v = (pr.input(f"w_{name}", (WIDTH, WIDTH)) for name in "qkv")
    token = pr.recurrent((), (t,), "int32")
    x = pr.take(embed, token, 0)
    keys, values = x @ w_k, x @ w_v
    past = (keys[0 : t + 1], values[0 : t + 1]) if window is None else [pr.window(y, t, window) for y in (keys, values)]
    weights = pr.softmax(past[0] @ (x @ w_q), 0)
    h = x + weights @ past[1]
    token[0] = first
    token[t + 1] = pr.argmax(h @ out, 0)
    return pr.compile({"tokens": token}), T


def reference(w: dict[str, np.ndarray], steps: int, window: int | None) -> list[int]:
    """The same with a list of past keys and values, by hand."""
    tokens, keys, values = [int(w["first"])], [], []
    for _ in range(steps - 1):
        x = w["embed"][tokens[-1]]
        keys.append(x @ w["w_k"])
        values.append(x @ w["w_v"])
        seen = slice(None) if window is None else slice(-window, None)
        scores = np.array(keys[seen]) @ (x @ w["w_q"])
        weights = np.exp(scores - scores.max())
        tokens.append(int(np.argmax((x + weights / weights.sum() @ np.array(values[seen])) @ w["out"])))
    return tokens


def main() -> None:
    rng = np.random.default_rng(0)
    shapes = {"embed": (VOCABULARY, WIDTH), "out": (WIDTH, VOCABULARY), **{f"w_{n}": (WIDTH, WIDTH) for n in "qkv"}}
    weights = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    weights["first"] = np.int32(3)
    for window in (None, 8):
        program, T = build(window)
        tokens = program(**weights, bounds={T: 40})["tokens"]
        assert tokens.tolist() == reference(weights, 40, window)
        kept = {n: program.memory.kept({T: n}) for n in (100, 10_000)}
        name = "everything" if window is None else f"the last {window}"
        print(f"attends to {name}: {kept[100]:,} bytes are stored for 100 tokens, {kept[10_000]:,} for 10,000")
    print(program.schedule)


if __name__ == "__main__":
    main()
