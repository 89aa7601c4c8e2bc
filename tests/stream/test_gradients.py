"""Gradients of lowered programs, against the oracle: training on the accelerator for MLPs, mixtures and attention."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.stream import DirectiveMismatch, Hardware, lower, measure, parallelize, simulate, tile, time_multiplex
from polyrhythm.stream.directives import Directive

DEEP = Hardware(fifo_depth=1 << 16)
b, B = pr.dim("b")
q, Q = pr.dim("q")
e, E = pr.dim("e")
r, R = pr.dim("r")
s, S = pr.dim("s")
t, T = pr.dim("t")


def _draw(**shapes: tuple[int, ...]) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {name: (0.5 * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}


def _check(outputs: dict[str, pr.Tensor], data: dict[str, Any], schedule: Sequence[Directive] = ()) -> None:
    """Values equal the oracle's; bytes and FLOPs equal the formulae."""
    lowered = lower(outputs, schedule, data)
    run = simulate(lowered.program, DEEP)
    actual, expected = lowered.outputs(run), pr.evaluate(outputs, data)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    values = measure(lowered.program, DEEP).evaluate(run.bindings)
    assert (values["off_chip_burst"], values["flops"]) == (run.bytes_moved, run.flops)


def _with_gradients(loss: pr.Tensor, *weights: pr.Tensor) -> dict[str, pr.Tensor]:
    return {"loss": loss, **{f"d{n}": g for n, g in enumerate(pr.grad(loss, list(weights)))}}


SCHEDULES = {
    "none": [],
    "tiles": [tile(b, 2)],
    "one tile": [tile(b, dynamic=True)],
    "dealt": [parallelize(b, 2)],
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_a_training_step_of_an_mlp(schedule: list[Directive]) -> None:
    x, y = pr.input("x", (4,), (b,)), pr.input("y", (3,), (b,))
    w1, w2 = pr.input("w1", (4, 5)), pr.input("w2", (5, 3))
    error = pr.matmul(pr.silu(pr.matmul(x, w1)), w2) - y
    loss = (error * error).sum(0)[0:B].mean(0)
    found = _with_gradients(loss, w1, w2)
    found |= {"next": w1 - 0.1 * found["d0"]}
    _check(found, _draw(x=(6, 4), y=(6, 3), w1=(4, 5), w2=(5, 3)), schedule)


def test_an_mlp_whose_features_are_dims() -> None:
    (i, I), (j, J), (k, K) = (pr.dim(name) for name in "ijk")
    x, w1 = pr.input("x", (), (b, i)), pr.input("w1", (), (i, j))
    w2, y = pr.input("w2", (), (j, k)), pr.input("y", (), (b, k))
    h = pr.relu(pr.einsum("i,i->", x[{i: slice(0, I)}], w1[{i: slice(0, I)}]))
    error = pr.einsum("j,j->", h[{j: slice(0, J)}], w2[{j: slice(0, J)}]) - y
    loss = (error * error)[{b: slice(0, B), k: slice(0, K)}].sum()
    data = _draw(x=(6, 4), y=(6, 2), w1=(4, 5), w2=(5, 2))
    for schedule in ([], [tile(b, 2)], [tile(b, dynamic=True), tile(i, dynamic=True), tile(k, dynamic=True)]):
        _check(_with_gradients(loss, w1, w2), data, schedule)


ROUTED = {
    "none": [],
    "tiles": [tile(b, 2)],
    "one tile": [tile(b, dynamic=True)],
    "shared region": [tile(b, 2), time_multiplex(e, 1)],
}


@pytest.mark.parametrize("schedule", ROUTED.values(), ids=ROUTED)
def test_a_mixture_of_experts(schedule: list[Directive]) -> None:
    x, y, w = pr.input("x", (4,), (b,)), pr.input("y", (4,), (b,)), pr.input("w", (4, 4), (e,))
    route, share = pr.input("route", (), (b, q), "int32"), pr.input("share", (), (b, q))
    h = pr.silu(pr.matmul(x, pr.take(w[0:E], route, 0)))
    error = (h * share)[{q: slice(0, Q)}].sum(0) - y
    loss = (error * error).sum(0)[0:B].mean(0)
    data = _draw(x=(6, 4), y=(6, 4), w=(3, 4, 4), share=(6, 2))
    data["route"] = np.array([[0, 1], [1, 2], [0, 2], [2, 1], [0, 1], [1, 0]], "int32")
    _check(_with_gradients(loss, w, share, x), data, schedule)


@pytest.mark.parametrize("causal", [False, True])
def test_self_attention(causal: bool) -> None:
    x = pr.input("x", (4,), (t,))
    weights = [pr.input(name, (4, 4)) for name in ("wq", "wk", "wv")]
    query, key, value = (pr.matmul(x, w) for w in weights)
    seen = slice(0, t + 1) if causal else slice(0, T)
    found = pr.matmul(pr.softmax(pr.matmul(key[seen], query)), value[seen])
    loss = (found * found).sum(0)[0:T].sum(0)
    for steps in (1, 5):
        _check(_with_gradients(loss, *weights, x), _draw(x=(steps, 4), wq=(4, 4), wk=(4, 4), wv=(4, 4)))


def test_ragged_decode_attention() -> None:
    query = pr.input("query", (4,), (r,))
    keys, values = pr.input("keys", (4,), (r, s)), pr.input("values", (4,), (r, s))
    length = pr.input("length", (), (r,), "int32")
    score = pr.where(pr.value(s) <= length, pr.einsum("d,d->", query, keys), float("-inf"))
    weight = pr.exp(score - score[{s: slice(0, S)}].max(0))
    mixed = pr.einsum("s,sd->d", weight[{s: slice(0, S)}], values[{s: slice(0, S)}])
    found = mixed / weight[{s: slice(0, S)}].sum(0)
    loss = (found * found).sum(0)[0:R].sum(0)
    outputs = _with_gradients(loss, query, keys, values)
    data = _draw(query=(3, 4), keys=(3, 6, 4), values=(3, 6, 4)) | {"length": np.array([2, 0, 5], "int32")}
    _check(outputs, data)
    with pytest.raises(DirectiveMismatch, match=r"parallelize.*is a slice at the step"):
        lower(outputs, [parallelize(r, 2)], data)


def test_an_axis_at_the_step() -> None:
    table, x = pr.input("table", (S, 2), (b,)), pr.input("x", (2,), (b, s))
    entry = table.axes[s] + x
    data = _draw(table=(3, 4, 2), x=(3, 4, 2))
    for schedule in ([], [tile(b, 3)]):
        _check({"entry": entry, "last": table.axes[S - 1 - s] * 2.0 + x}, data, schedule)


def test_a_literal_at_the_step() -> None:
    x = pr.input("x", (), (t,))
    _check({"moved": pr.constant([1.0, 2.0, 3.0]).axes[t % 3] + x}, _draw(x=(7,)))


m, M = pr.dim("m")
n, N = pr.dim("n")
ROWS = {m: slice(0, M)}


def _all_at_once() -> tuple[pr.Tensor, pr.Tensor]:
    """A loss that sums over two dims together: steps of both choose from its gradient."""
    x, w = pr.input("x", (), (m, n)), pr.input("w", (), (m,))
    return ((x * w[ROWS].sum(0))[0:M, 0:N] ** 2).sum((0, 1)), w


def _sorted_before() -> tuple[pr.Tensor, pr.Tensor]:
    """Gradients that are wanted at some steps only, and come back entry by entry."""
    x = pr.input("x", (), (m, n))
    ordered = pr.sort(x[{m: slice(0, M), n: pr.max(n - 1, 0)}], 0)
    return (pr.softmax(ordered[0:N], 0) ** 2).sum((0, 1)), x


def _columns() -> tuple[pr.Tensor, pr.Tensor]:
    """Steps that are taken out of an axis meet tiles of them."""
    x, w = pr.input("x", (), (m, n)), pr.input("w", (), (m,))
    return (pr.cumsum(pr.maximum(x, w)[ROWS], 0)[0:N] ** 2).sum((0, 1)), w


WHOLE: dict[str, list[Directive]] = {"none": [], "one": [tile(m, dynamic=True)], "both": [tile(m, 4), tile(n, 4)]}
CUT: dict[str, list[Directive]] = {"m": [tile(m, 2)], "n": [tile(n, 2)], "dealt": [tile(m, 4), parallelize(n, 3)]}


@pytest.mark.parametrize("schedule", WHOLE)
@pytest.mark.parametrize("program", [_all_at_once, _columns])
def test_ranges_of_two_dims(program: Any, schedule: str) -> None:
    loss, weight = program()
    _check({"gradient": pr.grad(loss, weight)}, _draw(x=(4, 4), w=(4,)), WHOLE[schedule])


def test_a_range_that_is_wanted_at_some_steps() -> None:
    loss, x = _sorted_before()
    _check({"gradient": pr.grad(loss, x)}, _draw(x=(4, 4)))


@pytest.mark.parametrize("schedule", CUT)
@pytest.mark.parametrize("program", [_all_at_once, _sorted_before, _columns])
def test_steps_of_tiles_are_right_or_refused(program: Any, schedule: str) -> None:
    loss, weight = program()
    data = _draw(x=(4, 4)) if program is _sorted_before else _draw(x=(4, 4), w=(4,))
    with suppress(DirectiveMismatch):
        _check({"gradient": pr.grad(loss, weight)}, data, CUT[schedule])
