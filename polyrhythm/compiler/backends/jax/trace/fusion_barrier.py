"""A value that XLA computes once, though many read it.

XLA fuses what is cheap by element into everything that reads it, again and again: the gradient of a residual stream,
a sum over all layers above, was computed anew for every product that reads it, and so grew with the square of the
layers. It takes away `optimization_barrier` before it fuses. A loop it keeps, even one that never runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from polyrhythm.compiler.backends.jax.target import on_cpu
from polyrhythm.compiler.ir.terms import Symbol

SMALL = 64
"""Elements of a lane's value, below which it is cheaper to compute it again."""


def computed_once(value: jax.Array, symbols: Mapping[Symbol, Any]) -> jax.Array:
    """The same value, not fused with what reads it; some symbol is a bound whose value the compiler does not know.

    >>> T = Symbol("T", "bound")
    >>> jax.jit(lambda x, n: computed_once(2 * x, {T: n}))(jnp.arange(3.0), 1).tolist()
    [0.0, 2.0, 4.0]
    """
    if not on_cpu():
        apart: jax.Array = lax.optimization_barrier(value)
        return apart
    bound = next((n for s, n in symbols.items() if s.kind != "dim" and not s.over and isinstance(n, jax.Array)), None)
    if bound is None:
        return value

    def changed(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return jnp.bool_(False), jnp.flip(carry[1])

    kept: jax.Array = lax.while_loop(lambda carry: carry[0], changed, (bound < 0, value))[1]
    return kept
