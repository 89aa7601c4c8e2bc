"""Attention between the steps of a dim: multi-head or grouped-query, with or without rotary positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyrhythm.errors import DeclarationError
from polyrhythm.language.functions import einsum, reshape, softmax
from polyrhythm.language.index import Dim, Index
from polyrhythm.language.tensor import Tensor
from polyrhythm.nn.initialisers import Random
from polyrhythm.nn.layers import Linear
from polyrhythm.nn.module import Module
from polyrhythm.nn.norms import RMSNorm
from polyrhythm.nn.positions import rotary

Steps = slice | int | Index


class Attention(Module):
    """Attention of each step to others, by default to all up to itself; `kv_heads` heads of keys serve `heads` heads.

    `steps` says which steps are attended to, as an index of t: `slice(0, t + 1)`, the default, `slice(0, T)` for all,
    `slice(pr.max(0, t - 7), t + 1)` for a window, and so on with future steps and strides. For attention to another
    tensor, over another dim s, say `memory=y, over=s`; then all its steps are the default.

    `rotary_base` and `rope_scaling` turn queries and keys by their positions (see `rotary`); `qk_norm` normalises both
    heads first, as Qwen3 does.

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
        rope_scaling: Mapping[str, Any] | None = None,
        interleaved: bool = False,
        qk_norm: bool = False,
        epsilon: float = 1e-6,
        rng: Random = None,
    ) -> None:
        self.heads, self.kv_heads = heads, kv_heads or heads
        if heads % self.kv_heads:
            raise DeclarationError(
                f"{heads} heads cannot share {self.kv_heads} heads of keys evenly",
                fix="make heads a multiple of kv_heads",
            )
        self.head_size, self.rotary_base = head_size or size // heads, rotary_base
        self.rope_scaling, self.interleaved = rope_scaling, interleaved
        self.q_proj = Linear(size, heads * self.head_size, bias, rng)
        self.k_proj = Linear(size, self.kv_heads * self.head_size, bias, rng)
        self.v_proj = Linear(size, self.kv_heads * self.head_size, bias, rng)
        self.o_proj = Linear(heads * self.head_size, size, bias, rng)
        if qk_norm:
            self.q_norm, self.k_norm = RMSNorm(self.head_size, epsilon), RMSNorm(self.head_size, epsilon)
        self.qk_norm = qk_norm

    def __call__(
        self, x: Tensor, t: Dim, steps: Steps | None = None, memory: Tensor | None = None, over: Dim | None = None
    ) -> Tensor:
        if not isinstance(t, Dim):
            raise DeclarationError("the second argument is not the dim to run along", fix="call it as layer(x, t)")
        if (memory is None) != (over is None):
            raise DeclarationError(
                "attention to another tensor needs both the tensor and its dim", fix="give memory=y and over=s"
            )
        source, s = (x, t) if memory is None or over is None else (memory, over)
        seen = steps if steps is not None else slice(0, t + 1) if memory is None else slice(None)
        group = self.heads // self.kv_heads
        q = reshape(self.q_proj(x), *x.shape[:-1], self.kv_heads, group, self.head_size)
        k = reshape(self.k_proj(source), *source.shape[:-1], self.kv_heads, self.head_size)
        v = reshape(self.v_proj(source), *source.shape[:-1], self.kv_heads, self.head_size)
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = self._turned(q, t), self._turned(k, s)
        scores = einsum("...kgd,s...kd->...kgs", q, _at(k, s, seen)) * self.head_size**-0.5
        mixed = einsum("...kgs,s...kd->...kgd", softmax(scores), _at(v, s, seen))
        return self.o_proj(reshape(mixed, *x.shape[:-1], self.heads * self.head_size))

    def _turned(self, x: Tensor, position: Dim) -> Tensor:
        if self.rotary_base is None:
            return x
        return rotary(x, position, self.rotary_base, self.rope_scaling, self.interleaved)


def _at(x: Tensor, s: Dim, steps: Steps) -> Tensor:
    """Some steps as a leading axis; a single one as an axis of length one."""
    return x[{s: steps if isinstance(steps, slice) else slice(steps, steps + 1)}]
