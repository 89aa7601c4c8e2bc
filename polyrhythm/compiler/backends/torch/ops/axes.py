"""Operations along axes and contractions: reductions, arguments of extrema, cumulative reductions, sorting, einsum."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from polyrhythm.compiler.backends.torch.ops.carriers import (
    NUMPY_DTYPES,
    from_numpy,
    is_float,
    ordered,
    restored,
    summed,
    unordered,
)
from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.ops import TABLE

Tensor = torch.Tensor

_SUMS = ("sum", "prod")


def identity(monoid: str, dtype: torch.dtype) -> Tensor:
    """The neutral element of a monoid, as a scalar."""
    return from_numpy(dtypes.identity(monoid, NUMPY_DTYPES[dtype]))


def carrier_of(monoid: str, x: Tensor) -> Tensor:
    """The carrier in which a monoid combines elements."""
    return summed(x) if monoid in _SUMS else ordered(x)


def element_of(monoid: str, carrier: Tensor, dtype: torch.dtype) -> Tensor:
    """The elements of such a carrier."""
    return restored(carrier, dtype) if monoid in _SUMS else unordered(carrier, dtype)


def combined(monoid: str, carrier: Tensor, axes: Sequence[int]) -> Tensor:
    """A carrier reduced over some axes, none of them empty."""
    if monoid == "sum":
        return torch.sum(carrier, tuple(axes), dtype=carrier.dtype)
    if monoid == "prod":
        for axis in sorted(axes, reverse=True):
            carrier = torch.prod(carrier, axis, dtype=carrier.dtype)
        return carrier
    return (torch.amax if monoid in ("max", "any") else torch.amin)(carrier, tuple(axes))


def _reduce(x: Tensor, monoid: str, axes: tuple[int, ...]) -> Tensor:
    if not axes:
        return x
    if any(x.shape[axis] == 0 for axis in axes):
        shape = [n for axis, n in enumerate(x.shape) if axis not in axes]
        return identity(monoid, x.dtype).to(x.device).expand(shape).clone()
    return element_of(monoid, combined(monoid, carrier_of(monoid, x), axes), x.dtype)


def _cumulative(x: Tensor, monoid: str, axis: int, reverse: bool) -> Tensor:
    carrier = carrier_of(monoid, x)
    carrier = carrier.flip(axis) if reverse else carrier
    if monoid in _SUMS:
        result = (torch.cumsum if monoid == "sum" else torch.cumprod)(carrier, axis, dtype=carrier.dtype)
    elif x.numel() == 0:
        result = carrier
    else:
        result = (torch.cummax if monoid in ("max", "any") else torch.cummin)(carrier, axis).values
    return element_of(monoid, result.flip(axis) if reverse else result, x.dtype)


@torch.library.custom_op("polyrhythm::linear_scan", mutates_args=())
def _stepped(a: Tensor, b: Tensor, axis: int, reverse: bool) -> Tensor:
    """The steps one by one; one operation to `torch.compile`, which would otherwise write them all out."""
    values = TABLE["linear_scan"].numpy(a.cpu().numpy(), b.cpu().numpy(), axis=axis, reverse=reverse)
    return torch.from_numpy(values).to(b.device)


@_stepped.register_fake
def _(a: Tensor, b: Tensor, axis: int, reverse: bool) -> Tensor:
    return torch.empty_like(b)


def _linear_scan(a: Tensor, b: Tensor, axis: int, reverse: bool) -> Tensor:
    return restored(_stepped(summed(a).contiguous(), summed(b).contiguous(), axis, reverse), b.dtype)


def _argsort(x: Tensor, axis: int, descending: bool) -> Tensor:
    keys = ordered(x)
    if descending:
        # Reversing the order of the keys, not of the result, keeps equal elements in index order and NaN last.
        keys = -keys if is_float(keys) else ~keys
    return torch.sort(keys, dim=axis, stable=True).indices.to(torch.int32)


def _fft(x: Tensor, inverse: bool) -> Tensor:
    return x if x.numel() == 0 else (torch.fft.ifft if inverse else torch.fft.fft)(x)


IMPLEMENTATIONS: dict[str, Callable[..., Tensor]] = {
    "reduce": _reduce,
    "argreduce": lambda x, which, axis: getattr(torch, f"arg{which}")(ordered(x), axis).to(torch.int32),
    "cumulative": _cumulative,
    "linear_scan": _linear_scan,
    "argsort": _argsort,
    "einsum": lambda *x, spec: restored(torch.einsum(spec, *map(summed, x)), x[0].dtype),
    "fft": _fft,
}
