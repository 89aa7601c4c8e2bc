"""Products with a matrix of codes (`dequantize`): by our kernel, or by XLA with the elements made first.

As in `choose.py` the product is a primitive: lanes add rows to it, and what it becomes is decided when it is lowered.
The kernel decodes a part of the matrix in registers, once for all rows, so it reads from memory what the codes take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from polyrhythm.compiler.backends.jax.products import kernel
from polyrhythm.compiler.backends.jax.products.choose import runs_alone
from polyrhythm.compiler.ir.ops.quantised import PAIRED

Array = jax.Array

_product = Primitive("polyrhythm_packed_product")


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
    return halves and codes.size > 0 and block % least == 0 and count > 0 and kernel.missing() is None


def _computed(rows: Array, codes: Array, *factors: Array) -> Array:
    """By the kernel if it takes them, else by XLA."""
    *lanes, inner = rows.shape
    count, outer = math.prod(lanes), codes.shape[:-1]
    if rows.dtype != jnp.float32 or not _fits(count, codes, factors):
        return _plain(rows, codes, *factors)
    wanted = jax.ShapeDtypeStruct((count, math.prod(outer)), jnp.float32)
    made = jax.ffi.ffi_call(f"polyrhythm_{kernel.PACKED}", wanted)(lax.reshape(rows, (count, inner)), codes, *factors)
    return lax.reshape(made, (*lanes, *outer))


def _shape(rows: Any, codes: Any, *factors: Any) -> Any:
    return jax.core.ShapedArray((*rows.shape[:-1], *codes.shape[:-1]), rows.dtype)


def _mapped(values: Sequence[Array], lanes: Sequence[int | None]) -> tuple[Array, int]:
    """Lanes of the rows are more rows; where matrices differ as well, the elements are made."""
    if lanes[0] is not None and all(lane is None for lane in lanes[1:]):
        return _product.bind(jnp.moveaxis(values[0], lanes[0], 0), *values[1:]), 0
    return jax.vmap(_plain, in_axes=tuple(lanes))(*values), 0


def _differentiated(values: Sequence[Array], tangents: Sequence[Any]) -> tuple[Array, Any]:
    """The product and its tangent, which is linear in the rows; codes and scales have none."""
    made, tangent = _product.bind(*values), tangents[0]
    return made, jnp.zeros_like(made) if type(tangent) is ad.Zero else _plain(tangent, *values[1:])


_by_xla = mlir.lower_fun(_plain, multiple_results=False)
_ours_or_xla = mlir.lower_fun(_computed, multiple_results=False)


def _lowered(context: Any, *operands: Any) -> Any:
    return (_ours_or_xla if runs_alone(context) else _by_xla)(context, *operands)


ad.primitive_jvps[_product] = _differentiated
_product.def_impl(_computed)
_product.def_abstract_eval(_shape)
batching.primitive_batchers[_product] = _mapped
mlir.register_lowering(_product, _by_xla)
mlir.register_lowering(_product, _lowered, platform="cpu")
