"""Arrays as XLA takes and returns them: at capacity, at addresses it can use, cut to their lengths.

What lies in the memory of one CPU device is seen through NumPy, which shares that memory: a copy there compiles
nothing. Arrays on an accelerator or on several devices stay where they are; padding and cutting them is a small XLA
program for each pair of shapes.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

ALIGNMENT = 64
"""Bytes; what XLA wants of the arrays it is given."""


def capacity(value: int) -> int:
    """The power of two that holds a bound.

    >>> [capacity(n) for n in (0, 1, 2, 3, 8, 9)]
    [0, 1, 2, 4, 8, 16]
    """
    return 0 if value == 0 else 1 << (value - 1).bit_length()


def on_device(array: Any) -> bool:
    """Whether an array is where only XLA should touch it: on an accelerator, on several devices, or not on the first.

    >>> on_device(np.zeros(3)), on_device(jnp.zeros(3))
    (False, False)
    """
    if not isinstance(array, jax.Array):
        return False
    devices: set[Any] = set(array.sharding.device_set)
    return len(devices) > 1 or any(device.platform != "cpu" or device.id != 0 for device in devices)


def automatic(array: Any) -> Any:
    """The same array where XLA may choose how what follows from it is spread: its mesh has no explicit axes."""
    mesh = getattr(getattr(array, "sharding", None), "mesh", None)
    if mesh is None or all(kind == AxisType.Auto for kind in mesh.axis_types):
        return array
    return jax.device_put(array, NamedSharding(auto_mesh(mesh), array.sharding.spec))


def auto_mesh(mesh: Mesh) -> Mesh:
    """A mesh with the same devices along axes that XLA decides about."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def placement(arguments: Any) -> tuple[Any, ...]:
    """What a compiled program depends on besides shapes: on which devices its arguments are, and how they are spread.

    >>> placement({"x": np.zeros(3)})
    ()
    """
    if jax.device_count() == 1:
        return ()
    spread = ((n, getattr(leaf, "sharding", None)) for n, leaf in enumerate(jax.tree.leaves(arguments)))
    first = jax.local_devices()[0]
    return tuple((n, how) for n, how in spread if how is not None and how.device_set != {first})


def padded(array: Any, shape: tuple[int, ...]) -> Any:
    """An input at its capacity, or cut."""
    if array.shape == shape:
        return array
    if on_device(array):
        return _fitted(array, shape)
    if all(new <= old for new, old in zip(shape, array.shape, strict=True)):
        return np.asarray(array)[tuple(map(slice, shape))]
    room = aligned_zeros(shape, array.dtype)
    shared = tuple(slice(0, min(new, old)) for new, old in zip(shape, array.shape, strict=True))
    room[shared] = np.asarray(array)[shared]
    return room


def part(array: Any, index: tuple[int | slice, ...]) -> Any:
    """Some slots of an array of JAX, as an array of its own."""
    if on_device(array):
        return _indexed(array, tuple(None if isinstance(entry, slice) else entry for entry in index))
    return jax.device_put(np.asarray(array)[index])


def stacked(arrays: Sequence[Any]) -> Any:
    """Arrays of one shape as one, along a first axis."""
    if on_device(arrays[0]):
        return jax.jit(lambda *all: jnp.stack(all))(*arrays)
    return np.stack([np.asarray(array) for array in arrays])


@partial(jax.jit, static_argnums=1)
def _fitted(array: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    kept = array[tuple(map(slice, shape))]
    return jnp.pad(kept, [(0, new - old) for new, old in zip(shape, kept.shape, strict=True)])


@partial(jax.jit, static_argnums=1)
def _indexed(array: jax.Array, picked: tuple[int | None, ...]) -> jax.Array:
    return array[tuple(slice(None) if slot is None else slot for slot in picked)]


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros at an address that XLA can use as it is; it copies arrays that begin elsewhere."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def cut(array: jax.Array, shape: tuple[int, ...]) -> Any:
    """An output cut to its shape."""
    if array.shape == shape:
        return array
    return _fitted(array, shape) if on_device(array) else np.asarray(array)[tuple(map(slice, shape))]


def precision(wide: bool) -> contextlib.AbstractContextManager[Any]:
    """64-bit types as the program needs them; changing the setting costs more than looking at it."""
    same = jax.config.jax_enable_x64 == wide  # type: ignore[attr-defined]
    return contextlib.nullcontext() if same else jax.enable_x64(wide)
