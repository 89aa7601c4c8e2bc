"""Linear attention two ways: over all keys so far, and as a recurrence of one matrix. The two agree.

Written with the slice `[0:t + 1]` the program keeps every key; written as a state it keeps one matrix. The state is a
few lines, and the printed plan says what it saves.
"""

from __future__ import annotations

import numpy as np

import polyrhythm as pr

WIDTH = 6


def features(x: pr.Tensor) -> pr.Tensor:
    """A positive feature map."""
    return pr.elu(x) + 1


def build() -> tuple[pr.Program, pr.Program, pr.Bound]:
    """The quadratic and the recurrent form."""
    t, T = pr.dim("t")
    x = pr.input("x", (WIDTH,), (t,))
    w_q, w_k, w_v = (pr.input(f"w_{name}", (WIDTH, WIDTH)) for name in "qkv")
    q, k, v = features(x @ w_q), features(x @ w_k), x @ w_v

    weights = k[0 : t + 1] @ q  # one for every step so far
    quadratic = (weights @ v[0 : t + 1]) / weights.sum(0)

    state, total = pr.recurrent((WIDTH, WIDTH), (t,)), pr.recurrent((WIDTH,), (t,))
    state[0], total[0] = pr.outer(k, v)[0], k[0]
    state[t + 1] = state + pr.outer(k, v)[t + 1]
    total[t + 1] = total + k[t + 1]
    recurrent = (q @ state) / (q @ total)

    return pr.compile(quadratic), pr.compile(recurrent), T


def main() -> None:
    rng = np.random.default_rng(0)
    given = {f"w_{name}": rng.normal(size=(WIDTH, WIDTH)).astype("float32") / 2 for name in "qkv"}
    quadratic, recurrent, T = build()
    for length in (1, 2, 50):
        x = rng.normal(size=(length, WIDTH)).astype("float32")
        assert np.allclose(quadratic(x=x, **given), recurrent(x=x, **given), rtol=1e-3, atol=1e-4)
    for name, program in {"over all keys": quadratic, "as a state": recurrent}.items():
        print(f"{name:14} stores {program.memory.kept({T: 10_000}):>9,} bytes at 10,000 steps")
    assert recurrent.memory.kept({T: 10}) == recurrent.memory.kept({T: 10_000})
    print(recurrent.schedule)


if __name__ == "__main__":
    main()
