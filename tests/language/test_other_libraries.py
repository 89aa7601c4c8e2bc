"""Functions of NumPy, JAX and torch on tensors name ours; operators with their arrays work."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import polyrhythm as pr
from polyrhythm.errors import OperandError

CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "np.tanh": (lambda x: np.tanh(x), r"use pr\.tanh"),
    "np.arctan2": (lambda x: np.arctan2(x, 1.0), r"use pr\.atan2"),
    "np.sum": (lambda x: np.sum(x), r"use pr\.sum"),
    "np.concatenate": (lambda x: np.concatenate([x, x]), r"use pr\.concat"),
    "np.add.reduce": (lambda x: np.add.reduce(x), "functions of Polyrhythm"),
    "np.maximum": (lambda x: np.maximum(x, 0), r"use pr\.maximum"),
    "np.max": (lambda x: np.max(x), r"x\.max\(axis\)"),
    "jnp.tanh": (lambda x: jnp.tanh(x), r"use pr\.tanh"),
    "jnp.sum": (lambda x: jnp.sum(x), r"use pr\.sum"),
    "jnp.concatenate": (lambda x: jnp.concatenate([x, x]), r"use pr\.concat"),
    "jax.numpy.exp": (lambda x: jax.numpy.exp(x), r"use pr\.exp"),
    "jnp.where": (lambda x: jnp.where(x > 0, x, 0), r"use pr\.where"),
    "torch.tanh": (lambda x: torch.tanh(x), r"use pr\.tanh"),
    "torch.cat": (lambda x: torch.cat([x, x]), r"use pr\.concat"),
    "torch.relu": (lambda x: torch.nn.functional.relu(x), r"use pr\.relu"),
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_name_ours(name: str) -> None:
    call, fix = CALLS[name]
    with pytest.raises(OperandError, match=fix) as caught:
        call(pr.ones((3,)))
    assert caught.value.at.file == __file__
    assert "when the program runs" in str(caught.value)


OPERATORS = ["add", "sub", "mul", "truediv", "floordiv", "mod", "matmul", "eq", "ne", "lt", "le", "gt", "ge"]


@pytest.mark.parametrize("library", [np.asarray, jnp.asarray, torch.as_tensor], ids=["numpy", "jax", "torch"])
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_with_arrays_on_either_side(name: str, library: Callable[[Any], Any]) -> None:
    function = getattr(operator, name)
    a, b = np.array([3.0, 5.0, 2.0], "float32"), np.array([2.0, 5.0, 4.0], "float32")
    expected = function(a, b)
    for result in (function(library(a), pr.constant(b)), function(pr.constant(a), library(b))):
        assert isinstance(result, pr.Tensor)
        np.testing.assert_allclose(pr.evaluate(result), expected)


def test_numpy_scalars_and_updates_in_place() -> None:
    x = pr.constant(np.array([1.0, 2.0], "float32"))
    assert pr.evaluate(np.float32(2) * x).tolist() == [2.0, 4.0]
    total: Any = np.zeros(2, "float32")
    total += x
    assert pr.evaluate(total).tolist() == [1.0, 2.0]


def test_attributes_can_be_asked_for() -> None:
    assert not hasattr(pr.ones(()), "__jax_array__")
    assert not hasattr(pr.ones(()), "__array__")
