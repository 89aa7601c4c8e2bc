"""A decoder of several layers in the language, for tests: layers and steps are dims, sequences are an axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import polyrhythm as pr
from polyrhythm.nn.attention import rotary

t, T = pr.dim("t")
l, L = pr.dim("l")

Attend = Callable[[pr.Tensor, pr.Tensor, pr.Tensor], pr.Tensor]
"""From queries (batch, heads of keys, group, depth), keys and values at every step to what is attended to."""


@dataclass(frozen=True)
class Sizes:
    """How large a decoder is."""

    batch: int = 1
    kv_heads: int = 4
    layers: int = 4
    heads: int = 4
    depth: int = 16
    hidden: int = 64
    words: int = 32

    @property
    def width(self) -> int:
        return self.heads * self.depth


def over(past: slice) -> Attend:
    """Attention to some steps."""

    def attend(q: pr.Tensor, k: pr.Tensor, v: pr.Tensor) -> pr.Tensor:
        scores = pr.einsum("bkgd,sbkd->bkgs", q, k[{t: past}]) * float(q.shape[-1]) ** -0.5
        return pr.einsum("bkgs,sbkd->bkgd", scores.softmax(-1), v[{t: past}])

    return attend


CAUSAL = over(slice(0, t + 1))


def windowed(count: int) -> Attend:
    """Attention to the last few steps."""
    return over(slice(pr.max(0, t - count + 1), t + 1))


def decoder(sizes: Sizes, attend: Attend = CAUSAL) -> pr.Tensor:
    """The tokens that it writes after the first."""
    batch, kv, width, hidden = sizes.batch, sizes.kv_heads, sizes.width, sizes.hidden
    token = pr.recurrent((batch,), (t,), "int32")
    h = pr.recurrent((batch, width), (t, (l, L + 1)))

    def weight(name: str, *shape: int) -> pr.Tensor:
        return pr.input(name, shape, (l,))

    def normalised(x: pr.Tensor) -> pr.Tensor:
        return x * pr.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)

    y = normalised(h)
    q = rotary((y @ weight("wq", width, width)).reshape(batch, kv, sizes.heads // kv, sizes.depth), t)
    k = rotary((y @ weight("wk", width, kv * sizes.depth)).reshape(batch, kv, sizes.depth), t)
    v = (y @ weight("wv", width, kv * sizes.depth)).reshape(batch, kv, sizes.depth)
    attended = h + attend(q, k, v).reshape(batch, width) @ weight("wo", width, width)
    inner = pr.silu(normalised(attended) @ weight("up", width, hidden))
    words = pr.input("words", (sizes.words, width))
    h[t, 0] = pr.take(words, token, 0)
    h[t, l + 1] = attended + inner @ weight("down", hidden, width)
    token[0] = pr.input("first", (batch,), (), "int32")
    token[t + 1] = (normalised(h[t, L]) @ pr.transpose(words)).argmax(-1).cast("int32")
    return token


def inputs(sizes: Sizes) -> dict[str, Any]:
    """Weights that make the text vary."""
    rng = np.random.default_rng(0)
    width, kv, hidden = sizes.width, sizes.kv_heads * sizes.depth, sizes.hidden
    shapes = {"wq": (width, width), "wk": (width, kv), "wv": (width, kv), "wo": (width, width)}
    shapes |= {"up": (width, hidden), "down": (hidden, width)}
    weights = {n: rng.normal(size=(sizes.layers, *s), scale=s[0] ** -0.5) for n, s in shapes.items()}
    weights["words"] = rng.normal(size=(sizes.words, width))
    found: dict[str, Any] = {name: array.astype("float32") for name, array in weights.items()}
    return found | {"first": np.arange(sizes.batch, dtype="int32")}
