"""NaN and infinities stay where the definition has them, in arrays large enough for XLA's libraries too."""

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr

BACKENDS = ["jax", "numpy", "torch"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("count", [100, 5000])
def test_the_greatest_and_least_of_what_has_nan(count: int, backend: str) -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    wide = pr.input("wide", (2, count))
    outputs = {"max": x[0:T].max(0), "min": x[0:T].min(0), "row": wide.max(1), "all": wide.min()}
    data: Any = {"x": np.ones((count, 3), "float32"), "wide": np.ones((2, count), "float32")}
    data["x"][count // 9, 1] = np.nan
    data["x"][count // 9, 2] = -np.inf
    data["wide"][1, count // 7] = np.nan
    found = pr.compile(outputs, backend=backend)(**data)
    np.testing.assert_array_equal(found["max"], [1, np.nan, 1])
    np.testing.assert_array_equal(found["min"], [1, np.nan, -np.inf])
    np.testing.assert_array_equal(found["row"], [1, np.nan])
    assert np.isnan(found["all"])


@pytest.mark.parametrize("backend", ["jax", "numpy"])
def test_steps_before_nan_do_not_see_it(backend: str) -> None:
    """Causal attention over a batch, all of it at once: what lanes share is not finite."""
    (b, _), (t, _T) = pr.dim("b"), pr.dim("t")
    x = pr.input("x", (32,), (b, t))
    weights = pr.softmax(x[b, 0 : t + 1] @ x, axis=-1)
    y = pr.einsum("s,sd->d", weights, x[b, 0 : t + 1])
    data = np.random.default_rng(0).normal(size=(3, 70, 32)).astype("float32") / 4
    data[:, 50] = np.nan
    found = np.isfinite(pr.compile(y, backend=backend)(x=data))
    assert found[:, :50].all()
    assert not found[:, 50:].any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows", [3, 600])
def test_relu_between_products(rows: int, backend: str) -> None:
    """XLA's library takes both products and what is between them; relu of NaN is NaN, of both zeros 0."""
    x, w = pr.input("x", (rows, 64)), pr.input("w", (64, 256))
    y = pr.relu(x)
    program = pr.compile({"hidden": pr.relu(x @ w) @ w.T, "sign": 1 / y}, backend=backend)
    data: Any = {
        "x": np.random.default_rng(0).normal(size=(rows, 64)),
        "w": np.random.default_rng(1).normal(size=(64, 256)),
    }
    data = {name: array.astype("float32") for name, array in data.items()}
    data["x"][1, 3], data["x"][2, :2] = np.nan, [-0.0, 0.0]
    found = program(**data)
    nans = np.isnan(np.asarray(found["hidden"]))
    assert nans[1].all()
    assert not np.delete(nans, 1, 0).any()
    assert (np.asarray(found["sign"])[2, :2] == np.inf).all()


def test_relu_is_taken_into_products() -> None:
    """What a choice would store of every row, its hidden units, twice, is not there."""
    b, B = pr.dim("b")
    x, share, which = pr.input("x", (32,), (b,)), pr.input("share", (2,), (b,)), pr.input("which", (2,), (b,), "int32")
    up, down = pr.input("up", (8, 32, 64)), pr.input("down", (8, 64, 32))
    of_all = (share.unsqueeze(1) * pr.one_hot(which, 8)).sum(0)
    program = pr.compile(pr.einsum("e,eh,ehd->d", of_all, pr.relu(pr.einsum("d,edh->eh", x, up)), down))
    assert program.memory.peak({B: 2048}) < 2048 * 8 * 64 * 4
