"""How the functions are tested: on constants, on an axis of dynamic length, and on a growing prefix of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import polyrhythm as pr

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype("float16"), BFLOAT16, np.dtype("float32"), np.dtype("float64")]
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-6, "float64": 1e-12}


def f32(values: Any) -> np.ndarray:
    """An array of float32."""
    return np.array(values, "float32")


def i32(values: Any) -> np.ndarray:
    """An array of int32."""
    return np.array(values, "int32")


def i8(values: Any) -> np.ndarray:
    """An array of int8."""
    return np.array(values, "int8")


def random_array(shape: tuple[int, ...], dtype: Any = "float32", seed: int = 0) -> np.ndarray:
    """Numbers of moderate size."""
    rng = np.random.default_rng([seed, *shape])
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0 if np.dtype(dtype).kind == "u" else -9, 10, shape).astype(dtype)
    if np.dtype(dtype) == np.dtype(bool):
        return rng.random(shape) < 0.5
    return rng.normal(size=shape).astype(dtype)


def on_constants(function: Callable[..., Any], *arrays: np.ndarray) -> Any:
    """The function of constants."""
    return pr.evaluate(function(*map(pr.constant, arrays)))


def on_dynamic_axis(function: Callable[..., Any], *arrays: np.ndarray) -> Any:
    """The function of tensors whose first axis has a length known only at run time."""
    t, T = pr.dim("t")
    steps = [pr.input(f"x{i}", a.shape[1:], (t,), a.dtype) for i, a in enumerate(arrays)]
    return pr.evaluate(function(*(x[0:T] for x in steps)), {f"x{i}": a for i, a in enumerate(arrays)})


def on_prefixes(function: Callable[..., Any], array: np.ndarray) -> np.ndarray:
    """The function of the first t + 1 rows, for every t."""
    t, _ = pr.dim("t")
    x = pr.input("x", array.shape[1:], (t,), array.dtype)
    return pr.evaluate(function(x[0 : t + 1]), {"x": array})


def on_suffixes(function: Callable[..., Any], array: np.ndarray) -> np.ndarray:
    """The function of the rows from t on, for every t."""
    t, T = pr.dim("t")
    x = pr.input("x", array.shape[1:], (t,), array.dtype)
    return pr.evaluate(function(x[t:T]), {"x": array})


def assert_close(result: Any, expected: Any, scale: float = 1.0) -> None:
    """The same shape and dtype, and the same numbers up to rounding."""
    wanted = np.asarray(expected)
    assert result.shape == wanted.shape
    assert result.dtype == wanted.dtype
    if wanted.dtype.name not in TOLERANCE:
        np.testing.assert_array_equal(result, wanted)
        return
    bound = TOLERANCE[wanted.dtype.name] * scale
    np.testing.assert_allclose(result.astype("float64"), wanted.astype("float64"), rtol=bound, atol=bound)
