"""Activation functions, and the sigmoid they are made of.

The compositions are chosen so that their gradients are finite wherever the functions are smooth: `sigmoid` goes
through `tanh`, `softplus` and `expm1` do not overflow, `relu` has gradient 0 at 0.
"""

from __future__ import annotations

import math
from typing import Literal

from polyrhythm.errors import DTypeError
from polyrhythm.language.functions.arithmetic import clip, less_equal, where
from polyrhythm.language.functions.elementwise import abs, erf, exp, expm1, log1p, tanh
from polyrhythm.language.functions.support import TensorLike, as_float, as_tensor
from polyrhythm.language.tensor import Tensor

# fmt: off
__all__ = [
    "elu", "gelu", "hard_sigmoid", "hard_swish", "hard_tanh", "leaky_relu", "log_sigmoid", "mish", "relu", "relu6",
    "selu", "sigmoid", "silu", "softplus", "softsign",
]
# fmt: on


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


def elu(x: TensorLike, alpha: float = 1.0) -> Tensor:
    """x where it is positive, `alpha * (exp(x) - 1)` elsewhere.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.elu(pr.constant([-100.0, 2.0])))
    array([-1.,  2.], dtype=float32)
    """
    operand = as_float(x)
    below = less_equal(operand, 0)
    return where(below, alpha * expm1(where(below, operand, 0)), operand)


def selu(x: TensorLike) -> Tensor:
    """`elu`, scaled so that means and variances tend to 0 and 1 (Klambauer et al., 2017).

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.selu(pr.constant([0.0, 1.0])))
    array([0.      , 1.050701], dtype=float32)
    """
    return 1.0507009873554805 * elu(x, 1.6732632423543772)


def leaky_relu(x: TensorLike, slope: float = 0.01) -> Tensor:
    """x where it is positive, `slope * x` elsewhere.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.leaky_relu(pr.constant([-1.0, 2.0]), 0.5))
    array([-0.5,  2. ], dtype=float32)
    """
    operand = as_float(x)
    return where(less_equal(operand, 0), slope * operand, operand)


def mish(x: TensorLike) -> Tensor:
    """`x * tanh(softplus(x))`

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.mish(pr.constant([0.0])))
    array([0.], dtype=float32)
    """
    operand = as_float(x)
    return operand * tanh(softplus(operand))


def log_sigmoid(x: TensorLike) -> Tensor:
    """`log(sigmoid(x))`, without overflow.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.log_sigmoid(pr.constant([-1000.0])))
    array([-1000.], dtype=float32)
    """
    return -softplus(-as_float(x))


def softsign(x: TensorLike) -> Tensor:
    """`x / (1 + abs(x))`

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.softsign(pr.constant([-1.0, 3.0])))
    array([-0.5 ,  0.75], dtype=float32)
    """
    operand = as_float(x)
    return operand / (1 + abs(operand))


def hard_tanh(x: TensorLike) -> Tensor:
    """x, but at least -1 and at most 1.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.hard_tanh(pr.constant([-2.0, 0.5])))
    array([-1. ,  0.5], dtype=float32)
    """
    return clip(as_float(x), -1, 1)


def relu6(x: TensorLike) -> Tensor:
    """x, but at least 0 and at most 6.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.relu6(pr.constant([-2.0, 3.0, 9.0])))
    array([0., 3., 6.], dtype=float32)
    """
    return clip(as_float(x), 0, 6)


def hard_sigmoid(x: TensorLike) -> Tensor:
    """`relu6(x + 3) / 6`, a sigmoid of straight lines.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.hard_sigmoid(pr.constant([-4.0, 0.0, 4.0])))
    array([0. , 0.5, 1. ], dtype=float32)
    """
    return relu6(as_float(x) + 3) / 6


def hard_swish(x: TensorLike) -> Tensor:
    """`x * hard_sigmoid(x)`

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.hard_swish(pr.constant([-4.0, 4.0])))
    array([-0.,  4.], dtype=float32)
    """
    operand = as_float(x)
    return operand * hard_sigmoid(operand)
