"""Pooling over the last one or two axes: maxima and means of windows, as in torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyrhythm.errors import ShapeError
from polyrhythm.language.functions import TensorLike, as_tensor, avg_pool, einsum, max_pool
from polyrhythm.language.functions.windows import Padding
from polyrhythm.language.tensor import Tensor
from polyrhythm.nn.module import Module

Sizes = int | Sequence[int]


class _Pool(Module):
    """What windows over any number of axes share."""

    axes = 0

    def __init__(self, window: Sizes, stride: Sizes | None = None, padding: Padding = 0) -> None:
        self.window = _each(window, self.axes)
        self.stride = None if stride is None else _each(stride, self.axes)
        self.padding = padding


class _MaxPool(_Pool):
    def __call__(self, x: TensorLike) -> Tensor:
        return max_pool(x, self.window, self.stride, self.padding)


class _AvgPool(_Pool):
    def __init__(
        self, window: Sizes, stride: Sizes | None = None, padding: Padding = 0, count_padding: bool = True
    ) -> None:
        super().__init__(window, stride, padding)
        self.count_padding = count_padding

    def __call__(self, x: TensorLike) -> Tensor:
        return avg_pool(x, self.window, self.stride, self.padding, self.count_padding)


class MaxPool1d(_MaxPool):
    """The greatest element of each window of the last axis; the stride is the window unless given.

    >>> import polyrhythm as pr
    >>> pr.evaluate(MaxPool1d(2)(pr.constant([[1.0, 3.0, 2.0, 5.0]]))).tolist()
    [[3.0, 5.0]]
    """

    axes = 1


class MaxPool2d(_MaxPool):
    """The greatest element of each window of the last two axes.

    >>> import polyrhythm as pr
    >>> pr.evaluate(MaxPool2d(2)(pr.constant([[[1.0, 3.0], [2.0, 5.0]]]))).tolist()
    [[[5.0]]]
    """

    axes = 2


class AvgPool1d(_AvgPool):
    """The mean of each window of the last axis. Padding counts as zeros, unless `count_padding=False`.

    >>> import polyrhythm as pr
    >>> pr.evaluate(AvgPool1d(2)(pr.constant([[1.0, 3.0, 2.0, 5.0]]))).tolist()
    [[2.0, 3.5]]
    """

    axes = 1


class AvgPool2d(_AvgPool):
    """The mean of each window of the last two axes.

    >>> import polyrhythm as pr
    >>> pr.evaluate(AvgPool2d((1, 2))(pr.constant([[[1.0, 3.0], [2.0, 5.0]]]))).tolist()
    [[[2.0], [3.5]]]
    """

    axes = 2


class _AdaptiveAvgPool(Module):
    """Means of as many windows as asked for; window k of n reaches from `k * length // n` to the next, rounded up."""

    axes = 0

    def __init__(self, outputs: Sizes) -> None:
        self.outputs = _each(outputs, self.axes)

    def __call__(self, x: TensorLike) -> Tensor:
        tensor = as_tensor(x)
        for axis, count in enumerate(self.outputs, tensor.rank - self.axes):
            length = tensor.shape[axis]
            if not isinstance(length, int):
                raise ShapeError(
                    f"adaptive pooling needs a fixed length, but axis {axis} has length {length}",
                    fix="take the mean over the axis, or pool with a fixed window",
                )
            labels = [*"abcdefgh"[: tensor.rank]]
            result = [*labels[:axis], "z", *labels[axis + 1 :]]
            means = _means(length, count).astype(tensor.dtype)
            tensor = einsum(f"{''.join(labels)},z{labels[axis]}->{''.join(result)}", tensor, means)
        return tensor


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """Means of as many windows of the last axis as asked for, whatever its length.

    >>> import polyrhythm as pr
    >>> pr.evaluate(AdaptiveAvgPool1d(2)(pr.constant([[1.0, 2.0, 6.0]]))).tolist()
    [[1.5, 4.0]]
    """

    axes = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """Means of as many windows of the last two axes as asked for, whatever their lengths.

    >>> import polyrhythm as pr
    >>> pr.evaluate(AdaptiveAvgPool2d(1)(pr.constant([[[1.0, 3.0], [2.0, 6.0]]]))).tolist()
    [[[3.0]]]
    """

    axes = 2


def _each(value: Sizes, axes: int) -> tuple[int, ...]:
    return (value,) * axes if isinstance(value, int) else tuple(value)


def _means(length: int, count: int) -> np.ndarray:
    """The matrix that takes the means."""
    matrix = np.zeros((count, length))
    for row in range(count):
        start, stop = row * length // count, -(-(row + 1) * length // count)
        matrix[row, start:stop] = 1 / (stop - start)
    return matrix
