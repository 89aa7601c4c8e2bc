"""Elementwise operations and those without operands, with the values of the op table where torch alone would differ.

Torch refuses integer division by zero, and traps where the least integer is divided by -1; both are taken out first.

Random bits are those of `compiler.ir.ops.random`, bit for bit. Words are held in int32, whose sums wrap as those
of uint32 do; a shift to the right is masked, because it repeats the sign.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import torch

from polyrhythm.compiler.backends.torch.ops.carriers import (
    TORCH_DTYPES,
    carried,
    is_float,
    ordered,
    placed,
    restored,
    unordered,
)
from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.ops.quantised import PAIRED
from polyrhythm.compiler.ir.ops.random import PARITY, ROTATIONS, key_of

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


def _sign(x: Tensor) -> Tensor:
    if x.dtype in _UNSIGNED:
        return (carried(x) != 0).to(x.dtype)
    carrier = carried(x)
    sign = torch.sign(carrier)
    # Torch gives NaN the sign 0.
    return restored(torch.where(torch.isnan(carrier), carrier, sign) if is_float(carrier) else sign, x.dtype)


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


def _dequantize(codes: Tensor, scales: Tensor, *offsets: Tensor, dtype: np.dtype) -> Tensor:
    whole = codes
    if codes.dtype == torch.uint8:
        groups = codes.reshape(*codes.shape[:-1], codes.shape[-1] * 2 // PAIRED, PAIRED // 2)
        whole = torch.cat([groups & 15, groups >> 4], -1).reshape(*codes.shape[:-1], 2 * codes.shape[-1])
    blocks = whole.reshape(*scales.shape, whole.shape[-1] // scales.shape[-1]).to(torch.float32)
    made = blocks * scales.to(torch.float32)[..., None]
    for offset in offsets:
        made = made + offset.to(torch.float32)[..., None]
    return made.reshape(whole.shape).to(TORCH_DTYPES[np.dtype(dtype)])


def _signed(word: int) -> int:
    """The int32 with the bits of a word."""
    return (word + 2**31) % 2**32 - 2**31


def _rotated(word: Tensor, distance: int) -> Tensor:
    return (word << distance) | ((word >> (32 - distance)) & ((1 << distance) - 1))


def _threefry(key: tuple[int, int], first: Tensor, second: Tensor) -> Tensor:
    """The first word of Threefry-2x32 with 20 rounds."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ PARITY)
    first, second = first + _signed(schedule[0]), second + _signed(schedule[1])
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            first = first + second
            second = _rotated(second, distance) ^ first
        first = first + _signed(schedule[(group + 1) % 3])
        second = second + _signed(schedule[(group + 2) % 3] + group + 1)
    return first


def _random_bits(shape: tuple[int, ...], site: str, seed: int, step: tuple[int, ...]) -> Tensor:
    low, high = (int(word) for word in key_of(seed, site, step))
    count = torch.arange(prod(shape), dtype=torch.int64)
    bits = _threefry((low, high), count.to(torch.int32), (count >> 32).to(torch.int32))
    return bits.view(torch.uint32).reshape(shape)


IMPLEMENTATIONS: dict[str, Function] = {
    **{
        name: _on_carriers(getattr(torch, name))
        for name in ("neg", "exp", "log", "log1p", "expm1", "tanh", "sqrt", "sin", "cos", "sinh", "cosh")
    },
    **{name: _on_carriers(getattr(torch, name)) for name in ("floor", "ceil", "round", "erf", "lgamma", "atan2")},
    **{name: _on_carriers(getattr(torch, name)) for name in ("add", "sub", "mul", "div", "eq", "ne")},
    **{name: _on_order(getattr(torch, name)) for name in ("maximum", "minimum", "lt", "le")},
    **{name: _on_carriers(getattr(torch, f"bitwise_{name}")) for name in ("not", "and", "or", "xor")},
    # Torch takes the limit from the right at the pole at 0.
    "digamma": _on_carriers(lambda x: torch.where(x == 0, torch.nan, torch.digamma(x))),
    "abs": lambda x: x if x.dtype in _UNSIGNED else restored(torch.abs(carried(x)), x.dtype),
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
    "select": torch.where,
    "cast": _cast,
    "shard": lambda x, axis, over: x,
    "dequantize": _dequantize,
    "constant": lambda value: value if isinstance(value, Tensor) else placed(np.asarray(value)),
    "iota": lambda length: torch.arange(length, dtype=torch.int32),
    "index": lambda value: torch.tensor(value, dtype=torch.bool if isinstance(value, bool) else torch.int32),
    "random_bits": _random_bits,
}
