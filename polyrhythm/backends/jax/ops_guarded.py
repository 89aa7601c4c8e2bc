"""Products with an array that holds numbers which are not finite, beyond the lengths that count.

Zero times a NaN or an infinity is NaN, so zeros in one operand do not hide what the other has beyond a length. Here
the product is computed from the finite numbers alone, and then corrected where others meet inside the lengths. It takes
a dozen products in place of one; `vector.py` uses it only after it has seen such numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

Array = jax.Array
Product = Callable[[Array, Array], Array]


def exact_product(product: Product, a: Array, b: Array, inside: Array) -> Array:
    """The product by the rules of IEEE 754, where only elements of `b` that meet `inside` count."""
    dtype = a.dtype
    total = product(jnp.where(jnp.isfinite(a), a, 0), jnp.where(jnp.isfinite(b), b, 0))

    def meets(x: Array, y: Array) -> Array:
        """Whether elements of two kinds meet."""
        return product(jnp.where(x, inside, 0), y.astype(dtype)) > 0

    every_a, every_b = jnp.ones_like(a, bool), jnp.ones_like(b, bool)
    nan = meets(jnp.isnan(a), every_b) | meets(every_a, jnp.isnan(b))
    nan = nan | meets(jnp.isinf(a), b == 0) | meets(a == 0, jnp.isinf(b))
    up = meets(jnp.isposinf(a), b > 0) | meets(a > 0, jnp.isposinf(b))
    up = up | meets(jnp.isneginf(a), b < 0) | meets(a < 0, jnp.isneginf(b))
    down = meets(jnp.isposinf(a), b < 0) | meets(a < 0, jnp.isposinf(b))
    down = down | meets(jnp.isneginf(a), b > 0) | meets(a > 0, jnp.isneginf(b))
    total = jnp.where(up, jnp.inf, jnp.where(down, -jnp.inf, total))
    return jnp.where(nan | (up & down), jnp.nan, total).astype(total.dtype)
