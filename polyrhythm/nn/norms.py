"""Normalisation: layers that give what they are called on mean 0 and variance 1, or root mean square 1."""

from __future__ import annotations

from polyrhythm.lang.functions import TensorLike, as_tensor, mean, reshape, rsqrt, square
from polyrhythm.lang.tensor import Tensor
from polyrhythm.nn import initialisers
from polyrhythm.nn.module import Module, Weight


def _normalised(x: Tensor, axes: int | tuple[int, ...], epsilon: float) -> Tensor:
    centred = x - mean(x, axes, keepdims=True)
    return centred * rsqrt(mean(square(centred), axes, keepdims=True) + epsilon)


class LayerNorm(Module):
    """Normalised along the last axis (Ba et al., 2016).

    >>> import polyrhythm as pr
    >>> pr.evaluate(LayerNorm(2)(pr.constant([1.0, 3.0]))).round(3).tolist()
    [-1.0, 1.0]
    """

    def __init__(self, size: int, epsilon: float = 1e-5) -> None:
        self.epsilon = epsilon
        self.weight: Weight = initialisers.ones((size,))
        self.bias: Weight = initialisers.zeros((size,))

    def __call__(self, x: TensorLike) -> Tensor:
        return _normalised(as_tensor(x), -1, self.epsilon) * self.weight + self.bias


class RMSNorm(Module):
    """Divided by the root mean square along the last axis (Zhang and Sennrich, 2019).

    >>> import polyrhythm as pr
    >>> pr.evaluate(RMSNorm(2)(pr.constant([1.0, 7.0]))).round(3).tolist()
    [0.20000000298023224, 1.399999976158142]
    """

    def __init__(self, size: int, epsilon: float = 1e-6) -> None:
        self.epsilon = epsilon
        self.weight: Weight = initialisers.ones((size,))

    def __call__(self, x: TensorLike) -> Tensor:
        tensor = as_tensor(x)
        return tensor * rsqrt(mean(square(tensor), -1, keepdims=True) + self.epsilon) * self.weight


class GroupNorm(Module):
    """Normalised over groups of channels and all axes after them (Wu and He, 2018), for shapes (N, C, ...).

    >>> import polyrhythm as pr
    >>> pr.evaluate(GroupNorm(1, 2)(pr.constant([[[1.0], [3.0]]]))).round(3).tolist()
    [[[-1.0], [1.0]]]
    """

    def __init__(self, groups: int, channels: int, epsilon: float = 1e-5) -> None:
        self.groups, self.channels, self.epsilon = groups, channels, epsilon
        self.weight: Weight = initialisers.ones((channels,))
        self.bias: Weight = initialisers.zeros((channels,))

    def __call__(self, x: TensorLike) -> Tensor:
        tensor = as_tensor(x)
        count, _, *rest = tensor.shape
        split = reshape(tensor, count, self.groups, self.channels // self.groups, *rest)
        result = reshape(_normalised(split, tuple(range(2, split.rank)), self.epsilon), *tensor.shape)
        along = (self.channels, *(1 for _ in rest))
        return result * reshape(self.weight, *along) + reshape(self.bias, *along)
