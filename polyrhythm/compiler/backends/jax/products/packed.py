"""Products with a matrix of codes (`dequantize`): by our kernel, or by XLA with the elements made first.

Lanes add rows to the product, and what it becomes is decided when it is lowered (`primitive.py`).
For a few rows the kernel takes a part of the matrix apart in registers, once for all, so it reads from memory what the
codes take. For many it makes the elements, and the product is XLA's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from polyrhythm.compiler.backends.jax.products import kernel
from polyrhythm.compiler.backends.jax.products.primitive import primitive
from polyrhythm.compiler.ir.ops.quantised import PAIRED

Array = jax.Array

FEW = 24
"""The kernel multiplies at most so many rows; for more the elements are made first, once."""

LARGE = 1 << 27
"""A matrix whose elements take more bytes is never made as a whole."""


def elements(codes: Array, scales: Array, *offsets: Array, dtype: Any) -> Array:
    """The elements of a matrix of codes."""
    whole = codes
    if codes.dtype == jnp.uint8:
        groups = lax.reshape(codes, (*codes.shape[:-1], codes.shape[-1] * 2 // PAIRED, PAIRED // 2))
        both = lax.concatenate([groups & np.uint8(15), groups >> np.uint8(4)], groups.ndim - 1)
        whole = lax.reshape(both, (*codes.shape[:-1], 2 * codes.shape[-1]))
    size = whole.shape[-1] // scales.shape[-1]
    blocks = lax.reshape(whole, (*scales.shape, size)).astype(jnp.float32)
    made = blocks * scales.astype(jnp.float32)[..., None]
    for offset in offsets:
        made = made + offset.astype(jnp.float32)[..., None]
    return lax.reshape(made, whole.shape).astype(dtype)


def product(rows: Array, codes: Array, *factors: Array) -> Array:
    """Rows (*lanes, inner) times the elements (*outer, inner), of shape (*lanes, *outer)."""
    made: Array = _product.bind(rows, codes, *factors)
    return made


def _plain(rows: Array, codes: Array, *factors: Array) -> Array:
    matrix = elements(codes, *factors, dtype=rows.dtype)
    return lax.dot_general(rows, matrix, (((rows.ndim - 1,), (matrix.ndim - 1,)), ((), ())))


def _fits(count: int, codes: Any, factors: Sequence[Any]) -> bool:
    """Whether the kernel takes so many rows of such a matrix."""
    inner = codes.shape[-1] * (2 if codes.dtype == jnp.uint8 else 1)
    block = inner // factors[0].shape[-1]
    least = PAIRED if codes.dtype == jnp.uint8 else PAIRED // 2
    halves = all(factor.dtype == jnp.float16 for factor in factors)
    return halves and codes.size > 0 and block % least == 0 and count > 0 and kernel.missing_packed() is None


def _computed(rows: Array, codes: Array, *factors: Array) -> Array:
    """By the kernel if it takes them, else by XLA."""
    *lanes, inner = rows.shape
    count, outer = math.prod(lanes), codes.shape[:-1]
    if rows.dtype != jnp.float32 or not _fits(count, codes, factors):
        return _plain(rows, codes, *factors)
    flat, size = lax.reshape(rows, (count, inner)), math.prod(outer)
    by_elements = count > FEW and 4 * size * inner <= LARGE
    shape = (size, inner) if by_elements else (count, size)
    call = jax.ffi.ffi_call(f"polyrhythm_{kernel.PACKED[by_elements]}", jax.ShapeDtypeStruct(shape, jnp.float32))
    if by_elements:
        made = lax.dot_general(flat, call(codes, *factors), (((1,), (1,)), ((), ())))
    else:
        made = call(flat, codes, *factors)
    return lax.reshape(made, (*lanes, *outer))


def _shape(rows: Any, codes: Any, *factors: Any) -> Any:
    return jax.core.ShapedArray((*rows.shape[:-1], *codes.shape[:-1]), rows.dtype)


_product = primitive("polyrhythm_packed_product", _computed, _plain, _shape)
