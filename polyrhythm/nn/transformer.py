"""A transformer block with normalisation first, under the names of Hugging Face's Llama."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from polyrhythm.language.functions import TensorLike, silu
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.nn.attention import Attention, Steps
from polyrhythm.nn.initialisers import Random
from polyrhythm.nn.layers import Linear
from polyrhythm.nn.module import Module
from polyrhythm.nn.norms import RMSNorm


class GatedMLP(Module):
    """`down(silu(gate(x)) * up(x))` (Shazeer, 2020), or with another function in place of `silu`.

    >>> import polyrhythm as pr
    >>> pr.evaluate(GatedMLP(4, 8)(pr.ones((4,)))).shape
    (4,)
    """

    def __init__(
        self,
        size: int,
        hidden: int,
        bias: bool = False,
        function: Callable[[Tensor], Tensor] = silu,
        rng: Random = None,
    ) -> None:
        self.function = function
        self.gate_proj = Linear(size, hidden, bias, rng)
        self.up_proj = Linear(size, hidden, bias, rng)
        self.down_proj = Linear(hidden, size, bias, rng)

    def __call__(self, x: TensorLike) -> Tensor:
        return self.down_proj(self.function(self.gate_proj(x)) * self.up_proj(x))


class Block(Module):
    """Attention and a gated network, each on a normalised input and added to it.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> block = Block(8, hidden=16, heads=2)
    >>> pr.evaluate(block(pr.input("x", (8,), (t,)), t), {"x": [[1] * 8, [2] * 8]}).shape
    (2, 8)
    """

    def __init__(
        self,
        size: int,
        hidden: int,
        heads: int,
        kv_heads: int | None = None,
        head_size: int | None = None,
        rotary_base: float | None = 10000.0,
        rope_scaling: Mapping[str, Any] | None = None,
        qk_norm: bool = False,
        epsilon: float = 1e-6,
        rng: Random = None,
    ) -> None:
        self.input_layernorm = RMSNorm(size, epsilon)
        self.self_attn = Attention(
            size,
            heads,
            kv_heads,
            head_size,
            rotary_base=rotary_base,
            rope_scaling=rope_scaling,
            qk_norm=qk_norm,
            epsilon=epsilon,
            rng=rng,
        )
        self.post_attention_layernorm = RMSNorm(size, epsilon)
        self.mlp = GatedMLP(size, hidden, rng=rng)

    def __call__(self, x: Tensor, t: Dim, steps: Steps | None = None) -> Tensor:
        attended = x + self.self_attn(self.input_layernorm(x), t, steps)
        return attended + self.mlp(self.post_attention_layernorm(attended))
