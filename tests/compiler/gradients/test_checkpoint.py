"""Checkpoints: the same gradients with less kept, on the plan and in XLA's account."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.backends.jax.backend import JaxBackend
from polyrhythm.compiler.ir.terms import Symbol
from polyrhythm.compiler.loops.ir import For, If, Item
from polyrhythm.errors import RecomputeError
from tests.compiler.gradients.differences import by_differences, close
from tests.compiler.gradients.test_recurrences import MODELS, arrays, expected_gradients

BATCH, HIDDEN = 4, 8


QUICK = ("rnn", "bidirectional")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MODELS])
def test_segments_do_not_change_gradients(name: str) -> None:
    model = MODELS[name]()
    given = arrays(model)
    (t,) = (dim for dim in model.loss.dims if dim.name == "t")
    pr.checkpoint(model.loss, over=t, every=2)
    found = pr.evaluate(pr.grad(model.loss, model.weights), given)
    for key, expected in expected_gradients(model, given).items():
        np.testing.assert_allclose(found[key], expected, rtol=1e-10, atol=1e-12, err_msg=key)


class Cell:
    """A recurrent network over t, all its weights, and its loss."""

    def __init__(self, kind: str, batch: int = BATCH, hidden: int = HIDDEN, dtype: str = "float32") -> None:
        self.t, self.T = t, T = pr.dim("t")
        self.sizes = {"w": (hidden, hidden if kind == "rnn" else 4 * hidden)}
        self.batch, self.hidden = batch, hidden
        x = pr.input("x", (batch, hidden), (t,), dtype)
        self.w = w = pr.input("w", self.sizes["w"], (), dtype)
        self.h = h = pr.recurrent((batch, hidden), ((t, T + 1),), dtype)
        h[0] = 0.0
        if kind == "rnn":
            h[t + 1] = pr.tanh(x + h @ w)
        else:
            c = pr.recurrent((batch, hidden), ((t, T + 1),), dtype)
            c[0] = 0.0
            into, forget, cell, out = pr.split((x + h) @ w, 4, axis=1)
            c[t + 1] = pr.sigmoid(forget) * c + pr.sigmoid(into) * pr.tanh(cell)
            h[t + 1] = pr.sigmoid(out) * pr.tanh(c[t + 1])
        self.loss = (h[t + 1] ** 2).sum()

    def gradient(self, backend: str, bounds: Any = None) -> pr.Program:
        return pr.compile(pr.grad(self.loss, self.w), backend=backend, bounds=bounds)

    def inputs(self, steps: int) -> dict[str, np.ndarray]:
        random = np.random.default_rng(steps)
        return {
            "x": random.normal(size=(steps, self.batch, self.hidden)),
            "w": random.normal(size=self.sizes["w"]) / self.hidden**0.5,
        }


@pytest.mark.parametrize("backend", ["numpy", *(pytest.param(b, marks=pytest.mark.slow) for b in ("jax", "torch"))])
def test_every_backend_computes_again(backend: str) -> None:
    cell = Cell("rnn")
    kept = cell.gradient("numpy")
    pr.checkpoint(cell.h, over=cell.t, every=4)
    again = cell.gradient(backend)
    for steps in (5, 41) if backend == "jax" else (0, 1, 3, 4, 5, 16, 41):
        given = cell.inputs(steps)
        np.testing.assert_allclose(again(**dict[str, Any](given)), kept(**dict[str, Any](given)), rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("every", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 100))])
def test_segments_of_any_length(every: int) -> None:
    cell = Cell("lstm", 2, 2, "float64")
    given = cell.inputs(5)
    kept = pr.evaluate(pr.grad(cell.loss, cell.w), given)
    close(kept, by_differences(cell.loss, given, "w"))
    pr.checkpoint(cell.h, over=cell.t, every=every)
    np.testing.assert_allclose(pr.evaluate(pr.grad(cell.loss, cell.w), given), kept, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", ["rnn", pytest.param("lstm", marks=pytest.mark.slow)])
def test_the_plan_keeps_what_enters_each_segment(kind: str) -> None:
    cell = Cell(kind)
    state = cell.batch * cell.hidden * 4
    whole = cell.gradient("numpy").memory
    every = 64
    pr.checkpoint(cell.h, over=cell.t, every=every)
    plan = cell.gradient("numpy").memory
    values = 2 if kind == "rnn" else 12  # of a step that are kept inside a segment, and of a segment
    for steps in (1024, 4096, 16384):
        assert whole.kept({cell.T: steps}) > steps * state
        assert plan.kept({cell.T: steps}) < 4 * (steps // every) * state + values * 4 * every * state
    assert plan.peak({cell.T: 4096}) - plan.kept({cell.T: 4096}) < cell.inputs(4096)["x"].size * 4 + 64 * every * state


def test_products_with_all_letters_are_taken_again() -> None:
    """Their copy has no state to differ by, only the letters."""
    t, T = pr.dim("t")
    letters = pr.input("letters", (32,), (t,), "int32")
    weights = [pr.input(name, shape) for name, shape in (("table", (16, 256)), ("u", (256, 1024)), ("w", (256, 1024)))]
    h = pr.recurrent((32, 256), ((t, T + 1),))
    h[0] = 0.0
    wide = pr.take(weights[0], letters, 0) @ weights[1] + 0.1 + h @ weights[2]
    h[t + 1] = pr.tanh(wide.reshape((32, 256, 4)).sum(2))
    loss = pr.square(h[t + 1]).sum()[0:T].sum()
    pr.checkpoint(h, over=t, every=64)
    plan = pr.compile(pr.grad(loss, weights)).memory
    state = 32 * 256 * 4
    assert plan.kept({T: 16384}) < 2 * (16384 // 64) * state + 64 * 12 * state


def iterations(items: Sequence[Item], values: Mapping[Symbol, int]) -> int:
    """How many iterations loops have in total, whatever their bodies do."""
    total = 0
    for item in items:
        if isinstance(item, If) and item.condition.evaluate(values.__getitem__):
            total += iterations(item.body, values)
        elif isinstance(item, For):
            first, end = (term.evaluate(values.__getitem__) for term in (item.first, item.end))
            total += sum(1 + iterations(item.body, {**values, item.counter: n}) for n in range(first, end))
    return total


def test_time_grows_with_the_steps() -> None:
    """A loss over all steps is read along t; segments are along two other dims. No loop visits one for the other."""
    cell = Cell("lstm")
    loss = cell.loss[0 : cell.T].mean()
    pr.checkpoint(cell.h, over=cell.t, every=8)
    program = pr.compile(pr.grad(loss, cell.w), backend="numpy")
    assert program.compiled is not None
    loops = program.compiled.loops
    (bound,) = loops.bounds
    short, long = (iterations(loops.body, {bound: steps}) for steps in (64, 256))
    assert long < 4.2 * short
    assert long < 256 * 12  # a few loops over the steps, forwards, again and backwards


def planned(steps: int) -> int:
    """The bytes kept by a network with default segments."""
    cell = Cell("rnn")
    pr.checkpoint(cell.h, over=cell.t)
    return cell.gradient("numpy", bounds={cell.T: steps}).memory.kept({cell.T: steps})


def test_by_default_memory_grows_with_the_square_root() -> None:
    small, large = planned(256), planned(4096)
    assert 3.0 < large / small < 5.0  # 16 times the steps
    assert large < 4096 * BATCH * HIDDEN * 4 / 8  # an eighth of one state for each step


def test_a_declared_maximum_decides_too() -> None:
    t, T = pr.dim("t", max=400)
    x, w = pr.input("x", (), (t,)), pr.input("w")
    y = pr.recurrent((), (t,))
    y[0] = x[0]
    y[t + 1] = pr.tanh(w * y + x[t + 1])
    pr.checkpoint(y, over=t)
    memory = pr.compile(pr.grad(y * y, w), backend="numpy").memory
    assert memory.kept({T: 400}) < 4 * 6 * (20 + 20)


def measured(program: pr.Program, cell: Cell, steps: int) -> tuple[np.ndarray, int]:
    """The result of a run, and what XLA says it needs for it besides arguments and results."""
    backend = program.backend
    assert isinstance(backend, JaxBackend)
    found = program(**dict[str, Any](cell.inputs(steps)))
    (compiled,) = backend.executor.programs.values()
    return found, int(compiled.memory_analysis().temp_size_in_bytes)


@pytest.mark.parametrize("kind", ["rnn", pytest.param("lstm", marks=pytest.mark.slow)])
def test_xla_needs_less(kind: str) -> None:
    steps = 2048
    cell = Cell(kind, 16, 32)
    wanted, whole = measured(cell.gradient("jax"), cell, steps)
    pr.checkpoint(cell.h, over=cell.t, every=64)
    again = cell.gradient("jax")
    found, needed = measured(again, cell, steps)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())
    assert whole > steps * 16 * 32 * 4
    assert needed < whole / 5
    assert needed < 1.5 * again.memory.kept({cell.T: steps}) + 1_000_000


def test_rows_of_a_length_known_at_the_call() -> None:
    """A time in two dims, segments and steps of one: their lengths are bounds, chosen at every call."""
    s, S = pr.dim("s")
    j, J = pr.dim("j")
    x = pr.input("x", (HIDDEN,), (s, j), "float64")
    w = pr.input("w", (HIDDEN, HIDDEN), (), "float64")
    h = pr.recurrent((HIDDEN,), (s, (j, J + 1)), "float64")
    h[0, 0] = 0.0
    h[(s > 0) & (j == 0)] = h[s - 1, J]
    h[s, j + 1] = pr.tanh(x + h @ w)
    loss = (h[s, j + 1] ** 2).sum()
    random = np.random.default_rng(0)
    given = {"x": random.normal(size=(4, 3, HIDDEN)), "w": random.normal(size=(HIDDEN, HIDDEN)) / 4}
    wanted = pr.evaluate(pr.grad(loss, w), given)
    whole = pr.compile(pr.grad(loss, w), backend="numpy").memory
    pr.checkpoint(h, over=j, every=J)
    np.testing.assert_allclose(pr.evaluate(pr.grad(loss, w), given), wanted, rtol=1e-12)
    program = pr.compile(pr.grad(loss, w), backend="numpy")
    np.testing.assert_allclose(program(**dict[str, Any](given)), wanted, rtol=1e-4)
    assert program.memory.kept({S: 64, J: 64}) < whole.kept({S: 64, J: 64}) / 8


def layers(mark: Callable[[pr.Tensor], pr.Tensor]) -> tuple[pr.Tensor, list[pr.Tensor], pr.Tensor]:
    """A deep network at each step: every layer goes through several values that gradients need."""
    t, T = pr.dim("t")
    x = pr.input("x", (HIDDEN,), (t,), "float64")
    weights = [pr.input(f"w{k}", (HIDDEN, HIDDEN), (), "float64") for k in range(3)]
    total = pr.recurrent((), ((t, T + 1),), "float64")
    y = x
    for w in weights:
        y = mark(pr.softmax(pr.sin(y @ w)) * pr.sigmoid(y))
    total[0] = 0.0
    total[t + 1] = total + (y * y).sum()
    return pr.tanh(total[T]), weights, x


def test_marked_tensors_are_computed_again() -> None:
    random = np.random.default_rng(0)
    given = {f"w{k}": random.normal(size=(HIDDEN, HIDDEN)) / 2 for k in range(3)}
    given["x"] = random.normal(size=(5, HIDDEN))
    loss, weights, x = layers(lambda y: y)
    wanted = pr.evaluate(pr.grad(loss, [*weights, x]), given)
    whole = pr.compile(pr.grad(loss, [*weights, x]), backend="numpy").memory
    loss, weights, x = layers(pr.checkpoint)
    for found, expected in zip(pr.evaluate(pr.grad(loss, [*weights, x]), given), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    program = pr.compile(pr.grad(loss, [*weights, x]), backend="numpy")
    for found, expected in zip(program(**dict[str, Any](given)), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert program.memory.kept({"T": 1000}) < whole.kept({"T": 1000}) / 2


def test_a_marked_tensor_need_not_live_on() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (HIDDEN,), (t,))
    w = pr.input("w", (HIDDEN, HIDDEN))
    y = pr.checkpoint(pr.exp(x @ w))
    score = pr.recurrent((), ((t, T + 1),))
    score[0] = 1.0
    score[t + 1] = pr.tanh(score * (y * y).sum())
    loss = score[T] * 1.0
    memory = pr.compile(pr.grad(loss, w), backend="numpy").memory
    buffers = {p.name: p for p in memory.program.places.values() if p.kind == "buffer"}
    assert not [name for name in buffers if name.startswith(("exp", "einsum", "mul"))]


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        (lambda x, y, t: pr.checkpoint(x), "an input is not computed"),
        (lambda x, y, t: pr.checkpoint(y[0]), "a view is not computed"),
        (lambda x, y, t: pr.checkpoint(y, every=3), "every= says"),
        (lambda x, y, t: pr.checkpoint(y, over=t, every=0), "cannot have 0 steps"),
        (lambda x, y, t: pr.checkpoint(y[0] * 2.0, over=t), "does not vary along t"),
    ],
)
def test_what_cannot_be_marked(mark: Any, message: str) -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,))
    with pytest.raises(RecomputeError, match=message):
        mark(x, x * x, t)


def test_segments_of_a_dim_that_ends_early() -> None:
    t, T = pr.dim("t")
    w = pr.input("w")
    y = pr.recurrent((), (t,))
    y[0] = w
    y[t + 1] = y * 1.7
    pr.checkpoint(y, over=t, every=4)
    with pytest.raises(RecomputeError, match="t ends as the program runs"):
        pr.evaluate(pr.grad(y * y, w), {"w": 0.31}, {T: 20}, until={t: y > 2.0})


def test_segments_of_a_recurrence_that_reads_its_whole_past() -> None:
    t, _ = pr.dim("t")
    w = pr.input("w")
    y = pr.recurrent((), (t,))
    y[0] = w
    y[t + 1] = pr.tanh(y[0 : t + 1].sum(0))
    pr.checkpoint(y, over=t, every=4)
    with pytest.raises(RecomputeError, match="reads itself over a range"):
        pr.evaluate(pr.grad(y * y, w), {"w": 0.31}, {"T": 6})
