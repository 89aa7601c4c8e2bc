"""Elements of rows that other steps read are recomputed: gradients of attention without T x T of anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.backends.python.batched import batched
from polyrhythm.compiler.loops.ir import For, If, Item
from tests.compiler.gradients.differences import check

WIDTH = 3


def _made() -> tuple[pr.Dim, pr.Bound, pr.Tensor, list[pr.Tensor]]:
    t, T = pr.dim("t")
    x = pr.input("x", (WIDTH,), (t,), "float64")
    weights = [pr.input(name, (WIDTH, WIDTH), dtype="float64") for name in ("wq", "wk", "wv")]
    return t, T, x, weights


def causal(x: pr.Tensor, q: pr.Tensor, k: pr.Tensor, v: pr.Tensor, t: pr.Dim, T: pr.Bound) -> pr.Tensor:
    return pr.softmax(k[0 : t + 1] @ q * 0.5, 0) @ v[0 : t + 1]


def by_sums(x: pr.Tensor, q: pr.Tensor, k: pr.Tensor, v: pr.Tensor, t: pr.Dim, T: pr.Bound) -> pr.Tensor:
    score = (k[0 : t + 1] * q.unsqueeze(0)).sum(1)
    share = pr.exp(score - score.max(0)) / pr.exp(score - score.max(0)).sum(0)
    return (share.unsqueeze(1) * v[0 : t + 1]).sum(0)


def whole(x: pr.Tensor, q: pr.Tensor, k: pr.Tensor, v: pr.Tensor, t: pr.Dim, T: pr.Bound) -> pr.Tensor:
    return pr.softmax(k[0:T] @ q, 0) @ v[0:T]


def future(x: pr.Tensor, q: pr.Tensor, k: pr.Tensor, v: pr.Tensor, t: pr.Dim, T: pr.Bound) -> pr.Tensor:
    return pr.softmax(k[t:T] @ q, 0) @ v[t:T]


def gates(x: pr.Tensor, q: pr.Tensor, k: pr.Tensor, v: pr.Tensor, t: pr.Dim, T: pr.Bound) -> pr.Tensor:
    """No statistics of rows at all."""
    return pr.sigmoid(k[0 : t + 1] @ q) @ v[0 : t + 1]


def distances(x: pr.Tensor, q: pr.Tensor, k: pr.Tensor, v: pr.Tensor, t: pr.Dim, T: pr.Bound) -> pr.Tensor:
    """Squared distances of features and of steps, and a mask."""
    back = pr.value(t) - pr.arange(t + 1)
    apart = pr.square(k[0 : t + 1] - q.unsqueeze(0)).sum(1)
    share = pr.softmax(pr.where(back % 3 == 1, -np.inf, -apart - 0.1 * back), 0)
    return share @ pr.tanh(v[0 : t + 1])


def heads(x: pr.Tensor, q: pr.Tensor, k: pr.Tensor, v: pr.Tensor, t: pr.Dim, T: pr.Bound) -> pr.Tensor:
    """One head for each feature."""
    share = pr.softmax(k[0 : t + 1] * q, 0)
    return pr.einsum("sh,sh->h", share, v[0 : t + 1])


def dilated(x: pr.Tensor, q: pr.Tensor, k: pr.Tensor, v: pr.Tensor, t: pr.Dim, T: pr.Bound) -> pr.Tensor:
    """Every third step of the past, up to this one."""
    return pr.softmax(k[t % 3 : t + 1 : 3] @ q, 0) @ v[t % 3 : t + 1 : 3]


def dilated_future(x: pr.Tensor, q: pr.Tensor, k: pr.Tensor, v: pr.Tensor, t: pr.Dim, T: pr.Bound) -> pr.Tensor:
    return pr.softmax(k[t:T:2] @ q, 0) @ v[t:T:2]


def even(x: pr.Tensor, q: pr.Tensor, k: pr.Tensor, v: pr.Tensor, t: pr.Dim, T: pr.Bound) -> pr.Tensor:
    """Every second step of the past, the same ones for all."""
    return pr.softmax(k[0 : t + 1 : 2] @ q, 0) @ v[0 : t + 1 : 2]


SPELLINGS = [causal, by_sums, whole, future, gates, distances, heads]
STRIDED = [dilated, dilated_future, even]
"""Read by one step after the other on NumPy and torch: `python/batched.py` has no rule for strides."""


def _given(steps: int, scale: float = 1.0) -> dict[str, Any]:
    random = np.random.default_rng(steps)
    given = {name: random.normal(size=(WIDTH, WIDTH)) * scale for name in ("wq", "wk", "wv")}
    return {"x": random.normal(size=(steps, WIDTH)), **given}


def _gradients(spelling: Callable[..., pr.Tensor]) -> tuple[dict[str, pr.Tensor], pr.Bound]:
    t, T, x, weights = _made()
    y = spelling(x, *(x @ w for w in weights), t, T)
    loss = pr.square(y)[0:T].sum((0, 1))
    return {f"{n}": gradient for n, gradient in enumerate(pr.grad(loss, [x, *weights]))}, T


@pytest.mark.parametrize("spelling", [*SPELLINGS, *STRIDED])
def test_gradients_by_recomputed_elements(spelling: Callable[..., pr.Tensor]) -> None:
    outputs, T = _gradients(spelling)
    program = pr.compile(outputs)
    rules = {note.rule for note in program.compiled.notes if note.by == "pairs"}
    assert rules == {"recompute-pairs"}
    assert program.memory.peak({T: 20_000}) <= 2.2 * program.memory.peak({T: 10_000})
    for steps in (0, 1, 7):
        want = pr.evaluate(outputs, _given(steps), {T: steps})
        got = program(**_given(steps), bounds={T: steps})
        for name in outputs:
            np.testing.assert_allclose(got[name], want[name], rtol=1e-9, atol=1e-10)


IN_ONE_GO = [*((s, "numpy") for s in SPELLINGS if s is not by_sums), (causal, "torch")]
"""By sums, which element is the maximum of a row has a gradient, for which the rows are stored."""


@pytest.mark.parametrize(("spelling", "backend"), IN_ONE_GO)
def test_columns_are_computed_in_one_go(spelling: Callable[..., pr.Tensor], backend: str) -> None:
    """Loops over pairs of steps have their inner one batched, and nothing is stored for all pairs."""
    outputs, T = _gradients(spelling)
    program = pr.compile(outputs, backend=backend)
    inner = [loop for loop, outer in _nested(program.compiled.loops.body) if outer]
    assert all(batched(program.compiled.loops, loop) is not None for loop in inner)
    assert program.memory.kept({T: 4096}) < 4096 * 64 * 8 * WIDTH
    for steps in (0, 6):
        given = _given(steps)
        wanted = pr.evaluate(outputs, given, bounds={T: steps})
        for name, found in program(**given).items():
            np.testing.assert_allclose(np.asarray(found), wanted[name], rtol=1e-9, atol=1e-9, err_msg=name)


def _nested(items: Sequence[Item], inside: bool = False) -> Iterator[tuple[For, bool]]:
    for item in items:
        if isinstance(item, For):
            yield item, inside
        if isinstance(item, For | If):
            yield from _nested(item.body, inside or isinstance(item, For))


@pytest.mark.parametrize("spelling", [causal, distances])
def test_equal_to_differences(spelling: Callable[..., pr.Tensor]) -> None:
    t, T, x, weights = _made()
    loss = pr.square(spelling(x, *(x @ w for w in weights), t, T)).sum(0)
    check(loss, x, "x", _given(4), {T: 4})


def test_large_scores_beside_the_rows() -> None:
    """What lanes compute for pairs that are not read may be infinite, and counts for nothing."""
    outputs, T = _gradients(causal)
    given = _given(40, scale=40.0)
    given["x"] = given["x"] * np.linspace(0, 3, 40)[:, None]
    want = pr.evaluate(outputs, given, {T: 40})
    got = pr.compile(outputs)(**given)
    for name in outputs:
        assert np.isfinite(want[name]).all()
        np.testing.assert_allclose(got[name], want[name], rtol=1e-7, atol=1e-7)


def test_rows_that_are_outputs_are_stored() -> None:
    _, T, x, (wq, wk, wv) = _made()
    share = pr.softmax((x @ wk)[0:T] @ (x @ wq), 0)
    gradient = pr.grad(pr.square(share @ (x @ wv)[0:T])[0:T].sum((0, 1)), wv)
    rules = [note.rule for note in pr.compile({"a": gradient}).compiled.notes if note.by == "pairs"]
    stored = pr.compile({"a": gradient, "share": share})
    assert rules
    assert not [note for note in stored.compiled.notes if note.by == "pairs"]
    want = pr.evaluate(gradient, _given(5), {T: 5})
    np.testing.assert_allclose(stored(**_given(5))["a"], want, rtol=1e-9, atol=1e-12)


def test_rows_with_a_limit_are_stored() -> None:
    t, T = pr.dim("t", max=64)
    x = pr.input("x", (WIDTH,), (t,))
    y = pr.softmax(x[0 : t + 1] @ x, 0) @ x[0 : t + 1]
    program = pr.compile(pr.grad(pr.square(y)[0:T].sum((0, 1)), x))
    assert not [note for note in program.compiled.notes if note.by == "pairs"]


def test_a_gradient_of_a_gradient() -> None:
    t, T, x, weights = _made()
    q, k, v = (x @ w for w in weights)
    loss = pr.square(causal(x, q, k, v, t, T))[0:T].sum((0, 1))
    steep = pr.square(pr.grad(loss, weights[1])).sum((0, 1))
    outputs = pr.grad(steep, [weights[0], weights[2]])
    program = pr.compile({"a": outputs[0], "b": outputs[1]})
    for steps in (1, 5):
        want = pr.evaluate({"a": outputs[0], "b": outputs[1]}, _given(steps), {T: steps})
        got = program(**_given(steps))
        for name in want:
            np.testing.assert_allclose(got[name], want[name], rtol=1e-8, atol=1e-10)


def test_a_budget_is_kept_by_fewer_rows_at_once() -> None:
    """Of 4,096 steps the weights alone would take 64 MB."""
    outputs, _ = _gradients(causal)
    steps = 4096
    given = _given(steps)
    tight = pr.compile(outputs, memory_budget="16MB")
    free = pr.compile(outputs)
    assert tight.memory.peak({"T": steps}) <= 16e6
    for name, array in free(**given).items():
        np.testing.assert_allclose(tight(**given)[name], array, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_which_element_is_the_maximum(backend: str) -> None:
    """Sums of 64 products may round differently in products of other shapes: no element would equal its maximum."""
    t, T = pr.dim("t")
    q, k = pr.input("q", (64,), (t,)), pr.input("k", (64,), (t,))
    slope = pr.grad(pr.square((k[0 : t + 1] @ q).max(0))[0:T].sum(0), k)
    random = np.random.default_rng(0)
    given = {name: random.normal(size=(300, 64)).astype("float32") for name in "qk"}
    scores = np.where(np.tri(300, dtype=bool), given["q"] @ given["k"].T, -np.inf)
    want = np.zeros_like(given["k"])
    np.add.at(want, scores.argmax(1), 2 * scores.max(1)[:, None] * given["q"])
    found = pr.compile(slope, backend=backend)(q=given["q"], k=given["k"])
    np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-3)
