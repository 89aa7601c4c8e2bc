"""Arrays as XLA takes and returns them: at capacity, at addresses it can use, cut to their lengths."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import jax
import numpy as np

ALIGNMENT = 64
"""Bytes; what XLA wants of the arrays it is given."""


def capacity(value: int) -> int:
    """The power of two that holds a bound.

    >>> [capacity(n) for n in (0, 1, 2, 3, 8, 9)]
    [0, 1, 2, 4, 8, 16]
    """
    return 0 if value == 0 else 1 << (value - 1).bit_length()


def padded(array: Any, shape: tuple[int, ...]) -> Any:
    """An input at its capacity, or cut. NumPy does the copy: in JAX it would compile anew for every length."""
    if array.shape == shape:
        return array
    if all(new <= old for new, old in zip(shape, array.shape, strict=True)):
        return np.asarray(array)[tuple(map(slice, shape))]
    room = aligned_zeros(shape, array.dtype)
    shared = tuple(slice(0, min(new, old)) for new, old in zip(shape, array.shape, strict=True))
    room[shared] = np.asarray(array)[shared]
    return room


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros at an address that XLA can use as it is; it copies arrays that begin elsewhere."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def cut(array: jax.Array, shape: tuple[int, ...]) -> Any:
    """An output cut to its shape, without compiling for every length."""
    return array if array.shape == shape else np.asarray(array)[tuple(map(slice, shape))]


def precision(wide: bool) -> contextlib.AbstractContextManager[Any]:
    """64-bit types as the program needs them; changing the setting costs more than looking at it."""
    same = jax.config.jax_enable_x64 == wide  # type: ignore[attr-defined]
    return contextlib.nullcontext() if same else jax.enable_x64(wide)
