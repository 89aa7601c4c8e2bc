"""What an iteration leaves to the next has a copy: one rollout is stored, and the results are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.front_end import completed
from polyrhythm.compiler.ir.text import show
from polyrhythm.compiler.passes import optimised
from polyrhythm.compiler.trace import trace

i, I = pr.dim("i")
t, T = pr.dim("t")


def rollouts(width: int = 16) -> dict[str, pr.Tensor]:
    """A state that goes on over iterations, all of whose steps are read at the end of each."""
    s = pr.recurrent((width,), (i, (t, T + 1)), name="s")
    w = pr.recurrent((width,), ((i, I + 1),), name="w")
    x = pr.input("x", (width,))
    s[0, 0] = x
    s[i + 1, 0] = s[i, T]
    s[i, t + 1] = pr.tanh(s * 0.9 + w)
    w[0] = 0.1 * x
    w[i + 1] = w + 0.01 * (s[i, 0:T] * s[i, T]).sum(0)
    return {"w": w[I], "last": s[I - 1, T]}


def carried(program: pr.Program) -> int:
    return sum(note.by == "carry" for note in program.compiled.notes)


X: Any = np.random.default_rng(0).normal(size=16).astype("float32")


def test_one_rollout_is_stored() -> None:
    program = pr.compile(rollouts())
    with pr.settings(without=["carry"]):
        plain = pr.compile(rollouts())
    assert carried(program) == 1
    slots = [[str(slot) for slot in one.compiled.storage["s"].slots] for one in (program, plain)]
    assert slots == [["1 of i", "all T + 1 of t"], ["2 of i", "all T + 1 of t"]]
    saved = plain.memory.peak({T: 1_000, I: 10}) - program.memory.peak({T: 1_000, I: 10})
    assert saved > 0.9 * 16 * 4 * 1_000


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_the_results_are_the_same(backend: str) -> None:
    program = pr.compile(rollouts(), backend=backend)
    for steps, iterations in ((0, 1), (0, 3), (1, 2), (2, 1), (5, 4)):
        want = pr.evaluate(rollouts(), {"x": X}, {"T": steps, "I": iterations})
        found = program(x=X, bounds={T: steps, I: iterations})
        for name, value in want.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=f"{name} {steps} {iterations}")


def test_nothing_is_copied_where_other_iterations_read_ranges() -> None:
    s = pr.recurrent((), (i, t))
    s[0] = 1.0
    s[i + 1] = pr.tanh(s[i, 0:T].max(0) + s[i, T - 1])
    assert carried(pr.compile(s[I - 1, 0], backend="numpy")) == 0


def test_nothing_is_copied_of_an_output() -> None:
    s = pr.recurrent((), (i, (t, T + 1)))
    s[0, 0] = 1.0
    s[i + 1, 0] = s[i, T]
    s[i, t + 1] = s * 0.5
    assert carried(pr.compile(s, backend="numpy")) == 0


def test_before_and_after(golden: Callable[[str, str], None]) -> None:
    graph = completed(trace(list(rollouts(2).values())))
    stages: dict[str, str] = {}
    optimised(graph, inspect=lambda name, part: stages.update({name: show(part)}))
    golden("before", stages["dead"])
    golden("after", stages["carry"])
