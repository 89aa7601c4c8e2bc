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
