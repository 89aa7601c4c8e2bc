"""Functions of one tensor, element by element. Integers become floats where the result is not whole.

The compositions are chosen so that their gradients are finite wherever the functions are smooth: `sigmoid` goes
through `tanh`, `softplus` and `expm1` do not overflow, `relu` has gradient 0 at 0. What is one operation of the op
table is one row: its name, and its page.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from polyrhythm.compiler.ir import dtypes
from polyrhythm.errors import DTypeError
from polyrhythm.language.functions.arithmetic import divide, less_equal, multiply, not_equal, where
from polyrhythm.language.functions.support import TensorLike, as_float, as_tensor, described
from polyrhythm.language.tensor import Tensor, apply

# fmt: off
__all__ = [
    "abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "gelu", "isfinite", "isnan", "log", "log1p",
    "reciprocal", "relu", "round", "rsqrt", "sigmoid", "sign", "silu", "sin", "softplus", "sqrt", "square",
    "tanh",
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
tanh = _of_floats("tanh", "The hyperbolic tangent.", "[0.0]", "[0.]")
erf = _of_floats("erf", "The error function.", "[0.0]", "[0.]")
abs = _unary("abs", "The magnitude.", "[-2.0, 3.0]", "[2., 3.]")
sign = _unary("sign", "-1, 0 or 1.", "[-2, 0, 3]", "[-1,  0,  1] int32")
floor = _rounding("floor", "The greatest integer not above x.", "[-1.5, 1.5]", "[-2.,  1.]")
ceil = _rounding("ceil", "The least integer not below x.", "[-1.5, 1.5]", "[-1.,  2.]")
round = _rounding("round", "The nearest integer, halves to even.", "[0.5, 1.5, 1.7]", "[0., 2., 2.]")


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


def sigmoid(x: TensorLike) -> Tensor:
    """`1 / (1 + exp(-x))`

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.sigmoid(pr.constant([0.0])))
    array([0.5], dtype=float32)
    """
    return 0.5 * tanh(0.5 * as_float(x)) + 0.5


def relu(x: TensorLike) -> Tensor:
    """x where it is positive, 0 elsewhere.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.relu(pr.constant([-1.0, 2.0])))
    array([0., 2.], dtype=float32)
    """
    operand = as_tensor(x)
    return where(less_equal(operand, 0), 0, operand)


def softplus(x: TensorLike) -> Tensor:
    """`log(1 + exp(x))`, without overflow.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.softplus(pr.constant([1000.0])))
    array([1000.], dtype=float32)
    """
    operand = as_float(x)
    # Not abs and maximum: whatever their gradients are at 0, this one's is 1/2.
    return relu(operand) + log1p(exp(where(operand > 0, -operand, operand)))


def silu(x: TensorLike) -> Tensor:
    """`x * sigmoid(x)`, also called swish.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.silu(pr.constant([0.0])))
    array([0.], dtype=float32)
    """
    operand = as_float(x)
    return operand * sigmoid(operand)


def gelu(x: TensorLike, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """x times the normal distribution function of x; `approximate="tanh"` is the formula GPT-2 uses.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.gelu(pr.constant([0.0, 20.0])))
    array([ 0., 20.], dtype=float32)
    """
    operand = as_float(x)
    if approximate == "none":
        return 0.5 * operand * (1 + erf(operand * math.sqrt(0.5)))
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (operand + 0.044715 * operand * operand * operand)
        return 0.5 * operand * (1 + tanh(inner))
    raise DTypeError(
        f"gelu knows no approximation {approximate!r}", fix='write approximate="none" or approximate="tanh"'
    )
