from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.errors import DTypeError
from tests.language.functions.helpers import (
    FLOATS,
    assert_close,
    f32,
    i8,
    i32,
    on_constants,
    on_dynamic_axis,
    random_array,
)

FROM_NUMPY = [
    "exp",
    "expm1",
    "sin",
    "cos",
    "tanh",
    "floor",
    "ceil",
    "round",
    "abs",
    "sign",
    "square",
    "isnan",
    "isfinite",
]
POSITIVE = ["log", "log1p", "sqrt", "reciprocal"]
FROM_JAX = ["sigmoid", "relu", "softplus", "silu"]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", [*FROM_NUMPY, *POSITIVE, *FROM_JAX, "erf", "rsqrt", "gelu"])
def test_functions(name: str, dtype: np.dtype) -> None:
    x = random_array((5, 3), dtype)
    x = np.abs(x) + dtype.type(0.1) if name in (*POSITIVE, "rsqrt") else x
    # The reference is computed in double precision and rounded once.
    with jax.enable_x64(True):
        wide = x.astype("float64")
        if name in FROM_NUMPY + POSITIVE:
            expected = np.asarray(getattr(jnp, name)(wide))
        elif name in FROM_JAX:
            expected = np.asarray(getattr(jax.nn, name)(wide))
        elif name == "gelu":
            expected = np.asarray(jax.nn.gelu(wide, approximate=False))
        else:
            expected = np.asarray(getattr(jax.lax, name)(wide))
    expected = expected if expected.dtype == bool else expected.astype(dtype)
    assert_close(on_constants(getattr(pr, name), x), expected, 4)
    assert_close(on_dynamic_axis(getattr(pr, name), x), expected, 4)


@pytest.mark.parametrize("name", ["exp", "sigmoid", "sqrt", "erf", "gelu", "softplus"])
def test_integers_become_float32(name: str) -> None:
    assert on_constants(getattr(pr, name), i8([0, 3])).dtype == np.float32
    assert on_constants(getattr(pr, name), np.array([False, True])).dtype == np.float32


@pytest.mark.parametrize("name", ["abs", "sign", "floor", "ceil", "round", "relu", "square"])
def test_integers_stay_integers(name: str) -> None:
    x = i32([-3, 0, 3])
    expected = x * (x > 0) if name == "relu" else getattr(np, name)(x)
    np.testing.assert_array_equal(on_constants(getattr(pr, name), x), expected.astype("int32"))


def test_gelu_by_tanh() -> None:
    x = random_array((7,))
    assert_close(on_constants(lambda x: pr.gelu(x, "tanh"), x), np.asarray(jax.nn.gelu(x, approximate=True)), 4)
    with pytest.raises(DTypeError, match="tanh"):
        pr.gelu(x, "sigmoid")  # type: ignore[arg-type]


def test_extreme_arguments() -> None:
    x = f32([-np.inf, -1000, 0, 1000, np.inf])
    assert_close(on_constants(pr.sigmoid, x), f32([0, 0, 0.5, 1, 1]))
    assert_close(on_constants(pr.softplus, x), np.asarray(jax.nn.softplus(x)))
    assert_close(on_constants(pr.relu, x), np.asarray(jax.nn.relu(x)))


def test_nan_passes_through() -> None:
    x = f32([np.nan])
    for function in (pr.relu, pr.sigmoid, pr.softplus, pr.gelu):
        assert np.isnan(on_constants(function, x)).all()


def test_methods_are_the_functions() -> None:
    x = random_array((3,))
    assert_close(on_constants(lambda x: abs(x).exp().sqrt().tanh(), x), np.tanh(np.sqrt(np.exp(np.abs(x)))))
