"""Derivatives that the user gives: a function together with its backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from polyrhythm.compiler.ir import dtypes
from polyrhythm.errors import GradientError
from polyrhythm.language.functions.support import as_tensor, cast_to
from polyrhythm.language.naming import names_result
from polyrhythm.language.tensor import Computed, Spans, Tensor, shaped, union

Function = Callable[..., Tensor]


class Ruled(Tensor):
    """The result of a function whose derivative is given: `backward` has a gradient, or None, for each operand.

    The gradients are expressions of `cotangent`, which stands for the gradient of the result.
    """

    def __init__(self, result: Tensor, operands: tuple[Tensor, ...], spans: Spans) -> None:
        super().__init__(spans, result.type)
        self.result, self.operands = result, operands
        self.cotangent = Computed("cotangent", (), {}, spans, result.type, False)
        self.backward: tuple[Tensor | None, ...] = ()


def custom_vjp(forward: Function, backward: Callable[..., Any]) -> Function:
    """The function `forward`, with `backward` for its derivative wherever gradients are taken through it.

    `backward(g, y, *operands)` gets the gradient `g` of the result `y` and the operands, and returns the gradient of
    each operand: a tensor for one operand, a tuple for several, None for one that has none. `forward` must use nothing
    but its operands that gradients should flow to.

    >>> import polyrhythm as pr
    >>> through = pr.custom_vjp(pr.round, lambda g, y, x: g)
    >>> x = pr.input("x")
    >>> pr.evaluate(pr.value_and_grad(through(x) * 3.0, x), {"x": 1.7})
    (array(6., dtype=float32), array(3., dtype=float32))
    """

    @names_result
    @wraps(forward)
    def function(*operands: Any) -> Tensor:
        given = tuple(as_tensor(operand) for operand in operands)
        result = forward(*given)
        if not isinstance(result, Tensor) or not dtypes.is_float(result.dtype):
            raise GradientError(
                f"a function with a derivative of its own returns one float tensor, not {result!r}",
                fix="make a function for each result",
            )
        made = Ruled(result, given, union([result.spans, *(operand.spans for operand in given)]))
        made.backward = _gradients(made, backward(made.cotangent, made, *given))
        return made

    return function


def _gradients(made: Ruled, returned: Any) -> tuple[Tensor | None, ...]:
    gradients = returned if isinstance(returned, (tuple, list)) else (returned,)
    if len(gradients) != len(made.operands):
        raise GradientError(
            f"the backward of a function of {len(made.operands)} operands returned {len(gradients)} gradients",
            fix="return a tuple with one gradient for each operand, None for one that has none",
        )
    return tuple(
        None if gradient is None else _fitted(made, number, gradient, operand)
        for number, (gradient, operand) in enumerate(zip(gradients, made.operands, strict=True), 1)
    )


def _fitted(made: Ruled, number: int, gradient: Any, operand: Tensor) -> Tensor:
    """A gradient in the type of its operand, if it has one that fits."""
    tensor = as_tensor(gradient)
    what = f"the gradient that the backward returned for operand {number}"
    if not dtypes.is_float(operand.dtype):
        raise GradientError(
            f"operand {number} is {operand.type}, which has no gradient", fix="return None for it, or cast it first"
        )
    for symbol in tensor.symbols:
        if symbol not in made.symbols:
            raise GradientError(
                f"{what} varies along {symbol}, along which the function does not",
                fix=f"reduce it over {symbol}, or index it at one step",
            )
    joined, _ = dtypes.promote((operand.dtype, False), (tensor.dtype, tensor.weak))
    if joined != operand.dtype:
        raise GradientError(
            f"{what} is {tensor.dtype}, but the operand is {operand.dtype}",
            fix=f"cast it: gradient.cast({str(operand.dtype)!r})",
        )
    if isinstance(gradient, Tensor) and tensor.type.shape != operand.type.shape:
        raise GradientError(
            f"{what} has shape {tensor.shape}, but the operand has shape {operand.shape}",
            fix="return a gradient of the operand's shape: sum over the axes along which it was broadcast",
        )
    return shaped(cast_to(tensor, operand.dtype), operand.type.shape)
