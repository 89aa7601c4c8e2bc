"""Ranges side by side are computed one by one: the same values and gradients, and memory in proportion to the steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr

t, T = pr.dim("t")
q, k, v = (pr.input(name, (3,), (t,)) for name in "qkv")
m = pr.input("m", (2, 3))


def attended(keys: pr.Tensor, values: pr.Tensor) -> pr.Tensor:
    weights = pr.softmax(keys @ q, 0)
    return (weights.unsqueeze(1) * values).sum(0) + (weights * weights).max(0)


def joined(*parts: pr.Tensor) -> pr.Tensor:
    return pr.concat(list(parts), 0)


def window(x: pr.Tensor) -> pr.Tensor:
    return x[pr.max(2, t - 3) : t + 1]


WRITTEN: dict[str, pr.Tensor] = {
    "the first steps and a window": attended(
        joined(k[0 : pr.min(2, t + 1)], window(k)), joined(v[0 : pr.min(2, t + 1)], window(v))
    ),
    "a memory and the past": attended(joined(m, k[0 : t + 1]), joined(m, v[0 : t + 1])),
    "three parts": attended(joined(k[0:t], m, k[t:T]), joined(v[0:t], m * 2.0, v[t:T])),
    "cut in other places": (joined(k[0 : t + 1], m) * joined(m, k[0 : t + 1])).sum(0).sum(0),
}


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("backend", ["numpy", pytest.param("jax", marks=pytest.mark.slow)])
def test_equal_to_the_oracle(name: str, backend: str) -> None:
    loss = pr.square(WRITTEN[name])[0:T].sum()
    used = [x for x in (q, k, v, m) if x is not q or name != "cut in other places"]
    used = [x for x in used if x is not v or name != "cut in other places"]
    outputs = pr.value_and_grad(loss, used)
    program = pr.compile(outputs, backend=backend)
    rules = {note.rule for note in program.compiled.notes}
    assert ("part-by-part" in rules) == (name != "cut in other places")
    for steps in (1, 2, 7):
        random = np.random.default_rng(steps)
        given: Any = {x: random.normal(size=(steps, 3)).astype("float32") for x in "qkv"}
        given["m"] = random.normal(size=(2, 3)).astype("float32")
        given = {name: given[name] for name in program.compiled.graph.inputs}
        (want, wants), (have, haves) = pr.evaluate(outputs, given), program(**given)
        for one, other in zip((have, *haves), (want, *wants), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)


def test_what_is_differentiated_by_stays() -> None:
    both = joined(k[0 : t + 1], m)
    slope = pr.grad(pr.square((both * both).sum(0))[0:T].sum(), both)
    given: Any = {"k": np.arange(12, dtype="float32").reshape(4, 3), "m": np.ones((2, 3), "float32")}
    want, have = pr.evaluate(slope, given), pr.compile(slope, backend="numpy")(**given)
    np.testing.assert_allclose(have.values, want.values, rtol=1e-5)
    assert np.abs(want.values).max() > 0


def test_memory_is_linear() -> None:
    loss = pr.square(WRITTEN["the first steps and a window"])[0:T].sum()
    memory = pr.compile(pr.grad(loss, [q, k, v]), backend="numpy").memory
    assert memory.kept({T: 4000}) <= 2.1 * memory.kept({T: 2000}) <= 2_000_000
