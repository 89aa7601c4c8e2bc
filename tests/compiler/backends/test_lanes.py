"""Steps done all at once on JAX: what a step does not read cannot spoil it, and what it reads reaches it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr

STEPS, WIDTH = 9, 3


def attention(window: int | None, rows: bool) -> tuple[pr.Tensor, pr.Program]:
    t, _ = pr.dim("t")
    b, _ = pr.dim("b")
    dims = (b, t) if rows else (t,)
    x = pr.input("x", (WIDTH,), dims)
    v = pr.tanh(x) / pr.input("scale", (), dims)
    seen = slice(0 if window is None else pr.max(0, t - window + 1), t + 1)
    key = (b, seen) if rows else seen
    mixed = pr.softmax(x[key] @ x, 0) @ v[key]
    return mixed, pr.compile(mixed)


def given(rows: bool, scale: np.ndarray) -> dict[str, Any]:
    shape = (2, STEPS) if rows else (STEPS,)
    x = np.random.default_rng(0).normal(size=(*shape, WIDTH)).astype("float32")
    return {"x": x, "scale": np.broadcast_to(scale.astype("float32"), shape)}


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("window", [None, 4])
def test_steps_that_are_not_read_may_hold_anything(window: int | None, rows: bool) -> None:
    """Dividing by zero at step 5 makes infinities there; earlier steps do not read them."""
    scale = np.ones(STEPS)
    scale[5] = 0.0
    mixed, program = attention(window, rows)
    arrays = given(rows, scale)
    with np.errstate(all="ignore"):
        expected = pr.evaluate(mixed, arrays)
    found = np.asarray(program(**arrays))
    assert np.isfinite(found[..., :5, :]).all()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pair", [(np.inf, 1.0), (np.inf, -np.inf), (np.nan, 1.0), (-np.inf, -np.inf), (np.inf, 0.0)])
def test_products_of_numbers_that_are_not_finite(pair: tuple[float, float]) -> None:
    """The sum over a growing prefix of w * v by the rules of IEEE 754, whichever of them holds which."""
    t, _ = pr.dim("t")
    w, v = (pr.input(name, (), (t,)) for name in "wv")
    wide = pr.exp(pr.log(v) * 0) * v  # a computed tensor, kept in a buffer
    total = pr.einsum("s,s->", w[0 : t + 1] * pr.value(t).cast("float32"), (wide * 1.0)[0 : t + 1])
    program = pr.compile(total)
    rng = np.random.default_rng(1)
    for first, second in (pair, pair[::-1]):
        arrays = {"w": rng.normal(size=STEPS).astype("float32"), "v": rng.uniform(1, 2, STEPS).astype("float32")}
        arrays["w"][3], arrays["v"][3] = first, second
        arrays["v"][6] = first
        with np.errstate(all="ignore"):
            expected = pr.evaluate(total, arrays)
        np.testing.assert_allclose(np.asarray(program(**dict[str, Any](arrays))), expected, rtol=1e-5)


@pytest.mark.parametrize("steps", [1, 2, 4, 7])
def test_every_other_step_of_values_with_axes(steps: int) -> None:
    """Every other slot is read as a column of the axis seen as rows; the axes of a value come after it."""
    t, T = pr.dim("t")
    x = pr.input("x", (WIDTH, 2), (t,))
    y = pr.recurrent((2, WIDTH), ((t, T + 1),))
    y[0] = 0.0
    y[t + 1] = pr.tanh(0.5 * y + x.swapaxes(0, 1))
    outputs = {"even": y[0 : T + 1 : 2].sum(0), "odd": x[pr.min(1, T) : T : 2].sum(0)}
    arrays = {"x": np.random.default_rng(steps).normal(size=(steps, WIDTH, 2)).astype("float32")}
    found = pr.compile(outputs)(**dict[str, Any](arrays))
    for name, want in pr.evaluate(outputs, arrays).items():
        np.testing.assert_allclose(found[name], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", [(3, 5), (4, 8), (1, 1)])
def test_lanes_beyond_the_bounds_add_nothing_to_sums(sizes: tuple[int, int]) -> None:
    """Dividing by what is not there makes infinities in the room beyond; products and sums of all rows are right."""
    b, B = pr.dim("b")
    t, T = pr.dim("t")
    x = pr.input("x", (WIDTH,), (b, t))
    w = pr.input("w", (WIDTH, WIDTH))
    inverse = 1.0 / x
    mixed = pr.tanh(inverse @ w) * pr.log(x) + inverse
    outputs = {
        "product": pr.grad((mixed * mixed)[0:B, 0:T].sum(), w),
        "sum": mixed[0:B, 0:T].sum(),
        "rows": mixed[b, 0:T].sum(0),
    }
    arrays = {
        "x": np.random.default_rng(0).uniform(1, 2, (*sizes, WIDTH)).astype("float32"),
        "w": np.random.default_rng(1).normal(size=(WIDTH, WIDTH)).astype("float32"),
    }
    expected = pr.evaluate(outputs, arrays)
    found = pr.compile(outputs)(**dict[str, Any](arrays))
    for name, value in expected.items():
        np.testing.assert_allclose(np.asarray(found[name]), value, rtol=1e-4, err_msg=name)


def test_a_guard_keeps_what_other_lanes_filled() -> None:
    """One of two loops fills a tensor, depending on a bound."""
    t, T = pr.dim("t")
    P = pr.size("P")
    x = pr.input("x", (WIDTH,), (t,))
    y = pr.recurrent((WIDTH,), (t,))
    y[P >= 3] = pr.exp(x)
    y[pr.otherwise] = x * 2.0
    outputs = {"y": y, "sum": (y * 1.0)[0:T].sum(0)}
    program = pr.compile(outputs)
    arrays = {"x": np.random.default_rng(0).normal(size=(5, WIDTH)).astype("float32")}
    for size in (2, 4):
        expected = pr.evaluate(outputs, arrays, bounds={P: size})
        found = program(**dict[str, Any](arrays), bounds={P: size})
        for name, value in expected.items():
            np.testing.assert_allclose(np.asarray(found[name]), value, rtol=1e-4, err_msg=name)


def test_a_kept_value_of_growing_length_where_it_has_one_element() -> None:
    """It is kept with room for the last step; a product with it in the first one is cut to the one element there is."""
    t, _ = pr.dim("t")
    x = pr.input("x", (WIDTH,), (t,))
    scores = pr.tanh(x[0 : t + 1] @ x)
    y = pr.recurrent((WIDTH,), (t,))
    y[0] = scores[0] @ x[0:1]
    y[t + 1] = pr.tanh(y) + scores[t + 1] @ x[0 : t + 2]
    program = pr.compile(y)
    for steps in (1, STEPS):
        arrays = {"x": np.random.default_rng(0).normal(size=(steps, WIDTH)).astype("float32")}
        found = np.asarray(program(**dict[str, Any](arrays)))
        np.testing.assert_allclose(found, pr.evaluate(y, arrays), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_lanes_inside_lanes_read_one_axis_at_positions_of_their_own(backend: str) -> None:
    """`x[t]` in the lanes of t is not `x[k]` in those of k, also where both are at the same offset."""
    t, T = pr.dim("t")
    k, _ = pr.dim("k", bound=T)
    x = pr.input("x", (), (t,), "float64")
    pairs = x - x[k] * x[T - 1 - t]
    values = np.array([1.0, 3.0, 6.0, 10.0])
    want = values[:, None] - values[None, :] * values[::-1, None]
    np.testing.assert_allclose(pr.evaluate(pairs, {"x": values}), want)
    np.testing.assert_allclose(pr.compile(pairs, backend=backend)(x=values), want)
