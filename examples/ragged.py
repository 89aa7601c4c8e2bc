"""A classifier of sequences of different lengths, trained on batches of them: nobody pads, nobody masks.

Each row of a batch has as many steps as it has. The network reads a row to its end, the loss is the mean over rows, and
the weights that all rows share get their gradient from all of them. Training stops when the loss is low enough.

    python examples/ragged.py
"""

from __future__ import annotations

import numpy as np

import polyrhythm as pr
from polyrhythm import optim

WIDTH, ROWS = 8, 16


def batch(random: np.random.Generator) -> tuple[pr.Ragged, np.ndarray]:
    """Rows of -1 and 1 of random lengths, and whether there are more of the latter."""
    rows = [random.choice([-1.0, 1.0], n).astype("float32") for n in random.integers(1, 12, ROWS)]
    return pr.Ragged.of(rows), np.array([row.sum() > 0 for row in rows], "float32")


def program() -> tuple[pr.Program, pr.Bound]:
    """The training run as one program: its weights, and the loss of every iteration."""
    i, I = pr.dim("i")
    b, B = pr.dim("b")
    lengths = pr.input("lengths", (), (b,), "int32")
    s, S = pr.dim("s", extent=lengths, min=1)
    x, wanted = pr.input("x", (), (b, s)), pr.input("wanted", (), (b,))
    random = np.random.default_rng(0)
    first = {name: (random.normal(size=shape) * 0.5).astype("float32") for name, shape in SHAPES.items()}
    params = optim.over(i, first)
    state = pr.recurrent((WIDTH,), (i, b, s))
    state[i, b, 0] = pr.tanh(x[b, 0] * params["into"])
    state[i, b, s + 1] = pr.tanh(state @ params["on"] + x[b, s + 1] * params["into"])
    score = (state[i, b, S - 1] * params["out"]).sum(0)
    each = pr.maximum(score, 0.0) - score * wanted + pr.log1p(pr.exp(-pr.abs(score)))
    loss = each[{b: slice(0, B)}].mean(0)
    optim.adam(i, params, pr.grad(loss, params), rate=0.05)
    outputs = {"loss": loss[{i: slice(0, I)}], "weights": params["on"][I]}
    return pr.compile(outputs, until={i: loss < 0.05}), I


SHAPES = {"into": (WIDTH,), "on": (WIDTH, WIDTH), "out": (WIDTH,)}


def main() -> None:
    """Train, and show how long it took."""
    train, iterations = program()
    rows, wanted = batch(np.random.default_rng(1))
    out = train(x=rows, lengths=rows.lengths.astype("int32"), wanted=wanted, bounds={iterations: 400})
    print(f"rows of {rows.lengths.min()} to {rows.lengths.max()} steps")
    print(f"{len(out['loss'])} iterations, loss {out['loss'][0]:.2f} to {out['loss'][-1]:.3f}")
    assert out["loss"][-1] < 0.05


if __name__ == "__main__":
    main()
