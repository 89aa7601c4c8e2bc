"""How monoids combine two partial results in JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import lax

COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lax.add,
    "prod": lax.mul,
    "max": lax.max,
    "min": lax.min,
    "any": lax.bitwise_or,
    "all": lax.bitwise_and,
}
"""By the name of the monoid."""
