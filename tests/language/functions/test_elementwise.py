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
    "tan",
    "sinh",
    "cosh",
    "exp2",
    "trunc",
    "floor",
    "ceil",
    "round",
    "abs",
    "sign",
    "square",
    "isnan",
    "isfinite",
]
POSITIVE = ["log", "log1p", "log2", "log10", "sqrt", "reciprocal"]
FROM_JAX = ["sigmoid", "relu", "softplus", "silu", "elu", "selu", "leaky_relu", "mish", "log_sigmoid", "relu6"]
FROM_JAX += ["hard_sigmoid", "hard_tanh", "hard_swish"]
OTHERS = ["erf", "rsqrt", "gelu", "lgamma", "digamma"]
FROM_JAX_NUMPY = {"atan": "arctan", "asin": "arcsin", "acos": "arccos"}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", [*FROM_NUMPY, *POSITIVE, *FROM_JAX, *FROM_JAX_NUMPY, *OTHERS])
def test_functions(name: str, dtype: np.dtype) -> None:
    x = random_array((5, 3), dtype)
    x = np.abs(x) + dtype.type(0.1) if name in (*POSITIVE, "rsqrt") else x
    x = np.clip(x, -0.9, 0.9).astype(dtype) if name in ("asin", "acos") else x
    # The reference is computed in double precision and rounded once.
    with jax.enable_x64(True):
        wide = x.astype("float64")
        if name in FROM_NUMPY + POSITIVE:
            expected = np.asarray(getattr(jnp, name)(wide))
        elif name in FROM_JAX:
            expected = np.asarray(getattr(jax.nn, name)(wide))
        elif name in FROM_JAX_NUMPY:
            expected = np.asarray(getattr(jnp, FROM_JAX_NUMPY[name])(wide))
        elif name == "gelu":
            expected = np.asarray(jax.nn.gelu(wide, approximate=False))
        else:
            expected = np.asarray(getattr(jax.lax, name)(wide))
    expected = expected if expected.dtype == bool else expected.astype(dtype)
    assert_close(on_constants(getattr(pr, name), x), expected, 8)
    assert_close(on_dynamic_axis(getattr(pr, name), x), expected, 8)


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


def test_atan2_as_in_numpy() -> None:
    y, x = f32([0, 0.0, 1, -1, 2, -0.0, np.inf]), f32([0, -1, 0, 0, 3, -1, np.inf])
    assert_close(on_constants(pr.atan2, y, x), np.arctan2(y, x))
    assert on_constants(pr.atan2, i8([1]), i8([1])).dtype == np.float32


def test_gamma_functions_at_their_poles() -> None:
    x = f32([0.0, -1.0, -2.0, np.inf, np.nan])
    np.testing.assert_array_equal(on_constants(pr.lgamma, x), f32([np.inf, np.inf, np.inf, np.inf, np.nan]))
    np.testing.assert_array_equal(np.isnan(on_constants(pr.digamma, x)), [True, True, True, False, True])


def test_softsign() -> None:
    x = random_array((7,))
    assert_close(on_constants(pr.softsign, x), np.asarray(jax.nn.soft_sign(x)), 4)
