"""Elementwise operations on padded arrays: garbage in, garbage out, element by element, so nothing is masked.

Values are those of the op table where XLA alone would differ: division by zero, powers and remainders as in NumPy,
saturating casts. The 16-bit floats are computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from polyrhythm.compiler.backends.jax.ops.padded import Implementation, Padded, Result, aligned, scalar
from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.loops.ir import Block, Compute, Local

Array = jax.Array
Function = Callable[..., Array]


def _like(x: Array, value: Any) -> Array:
    return lax.full_like(x, scalar(value, x.dtype))


def _elementwise(function: Function) -> Implementation:
    """The function on padded operands."""

    def apply(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
        arrays = [aligned(operand, result.capacities) for operand in operands]
        wide = dtypes.accumulator(arrays[0].dtype)
        value = function(*(lax.convert_element_type(array, wide) for array in arrays))
        return lax.convert_element_type(value, result.dtype)

    return apply


def _isfinite(x: Array) -> Array:
    return jnp.isfinite(x) if dtypes.is_inexact(x.dtype) else lax.full(x.shape, np.True_)


def _differ_in_sign(remainder: Array, y: Array) -> Array:
    """Where a quotient cut off towards zero is not the floor."""
    zero = _like(y, 0)
    return lax.bitwise_and(lax.ne(remainder, zero), lax.ne(lax.lt(remainder, zero), lax.lt(y, zero)))


def _floordiv(x: Array, y: Array) -> Array:
    zero, one = _like(y, 0), _like(y, 1)
    if not dtypes.is_float(x.dtype):
        # XLA divides by zero without a trap; the value is replaced.
        quotient = lax.div(x, y)
        if x.dtype.kind == "i":
            quotient = lax.select(_differ_in_sign(lax.rem(x, y), y), lax.sub(quotient, one), quotient)
        return lax.select(lax.eq(y, zero), zero, quotient)
    # As NumPy does it: the exact remainder first, so that the quotient is whole up to one rounding.
    remainder = lax.rem(x, y)
    quotient = lax.div(lax.sub(x, remainder), y)
    quotient = lax.select(_differ_in_sign(remainder, y), lax.sub(quotient, one), quotient)
    floor = lax.floor(quotient)
    floor = lax.select(lax.gt(lax.sub(quotient, floor), _like(y, 0.5)), lax.add(floor, one), floor)
    return lax.select(lax.eq(y, zero), lax.div(x, y), floor)


def _mod(x: Array, y: Array) -> Array:
    remainder = lax.rem(x, y)
    if x.dtype.kind != "u":
        remainder = lax.select(_differ_in_sign(remainder, y), lax.add(remainder, y), remainder)
    if dtypes.is_float(x.dtype):
        return remainder
    return lax.select(lax.eq(y, _like(y, 0)), _like(y, 0), remainder)


def _pow(x: Array, y: Array) -> Array:
    if dtypes.is_float(x.dtype):
        return lax.pow(x, y)
    zero, one = _like(x, 0), _like(x, 1)
    power, square, exponent = one, x, y
    # By squaring, over all bits of the exponent: products wrap, so a large exponent has a value too. Unrolled, a
    # constant exponent folds to a few products.
    for _ in range(x.dtype.itemsize * 8 - (x.dtype.kind == "i")):
        odd = lax.eq(lax.bitwise_and(exponent, one), one)
        power = lax.select(odd, lax.mul(power, square), power)
        square, exponent = lax.mul(square, square), lax.shift_right_logical(exponent, one)
    if x.dtype.kind == "u":
        return power
    of_minus_one = lax.select(lax.eq(lax.bitwise_and(y, one), one), _like(x, -1), one)
    reciprocal = lax.select(lax.eq(x, _like(x, -1)), of_minus_one, zero)
    reciprocal = lax.select(lax.eq(x, one), one, reciprocal)
    return lax.select(lax.lt(y, zero), reciprocal, power)


def _select(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    condition, a, b = (aligned(operand, result.capacities) for operand in operands)
    return lax.select(condition, a, b)


def is_maximum(compute: Compute, block: Block) -> bool:
    """Whether a choice is the maximum of x and 0, as relu is: 0 where x <= 0. XLA's library for products takes a
    maximum in, where it stores a choice. Zeros of both signs become 0 in XLA's maximum too, and NaN stays."""
    made = {Local(other.result): other for other in block.body if other.op in ("le", "constant")}
    which, zero, x = compute.operands
    condition = made[which].operands if which in made else ()
    if len(condition) != 2 or condition[0] != x or not dtypes.is_float(compute.type.dtype):
        return False
    values = [made[o].attributes.get("value") for o in (zero, condition[1]) if o in made]
    return len(values) == 2 and all(v and v.value.shape == () and str(v.value) == "0.0" for v in values)


def _cast(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    x, dtype = aligned(operands[0], result.capacities), result.dtype
    if dtype == dtypes.BOOL:
        return x if x.dtype == dtype else lax.ne(x, _like(x, 0))
    if x.dtype == dtypes.BOOL and dtype.kind not in "iu":
        # XLA takes a product with a converted truth value for a choice, in which 0 * inf would be 0.
        one = jnp.ones(x.shape, dtype)
        return lax.select(x, one, lax.full_like(one, 0))
    if not (dtypes.is_float(x.dtype) and dtypes.kind(dtype) == "int"):
        return lax.convert_element_type(x, dtype)
    # float16 does not reach the limits of the wider integers.
    x = lax.convert_element_type(x, dtypes.accumulator(x.dtype))
    limits = np.iinfo(dtype)
    # One above the maximum is a power of two, hence exact in every float, even where the maximum is not.
    too_low = lax.lt(x, _like(x, float(limits.min)))
    too_high = lax.ge(x, _like(x, 2.0 ** (dtype.itemsize * 8 - (dtype.kind == "i"))))
    outside = lax.bitwise_or(lax.bitwise_or(too_low, too_high), lax.ne(x, x))
    whole = lax.convert_element_type(lax.select(outside, _like(x, 0), x), dtype)
    whole = lax.select(too_low, _like(whole, limits.min), whole)
    return lax.select(too_high, _like(whole, limits.max), whole)


_AS_IN_XLA = (
    *("neg", "exp", "log", "log1p", "expm1", "tanh", "sqrt", "sin", "cos", "sinh", "cosh", "lgamma", "digamma", "sign"),
    *("floor", "ceil", "erf", "add", "sub", "mul", "div", "atan2", "eq", "ne", "lt", "le"),
)

_FUNCTIONS: dict[str, Function] = {
    **{name: getattr(lax, name) for name in _AS_IN_XLA},
    **{name: getattr(lax, f"bitwise_{name}") for name in ("not", "and", "or", "xor")},
    "abs": lambda x: x if x.dtype.kind == "u" else lax.abs(x),
    "round": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "isfinite": _isfinite,
    "detach": lambda x: x,
    "shard": lambda x: x,  # what XLA is told of it, the trace adds
    "keep": lambda x: lax.optimization_barrier(x),  # or XLA would find what is computed again to be computed already
    "floordiv": _floordiv,
    "mod": _mod,
    "pow": _pow,
    "maximum": lax.max,
    "minimum": lax.min,
}

IMPLEMENTATIONS: dict[str, Implementation] = {
    **{name: _elementwise(function) for name, function in _FUNCTIONS.items()},
    "real": _elementwise(lax.real),
    "imag": _elementwise(lax.imag),
    "complex": _elementwise(lax.complex),
    "select": _select,
    "cast": _cast,
}
