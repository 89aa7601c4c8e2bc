"""What decoders are made of: norms, attention, networks, and the names their weights have in Hugging Face's files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from polyrhythm.language.functions import (
    TensorLike,
    as_tensor,
    einsum,
    gelu,
    mean,
    relu,
    reshape,
    rsqrt,
    silu,
    split,
    square,
)
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.config import Config, Kind
from polyrhythm.llm.patterns import Coded, Past, Pattern, Restriction, attend, causal, window
from polyrhythm.nn import Embedding, LayerNorm, Linear, Module, RMSNorm
from polyrhythm.nn.initialisers import ones, zeros
from polyrhythm.nn.module import Weight

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": lambda x: gelu(x, "tanh"),
    "relu": relu,
}


Before = Callable[[Tensor, Tensor, Kind], Past | None]
"""What is there before the first step, if anything, for a layer with these keys and values."""


@dataclass(frozen=True)
class Step:
    """Where a layer is called: the step, the user's own pattern of attention, and which steps are given.

    `given` is the condition on t under which the tokens of all steps are known, so that they are computed together.
    `restricted` says what the rows of a batch see of a pattern, where that differs. `positions` are those of the rows
    in their texts, where they are not the step. `past` says what is there before the first one. `sequences` are how
    many there are.
    """

    t: Dim
    pattern: Pattern | None = None
    given: Any = None
    restricted: Restriction | None = None
    positions: Tensor | None = None
    past: Before | None = None
    sequences: int = 1

    def attending(self, kind: Kind) -> Pattern:
        """The pattern of a layer: the user's, or its own, as far as the rows see it."""
        own = causal if kind.window is None else window(kind.window)
        own = own if self.pattern is None else self.pattern
        return own if self.restricted is None else self.restricted(own, kind.window)

    @property
    def position(self) -> Dim | Tensor:
        """The position in the text."""
        return self.t if self.positions is None else self.positions


class Layer(Protocol):
    """One layer: its weights, called on the vector before it."""

    def __call__(self, x: Tensor, step: Step) -> Tensor: ...


class Decoder(Protocol):
    """What generation needs of a model."""

    layers_at: str
    """Where the weights of the layers are, `model.layers.` for example."""

    def embed(self, token: Tensor, t: Dim) -> Tensor:
        """The vector of a token at a step."""

    def layer(self, number: int) -> Layer:
        """The layer with a number, counted over the periods of all stacks."""

    def final(self, h: Tensor) -> Tensor:
        """What the last layer made, normalised."""

    def scores(self, h: Tensor) -> Tensor:
        """The logits of the next token, in float32."""

    def weights(self) -> dict[str, Any]:
        """All weights by name."""

    def using(self, weights: Any) -> Any:
        """The same decoder with other weights."""


class GemmaNorm(Module):
    """RMSNorm whose weight is counted from one, all of it in float32."""

    def __init__(self, size: int, epsilon: float) -> None:
        self.epsilon = epsilon
        self.weight: Weight = zeros((size,))

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.cast("float32")
        scaled = wide * rsqrt(mean(square(wide), -1, keepdims=True) + self.epsilon)
        return (scaled * (1.0 + as_tensor(self.weight).cast("float32"))).cast(x.dtype)


class PlainLayerNorm(Module):
    """LayerNorm without a bias, in float32; of several heads at once if the weight has two axes."""

    def __init__(self, size: tuple[int, ...], epsilon: float) -> None:
        self.epsilon = epsilon
        self.weight: Weight = ones(size)

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.cast("float32")
        centred = wide - mean(wide, -1, keepdims=True)
        scaled = centred * rsqrt(mean(square(centred), -1, keepdims=True) + self.epsilon)
        return (scaled * as_tensor(self.weight).cast("float32")).cast(x.dtype)


def norm(config: Config, size: int | None = None) -> Any:
    """A normalisation as the model has them."""
    width = config.width if size is None else size
    makers: dict[str, Callable[[], Any]] = {
        "rms": lambda: RMSNorm(width, config.epsilon),
        "rms+1": lambda: GemmaNorm(width, config.epsilon),
        "layer": lambda: LayerNorm(width, config.epsilon),
        "layer without bias": lambda: PlainLayerNorm((width,), config.epsilon),
    }
    return makers[config.norm]()


class Attention(Module):
    """Grouped-query attention, with the options of the configuration."""

    def __init__(self, config: Config, kind: Kind) -> None:
        self.config, self.kind = config, kind
        inner, outer = config.heads * config.head_size, config.kv_heads * config.head_size
        self.q_proj = Linear(config.width, inner, config.qkv_bias, "blank")
        self.k_proj = Linear(config.width, outer, config.qkv_bias, "blank")
        self.v_proj = Linear(config.width, outer, config.qkv_bias, "blank")
        self.o_proj = Linear(inner, config.width, config.out_bias, "blank")
        if config.qk_norm is not None:
            whole = config.qk_norm == "width"
            self.q_norm = norm(config, inner if whole else config.head_size)
            self.k_norm = norm(config, outer if whole else config.head_size)

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each along one axis."""
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return (self.q_norm(q), self.k_norm(k), v) if self.config.qk_norm == "width" else (q, k, v)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        config, batch = self.config, x.shape[:-1]
        q, k, v = self.projected(x)
        q = reshape(q, *batch, config.kv_heads, config.group, config.head_size)
        k = reshape(k, *batch, config.kv_heads, config.head_size)
        v = reshape(v, *batch, config.kv_heads, config.head_size)
        if config.qk_norm == "head":
            q, k = self.q_norm(q), self.k_norm(k)
        return self.o_proj(self.mixed(q, k, v, step))

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, step: Step, **options: Any) -> Tensor:
        """What attention finds, along one axis; queries and keys are turned first."""
        config, kind = self.config, self.kind
        if kind.rotary is not None:
            q, k = kind.rotary.turned(q, step.position), kind.rotary.turned(k, step.position)
        kind_of, stored = q.dtype, config.kv_dtype or q.dtype
        coded = stored == np.dtype("int8")
        if not coded:
            q, k, v = q.cast(stored), k.cast(stored), v.cast(stored)
        if step.past is not None:
            options["past"] = step.past(k, v, kind)
        keys, values = (Coded.of(k), Coded.of(v)) if coded else (k, v)
        found = attend(q, keys, values, step.t, step.attending(kind), config.scale, config.softcap, **options)
        found = found.cast(kind_of)
        return reshape(found, *found.shape[: q.rank - 3], config.heads * int(v.shape[-1]))


class FusedAttention(Attention):
    """The same with one projection for queries, keys and values (Phi 3)."""

    def __init__(self, config: Config, kind: Kind) -> None:
        self.config, self.kind = config, kind
        inner, outer = config.heads * config.head_size, config.kv_heads * config.head_size
        self.qkv_proj = Linear(config.width, inner + 2 * outer, config.qkv_bias, "blank")
        self.o_proj = Linear(inner, config.width, config.out_bias, "blank")

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        config, joined = self.config, self.qkv_proj(x)
        inner, outer = config.heads * config.head_size, config.kv_heads * config.head_size
        parts = joined.axes[..., :inner], joined.axes[..., inner : inner + outer], joined.axes[..., inner + outer :]
        return parts


class GatedMLP(Module):
    """`down(act(gate(x)) * up(x))`."""

    def __init__(self, config: Config, hidden: int | None = None) -> None:
        self.between = FUNCTIONS[config.activation]
        size = config.hidden if hidden is None else hidden
        self.gate_proj = Linear(config.width, size, config.mlp_bias, "blank")
        self.up_proj = Linear(config.width, size, config.mlp_bias, "blank")
        self.down_proj = Linear(size, config.width, config.mlp_bias, "blank")

    def __call__(self, x: Tensor, step: Step | None = None) -> Tensor:
        return self.down_proj(self.between(self.gate_proj(x)) * self.up_proj(x))


class FusedMLP(Module):
    """The same with gate and up in one projection (Phi 3)."""

    def __init__(self, config: Config) -> None:
        self.between = FUNCTIONS[config.activation]
        self.gate_up_proj = Linear(config.width, 2 * config.hidden, config.mlp_bias, "blank")
        self.down_proj = Linear(config.hidden, config.width, config.mlp_bias, "blank")

    def __call__(self, x: Tensor, step: Step | None = None) -> Tensor:
        gate, up = split(self.gate_up_proj(x), 2, -1)
        return self.down_proj(self.between(gate) * up)


class PlainMLP(Module):
    """Two linear layers, under the names that a family gives them."""

    def __init__(self, config: Config, first: str, last: str) -> None:
        self.between, self.names = FUNCTIONS[config.activation], (first, last)
        setattr(self, first, Linear(config.width, config.hidden, config.mlp_bias, "blank"))
        setattr(self, last, Linear(config.hidden, config.width, config.mlp_bias, "blank"))

    def __call__(self, x: Tensor, step: Step | None = None) -> Tensor:
        first, last = (getattr(self, name) for name in self.names)
        return last(self.between(first(x)))


def logits(h: Tensor, head: Linear | None, embedding: Embedding) -> Tensor:
    """The output layer, which may be the embedding itself."""
    found = einsum("...i,oi->...o", h, embedding.weight) if head is None else head(h)
    return found.cast("float32")


def alibi_slopes(heads: int) -> np.ndarray:
    """How fast the attention of each head falls with the distance (Press et al., 2022): powers of one base.

    >>> alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    power = 2 ** int(np.log2(heads))
    base = 2.0 ** -(2.0 ** -(np.log2(power) - 3))
    slopes = base ** np.arange(1, power + 1)
    if power < heads:
        other = 2.0 ** -(2.0 ** -(np.log2(2 * power) - 3))
        slopes = np.concatenate([slopes, other ** np.arange(1, 1 + 2 * (heads - power), 2)])
    return slopes.astype(np.float32)


__all__ = [
    "FUNCTIONS",
    "Attention",
    "Decoder",
    "FusedAttention",
    "FusedMLP",
    "GatedMLP",
    "GemmaNorm",
    "Layer",
    "PlainLayerNorm",
    "PlainMLP",
    "Step",
    "TensorLike",
    "alibi_slopes",
    "logits",
    "norm",
]
