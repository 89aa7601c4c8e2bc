"""Programs that the fuzzer found, made small."""

from __future__ import annotations

import numpy as np
import pytest

import polyrhythm as pr


def test_reads_at_different_rates() -> None:
    t, T = pr.dim("t")
    y = pr.recurrent((), (t,), "int32")
    y[t] = pr.where(t >= 1, y[t - 1], 1) + pr.where(t // 2 < t, y[t // 2], 1)
    np.testing.assert_array_equal(pr.evaluate(y, bounds={T: 6}), [2, 4, 8, 12, 20, 28])


def test_exception_at_a_constant_step() -> None:
    """The right side of `y[2]` has no dims, yet stands in the recursion."""
    t, T = pr.dim("t")
    y = pr.recurrent((), (t,), "int32")
    y[2] = y[1] * 3
    y[pr.otherwise] = pr.where(t > 0, y[pr.max(t - 1, 0)], 1) + 1
    np.testing.assert_array_equal(pr.evaluate(y, bounds={T: 6}), [2, 3, 9, 10, 11, 12])


def test_exception_at_a_step_counted_from_the_end() -> None:
    t, T = pr.dim("t")
    y = pr.recurrent((), (t,), "int32")
    y[T - 2] = y[T - 1] * 3 - 1
    y[t != T - 2] = pr.where(t < T - 1, y[pr.min(t + 1, T - 1)], 1) + 1
    np.testing.assert_array_equal(pr.evaluate(y, bounds={T: 6}), [9, 8, 7, 6, 5, 2])


def test_exception_that_closes_a_cycle() -> None:
    t, T = pr.dim("t")
    y = pr.recurrent((), (t,), "int32")
    y[2] = y[3] * 3
    y[pr.otherwise] = pr.where(t > 0, y[pr.max(t - 1, 0)], 1) + 1
    with pytest.raises(pr.errors.CycleError):
        pr.evaluate(y, bounds={T: 6})


def test_condition_on_the_extra_step() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,), "int32")
    y = pr.recurrent((), ((t, T + 1),), "int32")
    y[pr.otherwise] = pr.where(t < T, x[pr.min(t, T - 1)], 7)
    np.testing.assert_array_equal(pr.evaluate(y, {"x": np.arange(3, dtype=np.int32)}), [0, 1, 2, 7])


def test_branch_that_is_never_taken() -> None:
    t, T = pr.dim("t")
    y = pr.recurrent((), (t,), "int32")
    h = pr.where(t >= 1, y[t - 1 : t].sum(0), 1)
    y[0] = h[0]
    y[t + 1] = y
    np.testing.assert_array_equal(pr.evaluate(y, bounds={T: 2}), [1, 1])


def test_lengths_beyond_the_bound() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), ((t, T + 1),))
    y = pr.recurrent((), ((t, T + 1),))
    y[pr.otherwise] = x[t : pr.min(T + 1, t + 2)].mean(0)
    result = pr.evaluate(y, {"x": np.array([1, 2, 3, 8], np.float32)})
    np.testing.assert_array_equal(result, [1.5, 2.5, 5.5, 8])


def test_comparisons_keep_the_order_of_dims() -> None:
    t, _ = pr.dim("t")
    i, _ = pr.dim("i")
    x, y = pr.input("x", (), (t,)), pr.input("y", (), (i,))
    assert [c.dims for c in (x < y, x <= y, x > y, x >= y)] == [(t, i)] * 4


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_range_that_is_always_empty_is_no_first_step_of_a_ring(backend: str) -> None:
    t, T = pr.dim("t")
    y = pr.recurrent((), (t,), "int32")
    late = pr.recurrent((), (t,), "int32")
    y[0] = y[0:0].sum(0)
    y[t + 1] = y
    late[0] = pr.constant(1, "int32")
    late[t + 1] = y
    np.testing.assert_array_equal(pr.compile(late, backend=backend, progress=False)(bounds={T: 4}), [1, 0, 0, 0])


def test_axes_beyond_the_bound() -> None:
    """A range that has one step for every t < T has none at the last step of a tensor with one more."""
    t, T = pr.dim("t")
    y = pr.recurrent((), ((t, T + 1),), "int32")
    y[t > 0] = pr.maximum(y[t + 1 : pr.min(T + 1, t + 2)].flip(0).max(0), t)
    y[0] = y[1] + 1
    np.testing.assert_array_equal(pr.evaluate(y, bounds={T: 3}), [4, 3, 3, 3])


def test_a_factor_that_gives_a_product_its_shape() -> None:
    """Minus one is an array here: what it multiplies is not the product's negative, but has no axis."""
    joined = pr.concat([pr.constant([-1], "int32") * 2, pr.constant([0], "int32")], 0)
    np.testing.assert_array_equal(pr.compile(joined, backend="numpy", progress=False)(), [-2, 0])


def test_the_last_of_steps_that_are_counted_by_a_lane() -> None:
    """Turned around, a range of t steps begins at t - 1, and its length is not known."""
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,))
    turned = pr.tanh(x[0:t]).flip(0).sum(0)
    given = {"x": np.arange(4, dtype=np.float32)}
    found = pr.compile(turned, progress=False)(x=given["x"])
    np.testing.assert_allclose(found, pr.evaluate(turned, given), rtol=1e-6)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_an_empty_range_along_one_dim_and_a_step_of_another(backend: str) -> None:
    """What only empty ranges read is kept nowhere, and has no slot for the step either."""
    t, T = pr.dim("t")
    i, I = pr.dim("i")
    y = pr.recurrent((), (t, (i, I + 1)), "int32")
    before = pr.where(i > 0, y[t, i - 1], 1) * pr.where(t > 0, y[t - 1, i], 1)
    y[0, I] = pr.value(I) + 1
    y[0, (I - 1) - i] = pr.value(I - i)
    y[t + 1, I] = before[{i: slice(I, pr.min(I, I + 1)), t: t}].sum(0) + y[t, I]
    y[t + 1, (I - 1) - i] = y[t, (I - 1) - i]
    found = pr.compile(y, backend=backend, progress=False)(bounds={T: 3, I: 2})
    np.testing.assert_array_equal(np.asarray(found), [[1, 2, 3]] * 3)
