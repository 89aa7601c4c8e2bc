"""Operations that move elements: shapes, data-dependent indexing, windows.

Updates that a scatter drops are sent to one more row, which is cut off afterwards: no shape depends on data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from string import ascii_letters

import torch
from torch.nn import functional

from polyrhythm.compiler.backends.torch.ops.axes import carrier_of, combined, element_of, identity
from polyrhythm.compiler.backends.torch.ops.carriers import (
    carried,
    is_float,
    number,
    ordered,
    restored,
    summed,
    unordered,
)
from polyrhythm.compiler.ir.ops.windows import window_counts

Tensor = torch.Tensor
Ints = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]


def _pad(x: Tensor, before: Ints, after: Ints, value: bool | int | float) -> Tensor:
    pairs = tuple(zip(before, after, strict=True))
    return restored(_padded(carried(x), pairs, number(value, x.dtype)), x.dtype)


def _padded(x: Tensor, pairs: Pairs, value: bool | int | float) -> Tensor:
    """The tensor with its last axes lengthened; torch's own `pad` makes a float64 of the value."""
    pairs = ((0, 0),) * (x.ndim - len(pairs)) + pairs
    result = x.new_full([low + n + high for n, (low, high) in zip(x.shape, pairs, strict=True)], value)
    result[tuple(slice(low, low + n) for n, (low, _) in zip(x.shape, pairs, strict=True))] = x
    return result


def _slice(x: Tensor, starts: Ints, lengths: Ints, steps: Ints) -> Tensor:
    index, backward = [], []
    for axis, (start, length, step, whole) in enumerate(zip(starts, lengths, steps, x.shape, strict=True)):
        last = start + (length - 1) * step
        if length < 0 or (length > 0 and not (0 <= start < whole and 0 <= last < whole)):
            raise ValueError(
                f"slice of {length} elements from {start} in steps of {step} leaves an axis of length {whole}"
            )
        first, end = min(start, last), max(start, last)
        index.append(slice(first, end + 1, abs(step)) if length else slice(0, 0))
        if step < 0:
            backward.append(axis)
    cut = x[tuple(index)]
    return restored(carried(cut).flip(backward), x.dtype) if backward else cut


def _positions(indices: Tensor) -> Tensor:
    """The indices as int64; those too large for it stay larger than any length."""
    positions = carried(indices).to(torch.int64)
    return torch.where(positions < 0, 2**62, positions) if indices.dtype == torch.uint64 else positions


def _targets(indices: Tensor, length: int) -> Tensor:
    """Where updates go: one beyond the end if their index is outside."""
    positions = _positions(indices)
    return torch.where((positions >= 0) & (positions < length), positions, length)


def _lengthened(base: Tensor, axis: int) -> Tensor:
    shape = (*base.shape[:axis], 1, *base.shape[axis + 1 :])
    return torch.cat((base, base.new_zeros(shape)), axis)


def _take(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    if x.shape[axis] == 0:
        return x.new_zeros(shape)
    positions = _positions(indices).clamp(0, x.shape[axis] - 1)
    return restored(carried(x).index_select(axis, positions.reshape(-1)).reshape(shape), x.dtype)


def _take_along(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    others = [0 if 0 in pair else max(pair) for pair in zip(x.shape, indices.shape, strict=True)]
    length, count = x.shape[axis], indices.shape[axis]
    shape = (*others[:axis], count, *others[axis + 1 :])
    if length == 0:
        return x.new_zeros(shape)
    positions = _positions(indices).clamp(0, length - 1).expand(shape)
    source = carried(x).expand((*others[:axis], length, *others[axis + 1 :]))
    return restored(torch.gather(source, axis, positions), x.dtype)


def _scatter_add(base: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    length = base.shape[axis]
    targets = _targets(indices, length).reshape(-1)
    values = summed(updates).reshape((*base.shape[:axis], targets.numel(), *base.shape[axis + 1 :]))
    total = _lengthened(summed(base), axis).index_add(axis, targets, values)
    return restored(total.narrow(axis, 0, length), base.dtype)


def _scatter(base: Tensor, indices: Tensor, updates: Tensor, axis: int, mode: str, unique: bool) -> Tensor:
    length = base.shape[axis]
    targets = _targets(indices, length).reshape(-1)
    shape = (*base.shape[:axis], targets.numel(), *base.shape[axis + 1 :])
    if 0 in shape:
        return base
    if mode != "set":
        rows = ordered(updates).reshape(shape)
        longer = _lengthened(ordered(base), axis)
        places = targets.reshape((-1, *[1] * (base.ndim - axis - 1))).expand(shape)
        found = longer.scatter_reduce(axis, places, rows, f"a{mode}")
        return unordered(found.narrow(axis, 0, length), base.dtype)
    # Of several updates for one position the last counts.
    order = torch.arange(targets.numel())
    last = torch.full((length + 1,), -1).scatter_reduce(0, targets, order, "amax")[:length]
    taken = carried(updates).reshape(shape).index_select(axis, last.clamp(min=0))
    written = (last >= 0).reshape((-1, *[1] * (base.ndim - axis - 1)))
    return restored(torch.where(written, taken, carried(base)), base.dtype)


def _scatter_along(base: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    length = base.shape[axis]
    targets = _targets(indices, length).expand(updates.shape)
    total = _lengthened(summed(base), axis).scatter_add(axis, targets, summed(updates))
    return restored(total.narrow(axis, 0, length), base.dtype)


def _unfolded(x: Tensor, window: Sequence[int], stride: Ints, dilation: Ints) -> Tensor:
    """All windows over the last axes, as a view: their positions become further axes. At least one window must fit."""
    first = x.ndim - len(window)
    for axis, (size, step, apart) in enumerate(zip(window, stride, dilation, strict=True), first):
        x = x.unfold(axis, (size - 1) * apart + 1, step)[..., ::apart]
    return x


def _conv(x: Tensor, w: Tensor, stride: Ints, padding: Pairs, dilation: Ints, groups: int) -> Tensor:
    padded, weights = _padded(summed(x), padding, 0), summed(w)
    counts = window_counts(padded.shape[2:], w.shape[2:], stride, dilation)
    shape = (x.shape[0], w.shape[0], *counts)
    if 0 in shape or x.shape[1] == 0:
        return x.new_zeros(shape)
    if is_float(x) and len(counts) in (1, 2, 3):
        convolution = (functional.conv1d, functional.conv2d, functional.conv3d)[len(counts) - 1]
        return restored(convolution(padded, weights, None, stride, 0, dilation, groups), x.dtype)
    # Torch convolves floats only, over one to three axes.
    windows = _unfolded(padded, w.shape[2:], stride, dilation)
    windows = windows.reshape((x.shape[0], groups, w.shape[1], *windows.shape[2:]))
    weights = weights.reshape((groups, w.shape[0] // groups, *w.shape[1:]))
    rest = iter(ascii_letters[4:])
    across, inside = ("".join(next(rest) for _ in counts) for _ in range(2))
    total = torch.einsum(f"abc{across}{inside},bdc{inside}->abd{across}", windows, weights)
    return restored(total.reshape(shape), x.dtype)


def _reduce_window(x: Tensor, monoid: str, window: Ints, stride: Ints, padding: Pairs) -> Tensor:
    kept, ones = x.ndim - len(window), (1,) * len(window)
    start = identity(monoid, x.dtype)
    fill = carrier_of(monoid, start).item()
    padded = _padded(carrier_of(monoid, x), padding, fill)
    counts = window_counts(padded.shape[kept:], window, stride, ones)
    if 0 in counts or prod(padded.shape) == 0:
        return start.to(x.device).expand((*x.shape[:kept], *counts)).clone()
    if not window:
        return x
    windows = _unfolded(padded, window, stride, ones)
    return element_of(monoid, combined(monoid, windows, range(x.ndim, windows.ndim)), x.dtype)


IMPLEMENTATIONS: dict[str, Callable[..., Tensor]] = {
    "reshape": lambda x, shape: x.reshape(shape),
    "transpose": lambda x, axes: x.permute(axes),
    "copy": lambda x: x,
    "broadcast": lambda x, shape: x.expand(shape),
    "choose": lambda a, b, condition, shape: (a if condition else b).expand(shape),
    "concat": lambda *tensors, axis: torch.cat(tensors, axis),
    "pad": _pad,
    "slice": _slice,
    "take": _take,
    "take_along": _take_along,
    "scatter": _scatter,
    "scatter_add": _scatter_add,
    "scatter_along": _scatter_along,
    "conv": _conv,
    "reduce_window": _reduce_window,
}
