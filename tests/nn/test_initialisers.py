"""Initial weights have the spread they promise, and come back with the same generator."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from polyrhythm import nn
from polyrhythm.nn import initialisers

SHAPE = (200, 50, 3)
IN, OUT = 50 * 3, 200 * 3

DEVIATIONS: dict[str, tuple[Callable[[np.random.Generator], np.ndarray], float]] = {
    "uniform": (lambda rng: initialisers.uniform(SHAPE, 0.5, rng), 0.5 / math.sqrt(3)),
    "normal": (lambda rng: initialisers.normal(SHAPE, 0.3, rng), 0.3),
    "fan_in": (lambda rng: initialisers.fan_in(SHAPE, rng), 1 / math.sqrt(3 * IN)),
    "xavier": (lambda rng: initialisers.xavier(SHAPE, rng), math.sqrt(2 / (IN + OUT))),
    "kaiming": (lambda rng: initialisers.kaiming(SHAPE, rng), math.sqrt(2 / IN)),
}


@pytest.mark.parametrize("name", DEVIATIONS)
def test_spread(name: str) -> None:
    draw, deviation = DEVIATIONS[name]
    values = draw(np.random.default_rng(0))
    assert values.dtype == np.float32
    assert values.std() == pytest.approx(deviation, rel=0.03)
    assert abs(values.mean()) < 4 * deviation / math.sqrt(values.size)
    np.testing.assert_array_equal(values, draw(np.random.default_rng(0)))


def test_xavier_and_kaiming_spread_like_torch() -> None:
    torch.manual_seed(0)
    there = torch.empty(SHAPE)
    for name, fill in (("xavier", torch.nn.init.xavier_uniform_), ("kaiming", torch.nn.init.kaiming_normal_)):
        assert DEVIATIONS[name][1] == pytest.approx(float(fill(there).std()), rel=0.03)


def test_layers_begin_like_torch() -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    pairs = [
        (nn.Linear(100, 200, rng=rng), torch.nn.Linear(100, 200)),
        (nn.Conv2d(20, 50, 3, rng=rng), torch.nn.Conv2d(20, 50, 3)),
        (nn.LSTM(30, 60, rng=rng), torch.nn.LSTM(30, 60)),
    ]
    for ours, theirs in pairs:
        for name, value in theirs.state_dict().items():
            assert ours.weights()[name].std() == pytest.approx(float(value.std()), rel=0.25), name
