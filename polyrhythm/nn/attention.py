"""Attention between the steps of a dim: multi-head or grouped-query, with or without rotary positions."""

from __future__ import annotations

import numpy as np

from polyrhythm.lang.functions import concat, cos, einsum, reshape, sin, softmax, split, value
from polyrhythm.lang.index import Dim, Index
from polyrhythm.lang.tensor import Tensor
from polyrhythm.nn.initialisers import Random
from polyrhythm.nn.layers import Linear
from polyrhythm.nn.module import Module


def rotary(x: Tensor, position: Dim | Index, base: float = 10000.0) -> Tensor:
    """Turn pairs of elements of the last axis by angles that grow with the position (Su et al., 2021).

    Element k of the first half is paired with element k of the second, as in Hugging Face's models.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> pr.evaluate(rotary(pr.constant([1.0, 0.0]), t), bounds={T: 2}).round(3).tolist()
    [[1.0, 0.0], [0.5400000214576721, 0.8410000205039978]]
    """
    size = int(x.shape[-1])
    speeds = (base ** (-np.arange(0, size, 2) / size)).astype(np.float32)
    angles = value(position).cast("float32") * speeds
    turn, lift = cos(angles).cast(x.dtype), sin(angles).cast(x.dtype)
    first, second = split(x, 2, -1)
    return concat([first * turn - second * lift, second * turn + first * lift], -1)


class Attention(Module):
    """Attention of each step to others, by default to all up to itself; `kv_heads` heads of keys serve `heads` heads.

    `steps` says which steps are attended to, as an index of t: `slice(0, t + 1)`, the default, `slice(0, T)` for all,
    `slice(pr.max(0, t - 7), t + 1)` for a window.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> layer = Attention(8, heads=4, kv_heads=2, rotary_base=10000.0)
    >>> pr.evaluate(layer(pr.input("x", (8,), (t,)), t), {"x": [[1] * 8, [2] * 8]}).shape
    (2, 8)
    """

    def __init__(
        self,
        size: int,
        heads: int,
        kv_heads: int | None = None,
        head_size: int | None = None,
        bias: bool = False,
        rotary_base: float | None = None,
        rng: Random = None,
    ) -> None:
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.head_size, self.rotary_base = head_size or size // heads, rotary_base
        self.q_proj = Linear(size, heads * self.head_size, bias, rng)
        self.k_proj = Linear(size, self.kv_heads * self.head_size, bias, rng)
        self.v_proj = Linear(size, self.kv_heads * self.head_size, bias, rng)
        self.o_proj = Linear(heads * self.head_size, size, bias, rng)

    def __call__(self, x: Tensor, t: Dim, steps: slice | None = None) -> Tensor:
        group = self.heads // self.kv_heads
        q = reshape(self.q_proj(x), self.kv_heads, group, self.head_size)
        k = reshape(self.k_proj(x), self.kv_heads, self.head_size)
        v = reshape(self.v_proj(x), self.kv_heads, self.head_size)
        if self.rotary_base is not None:
            q, k = rotary(q, t, self.rotary_base), rotary(k, t, self.rotary_base)
        seen = slice(0, t + 1) if steps is None else steps
        scores = einsum("kgd,skd->kgs", q, k[{t: seen}]) * self.head_size**-0.5
        mixed = einsum("kgs,skd->kgd", softmax(scores), v[{t: seen}])
        return self.o_proj(reshape(mixed, self.heads * self.head_size))
