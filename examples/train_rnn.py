"""Backpropagation through time that nobody wrote: an RNN learns to add, forward, backward and Adam in one program.

The network sees two rows of random numbers, one of which marks two steps; it has to return the sum of the two marked
numbers. The gradient runs backwards over the same steps; which states it needs is found, not chosen.
"""

from __future__ import annotations

import numpy as np

import polyrhythm as pr
from polyrhythm import nn, optim

HIDDEN, BATCH = 16, 16


class Network(nn.Module):
    """A cell and a readout."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.inside = nn.Linear(2 + HIDDEN, HIDDEN, rng=rng)
        self.out = nn.Linear(HIDDEN, 1, rng=rng)


def build(backend: str = "jax") -> tuple[pr.Program, pr.Bound]:
    """A training run: the loss of every iteration and the trained weights."""
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    x, goal = pr.input("x", (BATCH, 2), (i, t)), pr.input("goal", (BATCH,), (i,))
    model = Network(np.random.default_rng(0))
    weights = optim.over(i, model.parameters())
    now = model.using(weights)
    h = pr.recurrent((BATCH, HIDDEN), (i, (t, T + 1)))
    h[i, 0] = 0.0
    h[i, t + 1] = pr.tanh(now.inside(pr.concat([x, h], 1)))
    loss = ((now.out(h[i, T]).axes[:, 0] - goal) ** 2).mean()
    gradients = optim.clip_by_global_norm(i, pr.grad(loss, weights), 1.0)
    optim.adam(i, weights, gradients, 5e-3)
    outputs = {"loss": loss[0:I], "weights": {name: w[I] for name, w in weights.items()}}
    return pr.compile(outputs, backend=backend), I


def task(rng: np.random.Generator, iterations: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers with marks at two steps, and the sum of the marked ones."""
    numbers = rng.random((iterations, steps, BATCH))
    marks = np.zeros((iterations, steps, BATCH))
    half = steps // 2
    for first, count in ((0, half), (half, steps - half)):
        at = rng.integers(0, count, (iterations, BATCH)) + first
        np.put_along_axis(marks, at[:, None], 1.0, 1)
    x = np.stack([numbers, marks], -1).astype("float32")
    return x, (numbers * marks).sum(1).astype("float32")


def main(iterations: int = 300, steps: int = 10) -> None:
    x, goal = task(np.random.default_rng(1), iterations, steps)
    program, _ = build()
    loss = program(x=x, goal=goal)["loss"]
    print(f"loss {loss[:10].mean():.3f} -> {loss[-10:].mean():.3f} in {iterations} iterations of {steps} steps")
    assert loss[-10:].mean() < 0.7 * loss[:10].mean()
    print(program.explain().split("storage:")[0])


if __name__ == "__main__":
    main()
