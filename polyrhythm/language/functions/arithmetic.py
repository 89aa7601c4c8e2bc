"""Arithmetic, comparison, logic, choice and casts: the functions behind the operators.

Operands are promoted as in JAX (Python scalars are weak: they take the dtype of what they meet), and their shapes
broadcast as in NumPy.
"""

from __future__ import annotations

import numpy as np

from polyrhythm.errors import DTypeError
from polyrhythm.language.functions.support import (
    DTypeLike,
    TensorLike,
    as_dtype,
    as_tensor,
    cast_to,
    filled_like,
    promoted,
    promoted_floats,
)
from polyrhythm.language.index import Condition
from polyrhythm.language.tensor import Tensor, apply, select, union


def add(x: TensorLike, y: TensorLike) -> Tensor:
    """`x + y`

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([1, 2]) + 0.5)
    array([1.5, 2.5], dtype=float32)
    """
    return _binary("add", x, y)


def subtract(x: TensorLike, y: TensorLike) -> Tensor:
    """`x - y`

    >>> import polyrhythm as pr
    >>> pr.evaluate(1 - pr.constant([1.0, 3.0]))
    array([ 0., -2.], dtype=float32)
    """
    return _binary("sub", x, y)


def multiply(x: TensorLike, y: TensorLike) -> Tensor:
    """`x * y`

    >>> import polyrhythm as pr
    >>> pr.evaluate(2 * pr.constant([1, 3]))
    array([2, 6], dtype=int32)
    """
    return _binary("mul", x, y)


def divide(x: TensorLike, y: TensorLike) -> Tensor:
    """`x / y`; integers are divided as floats.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([1, 3]) / 2)
    array([0.5, 1.5], dtype=float32)
    """
    operands, weak = promoted_floats(x, y)
    return apply("div", *operands, weak=weak)


def floor_divide(x: TensorLike, y: TensorLike) -> Tensor:
    """`x // y`, rounded towards minus infinity.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([-3, 3]) // 2)
    array([-2,  1], dtype=int32)
    """
    return _binary("floordiv", x, y)


def remainder(x: TensorLike, y: TensorLike) -> Tensor:
    """`x % y`, with the sign of y.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([-3, 3]) % 2)
    array([1, 1], dtype=int32)
    """
    return _binary("mod", x, y)


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


def maximum(x: TensorLike, y: TensorLike) -> Tensor:
    """The greater of two tensors, element by element. Of index expressions, use `pr.max`.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.maximum(pr.constant([1.0, -2.0]), 0))
    array([1., 0.], dtype=float32)
    """
    return _binary("maximum", x, y)


def minimum(x: TensorLike, y: TensorLike) -> Tensor:
    """The lesser of two tensors, element by element. Of index expressions, use `pr.min`.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.minimum(pr.constant([1.0, -2.0]), 0))
    array([ 0., -2.], dtype=float32)
    """
    return _binary("minimum", x, y)


def equal(x: TensorLike, y: TensorLike) -> Tensor:
    """`x == y`

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([1, 2]) == 2)
    array([False,  True])
    """
    return _compare("eq", x, y)


def not_equal(x: TensorLike, y: TensorLike) -> Tensor:
    """`x != y`

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([1, 2]) != 2)
    array([ True, False])
    """
    return _compare("ne", x, y)


def less(x: TensorLike, y: TensorLike) -> Tensor:
    """`x < y`

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([1, 2]) < 2)
    array([ True, False])
    """
    return _compare("lt", x, y)


def less_equal(x: TensorLike, y: TensorLike) -> Tensor:
    """`x <= y`

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([1, 3]) <= 2)
    array([ True, False])
    """
    return _compare("le", x, y)


def greater(x: TensorLike, y: TensorLike) -> Tensor:
    """`x > y`

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([1, 3]) > 2)
    array([False,  True])
    """
    return _compare("lt", x, y, turned=True)


def greater_equal(x: TensorLike, y: TensorLike) -> Tensor:
    """`x >= y`

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([1, 2]) >= 2)
    array([False,  True])
    """
    return _compare("le", x, y, turned=True)


def bitwise_and(x: TensorLike, y: TensorLike) -> Tensor:
    """`x & y` of booleans, or bit by bit of integers.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([True, False]) & True)
    array([ True, False])
    """
    return _binary("and", x, y)


def bitwise_or(x: TensorLike, y: TensorLike) -> Tensor:
    """`x | y` of booleans, or bit by bit of integers.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([True, False]) | False)
    array([ True, False])
    """
    return _binary("or", x, y)


def bitwise_xor(x: TensorLike, y: TensorLike) -> Tensor:
    """`x ^ y` of booleans, or bit by bit of integers.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.constant([True, False]) ^ True)
    array([False,  True])
    """
    return _binary("xor", x, y)


def invert(x: TensorLike) -> Tensor:
    """`~x` of booleans, or bit by bit of integers.

    >>> import polyrhythm as pr
    >>> pr.evaluate(~pr.constant([True, False]))
    array([False,  True])
    """
    return apply("not", as_tensor(x))


def logical_and(x: TensorLike, y: TensorLike) -> Tensor:
    """Whether both are true; a number is true unless it is zero.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.logical_and(pr.constant([1.0, 0.0]), True))
    array([ True, False])
    """
    return bitwise_and(truth(x), truth(y))


def logical_or(x: TensorLike, y: TensorLike) -> Tensor:
    """Whether at least one is true; a number is true unless it is zero.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.logical_or(pr.constant([1.0, 0.0]), False))
    array([ True, False])
    """
    return bitwise_or(truth(x), truth(y))


def logical_xor(x: TensorLike, y: TensorLike) -> Tensor:
    """Whether exactly one is true; a number is true unless it is zero.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.logical_xor(pr.constant([1.0, 0.0]), True))
    array([False,  True])
    """
    return bitwise_xor(truth(x), truth(y))


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


def _binary(op: str, x: TensorLike, y: TensorLike) -> Tensor:
    operands, weak = promoted(x, y)
    return apply(op, *operands, weak=weak)


def _compare(op: str, x: TensorLike, y: TensorLike, turned: bool = False) -> Tensor:
    """A comparison; if `turned`, of y with x, with its dims in the order of x and y all the same."""
    operands, _ = promoted(x, y)
    return apply(op, *(operands[::-1] if turned else operands), spans=union([operand.spans for operand in operands]))


def truth(x: TensorLike) -> Tensor:
    """Whether each element is true, that is, not zero."""
    operand = as_tensor(x)
    return operand if operand.dtype == np.dtype(bool) else not_equal(operand, 0)
