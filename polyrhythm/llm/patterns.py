"""Which steps a step attends to, as an index: the only thing that says what is kept of the past.

A pattern is a function of the step symbol. It returns a slice of steps, several slices, or `Seen` with a bias. What is
out of every slice's reach is not kept: that follows from the index, and there is no cache to configure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyrhythm.language.functions import (
    TensorLike,
    as_tensor,
    clip,
    dequantize,
    einsum,
    exp,
    floor,
    maximum,
    reshape,
    softmax,
    tanh,
    value,
    where,
)
from polyrhythm.language.functions import abs as absolute
from polyrhythm.language.index import Dim, index_max
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.arguments import whole

Steps = slice | Mapping[Dim, slice]
"""A slice of steps; where there are steps within steps, a slice along each of the dims."""


@dataclass(frozen=True)
class Seen:
    """The steps that are attended to, and what is added to their scores.

    `bias` has one number for each step seen, in the order of the slices, and may have one row for each head. For
    example attention that falls with the distance (ALiBi; Press et al., 2022):

    >>> import numpy as np
    >>> import polyrhythm as pr
    >>> slopes = np.array([[0.5], [0.25]], "float32")
    >>> alibi = lambda t: Seen(slice(0, t + 1), bias=-slopes * (pr.value(t) - pr.arange(t + 1)))

    `masks` say of each slice what counts, if not all of it: (rows, steps) for the rows of a batch. With one more axis,
    (rows, steps, rows), a row sees those of the others: texts that share a part of their past.
    """

    steps: Steps | Sequence[Steps]
    bias: TensorLike | None = None
    masks: Sequence[Tensor | None] | None = None


Pattern = Callable[[Dim], Any]
"""A function of t: a slice, several slices, or `Seen`."""

Restriction = Callable[[Pattern, int | None], Pattern]
"""What the rows of a batch see of a layer's pattern, which is that of a window if a number is given too."""


def causal(t: Dim) -> slice:
    """Every step up to this one."""
    return slice(0, t + 1)


def window(size: int) -> Pattern:
    """The last steps, this one among them: at least one.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> window(4)(t)
    slice(max(0, t - 3), t + 1, None)
    """
    steps = whole(size, 1, f"a window of {size!r} steps", "give an integer, 1 or more: a step sees itself at least")
    return lambda t: slice(index_max(0, t - steps + 1), t + 1)


@dataclass(frozen=True)
class Coded:
    """Keys or values as int8, with one float16 scale for each vector: what is stored if int8 is asked for."""

    codes: Tensor
    scales: Tensor
    dtype: Any

    @classmethod
    def of(cls, x: Tensor) -> Coded:
        """Vectors along the last axis, rounded to steps of 1/127 of their largest element."""
        wide = x.cast("float32")
        scales = (absolute(wide).max(-1, keepdims=True) / 127.0).cast("float16")
        step = scales.cast("float32")
        nearest = floor(wide / where(step > 0, step, 1.0) + 0.5)
        codes = clip(where(step > 0, nearest, 0.0), -127.0, 127.0).cast("int8")
        return cls(codes, scales, x.dtype)


@dataclass(frozen=True)
class Past:
    """Keys and values that are there before the first step, (count, heads, size), and which of them a step sees."""

    keys: Tensor
    values: Tensor
    mask: Tensor


def masked(mask: Callable[[Any], Tensor], context: int | None = None) -> Restriction:
    """Patterns of which only what a mask keeps is seen, and of that the last `context` steps."""

    def restriction(own: Pattern, size: int | None) -> Pattern:
        def pattern(t: Dim) -> Seen:
            slices, entry = seen(own, t)
            if context is not None:
                slices = tuple(slice(index_max(steps.start, t - context + 1), steps.stop) for steps in slices)
            return Seen(slices, entry.bias, tuple(map(mask, slices)))

        return pattern

    return restriction


def since(begun: Tensor, t: Dim, context: int) -> Restriction:
    """For each row of a batch only the steps since it began, at most the last `context`."""
    return masked(lambda steps: value(t)[{t: steps}].unsqueeze(0) >= begun.unsqueeze(-1), context)


def seen(pattern: Pattern, t: Dim) -> tuple[tuple[Any, ...], Seen]:
    """What a pattern says at a step: slices, and the bias among it."""
    found = pattern(t)
    entry = found if isinstance(found, Seen) else Seen(found)
    return (entry.steps,) if isinstance(entry.steps, (slice, Mapping)) else tuple(entry.steps), entry


def attend(
    q: Tensor,
    k: Tensor | Coded,
    v: Tensor | Coded,
    t: Dim,
    pattern: Pattern,
    scale: float | None = None,
    softcap: float | None = None,
    position_bias: Callable[[Tensor], Tensor] | None = None,
    sinks: Tensor | None = None,
    past: Past | None = None,
) -> Tensor:
    """What the queries find: q is (..., heads of keys, group, size), k and v are (..., heads of keys, size) over t.

    The scores of several slices share one softmax; keys and values are read where they lie. Softmax is computed in
    float32, as transformers do. `scale` is one over the root of the size by default; `softcap` bounds the scores
    smoothly; `position_bias` gives a bias (heads, 1) for the position of a step, float32; `sinks` is a score for each
    head that takes a share of the softmax and leads nowhere (Xiao et al., 2023). `past` is seen beside the slices.
    """
    for name, stored in (("k_cache", k), ("v_cache", v)):
        if isinstance(stored, Coded):
            stored.codes.name, stored.scales.name = name, f"{name}_scales"
        else:
            stored.name = name
    slices, entry = seen(pattern, t)
    bias = entry.bias
    batch = "b" * (q.rank - 3)
    kv_heads, group = int(q.shape[-3]), int(q.shape[-2])
    alone = group == 1  # an axis of length one would keep the keys from being used where they lie
    queries = reshape(q, *q.shape[:-2], q.shape[-1]) if alone else q
    head = "k" if alone else "kg"
    factor = float(int(q.shape[-1]) ** -0.5) if scale is None else scale
    scores, shapes = [], []
    start: Any = 0
    for steps, mask in zip(slices, entry.masks or (None,) * len(slices), strict=True):
        rows = "c" if mask is not None and mask.rank == len(batch) + 2 else batch  # of which rows keys are seen
        product = einsum(
            f"{batch}{head}d,s{rows}kd->{batch}{head}s{rows if rows != batch else ''}", queries, _read(k, t, steps)
        )
        score, length = product.cast("float32") * factor, product.shape[len(batch) + len(head)]
        if softcap is not None:
            score = tanh(score / softcap) * softcap
        added = []
        if bias is not None:
            added.append(bias if len(slices) == 1 else as_tensor(bias).axes[..., start : start + length])
        if position_bias is not None:
            added.append(position_bias(value(t)[{t: steps}]))
        for own in added:
            shaped = _by_head(own, kv_heads, group, alone)
            score = score + (shaped if rows == batch else as_tensor(shaped).unsqueeze(-1))
        if mask is not None:
            shape = (*mask.shape[: len(batch)], *(1,) * len(head), *mask.shape[len(batch) :])
            score = where(reshape(mask, *shape), score, float("-inf"))
        shapes.append((rows, score.shape))
        scores.append(score if rows == batch else reshape(score, *score.shape[:-2], score.shape[-2] * score.shape[-1]))
        start = start + length
    if past is not None:
        score = einsum(f"{head}d,skd->{head}s", queries, past.keys).cast("float32") * factor
        score = score if softcap is None else tanh(score / softcap) * softcap
        scores.append(where(past.mask, score, float("-inf")))
    sink = None if sinks is None else reshape(sinks.cast("float32"), *((kv_heads,) if alone else (kv_heads, group)), 1)
    parts, shares = [], _weights(scores, sink)
    if past is not None:
        parts.append(einsum(f"{head}s,skd->{head}d", shares.pop().cast(v.dtype), past.values))
    for steps, weights, (rows, shape) in zip(slices, shares, shapes, strict=True):
        across = rows if rows != batch else ""
        given = reshape(weights.cast(v.dtype), *shape) if across else weights.cast(v.dtype)
        parts.append(einsum(f"{batch}{head}s{across},s{rows}kd->{batch}{head}d", given, _read(v, t, steps)))
    mixed = parts[0]
    for part in parts[1:]:
        mixed = mixed + part
    return mixed


def _read(x: Tensor | Coded, t: Dim, steps: Any) -> Tensor:
    """Keys or values of some steps, along one axis."""
    if isinstance(x, Coded):
        return dequantize(_read(x.codes, t, steps), _read(x.scales, t, steps), None, x.dtype)
    if isinstance(steps, slice):
        return x[{t: steps}]
    found = x[dict(steps)]
    return reshape(found, found.shape[0] * found.shape[1], *found.shape[2:])


def _weights(scores: Sequence[Tensor], sink: Tensor | None = None) -> list[Tensor]:
    """The softmax of several parts together. Joined, they would have to be copied at every step."""
    if len(scores) == 1 and sink is None:
        return [softmax(scores[0], -1)]
    most = scores[0].max(-1, keepdims=True)
    for score in scores[1:]:
        most = maximum(most, score.max(-1, keepdims=True))
    most = most if sink is None else maximum(most, sink)
    raised = [exp(score - most) for score in scores]
    total = raised[0].sum(-1, keepdims=True)
    for part in raised[1:]:
        total = total + part.sum(-1, keepdims=True)
    total = total if sink is None else total + exp(sink - most)
    return [part / total for part in raised]


def _by_head(bias: TensorLike, kv_heads: int, group: int, alone: bool) -> Any:
    """A bias with one row per head, as the scores have their heads."""
    if not isinstance(bias, Tensor) or bias.rank < 2 or alone:
        return bias
    return reshape(bias, kv_heads, group, bias.shape[-1])
