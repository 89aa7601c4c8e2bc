"""Convolution and pooling over the last axes; channels come before them, as in PyTorch.

A transposed convolution is one of the input with zeros between its elements, by the kernel turned around."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from polyrhythm.compiler.ir.ops.checks import show
from polyrhythm.compiler.ir.terms import Term, maximum, minimum
from polyrhythm.errors import ShapeError
from polyrhythm.language.functions.arithmetic import add, divide
from polyrhythm.language.functions.creation import ones
from polyrhythm.language.functions.shapes import flip, squeeze, transpose, unsqueeze
from polyrhythm.language.functions.support import (
    Length,
    TensorLike,
    accumulated,
    as_float,
    as_tensor,
    cast_to,
    promoted,
    reshaped,
)
from polyrhythm.language.index import Index, index_of, term_of
from polyrhythm.language.tensor import Tensor, apply

# fmt: off
__all__ = [
    "avg_pool", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "max_pool",
]
# fmt: on

Padding = Length | Sequence[Length] | Sequence[Sequence[Length]] | Literal["same", "valid"]
"""One width for all sides, one per axis, a (before, after) pair per axis, or a word."""


def conv1d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution of x (batch, channels, length), or without the batch, with weight (outputs, channels, window).

    With several `groups` the weight has only the channels of one group. The length may be dynamic.
    `padding="same"` keeps it (divided by the stride, rounded up).

    >>> import polyrhythm as pr
    >>> x = pr.constant([[[1.0, 2.0, 3.0]]])
    >>> pr.evaluate(pr.conv1d(x, pr.constant([[[1.0, 1.0]]]), padding="same"))
    array([[[3., 5., 3.]]], dtype=float32)
    """
    return _convolved("conv1d", 1, x, weight, bias, stride, padding, dilation, groups)


def conv2d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution of x (batch, channels, height, width), or without the batch, with weight of four axes.

    Those are outputs, channels (of one group), window height and window width.

    >>> import polyrhythm as pr
    >>> x = pr.ones((1, 3, 4, 5))
    >>> pr.conv2d(x, pr.ones((2, 3, 3, 3)), stride=2, padding=1).shape
    (1, 2, 2, 3)
    """
    return _convolved("conv2d", 2, x, weight, bias, stride, padding, dilation, groups)


def conv3d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution of x (batch, channels, depth, height, width), or without the batch, with weight of five axes.

    >>> import polyrhythm as pr
    >>> pr.conv3d(pr.ones((1, 3, 4, 4, 5)), pr.ones((2, 3, 3, 3, 3)), padding="same").shape
    (1, 2, 4, 4, 5)
    """
    return _convolved("conv3d", 3, x, weight, bias, stride, padding, dilation, groups)


def conv_transpose1d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    """Transposed convolution of x (batch, channels, length) with weight (channels, outputs / groups, window).

    It maps shapes as the gradient of a convolution by its input does: the length n becomes
    `(n - 1) * stride - 2 * padding + dilation * (window - 1) + output_padding + 1`, as in torch.

    >>> import polyrhythm as pr
    >>> x = pr.constant([[[1.0, 2.0]]])
    >>> pr.evaluate(pr.conv_transpose1d(x, pr.constant([[[1.0, 10.0, 100.0]]]), stride=2))
    array([[[  1.,  10., 102.,  20., 200.]]], dtype=float32)
    """
    return _transposed("conv_transpose1d", 1, x, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose2d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    """As `conv_transpose1d`, of x (batch, channels, height, width) with weight of four axes.

    >>> import polyrhythm as pr
    >>> pr.conv_transpose2d(pr.ones((1, 3, 4, 5)), pr.ones((3, 2, 2, 2)), stride=2).shape
    (1, 2, 8, 10)
    """
    return _transposed("conv_transpose2d", 2, x, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose3d(
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    """As `conv_transpose1d`, of x (batch, channels, depth, height, width) with weight of five axes.

    >>> import polyrhythm as pr
    >>> pr.conv_transpose3d(pr.ones((3, 2, 2, 2)), pr.ones((3, 1, 3, 3, 3)), padding=1).shape
    (1, 2, 2, 2)
    """
    return _transposed("conv_transpose3d", 3, x, weight, bias, stride, padding, output_padding, groups, dilation)


def max_pool(
    x: TensorLike,
    window: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: Padding = 0,
) -> Tensor:
    """The greatest element of each window over the last axes, one per entry of `window`; the stride is the window.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.max_pool(pr.constant([1.0, 3.0, 2.0, 5.0]), 2))
    array([3., 5.], dtype=float32)
    """
    return _pooled("max", as_tensor(x), window, stride, padding)


def avg_pool(
    x: TensorLike,
    window: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: Padding = 0,
    count_padding: bool = True,
) -> Tensor:
    """The mean of each window over the last axes, one per entry of `window`; the stride is the window.

    Padding counts as zeros; with `count_padding=False` it does not count.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.avg_pool(pr.constant([1.0, 3.0, 2.0, 5.0]), 2))
    array([2. , 3.5], dtype=float32)
    """
    operand = as_float(x)
    wide = accumulated(operand)
    total = _pooled("sum", wide, window, stride, padding)
    sizes = _sizes(window)
    if count_padding:
        count: TensorLike = float(np.prod(sizes))
    else:
        places = ones([index_of(n) for n in wide.type.shape[-len(sizes) :]], wide.dtype)
        count = _pooled("sum", places, window, stride, padding)
    return cast_to(divide(total, count), operand.dtype)


def _convolved(
    name: str,
    axes: int,
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    stride: int | Sequence[int],
    padding: Padding,
    dilation: int | Sequence[int],
    groups: int,
) -> Tensor:
    (operand, kernel), _ = promoted(x, weight)
    _check_ranks(name, axes, operand, kernel, "outputs, channels / groups, window")
    batched = operand.rank == axes + 2
    image = operand if batched else unsqueeze(operand, 0)
    steps, spread = _each(stride, axes, "stride"), _each(dilation, axes, "dilation")
    lengths, window = image.type.shape[2:], kernel.type.shape[2:]
    pairs = _padding(padding, lengths, window, steps, spread)
    result = apply("conv", image, kernel, stride=steps, padding=pairs, dilation=spread, groups=groups)
    result = result if batched else squeeze(result, 0)
    return result if bias is None else add(result, unsqueeze(as_tensor(bias), tuple(range(-axes, 0))))


def _check_ranks(name: str, axes: int, x: Tensor, kernel: Tensor, weights: str) -> None:
    if x.rank not in (axes + 1, axes + 2) or kernel.rank != axes + 2:
        wanted = ", ".join(["batch", "channels", *(["length"] if axes == 1 else ["depth", "height", "width"][-axes:])])
        raise ShapeError(
            f"{name} of shapes {show(x.type.shape)} and {show(kernel.type.shape)}",
            fix=f"give x the shape ({wanted}) and the weight as many axes: {weights}",
        )


def _transposed(
    name: str,
    axes: int,
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    output_padding: int | Sequence[int],
    groups: int,
    dilation: int | Sequence[int],
) -> Tensor:
    (operand, kernel), _ = promoted(x, weight)
    _check_ranks(name, axes, operand, kernel, "channels, outputs / groups, window")
    batched = operand.rank == axes + 2
    image = operand if batched else unsqueeze(operand, 0)
    steps, spread = _each(stride, axes, "stride"), _each(dilation, axes, "dilation")
    less, more = (_each(value, axes, "padding", least=0) for value in (padding, output_padding))
    channels, outputs, *window = kernel.type.shape
    if not channels.is_constant or channels.constant % groups:
        raise ShapeError(f"{name} with {channels} channels in {groups} groups", fix="give groups that divide them")
    # One group after the other, and within it outputs before channels; windows are turned around.
    parted = reshaped(kernel, (Term(groups), Term(channels.constant // groups), outputs, *window))
    turned = flip(transpose(parted, (0, 2, 1, *range(3, axes + 3))), tuple(range(3, axes + 3)))
    turned = reshaped(turned, (groups * outputs, Term(channels.constant // groups), *window))
    pairs = []
    for axis in range(axes):
        reach = spread[axis] * (window[axis] - 1)
        image = _spread(image, axis + 2, steps[axis])
        before, after = reach - less[axis], reach - less[axis] + more[axis]
        if not (before.is_constant and after.is_constant):
            raise ShapeError(f"{name} with a window of dynamic length", fix="give the weight a fixed shape")
        image = _cropped(image, axis + 2, max(0, -before.constant), max(0, -after.constant))
        pairs.append((Term(max(0, before.constant)), Term(max(0, after.constant))))
    ones = (1,) * axes
    result = apply("conv", image, turned, stride=ones, padding=tuple(pairs), dilation=spread, groups=groups)
    result = result if batched else squeeze(result, 0)
    return result if bias is None else add(result, unsqueeze(as_tensor(bias), tuple(range(-axes, 0))))


def _spread(x: Tensor, axis: int, step: int) -> Tensor:
    """The elements along an axis with zeros between them, so that they are `step` apart."""
    if step == 1:
        return x
    shape = x.type.shape
    apart = reshaped(x, (*shape[: axis + 1], Term(1), *shape[axis + 1 :]))
    none, zeros = Term(0), [Term(0)] * apart.rank
    zeros[axis + 1] = Term(step - 1)
    apart = apply("pad", apart, before=(none,) * apart.rank, after=tuple(zeros), value=0)
    return _cropped(reshaped(apart, (*shape[:axis], shape[axis] * step, *shape[axis + 1 :])), axis, 0, step - 1)


def _cropped(x: Tensor, axis: int, before: int, after: int) -> Tensor:
    """x without some elements at the ends of an axis, or nothing where it has fewer."""
    if not before and not after:
        return x
    length = maximum(Term(0), x.type.shape[axis] - before - after)
    starts, lengths = [Term(0)] * x.rank, list(x.type.shape)
    starts[axis], lengths[axis] = minimum(Term(before), x.type.shape[axis] - length), length
    return apply("slice", x, starts=tuple(starts), lengths=tuple(lengths), steps=(1,) * x.rank)


def _pooled(
    monoid: str, x: Tensor, window: int | Sequence[int], stride: int | Sequence[int] | None, padding: Padding
) -> Tensor:
    sizes = _sizes(window)
    if len(sizes) > x.rank:
        raise ShapeError(
            f"a window over {len(sizes)} axes of a value of shape {show(x.type.shape)}",
            fix="give the window at most one entry per axis",
        )
    steps = sizes if stride is None else _each(stride, len(sizes), "stride")
    lengths = x.type.shape[x.rank - len(sizes) :]
    pairs = _padding(padding, lengths, tuple(map(Term, sizes)), steps, (1,) * len(sizes))
    return apply("reduce_window", x, monoid=monoid, window=sizes, stride=steps, padding=pairs)


def _sizes(window: int | Sequence[int]) -> tuple[int, ...]:
    return (int(window),) if isinstance(window, (int, np.integer)) else tuple(map(int, window))


def _each(value: int | Sequence[int], axes: int, what: str, least: int = 1) -> tuple[int, ...]:
    """One entry per axis from one for all."""
    entries = (int(value),) * axes if isinstance(value, (int, np.integer)) else tuple(map(int, value))
    if len(entries) != axes or min(entries, default=least) < least:
        raise ShapeError(
            f"the {what} {value} over {axes} axes", fix=f"give one {what} from {least} up, or one per axis"
        )
    return entries


def _padding(
    padding: Padding,
    lengths: tuple[Term, ...],
    window: tuple[Term, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[tuple[Term, Term], ...]:
    if padding == "same":
        return tuple(map(_same, lengths, window, stride, dilation))
    if padding == "valid":
        return ((Term(0), Term(0)),) * len(lengths)
    single = (int, np.integer, Index)
    entries = (padding,) * len(lengths) if isinstance(padding, single) else tuple(padding)
    pairs = [(entry, entry) if isinstance(entry, single) else entry for entry in entries]
    if isinstance(padding, str) or len(pairs) != len(lengths) or any(len(pair) != 2 for pair in pairs):
        raise ShapeError(
            f"the padding {padding!r} over {len(lengths)} axes",
            fix='write one width, one per axis, one (before, after) pair per axis, "same" or "valid"',
        )
    return tuple((term_of(before), term_of(after)) for before, after in pairs)


def _same(length: Term, window: Term, stride: int, dilation: int) -> tuple[Term, Term]:
    """The padding that gives one window per stride, the odd element after."""
    count = (length + (stride - 1)) // stride
    total = maximum(Term(0), (count - 1) * stride + (window - 1) * dilation + 1 - length)
    return total // 2, total - total // 2
