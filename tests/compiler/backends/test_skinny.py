"""Few rows times a shared matrix: every form gives the product, and the form is the one for the number of rows."""

from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.backends.jax.products import choose, kernel, skinny
from polyrhythm.compiler.backends.jax.products.skinny import MOST_ROWS, ONE_BY_ONE, product

TINY, MIDDLE, LARGE = (5, 7), (skinny.SMALL // 128, 128), (ONE_BY_ONE[1] // 256 + 1, 256)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


@pytest.fixture
def every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small matrices take the form of larger ones."""
    monkeypatch.setattr(skinny, "SMALL", 0)
    monkeypatch.setattr(choose, "LEAST", 0)
    monkeypatch.setattr(choose, "LEAST_BATCH", 0)


def written(function: Any, *arrays: np.ndarray) -> str:
    return str(jax.make_jaxpr(function)(*arrays))


@pytest.mark.usefixtures("every_form")
@pytest.mark.parametrize("out", [(), (3,), (3, 2)])
@pytest.mark.parametrize("lanes", [(), (1,), (2,), (4,), (5,), (2, 3), (MOST_ROWS,), (MOST_ROWS + 1,)])
def test_lanes_are_rows(lanes: tuple[int, ...], out: tuple[int, ...]) -> None:
    rows, matrix = normal(*lanes, 7), normal(*out, 5, 7)
    mapped = product
    for _ in lanes:
        mapped = jax.vmap(mapped, (0, None))
    expected = np.tensordot(rows, matrix, (-1, -1))
    np.testing.assert_allclose(mapped(rows, matrix), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(product(rows, matrix), expected, rtol=1e-5, atol=1e-5)


def test_lanes_with_matrices_of_their_own() -> None:
    rows, matrices = normal(4, 7), normal(4, 5, 7)
    each = np.einsum("bi,boi->bo", rows, matrices)
    np.testing.assert_allclose(jax.vmap(product)(rows, matrices), each, rtol=1e-5, atol=1e-5)
    shared = np.einsum("i,boi->bo", rows[0], matrices)
    np.testing.assert_allclose(jax.vmap(product, (None, 0))(rows[0], matrices), shared, rtol=1e-5, atol=1e-5)
    several, parts = normal(2, 3, 7), normal(4, 5, 6, 7)
    shared = np.einsum("lmi,bopi->blmop", several, parts)
    np.testing.assert_allclose(jax.vmap(product, (None, 0))(several, parts), shared, rtol=1e-5, atol=1e-5)
    # Three lanes of five: the inner ones share a matrix that the outer ones do not.
    twice = jax.vmap(jax.vmap(product, (0, None)))(normal(4, 3, 7), matrices)
    expected = np.einsum("bli,boi->blo", normal(4, 3, 7), matrices)
    np.testing.assert_allclose(twice, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("count", "shape", "dots", "barriers"),
    [
        (1, TINY, 1, 0),
        (ONE_BY_ONE[0], TINY, ONE_BY_ONE[0], 0),
        (ONE_BY_ONE[0] + 1, TINY, 1, 0),
        (ONE_BY_ONE[0] + 1, MIDDLE, 1, 1),
        (2, LARGE, 1, 1),
        (MOST_ROWS, LARGE, 1, 1),
        (MOST_ROWS + 1, LARGE, 1, 0),
    ],
)
def test_without_a_kernel_the_form_is_that_of_the_number_of_rows(
    count: int, shape: tuple[int, int], dots: int, barriers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "takes", lambda *_: False)
    text = written(jax.vmap(product, (0, None)), normal(count, shape[1]), normal(*shape))
    assert (text.count("dot_general["), text.count("optimization_barrier")) == (dots, barriers)


@pytest.mark.parametrize(
    ("count", "shape", "kernels"),
    [
        (1, LARGE, 1),
        (kernel.MOST_ROWS, MIDDLE, 0),
        (kernel.MOST_ROWS, LARGE, 1),
        (kernel.MOST_ROWS + 1, LARGE, 0),
    ],
)
def test_rows_and_matrices_that_the_kernel_takes(count: int, shape: tuple[int, int], kernels: int) -> None:
    text = written(jax.vmap(product, (0, None)), normal(count, shape[1]), normal(*shape))
    assert text.count("polyrhythm_product[") == kernels


@pytest.mark.usefixtures("every_form")
@pytest.mark.parametrize("ours", [True, False], ids=["kernel", "XLA"])
@pytest.mark.parametrize(
    ("batch", "dtype"), [(1, "float32"), (2, "float32"), (5, "float32"), (40, "float32"), (2, "bfloat16"), (5, "int32")]
)
def test_programs_whose_rows_share_a_matrix(
    batch: int, dtype: str, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recurrence over t of rows b, weights stored (out, in) and (in, out), and a product over two axes."""
    if not ours:
        monkeypatch.setattr(kernel, "takes", lambda *_: False)
    b, t = pr.dim("b")[0], pr.dim("t")[0]
    x = pr.input("x", (6,), (b, t), dtype)
    first, second = pr.input("first", (4, 6), (), dtype), pr.input("second", (4, 6), (), dtype)
    third = pr.input("third", (3, 4, 6), (), dtype)
    y = pr.recurrent((6,), (b, t), dtype)
    y[b, 0] = x[b, 0]
    y[pr.otherwise] = pr.clip(pr.einsum("o,oi->i", pr.einsum("i,oi->o", y[b, t - 1] + x, first), second), -3, 3)
    outputs = {"y": y, "z": pr.einsum("oi,poi->p", pr.einsum("i,oi->oi", y, first), third)}
    random = np.random.default_rng(batch)
    kind = {"bfloat16": ml_dtypes.bfloat16}.get(dtype, dtype)
    given: dict[str, Any] = {n: random.integers(-2, 3, s).astype(kind) for n, s in _shapes(batch).items()}
    expected = pr.evaluate(outputs, given)
    found = pr.compile(outputs)(**given)
    for name in outputs:
        np.testing.assert_allclose(np.asarray(found[name], "float64"), np.asarray(expected[name], "float64"), rtol=1e-6)


def _shapes(batch: int) -> dict[str, tuple[int, ...]]:
    return {"x": (batch, 5, 6), "first": (4, 6), "second": (4, 6), "third": (3, 4, 6)}
