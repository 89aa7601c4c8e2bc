"""A selective state-space layer (Mamba): a diagonal recurrence whose rates depend on the data, read on the fly.

Training needs the states of all steps, unless a checkpoint says otherwise: `pr.checkpoint(h, over=t, every=32)` keeps
one in 32 and recomputes the others. The gradients are the same, and the storage plan says what it saves.
"""

from __future__ import annotations

import numpy as np

import polyrhythm as pr

WIDTH, STATE = 8, 4


def layer(t: pr.Dim, x: pr.Tensor, w: dict[str, pr.Tensor]) -> tuple[pr.Tensor, pr.Tensor]:
    """The output and the state of a selective scan over x."""
    delta = pr.softplus(x @ w["delta"])  # (WIDTH,): how far this step moves
    decay = pr.exp(-delta.unsqueeze(1) * pr.exp(w["a"]))  # (WIDTH, STATE)
    entering = (delta * x).unsqueeze(1) * (x @ w["b"])  # what the step writes
    h = pr.recurrent((WIDTH, STATE), (t,))
    h[0] = entering[0]
    h[t + 1] = decay[t + 1] * h + entering[t + 1]
    return h @ (x @ w["c"]), h


def build(every: int | None) -> tuple[pr.Program, pr.Bound]:
    """The gradient of a loss at the last step, with every state kept or one in some."""
    t, T = pr.dim("t")
    x = pr.input("x", (WIDTH,), (t,))
    shapes = {"delta": (WIDTH, WIDTH), "a": (WIDTH, STATE), "b": (WIDTH, STATE), "c": (WIDTH, STATE)}
    w = {name: pr.input(name, shape) for name, shape in shapes.items()}
    y, h = layer(t, x, w)
    if every is not None:
        pr.checkpoint(h, over=t, every=every)
    loss = (y[0:T] ** 2).mean()
    return pr.compile({"loss": loss, "gradient": pr.grad(loss, w)}), T


def reference(x: np.ndarray, w: dict[str, np.ndarray]) -> float:
    h, ys = np.zeros((WIDTH, STATE)), []
    for step in x:
        delta = np.log1p(np.exp(step @ w["delta"]))
        h = np.exp(-delta[:, None] * np.exp(w["a"])) * h + (delta * step)[:, None] * (step @ w["b"])
        ys.append(h @ (step @ w["c"]))
    return float((np.array(ys) ** 2).mean())


def main() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, WIDTH)).astype("float32")
    shapes = {"delta": (WIDTH, WIDTH), "a": (WIDTH, STATE), "b": (WIDTH, STATE), "c": (WIDTH, STATE)}
    w = {name: (rng.normal(size=shape) / 3).astype("float32") for name, shape in shapes.items()}
    t, T = pr.dim("t")
    signal = pr.input("x", (WIDTH,), (t,))
    given = {name: pr.input(name, shape) for name, shape in shapes.items()}
    forward = pr.compile((layer(t, signal, given)[0][0:T] ** 2).mean())
    assert np.isclose(float(forward(x=x, **w)), reference(x, w), rtol=1e-4)
    print(f"the loss over 256 steps is {float(forward(x=x, **w)):.4f}")
    results = []
    for every in (None, 32):
        program, T = build(every)
        results.append(program(x=x, **w))
        print(
            f"gradient, {f'one state in {every}' if every else 'all states'}: {program.memory.kept({T: 4096}):,} bytes"
        )
    for name in shapes:
        assert np.allclose(results[0]["gradient"][name], results[1]["gradient"][name], rtol=1e-3, atol=1e-5)


if __name__ == "__main__":
    main()
