"""Rows of a table of 16-bit floats, copied by a kernel of our own (`rows.c`) where XLA would convert all of the table.

Decided when it is lowered (`primitive.py`): lanes with places of their own are more places.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from polyrhythm.compiler.backends.jax.products import build
from polyrhythm.compiler.backends.jax.products.primitive import primitive

Array = jax.Array

LEAST = 1 << 16
"""A table of fewer elements is left to XLA: converting it takes a few microseconds."""


def available() -> bool:
    """Whether there is the kernel, which can be called from now on."""
    return build.missing("rows.c", "rows_taken") is None


def pays(table: Array) -> bool:
    """Whether rows of a table may be for the kernel."""
    return table.dtype in (jnp.bfloat16, jnp.float16) and table.size >= LEAST


def taken(table: Array, places: Array) -> Array:
    """The rows of a table at places (any shape) inside it."""
    made: Array = _taken.bind(table, places)
    return made


def _gathered(table: Array, places: Array) -> Array:
    return table.at[places].get(mode="promise_in_bounds", wrap_negative_indices=False)


def _computed(table: Array, places: Array) -> Array:
    if not available():
        return _gathered(table, places)
    count = math.prod(places.shape)
    wanted = jax.ShapeDtypeStruct((count, *table.shape[1:]), table.dtype)
    made = jax.ffi.ffi_call("polyrhythm_rows_taken", wanted)(table, lax.reshape(places, (count,)).astype(np.int32))
    return lax.reshape(made, (*places.shape, *table.shape[1:]))


def _shape(table: Any, places: Any) -> Any:
    return jax.core.ShapedArray((*places.shape, *table.shape[1:]), table.dtype)


_taken = primitive("polyrhythm_rows", _computed, _gathered, _shape, more=(1,))
