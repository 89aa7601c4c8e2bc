"""What the tests of modules share: a module and its torch counterpart, from the same weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

import polyrhythm as pr
from polyrhythm import nn

BATCH, STEPS = 2, 5


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def weights_of(module: nn.Module, seed: int = 1) -> dict[str, np.ndarray]:
    """Random weights for a module; those it begins with may be ones and zeros, which hide errors."""
    generator = np.random.default_rng(seed)
    return {name: generator.normal(size=value.shape) / 2 for name, value in module.weights().items()}


def tensors(weights: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name: torch.tensor(value, requires_grad=True) for name, value in weights.items()}


def compare(
    module: nn.Module,
    ours: Callable[[Any, pr.Tensor], pr.Tensor],
    theirs: Callable[[Mapping[str, Any], Any], Any],
    x: np.ndarray,
    dims: tuple[pr.Dim, ...] = (),
    tolerance: float = 1e-9,
    given: Mapping[str, np.ndarray] | None = None,
) -> None:
    """`ours(module, x)` over dims equals `theirs(weights, x)` with leading axes, forwards and backwards."""
    weights = weights_of(module)
    inputs = {name: pr.input(name, value.shape, (), "float64") for name, value in weights.items()}
    tensor = pr.input("x", x.shape[len(dims) :], dims, "float64")
    y = ours(module.using(inputs), tensor)
    leaves = {**inputs, "x": tensor}
    slopes = pr.grad((y**3).sum(), leaves)
    found, gradients, _ = pr.evaluate((y, slopes, leaves), {**weights, **(given or {}), "x": x})
    there = tensors(weights)
    start = torch.tensor(x, requires_grad=True)
    expected = theirs(there, start)
    (expected**3).sum().backward()
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=tolerance, atol=tolerance)
    for name, leaf in {**there, "x": start}.items():
        np.testing.assert_allclose(
            gradients[name], leaf.grad.numpy(), rtol=tolerance, atol=10 * tolerance, err_msg=name
        )


def functional(module: torch.nn.Module) -> Callable[[Mapping[str, Any], Any], Any]:
    return lambda weights, x: torch.func.functional_call(module.double(), dict(weights), (x,))
