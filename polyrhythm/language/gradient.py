"""Asking for gradients. They are worked out when the program is compiled, when all definitions are known."""

from __future__ import annotations

from typing import Any

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.errors import GradientError
from polyrhythm.language.functions.support import TensorLike, as_tensor
from polyrhythm.language.tensor import Tensor, View, apply
from polyrhythm.language.trees import flattened


class Gradient(Tensor):
    """The derivative of a loss, summed over all its dims, by each point of a tensor.

    `leaves` are all tensors it is differentiated by together: ways through the definitions of any of them are cut.
    """

    def __init__(self, loss: Tensor, wrt: Tensor, leaves: tuple[Tensor, ...]) -> None:
        super().__init__(wrt.spans, TensorType(wrt.type.shape, wrt.dtype))
        self.loss, self.wrt, self.leaves = loss, wrt, leaves


def grad(loss: Tensor, wrt: Any) -> Any:
    """The gradient of a loss by one tensor, or by each of a tuple, list or dict of tensors.

    The loss is a float scalar at each step and is summed over all its dims. The result has the dims and the shape of
    `wrt`. Every point of `wrt` is an independent leaf: ways through its own definition are cut, and through those
    of all tensors given together. The gradient is worked out when the program is compiled, so the loss may depend on
    tensors that are still to be defined, as in `p[i + 1] = p - rate * pr.grad(loss, p)`. By complex z = x + iy it is
    `dL/dx - i dL/dy`, as in JAX: a step of descent is `z - rate * pr.conj(gradient)`.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> w = pr.input("w")
    >>> pr.evaluate(pr.grad((w * x) ** 2, w), {"x": [1.0, 2.0], "w": 3.0})
    array(30., dtype=float32)
    """
    leaves, rebuild = flattened(wrt)
    if loss.type.shape or not dtypes.is_float(loss.dtype):
        raise GradientError(
            f"a loss must be a float scalar at each step, not {loss.type}", fix="reduce it, as in loss.sum()"
        )
    if any(isinstance(leaf, View) or not dtypes.is_inexact(leaf.dtype) for leaf in leaves):
        raise GradientError(
            "a gradient is taken by a float tensor, not by a view or a part of one",
            fix="differentiate by the whole tensor and index the gradient, as in pr.grad(loss, x)[0]",
        )
    plain = apply("copy", loss) if isinstance(loss, View) else loss
    return rebuild([Gradient(plain, leaf, tuple(leaves)) for leaf in leaves])


def value_and_grad(loss: Tensor, wrt: Any) -> tuple[Tensor, Any]:
    """The loss and its gradient.

    >>> import polyrhythm as pr
    >>> w = pr.input("w")
    >>> pr.evaluate(pr.value_and_grad(w * w, w), {"w": 3.0})
    (array(9., dtype=float32), array(6., dtype=float32))
    """
    return loss, grad(loss, wrt)


def detach(x: TensorLike) -> Tensor:
    """The same value, seen as a constant by gradients.

    >>> import polyrhythm as pr
    >>> w = pr.input("w")
    >>> pr.evaluate(pr.grad(pr.detach(w) * w, w), {"w": 3.0})
    array(3., dtype=float32)
    """
    return apply("detach", as_tensor(x))
