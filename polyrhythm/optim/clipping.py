"""Clipping gradients by their global norm."""

from __future__ import annotations

from typing import Any

from polyrhythm.language.functions import norm, sqrt, square, where
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.optim.states import leaves, mapped


def global_norm(i: Dim, gradients: Any, outer: Dim | None = None) -> Tensor:
    """The norm of all gradients of an iteration together, over i (and `outer`); further dims of theirs are summed.

    >>> import polyrhythm as pr
    >>> i, I = pr.dim("i")
    >>> a, b = pr.input("a", (2,), (i,)), pr.input("b", (), (i,))
    >>> pr.evaluate(global_norm(i, [a, b]), {"a": [[2, 3]], "b": [6]})
    array([7.], dtype=float32)
    """
    parts = [square(norm(_at(gradient, i, outer))) for gradient in leaves(gradients)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return sqrt(total)


def clip_by_global_norm(i: Dim, gradients: Any, most: float, outer: Dim | None = None) -> Any:
    """The gradients, all made smaller by one factor where their global norm exceeds `most`.

    >>> import polyrhythm as pr
    >>> i, I = pr.dim("i")
    >>> a = pr.input("a", (2,), (i,))
    >>> pr.evaluate(clip_by_global_norm(i, {"a": a}, 1.0), {"a": [[3, 4], [0, 0.5]]})["a"].round(3).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.5]]
    """
    size = global_norm(i, gradients, outer)
    factor = where(size > most, most / where(size > most, size, 1.0), 1.0)
    return mapped(lambda gradient: gradient * factor, gradients)


def _at(gradient: Tensor, i: Dim, outer: Dim | None) -> Tensor:
    """All of a gradient at one update: its other dims become axes."""
    current = {dim.symbol for dim in (i, outer) if dim is not None}
    others = {dim: slice(None) for dim in gradient.dims if dim.symbol not in current}
    return gradient[others] if others else gradient
