"""The index of stored values that are replaced from outside (`Stream.replace`), as steps and as slots of a place.

Integers and arrays of an index go together, as in NumPy. They are brought to one form: arrays of one length, with the
axis that they make first in the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.schedule.storage import Storage

Index = tuple[np.ndarray | None, ...]
"""For each axis the elements, all arrays of one length, or None for all of them."""


def together(index: Sequence[Any], values: np.ndarray) -> tuple[Index, np.ndarray]:
    """An index whose integers and arrays are arrays of one length, and values with that axis first.

    >>> index, values = together([slice(None), np.array([3, 4]), 1], np.zeros((5, 2, 7)))
    >>> index, values.shape
    ((None, array([3, 4]), array([1, 1])), (2, 5, 7))
    """
    at = [axis for axis, entry in enumerate(index) if not isinstance(entry, slice)]
    if not at:
        return (None,) * len(index), values[None]
    entries = dict(zip(at, np.broadcast_arrays(*(np.atleast_1d(index[axis]) for axis in at)), strict=True))
    if all(np.ndim(index[axis]) == 0 for axis in at):
        values = values[None]
    elif at == list(range(at[0], at[-1] + 1)):
        values = np.moveaxis(values, at[0], 0)
    return tuple(entries.get(axis) for axis in range(len(index))), values


def arranged(index: Index, values: Any) -> Any:
    """Values with the axis of the index where NumPy has it when it is used as an index."""
    at = [axis for axis, entry in enumerate(index) if entry is not None]
    if not at:
        return values[0]
    first = at[0] if at == list(range(at[0], at[-1] + 1)) else 0
    return values.transpose(*range(1, first + 1), 0, *range(first + 1, values.ndim))


def in_slots(storage: Storage, index: Index, values: np.ndarray) -> tuple[Index, np.ndarray]:
    """The slots of the steps in an index, which has entries for dims, then for axes. Dims of one slot have none."""
    found: list[np.ndarray | None] = []
    gone = []
    for axis, entry in enumerate(index):
        slots = storage.slots[axis] if axis < len(storage.slots) else None
        if slots is not None and not slots.is_axis:
            gone += [1 + sum(other is None for other in index[:axis])] if entry is None else []
        elif slots is None or entry is None:
            found.append(entry)
        else:
            found.append(np.array([int(str(slots.index(Term.of(int(step))))) for step in entry]))
    return tuple(found), values.squeeze(tuple(gone))
