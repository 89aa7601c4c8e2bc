"""Functions of JAX, called while the program is traced. Their shapes are fixed, so nothing is padded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from polyrhythm.compiler.backends.jax.ops.padded import Implementation, Padded, Result


def _opaque(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> jax.Array:
    returned = attributes.get("returned") or called(operands, attributes)
    # What the function makes of Python numbers depends on whether the program has 64-bit types elsewhere.
    return jnp.asarray(returned[attributes["result"]]).astype(result.dtype)


def called(operands: Sequence[Padded], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """All results of one call."""
    return tuple(attributes["function"].call(*(operand.array for operand in operands)))


IMPLEMENTATIONS: dict[str, Implementation] = {"opaque": _opaque}
