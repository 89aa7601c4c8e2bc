"""Convolutions over one or two axes of tensors of shape (N, C, ...)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from polyrhythm.language.functions import TensorLike, conv1d, conv2d
from polyrhythm.language.functions.windows import Padding
from polyrhythm.language.tensor import Tensor
from polyrhythm.nn import initialisers
from polyrhythm.nn.initialisers import Random
from polyrhythm.nn.module import Module, Weight

Sizes = int | Sequence[int]


class _Conv(Module):
    """What convolutions over any number of axes share."""

    axes = 0

    def __init__(
        self,
        inputs: int,
        outputs: int,
        window: Sizes,
        stride: Sizes = 1,
        padding: Padding = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        rng: Random = None,
    ) -> None:
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        sizes = (window,) * self.axes if isinstance(window, int) else tuple(window)
        shape = (outputs, inputs // groups, *sizes)
        self.weight: Weight = initialisers.fan_in(shape, rng)
        limit = math.prod(shape[1:]) ** -0.5
        self.bias: Weight | None = initialisers.uniform((outputs,), limit, rng) if bias else None


class Conv1d(_Conv):
    """A convolution along the last axis.

    >>> import polyrhythm as pr
    >>> pr.evaluate(Conv1d(2, 3, 3, padding=1)(pr.ones((1, 2, 5)))).shape
    (1, 3, 5)
    """

    axes = 1

    def __call__(self, x: TensorLike) -> Tensor:
        return conv1d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Conv2d(_Conv):
    """A convolution along the last two axes.

    >>> import polyrhythm as pr
    >>> pr.evaluate(Conv2d(2, 3, (2, 3), stride=2)(pr.ones((1, 2, 4, 5)))).shape
    (1, 3, 2, 2)
    """

    axes = 2

    def __call__(self, x: TensorLike) -> Tensor:
        return conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
