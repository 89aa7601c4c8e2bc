"""Recurrences over two dims that go along both: their antidiagonals run at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.loops.ir import For, walk

SIZES = [(1, 1), (1, 5), (5, 1), (5, 7), (7, 5), (8, 8)]  # the last three are compiled once
Made = tuple[dict[str, Any], pr.Bound, pr.Bound]


def _dims(least: int = 1) -> tuple[pr.Dim, pr.Bound, pr.Dim, pr.Bound, pr.Tensor, pr.Tensor]:
    i, I = pr.dim("i", min=least)
    j, J = pr.dim("j", min=least)
    return i, I, j, J, pr.input("x", (), (i,), "float64"), pr.input("y", (), (j,), "float64")


def alignment() -> Made:
    """A soft minimum over three neighbours, whose borders are other values, and its gradients."""
    i, I, j, J, x, y = _dims()
    c = pr.recurrent((), (i, j), "float64")
    up = pr.where(i > 0, c[i - 1, j], 9.0)
    left = pr.where(j > 0, c[i, j - 1], 9.0)
    both = pr.where((i > 0) & (j > 0), c[i - 1, j - 1], 9.0)
    c[i, j] = pr.square(x - y) + pr.where((i > 0) | (j > 0), -pr.logsumexp(-pr.stack([up, left, both]), 0), 0.0)
    end = c[I - 1, J - 1]
    return {"end": end, "x": pr.grad(end, x), "y": pr.grad(end, y)}, I, J


def by_pieces() -> Made:
    """The same dependences, with a row and a column of their own at the beginning; all of the table is returned."""
    i, I, j, J, x, y = _dims()
    c = pr.recurrent((), ((i, I + 1), (j, J + 1)), "float64")
    c[0, 0] = 0.0
    c[i + 1, 0] = c[i, 0] + x
    c[0, j + 1] = c[0, j] + 1.0
    least = pr.minimum(pr.minimum(c[i, j + 1], c[i + 1, j]) + 1.0, c[i, j])
    c[i + 1, j + 1] = least + pr.square(x - y)
    rows = c[i, 0 : J + 1].sum(0)
    return {"c": c, "rows": rows, "columns": c[0 : I + 1, j].max(0), "x": pr.grad(c[I, J], x)}, I, J


def backwards() -> Made:
    i, I, j, J, x, y = _dims()
    c = pr.recurrent((), (i, j), "float64")
    below = pr.where(i + 1 < I, c[pr.min(i + 1, I - 1), j], 0.5)
    right = pr.where(j + 1 < J, c[i, pr.min(j + 1, J - 1)], 0.25)
    c[i, j] = pr.tanh(below * x + right * y)
    return {"c": c, "y": pr.grad(c[0, 0], y)}, I, J


def one_down_one_up() -> Made:
    """Down one dim and up the other."""
    i, I, j, J, x, y = _dims()
    c = pr.recurrent((), (i, j), "float64")
    up = pr.where(i > 0, c[i - 1, j], x)
    right = pr.where(j + 1 < J, c[i, pr.min(j + 1, J - 1)], y)
    c[i, j] = pr.tanh(up * 0.5 + right + x * y)
    return {"c": c, "x": pr.grad(c[I - 1, 0], x)}, I, J


def steep() -> Made:
    """A read of the next column of the row before: a row is worth two columns."""
    i, I, j, J, x, y = _dims()
    c = pr.recurrent((), (i, j), "float64")
    ahead = pr.where((i > 0) & (j + 1 < J), c[pr.max(i - 1, 0), pr.min(j + 1, J - 1)], x)
    left = pr.where(j > 0, c[i, j - 1], y)
    c[i, j] = pr.tanh(ahead + left * 0.5)
    return {"c": c, "x": pr.grad(c[I - 1, J - 1], x)}, I, J


def network() -> Made:
    """A recurrent network over a grid of cells with states, for a batch."""
    b, _ = pr.dim("b")
    i, I, j, J, x, y = _dims()
    w = pr.input("w", (2, 2), dtype="float64")
    h = pr.recurrent((2,), (b, i, j), "float64")
    up = pr.where(i > 0, h[b, pr.max(i - 1, 0), j], 0.1)
    left = pr.where(j > 0, h[b, i, pr.max(j - 1, 0)], -0.2)
    h[b, i, j] = pr.tanh(up @ w + left * x + y + pr.value(b))
    loss = pr.square(h[b, I - 1, J - 1]).sum()[{b: slice(0, 2)}].sum(0)
    return {"loss": loss, "w": pr.grad(loss, w)}, I, J


def solid() -> Made:
    """Three dims, of which two are skewed."""
    i, I, j, J, x, y = _dims()
    k, _ = pr.dim("k", bound=I)
    c = pr.recurrent((), (i, j, k), "float64")
    parts = [
        pr.where(i > 0, c[pr.max(i - 1, 0), j, k], x),
        pr.where(j > 0, c[i, pr.max(j - 1, 0), k], y),
        pr.where(k > 0, c[i, j, pr.max(k - 1, 0)], 1.0),
    ]
    c[i, j, k] = pr.tanh(parts[0] + parts[1] * 0.5 + parts[2] * 0.25)
    return {"c": c}, I, J


def _given(rows: int, columns: int) -> dict[str, Any]:
    random = np.random.default_rng(10 * rows + columns)
    return {"x": random.normal(size=rows), "y": random.normal(size=columns), "w": random.normal(size=(2, 2))}


@pytest.mark.parametrize("program", [alignment, by_pieces, backwards, one_down_one_up, steep, network, solid])
def test_diagonals_give_the_same(program: Callable[[], Made]) -> None:
    outputs, I, J = program()
    compiled = pr.compile(outputs)
    circles = 1 if program is solid else 2  # the table, and its gradient, which may be by several tensors
    assert sum(note.rule == "wavefront" for note in compiled.compiled.notes) >= circles
    names = compiled.compiled.graph.inputs
    for rows, columns in SIZES:
        given = {name: array for name, array in _given(rows, columns).items() if name in names}
        bounds: dict[Any, int] = {I: rows, J: columns, **({"B": 2} if "w" in names else {})}
        want = pr.evaluate(outputs, given, bounds)
        got = compiled(**given, bounds=bounds)
        for name in outputs:
            np.testing.assert_allclose(got[name], want[name], rtol=1e-9, atol=1e-11, err_msg=f"{name} {rows} {columns}")


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_on_other_backends(backend: str) -> None:
    outputs, I, J = alignment()
    compiled = pr.compile(outputs, backend=backend)
    given = {name: array for name, array in _given(3, 5).items() if name != "w"}
    want = pr.evaluate(outputs, given, {I: 3, J: 5})
    for name in outputs:
        np.testing.assert_allclose(compiled(**given)[name], want[name], rtol=1e-9, atol=1e-11)


def test_one_loop_goes_step_by_step() -> None:
    outputs, _, _ = alignment()
    loops = pr.compile(outputs).compiled.loops
    for loop in walk(loops.body):
        inner = [item for item in walk(loop.body) if isinstance(item, For)] if isinstance(loop, For) else []
        assert not isinstance(loop, For) or loop.parallel or all(item.parallel for item in inner)
    assert any(isinstance(loop, For) and not loop.parallel for loop in walk(loops.body))


def test_what_one_loop_can_carry_stays() -> None:
    """All columns of a row read the row before only."""
    i, I, j, _, x, y = _dims()
    c = pr.recurrent((), (i, j), "float64")
    c[0, j] = y
    c[i + 1, j] = pr.tanh(c[i, pr.max(j - 1, 0)] + c[i, j]) + x
    assert not any(note.by == "skew" for note in pr.compile(c[I - 1, j]).compiled.notes)


def test_storage_of_two_diagonals() -> None:
    """Of a table of which only the end is wanted, two diagonals and the newest are stored."""
    i, I, j, J, x, y = _dims()
    c = pr.recurrent((), (i, j), "float64")
    up, left = pr.where(i > 0, c[i - 1, j], x), pr.where(j > 0, c[i, j - 1], y)
    c[i, j] = pr.tanh(up + left)
    memory = pr.compile(c[I - 1, J - 1]).memory
    assert memory.peak({I: 4096, J: 4096}) < 40 * 4096 * 8


def test_a_few_operations_with_integers_go_cell_by_cell() -> None:
    """One small loop of XLA is faster than a diagonal at a time."""
    i, I = pr.dim("i", min=1)
    j, J = pr.dim("j", min=1)
    x, y = pr.input("x", (), (i,), "int32"), pr.input("y", (), (j,), "int32")
    c = pr.recurrent((), ((i, I + 1), (j, J + 1)), "int32")
    c[0, 0], c[i + 1, 0], c[0, j + 1] = 0, 0, 0
    c[i + 1, j + 1] = pr.where(x == y, c + 1, pr.maximum(c[i, j + 1], c[i + 1, j]))
    program = pr.compile({"common": c[I, J]})
    assert not any(note.rule == "wavefront" for note in program.compiled.notes)
    rng = np.random.default_rng(0)
    for rows, columns in ((1, 1), (4, 6), (9, 5)):
        given: dict[str, Any] = {"x": rng.integers(0, 3, rows, "int32"), "y": rng.integers(0, 3, columns, "int32")}
        assert program(**given)["common"] == pr.evaluate({"common": c[I, J]}, given)["common"]
