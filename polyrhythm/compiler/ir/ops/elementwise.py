"""Elementwise operations: functions of one element, of two, `select`, and `cast`.

Operands of one operation have one dtype (the language promotes them) and broadcast as in NumPy. The 16-bit floats
are computed in float32 and rounded once. Where NumPy leaves the value to the platform or raises, it is fixed
here, so that every backend can agree:

- integer division by zero: `x // 0 == 0` and `x % 0 == 0`;
- integer powers with a negative exponent: the real value cut off towards zero, and `0 ** -n == 0`;
- float to integer casts cut off towards zero and saturate; NaN becomes 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import Condition
from polyrhythm.compiler.ir.ops.checks import (
    broadcast_shapes,
    broadcast_signature,
    check_kind,
    check_same_dtype,
)
from polyrhythm.compiler.ir.ops.record import Attributes, Gradients, Op, Signature, Vjp, flat, through
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.errors import DTypeError

if TYPE_CHECKING:
    from polyrhythm.compiler.ir.values import Step, Value

Function = Callable[..., Any]
Types = tuple[TensorType, ...]

FLOATS: tuple[dtypes.Kind, ...] = ("float",)
INEXACT: tuple[dtypes.Kind, ...] = ("complex", "float")
NUMBERS: tuple[dtypes.Kind, ...] = ("int", "float")
FIELDS: tuple[dtypes.Kind, ...] = ("complex", "int", "float")
BITS: tuple[dtypes.Kind, ...] = ("bool", "int")
ANY: tuple[dtypes.Kind, ...] = ("bool", "int", "float")
ALL: tuple[dtypes.Kind, ...] = ("complex", *ANY)


def _signature(operands: Types, attributes: Attributes) -> Signature:
    return broadcast_signature(operands)


def _quiet(function: Function) -> Callable[..., np.ndarray]:
    """The function on arrays: 16-bit floats widened and rounded back, no warnings, always an array."""

    @wraps(function)
    def compute(*arrays: np.ndarray) -> np.ndarray:
        given = arrays[-1].dtype
        wide = dtypes.accumulator(given)
        with np.errstate(all="ignore"):
            result = np.asarray(function(*(a.astype(wide, copy=False) if a.dtype == given else a for a in arrays)))
            return result if result.dtype == dtypes.BOOL else result.astype(given, copy=False)

    return compute


def _operation(
    name: str,
    function: Function,
    kinds: Sequence[dtypes.Kind],
    truth: bool = False,
    fix: str | None = None,
    linear: bool = False,
) -> Op:
    """The record of an operation on operands of one dtype; `truth` says that the result is bool."""

    def type_rule(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
        dtype = check_same_dtype(name, *operands)
        check_kind(name, operands[0], kinds, fix)
        shape = broadcast_shapes(name, [operand.shape for operand in operands], given)
        return TensorType(shape, dtypes.BOOL if truth else dtype)

    return Op(
        name,
        type_rule,
        _quiet(function),
        _signature,
        DERIVATIVES.get(name),
        sited=name == "keep",
        elementwise=True,
        identity=function is np.asarray,
        linear=linear,
    )


def _erf(x: np.ndarray) -> np.ndarray:
    values = map(math.erf, x.astype(np.float64).ravel().tolist())
    return np.fromiter(values, np.float64, x.size).reshape(x.shape)


def _lgamma(x: np.ndarray) -> np.ndarray:
    def one(value: float) -> float:
        if value <= 0 and (math.isinf(value) or value == math.floor(value)):  # a pole
            return math.inf
        try:
            return math.lgamma(value)
        except OverflowError:
            return math.inf

    return np.fromiter(map(one, x.astype(np.float64).ravel().tolist()), np.float64, x.size).reshape(x.shape)


def _digamma(x: np.ndarray) -> np.ndarray:
    """Shifted up by its recurrence to where the asymptotic series holds; negative arguments are reflected."""
    wide = x.astype(np.float64)
    y = np.where(wide < 0.5, 1 - wide, wide)
    shift = np.zeros_like(y)
    for _ in range(12):
        shift = shift + np.where(y < 12, 1 / y, 0)
        y = np.where(y < 12, y + 1, y)
    square = 1 / (y * y)
    last = 1 / 132 - square * (691 / 32760)
    series = 1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square * last)))
    found = np.log(y) - 0.5 / y - square * series - shift
    reflected = found - np.pi / np.tan(np.pi * wide)
    poles = (wide <= 0) & (wide == np.floor(wide))
    return np.where(poles, np.nan, np.where(wide < 0.5, reflected, found))


def _pow(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind != "i":
        return np.asarray(np.power(x, y))
    power = np.power(x, np.maximum(y, 0))
    # 1 / x**n for a whole number x: only those of 1 and -1 do not vanish when cut off.
    one = x.dtype.type(1)
    of_minus_one = np.where(np.bitwise_and(y, one) == 1, -one, one)
    reciprocal = np.where(x == 1, one, np.where(x == -1, of_minus_one, x.dtype.type(0)))
    return np.asarray(np.where(y < 0, reciprocal, power))


def _unary(derivative: Callable[[Step], Value]) -> Vjp:
    return lambda s: [derivative(s)]


def _binary(left: Callable[[Step], Value], right: Callable[[Step], Value]) -> Vjp:
    """Two operands that broadcast against each other."""

    def rule(s: Step) -> Gradients:
        return [
            made(s).summed_to(operand.shape) if wanted else None
            for made, operand, wanted in zip((left, right), s.x, s.wanted, strict=True)
        ]

    return rule


def _pow_exponent(s: Step) -> Value:
    base = s.x[0]
    positive = base.space.apply("lt", base.zeros(), base)
    safe = base.where(positive, 1)
    return (s.g * s.y * safe.apply("log")).where(positive)


def _squares(s: Step) -> Value:
    """The squared distance from the origin; 1 there, where the angle has no derivative."""
    total = s.x[0] * s.x[0] + s.x[1] * s.x[1]
    return total.where(total.apply("ne", total.zeros()), 1)


def _greater(s: Step, own: int, other: int) -> Value:
    """The greater operand takes the gradient; equal ones share it."""
    return _winner(s, s.x[other].apply("lt", s.x[own]))


def _lesser(s: Step, own: int, other: int) -> Value:
    """The lesser operand takes the gradient; equal ones share it."""
    return _winner(s, s.x[own].apply("lt", s.x[other]))


def _winner(s: Step, wins: Value) -> Value:
    return s.g.where(wins) + (s.g * 0.5).where(s.x[0].apply("eq", s.x[1]))


def _trigamma(x: Value) -> Value:
    """The derivative of digamma, made as `_digamma` is, so that it can be differentiated in turn."""
    reflects = x.apply("lt", x.space.constant(0.5, x.dtype))
    y = (1 - x).where(reflects, x)
    total = None
    for _ in range(8):
        part = 1 / (y * y)
        total = part if total is None else total + part
        y = y + 1
    assert total is not None
    square = 1 / (y * y)
    series = square * (1 / 30 - square * (1 / 42 - square * (1 / 30 - square * (5 / 66))))
    total = total + 1 / y + 0.5 * square + square * (1 / 6 - series) / y
    sine = (x.where(reflects, 0.5) * math.pi).apply("sin")
    return (math.pi**2 / (sine * sine) - total).where(reflects, total)


DERIVATIVES: dict[str, Vjp] = {
    "neg": _unary(lambda s: -s.g),
    "exp": _unary(lambda s: s.g * s.y),
    "log": _unary(lambda s: s.g / s.x[0]),
    "log1p": _unary(lambda s: s.g / (s.x[0] + 1)),
    "expm1": _unary(lambda s: s.g * (s.y + 1)),
    "tanh": _unary(lambda s: s.g * (1 - s.y * s.y)),
    "sqrt": _unary(lambda s: s.g * 0.5 / s.y),
    "sin": _unary(lambda s: s.g * s.x[0].apply("cos")),
    "cos": _unary(lambda s: -(s.g * s.x[0].apply("sin"))),
    "sinh": _unary(lambda s: s.g * s.x[0].apply("cosh")),
    "cosh": _unary(lambda s: s.g * s.x[0].apply("sinh")),
    "lgamma": _unary(lambda s: s.g * s.x[0].apply("digamma")),
    "digamma": _unary(lambda s: s.g * _trigamma(s.x[0])),
    "abs": _unary(lambda s: s.g * s.x[0].apply("sign")),
    "erf": _unary(lambda s: s.g * (-(s.x[0] * s.x[0])).apply("exp") * (2 / math.sqrt(math.pi))),
    "sign": flat,
    "floor": flat,
    "ceil": flat,
    "round": flat,
    "isfinite": flat,
    "add": _binary(lambda s: s.g, lambda s: s.g),
    "sub": _binary(lambda s: s.g, lambda s: -s.g),
    "mul": _binary(lambda s: s.g * s.x[1], lambda s: s.g * s.x[0]),
    "div": _binary(lambda s: s.g / s.x[1], lambda s: -(s.g * s.y / s.x[1])),
    "floordiv": flat,
    "mod": _binary(lambda s: s.g, lambda s: -(s.g * s.x[0].apply("floordiv", s.x[1]))),
    "pow": _binary(lambda s: s.g * s.x[1] * s.x[0].apply("pow", s.x[1] - 1), _pow_exponent),
    "atan2": _binary(lambda s: s.g * s.x[1] / _squares(s), lambda s: -(s.g * s.x[0] / _squares(s))),
    "maximum": _binary(lambda s: _greater(s, 0, 1), lambda s: _greater(s, 1, 0)),
    "minimum": _binary(lambda s: _lesser(s, 0, 1), lambda s: _lesser(s, 1, 0)),
    **dict.fromkeys(("eq", "ne", "lt", "le", "detach"), flat),
    "keep": through,
}

_NO_BOOL = "use & | ^ for truth values, or cast them to a number first"
_ROUNDING = "an integer is whole already; leave the rounding out, or cast to a float dtype first"

UNARY: tuple[Op, ...] = (
    _operation("neg", np.negative, FIELDS, fix="use ~ for truth values, or cast them to a number first", linear=True),
    *(_operation(n, getattr(np, n), INEXACT) for n in ("exp", "log", "tanh", "sqrt", "sin", "cos", "sinh", "cosh")),
    *(_operation(n, getattr(np, n), FLOATS) for n in ("log1p", "expm1")),
    _operation("lgamma", _lgamma, FLOATS),
    _operation("digamma", _digamma, FLOATS),
    _operation("abs", np.abs, NUMBERS),
    _operation("sign", np.sign, NUMBERS),
    _operation("floor", np.floor, FLOATS, fix=_ROUNDING),
    _operation("ceil", np.ceil, FLOATS, fix=_ROUNDING),
    _operation("round", np.rint, FLOATS, fix=_ROUNDING),
    _operation("erf", _erf, FLOATS),
    _operation("not", np.invert, BITS, fix="compare with 0 first"),
    _operation("isfinite", np.isfinite, ALL, truth=True),
    _operation("detach", np.asarray, ALL),
    _operation("keep", np.asarray, ALL),  # the same value, which no pass sees through
)

BINARY: tuple[Op, ...] = (
    _operation("add", np.add, FIELDS, fix=_NO_BOOL, linear=True),
    _operation("sub", np.subtract, FIELDS, fix=_NO_BOOL, linear=True),
    _operation("mul", np.multiply, FIELDS, fix=_NO_BOOL, linear=True),
    _operation("div", np.divide, INEXACT, fix="cast to a float dtype first, or use // for whole numbers"),
    _operation("floordiv", np.floor_divide, NUMBERS),
    _operation("mod", np.remainder, NUMBERS),
    _operation("pow", _pow, NUMBERS),
    _operation("atan2", np.arctan2, FLOATS),
    _operation("maximum", np.maximum, ANY),
    _operation("minimum", np.minimum, ANY),
    _operation("eq", np.equal, ALL, truth=True),
    _operation("ne", np.not_equal, ALL, truth=True),
    _operation("lt", np.less, ANY, truth=True),
    _operation("le", np.less_equal, ANY, truth=True),
    *(_operation(n, getattr(np, f"bitwise_{n}"), BITS, fix="compare with 0 first") for n in ("and", "or", "xor")),
)


def _select_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    condition, a, b = operands
    if condition.dtype != dtypes.BOOL:
        raise DTypeError(
            f"select: the condition must be bool, got {condition.dtype}",
            fix="compare with something, as in `x != 0`",
        )
    dtype = check_same_dtype("select", a, b)
    return TensorType(broadcast_shapes("select", [o.shape for o in operands], given), dtype)


def _select_vjp(s: Step) -> Gradients:
    condition, first, second = s.x
    return [
        None,
        s.g.where(condition).summed_to(first.shape) if s.wanted[1] else None,
        s.g.zeros().where(condition, s.g).summed_to(second.shape) if s.wanted[2] else None,
    ]


SELECT = Op("select", _select_type, np.where, _signature, _select_vjp, elementwise=True)


def _cast_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    dtype = attributes["dtype"]
    if dtype not in dtypes.DTYPES:
        supported = ", ".join(map(str, dtypes.DTYPES))
        raise DTypeError(f"cast: {dtype} is not supported", fix=f"choose one of {supported}")
    if dtypes.kind(operands[0].dtype) == "complex" and dtypes.kind(dtype) != "complex":
        raise DTypeError(
            f"cast: {operands[0].dtype} cannot become {dtype} without losing a part",
            fix="take a part first: pr.real, pr.imag or pr.abs",
        )
    return TensorType(operands[0].shape, dtype)


def _cast(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(all="ignore"):
        if not (dtypes.is_float(x.dtype) and dtypes.kind(dtype) == "int"):
            return x.astype(dtype)
        wide = np.trunc(x.astype(np.float64))
        # The float just above the maximum is a power of two, hence exact, even where the maximum is not.
        low, above = float(np.iinfo(dtype).min), float(np.iinfo(dtype).max) + (dtype.itemsize < 8)
        inside = (wide >= low) & (wide < above)
        whole = np.where(inside, wide, 0.0).astype(dtype)
        whole = np.where(wide < low, dtypes.identity("max", dtype), whole)
        return np.where(wide >= above, dtypes.identity("min", dtype), whole)


def _cast_vjp(s: Step) -> Gradients:
    loses = dtypes.kind(s.g.dtype) == "complex" and dtypes.kind(s.x[0].dtype) != "complex"
    return [(s.g.apply("real") if loses else s.g).cast(s.x[0].dtype)]


CAST = Op("cast", _cast_type, _cast, _signature, _cast_vjp, elementwise=True, identity=True, linear=True)


def _shard_type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    return operands[0]


def _shard(x: np.ndarray, axis: int, over: tuple[str, ...]) -> np.ndarray:
    return x


def _shard_vjp(s: Step) -> Gradients:
    return [s.g.apply("shard", **s.definition.attributes)]


# The same value, with an axis, counted from the last, over axes of a mesh: passes may add axes before the others.
SHARD = Op("shard", _shard_type, _shard, _signature, _shard_vjp, elementwise=True)

OPS: tuple[Op, ...] = (*UNARY, *BINARY, SELECT, CAST, SHARD)
