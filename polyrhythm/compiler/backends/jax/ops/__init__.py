"""Every operation of the op table on padded arrays: `apply`.

The values inside the lengths are those of the NumPy function on the unpadded operands, whatever lies outside. One
module per family; `padded.py` says how padding is kept out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polyrhythm.compiler.backends.jax.ops import (
    contraction,
    creation,
    elementwise,
    factors,
    grouped,
    indexing,
    opaque,
    quantised,
    reductions,
    shapes,
)
from polyrhythm.compiler.backends.jax.ops.padded import Implementation, IndexRangeError, Length, Padded, Result

_FAMILIES = (
    elementwise,
    reductions,
    contraction,
    factors,
    grouped,
    shapes,
    indexing,
    creation,
    opaque,
    quantised,
)

IMPLEMENTATIONS: dict[str, Implementation] = {
    name: implementation for family in _FAMILIES for name, implementation in family.IMPLEMENTATIONS.items()
}
"""Each operation under its name."""


def apply(
    op: str,
    operands: Sequence[Padded],
    attributes: Mapping[str, Any],
    capacities: tuple[int, ...],
    lengths: tuple[Length, ...],
    dtype: np.dtype,
) -> Padded:
    """The result of an operation, with the capacities, lengths and dtype that the caller gives for it.

    `attributes` are those of the op table with an int or a traced int32 scalar in place of each term, an array in
    place of a literal; `random_bits` has `seed` (an int, or two uint32 words, low and high) and `step` besides. For
    64-bit dtypes the caller has enabled them in JAX.
    """
    array = IMPLEMENTATIONS[op](operands, attributes, Result(capacities, lengths, dtype))
    assert (array.shape, array.dtype) == (capacities, dtype), (
        f"{op}: {array.dtype}{array.shape}, not {dtype}{capacities}"
    )
    return Padded(array, lengths)


__all__ = ["IMPLEMENTATIONS", "IndexRangeError", "Length", "Padded", "apply"]
