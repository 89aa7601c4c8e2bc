"""`einsum` as `dot_general`: never a product that is broadcast, stored and then summed.

A label that repeats within an operand becomes its diagonal, a label that only one operand has and the output has
not is summed first; what both operands have is then a batch axis if the output has it and contracted if not. If
nothing is contracted a product is left, and the compiler fuses it.

Contracted axes of unknown length are masked with zeros, unless zeros are known to be there. Integers are masked in one
operand, since zero times garbage is zero; floats in both, since zero times NaN is not: masking an operand copies it,
which matters for a large buffer that is read at every step. A buffer that many lanes share is not masked: if it is
finite, that is not needed, and where it is not, the lanes are done once more one after the other, with both operands
masked. 16-bit floats are accumulated in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from polyrhythm.compiler.backends.jax.ops import ring
from polyrhythm.compiler.backends.jax.ops.padded import (
    Implementation,
    Length,
    Padded,
    Result,
    fit,
    is_one,
    is_static,
    masked,
)
from polyrhythm.compiler.backends.jax.ops.quantised import packed_einsum, unpacked
from polyrhythm.compiler.backends.jax.ops.reductions import widened
from polyrhythm.compiler.backends.jax.products import choose, skinny, tall, windows
from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.ops.contraction import parse_spec

Array = jax.Array


class _Labelled:
    """An operand and the labels of its axes."""

    def __init__(self, value: Padded, labels: str, capacities: Mapping[str, int]) -> None:
        array = fit(value.array, [capacities[label] for label in labels])
        self.value, self.labels = replace(value, array=array), labels
        for label in dict.fromkeys(labels):
            while self.labels.count(label) > 1:
                self._take_diagonal(label)

    def _take_diagonal(self, label: str) -> None:
        first = self.labels.index(label)
        second = self.labels.index(label, first + 1)
        kept = [axis for axis in range(len(self.labels)) if axis not in (first, second)]
        # Stored as one axis, every n + 1st element is on the diagonal.
        array = lax.transpose(self.value.array, (*kept, first, second))
        *rest, n, _ = array.shape
        array = lax.reshape(array, (*rest, n * n))
        array = lax.slice(array, [0] * array.ndim, array.shape, (*[1] * len(rest), n + 1))
        self.value = self.value.with_axes(array, (*kept, first))
        self.labels = "".join(self.labels[axis] for axis in kept) + label

    def axes(self, labels: str) -> tuple[int, ...]:
        """Where some labels are."""
        return tuple(self.labels.index(label) for label in labels)

    def is_dynamic(self, label: str) -> bool:
        """Whether the length of a label is known only at run time."""
        return not is_static(self.value.lengths[self.labels.index(label)])

    @property
    def is_finite(self) -> bool:
        """Whether zero times the padding is zero."""
        return self.value.zeros or not dtypes.is_inexact(self.value.array.dtype)

    def mask(self, labels: str) -> None:
        """Zeros beyond the lengths of some labels."""
        if not self.value.zeros:
            self.value = replace(self.value, array=masked(self.value, self.axes(labels), 0))

    def sum_over(self, labels: str) -> None:
        """Sum some labels away, in the dtype of the accumulator."""
        if not labels:
            return
        axes = self.axes(labels)
        self.value = widened(self.value)
        self.mask(labels)
        total = lax.reduce(self.value.array, np.zeros((), self.value.array.dtype), lax.add, axes)
        left = [axis for axis in range(len(self.labels)) if axis not in axes]
        self.value = replace(self.value.with_axes(total, left), shared=None)
        self.labels = "".join(label for label in self.labels if label not in labels)


def _einsum(operands: Sequence[Padded], attributes: Mapping[str, Any], result: Result) -> Array:
    words, output = parse_spec(attributes["spec"])
    if any(value.packed is not None for value in operands):
        array = packed_einsum(operands, words, output, result)
        if array is not None:
            return array
        operands = [unpacked(value) for value in operands]
    if ones := _ones(operands, words):
        # An axis of length one next to an updated buffer makes XLA copy the buffer before the dot.
        spec = ",".join(_without(word, ones) for word in words) + "->" + _without(output, ones)
        slim = [_squeezed(value, word, ones) for value, word in zip(operands, words, strict=True)]
        kept = [axis for axis, label in enumerate(output) if label not in ones]
        room = tuple(result.capacities[axis] for axis in kept)
        lengths = tuple(result.lengths[axis] for axis in kept)
        array = _einsum(slim, {"spec": spec}, Result(room, lengths, result.dtype))
        return lax.reshape(array, result.capacities)
    capacities = _capacities(operands, words, output, result)
    parts = [_Labelled(value, word, capacities) for value, word in zip(operands, words, strict=True)]
    for own, others in zip(parts, (parts[1:], parts[:1]), strict=False):
        elsewhere = output + "".join(other.labels for other in others)
        own.sum_over("".join(label for label in own.labels if label not in elsewhere))
    if len(parts) == 1:
        array, labels = parts[0].value.array, parts[0].labels
    else:
        array, labels = _product(parts[0], parts[1], output)
    order = [labels.index(label) for label in output]
    array = array if order == sorted(order) else lax.transpose(array, order)
    return lax.convert_element_type(array, result.dtype)


def _ones(operands: Sequence[Padded], words: Sequence[str]) -> set[str]:
    """The labels that have length one wherever they occur."""
    found: dict[str, bool] = {}
    for value, word in zip(operands, words, strict=True):
        for label, length in zip(word, value.lengths, strict=True):
            found[label] = is_one(length) and found.get(label, True)
    return {label for label, one in found.items() if one}


def _without(word: str, labels: set[str]) -> str:
    return "".join(label for label in word if label not in labels)


def _squeezed(value: Padded, word: str, labels: set[str]) -> Padded:
    axes = [axis for axis, label in enumerate(word) if label in labels]
    # A value that was kept may have more room than its length in this iteration.
    array = fit(value.array, [1 if axis in axes else size for axis, size in enumerate(value.array.shape)])
    slim = value.with_axes(lax.squeeze(array, axes), [axis for axis in range(len(word)) if axis not in axes])
    return (
        slim if value.window is None or value.window.axis in axes else replace(slim, window=value.window.without(axes))
    )


def _capacities(operands: Sequence[Padded], words: Sequence[str], output: str, result: Result) -> dict[str, int]:
    """One capacity for each label: that of the result, else the least that any operand has."""
    found: dict[str, int] = {}
    for value, word in zip(operands, words, strict=True):
        for label, capacity in zip(word, value.array.shape, strict=True):
            found[label] = min(capacity, found.get(label, capacity))
    return found | dict(zip(output, result.capacities, strict=True))


def _product(a: _Labelled, b: _Labelled, output: str) -> tuple[Array, str]:
    """The product of two operands, contracted over what both have and the output has not; and its labels."""
    shared = "".join(label for label in a.labels if label in b.labels)
    batch = "".join(label for label in shared if label in output)
    contracted = "".join(label for label in shared if label not in output)
    # The sum over one operand's own axes may have left it wider than the other.
    wide = dtypes.accumulator(a.value.array.dtype)
    if not contracted or a.value.array.dtype != b.value.array.dtype:
        a.value, b.value = widened(a.value), widened(b.value)
    if not contracted:
        return _outer(a, b, batch)
    unmasked = _mask_contracted(a, b, contracted)
    if a.value.array.size > b.value.array.size:
        # The smaller operand is what differs between the lanes of a loop done at once. Written first, its lanes come
        # before the larger one's own axes in the product, which then needs no transposing.
        a, b = b, a
    own = "".join(label for word in (a.labels, b.labels) for label in word if label not in shared)
    around = ((a.axes(contracted), b.axes(contracted)), (a.axes(batch), b.axes(batch)))
    if ring.can_go_round(b.value.ring, b.value.array, around) and not b.value.starts:
        return _around(a, b, around, wide, unmasked), batch + own
    used = _in_use(b, batch)
    if unmasked is None and used is None and not batch and _is_rows_by_matrix(b, contracted):
        rows = lax.transpose(a.value.array, a.axes("".join(x for x in a.labels if x != contracted) + contracted))
        return skinny.product(rows, b.value.array), own
    if unmasked is None and not batch and _is_over_rows(a, b, contracted):
        return tall.product(a.value.array, b.value.array, len(contracted), own != output), own
    dimensions = ((a.axes(contracted), b.axes(contracted)), (a.axes(batch), b.axes(batch)))
    if unmasked is None and b.value.window is not None:
        whole, axis, start = b.value.window.whole, b.value.window.axis, b.value.window.start
        return windows.product(
            a.value.array, whole, start, dimensions, wide, axis, b.value.array.shape[axis]
        ), batch + own
    if unmasked is None and (used is not None or batch or b.labels.startswith(contracted)):
        return choose.product(a.value.array, b.value.array, dimensions, wide, used), batch + own
    dot = partial(lax.dot_general, dimension_numbers=dimensions, preferred_element_type=wide)
    array = dot(a.value.array, b.value.array)
    if unmasked is not None:
        array = _exact(a, b, dot, array, *unmasked)
    return array, batch + own


def _around(a: _Labelled, b: _Labelled, dimensions: Any, wide: Any, unmasked: tuple[_Labelled, str] | None) -> Array:
    """A product with an operand that is spread over the devices of the lanes."""
    x, y, spread = a.value.array, b.value.array, b.value.ring
    assert spread is not None
    array = ring.product(x, y, dimensions, wide, spread)
    if unmasked is None:
        return array
    if unmasked[0] is not b:
        dot = partial(lax.dot_general, dimension_numbers=dimensions, preferred_element_type=wide)
        return _exact(a, b, dot, array, *unmasked)
    (axis,) = b.axes(unmasked[1])
    assert b.value.shared is not None
    length = b.value.lengths[axis]

    def again(_: Array) -> Array:
        return ring.masked_product(x, y, length, axis, dimensions, wide, spread)

    chosen: Array = lax.cond(b.value.shared(y), lambda made: made, again, array)
    return chosen


def _is_rows_by_matrix(b: _Labelled, contracted: str) -> bool:
    """Whether a product may be one of rows and a matrix stored (out, in), its larger operand."""
    return len(b.labels) > 1 and b.labels[-1] == contracted and dtypes.is_float(b.value.array.dtype)


def _in_use(b: _Labelled, batch: str) -> tuple[int, Length] | None:
    """The first axis of the matrices in an operand and how much of it is in use, if that is known at run time only."""
    axis = next((axis for axis, label in enumerate(b.labels) if label not in batch), None)
    if axis is None or axis in b.value.starts:
        return None
    length = b.value.lengths[axis]
    return None if is_static(length) else (axis, length)


def _is_over_rows(a: _Labelled, b: _Labelled, contracted: str) -> bool:
    """Whether a product is over the first axes of both operands, and these are long enough to treat it as such."""
    count = len(contracted)
    if not a.labels[:count] == b.labels[:count] == contracted or not dtypes.is_float(a.value.array.dtype):
        return False
    m, n = (math.prod(part.value.array.shape[count:]) for part in (a, b))
    return min(m, n) > 1 and tall.is_worth(math.prod(a.value.array.shape[:count]), m, n)


def _mask_contracted(a: _Labelled, b: _Labelled, contracted: str) -> tuple[_Labelled, str] | None:
    """Zeros beyond the lengths: in one operand if the other is finite there, else in both.

    What lanes share is left as it is; it and the labels that would have to be masked are returned.
    """
    # Where one operand knows the length both have been cut to it, and hold no garbage.
    labels = "".join(label for label in contracted if a.is_dynamic(label) and b.is_dynamic(label))
    small, large = (a, b) if a.value.array.size <= b.value.array.size else (b, a)
    if not labels:
        return None
    if large.value.zeros and small.is_finite:
        return None
    if large.is_finite:
        small.mask(labels)
    elif small.is_finite:
        large.mask(labels)
    else:
        small.mask(labels)
        if large.value.shared is not None:
            return large, labels
        large.mask(labels)
    return None


def _exact(
    a: _Labelled, b: _Labelled, dot: Callable[[Array, Array], Array], product: Array, shared: _Labelled, labels: str
) -> Array:
    """The product of two operands if the shared one is finite, else that of both masked, lane by lane."""
    value, axes = shared.value, shared.axes(labels)
    assert value.shared is not None
    lengths = {axis: value.lengths[axis] for axis in axes}
    starts = {axis: value.starts[axis].value for axis in axes if axis in value.starts}

    def masking(x: Array, y: Array, lengths: dict[int, Array], starts: dict[int, Array]) -> Array:
        whole = x if shared is a else y
        known = tuple(lengths.get(axis, n) for axis, n in enumerate(whole.shape))
        begun = {axis: replace(value.starts[axis], value=start) for axis, start in starts.items()}
        clean = masked(Padded(whole, known, starts=begun), axes, 0)
        return dot(clean, y) if shared is a else dot(x, clean)

    def again(_: Array) -> Array:
        made: Array = _one_by_one(masking)(a.value.array, b.value.array, lengths, starts)
        return made

    chosen: Array = lax.cond(value.shared(value.array), lambda made: made, again, product)
    return chosen


def _one_by_one(function: Callable[..., Array]) -> Callable[..., Array]:
    """A function that lanes of the innermost loop call one after the other, though all else is done at once."""
    wrapped = custom_vmap(function)

    @wrapped.def_vmap
    def mapped(size: int, batched: Any, *arguments: Any) -> tuple[Array, bool]:
        leaves, tree = jax.tree.flatten(arguments)
        own = jax.tree.leaves(batched)

        def lane(values: list[Array]) -> Array:
            rest = iter(values)
            given = [next(rest) if is_own else leaf for leaf, is_own in zip(leaves, own, strict=True)]
            return function(*jax.tree.unflatten(tree, given))

        return lax.map(lane, [leaf for leaf, is_own in zip(leaves, own, strict=True) if is_own]), True

    return wrapped


def _outer(a: _Labelled, b: _Labelled, batch: str) -> tuple[Array, str]:
    """The product where nothing is summed."""
    labels = batch + "".join(label for word in (a.labels, b.labels) for label in word if label not in batch)
    sizes = {label: n for part in (a, b) for label, n in zip(part.labels, part.value.array.shape, strict=True)}
    shape = tuple(sizes[label] for label in labels)
    arrays = []
    for part in (a, b):
        order = sorted(range(len(part.labels)), key=lambda axis: labels.index(part.labels[axis]))
        array = lax.transpose(part.value.array, order)
        arrays.append(lax.broadcast_in_dim(array, shape, [labels.index(part.labels[axis]) for axis in order]))
    return lax.mul(*arrays), labels


IMPLEMENTATIONS: dict[str, Implementation] = {"einsum": _einsum}
