"""One decode step of a whole decoder layer, as recurrent tensors: norms, projections, ragged attention, experts.

Every request has one token. Queries of a key-value head are its members; caches have a length for each request, and the
new row comes after them. The experts of a token, and how much each counts, are given.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyrhythm.language.functions import dot, einsum, exp, matmul, mean, rsqrt, silu, take, value, where
from polyrhythm.language.index import Bound, Dim, dim
from polyrhythm.language.inputs import input
from polyrhythm.language.tensor import Tensor


@dataclass(frozen=True)
class DecoderProgram:
    """The layer's output, the tensors that directives are for, and the dims that they may name.

    `projections` are queries, keys and values, `attention` is what belongs to a request and its cache, `mixed` the
    projection of what it found.
    """

    output: Tensor
    projections: tuple[Tensor, ...]
    attention: tuple[Tensor, ...]
    mixed: Tensor
    token: Dim
    bounds: dict[str, Bound]


def decoder_layer(width: int) -> DecoderProgram:
    """A layer whose heads have `width` columns.

    >>> sorted(decoder_layer(4).bounds)
    ['choice', 'expert', 'head', 'hidden', 'intermediate', 'kv', 'member', 'token']
    """
    names = ("token", "hidden", "head", "member", "kv", "choice", "expert", "intermediate")
    dims = {name: dim(name) for name in names}
    (token, _), (hidden, H), (head, G), (member, M), (kv, S), (choice, C), (expert, E), (inner, F) = dims.values()
    x = input("x", (), (token, hidden))
    wq = input("wq", (width,), (head, member, hidden))
    wk, wv = (input(name, (width,), (head, hidden)) for name in ("wk", "wv"))
    wo = input("wo", (width,), (head, member, hidden))
    keys_before, values_before = (input(name, (width,), (token, head, kv)) for name in ("key", "value"))
    length = input("length", (), (token,), "int32")
    routing, weights = input("routing", (), (token, choice), "int32"), input("weights", (), (token, choice))
    up, gate = (input(name, (), (expert, hidden, inner)) for name in ("up", "gate"))
    down = input("down", (), (expert, inner, hidden))

    def projected(row: Tensor, matrix: Tensor) -> Tensor:
        return einsum("h,hw->w", row[{hidden: slice(0, H)}], matrix[{hidden: slice(0, H)}])

    normed = _normed(x, hidden, H)
    query, key, new = projected(normed, wq), projected(normed, wk), projected(normed, wv)

    queries = query[{member: slice(0, M)}]
    keys, values = where(value(kv) == length, key, keys_before), where(value(kv) == length, new, values_before)
    score = where(value(kv) <= length, matmul(queries, keys) * width**-0.5, float("-inf"))
    weight = exp(score - score[{kv: slice(0, S)}].max(0))[{kv: slice(0, S)}]
    found = einsum("sm,sw->mw", weight, values[{kv: slice(0, S)}]) / weight.sum(0).axes[:, None]

    heads = {head: slice(0, G), member: slice(0, M)}
    mixed = einsum("gmw,gmw->", found.axes[member][heads], wo[heads])
    h = x + mixed

    row = _normed(h, hidden, H)[{hidden: slice(0, H)}]
    gated = silu(dot(row, take(gate[0:E, 0:H], routing, 0))) * dot(row, take(up[0:E, 0:H], routing, 0))
    lowered = matmul(gated[{inner: slice(0, F)}], take(down[0:E, 0:F, 0:H], routing, 0))
    output = h[{hidden: slice(0, H)}] + (lowered * weights)[{choice: slice(0, C)}].sum(0)
    bounds = {name: bound for name, (_, bound) in dims.items()}
    return DecoderProgram(output, (query, key, new), (keys, values, score, found), mixed, token, bounds)


def _normed(x: Tensor, hidden: Dim, H: Bound) -> Tensor:
    row = x[{hidden: slice(0, H)}]
    return x * rsqrt(mean(row * row, 0) + 1e-6)
