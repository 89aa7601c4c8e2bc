"""The type of a value: a symbolic shape and an element type; and literal arrays as hashable values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polyrhythm.compiler.ir.terms import Term, product

Shape = tuple[Term, ...]


@dataclass(frozen=True)
class TensorType:
    """The shape and dtype of the value a tensor has at one point.

    >>> str(TensorType((Term(3), Term(4)), np.dtype("float32")))
    'float32[3, 4]'
    """

    shape: Shape
    dtype: np.dtype

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Term:
        """The number of elements."""
        return product(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


class Array:
    """A literal array compared and hashed by its contents, so that it can be an attribute of an operation.

    >>> Array(np.zeros(2)) == Array(np.zeros(2)), Array(np.float32(1)) == Array(np.float64(1))
    (True, False)
    """

    __slots__ = ("_key", "value")

    def __init__(self, value: np.ndarray) -> None:
        self.value = np.array(value, order="C")
        self.value.setflags(write=False)
        self._key = (self.value.shape, str(self.value.dtype), self.value.tobytes())

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Array) and self._key == other._key

    def __repr__(self) -> str:
        return f"Array({self.value.tolist()!r}, {self.value.dtype})"
