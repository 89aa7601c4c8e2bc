"""The gradient of a weight is one product that sums over batch and time, never a sum of outer products."""

from __future__ import annotations

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import nn

STEPS = 16
_TENSOR = re.compile(r"tensor<((?:\d+x)+)f32>")
_PRODUCT = re.compile(
    r"stablehlo\.(?:dot_general|convolution).*: \(tensor<(\S+)xf32>, tensor<(\S+)xf32>\) -> tensor<(\S+)xf32>"
)


def lowered(loss: pr.Tensor, weights: dict[str, pr.Tensor], **given: Any) -> str:
    """What XLA is given for the gradients."""
    program = pr.compile(pr.grad(loss, weights))
    return str(jax.jit(lambda arrays: program(**arrays)).lower(given).as_text())


def sizes(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.rstrip("x").split("x"))


def products(text: str) -> list[tuple[tuple[int, ...], int]]:
    """The shape of the result of each product, and how many elements are summed for one of it."""
    found = []
    for a, b, result in _PRODUCT.findall(text):
        left, right, out = (math.prod(sizes(s)) for s in (a, b, result))
        found.append((sizes(result), round(math.sqrt(left * right / out))))
    return found


def largest(text: str) -> int:
    return max(math.prod(sizes(found)) for found in _TENSOR.findall(text))


def floats(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), "float32")


def test_lstm() -> None:
    batch, width = 2, 24
    t, T = pr.dim("t")
    model = nn.LSTM(width, width, rng=np.random.default_rng(0))
    weights = model.parameters()
    h, _ = model.using(weights)(pr.input("x", (batch, width), (t,)), t)
    loss = (h * h)[{t: slice(0, T)}].mean()
    text = lowered(loss, weights, x=floats(STEPS, batch, width))
    matrices = [n for shape, n in products(text) if sorted(shape) == [width, 4 * width]]
    assert matrices == [STEPS * batch] * 2
    # The outer products of single steps are nowhere.
    assert largest(text) < STEPS * width * 4 * width


@pytest.mark.slow
def test_transformer() -> None:
    batch, width, hidden = 3, 24, 40
    b, B = pr.dim("b")
    t, T = pr.dim("t")
    model = nn.Block(width, hidden, heads=2, rng=np.random.default_rng(0))
    weights = model.parameters()
    y = model.using(weights)(pr.input("x", (width,), (b, t)), t)
    loss = (y * y)[{b: slice(0, B), t: slice(0, T)}].mean()
    text = lowered(loss, weights, x=floats(batch, STEPS, width))
    found = products(text)
    assert [n for shape, n in found if shape == (width, width)] == [STEPS * batch] * 4
    assert [n for shape, n in found if sorted(shape) == [width, hidden]] == [STEPS * batch] * 3
    assert largest(text) < STEPS * width * width * batch


def test_convolutions() -> None:
    batch, channels, size = 2, (5, 7), 9
    t, T = pr.dim("t")
    model = nn.Conv2d(*channels, 3, rng=np.random.default_rng(0))
    weights = model.parameters()
    y = pr.relu(model.using(weights)(pr.input("x", (batch, channels[0], size, size), (t,))))
    loss = (y * y)[{t: slice(0, T)}].mean()
    text = lowered(loss, weights, x=floats(STEPS, batch, channels[0], size, size))
    # One product for each place of the window; each sums over the batch and all places of the picture.
    inner = [shape for shape, _ in products(text) if sorted(shape)[-2:] == sorted((*channels, STEPS))[-2:]]
    assert len(inner) >= 1
    # Products of every input with every output channel at every place are nowhere.
    assert largest(text) < STEPS * batch * math.prod(channels) * (size - 2) ** 2
