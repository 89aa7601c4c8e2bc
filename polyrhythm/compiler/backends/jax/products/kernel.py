"""Products of a few rows with matrices by kernels of our own (`skinny.c`, `packed.c`), as JAX functions.

By its times, XLA's product for two to some dozens of rows does the arithmetic of 16, and it does not reach the speed of
memory; small batches go through one core. The kernel reads a matrix once for all rows, as fast as memory gives
it, and no more of it than is in use. The times are in `docs/decisions.md`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from polyrhythm.compiler.backends.jax.products import build
from polyrhythm.errors import UnsupportedError

Array = jax.Array

MOST_ROWS = 24
"""With more, XLA's product is about as fast."""

FORMS = ("skinny_across", "skinny_along", "window_across", "window_along")
PACKED = ("packed_product", "packed_elements")
SOURCE = "skinny.c"


def missing() -> str | None:
    """Why there is no kernel; None if there is one."""
    return build.missing(SOURCE, *FORMS)


def missing_packed() -> str | None:
    """The same for products with codes."""
    return build.missing("packed.c", *PACKED)


def takes(rows: int, dtype: Any) -> bool:
    """Whether the kernel is for so many rows of a dtype, and can be had."""
    return 1 <= rows <= MOST_ROWS and dtype in (jnp.float32, jnp.bfloat16) and missing() is None


def product(
    rows: Array, matrix: Array, lengths: Array | None = None, *, outer: int | None = None, along: bool = False
) -> Array:
    """Rows (batch, rows, inner) times matrix (batch, outer, inner), or with `along` (batch, inner, outer).

    The result is (batch, rows, outer), in float32. `lengths` (of shape (batch,) or (1,)) says how much of the matrix's
    first axis counts: of the outer one, where the rest of the result is zero, or along the inner one, what is summed.
    All of the batch may share one matrix, (outer, inner). A matrix may also come in another shape, as it lies, if
    `outer` is given.
    """
    why = missing()
    if why is not None:
        raise UnsupportedError(f"the kernel for few rows is missing: {why}", fix="install a C compiler")
    inner = rows.shape[2]
    if outer is None:
        outer = matrix.shape[-1 if along else -2]
    if lengths is None:
        lengths = jnp.full(1, inner if along else outer, jnp.int32)
    wanted = jax.ShapeDtypeStruct((*rows.shape[:2], outer), jnp.float32)
    call = jax.ffi.ffi_call(f"polyrhythm_{FORMS[along]}", wanted)
    made: Array = call(rows.astype(jnp.float32), matrix, lengths.astype(jnp.int32))
    return made


def of_windows(rows: Array, matrices: Array, starts: Array, size: int, *, along: bool = False) -> Array:
    """Rows (lanes * batch, rows, inner), each lane times windows of its own of matrices (batch, steps, ...).

    `starts` has the first step of the window of each lane, and `size` its length: that of the result's last axis, or
    with `along` of the one that is summed. The result is (lanes * batch, rows, outer), in float32.
    """
    wanted = jax.ShapeDtypeStruct((*rows.shape[:2], matrices.shape[2] if along else size), jnp.float32)
    call = jax.ffi.ffi_call(f"polyrhythm_{FORMS[2 + along]}", wanted)
    made: Array = call(rows.astype(jnp.float32), matrices, starts.astype(jnp.int32))
    return made
