from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import polyrhythm as pr
from polyrhythm.errors import DTypeError, ShapeError
from tests.language.functions.helpers import assert_close, f32, on_constants, random_array

numbers = st.sampled_from([-2.0, -0.0, 0.0, 1.0, 1.5, 3.0, np.inf, -np.inf, np.nan])


@given(st.lists(numbers, max_size=8), st.lists(numbers, max_size=40), st.sampled_from(["left", "right"]))
def test_searchsorted_as_in_numpy(table: list[float], values: list[float], side: str) -> None:
    a, v = np.sort(f32(table)), f32(values)
    expected = np.searchsorted(a, v, side).astype("int32")  # type: ignore[call-overload]
    assert_close(on_constants(lambda a, v: pr.searchsorted(a, v, side), a, v), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("count", [65, 100, 128])
def test_searchsorted_in_a_long_vector(count: int, side: str) -> None:
    random = np.random.default_rng(count)
    a = np.sort(random.integers(0, 40, count).astype("float32"))
    a[-2:] = np.inf, np.nan
    v = np.array([[-1, 0, 3, 3.5], [39, 40, 41, 17], [np.inf, -np.inf, np.nan, 20]], "float32")
    expected = np.searchsorted(a, v, side).astype("int32")  # type: ignore[call-overload]
    assert_close(on_constants(lambda a, v: pr.searchsorted(a, v, side), a, v), expected)  # type: ignore[arg-type]


def test_searchsorted_refuses() -> None:
    with pytest.raises(ShapeError, match="sorted vector"):
        pr.searchsorted(pr.ones((2, 2)), 1.0)
    with pytest.raises(DTypeError, match="left"):
        pr.searchsorted(pr.ones((2,)), 1.0, "middle")  # type: ignore[arg-type]


@pytest.mark.parametrize("axis", [0, 1, -1, None])
@pytest.mark.parametrize("q", [0.0, 0.3, 0.5, 1.0, [0.1, 0.9], [[0.0, 0.25], [0.5, 0.75]]], ids=str)
def test_quantile_as_in_numpy(axis: int | None, q: float | list[float]) -> None:
    x = random_array((5, 4))
    for keepdims in (False, True):
        expected = np.quantile(x.astype("float64"), q, axis, keepdims=keepdims).astype("float32")
        wanted = q if isinstance(q, float) else pr.constant(f32(q))
        assert_close(on_constants(lambda x: pr.quantile(x, wanted, axis, keepdims), x), expected)  # noqa: B023
    if q == 0.5:
        assert_close(on_constants(lambda x: pr.median(x, axis), x), np.median(x, axis))


def test_quantiles_of_nothing_and_of_nan() -> None:
    assert np.isnan(on_constants(lambda x: pr.median(x, 0), np.zeros((0, 2), "float32"))).all()
    assert np.isnan(on_constants(pr.median, f32([1, np.nan, 2])))
    assert_close(on_constants(pr.median, f32([7])), f32(7))


def test_topk_takes_nan_first_as_argmax_does() -> None:
    x = f32([[1, np.nan, 3, np.nan], [2, 5, np.inf, 5]])
    for k in range(5):
        values, positions = on_constants(lambda x: pr.topk(x, k), x)  # noqa: B023
        expected, places = jax.lax.top_k(x, k)
        np.testing.assert_array_equal(values, expected)
        np.testing.assert_array_equal(positions, places)
    values, positions = on_constants(lambda x: pr.topk(x, 1, axis=0), x)
    np.testing.assert_array_equal(positions, on_constants(lambda x: x.argmax(0, keepdims=True), x))


def test_interp_as_in_numpy() -> None:
    x, xp, fp = random_array((30,)) * 3, np.sort(random_array((6,), seed=1)), random_array((6,), seed=2)
    assert_close(on_constants(pr.interp, x, xp, fp), np.interp(x, xp, fp).astype("float32"), 10)
    assert_close(on_constants(pr.interp, x[:3], xp[:1], fp[:1]), np.interp(x[:3], xp[:1], fp[:1]).astype("float32"))


@pytest.mark.parametrize("offset", [-4, -1, 0, 1, 3])
def test_diagonals_as_in_numpy(offset: int) -> None:
    for shape in ((3, 3), (2, 4), (4, 2), (1, 1)):
        x = random_array(shape)
        assert_close(on_constants(lambda x: pr.diagonal(x, offset), x), np.diagonal(x, offset))
        assert_close(on_constants(lambda x: pr.trace(x, offset), x), np.trace(x, offset))
    assert_close(on_constants(lambda x: pr.diag(x, offset), random_array((3,))), np.diag(random_array((3,)), offset))
    batch = random_array((2, 3, 3))
    expected = np.diagonal(batch, offset, 1, 2)
    assert_close(on_constants(lambda x: pr.diagonal(x, offset), batch), expected)


@pytest.mark.parametrize("num", [0, 1, 2, 7])
@pytest.mark.parametrize("endpoint", [True, False])
def test_linspace_as_in_numpy(num: int, endpoint: bool) -> None:
    expected = np.linspace(-1, 2, num, endpoint, dtype="float32")
    assert_close(pr.evaluate(pr.linspace(-1, 2, num, endpoint)), expected)
    start, stop = f32([1, 2]), f32([3, 0])
    expected = np.linspace(start, stop, num, endpoint, dtype="float32")
    assert_close(on_constants(lambda a, b: pr.linspace(a, b, num, endpoint), start, stop), expected)
    found = pr.evaluate(pr.linspace(pr.constant(0.1, "float64"), 1, num, endpoint))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, np.linspace(0.1, 1, num, endpoint), rtol=1e-15)
    found = pr.evaluate(pr.linspace(pr.constant(1j, "complex64"), 1, num, endpoint))
    np.testing.assert_allclose(found, np.linspace(1j, 1, num, endpoint), rtol=1e-6)
    assert pr.evaluate(pr.linspace(0, 6, 4, dtype="int32")).dtype == np.int32


def test_distributions_of_draws() -> None:
    draws = {
        "expon": (pr.exponential((4000,), 2.0), stats.expon(scale=2)),
        "gamma": (pr.gamma((4000,), 0.2), stats.gamma(0.2)),
        "gamma1": (pr.gamma((4000,), 1.0, dtype="float64"), stats.gamma(1.0)),
        "gamma9": (pr.gamma((4000,), 9.0, 0.5), stats.gamma(9.0, scale=0.5)),
        "beta": (pr.beta((4000,), 0.5, 2.0), stats.beta(0.5, 2.0)),
    }
    for name, (tensor, distribution) in draws.items():
        assert stats.kstest(pr.evaluate(tensor), distribution.cdf).pvalue > 1e-3, name


def test_counts_and_choices() -> None:
    p = f32([0.1, 0.2, 0.7])
    counts = pr.evaluate(pr.multinomial(5000, pr.constant(p)))
    assert counts.sum() == 5000
    assert stats.chisquare(counts, 5000 * p.astype("float64") / p.sum(dtype="float64")).pvalue > 1e-3
    drawn = pr.evaluate(pr.choice(3, (5000,), p=pr.constant(p)))
    assert stats.chisquare(np.bincount(drawn), 5000 * p.astype("float64") / p.sum(dtype="float64")).pvalue > 1e-3
    t, T = pr.dim("t")
    first = pr.evaluate(pr.choice(3, 2, replace=False, p=pr.constant(p), dims=(t,)), bounds={T: 5000})
    assert (first[:, 0] != first[:, 1]).all()
    assert stats.chisquare(np.bincount(first[:, 0]), 5000 * p.astype("float64") / p.sum(dtype="float64")).pvalue > 1e-3
    with pytest.raises(ShapeError, match="without replacement"):
        pr.choice(2, 3, replace=False)


def test_ndim_and_the_transposed_matrix() -> None:
    x = random_array((2, 3, 4))
    assert pr.constant(x).ndim == 3
    assert_close(on_constants(lambda x: x.mT, x), np.swapaxes(x, 1, 2))
