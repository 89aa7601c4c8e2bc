"""Encoders: what an agent sees as a vector of features, whatever the space.

Images stay in their dtype (uint8) wherever they are stored; they are cast and divided by 255 here, at the input of the
convolutions, on the device. Of dicts and tuples the features of all parts stand side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from polyrhythm.errors import DeclarationError
from polyrhythm.language.functions import concat, one_hot, relu, reshape, transpose, unsqueeze
from polyrhythm.language.tensor import Tensor
from polyrhythm.nn.convolutions import Conv2d
from polyrhythm.nn.layers import MLP, Linear
from polyrhythm.nn.module import Module
from polyrhythm.nn.recurrent import GRU, LSTM
from polyrhythm.optim.states import leaves, mapped
from polyrhythm.rl.distributions import flat_one_hot, flattened
from polyrhythm.rl.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, Spaces, as_spaces

Rng = np.random.Generator | None

SMALLEST = 3
"""The window of the convolutions for small images."""


class Encoder(Module):
    """Features of observations from any space; `size` is how many.

    >>> import polyrhythm as pr
    >>> seen = Encoder({"speed": Box((2,)), "gear": Discrete(3)})
    >>> pr.evaluate(seen({"speed": pr.ones((1, 2)), "gear": pr.constant([2])})).tolist()
    [[1.0, 1.0, 0.0, 0.0, 1.0]]
    """

    def __init__(self, observations: Spaces, rng: Rng = None) -> None:
        self.spaces = _Kept(as_spaces(observations))
        spaces = leaves(self.spaces.kept)
        self.images = [Convolutions(space, rng) for space in spaces if isinstance(space, Box) and is_image(space)]
        self.size = sum(_size(space) for space in spaces if not is_image(space))
        self.size += sum(image.size for image in self.images)
        if not self.size:
            raise DeclarationError(
                f"there is nothing to see in observations of {observations}",
                fix="wrap the environment so that an observation has at least one number",
            )

    def __call__(self, observation: Any) -> Tensor:
        """Features, for each leading index."""
        images = iter(self.images)
        features: Callable[..., Tensor] = lambda s, x: next(images)(x) if is_image(s) else _plain(s, x)  # noqa: E731
        parts = leaves(mapped(features, self.spaces.kept, observation))  # parts of a dict are found by their names
        return parts[0] if len(parts) == 1 else concat(parts, -1)


class Convolutions(Module):
    """Convolutions for images, channels first or last: those of DQN (Mnih et al., 2015), smaller for small images.

    >>> import polyrhythm as pr
    >>> layers = Convolutions(Box((10, 10, 4), 0, 255, "uint8"))
    >>> pr.evaluate(layers(pr.ones((2, 10, 10, 4), "uint8"))).shape, layers.size
    ((2, 128), 128)
    """

    def __init__(self, space: Box, rng: Rng = None) -> None:
        self.last = _channels_last(space)
        channels, sides = _channels_and_sides(space)
        large = min(sides) >= 36
        plan = [(32, 8, 4), (64, 4, 2), (64, 3, 1)] if large else [(16, SMALLEST, 1)]
        self.axes, self.scale = len(space.shape), 1.0 / 255.0 if _has_pixels(space) else 1.0
        self.layers = []
        for outputs, window, stride in plan:
            layer = Conv2d(channels, outputs, window, stride, rng=rng)
            layer.weight = orthogonal(_shape(layer), math.sqrt(2), rng)
            layer.bias = np.zeros(outputs, np.float32)
            self.layers.append(layer)
            channels, sides = outputs, [(side - window) // stride + 1 for side in sides]
        self.size = 512 if large else 128
        self.project = linear(channels * math.prod(sides), self.size, math.sqrt(2), rng)

    def __call__(self, images: Tensor) -> Tensor:
        """Features of images with any leading axes."""
        leading, shape = images.shape[: -self.axes], images.shape[-self.axes :]
        shape = shape if self.axes == 3 else (1, *shape)
        x = reshape(images, (-1, *shape)).cast("float32") * self.scale
        x = transpose(x, (0, 3, 1, 2)) if self.last else x
        for layer in self.layers:
            x = relu(layer(x))
        return reshape(relu(self.project(flattened(x, 3))), (*leading, self.size))


def _has_pixels(space: Box) -> bool:
    """Whether the numbers are from 0 to 255, not the bits or pieces of a board."""
    return space.dtype == "uint8" and float(np.min(space.high)) >= 255


def _channels_last(space: Box) -> bool:
    return len(space.shape) == 3 and space.shape[-1] == min(space.shape)


def _channels_and_sides(space: Box) -> tuple[int, list[int]]:
    first, second, third = space.shape if len(space.shape) == 3 else (1, *space.shape)
    return (third, [first, second]) if _channels_last(space) else (first, [second, third])


def is_image(space: Space) -> bool:
    """Whether an observation is taken for an image: three axes, or two of pixels, and sides long enough for a window.

    >>> is_image(Box((4, 84, 84), 0, 255, "uint8")), is_image(Box((4,))), is_image(Box((3, 2, 2)))
    (True, False, False)
    >>> is_image(Box((84, 84), 0, 255, "uint8")), is_image(Box((8, 8), 0, 2, "uint8"))
    (True, False)
    """
    known = isinstance(space, Box) and (len(space.shape) == 3 or (len(space.shape) == 2 and _has_pixels(space)))
    return known and min(_channels_and_sides(space)[1]) >= SMALLEST  # type: ignore[arg-type]


def mlp(sizes: Sequence[int], between: Callable[[Tensor], Tensor], last: float, rng: Rng) -> MLP:
    """Layers with orthogonal weights: as large as PPO is commonly begun, but for the last.

    >>> [layer.weight.shape for layer in mlp([3, 4, 2], relu, 1.0, None).layers]
    [(4, 3), (2, 4)]
    """
    network = MLP(sizes, between, rng=rng)
    for layer in network.layers:
        layer.weight = orthogonal(_shape(layer), last if layer is network.layers[-1] else math.sqrt(2), rng)
        layer.bias = np.zeros(layer.weight.shape[0], np.float32)
    return network


def linear(inputs: int, outputs: int, gain: float, rng: Rng) -> Linear:
    """One layer with orthogonal weights.

    >>> linear(3, 2, 1.0, None).weight.shape
    (2, 3)
    """
    layer = Linear(inputs, outputs, rng=rng)
    layer.weight, layer.bias = orthogonal((outputs, inputs), gain, rng), np.zeros(outputs, np.float32)
    return layer


def orthogonal_cells(layer: LSTM | GRU, rng: Rng) -> LSTM | GRU:
    """The same recurrent layer with orthogonal matrices and without biases, as PPO with an LSTM is commonly begun.

    >>> orthogonal_cells(LSTM(2, 3), None).bias_hh_l0.tolist() == [0.0] * 12
    True
    """
    for name, weight in layer.weights().items():
        new = orthogonal(weight.shape, 1.0, rng) if weight.ndim == 2 else np.zeros(weight.shape, np.float32)
        setattr(layer, name, new)
    return layer


def orthogonal(shape: tuple[int, ...], gain: float, rng: Rng = None) -> np.ndarray:
    """A matrix with orthogonal rows, or columns if it has more rows (Saxe et al., 2014), times a number.

    Of an array with more axes all but the first count as one.

    >>> w = orthogonal((2, 3), 2.0)
    >>> bool(np.allclose(w @ w.T, 4 * np.eye(2), atol=1e-5))
    True
    """
    rows, columns = shape[0], math.prod(shape[1:])
    drawn = (rng or np.random.default_rng()).normal(size=(max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(drawn)
    q *= np.sign(np.diag(r))
    return (gain * (q if rows >= columns else q.T)).reshape(shape).astype(np.float32)


def _shape(layer: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in layer.weight.shape)


class _Kept:
    """Spaces that are no modules."""

    def __init__(self, kept: Spaces) -> None:
        self.kept = kept


def _size(space: Space) -> int:
    """How many features an observation has that is not an image."""
    if isinstance(space, MultiDiscrete):
        return sum(space.nvec)
    return space.size if isinstance(space, Box) else space.n


def _plain(space: Space, x: Tensor) -> Tensor:
    if isinstance(space, Discrete):
        return one_hot(x, space.n)
    if isinstance(space, MultiDiscrete):
        return flat_one_hot(x, space.nvec)
    floats = x if x.dtype == np.float64 else x.cast("float32")
    if isinstance(space, MultiBinary):
        return floats
    return flattened(floats, len(space.shape)) if space.shape else unsqueeze(floats, -1)
