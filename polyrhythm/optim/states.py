"""Trees of tensors over the iteration dim: dicts, lists and tuples, nested at will."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polyrhythm.errors import DeclarationError
from polyrhythm.ir.graph import NodeDim
from polyrhythm.ir.terms import Term
from polyrhythm.ir.types import TensorType
from polyrhythm.lang.functions import as_tensor
from polyrhythm.lang.index import Dim
from polyrhythm.lang.recurrent import Recurrent
from polyrhythm.lang.tensor import Tensor


def mapped(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """A function of each leaf of a tree, and of the leaves at the same places of others, in the same structure.

    >>> mapped(lambda a, b: a + b, {"x": 1, "y": [2, 3]}, {"x": 10, "y": [20, 30]})
    {'x': 11, 'y': [22, 33]}
    """
    if isinstance(tree, dict):
        return {key: mapped(function, tree[key], *(other[key] for other in others)) for key in tree}
    if isinstance(tree, (list, tuple)):
        return type(tree)(mapped(function, *parts) for parts in zip(tree, *others, strict=True))
    return function(tree, *others)


def leaves(tree: Any) -> list[Any]:
    """The leaves of a tree, in order.

    >>> leaves({"x": 1, "y": [2, 3]})
    [1, 2, 3]
    """
    found: list[Any] = []
    mapped(found.append, tree)
    return found


def over(i: Dim, init: Any) -> Any:
    """Parameters over the iterations: a tensor over `((i, I + 1),)` for each leaf, which it has at step 0.

    The leaves are tensors, arrays or numbers; dims that they have come after i. What follows step 0 is for an
    optimiser to define.

    >>> import polyrhythm as pr
    >>> i, I = pr.dim("i")
    >>> params = over(i, {"w": pr.input("w", (2,))})
    >>> params["w"][i + 1] = params["w"] * 2.0
    >>> pr.evaluate(params, {"w": [1, 2]}, {I: 2})["w"].tolist()
    [[1.0, 2.0], [2.0, 4.0], [4.0, 8.0]]
    """

    def begun(leaf: Any) -> Recurrent:
        first = as_tensor(leaf)
        if i.symbol in first.symbols:
            raise DeclarationError(f"an initial value already has the dim {i}", fix="take its value at one step")
        assert i.symbol.bound is not None
        steps = NodeDim(i.symbol, Term.of(i.symbol.bound) + 1)
        tensor = Recurrent((steps, *first.spans), TensorType(first.type.shape, first.dtype), None)
        tensor[0] = first
        return tensor

    return mapped(begun, init)


def zeros_like(tree: Any) -> Any:
    """State that begins with zero, one tensor like each parameter."""

    def begun(parameter: Tensor) -> Recurrent:
        tensor = Recurrent(parameter.spans, TensorType(parameter.type.shape, parameter.dtype), None)
        tensor[0] = 0.0
        return tensor

    return mapped(begun, tree)
