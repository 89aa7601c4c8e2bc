"""The operations of the brute force, in plain NumPy: integers wrap, floats are float64 with an error scale.

A float carries, beside its value, the *scale* of its rounding error: a first-order bound on how far a float32
evaluation may be off, in units of float32's precision. It is the sum of the magnitudes that went into a value,
pushed through derivatives, so that cancellation and steep functions do not count as mistakes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
ORDER = ("bool", "int", "int8", "int16", "int32", "int64", "float", "float32")


class Invalid(Exception):
    """The program means nothing at these bounds: why, where (tensor and point), and in which error's words."""

    def __init__(self, kind: str, place: str, point: tuple[int, ...] = ()) -> None:
        super().__init__(f"{kind} at {place}{list(point)}")
        self.kind, self.place, self.point = kind, place, point


@dataclass(frozen=True)
class Val:
    """A value at a point: exact int64 for integers and booleans, float64 with its error scale for floats."""

    v: np.ndarray
    dtype: str
    e: np.ndarray | None = None

    @property
    def scale(self) -> np.ndarray:
        return np.zeros(self.v.shape) if self.e is None else self.e


def exact(v: Any, dtype: str) -> Val:
    """A boolean or integer value, wrapped to its dtype."""
    array = np.asarray(v)
    if dtype == "bool":
        return Val(array.astype(bool), dtype)
    array = array.astype(np.int64)
    bits = BITS.get(dtype, 32)
    if bits < 64:
        half = np.int64(1) << np.int64(bits - 1)
        with np.errstate(over="ignore"):
            array = ((array + half) & ((half << np.int64(1)) - np.int64(1))) - half
    return Val(array, dtype)


def real(v: Any, e: Any, dtype: str = "float32") -> Val:
    """A float with the error scale of its operands; its own rounding is added."""
    value = np.asarray(v, np.float64)
    with np.errstate(all="ignore"):
        scale = np.broadcast_to(np.asarray(e, np.float64), value.shape) + np.where(np.isfinite(value), np.abs(value), 0)
    return Val(value, dtype, scale)


def promote(*dtypes: str) -> str:
    """The least dtype above all; the weak "int" and "float" are Python scalars."""
    return max(dtypes, key=ORDER.index)


def cast(x: Val, dtype: str) -> Val:
    if dtype in ("float", "float32"):
        return Val(x.v, dtype, x.e) if x.e is not None else real(x.v, 0.0, dtype)
    if dtype == "bool":
        return Val(x.v != 0, dtype)
    return exact(x.v, dtype)


def strong(x: Val) -> Val:
    """A weak value as what it becomes on its own."""
    return cast(x, {"int": "int32", "float": "float32"}.get(x.dtype, x.dtype))


def _aligned(*values: Val) -> tuple[str, list[Val]]:
    dtype = promote(*(x.dtype for x in values))
    return dtype, [cast(x, dtype) for x in values]


def _is_float(dtype: str) -> bool:
    return dtype.startswith("float")


def _binary(op: str, x: Val, y: Val) -> Val:
    dtype, (a, b) = _aligned(x, y)
    if op in ("<", "<=", ">", ">=", "==", "!="):
        compare = {
            "<": np.less,
            "<=": np.less_equal,
            ">": np.greater,
            ">=": np.greater_equal,
            "==": np.equal,
            "!=": np.not_equal,
        }
        return Val(compare[op](a.v, b.v), "bool")
    if op in ("&", "|", "^"):
        return exact({"&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor}[op](a.v, b.v), dtype)
    if op == "/":
        a, b = cast(a, "float32"), cast(b, "float32")
        return real(a.v / b.v, a.scale / np.abs(b.v) + np.abs(a.v) * b.scale / b.v**2)
    functions = {
        "+": np.add,
        "-": np.subtract,
        "*": np.multiply,
        "//": np.floor_divide,
        "%": np.mod,
        "minimum": np.minimum,
        "maximum": np.maximum,
    }
    value = functions[op](a.v, b.v)
    if not _is_float(dtype):
        return exact(value, dtype)
    if op == "*":
        return real(value, np.abs(a.v) * b.scale + np.abs(b.v) * a.scale, dtype)
    if op in ("minimum", "maximum"):
        return real(value, np.maximum(*np.broadcast_arrays(a.scale, b.scale)), dtype)
    return real(value, a.scale + b.scale, dtype)


def _sigmoid(v: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-v))


DERIVATIVES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "tanh": (np.tanh, lambda v: 1 - np.tanh(v) ** 2),
    "sin": (np.sin, lambda v: np.ones_like(v)),
    "cos": (np.cos, lambda v: np.ones_like(v)),
    "exp": (np.exp, np.exp),
    "sigmoid": (_sigmoid, lambda v: _sigmoid(v) * (1 - _sigmoid(v))),
    "relu": (lambda v: np.maximum(v, 0), lambda v: np.ones_like(v)),
    "square": (np.square, lambda v: 2 * np.abs(v)),
    "atan": (np.arctan, lambda v: 1 / (1 + v * v)),
    "softsign": (lambda v: v / (1 + np.abs(v)), lambda v: 1 / (1 + np.abs(v)) ** 2),
    "elu": (lambda v: np.where(v > 0, v, np.expm1(np.minimum(v, 0))), lambda v: np.ones_like(v)),
    "mish": (lambda v: v * np.tanh(np.logaddexp(0, v)), lambda v: 2 * np.ones_like(v)),
    "log_sigmoid": (lambda v: -np.logaddexp(0, -v), lambda v: 1 + np.abs(v)),
    "lgamma": (np.vectorize(math.lgamma, otypes=[float]), lambda v: 3 * np.ones_like(v)),
}


def _unary(op: str, x: Val) -> Val:
    if op in ("neg", "abs"):
        value = -x.v if op == "neg" else np.abs(x.v)
        return Val(value, x.dtype, x.e) if x.e is not None else exact(value, x.dtype)
    if op == "invert":
        return exact(~x.v, x.dtype)
    if op == "sign":
        return exact(np.sign(x.v), x.dtype)
    if op in ("relu", "square") and x.e is None:
        return exact(np.maximum(x.v, 0) if op == "relu" else x.v * x.v, x.dtype)
    a = cast(x, "float32") if x.dtype != "float" else x
    function, derivative = DERIVATIVES[op]
    slope = np.abs(derivative(a.v))
    with np.errstate(invalid="ignore"):
        # At an infinity that a function maps to a number, `tanh(-inf)`, no error passes.
        spread = np.where(np.isinf(a.v) & (slope == 0), 0.0, slope * a.scale)
    return real(function(a.v), spread, a.dtype)


def limits(dtype: str, largest: bool) -> float | int | bool:
    """The identity of min (largest) or of max."""
    if _is_float(dtype):
        return np.inf if largest else -np.inf
    if dtype == "bool":
        return largest
    bits = BITS[dtype]
    return 2 ** (bits - 1) - 1 if largest else -(2 ** (bits - 1))


def _reduce(op: str, x: Val, axis: int | None) -> Val:
    """One axis at a time, element by element in order."""
    if axis is None:
        x, axis = Val(x.v.reshape(-1), x.dtype, None if x.e is None else x.e.reshape(-1)), 0
    n = x.v.shape[axis]
    if op in ("any", "all"):
        truth = x.v != 0
        return Val(truth.any(axis) if op == "any" else truth.all(axis), "bool")
    if op in ("argmax", "argmin"):
        if n == 0:
            raise Invalid("empty", op)
        return exact((np.argmax if op == "argmax" else np.argmin)(x.v, axis), "int32")
    if x.dtype == "bool" and op in ("sum", "prod"):
        x = cast(x, "int32")
    rows, scales = np.moveaxis(x.v, axis, 0), np.moveaxis(x.scale, axis, 0)
    if op in ("max", "min"):
        value = np.full(rows.shape[1:], limits(x.dtype, op == "min"), rows.dtype)
        for row in rows:
            value = (np.maximum if op == "max" else np.minimum)(value, row)
        return real(value, scales.max(0, initial=0)) if x.e is not None else exact(value, x.dtype)
    if op == "mean":
        with np.errstate(all="ignore"):
            return real(rows.sum(0) / n, scales.sum(0) / n) if n else real(rows.sum(0) / np.float64(0), 0.0)
    if op == "sum":
        total = rows.sum(0)
        return real(total, scales.sum(0) + np.abs(rows).sum(0)) if x.e is not None else exact(total, x.dtype)
    assert op == "prod", op
    product = Val(np.ones(rows.shape[1:], rows.dtype), x.dtype, None if x.e is None else np.zeros(rows.shape[1:]))
    for row, scale in zip(rows, scales, strict=True):
        product = _binary("*", product, Val(row, x.dtype, None if x.e is None else scale))
    return product


def _cumulative(op: str, x: Val, axis: int) -> Val:
    if op == "cummax":
        value = np.maximum.accumulate(x.v, axis)
        return real(value, np.maximum.accumulate(x.scale, axis)) if x.e is not None else exact(value, x.dtype)
    if op == "cumsum":
        value = np.cumsum(x.v, axis)
        return real(value, np.cumsum(x.scale + np.abs(x.v), axis)) if x.e is not None else exact(value, x.dtype)
    return exact(np.cumprod(x.v, axis), x.dtype)


def _softmax(op: str, x: Val, axis: int) -> Val:
    if op == "logsumexp" and x.v.shape[axis] == 0:
        return real(np.full(np.delete(x.v.shape, axis), -np.inf), 0.0)
    peak = x.v.max(axis, keepdims=True) if x.v.shape[axis] else 0.0
    weights = np.exp(x.v - peak)
    total = weights.sum(axis, keepdims=True)
    share = weights / total
    spread = (share * (x.scale + np.abs(x.v))).sum(axis, keepdims=True)
    if op == "logsumexp":
        return real(np.squeeze(np.log(total) + peak, axis), np.squeeze(spread, axis))
    return real(share, share * (x.scale + np.abs(x.v) + spread))


def _einsum(spec: str, x: Val, y: Val) -> Val:
    dtype, (a, b) = _aligned(x, y)
    value = np.einsum(spec, a.v, b.v)
    if not _is_float(dtype):
        return exact(value, dtype)
    return real(
        value, np.einsum(spec, np.abs(a.v) + a.scale, np.abs(b.v)) + np.einsum(spec, np.abs(a.v), b.scale), dtype
    )


def moved(x: Val, function: Callable[[np.ndarray], np.ndarray]) -> Val:
    """Something that only rearranges elements."""
    return Val(function(x.v), x.dtype, None if x.e is None else function(x.scale))


def _joined(values: tuple[Val, ...], function: Callable[[list[np.ndarray]], np.ndarray]) -> Val:
    dtype, aligned = _aligned(*values)
    scales = None if not _is_float(dtype) else function([x.scale for x in aligned])
    return Val(function([x.v for x in aligned]), dtype, scales)


def _where(condition: Val, x: Val, y: Val) -> Val:
    dtype, (a, b) = _aligned(x, y)
    scales = None if not _is_float(dtype) else np.where(condition.v, a.scale, b.scale)
    return Val(np.where(condition.v, a.v, b.v), dtype, scales)


def _take(x: Val, places: Val, axis: int) -> Val:
    if x.v.shape[axis] == 0 and places.v.size:
        raise Invalid("empty", "take")
    return moved(x, lambda a: np.take(a, np.clip(places.v, 0, x.v.shape[axis] - 1), axis))


def _clip(x: Val, low: float, high: float) -> Val:
    return Val(np.clip(x.v, low, high), x.dtype, x.e)


def apply(op: str, args: tuple[Val, ...], options: tuple[Any, ...]) -> Val:
    """The value of one operation. Options have been evaluated: lengths are plain integers."""
    with np.errstate(all="ignore"):
        x = args[0]
        if len(args) == 2 and op in (
            "+",
            "-",
            "*",
            "/",
            "//",
            "%",
            "&",
            "|",
            "^",
            "<",
            "<=",
            ">",
            ">=",
            "==",
            "!=",
            "minimum",
            "maximum",
        ):
            return _binary(op, x, args[1])
        if op in DERIVATIVES or op in ("neg", "abs", "invert", "sign"):
            return _unary(op, x)
        if op in ("sum", "prod", "max", "min", "mean", "any", "all", "argmax", "argmin"):
            return _reduce(op, strong(x), *options)
        if op in ("cumsum", "cumprod", "cummax"):
            return _cumulative(op, x, *options)
        if op in ("softmax", "logsumexp"):
            return _softmax(op, x, *options)
        if op == "einsum":
            return _einsum(options[0], *args)
        if op == "@":
            return _matmul(*args)
        if op == "concat":
            return _joined(args, lambda arrays: np.concatenate(arrays, options[0]))
        if op == "stack":
            return _joined(args, lambda arrays: np.stack(arrays, options[0]))
        if op == "spectrum":
            total = x.scale.sum(0, keepdims=True) + np.abs(x.v).sum(0, keepdims=True)
            return real(np.abs(np.fft.fft(x.v, axis=0)) if len(x.v) else x.v, np.broadcast_to(total, x.v.shape))
        if op == "put":
            return _put(x, *options)
        if op == "ridge":
            return _ridge(x)
        simple: dict[str, Callable[..., Val]] = {"where": _where, "take": _take, "clip": _clip, "cast": cast}
        if op in simple:
            return simple[op](*args, *options)
        if op == "one_hot":
            return exact(x.v[..., None] == np.arange(options[0]), options[1])
        if op == "pad":
            return moved(x, lambda a: np.pad(a, options[0]))
        if op == "sort":
            return moved(x, lambda a: np.sort(a, options[0]))
        rearranged: dict[str, Callable[[np.ndarray], np.ndarray]] = {
            "flip": lambda a: np.flip(a, options[0]),
            "reshape": lambda a: a.reshape(options[0]),
            "transpose": lambda a: a.transpose(options[0]),
        }
        return moved(x, rearranged[op])


def _put(x: Val, mode: str, places: tuple[int, ...], number: float) -> Val:
    """`x.at[places].set(number)` and the like, one place after the other; what lies outside is not written."""
    value, scale = x.v.copy(), None if x.e is None else x.e.copy()
    for place in places:
        if 0 <= place < len(value):
            combine = {"set": lambda _: number, "add": lambda v: v + number, "max": lambda v: np.maximum(v, number)}
            value[place] = combine[mode](value[place])
    return exact(value, x.dtype) if x.e is None else Val(value, x.dtype, scale)


def _ridge(x: Val) -> Val:
    """`solve(x.T @ x + 1, 1)`, whose inverse is at most 1: errors of the matrix come through as they are."""
    matrix = x.v.T @ x.v + np.eye(x.v.shape[1])
    error = (np.abs(x.v) * x.scale).sum() * 4 + 4 * np.abs(matrix).sum()
    return real(np.linalg.solve(matrix, np.ones(len(matrix))), np.full(len(matrix), error))


def _matmul(x: Val, y: Val) -> Val:
    letters = {(1, 1): "j,j->", (2, 1): "ij,j->i", (1, 2): "j,jk->k", (2, 2): "ij,jk->ik"}
    return _einsum(letters[x.v.ndim, y.v.ndim], x, y)
