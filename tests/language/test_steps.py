"""Reads around the end of a dim: `x[(i + 1) % N]`."""

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import errors

BACKENDS = ("numpy", "torch", "jax")


def _same(outputs: pr.Tensor, expected: np.ndarray, inputs: dict[str, Any], backend: str | None = None) -> None:
    np.testing.assert_allclose(pr.evaluate(outputs, inputs), expected, rtol=1e-5, atol=1e-6)
    if backend is not None:
        np.testing.assert_allclose(pr.compile(outputs, backend=backend)(**inputs), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("by", [-2, -1, 0, 1, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_shift_is_a_roll(by: int, backend: str) -> None:
    i, N = pr.dim("i")
    x = pr.input("x", (2,), (i,))
    given = np.arange(14, dtype="float32").reshape(7, 2)
    expected = np.roll(given, -by, 0)
    _same(x[(i + by) % N], expected, {"x": given}, backend)
    _same((x * 2)[{i: (i + by) % N}], 2 * expected, {"x": given})
    _same(x[i][(i + by) % N], expected, {"x": given})


@pytest.mark.parametrize("backend", BACKENDS)
def test_distances_of_two_dims(backend: str) -> None:
    """A circulant matrix: x at i - j."""
    i, N = pr.dim("i")
    j, _ = pr.dim("j", bound=N)
    x, v = pr.input("x", (), (i,)), pr.input("v", (), (j,))
    given = {"x": np.arange(1, 6, dtype="float32"), "v": np.array([1, 0, 2, 0, 1], "float32")}
    circulant = np.array([np.roll(given["x"][::-1], a + 1) for a in range(5)])
    _same(x[(i - j) % N], circulant, {"x": given["x"]}, backend)
    product = (x[(i - j) % N] * v)[{j: slice(0, N)}].sum(0)
    _same(product, np.fft.ifft(np.fft.fft(given["x"]) * np.fft.fft(given["v"])).real, given, backend)
    last = x[(i + j + 1 - N) % N]
    _same(last, np.array([np.roll(given["x"], -a - 1) for a in range(5)]), {"x": given["x"]})


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("backend", BACKENDS)
def test_heat_on_a_torus_with_gradient(size: int, backend: str) -> None:
    """A recurrence over a grid without edges, and its gradient by the first state."""
    (k, K), (i, N), (j, M) = pr.dim("k"), pr.dim("i"), pr.dim("j")
    start, weight = pr.input("start", (), (i, j)), pr.input("weight", (), (i, j))
    u = pr.recurrent((), ((k, K + 1), i, j))
    u[0] = start
    around = u[k, (i + 1) % N] + u[k, (i - 1) % N] + u[{j: (j + 1) % M}] + u[k, (i + 1) % N, (j - 1) % M]
    u[k + 1] = 0.2 * around + 0.2 * u
    loss = (u[K] * weight)[0:N, 0:M].sum((0, 1))
    program = pr.compile([u[K], pr.grad(loss, start)], backend=backend)
    rng = np.random.default_rng(size)
    now, back = rng.normal(size=(2, size, size + 1)).astype("float32")
    found = program(start=now, weight=back, bounds={K: 3})
    for _ in range(3):
        moved = np.roll(now, -1, 0) + np.roll(now, 1, 0) + np.roll(now, -1, 1) + np.roll(now, (-1, 1), (0, 1))
        now = 0.2 * moved + 0.2 * now
        moved = np.roll(back, 1, 0) + np.roll(back, -1, 0) + np.roll(back, 1, 1) + np.roll(back, (1, -1), (0, 1))
        back = 0.2 * moved + 0.2 * back
    np.testing.assert_allclose(found[0], now, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], back, rtol=1e-4, atol=1e-5)


def test_more_than_once_around_is_a_requirement() -> None:
    i, N = pr.dim("i")
    x = pr.input("x", (), (i,))
    for source in (x, x * 1, x[i]):
        third = source[(i + 3) % N]
        assert pr.evaluate(third, {"x": [1.0, 2, 3]}).tolist() == [1, 2, 3]
        with pytest.raises(errors.PolyrhythmError):
            pr.evaluate(third, {"x": [1.0, 2]})
    with pytest.raises(errors.OutOfRangeError):
        pr.evaluate(x[3 * i % N], {"x": [1.0, 2, 3, 4, 5]})


def test_an_operation_that_has_more_steps_is_read_at_its_own() -> None:
    """`y` may be read at T, as `table` has that step, but modulo T it is read from 0 to T - 1."""
    t, T = pr.dim("t")
    table = pr.input("table", (), ((t, T + 1),))
    y = table * pr.value(t)  # over t < T by itself
    around = y[(t + 1) % T]
    assert pr.evaluate(around, {"table": [1.0, 2, 3, 50]}).tolist() == [2, 6, 0]
    beyond = pr.recurrent((), ((t, T + 1),))
    beyond[pr.otherwise] = table[(t + 1) % (T + 1)]
    assert pr.evaluate(beyond, {"table": [1.0, 2, 3, 50]}).tolist() == [2, 3, 50, 1]
    with pytest.raises(errors.NonAffineError, match="T \\+ 1 steps"):
        table[(t + 1) % T]


def test_numbers_and_what_a_remainder_is_not() -> None:
    i, N = pr.dim("i")
    x = pr.input("x", (), (i,))
    assert pr.evaluate(pr.value((i - 1) % N), bounds={N: 3}).tolist() == [2, 0, 1]
    assert repr((i + 1) % N) == "(i + 1) % I"
    for use in (
        lambda: (i + 1) % N + 1,
        lambda: ((i + 1) % N) == 0,
        lambda: x[0 : (i + 1) % N],
    ):
        with pytest.raises(errors.NonAffineError, match="whole index"):
            use()
    y = pr.recurrent((), (i,))
    with pytest.raises(errors.NonAffineError, match="whole index"):
        y[(i + 1) % N] = x
    with pytest.raises(errors.NonAffineError, match="divided by these"):
        x[(i + 1) % (N + 1)]
