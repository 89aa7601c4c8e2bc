"""Trees of tensors over the iteration dim: dicts, lists and tuples, nested at will."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polyrhythm.compiler.ir.graph import NodeDim
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.errors import DeclarationError
from polyrhythm.language.functions import TensorLike, as_tensor
from polyrhythm.language.index import Bound, Dim
from polyrhythm.language.recurrent import Recurrent
from polyrhythm.language.tensor import Tensor


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


def over(i: Dim, init: Any, outer: Dim | None = None) -> Any:
    """Parameters over the iterations: a tensor over `((i, I + 1),)` for each leaf, which it has at step 0.

    The leaves are tensors, arrays or numbers; dims that they have come after i. What follows step 0 is for an
    optimiser to define. With `outer`, i counts the updates within each iteration of that dim: the tensors are over
    `((i, I + 1), outer)`, and what the last update of an iteration leaves is where the next iteration begins.

    >>> import polyrhythm as pr
    >>> i, I = pr.dim("i")
    >>> params = over(i, {"w": pr.input("w", (2,))})
    >>> params["w"][i + 1] = params["w"] * 2.0
    >>> pr.evaluate(params, {"w": [1, 2]}, {I: 2})["w"].tolist()
    [[1.0, 2.0], [2.0, 4.0], [4.0, 8.0]]
    >>> o, O = pr.dim("o")
    >>> count = over(i, 0.0, outer=o)
    >>> count[i + 1] = count + 1.0
    >>> pr.evaluate(count, bounds={I: 2, O: 3}).T.tolist()
    [[0.0, 1.0, 2.0], [2.0, 3.0, 4.0], [4.0, 5.0, 6.0]]
    """

    def begun(leaf: Any, path: str | None) -> Recurrent:
        first = as_tensor(leaf)
        name = f"{leaf.name}_{i}" if isinstance(leaf, Tensor) and leaf.name else path
        for dim in (i,) if outer is None else (i, outer):
            if dim.symbol in first.symbols:
                raise DeclarationError(f"an initial value already has the dim {dim}", fix="take its value at one step")
        spans = [NodeDim(i.symbol, bound_of(i).term + 1)]
        if outer is not None:
            spans.append(NodeDim(outer.symbol, bound_of(outer).term))
        params = Recurrent((*spans, *first.spans), TensorType(first.type.shape, first.dtype), name)
        start(params, first, i, outer)
        return params

    return mapped(begun, init, _paths(init))


def _paths(tree: Any, path: str | None = None) -> Any:
    """The path to each leaf of a tree, None for a tree that is a leaf."""
    if isinstance(tree, dict):
        return {key: _paths(part, f"{path}.{key}" if path else str(key)) for key, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_paths(part, f"{path}.{k}" if path else f"params.{k}") for k, part in enumerate(tree))
    return path


def zeros_like(tree: Any, what: str, i: Dim, outer: Dim | None = None) -> Any:
    """State that begins with zero, one tensor like each parameter; `what` it is stands in its name."""

    def begun(parameter: Tensor) -> Recurrent:
        name = f"{parameter.name}_{what}" if parameter.name else what
        state = Recurrent(parameter.spans, TensorType(parameter.type.shape, parameter.dtype), name)
        start(state, 0.0, i, outer)
        return state

    return mapped(begun, tree)


def start(tensor: Recurrent, first: TensorLike, i: Dim, outer: Dim | None) -> None:
    """Define a tensor at step 0 of i; with `outer` only in its first iteration, and carried over from then on."""
    if outer is None:
        tensor[0] = first
        return
    tensor[0, 0] = first
    tensor[0, outer + 1] = tensor[{i: bound_of(i), outer: outer}]


def bound_of(i: Dim) -> Bound:
    """The number of steps of a dim.

    >>> import polyrhythm as pr
    >>> i, I = pr.dim("i")
    >>> bound_of(i) is I
    True
    """
    assert i.symbol.bound is not None
    return Bound(Term.of(i.symbol.bound))
