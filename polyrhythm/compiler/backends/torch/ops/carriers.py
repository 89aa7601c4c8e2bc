"""How each dtype is held and computed in torch, and the way from NumPy and back.

A tensor is held in the torch dtype of the same name: its dtype says how it wraps. Torch computes little in uint16,
uint32 and uint64, so an operation works on a *carrier* and converts its result back:

- uint16 and uint32 are carried by int64, which holds all their values; converting back wraps;
- uint64 is carried by the int64 of the same bits, in which sums, products and bitwise operations are the same. Where
  order matters the top bit is flipped, which makes the order of int64 that of uint64;
- float16 and bfloat16 are carried by float32, and rounded once.

The narrow integers are carried by themselves, except in sums and products of many, which are int64.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from polyrhythm.compiler.ir import dtypes

Tensor = torch.Tensor

TORCH_DTYPES: dict[np.dtype, torch.dtype] = {dtype: getattr(torch, dtype.name) for dtype in dtypes.DTYPES}
"""The torch dtype of each supported dtype."""

NUMPY_DTYPES: dict[torch.dtype, np.dtype] = {theirs: ours for ours, theirs in TORCH_DTYPES.items()}

TOP_BIT = -(2**63)
"""As an int64: exclusive or with it turns the order of int64 into that of uint64, and back."""

_CARRIERS: dict[torch.dtype, torch.dtype] = {
    torch.uint16: torch.int64,
    torch.uint32: torch.int64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}


def from_numpy(array: np.ndarray) -> Tensor:
    """A tensor of the array's elements; it shares their memory if that can be written.

    >>> from_numpy(np.array([1.5, 2], ml_dtypes.bfloat16))
    tensor([1.5000, 2.0000], dtype=torch.bfloat16)
    """
    # Torch warns of what is read-only, and refuses negative strides.
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = np.array(array, order="C")
    if array.dtype == dtypes.BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def placed(array: np.ndarray) -> Tensor:
    """A tensor of the array's elements on the device that is computed on now."""
    return from_numpy(array).to(torch.get_default_device())


def to_numpy(tensor: Tensor, dtype: np.dtype) -> np.ndarray:
    """The array of the tensor's elements, which must be of this dtype.

    >>> to_numpy(torch.tensor([2, 3], dtype=torch.uint32), np.dtype("uint32"))
    array([2, 3], dtype=uint32)
    """
    if tensor.dtype != TORCH_DTYPES[dtype]:
        raise TypeError(f"a tensor of {tensor.dtype} does not hold elements of {dtype}")
    tensor = tensor.detach().cpu()
    if dtype == dtypes.BFLOAT16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def is_float(tensor: Tensor) -> bool:
    """Whether elements are floats."""
    return tensor.dtype.is_floating_point


def carried(tensor: Tensor) -> Tensor:
    """The tensor in the dtype it is computed in."""
    if tensor.dtype == torch.uint64:
        return tensor.view(torch.int64)
    return tensor.to(_CARRIERS.get(tensor.dtype, tensor.dtype))


def restored(carrier: Tensor, dtype: torch.dtype) -> Tensor:
    """The elements of a carrier in the dtype they are held in; integers wrap."""
    if dtype == torch.uint64 and carrier.dtype == torch.int64:
        return carrier.view(torch.uint64)
    return carrier.to(dtype)


def ordered(tensor: Tensor) -> Tensor:
    """The carrier whose order is that of the elements; truth values, which torch does not sort, as uint8."""
    if tensor.dtype == torch.uint64:
        return carried(tensor) ^ TOP_BIT
    return tensor.to(torch.uint8) if tensor.dtype == torch.bool else carried(tensor)


def unordered(carrier: Tensor, dtype: torch.dtype) -> Tensor:
    """The elements of an ordered carrier."""
    return restored(carrier ^ TOP_BIT if dtype == torch.uint64 else carrier, dtype)


def summed(tensor: Tensor) -> Tensor:
    """The carrier in which many elements are added or multiplied."""
    carrier = carried(tensor)
    return carrier if is_float(carrier) or carrier.is_complex() else carrier.to(torch.int64)


def number(value: float | int | bool, dtype: torch.dtype) -> float | int | bool:
    """A value as its carrier has it: one of uint64 may be negative there."""
    return value - 2**64 if dtype == torch.uint64 and value >= 2**63 else value
