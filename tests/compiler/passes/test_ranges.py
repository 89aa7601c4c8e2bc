"""Reductions over growing and shrinking ranges are running results: the same values, linear bytes, at every edge."""

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
from tests.compiler.gradients.differences import check
from tests.compiler.passes.cases import after, rules

t, T = pr.dim("t")
b, B = pr.dim("b")
x = pr.input("x", (2,), (b, t))
s = pr.input("s", (), (t,))
g = pr.input("g", ())

MONOIDS: dict[str, Callable[[pr.Tensor], pr.Tensor]] = {
    "sum": lambda v: v.sum(0),
    "mean": lambda v: v.mean(0),
    "prod": lambda v: v.prod(0),
    "max": lambda v: v.max(0),
    "min": lambda v: v.min(0),
    "any": lambda v: (v > 0.5).any(0),
    "all": lambda v: (v > -0.5).all(0),
    "sum of both axes": lambda v: v.sum(),
    "sum of squares": lambda v: pr.square(v - 0.5).sum(0),
    "largest of a row": lambda v: v.max(1).sum(0),
}
RANGES: dict[str, Callable[[], pr.Tensor]] = {
    "past": lambda: x[b, 0 : t + 1],
    "before": lambda: x[b, 0:t],
    "from the third": lambda: x[b, pr.min(2, T) : pr.min(T, pr.max(2, t))],
    "future": lambda: x[b, t:T],
    "after": lambda: x[b, t + 1 : T],
    "but the last": lambda: x[b, t : T - 1],
}
LENGTHS = (0, 1, 17, 30)


def given(steps: int, *names: str) -> dict[str, Any]:
    random = np.random.default_rng(steps)
    every = {
        "x": random.uniform(-1.5, 1.5, size=(2, steps, 2)).astype("float32"),
        "s": random.normal(size=steps).astype("float32"),
        "g": np.float32(0.9),
    }
    return {name: every[name] for name in names}


EVERYWHERE = [
    pytest.param(name, backend, marks=[] if (backend == "jax") == (name in ("past", "after")) else pytest.mark.slow)
    for name in RANGES
    for backend in ("jax", "numpy")
]
"""Compiling all with XLA takes long, so the quick lane does that for one range of each direction."""


@pytest.mark.parametrize(("name", "backend"), EVERYWHERE)
def test_equal_to_the_oracle(name: str, backend: str) -> None:
    outputs = {reduction: made(RANGES[name]()) for reduction, made in MONOIDS.items()}
    program = pr.compile(outputs, backend=backend)
    done = [note.rule for note in program.compiled.notes if note.by == "ranges"]
    assert {"running-sum", "running-prod", "running-max", "running-min", "running-any", "running-all"} == set(done)
    for steps in LENGTHS:
        want = pr.evaluate(outputs, given(steps, "x"), {T: steps})
        found = program(**given(steps, "x"), bounds={T: steps})
        for reduction in MONOIDS:
            np.testing.assert_allclose(found[reduction], want[reduction], rtol=2e-5, atol=1e-5, err_msg=reduction)
    assert program.memory.peak({T: 40_000, B: 1}) <= 2.1 * program.memory.peak({T: 20_000, B: 1})


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_the_other_backends(backend: str) -> None:
    outputs = {name: read().sum(0) for name, read in RANGES.items()}
    program = pr.compile(outputs, backend=backend)
    for steps in (0, 1, 17):
        want = pr.evaluate(outputs, given(steps, "x"), {T: steps})
        found = program(**given(steps, "x"), bounds={T: steps})
        for name in RANGES:
            np.testing.assert_allclose(found[name], want[name], rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("values", [[1.0, np.nan, 2.0], [np.inf, -np.inf, 1.0], [-np.inf, -np.inf, np.nan], []])
def test_values_that_are_not_finite(values: list[float]) -> None:
    outputs = {
        f"{way} {name}": getattr(read, name)(0)
        for way, read in {"past": s[0 : t + 1], "after": s[t + 1 : T]}.items()
        for name in ("max", "min", "sum", "prod")
    }
    array = np.array(values, "float32")
    want = pr.evaluate(outputs, {"s": array}, {T: len(values)})
    found = pr.compile(outputs)(s=array, bounds={T: len(values)})
    for name, value in want.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


WEIGHTED: dict[str, Callable[[], pr.Tensor]] = {
    "returns": lambda: (s[t:T] * 0.9 ** pr.arange(T - t)).sum(0),
    "a base given": lambda: (s[t:T] * g ** pr.arange(T - t)).sum(0),
    "later returns": lambda: (s[t + 1 : T] * g ** (pr.arange(T - t - 1) + 1)).sum(0),
    "decay": lambda: (s[t:T] * pr.exp(-pr.arange(T - t) / 3.0)).sum(0),
    "decay of the past": lambda: (s[0 : t + 1] * g ** (pr.value(t) - pr.arange(t + 1))).sum(0),
    "twice": lambda: (s[t:T] * g ** pr.arange(T - t) / 2.0 ** pr.arange(T - t)).sum(0),
    "by rows": lambda: (x[0, t:T] * pr.reshape(g ** pr.arange(T - t), (T - t, 1))).sum(0),
    "a base for each column": lambda: (
        x[0, t:T] * pr.constant([0.0, 1.1], "float32") ** pr.reshape(pr.arange(T - t), (T - t, 1))
    ).sum(0),
}


@pytest.mark.parametrize("name", WEIGHTED)
def test_discounted_sums(name: str) -> None:
    output = WEIGHTED[name]()
    program = pr.compile(output)
    assert [note.rule for note in program.compiled.notes if note.by == "ranges"] == ["running-sum"]
    inputs = [name for name in ("x", "s", "g") if name in program.compiled.graph.inputs]
    for steps in LENGTHS:
        values = given(steps, *inputs)
        bounds = {T: steps, B: 2} if "x" in inputs else {T: steps}
        want = pr.evaluate(output, values, bounds)
        np.testing.assert_allclose(program(**values, bounds=bounds), want, rtol=1e-4, atol=1e-5)


ONLINE: dict[str, Callable[[], pr.Tensor]] = {
    "logsumexp": lambda: pr.logsumexp(s[0 : t + 1], 0),
    "logsumexp of what is to come": lambda: pr.logsumexp(2.0 * s[t:T], 0),
    "weighted": lambda: (pr.softmax(s[0 : t + 1], 0) * pr.tanh(s[0 : t + 1])).sum(0),
    "contracted": lambda: pr.softmax(s[t:T], 0) @ pr.stack([s, s * s], 0)[t:T],
}
NOT_FINITE = {
    "none": [0.5, -1.0, 3.0, 2.0],
    "large": [-1000.0, 0.0, 900.0, 1000.0],
    "minus infinity first": [-np.inf, -np.inf, -1000.0, 2.0],
    "minus infinity later": [1.0, -np.inf, 2.0, -np.inf],
    "infinity": [1.0, np.inf, 2.0, -1000.0],
    "NaN": [1.0, np.nan, 2.0, 3.0],
    "one": [1.0],
    "nothing": [],
}


@pytest.mark.parametrize("name", ONLINE)
def test_online_softmax(name: str) -> None:
    """Weights relative to a running maximum change alike from step to step."""
    output = ONLINE[name]()
    program = pr.compile(output)
    assert [note.rule for note in program.compiled.notes if note.by == "ranges"].count("running-sum") >= 1
    for case, values in (*NOT_FINITE.items(), ("random", list(np.random.default_rng(0).normal(size=40) * 30))):
        inputs: Any = {"s": np.array(values, "float32")}
        want = pr.evaluate(output, inputs, {T: len(values)})
        found = program(**inputs, bounds={T: len(values)})
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-6, err_msg=case)
    assert program.memory.peak({T: 40_000}) <= 2.1 * program.memory.peak({T: 20_000})


def test_a_maximum_of_other_elements_is_left_alone() -> None:
    """Relative to it, weights could overflow from step to step though no sum does."""
    peak = (-s)[0 : t + 1].max(0)
    output = pr.exp(s[0 : t + 1] - pr.where(pr.isfinite(peak), peak, 0.0)).sum(0)
    values = given(20, "s")
    program = pr.compile(output)
    assert [note.rule for note in program.compiled.notes if note.by == "ranges"] == ["running-max"]
    np.testing.assert_allclose(program(**values), pr.evaluate(output, values), rtol=1e-4)


def test_weights_that_differ_from_element_to_element_are_left_alone() -> None:
    """A square of the distance has no quotient that is the same for all."""
    square = (s[t:T] * g ** (pr.arange(T - t) * pr.arange(T - t))).sum(0)
    values = given(5, "s", "g")
    program = pr.compile(square)
    assert not [note for note in program.compiled.notes if note.by == "ranges"]
    np.testing.assert_allclose(program(**values), pr.evaluate(square, values), rtol=1e-5)


def test_a_centred_sum_is_left_alone() -> None:
    centred = pr.square(s[0 : t + 1] - s[0 : t + 1].mean(0)).sum(0)
    values = given(20, "s")
    np.testing.assert_allclose(pr.compile(centred)(**values), pr.evaluate(centred, values), rtol=1e-4, atol=1e-5)


def test_a_maximum_that_goes_the_other_way_is_left_alone() -> None:
    """It falls where these weights are relative to one that rises; and of ties before its begin it knows nothing."""
    peak = s[t:T].max(0)
    later = s[pr.min(3, t) : t + 1].max(0)
    outputs = (
        pr.exp(s[0 : t + 1] - pr.where(pr.isfinite(peak), peak, 0.0)).sum(0),
        (s[0 : t + 1] == peak).cast("float32").sum(0),
        (s[0 : t + 1] == later).cast("float32").sum(0),
    )
    program = pr.compile(outputs)
    values: Any = {"s": np.array([3, 1, 3, 0, 2, 2, 3, 1, 0] * 3, "float32")}
    for found, want in zip(program(**values), pr.evaluate(outputs, values), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-5)


LINEAR: dict[str, Callable[[], pr.Tensor]] = {
    "norm": lambda: pr.sqrt(pr.square(s[0 : t + 1]).sum(0) + 1),
    "scaled by the reader": lambda: (s[0 : t + 1] * s).sum(0) / (1 + s * s),
    "max": lambda: s[0 : t + 1].max(0),
    "min of what is to come": lambda: s[t:T].min(0),
    "max of something": lambda: pr.tanh(2 * s)[0 : t + 1].max(0),
    "ties": lambda: s * (s[t:T] == s[t:T].max(0)).cast("float32").sum(0),
    "logsumexp": lambda: pr.logsumexp(s[0 : t + 1], 0),
    "logsumexp of what is to come": lambda: pr.logsumexp(2.0 * s[t:T], 0),
}
SPECIAL = {
    "random": np.random.default_rng(0).normal(size=40),
    "large": np.random.default_rng(1).normal(size=20) * 60,
    "ties": np.random.default_rng(2).integers(-1, 2, size=20),
    "minus infinity": np.array([-np.inf, -np.inf, 2.0, -np.inf, 1.0, 3.0]),
    "one": np.array([1.0]),
    "nothing": np.array([]),
}


@pytest.mark.parametrize("name", LINEAR)
def test_gradients_by_what_is_reduced(name: str) -> None:
    """What a reader multiplies its elements by leaves the sum; ties and weights are cut at its own maximum."""
    value = LINEAR[name]()
    gradient = pr.grad((value * pr.sin(pr.where(pr.isfinite(s), s, 0.0)))[0:T].sum(0), s)
    program = pr.compile(gradient, backend="numpy")
    for case, values in SPECIAL.items():
        if case == "minus infinity" and "logsumexp" not in name:
            continue  # infinity times zero, in the oracle too
        inputs: Any = {"s": values.astype("float32")}
        want = pr.evaluate(gradient, inputs, {T: len(values)})
        found = program(**inputs, bounds={T: len(values)})
        np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-5, err_msg=case)
    compiled = pr.compile(gradient)
    inputs = {"s": SPECIAL["random"].astype("float32")}
    np.testing.assert_allclose(compiled(**inputs), program(**inputs), rtol=1e-3, atol=1e-5)
    for each in (program, compiled):
        assert each.memory.peak({T: 40_000}) <= 2.1 * each.memory.peak({T: 20_000})


def test_the_first_of_rows_that_grow_is_cut_to_its_length() -> None:
    """Rows are stored by a loop that goes back; the first step, written out, reads one element of its row."""
    peak = s[t:T].max(0)
    rows = pr.exp(s[0 : t + 1] - pr.where(pr.isfinite(peak), peak, 0.0))
    loss = (rows.sum(0) * pr.sin(s))[0:T].sum(0)
    outputs = rows.sum(0), pr.grad(loss, s)
    values = given(5, "s")
    for found, want in zip(pr.compile(outputs)(**values), pr.evaluate(outputs, values), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_gradients(steps: int) -> None:
    z = pr.input("z", (), (t,), "float64")
    past, future = z[0 : t + 1].mean(0), (z[t:T] * pr.constant(0.9, "float64") ** pr.arange(T - t)).sum(0)
    loss = pr.square(past) * future + pr.tanh(z[0:t].sum(0))
    check(loss, z, "z", {"z": np.random.default_rng(0).normal(size=steps)}, {T: steps})
    gradient = pr.grad(loss[0:T].sum(), z)
    program = pr.compile(gradient)
    values: Any = {"z": np.random.default_rng(1).normal(size=steps)}
    want = pr.evaluate(gradient, values, {T: steps})
    np.testing.assert_allclose(program(**values, bounds={T: steps}), want, rtol=1e-9, atol=1e-12)
    assert program.memory.peak({T: 40_000}) <= 2.1 * program.memory.peak({T: 20_000})


def test_inside_the_recurrence_that_makes_the_elements() -> None:
    y = pr.recurrent((), (t,))
    y[0] = s[0]
    y[t + 1] = pr.tanh(y[0 : t + 1].mean(0)) + s[t + 1] * y[0 : t + 1].max(0)
    values = given(20, "s")
    program = pr.compile(y)
    np.testing.assert_allclose(program(**values), pr.evaluate(y, values), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [1, 2, 9])
def test_the_gradient_of_such_a_recurrence(steps: int) -> None:
    z = pr.input("z", (), (t,), "float64")
    y = pr.recurrent((), (t,), "float64")
    y[0] = z[0]
    y[t + 1] = pr.tanh(y[0 : t + 1].mean(0)) + z[t + 1]
    values: Any = {"z": np.random.default_rng(0).normal(size=steps)}
    check(y * y, z, "z", values)
    gradient = pr.grad(pr.square(y)[0:T].sum(), z)
    program = pr.compile(gradient)
    np.testing.assert_allclose(program(**values), pr.evaluate(gradient, values), rtol=1e-9)
    assert program.memory.peak({T: 40_000}) <= 2.1 * program.memory.peak({T: 20_000})


def test_a_length_that_is_found_while_it_runs() -> None:
    y = pr.recurrent((), (t,))
    y[0] = 1.0
    y[t + 1] = y * 1.5
    total = y[0 : t + 1].sum(0)
    program = pr.compile(total, until={t: total > 30.0})
    want = pr.evaluate(total, {}, {T: 40}, until={t: total > 30.0})
    np.testing.assert_allclose(program(bounds={T: 40}), want, rtol=1e-6)


def test_half_precision_is_rounded_at_the_end() -> None:
    half = pr.input("half", (), (t,), "float16")
    values = np.random.default_rng(0).uniform(0, 1, 400).astype("float16")
    want = np.array([values[: n + 1].astype("float32").sum() for n in range(400)]).astype("float16")
    np.testing.assert_array_equal(pr.compile(half[0 : t + 1].sum(0))(half=values), want)


def test_short_ranges_are_reduced_as_they_are() -> None:
    short = s[0 : pr.min(t + 1, 5)].sum(0)
    assert not [note for note in pr.compile(short).compiled.notes if note.by == "ranges"]


def test_two_dims() -> None:
    """A range from one dim to another starts anew for each of the first."""
    i, _ = pr.dim("i", max=40)
    rows = pr.input("rows", (), ((i, T),))
    _, notes = after([rows[0 : t + 1].sum(0) * rows[t:T].max(0)], {"rows": np.arange(20.0, dtype="float32")}, {T: 20})
    assert {"running-sum", "running-max"} <= set(rules(notes))


def test_before_and_after(golden: Callable[[str, str], None]) -> None:
    graph = completed(trace([s[0 : t + 1].sum(0), (s[t:T] * 0.5 ** pr.arange(T - t)).sum(0)]))
    stages: dict[str, str] = {}
    optimised(graph, inspect=lambda name, part: stages.update({name: show(part)}))
    golden("before", show(graph))
    golden("after", stages["ranges"])


def test_without_the_pass_the_results_are_the_same() -> None:
    output = s[0 : t + 1].sum(0)
    values = given(20, "s")
    fast = pr.compile(output)
    with pr.settings(without=["ranges"]):
        plain = pr.compile(output)
    assert plain.compiled.graph != fast.compiled.graph
    np.testing.assert_allclose(plain(**values), fast(**values), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", RANGES)
def test_the_gradient_of_a_product_is_a_recurrence_the_other_way(name: str) -> None:
    """Also where elements are zero, and where the range is empty."""
    rows = pr.input("rows", (2,), (t,))
    read = {
        "past": rows[0 : t + 1],
        "before": rows[0:t],
        "from the third": rows[pr.min(2, T) : pr.min(T, pr.max(2, t))],
        "future": rows[t:T],
        "after": rows[t + 1 : T],
        "but the last": rows[t : T - 1],
    }[name]
    slope = pr.grad((read.prod(0) * pr.value(t + 1))[0:T].sum(), rows)
    program = pr.compile(slope)
    done = [note.rule for note in program.compiled.notes if note.by == "ranges"]
    assert done == ["running-prod"], done
    for steps in (1, 2, 9):
        array = np.random.default_rng(steps).uniform(-1.5, 1.5, size=(steps, 2)).astype("float32")
        array[steps // 2, 0] = 0
        want = pr.evaluate(slope, {"rows": array})
        np.testing.assert_allclose(program(rows=array), want, rtol=1e-4, atol=1e-5)
    assert program.memory.peak({T: 40_000}) <= 2.1 * program.memory.peak({T: 20_000})


def test_two_ranges_are_two_running_sums() -> None:
    i, _ = pr.dim("i")
    grid = pr.input("grid", (), (i, t))
    program = pr.compile(grid[0 : i + 1, t:T].sum((0, 1)))
    assert [note.rule for note in program.compiled.notes if note.by == "ranges"] == ["running-sum"] * 2
    array = np.random.default_rng(0).normal(size=(20, 30)).astype("float32")
    want = np.cumsum(np.cumsum(array, 0)[:, ::-1], 1)[:, ::-1]
    np.testing.assert_allclose(program(grid=array), want, rtol=1e-4, atol=1e-4)
    assert str(program.schedule).count("for all") == 2  # each along one dim, all of the other at once
