"""Arrays in and out: NumPy, JAX or torch, without copies where the libraries allow it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def kind_of(values: Iterable[Any]) -> str:
    """Which library the inputs come from: the first that is not NumPy decides.

    >>> kind_of([np.zeros(3), [1, 2]])
    'numpy'
    """
    for value in values:
        root = type(value).__module__.split(".")[0]
        if root == "torch":
            return "torch"
        if root in ("jax", "jaxlib"):
            return "jax"
    return "numpy"


def as_numpy(value: Any) -> Any:
    """A value that the checks can read: arrays of other libraries as NumPy arrays, anything else as it is."""
    root = type(value).__module__.split(".")[0]
    if root == "torch":
        from polyrhythm.backends.torch.ops import to_numpy

        return to_numpy(value.detach(), None)
    return np.asarray(value) if root in ("jax", "jaxlib") else value


def like(kind: str, value: Any) -> Any:
    """A result as an array of the library the inputs came from."""
    root = type(value).__module__.split(".")[0]
    if kind == "numpy":
        return np.asarray(value)
    if kind == "jax":
        import jax.numpy as jnp

        return value if root in ("jax", "jaxlib") else jnp.asarray(value)
    import torch

    return torch.from_dlpack(value) if root in ("jax", "jaxlib") else torch.as_tensor(np.asarray(value))
