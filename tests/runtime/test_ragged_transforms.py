"""Factorisations, linear systems and Fourier transforms of rows of different lengths, on every backend.

Values as by NumPy row by row, slopes of a loss over all rows as by differences of it. Beyond the ends of rows inputs
have NaN; one row is empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr

SIZES = np.array([3, 0, 1, 5, 2], "int32")

Made = dict[str, Any]
Both = tuple[Callable[[Any, Any], Made], Callable[[Any, Any], Made]]
"""A function of a symmetric matrix (n, n) and a tall one (n, 2), in our words and in NumPy's."""


def with_eye(x: Any) -> Any:
    """Of any number of rows, one with at least as many rows as columns."""
    if isinstance(x, np.ndarray):
        return np.concatenate([x, np.eye(2)])
    return pr.concat([x, pr.eye(2, dtype="float64")], 0)


def triangular(k: pr.Tensor, x: pr.Tensor) -> Made:
    solve = pr.linalg.triangular_solve
    made = [solve(k, x, lower=lower, transpose=turned) for lower in (True, False) for turned in (True, False)]
    return {f"by {number}": one.sum(1) for number, one in enumerate(made)}


def triangular_by_numpy(k: np.ndarray, x: np.ndarray) -> Made:
    lower, upper = np.tril(k), np.triu(k)
    made = [np.linalg.solve(a, x) for a in (lower.T, lower, upper.T, upper)]
    return {f"by {number}": one.sum(1) for number, one in enumerate(made)}


def eigen(k: pr.Tensor, x: pr.Tensor) -> Made:
    values, vectors = pr.linalg.eigh(k)
    return {"values": values, "vectors": (vectors**2) @ values**2, "alone": pr.linalg.eigvalsh(k)}


def eigen_by_numpy(k: np.ndarray, x: np.ndarray) -> Made:
    values, vectors = np.linalg.eigh(k)
    return {"values": values, "vectors": (vectors**2) @ values**2, "alone": values}


def orthogonal(a: Any, pieces: Callable[[Any], Any]) -> Made:
    q, r = pieces(a)
    return {"q": (q * q).sum(1), "r": (r * r).sum(0)}


def singular(a: Any, pieces: Callable[[Any], Any]) -> Made:
    u, s, vt = pieces(a)
    return {"s": s, "u": (u * u) @ s, "v": s @ (vt * vt)}


def thin(a: np.ndarray) -> Any:
    return np.linalg.svd(a, full_matrices=False)


def spectrum(k: pr.Tensor, x: pr.Tensor) -> Made:
    v, n = x.axes[:, 0], pr.cast(x.shape[0], "int32")
    whole, half = pr.fft.fft(v, norm="ortho"), pr.fft.rfft(v)
    back = pr.real(pr.fft.ifft(whole * whole))
    made = {"real": pr.real(whole), "imaginary": pr.imag(whole), "back": back, "half": pr.imag(half)}
    return {**made, "of two": pr.real(pr.fft.fft(pr.fft.fft(k, 1), 0)).sum(1), "count": pr.cast(n, "float64")}


def spectrum_by_numpy(k: np.ndarray, x: np.ndarray) -> Made:
    v, n = x[:, 0], len(x)
    if not n:
        nothing = np.zeros(0)
        return {**dict.fromkeys(("real", "imaginary", "back", "half", "of two"), nothing), "count": np.float64(0)}
    whole, half = np.fft.fft(v, norm="ortho"), np.fft.rfft(v)
    made = {"real": whole.real, "imaginary": whole.imag, "back": np.fft.ifft(whole * whole).real, "half": half.imag}
    return {**made, "of two": np.fft.fft2(k).real.sum(1), "count": np.float64(n)}


CASES: dict[str, Both] = {
    "cholesky": (
        lambda k, x: {"rows": pr.linalg.cholesky(k).sum(0)},
        lambda k, x: {"rows": np.linalg.cholesky(k).sum(0)},
    ),
    "solve": (
        lambda k, x: {"vector": pr.linalg.solve(k, x.axes[:, 0]), "matrix": pr.linalg.solve(k, x).sum(1)},
        lambda k, x: {"vector": np.linalg.solve(k, x[:, 0]), "matrix": np.linalg.solve(k, x).sum(1)},
    ),
    "triangular": (triangular, triangular_by_numpy),
    "inv": (lambda k, x: {"rows": pr.linalg.inv(k).sum(0)}, lambda k, x: {"rows": np.linalg.inv(k).sum(0)}),
    "det": (
        lambda k, x: {"log": pr.linalg.slogdet(k)[1], "det": pr.linalg.det(k)},
        lambda k, x: {"log": np.linalg.slogdet(k)[1], "det": np.linalg.det(k)},
    ),
    "qr": (lambda k, x: orthogonal(k, pr.linalg.qr), lambda k, x: orthogonal(k, np.linalg.qr)),
    "tall qr": (lambda k, x: orthogonal(with_eye(x), pr.linalg.qr), lambda k, x: orthogonal(with_eye(x), np.linalg.qr)),
    "eigh": (eigen, eigen_by_numpy),
    "svd": (lambda k, x: singular(k, pr.linalg.svd), lambda k, x: singular(k, thin)),
    "tall svd": (lambda k, x: singular(with_eye(x), pr.linalg.svd), lambda k, x: singular(with_eye(x), thin)),
    "wide svd": (lambda k, x: singular(with_eye(x).T, pr.linalg.svd), lambda k, x: singular(with_eye(x).T, thin)),
    "norm": (
        lambda k, x: {"nuclear": pr.linalg.matrix_norm(k, "nuc")},
        lambda k, x: {"nuclear": np.linalg.svd(k)[1].sum()},
    ),
    "fft": (spectrum, spectrum_by_numpy),
}


@pytest.mark.parametrize("backend", ["numpy", *(pytest.param(b, marks=pytest.mark.slow) for b in ("torch", "jax"))])
@pytest.mark.parametrize("name", CASES)
def test_rows_by_numpy_one_by_one(name: str, backend: str) -> None:
    ours, theirs = CASES[name]
    b, B = pr.dim("b")
    s, S = pr.dim("s", extent=pr.input("sizes", (), (b,), "int32"))
    x = pr.input("x", (2,), (b, s), "float64")
    row = x[b, 0:S]
    made = ours(row @ row.T + pr.diag(pr.arange(S) + 0.5).astype("float64"), row)
    loss = sum((pr.tanh(one).sum() for one in made.values()), start=pr.constant(0.0, "float64"))[0:B].sum(0)
    program = pr.compile({"made": made, "loss": loss, "slope": pr.grad(loss, x)}, backend=backend)
    inside = np.arange(SIZES.max()) < SIZES[:, None]
    values = np.where(inside[..., None], np.random.default_rng(7).normal(size=(*inside.shape, 2)), np.nan)
    have = program(sizes=SIZES, x=values)
    total = 0.0
    for number, n in enumerate(SIZES):
        own = values[number, :n]
        want = theirs(own @ own.T + np.diag(np.arange(n) + 0.5), own)
        total += sum(np.tanh(one).sum() for one in want.values())
        for key, one in want.items():
            found = have["made"][key]
            if isinstance(found, pr.Ragged):
                found = [row[:size] for row, size in zip(found.values, found.lengths, strict=True)]
            np.testing.assert_allclose(found[number], one, 1e-7, 1e-8, err_msg=key)
    np.testing.assert_allclose(have["loss"], total, 1e-7)
    slope, small = np.asarray(getattr(have["slope"], "values", have["slope"])), 1e-6
    way = np.where(inside[..., None], np.random.default_rng(8).normal(size=values.shape), 0)
    up, down = (float(program(sizes=SIZES, x=values + sign * small * way)["loss"]) for sign in (1, -1))
    np.testing.assert_allclose((up - down) / (2 * small), (slope * way)[inside].sum(), 1e-5, 1e-6)
