"""Functions of JAX and torch inside a program, as opaque operations.

A function is called once here, on shapes alone, to learn what it returns; then by the backend of its library, whenever
that traces or runs the program. Gradients lead through it by the library's own `vjp`. The libraries are imported only
when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.ops.opaque import OpaqueFunction
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.errors import OpaqueError, ShapeError
from polyrhythm.extras import needs
from polyrhythm.language.functions.support import as_tensor
from polyrhythm.language.tensor import Tensor, apply

Types = tuple[TensorType, ...]
Flat = Callable[..., tuple[Any, ...]]


def jax_function(fn: Callable[..., Any], inputs: Sequence[Any] = (), name: str | None = None) -> Any:
    """What a JAX function returns, at every point of the dims of its inputs; it becomes part of the XLA program.

    Each input is a tensor, or a tree of tensors such as JAX's functions take, of fixed shapes; the result is a tensor
    or a tree of them. The function must be pure and may be traced any number of times. Gradients go through it by
    `jax.vjp`. Only the JAX backend and `pr.evaluate` run it.

    >>> import jax
    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (3,), (t,))
    >>> y = pr.jax_function(jax.nn.softmax, [x])
    >>> pr.evaluate(y, {"x": [[0, 0, 0]]}).round(3).tolist()
    [[0.3330000042915344, 0.3330000042915344, 0.3330000042915344]]
    """
    import jax

    leaves, structure = jax.tree_util.tree_flatten(list(inputs))
    operands = [as_tensor(leaf) for leaf in leaves]
    kinds = tuple(operand.type for operand in operands)
    called = name or _name_of(fn)
    made: list[Any] = []

    def flat(*arrays: Any) -> tuple[Any, ...]:
        result, shape = jax.tree_util.tree_flatten(fn(*jax.tree_util.tree_unflatten(structure, arrays)))
        made.append(shape)
        return tuple(result)

    function = _jax(called, flat, _fixed(called, kinds))
    tensors = _applied(function, operands)
    return jax.tree_util.tree_unflatten(made[0], tensors)


def torch_function(fn: Callable[..., Any], inputs: Sequence[Any] = (), name: str | None = None) -> Any:
    """What a torch function returns, at every point of the dims of its inputs: a tensor, or a tuple of tensors.

    The inputs are tensors of fixed shapes. The function must be pure; its results have to follow from the shapes alone,
    since it is called once without values. Gradients go through it by `torch.func.vjp`. Only the torch backend and
    `pr.evaluate` run it.

    >>> import torch
    >>> import polyrhythm as pr
    >>> x = pr.input("x", (2,))
    >>> y = pr.torch_function(torch.nn.functional.softplus, [x])
    >>> pr.evaluate(pr.grad(y.sum(), x), {"x": [0, 100]}).tolist()
    [0.5, 1.0]
    """
    operands = [as_tensor(value) for value in inputs]
    called = name or _name_of(fn)
    several: list[bool] = []

    def flat(*tensors: Any) -> tuple[Any, ...]:
        result = fn(*tensors)
        several.append(isinstance(result, (tuple, list)))
        return tuple(result) if several[-1] else (result,)

    function = _torch(called, flat, _fixed(called, tuple(operand.type for operand in operands)))
    tensors = _applied(function, operands)
    return tuple(tensors) if several[0] else tensors[0]


def _name_of(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__))


def _fixed(name: str, kinds: Types) -> Types:
    for kind in kinds:
        if not all(length.is_constant for length in kind.shape):
            raise ShapeError(
                f"{name} gets a value of shape ({', '.join(map(str, kind.shape))}), which is known only at run time",
                fix="give it values of fixed shape: slice a fixed number of steps, or fix the bound when compiling",
            )
    return kinds


def _applied(function: OpaqueFunction, operands: Sequence[Tensor]) -> list[Tensor]:
    return [apply("opaque", *operands, function=function, result=number) for number in range(len(function.results))]


def _shape(kind: TensorType) -> tuple[int, ...]:
    return tuple(int(length) for length in kind.shape)


def _result(name: str, shape: Sequence[int], dtype: np.dtype) -> TensorType:
    if dtype not in dtypes.DTYPES:
        raise OpaqueError(
            f"{name} returns elements of {dtype}, which programs do not have",
            fix=f"cast them inside the function to one of {', '.join(map(str, dtypes.DTYPES))}",
        )
    return TensorType(tuple(Term(int(length)) for length in shape), np.dtype(dtype))


def _back(call: Flat, vjp: Callable[..., Any], result: int, wanted: tuple[int, ...]) -> Flat:
    """What gives the gradients by some operands, of the operands and the gradient of a result."""

    def back(*arrays: Any) -> tuple[Any, ...]:
        *values, cotangent = arrays

        def through(*chosen: Any) -> Any:
            changed = dict(zip(wanted, chosen, strict=True))
            return call(*(changed.get(place, value) for place, value in enumerate(values)))[result]

        return tuple(vjp(through, *(values[place] for place in wanted))[1](cotangent))

    return back


def _jax(name: str, call: Flat, operands: Types) -> OpaqueFunction:
    """A JAX function of a flat list of arrays."""
    import jax

    wide = any(kind.dtype.itemsize == 8 for kind in operands)

    def precision() -> Any:
        return jax.enable_x64(wide)

    with precision():
        struct: Any = jax.ShapeDtypeStruct
        given = [struct(_shape(kind), kind.dtype) for kind in operands]
        try:
            returned = jax.eval_shape(call, *given)
        except Exception as error:
            raise _failed(name, operands, error) from error
        results = tuple(_result(name, value.shape, value.dtype) for value in returned)

    def numpy(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        with precision():
            return tuple(np.asarray(value) for value in jax.jit(call)(*arrays))

    def pullback(result: int, wanted: tuple[int, ...]) -> OpaqueFunction:
        return _jax(f"{name}_vjp", _back(call, jax.vjp, result, wanted), (*operands, results[result]))

    return OpaqueFunction(name, "jax", operands, results, call, numpy, pullback)


def _torch(name: str, call: Flat, operands: Types) -> OpaqueFunction:
    """A torch function of a flat list of tensors."""
    needs("torch", "torch", "a torch function")
    import torch

    def as_torch(dtype: np.dtype) -> Any:
        return getattr(torch, str(dtype))

    try:
        returned = call(*(torch.empty(_shape(kind), dtype=as_torch(kind.dtype), device="meta") for kind in operands))
    except Exception as error:
        raise _failed(name, operands, error) from error
    kinds = [str(value.dtype).removeprefix("torch.") for value in returned]
    known = [dtypes.parse(kind) if kind in map(str, dtypes.DTYPES) else kind for kind in kinds]
    results = tuple(_result(name, v.shape, dtype) for v, dtype in zip(returned, known, strict=True))  # type: ignore[arg-type]

    def numpy(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        tensors = [_to_torch(array) for array in arrays]
        return tuple(_from_torch(value, kind.dtype) for value, kind in zip(call(*tensors), results, strict=True))

    def pullback(result: int, wanted: tuple[int, ...]) -> OpaqueFunction:
        return _torch(f"{name}_vjp", _back(call, torch.func.vjp, result, wanted), (*operands, results[result]))

    return OpaqueFunction(name, "torch", operands, results, call, numpy, pullback)


def _to_torch(array: np.ndarray) -> Any:
    """A tensor with the elements of an array; bfloat16, which torch does not read, goes by its bits."""
    import torch

    if array.dtype.kind == "V":
        return torch.tensor(array.view(np.int16)).view(torch.bfloat16)
    return torch.tensor(array)


def _from_torch(tensor: Any, dtype: np.dtype) -> np.ndarray:
    import torch

    if dtype.kind == "V":
        return np.asarray(tensor.detach().contiguous().view(torch.int16).numpy()).view(dtype)
    return np.asarray(tensor.detach().numpy())


def _failed(name: str, operands: Types, error: Exception) -> OpaqueError:
    kinds = ", ".join(map(str, operands)) or "nothing"
    lines = str(error).strip().splitlines()
    return OpaqueError(
        f"{name} cannot be called with {kinds}: {type(error).__name__}: {lines[0] if lines else ''}",
        fix="call the function by itself with arrays of these types, and correct it or what it is given",
    )
