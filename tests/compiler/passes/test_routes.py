"""Matrices that steps take from a few: products with all of them, of which each step takes its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr

EXPERTS, WIDTH, HIDDEN, CHOSEN = 4, 8, 9, 2


def _inputs() -> tuple[pr.Dim, pr.Bound, pr.Tensor, pr.Tensor, pr.Tensor, pr.Tensor]:
    t, T = pr.dim("t")
    x, which = pr.input("x", (WIDTH,), (t,), "float64"), pr.input("which", (CHOSEN,), (t,), "int32")
    up = pr.input("up", (EXPERTS, WIDTH, HIDDEN), dtype="float64")
    down = pr.input("down", (HIDDEN, EXPERTS, WIDTH), dtype="float64")
    return t, T, x, which, up, down


def _given(steps: int) -> dict[str, Any]:
    """Places beyond both ends of the table are among them: those are clamped."""
    random = np.random.default_rng(steps)
    return {
        "x": random.normal(size=(steps, WIDTH)),
        "which": random.integers(-1, EXPERTS + 1, size=(steps, CHOSEN)).astype("int32"),
        "up": random.normal(size=(EXPERTS, WIDTH, HIDDEN)),
        "down": random.normal(size=(HIDDEN, EXPERTS, WIDTH)),
    }


def _rules(outputs: Any) -> list[str]:
    return [note.rule for note in pr.compile(outputs).compiled.notes if note.by == "routes"]


def _check(outputs: Mapping[str, pr.Tensor], given: Mapping[str, Any], bounds: Any = None) -> None:
    want = pr.evaluate(outputs, given, bounds)
    got = pr.compile(outputs)(**given, bounds=bounds)
    for name in outputs:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_experts_and_their_gradients(steps: int) -> None:
    _, T, x, which, up, down = _inputs()
    hidden = pr.tanh(pr.einsum("d,kdh->kh", x, pr.take(up, which, 0)))
    y = pr.einsum("kh,hkd->d", hidden, pr.take(down, which, 1))
    loss = pr.square(y)[0:T].sum((0, 1))
    first, second, third = pr.grad(loss, [x, up, down])
    outputs = {"y": y, "x": first, "up": second, "down": third}
    assert _rules(outputs) == ["take-of-contraction"] * 2
    _check(outputs, _given(steps), {T: steps})


def test_one_matrix_by_matmul() -> None:
    """A single place has no label."""
    _, _, x, which, up, _ = _inputs()
    one = pr.take(up, which.axes[0], 0)
    assert _rules({"y": x @ one}) == ["take-of-contraction"]
    _check({"y": x @ one}, {name: array for name, array in _given(4).items() if name != "down"})


def test_what_is_not_taken_may_be_infinite() -> None:
    _, _, x, which, up, down = _inputs()
    given = _given(3)
    given["which"][:] = [[0, 2], [2, 0], [0, 0]]
    given["up"][1], given["down"][:, 3] = np.inf, np.nan
    hidden = pr.tanh(pr.einsum("d,kdh->kh", x, pr.take(up, which, 0)))
    outputs = {"y": pr.einsum("kh,hkd->d", hidden, pr.take(down, which, 1))}
    assert np.isfinite(pr.evaluate(outputs, given)["y"]).all()
    _check(outputs, given)


def test_steps_that_wait_for_each_other_read_what_they_take() -> None:
    t, T, _, which, up, _ = _inputs()
    h = pr.recurrent((WIDTH,), ((t, T + 1),), "float64")
    h[0] = 0.1
    matrices = pr.take(up, which, 0).axes[:, :, 0:WIDTH]
    h[t + 1] = pr.tanh(pr.einsum("d,kdh->h", h, matrices))
    direct = pr.recurrent((WIDTH,), ((t, T + 1),), "float64")
    direct[0] = 0.1
    direct[t + 1] = pr.tanh(
        pr.einsum("h,kdh->d", pr.einsum("d,kdh->h", direct, pr.take(up, which, 0)), pr.take(up, which, 0))
    )
    assert not _rules({"h": h[T], "direct": direct[T]})
    given = {name: array for name, array in _given(3).items() if name in ("which", "up")}
    _check({"h": h[T], "direct": direct[T]}, given, {T: 3})


def test_a_large_table_is_not_multiplied_whole() -> None:
    t, _ = pr.dim("t")
    x, which = pr.input("x", (WIDTH,), (t,)), pr.input("which", (1,), (t,), "int32")
    table = pr.input("table", (1000, WIDTH, WIDTH))
    assert not _rules({"y": pr.einsum("d,kdh->kh", x, pr.take(table, which, 0))})


def test_matrices_that_are_trained() -> None:
    """The table changes from iteration to iteration; within one, all steps take from it."""
    i, I = pr.dim("i")
    t, T, x, which, up, _ = _inputs()
    w = pr.recurrent((EXPERTS, WIDTH, HIDDEN), ((i, I + 1),), "float64")
    y = pr.einsum("d,kdh->kh", x, pr.take(w, which, 0))
    loss = pr.square(y)[{t: slice(0, T)}].sum((0, 1, 2))
    w[0] = up
    w[i + 1] = w - 0.1 * pr.grad(loss, w)
    assert _rules({"w": w[I]}) == ["take-of-contraction"]
    given = {name: array for name, array in _given(4).items() if name != "down"}
    _check({"w": w[I]}, given, {I: 2})
