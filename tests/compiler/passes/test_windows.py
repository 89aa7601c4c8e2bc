"""Reductions over windows are combinations of shifted values: the same values at every edge, in parallel loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.loops.ir import For, walk
from polyrhythm.compiler.passes.windows import TAPS
from tests.compiler.gradients.differences import check

t, T = pr.dim("t")
b, B = pr.dim("b")
x = pr.input("x", (2,), (b, t))
s = pr.input("s", (), (t,))

MONOIDS: dict[str, Callable[[pr.Tensor], pr.Tensor]] = {
    "sum": lambda v: v.sum(0),
    "mean": lambda v: v.mean(0),
    "prod": lambda v: v.prod(0),
    "max": lambda v: v.max(0),
    "min": lambda v: v.min(0),
    "any": lambda v: (v > 1.4).any(0),
    "all": lambda v: (v > -1.4).all(0),
    "sum of both axes": lambda v: v.sum(),
    "squares": lambda v: pr.square(v - 0.5).sum(0),
}
WIDTHS = (2, 3, 7, 20)


def ranges(w: int) -> dict[str, pr.Tensor]:
    return {
        "window": pr.window(x, t, w),
        "ahead": x[b, t : pr.min(T, t + w)],
        "late": x[b, pr.max(0, t - w - 1) : pr.max(0, t - 1)],
        "around": x[b, pr.max(0, t - w) : pr.min(T, t + w)],
    }


def given(steps: int, *names: str) -> dict[str, Any]:
    random = np.random.default_rng(steps)
    every = {
        "x": random.uniform(-1.5, 1.5, size=(2, steps, 2)).astype("float32"),
        "s": random.normal(size=steps).astype("float32"),
    }
    return {name: every[name] for name in names}


def done(program: pr.Program) -> list[str]:
    return [note.rule for note in program.compiled.notes if note.by == "windows"]


def sequential(program: pr.Program) -> list[For]:
    return [item for item in walk(program.compiled.loops.body) if isinstance(item, For) and not item.parallel]


@pytest.mark.parametrize("w", [w if w in (3, 20) else pytest.param(w, marks=pytest.mark.slow) for w in WIDTHS])
def test_equal_to_the_oracle(w: int) -> None:
    every = [(way, read, name) for way, read in ranges(w).items() for name in MONOIDS]
    outputs = {f"{way} {name}": MONOIDS[name](read) for n, (way, read, name) in enumerate(every) if (n + w) % 2}
    program = pr.compile(outputs)
    assert {f"window-{name}" for name in ("sum", "prod", "max", "min", "any", "all")} <= set(done(program))
    assert not sequential(program)
    for steps in (0, 1, w, w + 1, 2 * w + 3):
        want = pr.evaluate(outputs, given(steps, "x"), {T: steps})
        found = program(**given(steps, "x"), bounds={T: steps})
        for name in outputs:
            np.testing.assert_allclose(found[name], want[name], rtol=2e-5, atol=1e-5, err_msg=f"{name} at {steps}")


def test_where_all_steps_are_there() -> None:
    """A window that is read only where it is whole needs no edge."""
    output = pr.where(t >= 4, s[pr.max(0, t - 4) : t + 1].mean(0), -1.0)
    program = pr.compile(output)
    for steps in (1, 4, 5, 12):
        np.testing.assert_allclose(program(**given(steps, "s")), pr.evaluate(output, given(steps, "s")), rtol=1e-5)


def test_no_digits_are_lost_after_large_values() -> None:
    """A difference of running sums would keep the rounding of what has left the window."""
    values = np.ones(64, "float32")
    values[3] = 1e9
    output = pr.window(s, t, 20).sum(0)
    found = np.asarray(pr.compile(output)(s=values))
    np.testing.assert_array_equal(found[40:], np.full(24, 20.0, "float32"))


@pytest.mark.parametrize("values", [[1.0, np.nan, 2.0, 3.0, 4.0], [np.inf, -np.inf, 1.0, 2.0], [-np.inf] * 4, []])
def test_values_that_are_not_finite(values: list[float]) -> None:
    near = pr.window(s, t, 2)
    outputs = {name: getattr(near, name)(0) for name in ("max", "min", "sum", "prod")}
    outputs["weighted"] = (near * s).sum(0)
    array = np.array(values, "float32")
    want = pr.evaluate(outputs, {"s": array}, {T: len(values)})
    found = pr.compile(outputs)(s=array, bounds={T: len(values)})
    for name, value in want.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


w4 = pr.input("w4", (4,))
TAPPED: dict[str, Callable[[], pr.Tensor]] = {
    "convolution": lambda: (pr.window(s, t, 4) * w4.axes[pr.max(0, 3 - t) :]).sum(0),
    "contraction": lambda: w4.axes[pr.max(0, 3 - t) :] @ pr.tanh(pr.window(s, t, 4)),
    "softmax": lambda: (pr.softmax(pr.window(s, t, 4) * s, 0) * pr.window(s, t, 4)).sum(0),
    "logsumexp": lambda: pr.logsumexp(pr.window(s, t, 5), 0),
    "distances": lambda: pr.abs(pr.window(s, t, 6) - s).max(0),
    "division": lambda: (1.0 / (pr.window(s, t, 3) - s + 10.0)).sum(0),
    "ahead": lambda: (s[t : pr.min(T, t + 4)] * s).sum(0),
}


@pytest.mark.parametrize("name", TAPPED)
def test_elements_that_differ_from_reader_to_reader(name: str) -> None:
    output = TAPPED[name]()
    program = pr.compile(output)
    assert done(program)
    assert not sequential(program)
    for steps in (0, 1, 3, 4, 5, 11):
        inputs = {"s": given(steps, "s")["s"], "w4": np.arange(4, dtype="float32")}
        inputs = {n: v for n, v in inputs.items() if n in program.compiled.graph.inputs}
        np.testing.assert_allclose(program(**inputs), pr.evaluate(output, inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["convolution", "softmax", "logsumexp", "ahead"])
@pytest.mark.parametrize("steps", [1, 2, 9])
def test_gradients(name: str, steps: int) -> None:
    loss = pr.square(TAPPED[name]())[0:T].sum()
    inputs: Any = {"s": given(steps, "s")["s"], "w4": np.arange(4, dtype="float32")}
    leaves = [s] if name != "convolution" else [s, w4]
    gradients = {str(n): g for n, g in enumerate(pr.grad(loss, leaves))}
    program = pr.compile(gradients)
    inputs = {n: v for n, v in inputs.items() if n in program.compiled.graph.inputs}
    assert not sequential(program)
    want, found = pr.evaluate(gradients, inputs), program(**inputs)
    for key, value in want.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-5)


def test_the_gradient_is_that_of_finite_differences() -> None:
    z = pr.input("z", (), (t,), "float64")
    loss = pr.tanh(pr.window(z, t, 3).sum(0)) * pr.window(z, t, 5).max(0)
    check(loss, z, "z", {"z": np.random.default_rng(0).normal(size=7)}, {T: 7})


def test_wide_windows_of_pairs_are_left_alone() -> None:
    output = (pr.window(s, t, TAPS + 1) * s).sum(0)
    program = pr.compile(output)
    np.testing.assert_allclose(program(**given(40, "s")), pr.evaluate(output, given(40, "s")), rtol=1e-4, atol=1e-5)


def test_a_recurrence_reads_its_ring_as_it_is() -> None:
    y = pr.recurrent((), (t,))
    y[0] = s[0]
    y[t + 1] = pr.tanh(pr.window(y, t, 4).sum(0)) + s[t + 1]
    program = pr.compile(y)
    assert not done(program)
    np.testing.assert_allclose(program(**given(9, "s")), pr.evaluate(y, given(9, "s")), rtol=1e-5, atol=1e-6)


def test_a_stream_of_windows_needs_no_later_step() -> None:
    output = pr.window(s, t, 6).max(0)
    values = given(12, "s")
    rows = [np.asarray(row) for row in pr.compile(output).stream(over=t, **values)]
    np.testing.assert_allclose(rows, pr.evaluate(output, values), rtol=1e-6)


def test_without_the_pass_the_results_are_the_same() -> None:
    output = pr.window(s, t, 9).sum(0)
    fast = pr.compile(output)
    with pr.settings(without=["windows"]):
        plain = pr.compile(output)
    assert plain.compiled.graph != fast.compiled.graph
    np.testing.assert_allclose(plain(**given(30, "s")), fast(**given(30, "s")), rtol=1e-5, atol=1e-6)
