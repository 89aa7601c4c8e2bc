"""Contractions that a recurrence reads but does not feed run before it, where that pays and takes no new room."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr


def network(rows: int, width: int, source: str = "input") -> tuple[pr.Tensor, dict[str, np.ndarray]]:
    """`h[t + 1] = tanh(x @ w + h @ u)` on an input, or on another recurrence."""
    t, T = pr.dim("t")
    x = pr.input("x", (rows, width), (t,))
    w, u = pr.input("w", (width, width)), pr.input("u", (width, width))
    given = x
    if source == "recurrence":
        given = pr.recurrent((rows, width), (t,))
        given[0] = x[0]
        given[t + 1] = pr.tanh(given + x[t + 1])
    h = pr.recurrent((rows, width), ((t, T + 1),))
    h[0] = pr.zeros((rows, width))
    h[t + 1] = pr.tanh(given @ w + h @ u)
    random = np.random.default_rng(0)
    arrays = {"x": (5, rows, width), "w": (width, width), "u": (width, width)}
    return h[T], {name: (0.1 * random.normal(size=shape)).astype(np.float32) for name, shape in arrays.items()}


def parallel(outputs: pr.Tensor, without: tuple[str, ...] = ()) -> int:
    """How many contractions are in loops whose iterations are independent."""
    schedule = pr.compile(outputs, backend="numpy", without=without).schedule
    lines = schedule.split("\n")
    return sum("einsum" in line and lines[number - 1].startswith("for all") for number, line in enumerate(lines))


def test_a_product_with_the_input_runs_before_the_recurrence() -> None:
    outputs, inputs = network(1, 64)
    assert parallel(outputs) == 1
    assert parallel(outputs, without=("hoist",)) == 0
    assert "hoist: contraction at tests/schedule/test_hoisting.py" in pr.compile(outputs, backend="numpy").explain()
    want = pr.evaluate(outputs, inputs)
    for backend in ("numpy", "torch", "jax"):
        found = pr.compile(outputs, backend=backend, progress=False)(**dict[str, Any](inputs))
        np.testing.assert_allclose(np.asarray(found), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "width", "source"), [(8, 64, "input"), (1, 8, "input"), (1, 64, "recurrence")], ids=str
)
def test_it_stays_where_that_does_not_pay(rows: int, width: int, source: str) -> None:
    """Many rows are as fast alone; small products are not worth the room; what is made step by step is not kept."""
    assert parallel(network(rows, width, source)[0]) == 0


def test_inside_another_loop() -> None:
    """With weights that change from one iteration to the next, all is one recurrence; along t it is not."""
    i, I = pr.dim("i")
    t, T = pr.dim("t")
    x = pr.input("x", (64,), (i, t))
    w = pr.recurrent((64, 64), (i,))
    h = pr.recurrent((64,), (i, (t, T + 1)))
    h[i, 0] = pr.zeros((64,))
    h[i, t + 1] = pr.tanh(x @ w + h)
    w[0] = pr.zeros((64, 64)) + 0.01
    w[i + 1] = w * 0.9 + h[i, T] * 0.1
    program = pr.compile(w[I - 1], backend="numpy")
    lines = [line.strip() for line in program.schedule.split("\n")]
    assert any("einsum" in line and lines[n - 1].startswith("for all t") for n, line in enumerate(lines))
    inputs = {"x": np.random.default_rng(0).normal(size=(3, 4, 64)).astype(np.float32)}
    np.testing.assert_allclose(program(**dict[str, Any](inputs)), pr.evaluate(w[I - 1], inputs), rtol=1e-4, atol=1e-5)


def test_steps_of_a_stream_come_one_by_one() -> None:
    t, T = pr.dim("t")
    x, w = pr.input("x", (64,), (t,)), pr.input("w", (64, 64))
    h = pr.recurrent((64,), ((t, T + 1),))
    h[0] = pr.zeros((64,))
    h[t + 1] = pr.tanh(x @ w + h)
    program = pr.compile(h[t + 1], backend="numpy")
    taken: list[int] = []

    def steps() -> object:
        for number in range(3):
            taken.append(number)
            yield np.full(64, 0.1, np.float32)

    stream = program.stream(over=t, x=steps(), w=np.eye(64, dtype=np.float32), bounds={T: 3})
    next(iter(stream))
    assert len(taken) < 3
