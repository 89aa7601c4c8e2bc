"""What the functions share: making tensors of what a user passes, promoting dtypes, and reading axes and shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, TypeVar

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.dtypes import FLOAT32
from polyrhythm.compiler.ir.ops.checks import show
from polyrhythm.compiler.ir.types import Array, Shape
from polyrhythm.errors import AxisError, DTypeError, OperandError, ShapeError
from polyrhythm.language.index import Condition, Index, term_of
from polyrhythm.language.tensor import Tensor, apply

TensorLike = Tensor | Index | Condition | np.ndarray | np.generic | bool | int | float | complex
"""What an operand may be: a tensor, an array, a Python scalar, an index expression or a condition on indices."""

Axis = int | Sequence[int] | None
"""The axes of a reduction: one, several, or all."""

Length = int | Index
"""An entry of a shape."""

DTypeLike = Any
"""A dtype, its name, or a NumPy scalar type."""


Described = TypeVar("Described", bound=Callable[..., Tensor])


def described(function: Described, name: str, what: str, operands: str, shown: str) -> Described:
    """A function made by a row of a table, with its name and its page: what it is, and an example that runs.

    The first operand is the constant of a list; `shown` is the result, of float32 unless another dtype follows.
    """
    listed, _, rest = operands.rpartition("]")
    values, _, dtype = shown.rpartition("] ")
    kind = "" if dtype == "bool" else f", dtype={dtype}" if values else ", dtype=float32"
    array = f"array({values + ']' if values else shown}{kind})"
    example = f">>> pr.evaluate(pr.{name}(pr.constant({listed}]){rest}))"
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{what}\n\n    >>> import polyrhythm as pr\n    {example}\n    {array}\n    "
    return function


def as_dtype(dtype: DTypeLike) -> np.dtype:
    """The NumPy dtype of a name such as "bfloat16"."""
    try:
        return dtypes.parse(dtype)
    except ValueError as problem:
        raise DTypeError(str(problem), fix='name one of them, as in "float32"') from None


def as_tensor(value: TensorLike) -> Tensor:
    """A tensor of anything a user may pass as an operand; a tensor is returned as it is.

    Python scalars are weak: they take the dtype of what they meet.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> as_tensor(t + 1).dtype, as_tensor(1.5).weak
    (dtype('int32'), True)
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Index):
        return apply("index", value=value.term)
    if isinstance(value, Condition):
        return apply("index", value=value.condition)
    number = as_number(value)
    if number is not None:
        dtype, weak = dtypes.python_scalar(number)
        return literal(number, dtype, weak)
    if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__array__"):
        array = np.asarray(value)
        return apply("constant", value=Array(array.astype(as_dtype(array.dtype))))
    raise OperandError(
        f"a tensor cannot be made of {type(value).__name__} {value!r}",
        fix="pass a tensor, a number, a NumPy array or an index expression; of a list make pr.constant([...])",
    )


def as_number(value: TensorLike) -> bool | int | float | complex | None:
    """The Python scalar that a value is, or None.

    NumPy's scalars of its own default types count as Python's, so that `x / np.sqrt(d)` keeps the dtype of x.
    """
    if isinstance(value, (np.float64, np.int64, np.complex128)):
        return value.item()
    return value if isinstance(value, (bool, int, float, complex)) else None


def literal(value: bool | int | float | complex, dtype: np.dtype, weak: bool = False) -> Tensor:
    """A scalar constant of a dtype."""
    if dtypes.kind(dtype) == "int" and not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:  # type: ignore[operator]
        raise DTypeError(f"{value} does not fit {dtype}", fix=f'give it a wider type, pr.constant({value}, "int64")')
    with np.errstate(over="ignore"):
        array = np.array(value).astype(dtype)
    return apply("constant", weak=weak, value=Array(array))


def promoted(*values: TensorLike) -> tuple[tuple[Tensor, ...], bool]:
    """The operands in the one dtype they promote to, and whether that is weak."""
    dtype, weak = _joined(values)
    return tuple(cast_to(value, dtype) for value in values), weak


def promoted_floats(*values: TensorLike) -> tuple[tuple[Tensor, ...], bool]:
    """As `promoted`, with integers and booleans as float32."""
    dtype, weak = _joined(values)
    dtype = dtype if dtypes.is_inexact(dtype) else FLOAT32
    return tuple(cast_to(value, dtype) for value in values), weak


def cast_to(value: TensorLike, dtype: np.dtype) -> Tensor:
    """An operand in a dtype. A Python scalar is made in it, so that it is rounded only once."""
    number = as_number(value)
    if number is not None:
        return literal(number, dtype)
    operand = as_tensor(value)
    return operand if operand.dtype == dtype else apply("cast", operand, dtype=dtype)


def as_float(value: TensorLike) -> Tensor:
    """An operand as floats: integers and booleans become float32."""
    operand = as_tensor(value)
    if dtypes.is_inexact(operand.dtype):
        return operand
    return apply("cast", operand, dtype=FLOAT32, weak=operand.weak)


def as_integers(value: TensorLike, what: str, dtype: np.dtype | None = None) -> Tensor:
    """An operand that must be integers, such as positions; in a dtype if one is given."""
    number = as_number(value)
    if dtype is not None and number is not None and isinstance(number, int):
        return literal(number, dtype)
    operand = as_tensor(value)
    if dtypes.kind(operand.dtype) != "int":
        raise DTypeError(f"{what} must be integers, not {operand.dtype}", fix='cast them, x.cast("int32")')
    return operand if dtype is None else cast_to(operand, dtype)


def accumulated(x: Tensor) -> Tensor:
    """x in the type that sums of it are kept in: float32 for the narrow floats."""
    return cast_to(x, dtypes.accumulator(x.dtype))


def filled_like(x: Tensor, value: bool | int | float) -> Tensor:
    """A constant in the shape and dtype of x."""
    return apply("broadcast", literal(value, x.dtype), shape=x.type.shape)


def as_terms(shape: Length | Iterable[Length]) -> Shape:
    """The terms of a shape; a single length is a shape of one axis."""
    entries = (shape,) if isinstance(shape, (int, np.integer, Index)) else tuple(shape)
    terms = tuple(map(term_of, entries))
    for term in terms:
        if term.is_constant and term.constant < 0:
            raise ShapeError(f"the shape {entries} has a negative length", fix="lengths are integers from 0 up")
    return terms


def one_axis(x: Tensor, axis: int, rank: int | None = None) -> int:
    """An axis counted from the front; negative ones count from the back."""
    count = x.rank if rank is None else rank
    if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)):
        raise AxisError(f"an axis is an integer, not {axis!r}", fix="count axes from 0, or from -1 backwards")
    if not -count <= axis < count:
        legal = f"use an axis from {-count} to {count - 1}" if count else "a scalar has no axes: leave the axis out"
        raise AxisError(f"axis {axis} of a value with {count} axes, of shape {show(x.type.shape)}", fix=legal)
    return int(axis) % count


def some_axes(x: Tensor, axis: Axis, rank: int | None = None) -> tuple[int, ...]:
    """Axes counted from the front, in ascending order; all of them for None."""
    count = x.rank if rank is None else rank
    if axis is None:
        return tuple(range(count))
    given = tuple(axis) if isinstance(axis, Iterable) else (axis,)
    axes = tuple(one_axis(x, a, rank) for a in given)
    if len(set(axes)) < len(axes):
        raise AxisError(f"the axes {given} name one axis twice", fix="name each axis once")
    return tuple(sorted(axes))


def reshaped(x: Tensor, shape: Shape) -> Tensor:
    """x in another shape of the same size; nothing is done where it is the same shape."""
    return x if x.type.shape == shape else apply("reshape", x, shape=shape, weak=x.weak)


def _joined(values: tuple[TensorLike, ...]) -> tuple[np.dtype, bool]:
    return reduce(dtypes.promote, map(_kind, values))


def _kind(value: TensorLike) -> tuple[np.dtype, bool]:
    number = as_number(value)
    if number is not None:
        return dtypes.python_scalar(number)
    operand = as_tensor(value)
    return operand.dtype, operand.weak
