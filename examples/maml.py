"""Learning to learn (MAML): a gradient of gradient steps, as recurrences over two dims.

For every task the weights take a few steps of gradient descent (dim `u`); the loss after them is differentiated by
where they began, through all those steps, and moves the beginning (dim `i`). Second derivatives are the compiler's
business.
"""

from __future__ import annotations

import numpy as np

import polyrhythm as pr
from polyrhythm import nn, optim

TASKS, SHOTS, HIDDEN, STEPS, RATE = 8, 8, 16, 3, 0.05


def build() -> tuple[pr.Program, pr.Bound]:
    """Meta-training on sine waves of random amplitude and phase."""
    i, I = pr.dim("i")
    u, U = pr.dim("u")
    b, B = pr.dim("b")
    x, y = (pr.input(name, (SHOTS, 1), (i, b)) for name in ("x", "y"))  # to adapt to
    x_new, y_new = (pr.input(name, (SHOTS, 1), (i, b)) for name in ("x_new", "y_new"))  # to be judged by
    model = nn.MLP((1, HIDDEN, 1), rng=np.random.default_rng(0))
    beginning = optim.over(i, model.parameters())

    def loss(weights: dict[str, pr.Tensor], x: pr.Tensor, y: pr.Tensor) -> pr.Tensor:
        return ((model.using(weights)(x) - y) ** 2).mean()

    adapted = {name: pr.recurrent(w.shape, (i, b, (u, U + 1))) for name, w in beginning.items()}
    slopes = pr.grad(loss(adapted, x, y), adapted)
    for name, w in adapted.items():
        w[i, b, 0] = beginning[name]
        w[i, b, u + 1] = w - RATE * slopes[name]
    after = loss({name: w[{u: U}] for name, w in adapted.items()}, x_new, y_new)
    before = loss({name: w[{u: 0}] for name, w in adapted.items()}, x_new, y_new)
    outer = after[{b: slice(0, B)}].mean()
    optim.adam(i, beginning, pr.grad(outer, beginning), 5e-3)
    outputs = {"after": outer[0:I], "before": before[{b: slice(0, B)}].mean()[0:I]}
    return pr.compile(outputs, bounds={U: STEPS}), I


def tasks(rng: np.random.Generator, iterations: int) -> dict[str, np.ndarray]:
    """Points of sine waves, twice for each."""
    shape = (iterations, TASKS, 1, 1)
    amplitude, phase = rng.uniform(0.5, 2, shape), rng.uniform(0, np.pi, shape)
    made = {}
    for suffix in ("", "_new"):
        x = rng.uniform(-3, 3, (iterations, TASKS, SHOTS, 1))
        made |= {f"x{suffix}": x, f"y{suffix}": amplitude * np.sin(x + phase)}
    return {name: array.astype("float32") for name, array in made.items()}


def main(iterations: int = 120) -> None:
    program, _ = build()
    result = program(**tasks(np.random.default_rng(0), iterations))
    for name, losses in result.items():
        print(f"loss {name:6} {STEPS} steps on a new task: {losses[:10].mean():.3f} -> {losses[-10:].mean():.3f}")
    assert result["after"][-10:].mean() < result["after"][:10].mean()
    assert result["after"][-10:].mean() < result["before"][-10:].mean()


if __name__ == "__main__":
    main()
