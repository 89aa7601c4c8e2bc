"""Matrices that steps take from a few: products with all of them, of which each step takes its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
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
    assert _rules({"y": x @ one}) == ["grouped"]
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
    t, T = pr.dim("t")
    x, which = pr.input("x", (WIDTH,), (t,), "float64"), pr.input("which", (1,), (t,), "int32")
    table = pr.input("table", (1000, WIDTH, WIDTH), dtype="float64")
    y = pr.einsum("d,kdh->kh", x, pr.take(table, which, 0))
    assert _rules({"y": y}) == ["grouped"]
    random = np.random.default_rng(0)
    given = {"x": random.normal(size=(9, WIDTH)), "table": random.normal(size=(1000, WIDTH, WIDTH))}
    _check({"y": y}, given | {"which": random.integers(0, 1000, (9, 1)).astype("int32")})
    assert not _rules({"y": pr.grad(y[0:T].sum((0, 1, 2)), table)})


@pytest.mark.parametrize("spec", ["d,kdh->kh", "d,kdh->h", "bd,kdh->bhk", "kd,kdh->kh", "kd,kdh->h", "dk,kdh->hk"])
@pytest.mark.parametrize("rows", [1, 6])
def test_contractions_with_what_steps_take(spec: str, rows: int) -> None:
    """Rows that share a matrix, rows of their own, and sums over them."""
    t, _ = pr.dim("t")
    words = spec.split("->")[0].split(",")
    sizes = {"d": WIDTH, "h": HIDDEN, "k": rows, "b": 3}
    x = pr.input("x", tuple(sizes[label] for label in words[0]), (t,), "float64")
    which, up = pr.input("which", (rows,), (t,), "int32"), pr.input("up", (EXPERTS, WIDTH, HIDDEN), dtype="float64")
    y = pr.einsum(spec, x, pr.take(up, which, 0))
    assert _rules({"y": y}) == ["grouped"]
    random = np.random.default_rng(rows)
    for steps in (0, 1, 40):
        given = {"x": random.normal(size=(steps, *x.shape)), "up": random.normal(size=(EXPERTS, WIDTH, HIDDEN))}
        _check({"y": y}, given | {"which": random.integers(-1, 5, (steps, rows)).astype("int32")})


def test_the_gradient_by_jax_of_what_goes_by_rows() -> None:
    _, _, x, which, up, _ = _inputs()
    y = pr.einsum("d,kdh->kh", x, pr.take(up, which, 0))
    program, given = pr.compile(y), _given(5)
    del given["down"]
    with jax.enable_x64():
        taken = np.clip(given["which"], 0, EXPERTS - 1)
        found = jax.grad(lambda x, up: (program(which=given["which"], x=x, up=up) ** 2).sum(), (0, 1))
        want = jax.grad(lambda x, up: (jnp.einsum("td,tkdh->tkh", x, up[taken]) ** 2).sum(), (0, 1))
        for ours, theirs in zip(*(f(given["x"], given["up"]) for f in (found, want)), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


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
