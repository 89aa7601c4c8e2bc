"""Elementwise operations, with the values of the op table where torch alone would differ.

Torch refuses integer division by zero, and traps where the least integer is divided by -1; both are taken out first.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from polyrhythm.compiler.backends.torch.ops.carriers import (
    TORCH_DTYPES,
    carried,
    is_float,
    ordered,
    restored,
    unordered,
)
from polyrhythm.compiler.ir import dtypes

Tensor = torch.Tensor
Function = Callable[..., Tensor]

_UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)


def _on_carriers(function: Function) -> Function:
    """The function where the bits of carriers suffice."""

    def compute(*tensors: Tensor) -> Tensor:
        value = function(*map(carried, tensors))
        return value if value.dtype == torch.bool else restored(value, tensors[0].dtype)

    return compute


def _on_order(function: Function) -> Function:
    """The function where carriers must be in order."""

    def compute(*tensors: Tensor) -> Tensor:
        value = function(*map(ordered, tensors))
        return value if value.dtype == torch.bool else unordered(value, tensors[0].dtype)

    return compute


def _abs(x: Tensor) -> Tensor:
    return x if x.dtype in _UNSIGNED else restored(torch.abs(carried(x)), x.dtype)


def _sign(x: Tensor) -> Tensor:
    if x.dtype in _UNSIGNED:
        return (carried(x) != 0).to(x.dtype)
    carrier = carried(x)
    sign = torch.sign(carrier)
    # Torch gives NaN the sign 0.
    return restored(torch.where(torch.isnan(carrier), carrier, sign) if is_float(carrier) else sign, x.dtype)


def _digamma(x: Tensor) -> Tensor:
    # Torch takes the limit from the right at the pole at 0.
    return torch.where(x == 0, torch.nan, torch.digamma(x))


def _isfinite(x: Tensor) -> Tensor:
    return torch.isfinite(x) if is_float(x) or x.is_complex() else torch.ones_like(x, dtype=torch.bool)


def _floordiv(x: Tensor, y: Tensor) -> Tensor:
    if is_float(x):
        return restored(torch.div(carried(x), carried(y), rounding_mode="floor"), x.dtype)
    if x.dtype == torch.uint64:
        return _unsigned_divided(carried(x), carried(y))[0].view(torch.uint64)
    a, b = carried(x), carried(y)
    if x.dtype in _UNSIGNED:
        quotient = torch.div(a, torch.where(b == 0, 1, b), rounding_mode="floor")
    else:
        quotient = torch.div(a, torch.where((b == 0) | (b == -1), 1, b), rounding_mode="floor")
        quotient = torch.where(b == -1, -a, quotient)
    return restored(torch.where(b == 0, 0, quotient), x.dtype)


def _mod(x: Tensor, y: Tensor) -> Tensor:
    if is_float(x):
        return restored(torch.remainder(carried(x), carried(y)), x.dtype)
    if x.dtype == torch.uint64:
        return _unsigned_divided(carried(x), carried(y))[1].view(torch.uint64)
    a, b = carried(x), carried(y)
    # Modulo 1 everything is 0, which is also what 0 and -1 shall give.
    trivial = (b == 0) if x.dtype in _UNSIGNED else (b == 0) | (b == -1)
    return restored(torch.remainder(a, torch.where(trivial, 1, b)), x.dtype)


def _unsigned_divided(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Quotient and remainder of the uint64 with these bits; both 0 where the divisor is."""
    # Half of a is not negative; twice its quotient is the quotient of a, or one less.
    half = (a >> 1) & (2**63 - 1)
    divisor = torch.where(b <= 0, 1, b)
    quotient = torch.div(half, divisor, rounding_mode="trunc") << 1
    quotient = quotient + _not_less(a - quotient * divisor, divisor)
    # A divisor with the top bit goes in at most once.
    quotient = torch.where(b < 0, _not_less(a, b), torch.where(b == 0, 0, quotient))
    return quotient, torch.where(b == 0, 0, a - quotient * b)


def _not_less(a: Tensor, b: Tensor) -> Tensor:
    return ((a ^ -(2**63)) >= (b ^ -(2**63))).to(torch.int64)


def _pow(x: Tensor, y: Tensor) -> Tensor:
    a, b = carried(x), carried(y)
    if x.dtype != torch.uint64:
        return restored(torch.pow(a, b), x.dtype)
    # To the power of 2**63 an odd number is 1, and an even one 0, modulo 2**64.
    power = torch.pow(a, b & (2**63 - 1))
    return torch.where((b < 0) & (a & 1 == 0), 0, power).view(torch.uint64)


def _select(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(condition, a, b)


def _cast(x: Tensor, dtype: np.dtype) -> Tensor:
    target = TORCH_DTYPES[dtype]
    if target.is_complex and x.dtype == torch.uint64:
        x = x.to(torch.float64)
    if not (is_float(x) and dtypes.kind(dtype) == "int"):
        if x.dtype in (torch.uint16, torch.uint32, torch.uint64) and not target.is_floating_point:
            x = carried(x)
        return x != 0 if dtype == dtypes.BOOL else restored(x, target)
    wide = torch.trunc(x.to(torch.float64))
    limits = np.iinfo(dtype)
    low, above = float(limits.min), 2.0 ** (dtype.itemsize * 8 - (dtype.kind == "i"))
    inside = torch.where((wide >= low) & (wide < above), wide, 0.0)
    if dtype == dtypes.UINT64:
        large = inside >= 2.0**63
        whole = torch.where(large, inside - 2.0**63, inside).to(torch.int64)
        whole = torch.where(large, whole ^ -(2**63), whole)
        return torch.where(wide >= above, -1, whole).view(torch.uint64)
    whole = torch.where(wide < low, limits.min, inside.to(torch.int64))
    return restored(torch.where(wide >= above, limits.max, whole), target)


IMPLEMENTATIONS: dict[str, Function] = {
    **{
        name: _on_carriers(getattr(torch, name))
        for name in ("neg", "exp", "log", "log1p", "expm1", "tanh", "sqrt", "sin", "cos", "sinh", "cosh")
    },
    **{name: _on_carriers(getattr(torch, name)) for name in ("floor", "ceil", "round", "erf", "lgamma", "atan2")},
    **{name: _on_carriers(getattr(torch, name)) for name in ("add", "sub", "mul", "div", "eq", "ne")},
    **{name: _on_order(getattr(torch, name)) for name in ("maximum", "minimum", "lt", "le")},
    **{name: _on_carriers(getattr(torch, f"bitwise_{name}")) for name in ("not", "and", "or", "xor")},
    "digamma": _on_carriers(_digamma),
    "abs": _abs,
    "sign": _sign,
    "isfinite": _isfinite,
    "detach": lambda x: x,
    "keep": lambda x: x,
    "floordiv": _floordiv,
    "mod": _mod,
    "pow": _pow,
    "real": lambda x: x.real,
    "imag": lambda x: x.imag,
    "complex": lambda x, y: torch.complex(*torch.broadcast_tensors(x, y)),
    "select": _select,
    "cast": _cast,
    "shard": lambda x, axis, over: x,
}
