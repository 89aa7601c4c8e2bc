"""What observations and actions can be, in Gymnasium's words.

A composite observation is a dict or a tuple of spaces, and then a dict or a tuple of tensors. Spaces are plain data:
policies look at them once, when they are made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyrhythm.errors import DeclarationError


@dataclass(frozen=True)
class Discrete:
    """One of n: an integer from 0.

    >>> Discrete(3).shape, Discrete(3).dtype
    ((), 'int32')
    """

    n: int
    shape = ()
    dtype = "int32"


@dataclass(frozen=True)
class MultiDiscrete:
    """Several integers, each with a number of choices of its own.

    >>> MultiDiscrete((2, 3)).shape
    (2,)
    """

    nvec: tuple[int, ...]
    dtype = "int32"

    @property
    def shape(self) -> tuple[int, ...]:
        """A vector."""
        return (len(self.nvec),)


@dataclass(frozen=True)
class MultiBinary:
    """n bits.

    >>> MultiBinary(4).shape
    (4,)
    """

    n: int
    dtype = "int32"

    @property
    def shape(self) -> tuple[int, ...]:
        """A vector."""
        return (self.n,)


@dataclass(frozen=True)
class Box:
    """An array of numbers, between `low` and `high`: one number for all elements, or one for each of the flat array.

    >>> Box((3, 2), -1.0, 1.0).size
    6
    """

    shape: tuple[int, ...]
    low: float | tuple[float, ...] = -math.inf
    high: float | tuple[float, ...] = math.inf
    dtype: str = "float32"

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def bounded(self) -> bool:
        """Whether every element has limits on both sides."""
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())


Space = Discrete | MultiDiscrete | MultiBinary | Box
Spaces = Any
"""A space, or a dict or a tuple of spaces, nested at will."""


def as_spaces(given: Any) -> Spaces:
    """A tree of spaces; a shape such as `(4,)` stands for a `Box`.

    >>> as_spaces({"image": (3, 8, 8), "speed": Discrete(2)})
    {'image': Box(shape=(3, 8, 8), low=-inf, high=inf, dtype='float32'), 'speed': Discrete(n=2)}
    """
    if isinstance(given, dict):
        return {name: as_spaces(part) for name, part in given.items()}
    if isinstance(given, Sequence) and all(isinstance(n, (int, np.integer)) for n in given):
        return Box(tuple(int(n) for n in given))
    if isinstance(given, Sequence) and not isinstance(given, str):
        return tuple(as_spaces(part) for part in given)
    if isinstance(given, Space):
        return given
    raise DeclarationError(f"{given!r} is not a space", fix="use rl.Box, rl.Discrete, rl.MultiDiscrete, rl.MultiBinary")


def from_gymnasium(space: Any) -> Spaces:
    """The same as one of Gymnasium's spaces; choices and bits of several axes are a vector.

    >>> import gymnasium
    >>> from_gymnasium(gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(3), b=gymnasium.spaces.MultiBinary(2)))
    {'a': Discrete(n=3), 'b': MultiBinary(n=2)}
    """
    from gymnasium import spaces  # environments of arrays do without

    if isinstance(space, spaces.Dict):
        return {name: from_gymnasium(part) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(from_gymnasium(part) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscrete(tuple(int(n) for n in np.ravel(space.nvec)))
    if isinstance(space, spaces.MultiBinary):
        return MultiBinary(math.prod(space.shape))
    if isinstance(space, spaces.Box):
        low, high = (_limit(side) for side in (space.low, space.high))
        return Box(tuple(int(n) for n in space.shape), low, high, str(space.dtype))
    raise DeclarationError(
        f"the space {space} is not known here",
        fix="wrap the environment: known are Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple",
    )


def _limit(side: np.ndarray) -> float | tuple[float, ...]:
    """One number if all are the same."""
    flat = [float(number) for number in np.ravel(side)]
    return flat[0] if flat and len(set(flat)) == 1 else tuple(flat)
