"""Programs that the fuzzer found, made small."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.loops import growth
from polyrhythm.compiler.schedule import tiles


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
    np.testing.assert_array_equal(pr.compile(late, backend=backend)(bounds={T: 4}), [1, 0, 0, 0])


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
    np.testing.assert_array_equal(pr.compile(joined, backend="numpy")(), [-2, 0])


def test_the_last_of_steps_that_are_counted_by_a_lane() -> None:
    """Turned around, a range of t steps begins at t - 1, and its length is not known."""
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,))
    turned = pr.tanh(x[0:t]).flip(0).sum(0)
    given = {"x": np.arange(4, dtype=np.float32)}
    found = pr.compile(turned)(x=given["x"])
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
    found = pr.compile(y, backend=backend)(bounds={T: 3, I: 2})
    np.testing.assert_array_equal(np.asarray(found), [[1, 2, 3]] * 3)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_definitions_that_read_each_other_at_another_pace(backend: str) -> None:
    """What ties the odd and the even steps is their place along the dim, not the pace of a read."""
    t, T = pr.dim("t")
    y = pr.recurrent((), (t,), "int32")
    odd = 2 * t + 1
    following = pr.min(T - 1, odd + 3)
    twice = pr.where(2 * odd + 1 < T, y[2 * odd + 1], 1)
    y[odd] = pr.minimum(twice, pr.where(odd + 1 < T, y[odd + 1], 3)) + pr.where(following > odd, y[following], 1)
    y[2 * t] = pr.where(2 * t < T - 1, y[T - 1] // 2, 2)
    program = pr.compile(y, backend=backend)
    for steps in range(9):
        expected = [0] * steps
        for at in reversed(range(steps)):
            if at % 2 == 0:
                expected[at] = expected[-1] // 2 if at < steps - 1 else 2
                continue
            found = expected[2 * at + 1] if 2 * at + 1 < steps else 1
            found = min(found, expected[at + 1] if at + 1 < steps else 3)
            expected[at] = found + (expected[min(steps - 1, at + 3)] if min(steps - 1, at + 3) > at else 1)
        np.testing.assert_array_equal(program(bounds={T: steps}), np.array(expected, np.int32))


def heap() -> tuple[pr.Tensor, list[int]]:
    """The depth of each place of a heap: a loop at the pace of the places leaves a circle that no value is in."""
    i, _ = pr.dim("i")
    y = pr.recurrent((), (i,), "int32")
    y[2 * i] = 1 + pr.where((2 * i) // 2 < 2 * i, y[(2 * i) // 2], 1)
    y[2 * i + 1] = 2 + y[(2 * i + 1) // 2]
    expected = [2]
    for at in range(1, 9):
        expected.append(expected[at // 2] + 1 + at % 2)
    return y, expected


def test_a_read_at_half_the_steps_from_both_halves() -> None:
    y, expected = heap()
    for backend in ("numpy", "torch", "jax"):
        program = pr.compile(y, backend=backend)
        for steps in range(9):
            np.testing.assert_array_equal(program(bounds={"I": steps}), expected[:steps])


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_a_constant_step_that_reads_up_to_the_last(backend: str) -> None:
    """Counted from the end, the right side of `y[1]` would be in a circle for some lengths."""
    i, I = pr.dim("i")
    y = pr.recurrent((), (i,), "int32")
    y[1] = 2 + pr.where(I >= 4, y[2:4].sum(0) * y[pr.min(I - 1, 3)], 1)
    y[(i < I - 2) & ~(i == 1)] = pr.where(i + 1 < I, y[i + 1 : pr.min(I, i + 4)].sum(0), 1)
    y[pr.otherwise] = pr.where(i + 2 <= I, y[i + 1 : i + 2].sum(0), 1) + 1
    program = pr.compile(y, backend=backend)
    for steps in range(2, 9):
        found = [0] * steps
        for at in reversed(range(steps)):
            if at == 1:
                found[at] = 2 + (sum(found[2:4]) * found[min(steps - 1, 3)] if steps >= 4 else 1)
            elif at < steps - 2:
                found[at] = sum(found[at + 1 : min(steps, at + 4)])
            else:
                found[at] = (found[at + 1] if at + 2 <= steps else 1) + 1
        np.testing.assert_array_equal(program(bounds={I: steps}), np.array(found, np.int32))


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_the_gradient_of_a_step_that_all_others_read(backend: str) -> None:
    """The sum over all other steps has no dim, and belongs to the last step, which alone reads it."""
    t, T = pr.dim("t")
    x, y = pr.input("x", (), (t,), "float64"), pr.recurrent((), (t,), "float64")
    y[t > 1] = pr.tanh(x + pr.where(t < T - 1, y[T - 1], 1.0))
    y[~(t > 1)] = pr.tanh(x + pr.where(t + 3 < T, y[t + 3], 1.0))
    loss = y * y
    value, program = pr.compile(loss, backend="numpy"), pr.compile(pr.grad(loss, x), backend=backend)
    for steps in range(1, 8):
        given, small = np.linspace(-1, 1, steps), 1e-6
        moved = [(value(x=given + small * e) - value(x=given - small * e)).sum() for e in np.eye(steps)]
        np.testing.assert_allclose(program(x=given), np.array(moved) / (2 * small), rtol=1e-5, atol=1e-7)


def test_products_of_ranges_that_a_loop_inside_shortens() -> None:
    t, T = pr.dim("t")
    i, I = pr.dim("i")
    s, S = pr.dim("s")
    x = pr.input("x", (), (s, i))
    h = x + pr.value(t) * 0.5
    inside = (t >= i) & (t >= 1) & (t - 1 < S) & (i >= t)
    later = h[{t: t - i, s: t - 1, i: slice(i, I)}]
    y = pr.where(inside, later @ h[{t: T - 1 - t, s: i - t, i: slice(i, I)}], 1.0)
    given, bounds = np.arange(9, dtype="float32").reshape(3, 3), {T: 5, I: 3, S: 3}
    found = pr.compile(y, backend="jax")(x=given, bounds=bounds)
    np.testing.assert_allclose(found, pr.evaluate(y, {"x": given}, bounds), rtol=1e-5)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_contractions_over_no_elements(backend: str) -> None:
    """What JAX reserves for a step's part of a longer table is divided by its size, which may be nothing."""
    t, T = pr.dim("t")
    table, x = pr.input("table", (0,), ((t, T + 1),)), pr.input("x", (2,), (t,))
    program = pr.compile(pr.einsum("a,b->b", table, x), backend=backend)
    np.testing.assert_array_equal(program(table=np.zeros((9, 0)), x=np.ones((8, 2))), np.zeros((8, 2)))


def test_a_view_at_the_last_step_before_a_growing_loop() -> None:
    """Its index mentions the bound, of which the value does not depend: the loop after it may grow all the same."""
    t, T = pr.dim("t")
    x = pr.input("x", (2,), (t,), "int32")
    any_so_far = x[: t + 1].any(0).cast("int32")[{t: pr.min(T - 1, t + 1)}]
    y = pr.recurrent((), (t,), "int32")
    y[0] = 1
    y[1] = -y[0:1].max(0)
    later = any_so_far[pr.max(0, t)] > any_so_far[pr.max(0, t + 1)]
    every = pr.einsum("na,a->n", any_so_far[0 : t + 2 : 2], x[t // 4])
    y[t + 2] = pr.einsum("n,na->a", every, x[{t: slice(0, t + 2, 2)}]) @ later.cast("int32")
    with patch.multiple(growth, LEAST=2, worthwhile=lambda _: 1):
        program = pr.compile(y)
        for steps in (1, 2, 3, 4, 9, 17):
            given = np.random.default_rng(steps).integers(-2, 3, (steps, 2)).astype("int32")
            np.testing.assert_array_equal(program(x=given), pr.evaluate(y, {"x": given}))


def test_a_constant_beside_steps_that_run_together() -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (2,), (t,), "int32")
    before = (pr.constant([0], "int32") + pr.value(t) * 0)[{t: t - 1}]
    both = pr.where(x < x, x, pr.concat([pr.where(t >= 1, before, 1), pr.constant([0], "int32")], 0))
    for backend in ("numpy", "torch"):
        found = pr.compile(both, backend=backend)(x=np.ones((4, 2), "int32"))
        np.testing.assert_array_equal(found, [[1, 0], [0, 0], [0, 0], [0, 0]])


def test_slots_that_a_guard_leaves_out_of_a_tile() -> None:
    """Of a ring as long as a tile, what the tile before has stored is read where this one stores nothing."""
    (t, T), (i, I) = pr.dim("t"), pr.dim("i")
    y = pr.recurrent((2,), ((t, T + 1), (i, I + 1)))
    row = y[(t + 1) :: 2, pr.max(0, i - 2)].sum(0)
    y[t, I] = 1.0
    y[t, I - 1 - i] = pr.tanh(pr.where(t + 1 < T, row[{t: t + 1, i: slice(None, None, 2)}].sum(0), 1.0))
    y[T, I] = 0.5
    every_other = (pr.constant([0.5, 1.5]) + pr.value(i) * 0.0)[{i: pr.max(0, i - 1)}]
    y[T, I - 1 - i] = pr.tanh(pr.where(i % 2 == 1, every_other, pr.constant([0.5, -1.0])) + pr.constant([1.0, 1.0]))
    for steps in (2, 3, 4):
        with patch.object(tiles, "STEPS", steps):
            program = pr.compile(y)
        for size in (0, 1, 5, 8):
            found = program(bounds={I: size, T: 5})
            np.testing.assert_allclose(found, pr.evaluate(y, bounds={I: size, T: 5}), rtol=1e-5)
