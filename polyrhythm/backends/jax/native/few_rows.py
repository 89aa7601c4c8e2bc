"""Products of a few rows with matrices by a kernel of our own (`few_rows.c`), as JAX functions.

XLA's product for two to some dozens of rows does the arithmetic of 16 and asks for the matrix too late; one row after
the other, or in small batches, it uses one core. The kernel reads the matrix as fast as memory gives it, up to about
eight rows (`docs/decisions.md` has the times). It also reads no more of a buffer than is in use.
"""

from __future__ import annotations

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from polyrhythm.backends.jax.native.build import built

Array = jax.Array

MOST_ROWS = 24
"""With more, XLA's product is as fast."""

FORMS = ("few_rows_across", "few_rows_along")
SOURCE = "few_rows.c"


@lru_cache(1)
def missing() -> str | None:
    """Why there is no kernel; None if there is one."""
    found = built(SOURCE)
    if found.library is None:
        return found.missing
    for name in FORMS:
        handler = jax.ffi.pycapsule(getattr(found.library, name))
        jax.ffi.register_ffi_target(f"polyrhythm_{name}", handler, platform="cpu")
    return None


def takes(rows: int, dtype: np.dtype) -> bool:
    """Whether the kernel is for so many rows of a dtype, and can be had."""
    known = 1 <= rows <= MOST_ROWS and dtype in (jnp.float32, jnp.bfloat16)
    return known and jax.default_backend() == "cpu" and missing() is None


def product(
    rows: Array, matrix: Array, lengths: Array | None = None, *, outer: int | None = None, along: bool = False
) -> Array:
    """Rows (batch, rows, inner) times matrix (batch, outer, inner), or with `along` (batch, inner, outer).

    The result is (batch, rows, outer), in float32. `lengths` (of shape (batch,) or (1,)) says how much of the matrix's
    first axis counts: of the outer one, where the rest of the result is zero, or along the inner one, what is summed.
    All of the batch may share one matrix, (outer, inner). A matrix may also come in another shape, as it lies, if
    `outer` is given.
    """
    inner = rows.shape[2]
    if outer is None:
        outer = matrix.shape[-1 if along else -2]
    if lengths is None:
        lengths = jnp.full(1, inner if along else outer, jnp.int32)
    wanted = jax.ShapeDtypeStruct((*rows.shape[:2], outer), jnp.float32)
    call = jax.ffi.ffi_call(f"polyrhythm_{FORMS[along]}", wanted)
    made: Array = call(rows.astype(jnp.float32), matrix, lengths.astype(jnp.int32))
    return made
