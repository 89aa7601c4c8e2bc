"""Complex numbers and Fourier transforms against NumPy and JAX, on every backend, over static and dynamic lengths."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.errors import DTypeError, GradientError
from tests.language.functions.everywhere import BACKENDS, check_everywhere
from tests.language.functions.helpers import random_array


def random_complex(shape: tuple[int, ...], dtype: str = "complex64", seed: int = 0) -> np.ndarray:
    return (random_array(shape, "float64", seed) + 1j * random_array(shape, "float64", seed + 1)).astype(dtype)


def test_promotion_as_in_jax() -> None:
    names = ["bool", "int8", "int32", "float16", "bfloat16", "float32", "complex64"]
    for name in names:
        ours = (pr.zeros((1,), name) + 1j).dtype
        assert ours == (jnp.zeros(1, name) + 1j).dtype, name
        assert (pr.zeros((1,), name) + pr.zeros((1,), "complex64")).dtype == np.complex64
    assert (pr.zeros((1,), "float64") + pr.zeros((1,), "complex64")).dtype == np.complex128
    assert pr.constant(1j).dtype == np.complex64


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("n", [1, 2, 5, 8, 12, 17])
def test_transforms_as_in_numpy(n: int, dtype: str) -> None:
    x = random_complex((3, n), dtype)
    tolerance = 1e-5 if dtype == "complex64" else 1e-12
    for name in ("fft", "ifft"):
        for norm in ("backward", "ortho", "forward"):
            for axis in (0, 1):
                expected = getattr(np.fft, name)(x, axis=axis, norm=norm)
                found = pr.evaluate(getattr(pr.fft, name)(pr.constant(x), axis, norm))
                assert found.dtype == dtype
                np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    real = x.real
    half = np.fft.rfft(real)
    np.testing.assert_allclose(pr.evaluate(pr.fft.rfft(pr.constant(real))), half, rtol=tolerance, atol=tolerance)
    for length in (n, None):
        if length is not None or n > 1:
            expected = np.fft.irfft(half, length)
            found = pr.evaluate(pr.fft.irfft(pr.constant(half.astype(dtype)), length))
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(pr.evaluate(pr.fft.fftfreq(n, 0.5)), np.fft.fftfreq(n, 0.5), rtol=1e-6)
    np.testing.assert_allclose(pr.evaluate(pr.fft.fft2(pr.constant(x))), np.fft.fft2(x), rtol=tolerance, atol=1e-4)


FUNCTIONS: dict[str, Any] = {
    "fft": lambda x: pr.fft.fft(x, 0),
    "ifft": lambda x: pr.fft.ifft(x, 0),
    "rfft": lambda x: pr.fft.rfft(x.real, 0),
    "irfft": lambda x: pr.fft.irfft(x, axis=0),
    "product": lambda x: x.mT @ pr.conj(x),
    "polar": lambda x: (pr.abs(x), pr.angle(x)),
    "functions": lambda x: pr.exp(x) / (pr.sqrt(x) + 1) + pr.tanh(x) * 1j,
    "sums": lambda x: x.sum(0) + x.cumsum(0).mean(0),
}


@pytest.mark.slow
def test_values_and_gradients_everywhere() -> None:
    check_everywhere(FUNCTIONS, random_complex((5, 2)), gradients=True, lengths=(1, 6), tolerance=1e-4)


@pytest.mark.slow
def test_every_prefix_has_a_transform_of_its_own() -> None:
    table = {
        "fft": lambda x: pr.abs(pr.fft.fft(x, 0)).sum(),
        "ifft": lambda x: (pr.fft.ifft(x, 0) ** 2).sum(),
        "rfft": lambda x: pr.fft.rfft(x.real, 0).sum(),
    }
    check_everywhere(table, random_complex((7, 2)), prefixes=True, tolerance=1e-4)


def test_a_long_transform_of_dynamic_length() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,), "complex64")
    program = pr.compile(pr.fft.fft(x[0:T], 0))
    for n in (1000, 5000, 100_003):
        given = random_complex((n,))
        expected = np.fft.fft(given.astype("complex128"))
        error = np.abs(program(x=given) - expected).max() / np.abs(expected).max()
        assert error < 2e-5


def test_a_complex_recurrence_and_its_gradient() -> None:
    """A diagonal state space model with complex eigenvalues, trained by its real output."""
    t, T = pr.dim("t")
    a, u = pr.input("a", (3,), (), "complex64"), pr.input("u", (3,), (t,))
    h = pr.recurrent((3,), (t,), "complex64")
    h[0] = u[0].cast("complex64")
    h[t + 1] = a * h + u[t + 1]
    loss = (h.real.sum() ** 2)[0:T].sum()
    values = {"a": np.exp(1j * np.array([0.3, 0.7, 1.1])).astype("complex64") * 0.9, "u": random_array((6, 3))}

    def reference(a: Any) -> Any:
        state, total = jnp.zeros(3, "complex64"), 0.0
        for row in values["u"]:
            state = a * state + row
            total = total + state.real.sum() ** 2
        return total

    expected = jax.value_and_grad(reference)(values["a"])
    for backend in BACKENDS:
        found = pr.compile((loss, pr.grad(loss, a)), backend=backend)(a=values["a"], u=values["u"])
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_descent_follows_the_conjugate() -> None:
    z = pr.input("z", (), (), "complex64")
    gradient = pr.grad(pr.abs(z - (1 + 2j)) ** 2, z)
    found = pr.evaluate(z - 0.5 * pr.conj(gradient), {"z": np.complex64(3 - 1j)})
    np.testing.assert_allclose(found, 1 + 2j, atol=1e-6)


def test_magnitudes_neither_overflow_nor_vanish() -> None:
    x = np.array([3e30 + 4e30j, 3e-30 + 4e-30j, 0, np.inf + 1j, complex(np.nan, 1)], "complex64")
    np.testing.assert_allclose(pr.evaluate(pr.abs(pr.constant(x))), np.abs(x), rtol=1e-6)
    z = pr.input("z", (), (), "complex64")
    assert pr.evaluate(pr.grad(pr.abs(z), z), {"z": np.complex64(0)}) == 0


def test_refusals() -> None:
    z = pr.constant([1 + 2j])
    for call in (lambda: z.max(), lambda: z < z, lambda: pr.sort(z), lambda: z.argmax(), lambda: pr.floor(z) % z):
        with pytest.raises(DTypeError):
            call()
    with pytest.raises(DTypeError, match=r"pr\.real"):
        z.cast("float32")
    with pytest.raises(DTypeError, match="real numbers"):
        pr.fft.rfft(z)
    with pytest.raises(DTypeError, match="ortho"):
        pr.fft.fft(z, norm="none")  # type: ignore[arg-type]
    with pytest.raises(GradientError):
        pr.grad(pr.input("w", (), (), "complex64"), pr.input("v"))
