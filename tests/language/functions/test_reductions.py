from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np
import pytest
from jax.scipy.special import logsumexp as jax_logsumexp

import polyrhythm as pr
from polyrhythm.errors import AxisError, DTypeError, EmptyAxisError
from polyrhythm.language.functions import reductions
from tests.language.functions.helpers import (
    FLOATS,
    assert_close,
    f32,
    i32,
    on_constants,
    on_dynamic_axis,
    on_prefixes,
    on_suffixes,
    random_array,
)

AXES: list[Any] = [None, 0, -1, (0, 2), (1,), ()]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", AXES, ids=str)
def test_reductions_of_floats(axis: Any, keepdims: bool) -> None:
    names = ["sum", "prod", "max", "min", "mean", "var", "std"]
    x = random_array((4, 3, 2))

    def function(x: pr.Tensor) -> list[pr.Tensor]:
        return [getattr(x, name)(axis, keepdims) for name in names]

    for evaluate in (on_constants, on_dynamic_axis):
        for name, result in zip(names, evaluate(function, x), strict=True):
            expected = getattr(np, name)(x.astype("float64"), axis=axis, keepdims=keepdims)
            assert_close(result, expected.astype("float32"), 4)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "std", "any", "all"])
def test_reductions_of_prefixes_and_suffixes(name: str) -> None:
    x = random_array((5, 3))
    values = x > 0 if name in ("any", "all") else x
    prefixes = np.stack([getattr(np, name)(values[: t + 1], axis=0) for t in range(5)])
    suffixes = np.stack([getattr(np, name)(values[t:], axis=0) for t in range(5)])
    assert_close(on_prefixes(lambda x: getattr(x, name)(0), values), prefixes, 4)
    assert_close(on_suffixes(lambda x: getattr(x, name)(0), values), suffixes, 4)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "bool"])
def test_reductions_of_integers(dtype: str) -> None:
    x = random_array((4, 3), dtype)
    kept = "int32" if dtype == "bool" else dtype
    assert_close(on_constants(lambda x: x.sum(0), x), x.sum(0, dtype=kept))
    assert_close(on_constants(lambda x: x.prod(0), x), x.prod(0, dtype=kept))
    assert_close(on_constants(lambda x: x.max(0), x), x.max(0))
    assert_close(on_constants(lambda x: x.mean(), x), x.mean(dtype="float64").astype("float32"))
    assert_close(on_constants(lambda x: x.any(1), x), x.any(1))
    assert_close(on_constants(lambda x: x.all(1), x), x.all(1))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["sum", "mean", "var", "std", "softmax", "log_softmax", "logsumexp"])
def test_narrow_floats_accumulate_wide(name: str, dtype: np.dtype) -> None:
    x = (random_array((300,)) + 3).astype(dtype)
    wide = x.astype("float64")
    shifted = wide - wide.max()
    references = {
        "softmax": np.exp(shifted) / np.exp(shifted).sum(),
        "log_softmax": shifted - np.log(np.exp(shifted).sum()),
        "logsumexp": np.log(np.exp(wide).sum()),
    }
    expected = references[name] if name in references else getattr(wide, name)()
    assert_close(on_constants(getattr(pr, name), x), np.asarray(expected).astype(dtype), 4)


@pytest.mark.parametrize("correction", [0, 1, 3, 4])
def test_correction(correction: int) -> None:
    x = random_array((3, 2))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        expected = x.var(0, ddof=correction)
    assert_close(on_constants(lambda x: x.var(0, correction=correction), x), expected, 4)
    assert_close(on_dynamic_axis(lambda x: x.var(0, correction=correction), x), expected, 4)


def test_empty_axes() -> None:
    x = np.zeros((0, 2), "float32")
    expected = {"sum": 0, "prod": 1, "max": -np.inf, "min": np.inf, "mean": np.nan, "logsumexp": -np.inf}
    for name, value in expected.items():
        for evaluate in (on_constants, on_dynamic_axis):
            assert_close(evaluate(lambda x, name=name: getattr(x, name)(0), x), np.full(2, value, "float32"))
    assert_close(on_constants(lambda x: x.max(0), x.astype("int8")), np.full(2, -128, "int8"))
    assert_close(on_constants(lambda x: pr.softmax(x, 0), x), x)
    assert_close(on_constants(lambda x: pr.norm(x, 0, order=float("inf")), x), np.zeros(2, "float32"))


@pytest.mark.parametrize("axis", [None, 0, (0, 1)])
def test_logsumexp(axis: Any) -> None:
    x = random_array((4, 3)) * 50
    x[0] = -np.inf
    expected = np.asarray(jax_logsumexp(x, axis=axis))
    assert_close(on_constants(lambda x: x.logsumexp(axis), x), expected, 4)
    assert_close(on_dynamic_axis(lambda x: x.logsumexp(axis), x), expected, 4)


def test_logsumexp_of_infinities_and_nan() -> None:
    x = f32([[-np.inf, -np.inf], [np.inf, 0], [np.nan, 0]])
    np.testing.assert_array_equal(on_constants(lambda x: x.logsumexp(1), x), f32([-np.inf, np.inf, np.nan]))


@pytest.mark.parametrize("axis", [0, -1])
def test_softmax(axis: int) -> None:
    x = random_array((4, 3)) * 100
    x[1, 1:] = -np.inf
    for name in ("softmax", "log_softmax"):
        expected = np.asarray(getattr(jax.nn, name)(x, axis=axis))
        assert_close(on_constants(lambda x, name=name: getattr(pr, name)(x, axis), x), expected, 100)
        assert_close(on_dynamic_axis(lambda x, name=name: getattr(pr, name)(x, axis), x), expected, 100)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_arguments_of_extrema(name: str, axis: int | None, keepdims: bool) -> None:
    x = random_array((4, 3), "int32")
    expected = getattr(np, name)(x, axis=axis, keepdims=keepdims).astype("int32")
    assert_close(on_constants(lambda x: getattr(x, name)(axis, keepdims), x), expected)


def test_argmax_of_a_prefix() -> None:
    x = random_array((5, 3))
    assert_close(on_prefixes(lambda x: x.argmax(0), x), i32([x[: t + 1].argmax(0) for t in range(5)]))


def test_argmax_of_nothing() -> None:
    with pytest.raises(EmptyAxisError):
        pr.zeros((0, 2)).argmax(0)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, -1, None])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax"])
def test_running_reductions(name: str, axis: int | None, reverse: bool) -> None:
    x = random_array((4, 3))
    values = x.ravel() if axis is None else x
    along = 0 if axis is None else axis
    values = np.flip(values, along) if reverse else values
    running = np.maximum.accumulate(values, along) if name == "cummax" else getattr(np, name)(values, along)
    expected = np.flip(running, along) if reverse else running
    assert_close(on_constants(lambda x: getattr(x, name)(axis, reverse), x), expected)
    assert_close(on_dynamic_axis(lambda x: getattr(x, name)(axis, reverse), x), expected)


def test_cumsum_counts_booleans() -> None:
    assert_close(on_constants(lambda x: x.cumsum(0), np.array([True, False, True])), i32([1, 1, 2]))


@pytest.mark.parametrize("order", [1, 2, float("inf")])
def test_norm(order: float) -> None:
    x = random_array((4, 3))
    expected = np.linalg.norm(x, order, axis=1)
    assert_close(on_constants(lambda x: x.norm(1, order=order), x), expected, 4)
    with pytest.raises(DTypeError, match="order"):
        pr.norm(x, order=3)


def test_wrong_axes() -> None:
    x = pr.zeros((2, 3))
    with pytest.raises(AxisError, match="from -2 to 1"):
        x.sum(2)
    with pytest.raises(AxisError, match="once"):
        x.sum((0, -2))
    with pytest.raises(AxisError, match="integer"):
        x.sum("0")  # type: ignore[arg-type]
    with pytest.raises(AxisError, match="scalar"):
        pr.zeros(()).cumsum()


def test_max_and_min_of_tensors_are_methods() -> None:
    assert pr.max(1, 2) == 2
    assert reductions.max(pr.constant([1, 2])).dtype == np.int32
