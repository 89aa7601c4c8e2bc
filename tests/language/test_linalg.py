"""Linear algebra against NumPy and JAX: sizes static and dynamic, batches, recurrences, second derivatives."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.errors import ShapeError
from tests.language.functions.everywhere import BACKENDS, check_everywhere
from tests.language.functions.helpers import assert_close, f32, on_constants, random_array

la = pr.linalg


def spd(x: pr.Tensor) -> pr.Tensor:
    """A symmetric positive definite matrix as large as x is long, with eigenvalues apart from each other."""
    n = x.shape[0]
    return x @ x.mT * 0.1 + pr.diag(pr.arange(1, n + 1).cast("float32"))


FUNCTIONS: dict[str, Any] = {
    "cholesky": lambda x: la.cholesky(spd(x)),
    "solve": lambda x: la.solve(spd(x), x),
    "vector": lambda x: la.solve(spd(x), x.axes[:, 0]),
    "triangular_solve": lambda x: la.triangular_solve(spd(x), x, lower=False, transpose=True),
    "inv": lambda x: la.inv(spd(x)),
    "slogdet": lambda x: la.slogdet(spd(x)),
    "det": lambda x: la.det(spd(x)),
    "qr": lambda x: la.qr(spd(x)),
    "eigh": lambda x: la.eigh(spd(x)),
    "svd": lambda x: la.svd(spd(x)),
    "nuclear": lambda x: la.matrix_norm(spd(x), "nuc"),
}


@pytest.mark.slow
def test_values_everywhere() -> None:
    check_everywhere(FUNCTIONS, random_array((4, 3)), lengths=(0, 1, 7), tolerance=1e-4)


@pytest.mark.slow
def test_gradients_everywhere() -> None:
    check_everywhere(FUNCTIONS, random_array((4, 3)), gradients=True, lengths=(1, 7), tolerance=1e-3)


def test_tall_and_wide_matrices_with_a_dynamic_side() -> None:
    x = random_array((5, 3))
    t, T = pr.dim("t", min=3)
    rows = pr.input("x", (3,), (t,))[0:T]
    outputs = {"qr": la.qr(rows), "svd": la.svd(rows), "wide": la.svd(rows.mT), "wide_qr": la.qr(rows.mT)}
    for backend in BACKENDS:
        found = pr.compile(outputs, backend=backend)(x=x)
        q, r = found["qr"]
        assert_close(q @ r, x, 4)
        assert_close(q, np.linalg.qr(x)[0], 4)
        u, s, vt = found["svd"]
        assert_close(u * s @ vt, x, 4)
        assert_close(s, np.linalg.svd(x)[1], 4)
        u, s, vt = found["wide"]
        assert_close(u * s @ vt, x.T, 4)
        q, r = found["wide_qr"]
        assert_close(q @ r, x.T, 4)
    with pytest.raises(ShapeError, match="rows"):
        la.svd(pr.input("y", (3,), (pr.dim("k")[0],))[0 : pr.dim("m")[1]])


def test_each_prefix_has_a_factor_of_its_own() -> None:
    x = random_array((5, 3))
    sums = {
        "cholesky": lambda x: la.cholesky(spd(x)).sum(),
        "solve": lambda x: la.solve(spd(x), x).sum(),
        "eigh": lambda x: (la.eigh(spd(x))[1] ** 3).sum(),
        "svd": lambda x: (la.svd(spd(x))[0] ** 3).sum(),
        "slogdet": lambda x: la.slogdet(spd(x))[1],
    }
    check_everywhere(sums, x, prefixes=True, tolerance=1e-4)


@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 3), (2, 1, 4, 4), (1, 1), (0, 0), (2, 0, 0), (0, 2, 2)])
def test_batches_as_in_numpy(shape: tuple[int, ...]) -> None:
    a = random_array(shape, "float64")
    symmetric = a @ np.swapaxes(a, -2, -1) + np.eye(shape[-1])
    b = random_array((*shape[:-1], 2), "float64", seed=1)
    assert_close(on_constants(la.cholesky, symmetric), np.linalg.cholesky(symmetric))
    assert_close(on_constants(la.solve, symmetric, b), np.linalg.solve(symmetric, b))
    assert_close(on_constants(la.inv, symmetric), np.linalg.inv(symmetric))
    assert_close(on_constants(la.det, a), np.linalg.det(a), 10)
    for ours, theirs in zip(on_constants(la.slogdet, a), np.linalg.slogdet(a), strict=True):
        assert_close(ours, theirs, 10)
    assert_close(on_constants(la.eigvalsh, symmetric), np.linalg.eigvalsh(symmetric), 10)
    assert_close(on_constants(la.svdvals, a), np.linalg.svd(a, compute_uv=False), 10)
    for ours, theirs in zip(on_constants(la.qr, a), np.linalg.qr(a), strict=True):
        assert_close(ours, theirs, 10)


def test_leading_axes_of_a_system_broadcast() -> None:
    a, b = random_array((3, 3), "float64") + 3 * np.eye(3), random_array((2, 3, 2), "float64")
    assert_close(on_constants(la.solve, a, b), np.linalg.solve(a, b))
    t, _ = pr.dim("t")
    x = pr.input("x", (3,), (t,), "float64")
    assert_close(pr.evaluate(la.solve(pr.constant(a), x), {"x": b[0].T}), np.linalg.solve(a, b[0]).T)


@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf])
def test_matrix_norms_as_in_numpy(order: Any) -> None:
    x = random_array((3, 4), "float64")
    assert_close(on_constants(lambda x: la.norm(x, order), x), np.linalg.norm(x, order), 10)
    assert_close(on_constants(lambda x: la.matrix_norm(x, order, keepdims=True), x)[0, 0], np.linalg.norm(x, order), 10)


def test_norms_of_vectors() -> None:
    x = random_array((3, 4))
    assert_close(on_constants(lambda x: la.norm(x, 1, axis=1), x), np.linalg.norm(x, 1, axis=1), 4)
    assert_close(on_constants(la.norm, x), np.asarray(np.linalg.norm(x)), 4)
    with pytest.raises(ShapeError, match="matrices"):
        la.norm(pr.ones((3,)), "nuc")
    with pytest.raises(ShapeError, match="no matrix norm"):
        la.matrix_norm(pr.ones((3, 3)), 7)


def test_what_has_no_answer_is_nan_everywhere() -> None:
    bad = f32([[[1, 2], [2, 1]], [[4, 0], [0, 1]]])
    singular = f32([[[1, 1], [1, 1]], [[2, 0], [0, 1]]])
    x, y = pr.input("x", bad.shape), pr.input("y", singular.shape)
    outputs = {"cholesky": la.cholesky(x), "inv": la.inv(y), "eigh": la.eigh(x * float("nan"))[0]}
    found = [pr.compile(outputs, backend=b)(x=bad, y=singular) for b in BACKENDS]
    for result in [pr.evaluate(outputs, {"x": bad, "y": singular}), *found]:
        assert np.isnan(result["cholesky"][0]).any()
        assert_close(result["cholesky"][1], f32([[2, 0], [0, 1]]))
        assert np.isnan(result["inv"][0]).all()
        assert_close(result["inv"][1], f32([[0.5, 0], [0, 1]]))
        assert np.isnan(result["eigh"]).all()


def test_shapes_that_do_not_fit() -> None:
    for function in (la.cholesky, la.inv, la.det, la.eigh):
        with pytest.raises(ShapeError, match=r"square|do not"):
            function(pr.ones((2, 3)))
        with pytest.raises(ShapeError, match="matrix"):
            function(pr.ones((2,)))
    with pytest.raises(ShapeError, match="right"):
        la.solve(pr.eye(3), pr.ones((2,)))
    with pytest.raises(ShapeError, match="scalar"):
        la.solve(pr.eye(3), 1.0)


def kalman(y: Any, f: Any, q: Any, r: Any, steps: int) -> Any:
    mean, cov, total = jnp.zeros(2), jnp.eye(2), 0.0
    for k in range(steps):
        mean, cov = f @ mean, f @ cov @ f.T + q
        gain = jnp.linalg.solve(cov + r, cov).T
        total = (
            total - 0.5 * jnp.linalg.slogdet(cov + r)[1] - 0.5 * (y[k] - mean) @ jnp.linalg.solve(cov + r, y[k] - mean)
        )
        mean, cov = mean + gain @ (y[k] - mean), cov - gain @ cov
    return total


def test_a_kalman_filter_and_its_gradient() -> None:
    t, T = pr.dim("t")
    y, f = pr.input("y", (2,), (t,)), pr.input("f", (2, 2))
    q, r = np.diag([0.1, 0.2]).astype("float32"), np.diag([0.5, 0.4]).astype("float32")
    mean, cov = pr.recurrent((2,), ((t, T + 1),)), pr.recurrent((2, 2), ((t, T + 1),))
    mean[0], cov[0] = pr.zeros((2,)), pr.eye(2)
    before, spread = (f @ mean)[{t: t}], f @ cov @ f.mT + q
    error, total = y - before, spread + r
    gain = la.solve(total, spread).mT
    mean[t + 1] = before + gain @ error
    cov[t + 1] = spread - gain @ spread
    score = (-0.5 * la.slogdet(total)[1] - 0.5 * (error * la.solve(total, error)).sum())[0:T].sum()
    values = {"y": random_array((6, 2)), "f": f32([[0.9, 0.1], [-0.2, 0.8]])}
    expected = jax.value_and_grad(lambda f: kalman(values["y"], f, q, r, 6))(values["f"])
    for backend in BACKENDS:
        program = pr.compile((score, pr.grad(score, f)), backend=backend)
        for ours, theirs in zip(program(y=values["y"], f=values["f"]), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_second_derivatives_as_in_jax() -> None:
    x = pr.input("x", (3, 3), (), "float64")
    a = x @ x.mT + pr.diag(pr.constant(np.arange(1.0, 4)))
    given = random_array((3, 3), "float64")

    def jax_a(x: Any) -> Any:
        return x @ x.T + jnp.diag(jnp.arange(1.0, 4))

    pairs: dict[str, tuple[pr.Tensor, Any]] = {
        "logdet": (la.slogdet(a)[1], lambda x: jnp.linalg.slogdet(jax_a(x))[1]),
        "cholesky": (pr.sin(la.cholesky(a)).sum(), lambda x: jnp.sin(jnp.linalg.cholesky(jax_a(x))).sum()),
        "solve": (la.solve(a, x).sum(), lambda x: jnp.linalg.solve(jax_a(x), x).sum()),
        "eigh": (pr.sin(la.eigvalsh(a)).sum(), lambda x: jnp.sin(jnp.linalg.eigvalsh(jax_a(x))).sum()),
        "svd": (pr.sin(la.svdvals(a)).sum(), lambda x: jnp.sin(jnp.linalg.svd(jax_a(x), compute_uv=False)).sum()),
    }
    for name, (ours, theirs) in pairs.items():
        first = pr.grad(ours, x)
        second = pr.evaluate(pr.grad(pr.sin(first).sum(), x), {"x": given})
        with jax.enable_x64(True):
            expected = jax.grad(lambda x: jnp.sin(jax.grad(theirs)(x)).sum())(given)  # noqa: B023
        np.testing.assert_allclose(second, expected, rtol=1e-8, atol=1e-8, err_msg=name)
