"""Rates as functions of the iteration: tensors over i, to be given to an optimiser as its rate."""

from __future__ import annotations

import math

from polyrhythm.language.functions import TensorLike, as_tensor, clip, cos, exp, value
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor


def _progress(i: Dim, steps: int) -> Tensor:
    """From 0 to 1 in so many steps, and 1 from then on."""
    return clip(value(i).cast("float32") / float(steps), 0.0, 1.0)


def linear(i: Dim, start: float, end: float, steps: int) -> Tensor:
    """From `start` to `end` along a line.

    >>> import polyrhythm as pr
    >>> i, I = pr.dim("i")
    >>> pr.evaluate(linear(i, 1.0, 0.0, 4), bounds={I: 6}).tolist()
    [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """
    return start + (end - start) * _progress(i, steps)


def cosine(i: Dim, start: float, end: float, steps: int) -> Tensor:
    """From `start` to `end` along half a wave.

    >>> import polyrhythm as pr
    >>> i, I = pr.dim("i")
    >>> pr.evaluate(cosine(i, 1.0, 0.0, 2), bounds={I: 4}).round(3).tolist()
    [1.0, 0.5, 0.0, 0.0]
    """
    return end + (start - end) * 0.5 * (1.0 + cos(math.pi * _progress(i, steps)))


def exponential(i: Dim, start: float, factor: float) -> Tensor:
    """`start`, multiplied by a factor at every step.

    >>> import polyrhythm as pr
    >>> i, I = pr.dim("i")
    >>> pr.evaluate(exponential(i, 1.0, 0.5), bounds={I: 3}).round(6).tolist()
    [1.0, 0.5, 0.25]
    """
    return start * exp(value(i).cast("float32") * math.log(factor))


def staircase(i: Dim, start: float, factor: float, every: int) -> Tensor:
    """`start`, multiplied by a factor after so many steps, again and again.

    >>> import polyrhythm as pr
    >>> i, I = pr.dim("i")
    >>> pr.evaluate(staircase(i, 1.0, 0.5, 2), bounds={I: 4}).round(6).tolist()
    [1.0, 1.0, 0.5, 0.5]
    """
    return start * exp(value(i // every).cast("float32") * math.log(factor))


def warmup(i: Dim, rate: TensorLike, steps: int) -> Tensor:
    """A rate, or a schedule, that grows from `1 / steps` of itself to the whole in the first steps.

    >>> import polyrhythm as pr
    >>> i, I = pr.dim("i")
    >>> pr.evaluate(warmup(i, 0.5, 4), bounds={I: 5}).tolist()
    [0.125, 0.25, 0.375, 0.5, 0.5]
    """
    return as_tensor(rate) * clip((value(i).cast("float32") + 1.0) / float(steps), 0.0, 1.0)
