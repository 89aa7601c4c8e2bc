"""Arrays in and out: NumPy, JAX or torch, without copies where the libraries allow it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from polyrhythm.errors import UnsupportedError

Kind = Literal["numpy", "jax", "torch"]


def library(value: Any) -> str | None:
    """The library that an array comes from; None if it is no array.

    >>> library(np.zeros(3)), library([1, 2])
    ('numpy', None)
    """
    root = type(value).__module__.split(".")[0]
    if root == "torch":
        return "torch"
    if root in ("jax", "jaxlib") and hasattr(value, "dtype"):
        return "jax"
    return "numpy" if isinstance(value, (np.ndarray, np.generic)) else None


def kind_of(values: Iterable[Any]) -> Kind:
    """Which library the inputs come from: the first that is not NumPy decides.

    >>> kind_of([np.zeros(3), [1, 2]])
    'numpy'
    """
    for value in values:
        found = library(value)
        if found == "torch":
            return "torch"
        if found == "jax":
            return "jax"
    return "numpy"


def is_traced(value: Any) -> bool:
    """Whether a value stands for an array in a function that JAX is tracing."""
    if library(value) != "jax":
        return False
    import jax

    return isinstance(value, jax.core.Tracer)


def stand_in(value: Any) -> Any:
    """Something with the shape and dtype of an input, to be checked; nothing is copied."""
    found = library(value)
    if found is None or found == "numpy":
        return value
    return blank(tuple(value.shape), numpy_dtype(value))


def blank(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array of a shape that takes no memory.

    >>> blank((2, 1000), np.dtype("float32")).shape
    (2, 1000)
    """
    return np.broadcast_to(np.zeros((), dtype), shape)


def numpy_dtype(value: Any) -> np.dtype:
    """The dtype of an array of any library."""
    if library(value) == "torch":
        from polyrhythm.compiler.backends.torch.ops import NUMPY_DTYPES

        if value.dtype not in NUMPY_DTYPES:
            raise UnsupportedError(f"a tensor of {value.dtype} cannot be an input", fix="convert it to a float dtype")
        return NUMPY_DTYPES[value.dtype]
    found: np.dtype = np.dtype(value.dtype)
    return found


def as_numpy(value: Any) -> np.ndarray:
    """An array of any library as a NumPy array that shares its memory."""
    if library(value) == "torch":
        from polyrhythm.compiler.backends.torch.ops import to_numpy

        return to_numpy(value.detach(), numpy_dtype(value))
    return np.asarray(value)


def given(backend: str, value: Any, dtype: np.dtype) -> Any:
    """An input as the backend wants it: NumPy arrays for NumPy, tensors for torch, NumPy or JAX arrays for JAX."""
    found = library(value)
    if backend == "torch":
        from polyrhythm.compiler.backends.torch.ops import TORCH_DTYPES, from_numpy

        if found == "torch":
            return value.detach().to(TORCH_DTYPES[dtype])
        return from_numpy(np.asarray(as_numpy(value), dtype))
    if backend == "jax" and found == "jax" and value.dtype == dtype:
        return value
    if backend == "jax" and is_traced(value):
        return value.astype(dtype)
    return np.asarray(as_numpy(value), dtype)


def like(kind: Kind, value: Any) -> Any:
    """A result as an array of the library the inputs came from; it shares the memory of the result."""
    found = library(value)
    if found == kind or (not getattr(value, "is_fully_addressable", True) and not value.sharding.is_fully_replicated):
        return value  # what other processes have stays where it is
    if kind == "numpy":
        return as_numpy(value)
    if kind == "jax":
        import jax

        array = as_numpy(value)
        if array.dtype.itemsize < 8:
            return jax.device_put(array, may_alias=True)
        with jax.enable_x64(True):
            return jax.device_put(array, may_alias=True)
    import torch

    if found == "jax" and len(value.sharding.device_set) == 1:
        return torch.from_dlpack(value)
    from polyrhythm.compiler.backends.torch.ops import from_numpy

    return from_numpy(as_numpy(value))


def copied(value: Any) -> Any:
    """A copy that shares no memory. Arrays of JAX never change, so they need none."""
    if library(value) == "torch":
        return value.clone()
    return np.array(value) if library(value) == "numpy" else value
