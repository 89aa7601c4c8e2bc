"""The same program is compiled to the same loops by every process, so that what XLA has compiled is found again."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import polyrhythm as pr
from polyrhythm.compiler.loops.show import show

t, T = pr.dim("t")
x = pr.input("x", (8,), (t,))
weights = [pr.input(f"w{n}", (8, 8)) for n in range(5)]
for w in weights[:4]:  # a residual stream: gradients that are sums of several parts
    x = x + pr.tanh(x @ w) * x
h = pr.recurrent((8,), ((t, T + 1),))
h[0] = 0.0
h[t + 1] = pr.tanh(x + h @ weights[4])
pr.checkpoint(h, over=t, every=4)
compiled = pr.compile(pr.grad(((x * h[t + 1]).sum() ** 2)[0:T].mean(), weights), backend="numpy").compiled
print(show(compiled.loops))
"""


def loops(seed: int) -> str:
    """The loops that a process with its own order of sets compiles."""
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, check=True)
    return done.stdout


def test_the_order_of_sets_does_not_matter() -> None:
    first, second = loops(1), loops(2)
    assert "for t" in first
    assert first == second
