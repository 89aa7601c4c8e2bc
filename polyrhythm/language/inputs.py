"""What comes into a program from outside: inputs, parameters, and host functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, overload

import numpy as np

from polyrhythm.compiler.ir.graph import HostFunction
from polyrhythm.compiler.ir.terms import dims_of
from polyrhythm.compiler.ir.types import Shape, TensorType
from polyrhythm.errors import DeclarationError, ShapeError, UnboundDimError
from polyrhythm.language.functions.support import as_dtype, as_tensor
from polyrhythm.language.index import Dim, Index, term_of
from polyrhythm.language.recurrent import as_shape, check_shape_dims, declared_spans
from polyrhythm.language.tensor import Computed, Tensor, union

DimLike = Dim | tuple[Dim, int | Index]
_calls = count()


@overload
def input(
    name: str, shape: Iterable[int | Index] = (), dims: Iterable[DimLike] = (), dtype: Any = "float32"
) -> Tensor: ...
@overload
def input(name: str, shape: Any, dims: Iterable[DimLike] = (), dtype: Any = "float32") -> Any: ...
def input(name: str, shape: Any = (), dims: Iterable[DimLike] = (), dtype: Any = "float32") -> Any:
    """A value given at the call: an array with the dims as leading axes, then the shape.

    Instead of one shape there may be a tree of them, dicts, lists and tuples: then this is the same tree of tensors,
    and the call gives a tree of arrays. Each is an input of its own, named by the path to it, as in "x.left.0".

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", shape=(2,), dims=(t,))
    >>> pr.evaluate(x[T - 1], {"x": [[1, 2], [3, 4.0]]})
    array([3., 4.], dtype=float32)
    >>> p = pr.input("p", {"w": (2,), "b": ()})
    >>> pr.evaluate(p["w"].sum() + p["b"], {"p": {"w": [1.0, 2.0], "b": 3.0}})
    array(6., dtype=float32)
    """
    if _is_tree(shape):
        return _mapped(lambda path, own: input(path, own, dims, dtype), name, shape)
    return _external(name, shape, dims, dtype, None)


@overload
def parameter(
    name: str,
    shape: Iterable[int | Index] = (),
    init: np.ndarray | Sequence[Any] | float | Callable[..., Any] | None = None,
    dims: Iterable[DimLike] = (),
    dtype: Any = "float32",
) -> Tensor: ...
@overload
def parameter(
    name: str, shape: Any = (), init: Any = None, dims: Iterable[DimLike] = (), dtype: Any = "float32"
) -> Any: ...
def parameter(
    name: str,
    shape: Any = (),
    init: Any = None,
    dims: Iterable[DimLike] = (),
    dtype: Any = "float32",
) -> Any:
    """An input with a stored value, used when the call does not give one. It is never changed by the program.

    `init` is an array or a function of the shape that returns one; without it the value is zero. Of a tree of shapes
    this is a tree of parameters, as with `input`; `init` is then a tree too, or one function for all. A dict of arrays
    needs no shapes.

    >>> import polyrhythm as pr
    >>> w = pr.parameter("w", (2,), init=[1.0, 2.0])
    >>> pr.evaluate(w * 2).tolist(), pr.evaluate(w * 2, {"w": [0, 1.0]}).tolist()
    ([2.0, 4.0], [0.0, 2.0])
    """
    if isinstance(init, dict) and not _is_tree(shape):
        shape = _mapped(lambda path, array: np.shape(array), name, init)
    if _is_tree(shape):
        return _mapped(lambda path, own, first=init: parameter(path, own, first, dims, dtype), name, shape, init)
    lengths = as_shape(shape)
    spans = declared_spans(dims)
    extents = [span.extent for span in spans]
    if not all(term.is_constant for term in (*extents, *map(term_of, lengths))):
        raise ShapeError(
            f"the parameter {name!r} has a stored value, so its shape {(*extents, *lengths)} must be fixed",
            fix="use integers, or declare it as pr.input",
        )
    full = tuple(int(term) for term in (*extents, *map(term_of, lengths)))
    value = np.zeros(full) if init is None else np.asarray(init(full) if callable(init) else init)
    if value.shape != full:
        raise ShapeError(
            f"the initial value of {name!r} has shape {value.shape}, but the parameter has {full}",
            fix="make both shapes equal",
        )
    return _external(name, lengths, dims, dtype, value.astype(as_dtype(dtype)))


def host(
    fn: Callable[..., Any],
    inputs: Sequence[Any] = (),
    shape: Any = (),
    dtype: Any = "float32",
    dims: Iterable[Dim] | None = None,
    effect: str | None = None,
) -> Any:
    """A Python function called by the program at every point of its dims.

    It gets the values of `inputs` as arrays and returns an array of the given shape and dtype. With lists of
    shapes and dtypes it returns a tuple of arrays, and so does this function of tensors. Without an `effect` the
    function must be pure. With one it is called exactly once per point; calls that share an effect run in
    the order of their dims, then in the order in which they were written.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> pr.evaluate(pr.host(lambda v: v + 1, [x]), {"x": [1, 2]})
    array([2., 3.], dtype=float32)
    """
    operands = tuple(as_tensor(value) for value in inputs)
    several = isinstance(shape, list)
    shapes = shape if several else [shape]
    kinds = dtype if isinstance(dtype, list) else [dtype] * len(shapes)
    if len(kinds) != len(shapes):
        raise DeclarationError(
            f"the host function has {len(shapes)} shapes but {len(kinds)} dtypes",
            fix="give one dtype per shape, or a single dtype for all",
        )
    results = tuple(
        TensorType(tuple(term_of(n) for n in as_shape(s)), as_dtype(d)) for s, d in zip(shapes, kinds, strict=True)
    )
    spans = union([operand.spans for operand in operands], () if dims is None else [d.symbol for d in dims])
    if dims is not None:
        wanted = [d.symbol for d in dims]
        for span in spans:
            if span.symbol not in wanted:
                raise UnboundDimError(
                    f"an input of the host function varies along {span.symbol}, which is not among its dims",
                    fix=f"add {span.symbol} to dims=, or index that input at one step",
                )
        by_symbol = {span.symbol: span for span in spans}
        spans = union([[by_symbol[symbol] for symbol in wanted]])
    function = HostFunction(getattr(fn, "__name__", "host"), fn, results, effect, not several)
    call = next(_calls)
    made = []
    for position, result in enumerate(results):
        check_shape_dims(result.shape, spans)
        attributes = {"function": function, "call": call, "result": position}
        made.append(Computed("host", operands, attributes, spans, result, False))
    return tuple(made) if several else made[0]


def _is_tree(shape: Any) -> bool:
    """Whether this is a tree of shapes rather than one."""
    if isinstance(shape, dict):
        return True
    return isinstance(shape, (list, tuple)) and any(isinstance(entry, (dict, list, tuple)) for entry in shape)


def _mapped(make: Callable[..., Any], path: str, tree: Any, other: Any = None) -> Any:
    """A function of the path to each leaf, the leaf, and that of another tree if it is one."""
    has = isinstance(other, (dict, list, tuple))
    if isinstance(tree, dict):
        return {k: _mapped(make, f"{path}.{k}", part, other[k] if has else other) for k, part in tree.items()}
    if _is_tree(tree):
        parts = [_mapped(make, f"{path}.{k}", part, other[k] if has else other) for k, part in enumerate(tree)]
        return type(tree)._make(parts) if hasattr(type(tree), "_make") else type(tree)(parts)
    return make(path, tree) if other is None else make(path, tree, other)


def _external(name: str, shape: Any, dims: Any, dtype: Any, stored: np.ndarray | None) -> Tensor:
    spans = declared_spans(dims)
    lengths: Shape = tuple(term_of(length) for length in as_shape(shape))
    for length in lengths:
        if dims_of(length):
            raise ShapeError(
                f"the shape entry {length} of the input {name!r} differs from step to step",
                fix="an input is one array: give it the largest shape, or make the axis a ragged dim",
            )
    tensor = Computed("input", (), {"name": name}, spans, TensorType(lengths, as_dtype(dtype)), False)
    tensor.stored, tensor.name = stored, name
    return tensor
