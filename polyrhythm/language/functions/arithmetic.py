"""Arithmetic, comparison, logic, choice and casts: the functions behind the operators.

Operands are promoted as in JAX (Python scalars are weak: they take the dtype of what they meet), and their shapes
broadcast as in NumPy. What is one operation of the op table is one row: its name, the operation, and its page.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.errors import DTypeError
from polyrhythm.language.functions.support import (
    DTypeLike,
    TensorLike,
    as_dtype,
    as_tensor,
    cast_to,
    described,
    filled_like,
    promoted,
    promoted_floats,
)
from polyrhythm.language.index import Condition
from polyrhythm.language.tensor import Tensor, apply, select, union

# fmt: off
__all__ = [
    "add", "bitwise_and", "bitwise_or", "bitwise_xor", "cast", "clip", "divide", "equal", "floor_divide",
    "greater", "greater_equal", "invert", "less", "less_equal", "logical_and", "logical_not", "logical_or",
    "logical_xor", "maximum", "minimum", "multiply", "negative", "not_equal", "pow", "remainder", "subtract",
    "where",
]
# fmt: on


Function = Callable[[TensorLike, TensorLike], Tensor]


def _binary(name: str, op: str, what: str, operands: str, shown: str) -> Function:
    """An operation on two operands of one dtype."""

    def function(x: TensorLike, y: TensorLike) -> Tensor:
        pair, weak = promoted(x, y)
        return apply(op, *pair, weak=weak)

    return described(function, name, what, operands, shown)


def _comparison(name: str, op: str, what: str, operands: str, shown: str, turned: bool = False) -> Function:
    """A comparison; if `turned`, of y with x, with its dims in the order of x and y all the same."""

    def function(x: TensorLike, y: TensorLike) -> Tensor:
        pair, _ = promoted(x, y)
        return apply(op, *(pair[::-1] if turned else pair), spans=union([operand.spans for operand in pair]))

    return described(function, name, what, operands, shown)


def _logical(name: str, op: str, what: str, operands: str, shown: str) -> Function:
    """An operation on truth values; a number is true unless it is zero."""

    def function(x: TensorLike, y: TensorLike) -> Tensor:
        return apply(op, truth(x), truth(y))

    return described(function, name, f"{what[:-1]}; a number is true unless it is zero.", operands, shown)


add = _binary("add", "add", "`x + y`", "[1, 2], 0.5", "[1.5, 2.5]")
subtract = _binary("subtract", "sub", "`x - y`", "[1.0, 3.0], 1", "[0., 2.]")
multiply = _binary("multiply", "mul", "`x * y`", "[1, 3], 2", "[2, 6] int32")
floor_divide = _binary("floor_divide", "floordiv", "`x // y`, rounded down.", "[-3, 3], 2", "[-2,  1] int32")
remainder = _binary("remainder", "mod", "`x % y`, with the sign of y.", "[-3, 3], 2", "[1, 1] int32")
maximum = _binary("maximum", "maximum", "The greater of two. Of indices: `pr.max`.", "[1.0, -2.0], 0", "[1., 0.]")
minimum = _binary("minimum", "minimum", "The lesser of two. Of indices: `pr.min`.", "[1.0, -2.0], 0", "[ 0., -2.]")
bitwise_and = _binary("bitwise_and", "and", "`x & y`, of booleans or of bits.", "[6, 3], 5", "[4, 1] int32")
bitwise_or = _binary("bitwise_or", "or", "`x | y`, of booleans or of bits.", "[6, 3], 4", "[6, 7] int32")
bitwise_xor = _binary("bitwise_xor", "xor", "`x ^ y`, of booleans or of bits.", "[6, 3], 5", "[3, 6] int32")

equal = _comparison("equal", "eq", "`x == y`", "[1, 2], 2", "[False,  True] bool")
not_equal = _comparison("not_equal", "ne", "`x != y`", "[1, 2], 2", "[ True, False] bool")
less = _comparison("less", "lt", "`x < y`", "[1, 2], 2", "[ True, False] bool")
less_equal = _comparison("less_equal", "le", "`x <= y`", "[1, 3], 2", "[ True, False] bool")
greater = _comparison("greater", "lt", "`x > y`", "[1, 3], 2", "[False,  True] bool", turned=True)
greater_equal = _comparison("greater_equal", "le", "`x >= y`", "[1, 2], 2", "[False,  True] bool", turned=True)

logical_and = _logical("logical_and", "and", "Whether both are true.", "[1.0, 0.0], True", "[ True, False] bool")
logical_or = _logical("logical_or", "or", "Whether at least one is true.", "[1.0, 0.0], False", "[ True, False] bool")
logical_xor = _logical("logical_xor", "xor", "Whether exactly one is true.", "[1.0, 0.0], True", "[False,  True] bool")


def divide(x: TensorLike, y: TensorLike) -> Tensor:
    """`x / y`; integers are divided as floats.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([1, 3]) / 2)
    array([0.5, 1.5], dtype=float32)
    """
    operands, weak = promoted_floats(x, y)
    return apply("div", *operands, weak=weak)


def pow(x: TensorLike, y: TensorLike) -> Tensor:
    """`x ** y`; an integer tensor takes a Python integer `>= 0` as exponent.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([1.0, 3.0]) ** 2)
    array([1., 9.], dtype=float32)
    """
    literal = isinstance(y, (int, np.integer)) and not isinstance(y, bool)
    operands, weak = promoted(x, y)
    if operands[0].dtype.kind in "iub" and (not literal or int(y) < 0):  # type: ignore[arg-type]
        raise DTypeError(
            "an integer is raised only to a Python integer that is not negative",
            fix='make the base a float, as in pr.cast(x, "float32") ** y',
        )
    if dtypes.kind(operands[0].dtype) == "complex" and not (literal and y in (0, 1, 2)):
        return apply("exp", apply("mul", operands[1], apply("log", operands[0])))
    if literal and y in (0, 1, 2):
        # Exact, and without the 0 * 0 ** -1 in the gradient of x ** 0 at zero.
        base = operands[0]
        return filled_like(base, 1) if y == 0 else base if y == 1 else apply("mul", base, base, weak=weak)
    return apply("pow", *operands, weak=weak)


def negative(x: TensorLike) -> Tensor:
    """`-x`

    >>> import polyrhythm as pr
    >>> pr.evaluate(-pr.constant([1, -2]))
    array([-1,  2], dtype=int32)
    """
    operand = as_tensor(x)
    return apply("neg", operand, weak=operand.weak)


def invert(x: TensorLike) -> Tensor:
    """`~x` of booleans, or bit by bit of integers.

    >>> import polyrhythm as pr
    >>> pr.evaluate(~pr.constant([True, False]))
    array([False,  True])
    """
    return apply("not", as_tensor(x))


def logical_not(x: TensorLike) -> Tensor:
    """Whether x is not true; a number is true unless it is zero.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.logical_not(pr.constant([1.0, 0.0])))
    array([False,  True])
    """
    return invert(truth(x))


def where(condition: TensorLike, x: TensorLike, y: TensorLike) -> Tensor:
    """`x` where the condition holds, `y` elsewhere.

    The condition is a boolean tensor, or a condition on indices. Under the latter each branch is read only
    where it is chosen, so `pr.where(t > 0, x[t - 1], 0)` reads nothing before the first step.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.where(pr.constant([True, False]), 1.0, pr.constant([5.0, 6.0])))
    array([1., 6.], dtype=float32)
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> pr.evaluate(pr.where(t > 0, x[t - 1], 0), {"x": [1.0, 2.0, 3.0]})
    array([0., 1., 2.], dtype=float32)
    """
    (first, second), weak = promoted(x, y)
    if isinstance(condition, Condition):
        return select(condition, first, second)
    chosen = as_tensor(condition)
    if chosen.dtype != np.dtype(bool):
        raise DTypeError(
            f"the condition of pr.where must be boolean, not {chosen.dtype}",
            fix="compare it, as in pr.where(x != 0, a, b)",
        )
    return apply("select", chosen, first, second, weak=weak)


def clip(x: TensorLike, low: TensorLike | None = None, high: TensorLike | None = None) -> Tensor:
    """x, but at least `low` and at most `high`.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.clip(pr.constant([-2.0, 0.5, 2.0]), -1, 1))
    array([-1. ,  0.5,  1. ], dtype=float32)
    """
    result = as_tensor(x) if low is None else maximum(x, low)
    return result if high is None else minimum(result, high)


def cast(x: TensorLike, dtype: DTypeLike) -> Tensor:
    """x with another element type.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.cast(pr.constant([1.7, -1.7]), "int32"))
    array([ 1, -1], dtype=int32)
    """
    return cast_to(x, as_dtype(dtype))


def truth(x: TensorLike) -> Tensor:
    """Whether each element is true, that is, not zero."""
    operand = as_tensor(x)
    return operand if operand.dtype == np.dtype(bool) else not_equal(operand, 0)
