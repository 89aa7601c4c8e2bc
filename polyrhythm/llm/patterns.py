"""Which steps a step attends to, as an index: the only thing that says what is kept of the past.

A pattern is a function of the step symbol. It returns a slice of steps, several slices, or `Seen` with a bias. What is
out of every slice's reach is not kept: that follows from the index, and there is no cache to configure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from polyrhythm.language.functions import (
    TensorLike,
    as_tensor,
    einsum,
    exp,
    maximum,
    reshape,
    softmax,
    tanh,
    value,
    where,
)
from polyrhythm.language.index import Dim, index_max
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.arguments import whole


@dataclass(frozen=True)
class Seen:
    """The steps that are attended to, and what is added to their scores.

    `bias` has one number for each step seen, in the order of the slices, and may have one row for each head. For
    example attention that falls with the distance (ALiBi; Press et al., 2022):

    >>> import numpy as np
    >>> import polyrhythm as pr
    >>> slopes = np.array([[0.5], [0.25]], "float32")
    >>> alibi = lambda t: Seen(slice(0, t + 1), bias=-slopes * (pr.value(t) - pr.arange(t + 1)))

    With `by_row` the bias has one row for each sequence of a batch instead.
    """

    steps: slice | Sequence[slice]
    bias: TensorLike | None = None
    by_row: bool = False


Pattern = Callable[[Dim], Any]
"""A function of t: a slice, several slices, or `Seen`."""


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


def since(begun: Tensor, size: int) -> Pattern:
    """The last steps, for each row of a batch only those since it began."""

    def pattern(t: Dim) -> Seen:
        steps = window(size)(t)
        inside = value(t)[{t: steps}].unsqueeze(0) >= begun.unsqueeze(-1)
        return Seen(steps, where(inside, 0.0, float("-inf")), by_row=True)

    return pattern


def seen(pattern: Pattern, t: Dim) -> tuple[tuple[slice, ...], Seen]:
    """What a pattern says at a step: slices, and the bias among it."""
    found = pattern(t)
    entry = found if isinstance(found, Seen) else Seen(found)
    return (entry.steps,) if isinstance(entry.steps, slice) else tuple(entry.steps), entry


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    t: Dim,
    pattern: Pattern,
    scale: float | None = None,
    softcap: float | None = None,
    position_bias: Callable[[Tensor], Tensor] | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """What the queries find: q is (..., heads of keys, group, size), k and v are (..., heads of keys, size) over t.

    The scores of several slices share one softmax; keys and values are read where they lie. Softmax is computed in
    float32, as transformers do. `scale` is one over the root of the size by default; `softcap` bounds the scores
    smoothly; `position_bias` gives a bias (heads, 1) for the position of a step, float32; `sinks` is a score for each
    head that takes a share of the softmax and leads nowhere (Xiao et al., 2023).
    """
    k.name, v.name = "k_cache", "v_cache"
    slices, entry = seen(pattern, t)
    bias = entry.bias
    batch = "b" * (q.rank - 3)
    kv_heads, group = int(q.shape[-3]), int(q.shape[-2])
    alone = group == 1  # an axis of length one would keep the keys from being used where they lie
    queries = reshape(q, *q.shape[:-2], q.shape[-1]) if alone else q
    head = "k" if alone else "kg"
    factor = float(int(q.shape[-1]) ** -0.5) if scale is None else scale
    scores = []
    start: Any = 0
    for steps in slices:
        product = einsum(f"{batch}{head}d,s{batch}kd->{batch}{head}s", queries, k[{t: steps}])
        score, end = product.cast("float32") * factor, start + product.shape[-1]
        if softcap is not None:
            score = tanh(score / softcap) * softcap
        if bias is not None:
            own = bias if len(slices) == 1 else as_tensor(bias).axes[..., start:end]
            if entry.by_row:
                rows = as_tensor(own)
                score = score + reshape(rows, rows.shape[0], *(1,) * (score.rank - 2), rows.shape[1])
            else:
                score = score + _by_head(own, kv_heads, group, alone)
        if position_bias is not None:
            score = score + _by_head(position_bias(value(t)[{t: steps}]), kv_heads, group, alone)
        scores.append(score)
        start = end
    sink = None if sinks is None else reshape(sinks.cast("float32"), *((kv_heads,) if alone else (kv_heads, group)), 1)
    parts = []
    for steps, weights in zip(slices, _weights(scores, sink), strict=True):
        parts.append(einsum(f"{batch}{head}s,s{batch}kd->{batch}{head}d", weights.cast(v.dtype), v[{t: steps}]))
    mixed = parts[0]
    for part in parts[1:]:
        mixed = mixed + part
    return mixed


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
