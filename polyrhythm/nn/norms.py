"""Normalisation: layers that give what they are called on mean 0 and variance 1, or root mean square 1.

Layers along the last axis compute in float32 where they are called on a narrower type.
"""

from __future__ import annotations

import numpy as np

from polyrhythm.errors import DeclarationError
from polyrhythm.language.functions import TensorLike, as_tensor, mean, reshape, rsqrt, square, var
from polyrhythm.language.functions.support import accumulated
from polyrhythm.language.gradient import detach
from polyrhythm.language.index import Dim
from polyrhythm.language.recurrent import Recurrent
from polyrhythm.language.tensor import Tensor
from polyrhythm.nn import initialisers
from polyrhythm.nn.module import Module, Weight
from polyrhythm.optim.states import over


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
        tensor = as_tensor(x)
        wide = accumulated(tensor)
        result = _normalised(wide, -1, self.epsilon) * self.weight + self.bias
        return result if wide is tensor else result.cast(tensor.dtype)


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
        wide = accumulated(tensor)
        scaled = wide * rsqrt(mean(square(wide), -1, keepdims=True) + self.epsilon)
        return (scaled if wide is tensor else scaled.cast(tensor.dtype)) * self.weight


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


class BatchNorm(Module):
    """Normalised over the batch and all axes after the channels (Ioffe and Szegedy, 2015), for shapes (N, C, ...).

    If the batch is a dim, name it: `norm(x, b)` on values of shape (C, ...). Trained over iterations,
    `norm.train(i)`, its running statistics are recurrences over i; `norm.eval()` normalises by them. Without
    `momentum` they are means over all iterations so far.

    >>> import polyrhythm as pr
    >>> norm = BatchNorm(1)
    >>> pr.evaluate(norm(pr.constant([[1.0], [3.0]]))).round(3).tolist()
    [[-1.0], [1.0]]
    >>> pr.evaluate(norm.eval()(pr.constant([[1.0], [3.0]]))).round(3).tolist()
    [[1.0], [3.0]]
    """

    buffer_names = frozenset({"running_mean", "running_var", "num_batches_tracked"})

    def __init__(self, channels: int, epsilon: float = 1e-5, momentum: float | None = 0.1, affine: bool = True) -> None:
        self.epsilon, self.momentum = epsilon, momentum
        self.weight: Weight | None = initialisers.ones((channels,)) if affine else None
        self.bias: Weight | None = initialisers.zeros((channels,)) if affine else None
        self.running_mean: Weight = initialisers.zeros((channels,))
        self.running_var: Weight = initialisers.ones((channels,))
        self.num_batches_tracked: Weight = np.zeros((), np.int64)

    def __call__(self, x: TensorLike, batch: Dim | None = None) -> Tensor:
        tensor = as_tensor(x)
        whole = tensor if batch is None else tensor[{batch: slice(None)}]
        if self.training:
            others = (0, *range(2, whole.rank))
            centre, spread = mean(whole, others), var(whole, others)
            if self.iterations is not None:
                self._track(self.iterations, centre, var(whole, others, correction=1))
        else:
            centre, spread = as_tensor(self.running_mean), as_tensor(self.running_var)
        after = [1] * (whole.rank - 2)
        scale = rsqrt(spread + self.epsilon)
        scale = scale if self.weight is None else scale * self.weight
        result = (tensor - reshape(centre, -1, *after)) * reshape(scale, -1, *after)
        return result if self.bias is None else result + reshape(self.bias, -1, *after)

    def _begin(self) -> None:
        if self.iterations is not None:
            names = sorted(self.buffer_names)
            for name, tensor in over(self.iterations, {name: getattr(self, name) for name in names}).items():
                setattr(self, name, tensor)

    def _track(self, i: Dim, centre: Tensor, spread: Tensor) -> None:
        """Define the running statistics after an iteration."""
        count, kept_mean, kept_var = self.num_batches_tracked, self.running_mean, self.running_var
        if not (isinstance(count, Recurrent) and isinstance(kept_mean, Recurrent) and isinstance(kept_var, Recurrent)):
            return  # the user has put other tensors in their place
        if len(count.assigned) > 1:
            raise DeclarationError(
                "a BatchNorm that is trained is called twice, and both calls would define its running statistics",
                fix="use two modules, or join the batches and call it once",
            )
        count[i + 1] = count + 1
        weight = self.momentum if self.momentum is not None else 1.0 / count[i + 1].cast(kept_mean.dtype)
        for kept, new in ((kept_mean, centre), (kept_var, spread)):
            kept[i + 1] = kept + weight * (detach(new).cast(kept.dtype) - kept)
