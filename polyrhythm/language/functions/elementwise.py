"""Functions of one tensor, element by element. Integers become floats where the result is not whole.

What is one operation of the op table is one row: its name, and its page.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from polyrhythm.compiler.ir import dtypes
from polyrhythm.language.functions.arithmetic import bitwise_and, divide, multiply, not_equal, where
from polyrhythm.language.functions.support import TensorLike, as_float, as_tensor, described, promoted_floats
from polyrhythm.language.tensor import Tensor, apply

# fmt: off
__all__ = [
    "abs",
    "acos",
    "asin",
    "atan",
    "atan2",
    "ceil",
    "cos",
    "cosh",
    "digamma",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "isfinite",
    "isnan",
    "lgamma",
    "log",
    "log1p",
    "log2",
    "log10",
    "reciprocal",
    "round",
    "rsqrt",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
]
# fmt: on


Function = Callable[[TensorLike], Tensor]


def _unary(name: str, what: str, operand: str, shown: str) -> Function:
    """The operation of that name, of any numbers."""

    def function(x: TensorLike) -> Tensor:
        given = as_tensor(x)
        return apply(name, given, weak=given.weak)

    return described(function, name, what, operand, shown)


def _of_floats(name: str, what: str, operand: str, shown: str) -> Function:
    """The operation of that name; integers become floats."""

    def function(x: TensorLike) -> Tensor:
        given = as_float(x)
        return apply(name, given, weak=given.weak)

    return described(function, name, what, operand, shown)


def _rounding(name: str, what: str, operand: str, shown: str) -> Function:
    """The operation of that name, of floats; integers stay as they are."""

    def function(x: TensorLike) -> Tensor:
        given = as_tensor(x)
        return apply(name, given, weak=given.weak) if dtypes.is_float(given.dtype) else given

    return described(function, name, f"{what[:-1]}, as a float; integers stay as they are.", operand, shown)


exp = _of_floats("exp", "e to the power x.", "[0.0]", "[1.]")
expm1 = _of_floats("expm1", "`exp(x) - 1`, precise near zero.", "[0.0]", "[0.]")
log = _of_floats("log", "The natural logarithm.", "[1.0]", "[0.]")
log1p = _of_floats("log1p", "`log(1 + x)`, precise near zero.", "[0.0]", "[0.]")
sqrt = _of_floats("sqrt", "The square root.", "[9.0]", "[3.]")
sin = _of_floats("sin", "The sine.", "[0.0]", "[0.]")
cos = _of_floats("cos", "The cosine.", "[0.0]", "[1.]")
sinh = _of_floats("sinh", "The hyperbolic sine.", "[0.0]", "[0.]")
cosh = _of_floats("cosh", "The hyperbolic cosine.", "[0.0]", "[1.]")
tanh = _of_floats("tanh", "The hyperbolic tangent.", "[0.0]", "[0.]")
erf = _of_floats("erf", "The error function.", "[0.0]", "[0.]")
lgamma = _of_floats("lgamma", "The logarithm of the magnitude of the gamma function.", "[1.0]", "[0.]")
digamma = _of_floats("digamma", "The derivative of `lgamma`.", "[1.0]", "[-0.5772157]")
sign = _unary("sign", "-1, 0 or 1.", "[-2, 0, 3]", "[-1,  0,  1] int32")
floor = _rounding("floor", "The greatest integer not above x.", "[-1.5, 1.5]", "[-2.,  1.]")
ceil = _rounding("ceil", "The least integer not below x.", "[-1.5, 1.5]", "[-1.,  2.]")
round = _rounding("round", "The nearest integer, halves to even.", "[0.5, 1.5, 1.7]", "[0., 2., 2.]")


def abs(x: TensorLike) -> Tensor:
    """The magnitude; of complex numbers a real one, with gradient 0 at 0.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.abs(pr.constant([-2.0, 3.0]))), pr.evaluate(pr.abs(pr.constant([3 + 4j])))
    (array([2., 3.], dtype=float32), array([5.], dtype=float32))
    """
    given = as_tensor(x)
    if dtypes.kind(given.dtype) != "complex":
        return apply("abs", given, weak=given.weak)
    # Divided by the greater part, so that squares neither overflow nor vanish; the result does not depend on it.
    parts = apply("real", given), apply("imag", given)
    scale = apply("detach", apply("maximum", *(apply("abs", part) for part in parts)))
    usual = bitwise_and(apply("isfinite", scale), scale > 0)
    safe = where(usual, scale, 1)
    first, second = (part / safe for part in parts)
    squares = where(usual, first * first + second * second, 1)
    return where(usual, safe * sqrt(squares), scale)


def rsqrt(x: TensorLike) -> Tensor:
    """`1 / sqrt(x)`

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.rsqrt(pr.constant([4.0])))
    array([0.5], dtype=float32)
    """
    return reciprocal(sqrt(x))


def square(x: TensorLike) -> Tensor:
    """`x * x`

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.square(pr.constant([-3.0])))
    array([9.], dtype=float32)
    """
    operand = as_tensor(x)
    return multiply(operand, operand)


def reciprocal(x: TensorLike) -> Tensor:
    """`1 / x`

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.reciprocal(pr.constant([4.0])))
    array([0.25], dtype=float32)
    """
    return divide(1, x)


def isnan(x: TensorLike) -> Tensor:
    """Whether x is not a number.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.isnan(pr.constant([0.0, float("nan")])))
    array([False,  True])
    """
    operand = as_tensor(x)
    return not_equal(operand, operand)


def isfinite(x: TensorLike) -> Tensor:
    """Whether x is neither infinite nor not a number.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.isfinite(pr.constant([0.0, float("inf")])))
    array([ True, False])
    """
    return apply("isfinite", as_tensor(x))


def atan2(y: TensorLike, x: TensorLike) -> Tensor:
    """The angle of the point (x, y), from -pi to pi.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.atan2(pr.constant([0.0, 1.0]), -1.0))
    array([3.1415927, 2.3561945], dtype=float32)
    """
    operands, weak = promoted_floats(y, x)
    return apply("atan2", *operands, weak=weak)


def atan(x: TensorLike) -> Tensor:
    """The inverse of the tangent, from -pi/2 to pi/2.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.atan(pr.constant([0.0, float("inf")])))
    array([0.       , 1.5707964], dtype=float32)
    """
    return atan2(x, 1)


def asin(x: TensorLike) -> Tensor:
    """The inverse of the sine, from -pi/2 to pi/2.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.asin(pr.constant([0.0, 1.0])))
    array([0.       , 1.5707964], dtype=float32)
    """
    operand = as_float(x)
    return atan2(operand, sqrt((1 - operand) * (1 + operand)))


def acos(x: TensorLike) -> Tensor:
    """The inverse of the cosine, from 0 to pi.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.acos(pr.constant([1.0, 0.0])))
    array([0.       , 1.5707964], dtype=float32)
    """
    operand = as_float(x)
    return atan2(sqrt((1 - operand) * (1 + operand)), operand)


def tan(x: TensorLike) -> Tensor:
    """The tangent.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.tan(pr.constant([0.0])))
    array([0.], dtype=float32)
    """
    operand = as_float(x)
    return sin(operand) / cos(operand)


def exp2(x: TensorLike) -> Tensor:
    """2 to the power x.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.exp2(pr.constant([3.0])))
    array([8.], dtype=float32)
    """
    return 2.0 ** as_float(x)


def log2(x: TensorLike) -> Tensor:
    """The logarithm to the base 2.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.log2(pr.constant([4.0])))
    array([2.], dtype=float32)
    """
    return log(x) * (1 / math.log(2))


def log10(x: TensorLike) -> Tensor:
    """The logarithm to the base 10.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.log10(pr.constant([1.0])))
    array([0.], dtype=float32)
    """
    return log(x) * (1 / math.log(10))


def trunc(x: TensorLike) -> Tensor:
    """The integer next to x towards zero, as a float; integers stay as they are.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.trunc(pr.constant([-1.5, 1.5])))
    array([-1.,  1.], dtype=float32)
    """
    operand = as_tensor(x)
    return sign(operand) * floor(abs(operand)) if dtypes.is_float(operand.dtype) else operand
