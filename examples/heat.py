"""An inverse problem: where was the heat? A simulation over time is differentiated back to its beginning.

A rod conducts heat step by step. From the temperatures at the end, gradient descent finds the beginning. The adjoint
of the simulation is derived; `pr.checkpoint(..., every=k)` keeps one state in k for it.
"""

from __future__ import annotations

import numpy as np

import polyrhythm as pr

CELLS, RATE = 24, 0.2


def conducted(u: pr.Tensor) -> pr.Tensor:
    """One step of the heat equation; the ends are isolated."""
    left = pr.concat([u.axes[:1], u.axes[:-1]], 0)
    right = pr.concat([u.axes[1:], u.axes[-1:]], 0)
    return u + RATE * (left - 2 * u + right)


def build(every: int | None = None) -> tuple[pr.Program, pr.Bound]:
    """The misfit of a beginning, and its gradient."""
    t, T = pr.dim("t")
    begin, measured = pr.input("begin", (CELLS,)), pr.input("measured", (CELLS,))
    u = pr.recurrent((CELLS,), ((t, T + 1),))
    u[0] = begin
    u[t + 1] = pr.tanh(conducted(u))  # it saturates, so the adjoint needs the states
    if every is not None:
        pr.checkpoint(u, over=t, every=every)
    misfit = ((u[T] - measured) ** 2).sum()
    return pr.compile({"misfit": misfit, "gradient": pr.grad(misfit, begin)}), T


def simulated(begin: np.ndarray, steps: int) -> np.ndarray:
    u = begin.copy()
    for _ in range(steps):
        u = np.tanh(u + RATE * (np.r_[u[:1], u[:-1]] - 2 * u + np.r_[u[1:], u[-1:]]))
    return u


def main(steps: int = 8) -> None:
    true = np.zeros(CELLS)
    true[6:10] = 0.8
    measured = simulated(true, steps).astype("float32")
    whole, T = build()
    saved, T_saved = build(every=16)
    begin = np.zeros(CELLS, "float32")
    for _ in range(300):
        found = whole(begin=begin, measured=measured, bounds={T: steps})
        begin = begin - 0.3 * found["gradient"]
    again = saved(begin=begin, measured=measured, bounds={T_saved: steps})
    assert np.allclose(again["misfit"], whole(begin=begin, measured=measured, bounds={T: steps})["misfit"], atol=1e-5)
    print(
        f"misfit {float((measured**2).sum()):.3f} -> {float(found['misfit']):.6f}; warmest cell {int(begin.argmax())}"
    )
    print(f"4,096 steps: {whole.memory.kept({T: 4096}):,} bytes, one state in 16: ", end="")
    print(f"{saved.memory.kept({T_saved: 4096}):,}")
    assert 6 <= begin.argmax() < 10


if __name__ == "__main__":
    main()
