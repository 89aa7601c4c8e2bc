"""Writing to places of a run from outside (`Stream.replace`), as they lie in memory.

A place may lie with its axes in another order, without those of length one, and with some slots as arrays of their own.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np

from polyrhythm.compiler.loops.ir import Place
from polyrhythm.compiler.loops.replacing import Index, arranged


def share(place: Place, index: Index, values: np.ndarray) -> tuple[Index, np.ndarray]:
    """What of an index and its values belongs to a place, or to a slot of one, in the order of its axes in memory."""
    picked = () if place.part_of is None else place.part_of[1]
    full = [axis for axis, entry in enumerate(index) if entry is None]
    chosen: list[Any] = [slice(None)] * values.ndim
    for axis, number in enumerate(picked):
        if number is not None and index[axis] is not None:
            raise NotImplementedError("slots that are arrays of their own are replaced together")
        if number is not None:
            chosen[1 + full.index(axis)] = number
    values = values[tuple(chosen)]
    own = [entry for axis, entry in enumerate(index) if axis >= len(picked) or picked[axis] is None]
    order = list(place.axes) or list(range(len(own)))
    left = [axis for axis, entry in enumerate(own) if entry is None]
    dropped = [1 + left.index(axis) for axis in left if axis not in order]  # of length one
    kept = [axis for axis in left if axis in order]
    values = values.squeeze(tuple(dropped)) if dropped else values
    moved = [1 + kept.index(axis) for axis in order if own[axis] is None]
    return tuple(own[axis] for axis in order), values.transpose(0, *moved)


@partial(jax.jit, donate_argnums=0)
def replaced(arrays: dict[str, jax.Array], index: Index, values: dict[str, Any]) -> dict[str, jax.Array]:
    """Arrays with other values at an index."""
    where = tuple(slice(None) if entry is None else entry for entry in index)

    def changed(array: jax.Array, own: Any) -> jax.Array:
        return array.at[where].set(arranged(index, own).astype(array.dtype), mode="drop")

    return {name: changed(array, values[name]) for name, array in arrays.items()}
