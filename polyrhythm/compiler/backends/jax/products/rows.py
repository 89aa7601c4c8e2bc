"""Rows of a table of 16-bit floats, copied by a kernel of our own (`rows.c`) where XLA would convert all of the table.

A primitive, decided when it is lowered, as in `choose.py`: lanes with places of their own are more places.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from polyrhythm.compiler.backends.jax.products.build import built
from polyrhythm.compiler.backends.jax.products.choose import runs_alone

Array = jax.Array

LEAST = 1 << 16
"""A table of fewer elements is left to XLA: converting it takes a few microseconds."""

_taken = Primitive("polyrhythm_rows")
_registering = threading.Lock()


@lru_cache(1)
def _registered() -> bool:
    library = built("rows.c").library
    if library is None:
        return False
    jax.ffi.register_ffi_target("polyrhythm_rows", jax.ffi.pycapsule(library.rows_taken), platform="cpu")
    return True


def available() -> bool:
    """Whether there is the kernel, which can be called from now on."""
    with _registering:
        return _registered()


def pays(table: Array) -> bool:
    """Whether rows of a table may be for the kernel."""
    return table.dtype in (jnp.bfloat16, jnp.float16) and table.size >= LEAST


def taken(table: Array, places: Array) -> Array:
    """The rows of a table at places (any shape) inside it."""
    made: Array = _taken.bind(table, places)
    return made


def _gathered(table: Array, places: Array) -> Array:
    rank = places.ndim
    dimensions = lax.GatherDimensionNumbers(tuple(range(rank, rank + table.ndim - 1)), (0,), (0,))
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return lax.gather(table, places[..., None], dimensions, (1, *table.shape[1:]), mode=mode)


def _computed(table: Array, places: Array) -> Array:
    if not available():
        return _gathered(table, places)
    count = math.prod(places.shape)
    wanted = jax.ShapeDtypeStruct((count, *table.shape[1:]), table.dtype)
    made = jax.ffi.ffi_call("polyrhythm_rows", wanted)(table, lax.reshape(places, (count,)).astype(np.int32))
    return lax.reshape(made, (*places.shape, *table.shape[1:]))


def _shape(table: Any, places: Any) -> Any:
    return jax.core.ShapedArray((*places.shape, *table.shape[1:]), table.dtype)


def _mapped(values: Sequence[Array], lanes: Sequence[int | None]) -> tuple[Array, int]:
    (table, places), (of_table, of_places) = values, lanes
    if of_table is None and of_places is not None:
        return _taken.bind(table, jnp.moveaxis(places, of_places, 0)), 0
    return jax.vmap(_gathered, in_axes=tuple(lanes))(table, places), 0


def _differentiated(values: Sequence[Array], tangents: Sequence[Any]) -> tuple[Array, Any]:
    made, tangent = _taken.bind(*values), tangents[0]
    return made, jnp.zeros_like(made) if type(tangent) is ad.Zero else _gathered(tangent, values[1])


_by_xla = mlir.lower_fun(_gathered, multiple_results=False)
_ours_or_xla = mlir.lower_fun(_computed, multiple_results=False)


def _lowered(context: Any, *operands: Any) -> Any:
    return (_ours_or_xla if runs_alone(context) else _by_xla)(context, *operands)


ad.primitive_jvps[_taken] = _differentiated
_taken.def_impl(_gathered)
_taken.def_abstract_eval(_shape)
batching.primitive_batchers[_taken] = _mapped
mlir.register_lowering(_taken, _by_xla)
mlir.register_lowering(_taken, _lowered, platform="cpu")
