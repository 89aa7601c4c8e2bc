"""Gradients by finite differences in float64: what every gradient is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import polyrhythm as pr


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
        step[place] = 1e-6
        gradient[place] = (value(base + step) - value(base - step)) / 2e-6
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
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(found, expected, atol=2e-7 * scale * 10, rtol=0)
