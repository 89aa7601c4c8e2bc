"""Gradients along every way of indexing time, against finite differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.front_end import completed
from polyrhythm.compiler.trace import trace
from tests.compiler.gradients.differences import check

t, T = pr.dim("t")
x = pr.input("x", (), (t,), "float64")

PATTERNS: dict[str, Callable[[], pr.Tensor]] = {
    "identity": lambda: x * x,
    "constant_range": lambda: (x[0:2] ** 2).sum(0) * x,
    "all": lambda: (x[0:T] ** 2).sum(0) * x,
    "past": lambda: x[0 : t + 1].sum(0) ** 3,
    "future": lambda: (x[t:T] ** 2).sum(0) * x,
    "past_window": lambda: (pr.window(x, t, 3) ** 2).sum(0) * x,
    "future_window": lambda: (x[t : pr.min(t + 3, T)] ** 2).sum(0) * x,
    "two_sided_window": lambda: (x[pr.max(0, t - 1) : pr.min(T, t + 2)] ** 2).sum(0) * x,
    "before": lambda: pr.where(t > 0, x[t - 1] * x, 0.0),
    "after": lambda: pr.where(t < T - 1, x[t + 1] ** 2 * x, 0.0),
    "last": lambda: x[T - 1] * x * x,
    "first": lambda: x[0] ** 2 * x,
    "stride": lambda: (x[0:T:2] ** 3).sum(0),
    "strided_step": lambda: pr.where(2 * t < T, x[pr.min(2 * t, T - 1)] ** 3, 0.0),
    "quotient": lambda: x[t // 2] * x,
    "remainder": lambda: x[t % 2] * x * x,
    "reversed": lambda: x[T - 1 - t] * x * pr.value(t),
    "reversed_range": lambda: (x[t::-1] * x[0 : t + 1]).sum(0) * x,
    "clamped": lambda: x[pr.max(0, t - 2)] * x,
    "chained": lambda: (x[t // 2] * 2.0)[0:T].sum(0) * x,
    "diagonal": lambda: (x * x[0:T])[0:T].sum() * x,
}


@pytest.mark.parametrize("steps", [2, 5])
@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern(name: str, steps: int) -> None:
    check(PATTERNS[name](), x, "x", {"x": np.random.default_rng(steps).normal(size=steps)})


def test_two_dims_with_diagonal_reads() -> None:
    i, _ = pr.dim("i")
    j, _ = pr.dim("j")
    a = pr.input("a", (), (i, j), "float64")
    d = pr.recurrent((), (i, j), "float64")
    d[i == 0] = a
    d[(i > 0) & (j == 0)] = a * 2.0
    d[i + 1, j + 1] = pr.tanh(d[i, j + 1] + d[i + 1, j] * d) + a[i + 1, j + 1]
    check(d * d, a, "a", {"a": np.random.default_rng(0).normal(size=(3, 4))})


def test_a_quotient_and_its_remainder_tell_the_reader() -> None:
    """Steps in rows of four: each entry is read by one step, so its gradient sums over none."""
    j, _ = pr.dim("j")
    r, _ = pr.dim("r")
    a = pr.input("a", (), ((j, T), (r, 4)), "float64")
    loss = a[(t + 1) // 4, (t + 1) % 4] ** 2 * x
    entries = np.random.default_rng(0).normal(size=(9, 4))
    check(loss, a, "a", {"a": entries, "x": np.random.default_rng(1).normal(size=9)})
    graph = completed(trace(pr.grad(loss[0:T].sum(), [a])))
    assert not any(d.op == "reduce" for node in graph for d in node.definitions)


def test_readers_that_are_fewer_than_another_bound_says() -> None:
    """How many there are follows from a range with a stride and from a guard by the bound of another dim."""
    i, I = pr.dim("i")
    z = pr.input("z", (), (t, i), "float64")
    y = pr.recurrent((), (i,), "float64")
    seen = slice(0, I - 1 - i, 2)
    y[I - 1 - i] = pr.tanh(pr.where(i > 0, pr.where(i < T, y[seen] @ z[i, seen], 1.0), 2.0))
    for steps, rows in ((4, 3), (2, 5), (3, 6)):
        check(y * y, z, "z", {"z": np.random.default_rng(0).normal(size=(steps, rows))})


def test_a_last_value_made_of_all_others() -> None:
    y = pr.recurrent((), ((t, T + 1),), "float64")
    y[t] = x
    y[T] = pr.tanh(y[0:T].sum(0))
    values = np.array([0.1, -0.2, 0.4])
    check(y * y, x, "x", {"x": values})
    total = np.tanh(values.sum())
    for backend in ("numpy", "jax"):
        found = pr.compile(pr.grad(y * y, x), backend=backend)(x=values)
        np.testing.assert_allclose(found, 2 * values + 2 * total * (1 - total**2), rtol=1e-5)


def test_a_piece_that_holds_nowhere() -> None:
    y = pr.recurrent((), ((t, T + 1),), "float64")
    y[0] = 1.0
    y[1] = pr.tanh(y[0:1].max(0))
    y[t + 2] = y[t + 1] * x[t + 1]
    for steps in (0, 1, 2, 3):
        check(y * y, x, "x", {"x": np.arange(1.0, steps + 1)}, {T: steps})


def test_a_broadcast_dim_is_summed() -> None:
    b, _ = pr.dim("b")
    w = pr.input("w", (2,), (), "float64")
    y = pr.input("y", (2,), (b, t), "float64")
    check(
        pr.tanh((w * y).sum()),
        w,
        "w",
        {"w": np.array([0.3, -0.2]), "y": np.random.default_rng(0).normal(size=(2, 3, 2))},
    )


def test_a_length_decided_by_data() -> None:
    w = pr.input("w", (), (), "float64")
    y = pr.recurrent((), (t,), "float64")
    y[0] = w
    y[t + 1] = y * 1.7
    check(y * y, w, "w", {"w": 0.31}, {T: 20}, until={t: y > 2.0})


def test_leaves_cut_their_own_definitions() -> None:
    y = pr.recurrent((), (t,), "float64")
    y[0] = x[0]
    y[t + 1] = y * x[t + 1]
    values = np.array([2.0, 3.0, 4.0])
    by_y, by_x = pr.evaluate((pr.grad(y[T - 1] * 1.0, y), pr.grad(y[T - 1] * 1.0, x)), {"x": values})
    assert by_y.tolist() == [0.0, 0.0, 1.0]
    assert by_x.tolist() == [12.0, 8.0, 6.0]


def test_leaves_taken_together_cut_each_other() -> None:
    a = pr.input("a", (), (), "float64")
    b = pr.recurrent((), (), "float64")
    b[pr.otherwise] = a * 3.0
    loss = a * b
    together = pr.evaluate(pr.grad(loss, (a, b)), {"a": 2.0})
    assert [float(g) for g in together] == [6.0, 2.0]
    assert float(pr.evaluate(pr.grad(loss, a), {"a": 2.0})) == 12.0


def test_detached_values_are_constants() -> None:
    check_value = pr.evaluate(pr.grad(pr.detach(x) * x, x), {"x": [3.0, 4.0]})
    assert check_value.tolist() == [3.0, 4.0]


def test_second_derivatives() -> None:
    w = pr.input("w", (), (), "float64")
    first = pr.grad(pr.tanh(w * x), w)
    check(first, w, "w", {"w": 0.4, "x": np.array([0.5, -1.0, 2.0])})


def test_a_loss_that_does_not_depend_on_it_has_gradient_zero() -> None:
    w = pr.input("w", (2,), (), "float64")
    outputs = (pr.grad(x * 1.0, w), w, x)
    assert pr.evaluate(outputs, {"x": [1.0], "w": [1.0, 2.0]})[0].tolist() == [0.0, 0.0]


def test_an_input_that_no_gradient_needs_may_still_be_given() -> None:
    w = pr.input("w", (), (), "float64")
    assert float(pr.evaluate(pr.grad(w * 2.0, w), {"w": 1.0})) == 2.0
    assert float(pr.compile(pr.grad(w * 2.0, w), backend="numpy")(w=1.0)) == 2.0
