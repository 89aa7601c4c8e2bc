"""Gradients by finite differences in float64: what every gradient is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import polyrhythm as pr

STEP = 1e-6

Function = Callable[..., pr.Tensor]


def by_differences(
    loss: pr.Tensor, inputs: Mapping[str, Any], name: str, bounds: Mapping[Any, int] | None = None, **options: Any
) -> np.ndarray:
    """The gradient of a loss, summed over its dims, by one of its inputs."""

    def value(changed: np.ndarray) -> float:
        return float(np.sum(pr.evaluate(loss, {**inputs, name: changed}, bounds, **options)))

    base = np.asarray(inputs[name], np.float64)
    gradient = np.zeros_like(base)
    for place in np.ndindex(base.shape):
        step = np.zeros_like(base)
        step[place] = STEP
        gradient[place] = (value(base + step) - value(base - step)) / (2 * STEP)
    return gradient


def check(
    loss: pr.Tensor,
    wrt: pr.Tensor,
    name: str,
    inputs: Mapping[str, Any],
    bounds: Mapping[Any, int] | None = None,
    **options: Any,
) -> None:
    """The gradient equals the one by differences."""
    expected = by_differences(loss, inputs, name, bounds, **options)
    found = pr.evaluate((pr.grad(loss, wrt), loss), inputs, bounds, **options)[0]
    close(found, expected)


def close(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal up to the error of finite differences."""
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(found, expected, atol=2e-6 * scale, rtol=0)


def weighted(result: pr.Tensor) -> pr.Tensor:
    """A scalar in which every element of a result counts differently."""
    shape = tuple(int(n) for n in result.shape)
    weights = np.random.default_rng(99).uniform(0.5, 1.5, size=shape)
    return (result * pr.constant(weights, "float64")).sum()


def gradients(function: Function, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The gradients of a weighted sum of a function's result by each of its arguments."""
    tensors = [pr.input(f"x{k}", array.shape, (), "float64") for k, array in enumerate(arrays)]
    # The inputs are outputs too, since a gradient may not depend on all of them.
    outputs = (pr.grad(weighted(function(*tensors)), tensors), tensors)
    found: list[np.ndarray] = pr.evaluate(outputs, {f"x{k}": array for k, array in enumerate(arrays)})[0]
    return found


def differences(function: Function, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The same gradients by differences: all changed arguments are steps of one dim, evaluated at once."""
    n, _ = pr.dim("n")
    sizes = [array.size for array in arrays]
    flat = np.concatenate([array.ravel() for array in arrays])
    changes = np.concatenate([np.eye(flat.size), -np.eye(flat.size)]) * STEP
    parts = np.split(flat + changes, np.cumsum(sizes)[:-1], axis=1)
    inputs = {f"x{k}": part.reshape(-1, *arrays[k].shape) for k, part in enumerate(parts)}
    tensors = [pr.input(f"x{k}", array.shape, (n,), "float64") for k, array in enumerate(arrays)]
    values = pr.evaluate(weighted(function(*tensors)), inputs)
    slopes = (values[: flat.size] - values[flat.size :]) / (2 * STEP)
    return [part.reshape(a.shape) for part, a in zip(np.split(slopes, np.cumsum(sizes)[:-1]), arrays, strict=True)]


def check_function(function: Function, *arrays: np.ndarray) -> None:
    """The gradients of a function by each of its arguments equal those by differences."""
    given = [np.asarray(array, np.float64) for array in arrays]
    for found, expected in zip(gradients(function, given), differences(function, given), strict=True):
        close(found, expected)
