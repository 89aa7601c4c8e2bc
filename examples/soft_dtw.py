"""Soft dynamic time warping: a table over two time dims, with the gradient that aligns one signal with another.

`cost[i, j]` reads its three neighbours. The compiler keeps two rows of the table for the value, and all of it where the
gradient needs it. Following that gradient moves a signal until it has the shape of the other.
"""

from __future__ import annotations

import numpy as np

import polyrhythm as pr

SOFT = 0.1


def build() -> tuple[pr.Program, pr.Program, tuple[pr.Bound, pr.Bound]]:
    """The distance alone, and with its gradient."""
    i, I = pr.dim("i")
    j, J = pr.dim("j")
    x, y = pr.input("x", (), (i,)), pr.input("y", (), (j,))
    near = (x - y) ** 2
    cost = pr.recurrent((), (i, j))
    up = pr.where(i > 0, cost[pr.max(0, i - 1), j], 1e9)
    left = pr.where(j > 0, cost[i, pr.max(0, j - 1)], 1e9)
    both = pr.where((i > 0) & (j > 0), cost[pr.max(0, i - 1), pr.max(0, j - 1)], 1e9)
    least = -SOFT * pr.logsumexp(-pr.stack([up, left, both]) / SOFT, 0)
    cost[i, j] = near + pr.where((i > 0) | (j > 0), least, 0.0)
    distance = cost[I - 1, J - 1]
    both = {"distance": distance, "gradient": pr.grad(distance, x)}
    return pr.compile(distance, backend="numpy"), pr.compile(both), (I, J)


def reference(x: np.ndarray, y: np.ndarray) -> float:
    cost = np.zeros((len(x), len(y)))
    for i in range(len(x)):
        for j in range(len(y)):
            before = [cost[a, b] for a, b in ((i - 1, j), (i, j - 1), (i - 1, j - 1)) if a >= 0 and b >= 0]
            soft = -SOFT * np.log(np.exp(-np.array(before) / SOFT).sum()) if before else 0.0
            cost[i, j] = (x[i] - y[j]) ** 2 + soft
    return float(cost[-1, -1])


def main(steps: int = 60) -> None:
    value, learning, (I, J) = build()
    y = np.sin(np.linspace(0, 6, 16)).astype("float32")
    x = np.sin(np.linspace(-1, 5, 12)).astype("float32")
    assert abs(float(value(x=x, y=y)) - reference(x.astype("float64"), y.astype("float64"))) < 1e-3
    for _ in range(steps):
        found = learning(x=x, y=y)
        x = x - 0.02 * found["gradient"]
    print(f"distance {reference(np.sin(np.linspace(-1, 5, 12)), y):.3f} -> {float(found['distance']):.3f}")
    sizes = {I: 1000, J: 1000}
    print(f"1,000 x 1,000 steps: the value stores {value.memory.kept(sizes):,} bytes, the gradient ", end="")
    print(f"{learning.memory.kept(sizes):,}")
    assert float(found["distance"]) < reference(np.sin(np.linspace(-1, 5, 12)), y)


if __name__ == "__main__":
    main()
