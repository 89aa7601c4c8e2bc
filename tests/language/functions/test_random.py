from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.errors import DTypeError
from tests.language.functions.helpers import f32

FUNCTIONS: list[Callable[..., Any]] = [
    lambda **k: pr.uniform((4,), **k),
    lambda **k: pr.normal((4,), **k),
    lambda **k: pr.bernoulli(0.5, (32,), **k),
    lambda **k: pr.categorical(pr.zeros((8, 9)), **k),
    lambda **k: pr.randint((8,), 0, 1000, **k),
    lambda **k: pr.permutation(16, **k),
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_draws_depend_on_seed_site_and_step_only(function: Callable[..., Any]) -> None:
    t, T = pr.dim("t")
    draw = function(dims=(t,), name="draw")
    first, again, other = (pr.evaluate(draw, bounds={T: 3}, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first[0], first[1])
    np.testing.assert_array_equal(first, pr.evaluate(draw, bounds={T: 5}, seed=1)[:3])
    renamed = function(dims=(t,), name="other")
    assert not np.array_equal(first, pr.evaluate(renamed, bounds={T: 3}, seed=1))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_two_calls_are_two_sites(function: Callable[..., Any]) -> None:
    a, b = pr.evaluate((function(), function()))
    assert not np.array_equal(a, b)


def test_one_draw_read_twice_is_one_draw() -> None:
    u = pr.uniform((3,))
    a, b = pr.evaluate((u, u + 0))
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("dtype", "bits"), [("float32", 24), ("float64", 53), ("float16", 11), (ml_dtypes.bfloat16, 8)], ids=str
)
def test_uniforms_are_exact_multiples(dtype: Any, bits: int) -> None:
    u = pr.evaluate(pr.uniform((4000,), dtype=dtype))
    assert u.dtype == np.dtype(dtype)
    wide = u.astype("float64") * 2.0**bits
    np.testing.assert_array_equal(wide, np.floor(wide))
    assert wide.min() >= 0
    assert wide.max() < 2.0**bits
    assert len(set((wide.astype("int64") % 2).tolist())) == 2
    assert abs(u.astype("float64").mean() - 0.5) < 0.03


def test_uniforms_between_bounds() -> None:
    u = pr.evaluate(pr.uniform((5000,), -2, pr.constant(3.0)))
    assert u.dtype == np.float32
    assert -2 <= u.min() < -1.9
    assert 2.9 < u.max() <= 3


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_normals(dtype: str) -> None:
    x = pr.evaluate(pr.normal((20000,), dtype=dtype)).astype("float64")
    assert np.isfinite(x).all()
    moments = [np.mean(x**k) for k in (1, 2, 3, 4)]
    np.testing.assert_allclose(moments, [0, 1, 0, 3], atol=0.15)
    assert abs(np.mean(x < 1) - 0.8413) < 0.01
    assert abs(np.mean(x < -2) - 0.0228) < 0.005


def test_normals_with_mean_and_deviation_over_time() -> None:
    t, T = pr.dim("t")
    x = pr.evaluate(pr.normal((1000,), pr.value(t) * 10, 0.5), bounds={T: 3})
    np.testing.assert_allclose(x.mean(1), [0, 10, 20], atol=0.1)
    assert not np.allclose(x[0], x[1] - 10)


def test_bernoulli() -> None:
    p = f32([0, 0.25, 0.75, 1])
    draws = pr.evaluate(pr.bernoulli(pr.constant(p), (4000, 4)))
    assert draws.dtype == bool
    np.testing.assert_allclose(draws.mean(0), p, atol=0.03)
    assert not draws[:, 0].any()
    assert draws[:, 3].all()


def test_draws_vary_along_the_dims_of_their_arguments() -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,))
    draws = pr.evaluate(pr.bernoulli(x), {"x": np.full(64, 0.5, "float32")})
    assert 0 < draws.sum() < 64
    shared = pr.evaluate(pr.bernoulli(x, dims=()), {"x": np.full(64, 0.5, "float32")})
    assert shared.sum() in (0, 64)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("axis", [0, -1])
def test_categorical(dtype: str, axis: int) -> None:
    p = np.array([0.5, 0.0, 0.125, 0.375])
    with np.errstate(divide="ignore"):
        logits = np.log(p)
    rows = np.tile(logits, (4000, 1)) + 7
    tensor = pr.constant(rows if axis == -1 else rows.T, dtype)
    draws = pr.evaluate(pr.categorical(tensor, axis))
    assert draws.shape == (4000,)
    assert draws.dtype == np.int32
    np.testing.assert_allclose(np.bincount(draws, minlength=4) / 4000, p, atol=0.03)
    assert not (draws == 1).any()


def test_categorical_never_draws_the_impossible() -> None:
    # Many tiny weights: the running sums are rounded, and the last positions have no weight.
    logits = np.full((500, 300), -np.inf, "float32")
    logits[:, 50:250:2] = np.linspace(-30, 5, 100, dtype="float32")
    draws = pr.evaluate(pr.categorical(pr.constant(logits)))
    assert np.isfinite(logits[np.arange(500), draws]).all()
    single = np.full((100, 7), -np.inf, "float32")
    single[:, 6] = -1000
    assert (pr.evaluate(pr.categorical(pr.constant(single))) == 6).all()


def test_categorical_over_a_growing_axis() -> None:
    t, _ = pr.dim("t")
    x = pr.input("x", (), (t,))
    draws = pr.evaluate(pr.categorical(x[0 : t + 1]), {"x": np.zeros(50, "float32")})
    assert (draws <= np.arange(50)).all()
    assert draws.max() > 20


def test_integers() -> None:
    k = pr.evaluate(pr.randint((6000,), -2, 4))
    assert k.dtype == np.int32
    np.testing.assert_allclose(np.bincount(k + 2) / 6000, np.full(6, 1 / 6), atol=0.02)
    large = pr.evaluate(pr.randint((1000,), 0, 2**40, dtype="int64"))
    assert large.dtype == np.int64
    assert large.max() > 2**39


def test_integers_below_a_step() -> None:
    t, T = pr.dim("t")
    k = pr.evaluate(pr.randint((20,), 0, t + 1), bounds={T: 10})
    assert (k <= np.arange(10)[:, None]).all()
    assert k[9].max() > 5


def test_permutations() -> None:
    t, T = pr.dim("t")
    orders = pr.evaluate(pr.permutation(5, dims=(t,)), bounds={T: 2000})
    np.testing.assert_array_equal(np.sort(orders, 1), np.tile(np.arange(5), (2000, 1)))
    counts = np.stack([np.bincount(orders[:, k], minlength=5) for k in range(5)])
    np.testing.assert_allclose(counts / 2000, 0.2, atol=0.04)


def test_refusals() -> None:
    with pytest.raises(DTypeError, match="randint"):
        pr.uniform((2,), dtype="int32")
    with pytest.raises(DTypeError, match="integers"):
        pr.randint((2,), 0, 3, dtype="float32")
    with pytest.raises(DTypeError, match="bounds of randint"):
        pr.randint((2,), 0, 3.5)
