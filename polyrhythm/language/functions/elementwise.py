"""Functions of one tensor, element by element. Integers become floats where the result is not whole.

The compositions are chosen so that their gradients are finite wherever the functions are smooth: `sigmoid` goes
through `tanh`, `softplus` and `expm1` do not overflow, `relu` has gradient 0 at 0.
"""

from __future__ import annotations

import math
from typing import Literal

from polyrhythm.compiler.ir import dtypes
from polyrhythm.errors import DTypeError
from polyrhythm.language.functions.arithmetic import divide, less_equal, multiply, not_equal, where
from polyrhythm.language.functions.support import TensorLike, as_float, as_tensor
from polyrhythm.language.tensor import Tensor, apply


def exp(x: TensorLike) -> Tensor:
    """e to the power x.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.exp(pr.constant([0.0])))
    array([1.], dtype=float32)
    """
    return _unary("exp", as_float(x))


def expm1(x: TensorLike) -> Tensor:
    """`exp(x) - 1`, precise near zero.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.expm1(pr.constant([0.0])))
    array([0.], dtype=float32)
    """
    return _unary("expm1", as_float(x))


def log(x: TensorLike) -> Tensor:
    """The natural logarithm.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.log(pr.constant([1.0])))
    array([0.], dtype=float32)
    """
    return _unary("log", as_float(x))


def log1p(x: TensorLike) -> Tensor:
    """`log(1 + x)`, precise near zero.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.log1p(pr.constant([0.0])))
    array([0.], dtype=float32)
    """
    return _unary("log1p", as_float(x))


def sqrt(x: TensorLike) -> Tensor:
    """The square root.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.sqrt(pr.constant([9.0])))
    array([3.], dtype=float32)
    """
    return _unary("sqrt", as_float(x))


def rsqrt(x: TensorLike) -> Tensor:
    """`1 / sqrt(x)`

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.rsqrt(pr.constant([4.0])))
    array([0.5], dtype=float32)
    """
    return reciprocal(sqrt(x))


def sin(x: TensorLike) -> Tensor:
    """The sine.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.sin(pr.constant([0.0])))
    array([0.], dtype=float32)
    """
    return _unary("sin", as_float(x))


def cos(x: TensorLike) -> Tensor:
    """The cosine.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.cos(pr.constant([0.0])))
    array([1.], dtype=float32)
    """
    return _unary("cos", as_float(x))


def tanh(x: TensorLike) -> Tensor:
    """The hyperbolic tangent.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.tanh(pr.constant([0.0])))
    array([0.], dtype=float32)
    """
    return _unary("tanh", as_float(x))


def erf(x: TensorLike) -> Tensor:
    """The error function.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.erf(pr.constant([0.0])))
    array([0.], dtype=float32)
    """
    return _unary("erf", as_float(x))


def abs(x: TensorLike) -> Tensor:
    """The magnitude.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.abs(pr.constant([-2.0, 3.0])))
    array([2., 3.], dtype=float32)
    """
    return _unary("abs", as_tensor(x))


def sign(x: TensorLike) -> Tensor:
    """-1, 0 or 1.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.sign(pr.constant([-2, 0, 3])))
    array([-1,  0,  1], dtype=int32)
    """
    return _unary("sign", as_tensor(x))


def floor(x: TensorLike) -> Tensor:
    """The greatest integer not above x, as a float; integers stay as they are.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.floor(pr.constant([-1.5, 1.5])))
    array([-2.,  1.], dtype=float32)
    """
    return _rounding("floor", x)


def ceil(x: TensorLike) -> Tensor:
    """The least integer not below x, as a float; integers stay as they are.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.ceil(pr.constant([-1.5, 1.5])))
    array([-1.,  2.], dtype=float32)
    """
    return _rounding("ceil", x)


def round(x: TensorLike) -> Tensor:
    """The nearest integer, halves to even, as a float; integers stay as they are.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.round(pr.constant([0.5, 1.5, 1.7])))
    array([0., 2., 2.], dtype=float32)
    """
    return _rounding("round", x)


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


def _unary(op: str, x: Tensor) -> Tensor:
    return apply(op, x, weak=x.weak)


def _rounding(op: str, x: TensorLike) -> Tensor:
    operand = as_tensor(x)
    return _unary(op, operand) if dtypes.is_float(operand.dtype) else operand
