"""Element types: the supported dtypes, their names, and how two of them promote.

Promotion is the join in JAX's lattice, in which a Python scalar is *weak*: it has a kind (bool, integer, float,
complex) but no width, so `x + 1.5` keeps the dtype of a float `x`. An operand is therefore a pair `(dtype, weak)`. The
join is a table computed once from the edges below; the reference is JAX's "Type promotion semantics" page. As
everywhere in this language the default integer is int32 and the default float float32.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import ml_dtypes
import numpy as np

Kind = Literal["bool", "int", "float", "complex"]
Operand = tuple[np.dtype, bool]
"""A dtype, and whether it is weak: that of a Python scalar."""

BOOL = np.dtype("bool")
INT8, INT16, INT32, INT64 = (np.dtype(f"int{bits}") for bits in (8, 16, 32, 64))
UINT8, UINT16, UINT32, UINT64 = (np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64))
FLOAT16, FLOAT32, FLOAT64 = (np.dtype(f"float{bits}") for bits in (16, 32, 64))
BFLOAT16: np.dtype = np.dtype(ml_dtypes.bfloat16)
COMPLEX64, COMPLEX128 = np.dtype("complex64"), np.dtype("complex128")

_SHORT_NAMES: dict[np.dtype, str] = {
    BOOL: "bool",
    **{d: f"i{d.itemsize * 8}" for d in (INT8, INT16, INT32, INT64)},
    **{d: f"u{d.itemsize * 8}" for d in (UINT8, UINT16, UINT32, UINT64)},
    FLOAT16: "f16",
    BFLOAT16: "bf16",
    FLOAT32: "f32",
    FLOAT64: "f64",
    COMPLEX64: "c64",
    COMPLEX128: "c128",
}

DTYPES: tuple[np.dtype, ...] = tuple(_SHORT_NAMES)
"""Every supported dtype."""

_BY_NAME: dict[str, np.dtype] = {
    **{short: dtype for dtype, short in _SHORT_NAMES.items()},
    **{dtype.name: dtype for dtype in DTYPES},
}

_PYTHON_SCALARS: dict[type, np.dtype] = {bool: BOOL, int: INT32, float: FLOAT32, complex: COMPLEX64}


def parse(name: Any) -> np.dtype:
    """The dtype a user means: a short or long name, a NumPy (or JAX) scalar type or dtype, or bool, int, float.

    Raises ValueError for what is no supported dtype.

    >>> parse("bf16"), parse(np.int8), parse(float)
    (dtype(bfloat16), dtype('int8'), dtype('float32'))
    """
    if isinstance(name, str) and name in _BY_NAME:
        return _BY_NAME[name]
    if isinstance(name, type) and name in _PYTHON_SCALARS:
        return _PYTHON_SCALARS[name]
    # np.dtype(None) is float64 and np.dtype("f4") a name we do not document: neither is taken.
    if not isinstance(name, str) and name is not None:
        try:
            dtype = np.dtype(name)
        except TypeError:
            dtype = None
        if dtype in _SHORT_NAMES:
            return _BY_NAME[dtype.name]
    raise ValueError(f"{name!r} is not a supported dtype; supported are {', '.join(_SHORT_NAMES.values())}")


def short(dtype: np.dtype) -> str:
    """The short name of a dtype, as printed.

    >>> [short(parse(name)) for name in ("float32", "uint8", "bool")]
    ['f32', 'u8', 'bool']
    """
    return _SHORT_NAMES[dtype]


def kind(dtype: np.dtype) -> Kind:
    """Whether elements are truth values, integers, floats or complex.

    >>> kind(BFLOAT16), kind(UINT8)
    ('float', 'int')
    """
    if dtype == BOOL:
        return "bool"
    if dtype.kind == "c":
        return "complex"
    return "int" if dtype.kind in "iu" else "float"


def is_float(dtype: np.dtype) -> bool:
    """Whether elements are floats (NumPy itself does not count bfloat16 among them)."""
    return kind(dtype) == "float"


def is_inexact(dtype: np.dtype) -> bool:
    """Whether elements are floats or complex: what has gradients, and may be NaN."""
    return kind(dtype) in ("float", "complex")


def is_wide(dtype: np.dtype) -> bool:
    """Whether an element, or a part of it, has 64 bits."""
    return dtype.itemsize == (16 if dtype.kind == "c" else 8)


def part(dtype: np.dtype) -> np.dtype:
    """The dtype of the real and the imaginary part of complex elements.

    >>> part(COMPLEX64), part(COMPLEX128)
    (dtype('float32'), dtype('float64'))
    """
    return FLOAT64 if dtype == COMPLEX128 else FLOAT32


def accumulator(dtype: np.dtype) -> np.dtype:
    """The dtype in which many elements are summed or multiplied: float32 for the 16-bit floats.

    >>> accumulator(BFLOAT16), accumulator(INT8)
    (dtype('float32'), dtype('int8'))
    """
    return FLOAT32 if dtype in (FLOAT16, BFLOAT16) else dtype


def identity(monoid: str, dtype: np.dtype) -> np.ndarray:
    """The neutral element of a monoid, as a scalar array: what a reduction over an empty axis gives.

    >>> identity("max", FLOAT32), identity("min", UINT8), identity("max", BOOL)
    (array(-inf, dtype=float32), array(255, dtype=uint8), array(False))
    """
    if monoid in ("sum", "prod"):
        return np.array(monoid == "prod", dtype)
    if monoid in ("any", "all"):
        return np.array(monoid == "all", BOOL)
    if monoid not in ("max", "min"):
        raise ValueError(f"{monoid!r} is not a monoid")
    largest = monoid == "min"
    if dtype == BOOL:
        return np.array(largest)
    if is_float(dtype):
        return np.array(np.inf if largest else -np.inf, dtype)
    limits = np.iinfo(dtype)
    return np.array(limits.max if largest else limits.min, dtype)


def python_scalar(value: bool | int | float | complex) -> Operand:
    """How a Python scalar takes part in promotion; a bool is the bottom of the lattice and needs no weakness.

    >>> python_scalar(2), python_scalar(True)
    ((dtype('int32'), True), (dtype('bool'), False))
    """
    dtype = _PYTHON_SCALARS[type(value)]
    return dtype, dtype != BOOL


def promote(a: Operand, b: Operand) -> Operand:
    """The dtype two operands are brought to before they meet, and whether it is still weak.

    >>> promote((BFLOAT16, False), python_scalar(1.5)), promote((INT32, False), (FLOAT16, False))
    ((dtype(bfloat16), False), (dtype('float16'), False))
    """
    return _operand(_join(_node(a), _node(b)))


# The lattice: each node with those immediately above it. "int", "float" and "complex" are the weak Python scalars.
_ABOVE: dict[str, tuple[str, ...]] = {
    "bool": ("int",),
    "int": ("u8", "i8"),
    "u8": ("u16", "i16"),
    "u16": ("u32", "i32"),
    "u32": ("u64", "i64"),
    "u64": ("float",),
    "i8": ("i16",),
    "i16": ("i32",),
    "i32": ("i64",),
    "i64": ("float",),
    "float": ("bf16", "f16", "complex"),
    "bf16": ("f32",),
    "f16": ("f32",),
    "f32": ("f64", "c64"),
    "f64": ("c128",),
    "complex": ("c64",),
    "c64": ("c128",),
    "c128": (),
}


def _node(operand: Operand) -> str:
    dtype, weak = operand
    return kind(dtype) if weak else short(dtype)


def _operand(node: str) -> Operand:
    if node == "int":
        return INT32, True
    if node == "complex":
        return COMPLEX64, True
    return (FLOAT32, True) if node == "float" else (_BY_NAME[node], False)


@cache
def _at_or_above(node: str) -> frozenset[str]:
    return frozenset({node}).union(*(_at_or_above(upper) for upper in _ABOVE[node]))


@cache
def _join(a: str, b: str) -> str:
    """The least node above both: the one below which no other common upper bound lies."""
    common = _at_or_above(a) & _at_or_above(b)
    return next(node for node in common if _at_or_above(node) == common)
