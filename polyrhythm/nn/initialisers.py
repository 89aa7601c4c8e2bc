"""Initial weights: arrays of a shape, drawn by a generator. Without one they differ from run to run.

With `rng="blank"` nothing is drawn: the module takes no memory, and is to be given its weights by `using`.

>>> from polyrhythm import nn
>>> nn.Linear(100_000, 100_000, bias=False, rng="blank").weight.strides
(0, 0)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

Random = np.random.Generator | Literal["blank"] | None
"""Where the numbers come from."""


def zeros(shape: Sequence[int]) -> np.ndarray:
    """All zero."""
    return np.zeros(shape, np.float32)


def ones(shape: Sequence[int]) -> np.ndarray:
    """All one."""
    return np.ones(shape, np.float32)


def uniform(shape: Sequence[int], limit: float, rng: Random = None) -> np.ndarray:
    """Between `-limit` and `limit`.

    >>> bool((abs(uniform((10, 10), 0.5)) <= 0.5).all())
    True
    """
    if rng == "blank":
        return _blank(shape)
    return _generator(rng).uniform(-limit, limit, tuple(shape)).astype(np.float32)


def normal(shape: Sequence[int], deviation: float = 1.0, rng: Random = None) -> np.ndarray:
    """Normal, around zero."""
    if rng == "blank":
        return _blank(shape)
    return (_generator(rng).normal(size=tuple(shape)) * deviation).astype(np.float32)


def fan_in(shape: Sequence[int], rng: Random = None) -> np.ndarray:
    """What torch gives linear layers and convolutions: uniform within one over the root of the number of inputs."""
    return uniform(shape, 1 / math.sqrt(max(1, math.prod(shape[1:]))), rng)


def xavier(shape: Sequence[int], rng: Random = None) -> np.ndarray:
    """Uniform, so that the variance stays the same forwards and backwards (Glorot and Bengio, 2010)."""
    return uniform(shape, math.sqrt(6 / ((shape[0] + shape[1]) * math.prod(shape[2:]))), rng)


def kaiming(shape: Sequence[int], rng: Random = None) -> np.ndarray:
    """Normal, so that the variance stays the same through rectified layers (He et al., 2015)."""
    return normal(shape, math.sqrt(2 / math.prod(shape[1:])), rng)


def _generator(rng: np.random.Generator | None) -> np.random.Generator:
    return np.random.default_rng() if rng is None else rng


def _blank(shape: Sequence[int]) -> np.ndarray:
    return np.broadcast_to(np.zeros((), np.float32), tuple(shape))
