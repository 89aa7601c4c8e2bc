"""Each module against its torch counterpart, from the same weights: results, and gradients of inputs and weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import polyrhythm as pr
from polyrhythm import nn
from polyrhythm.nn.errors import WeightsMismatchError
from tests.nn.comparing import compare, functional, random

SIMPLE: dict[str, tuple[nn.Module, torch.nn.Module, np.ndarray]] = {
    "linear": (nn.Linear(3, 4), torch.nn.Linear(3, 4), random(2, 3)),
    "linear_without_bias": (nn.Linear(3, 4, bias=False), torch.nn.Linear(3, 4, bias=False), random(3)),
    "layer_norm": (nn.LayerNorm(4), torch.nn.LayerNorm(4), random(3, 4)),
    "rms_norm": (nn.RMSNorm(4), torch.nn.RMSNorm(4, eps=1e-6), random(3, 4)),
    "group_norm": (nn.GroupNorm(2, 4), torch.nn.GroupNorm(2, 4), random(2, 4, 3)),
    "group_norm_2d": (nn.GroupNorm(3, 6), torch.nn.GroupNorm(3, 6), random(1, 6, 2, 3)),
    "conv1d": (nn.Conv1d(2, 3, 3, stride=2, padding=1), torch.nn.Conv1d(2, 3, 3, 2, 1), random(2, 2, 6)),
    "conv1d_groups": (
        nn.Conv1d(4, 4, 2, dilation=2, groups=2, bias=False),
        torch.nn.Conv1d(4, 4, 2, dilation=2, groups=2, bias=False),
        random(1, 4, 5),
    ),
    "conv2d": (
        nn.Conv2d(2, 3, (2, 3), padding=1),
        torch.nn.Conv2d(2, 3, (2, 3), padding=1),
        random(1, 2, 3, 4),
    ),
    "max_pool1d": (nn.MaxPool1d(3, 2, 1), torch.nn.MaxPool1d(3, 2, 1), random(2, 2, 7)),
    "max_pool2d": (nn.MaxPool2d((2, 3), 2), torch.nn.MaxPool2d((2, 3), 2), random(1, 2, 4, 7)),
    "avg_pool1d": (nn.AvgPool1d(3, 2, 1), torch.nn.AvgPool1d(3, 2, 1), random(2, 2, 7)),
    "avg_pool2d": (
        nn.AvgPool2d(2, (1, 2), 1, count_padding=False),
        torch.nn.AvgPool2d(2, (1, 2), 1, count_include_pad=False),
        random(1, 2, 4, 5),
    ),
    "adaptive_avg_pool1d": (nn.AdaptiveAvgPool1d(3), torch.nn.AdaptiveAvgPool1d(3), random(2, 2, 7)),
    "adaptive_avg_pool2d": (nn.AdaptiveAvgPool2d((2, 1)), torch.nn.AdaptiveAvgPool2d((2, 1)), random(1, 2, 5, 4)),
}


@pytest.mark.parametrize("name", SIMPLE)
def test_like_torch(name: str) -> None:
    ours, theirs, x = SIMPLE[name]
    assert {k: v.shape for k, v in ours.weights().items()} == {
        k: tuple(v.shape) for k, v in theirs.state_dict().items()
    }
    compare(ours, lambda module, x: module(x), functional(theirs), x)


def test_mlp() -> None:
    def theirs(w: Mapping[str, Any], x: Any) -> Any:
        hidden = torch.tanh(F.linear(x, w["layers.0.weight"], w["layers.0.bias"]))
        return F.linear(hidden, w["layers.1.weight"], w["layers.1.bias"])

    compare(nn.MLP([3, 4, 2], between=pr.tanh), lambda module, x: module(x), theirs, random(2, 3))


def test_embedding() -> None:
    places = np.array([[0, 2, 2], [1, 0, 2]], np.int32)

    def ours(module: Any, x: pr.Tensor) -> pr.Tensor:
        return module(pr.constant(places)) * x

    def theirs(w: Mapping[str, Any], x: Any) -> Any:
        return F.embedding(torch.tensor(places), w["weight"]) * x

    compare(nn.Embedding(3, 4), ours, theirs, random(2, 3, 4))


def test_wrong_weights_are_refused() -> None:
    module = nn.Linear(2, 1)
    with pytest.raises(WeightsMismatchError, match="missing bias"):
        module.using({"weight": np.zeros((1, 2))})
    with pytest.raises(WeightsMismatchError, match="has shape"):
        module.using({"weight": np.zeros((2, 1)), "bias": np.zeros(1)})


def test_sequential_has_the_weights_of_torch() -> None:
    theirs = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    ours = nn.Sequential(nn.Linear(3, 5), pr.tanh, nn.Linear(5, 2))
    assert list(ours.weights()) == list(theirs.state_dict())
    weights = {name: pr.constant(value.numpy()) for name, value in theirs.state_dict().items()}
    x = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)
    found = pr.evaluate(ours.using(weights)(pr.constant(x)))
    np.testing.assert_allclose(found, theirs(torch.as_tensor(x)).detach().numpy(), rtol=1e-5, atol=1e-6)
    noisy = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5)))
    np.testing.assert_array_equal(pr.evaluate(noisy.eval()(pr.constant(x))), x)
    assert isinstance(ours[-1], nn.Linear)
