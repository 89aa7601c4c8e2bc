"""The optimisers: each defines the parameters after a step, and returns the state it keeps.

They take the iteration dim, a tree of parameters made by `over`, their gradients in the same structure, and a rate: a
number, or a tensor that may vary along i (see `schedules.py`). The rules are those of torch, so that runs can be
compared number by number. Parameters made by `over(i, ..., outer=o)` need the same `outer` here.
"""

from __future__ import annotations

import math
from typing import Any

from polyrhythm.language.functions import TensorLike, expm1, maximum, norm, sign, sqrt, value, where
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.optim.states import bound_of, mapped, over, zeros_like


def sgd(
    i: Dim,
    params: Any,
    gradients: Any,
    rate: TensorLike,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    outer: Dim | None = None,
) -> dict[str, Any]:
    """Gradient descent, with momentum if asked for.

    >>> import polyrhythm as pr
    >>> from polyrhythm import optim
    >>> i, I = pr.dim("i")
    >>> p = optim.over(i, pr.constant(8.0))
    >>> state = optim.sgd(i, p, pr.grad(0.5 * p * p, p), rate=0.5)
    >>> pr.evaluate(p, bounds={I: 3}).tolist()
    [8.0, 4.0, 2.0, 1.0]
    """
    velocities = zeros_like(params, "velocity", i, outer) if momentum else None

    def update(p: Tensor, g: Tensor, v: Tensor | None = None) -> None:
        gradient = g + weight_decay * p if weight_decay else g
        if v is not None:
            v[i + 1] = momentum * v + gradient
            gradient = gradient + momentum * v[i + 1] if nesterov else v[i + 1]
        p[i + 1] = p - rate * gradient

    mapped(update, params, gradients, *([velocities] if momentum else []))
    return {"velocity": velocities} if momentum else {}


def rmsprop(
    i: Dim,
    params: Any,
    gradients: Any,
    rate: TensorLike = 0.01,
    decay: float = 0.99,
    epsilon: float = 1e-8,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    outer: Dim | None = None,
) -> dict[str, Any]:
    """Steps divided by the root of a running mean of squared gradients (Hinton's RMSProp).

    >>> import polyrhythm as pr
    >>> from polyrhythm import optim
    >>> i, I = pr.dim("i")
    >>> p = optim.over(i, pr.constant(8.0))
    >>> state = optim.rmsprop(i, p, pr.grad(0.5 * p * p, p), rate=0.1)
    >>> pr.evaluate(p, bounds={I: 1}).round(3).tolist()
    [8.0, 7.0]
    """
    squares = zeros_like(params, "square", i, outer)
    velocities = zeros_like(params, "velocity", i, outer) if momentum else None

    def update(p: Tensor, g: Tensor, s: Tensor, v: Tensor | None = None) -> None:
        gradient = g + weight_decay * p if weight_decay else g
        s[i + 1] = decay * s + (1 - decay) * gradient * gradient
        step = gradient / (sqrt(s[i + 1]) + epsilon)
        if v is not None:
            v[i + 1] = momentum * v + step
            step = v[i + 1]
        p[i + 1] = p - rate * step

    mapped(update, params, gradients, squares, *([velocities] if momentum else []))
    return {"square": squares, "velocity": velocities} if momentum else {"square": squares}


def adam(
    i: Dim,
    params: Any,
    gradients: Any,
    rate: TensorLike = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    outer: Dim | None = None,
    skip: Tensor | None = None,
) -> dict[str, Any]:
    """Adam (Kingma and Ba, 2015); weight decay is added to the gradient.

    Where `skip` holds there is no update: parameters, means and the count of updates stay as they are.

    >>> import polyrhythm as pr
    >>> from polyrhythm import optim
    >>> i, I = pr.dim("i")
    >>> p = optim.over(i, pr.constant(8.0))
    >>> state = optim.adam(i, p, pr.grad(0.5 * p * p, p), rate=0.5)
    >>> pr.evaluate(p, bounds={I: 2}).round(3).tolist()
    [8.0, 7.5, 7.000999927520752]
    """
    return _adam(i, params, gradients, rate, betas, epsilon, weight_decay, False, outer, skip)


def adamw(
    i: Dim,
    params: Any,
    gradients: Any,
    rate: TensorLike = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    weight_decay: float = 0.01,
    outer: Dim | None = None,
) -> dict[str, Any]:
    """Adam with weight decay apart from the gradient (Loshchilov and Hutter, 2019).

    >>> import polyrhythm as pr
    >>> from polyrhythm import optim
    >>> i, I = pr.dim("i")
    >>> p = optim.over(i, pr.constant(8.0))
    >>> state = optim.adamw(i, p, pr.grad(0.5 * p * p, p), rate=0.5, weight_decay=0.25)
    >>> pr.evaluate(p, bounds={I: 1}).round(3).tolist()
    [8.0, 6.5]
    """
    return _adam(i, params, gradients, rate, betas, epsilon, weight_decay, True, outer)


def _adam(
    i: Dim,
    params: Any,
    gradients: Any,
    rate: TensorLike,
    betas: tuple[float, float],
    epsilon: float,
    weight_decay: float,
    decoupled: bool,
    outer: Dim | None = None,
    skip: Tensor | None = None,
) -> dict[str, Any]:
    firsts, seconds = zeros_like(params, "first", i, outer), zeros_like(params, "second", i, outer)
    updates = _updates_so_far(i, outer) if skip is None else _counted(i, outer, skip)

    def update(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
        gradient = g + weight_decay * p if weight_decay and not decoupled else g
        m[i + 1] = _unless(skip, m, betas[0] * m + (1 - betas[0]) * gradient)
        v[i + 1] = _unless(skip, v, betas[1] * v + (1 - betas[1]) * gradient * gradient)
        count = updates.cast(p.dtype)
        first = m[i + 1] / _weight_so_far(count, betas[0])
        second = v[i + 1] / _weight_so_far(count, betas[1])
        kept = p - weight_decay * p * rate if weight_decay and decoupled else p
        p[i + 1] = _unless(skip, p, kept - rate * first / (sqrt(second) + epsilon))

    mapped(update, params, gradients, firsts, seconds)
    return {"first": firsts, "second": seconds}


def _updates_so_far(i: Dim, outer: Dim | None) -> Tensor:
    """How many updates there have been after this one, those of earlier iterations included."""
    return value(i + 1) if outer is None else value(i + 1) + value(outer) * value(bound_of(i))


def _counted(i: Dim, outer: Dim | None, skip: Tensor) -> Tensor:
    """How many updates there have been after this one, without those that were skipped; 1 before the first."""
    count = over(i, 0, outer)
    count[i + 1] = count + where(skip, 0, 1)
    return maximum(count[{i: i + 1}], 1)


def _unless(skip: Tensor | None, old: Tensor, new: Tensor) -> Tensor:
    return new if skip is None else where(skip, old, new)


def _weight_so_far(count: Tensor, beta: float) -> Tensor:
    """`1 - beta ** count`, without losing digits where beta is close to one."""
    return count * 0.0 + 1.0 if beta == 0 else -expm1(count * math.log(beta))


def lion(
    i: Dim,
    params: Any,
    gradients: Any,
    rate: TensorLike = 1e-4,
    betas: tuple[float, float] = (0.9, 0.99),
    weight_decay: float = 0.0,
    outer: Dim | None = None,
) -> dict[str, Any]:
    """Steps by the sign of a running mean (Chen et al., 2023), with weight decay apart from the gradient.

    >>> import polyrhythm as pr
    >>> from polyrhythm import optim
    >>> i, I = pr.dim("i")
    >>> p = optim.over(i, pr.constant(8.0))
    >>> state = optim.lion(i, p, pr.grad(0.5 * p * p, p), rate=0.5)
    >>> pr.evaluate(p, bounds={I: 2}).tolist()
    [8.0, 7.5, 7.0]
    """
    means = zeros_like(params, "mean", i, outer)

    def update(p: Tensor, g: Tensor, m: Tensor) -> None:
        step = sign(betas[0] * m + (1 - betas[0]) * g)
        m[i + 1] = betas[1] * m + (1 - betas[1]) * g
        p[i + 1] = p - rate * (step + weight_decay * p if weight_decay else step)

    mapped(update, params, gradients, means)
    return {"mean": means}


def lamb(
    i: Dim,
    params: Any,
    gradients: Any,
    rate: TensorLike = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-6,
    weight_decay: float = 0.0,
    outer: Dim | None = None,
) -> dict[str, Any]:
    """Steps of Adam, each array's scaled to the norm of the array (You et al., 2020), for large batches.

    >>> import polyrhythm as pr
    >>> from polyrhythm import optim
    >>> i, I = pr.dim("i")
    >>> p = optim.over(i, pr.constant(8.0))
    >>> state = optim.lamb(i, p, pr.grad(0.5 * p * p, p), rate=0.25)
    >>> pr.evaluate(p, bounds={I: 2}).round(3).tolist()
    [8.0, 6.0, 4.5]
    """
    firsts, seconds = zeros_like(params, "first", i, outer), zeros_like(params, "second", i, outer)

    def update(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
        m[i + 1] = betas[0] * m + (1 - betas[0]) * g
        v[i + 1] = betas[1] * v + (1 - betas[1]) * g * g
        count = _updates_so_far(i, outer).cast(p.dtype)
        first = m[i + 1] / _weight_so_far(count, betas[0])
        second = v[i + 1] / _weight_so_far(count, betas[1])
        step = first / (sqrt(second) + epsilon) + weight_decay * p
        size, length = norm(p), norm(step)
        trust = where((size > 0) & (length > 0), size / where(length > 0, length, 1.0), 1.0)
        p[i + 1] = p - rate * trust * step

    mapped(update, params, gradients, firsts, seconds)
    return {"first": firsts, "second": seconds}
