"""Sums over steps of scattered values are scattered at once; sums of products are in `test_training_products.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr

LETTERS, WIDTH = 6, 3


def gradient(rows: int, base: float = 0.0) -> pr.Tensor:
    """A sum over two dims of what rows of letters add to a table."""
    b, B = pr.dim("b")
    t, T = pr.dim("t")
    letters = pr.input("letters", (rows,), (b, t), "int32")
    added = pr.tanh(pr.input("x", (rows, WIDTH), (b, t)))
    table = pr.scatter_add(pr.zeros((LETTERS, WIDTH)) + base, letters, added, 0)
    return table[0:B, 0:T].sum((0, 1))


def scatters(outputs: Any) -> list[tuple[str, ...]]:
    """The dims of each table that the program makes."""
    graph = pr.compile(outputs, backend="numpy").compiled.graph
    return [tuple(map(str, n.symbols)) for n in graph if any(d.op == "scatter_add" for d in n.definitions)]


@pytest.mark.parametrize(("rows", "base", "dims"), [(2, 0.0, ()), (2, 1.0, ("b", "t"))])
def test_a_table_is_filled_once(rows: int, base: float, dims: tuple[str, ...]) -> None:
    """Not where it does not begin with zeros."""
    assert scatters(gradient(rows, base)) == [dims]


def test_the_gradient_of_an_embedding() -> None:
    t, T = pr.dim("t")
    table = pr.input("table", (LETTERS, WIDTH))
    read = pr.take(table, pr.input("letters", (2,), (t,), "int32"), 0)
    assert scatters(pr.grad(pr.square(read)[0:T].sum(), table)) == [()]


@pytest.mark.parametrize("first", [True, False])
def test_the_gradient_of_an_embedding_that_is_multiplied(first: bool) -> None:
    """Products with all entries are taken, so both gradients are products of one table, made of all steps."""
    t, T = pr.dim("t")
    table, weight = pr.input("table", (LETTERS, 16)), pr.input("weight", (16, 16))
    letters = pr.input("letters", (2,), (t,), "int32")
    h = pr.recurrent((2, 16), ((t, T + 1),))
    h[0] = 0.0
    h[t + 1] = pr.tanh(h + (pr.take(table @ weight, letters, 0) if first else pr.take(table, letters, 0) @ weight))
    program = pr.compile(pr.grad(pr.square(h[T]).sum(), [table, weight]))
    graph = program.compiled.graph
    assert [n.symbols for n in graph if any(d.op == "scatter_add" for d in n.definitions)] == [()]
    random = np.random.default_rng(0)
    inputs: dict[str, Any] = {"letters": random.integers(0, LETTERS, (5, 2)).astype("int32")}
    inputs |= {"table": random.normal(size=(LETTERS, 16)), "weight": random.normal(size=(16, 16))}
    inputs = {name: a if a.dtype == "int32" else a.astype("float32") / 4 for name, a in inputs.items()}
    want = pr.evaluate(pr.grad(pr.square(h[T]).sum(), [table, weight]), inputs)
    for found, expected in zip(program(**inputs), want, strict=True):
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("steps", [(0, 2), (3, 4)])
def test_the_sum_is_the_same(backend: str, steps: tuple[int, int]) -> None:
    """With letters that are not in the table, and without any steps."""
    outputs = gradient(2)
    random = np.random.default_rng(0)
    letters = random.integers(-1, LETTERS + 2, (*steps, 2)).astype("int32")
    inputs = {"letters": letters, "x": random.normal(size=(*steps, 2, WIDTH)).astype("float32")}
    found = pr.compile(outputs, backend=backend)(**dict[str, Any](inputs))
    want = np.zeros((LETTERS, WIDTH))
    for letter, row in zip(letters.reshape(-1), inputs["x"].reshape(-1, WIDTH), strict=True):
        if 0 <= letter < LETTERS:
            want[letter] += np.tanh(row)
    np.testing.assert_allclose(np.asarray(found), want, rtol=1e-5, atol=1e-5)


SPELLINGS = {
    "sum": lambda w, v: (w.unsqueeze(1) * v).sum(0),
    "swapped": lambda w, v: (v * w.unsqueeze(1)).sum(0),
    "transposed": lambda w, v: (w * v.transpose()).sum(1),
    "product": lambda w, v: w @ v,
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("past", [True, False])
def test_attention_keeps_no_products_in_any_spelling(spelling: str, past: bool) -> None:
    """The gradient of a weighted sum over steps is contractions, however the sum is written."""
    t, T = pr.dim("t")
    x, u = pr.input("x", (4,), (t,)), pr.input("u", (4, 4))
    near = slice(0, t + 1) if past else slice(t, T)
    v = x @ u
    y = SPELLINGS[spelling](pr.softmax(v[near] @ x, 0), v[near])
    outputs = {"u": pr.grad(pr.square(y)[0:T].sum((0, 1)), u)}
    program = pr.compile(outputs)
    if past:  # a number for each pair, not one for each of its features; of what is to come any spelling keeps those
        assert program.memory.kept({T: 512}) < 512 * 512 * 4 * 4
    for steps in (0, 1, 5):
        given: dict[str, Any] = {
            name: np.random.default_rng(3).normal(size=s).astype("float32") for name, s in _shapes(steps).items()
        }
        np.testing.assert_allclose(program(**given)["u"], pr.evaluate(outputs, given)["u"], rtol=1e-3, atol=1e-4)


def test_short_sums_stay_as_they_are_written() -> None:
    t, T = pr.dim("t")
    x, w = pr.input("x", (2, 4), (t,)), pr.input("w", (3, 4))
    y = (pr.window(x, t, 3) * w.axes[pr.max(0, 2 - t) :].unsqueeze(1)).sum(0)
    program = pr.compile(pr.grad(pr.square(y)[0:T].sum((0, 1, 2)), w))
    assert not any(note.what == "a sum of products is a contraction" for note in program.compiled.notes)


def _shapes(steps: int) -> dict[str, tuple[int, ...]]:
    return {"x": (steps, 4), "u": (4, 4)}
