"""The models, written as layers: what happens to one token at one layer and step.

A decoder is a module whose weights have the names of its checkpoint. Its layers are one module, whose weights vary
along the layer dim: `model.layers.mlp.up_proj.weight` stands for `model.layers.0.mlp.up_proj.weight` and the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from polyrhythm.language.functions import concat, cos, einsum, gelu, relu, reshape, silu, sin, split, take, value
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.config import Config
from polyrhythm.llm.patterns import Pattern, attend
from polyrhythm.nn import Embedding, LayerNorm, Linear, Module, RMSNorm
from polyrhythm.nn.initialisers import fan_in, uniform
from polyrhythm.nn.module import Weight

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": lambda x: gelu(x, "tanh"),
    "relu": relu,
}


class Decoder(Protocol):
    """What generation needs of a model."""

    layers_at: str
    """Where the weights of the layers are, `model.layers.` for example."""

    def embed(self, token: Tensor, t: Dim) -> Tensor:
        """The vector of a token at a step."""

    def layer(self, h: Tensor, t: Dim, pattern: Pattern) -> Tensor:
        """The vector after one layer."""

    def scores(self, h: Tensor) -> Tensor:
        """The logits of the next token, in float32."""


def turned(x: Tensor, t: Dim, config: Config) -> Tensor:
    """Rotary positions: element k of the first half is paired with element k of the second."""
    assert config.rotary is not None
    angles = value(t).cast("float32") * config.rotary.speeds(config.head_size)
    turn, lift = cos(angles).cast(x.dtype), sin(angles).cast(x.dtype)
    first, second = split(x, 2, -1)
    return concat([first * turn - second * lift, second * turn + first * lift], -1)


class LlamaAttention(Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: Config) -> None:
        self.config = config
        inner, outer = config.heads * config.head_size, config.kv_heads * config.head_size
        self.q_proj = Linear(config.width, inner, config.attention_bias, "blank")
        self.k_proj = Linear(config.width, outer, config.attention_bias, "blank")
        self.v_proj = Linear(config.width, outer, config.attention_bias, "blank")
        self.o_proj = Linear(inner, config.width, config.attention_bias, "blank")

    def __call__(self, x: Tensor, t: Dim, pattern: Pattern) -> Tensor:
        config, batch = self.config, x.shape[:-1]
        q = reshape(self.q_proj(x), *batch, config.kv_heads, config.group, config.head_size)
        k = reshape(self.k_proj(x), *batch, config.kv_heads, config.head_size)
        v = reshape(self.v_proj(x), *batch, config.kv_heads, config.head_size)
        mixed = attend(turned(q, t, config), turned(k, t, config), v, t, pattern)
        return self.o_proj(reshape(mixed, *batch, config.heads * config.head_size))


class LlamaMLP(Module):
    """`down(act(gate(x)) * up(x))`."""

    def __init__(self, config: Config) -> None:
        self.between = FUNCTIONS[config.activation]
        self.gate_proj = Linear(config.width, config.hidden, config.mlp_bias, "blank")
        self.up_proj = Linear(config.width, config.hidden, config.mlp_bias, "blank")
        self.down_proj = Linear(config.hidden, config.width, config.mlp_bias, "blank")

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(self.between(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(Module):
    """Attention and a gated network, each on a normalised input and added to it."""

    def __init__(self, config: Config) -> None:
        self.input_layernorm = RMSNorm(config.width, config.epsilon)
        self.self_attn = LlamaAttention(config)
        self.post_attention_layernorm = RMSNorm(config.width, config.epsilon)
        self.mlp = LlamaMLP(config)

    def __call__(self, x: Tensor, t: Dim, pattern: Pattern) -> Tensor:
        attended = x + self.self_attn(self.input_layernorm(x), t, pattern)
        return attended + self.mlp(self.post_attention_layernorm(attended))


class LlamaModel(Module):
    """All but the output layer."""

    def __init__(self, config: Config) -> None:
        self.embed_tokens = Embedding(config.vocabulary, config.width, "blank")
        self.layers = LlamaLayer(config)
        self.norm = RMSNorm(config.width, config.epsilon)


class Llama(Module):
    """Llama 2, 3, 3.1 and 3.2, and Mistral, which attends to a window."""

    layers_at = "model.layers."

    def __init__(self, config: Config) -> None:
        self.model = LlamaModel(config)
        self.lm_head = None if config.tied else Linear(config.width, config.vocabulary, False, "blank")

    def embed(self, token: Tensor, t: Dim) -> Tensor:
        """The vector of a token; its position comes in at the attention."""
        return self.model.embed_tokens(token)

    def layer(self, h: Tensor, t: Dim, pattern: Pattern) -> Tensor:
        """The vector after one layer."""
        return self.model.layers(h, t, pattern)

    def scores(self, h: Tensor) -> Tensor:
        """The logits of the next token."""
        return _scores(self.model.norm(h), self.lm_head, self.model.embed_tokens)


class Conv1D(Module):
    """`x @ weight + bias`: a linear layer with its weight (in, out), as GPT-2 keeps it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.weight: Weight = fan_in((inputs, outputs), "blank")
        self.bias: Weight = uniform((outputs,), 1.0, "blank")

    def __call__(self, x: Tensor) -> Tensor:
        return einsum("...i,io->...o", x, self.weight) + self.bias


class GPT2Attention(Module):
    """Attention with queries, keys and values from one projection."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.c_attn = Conv1D(config.width, 3 * config.width)
        self.c_proj = Conv1D(config.width, config.width)

    def __call__(self, x: Tensor, t: Dim, pattern: Pattern) -> Tensor:
        config, batch = self.config, x.shape[:-1]
        q, k, v = (
            reshape(part, *batch, config.heads, *one, config.head_size)
            for part, one in zip(split(self.c_attn(x), 3, -1), ((1,), (), ()), strict=True)
        )
        return self.c_proj(reshape(attend(q, k, v, t, pattern), *batch, config.width))


class GPT2MLP(Module):
    """Two linear layers."""

    def __init__(self, config: Config) -> None:
        self.between = FUNCTIONS[config.activation]
        self.c_fc = Conv1D(config.width, config.hidden)
        self.c_proj = Conv1D(config.hidden, config.width)

    def __call__(self, x: Tensor) -> Tensor:
        return self.c_proj(self.between(self.c_fc(x)))


class GPT2Layer(Module):
    """Attention and a network, each on a normalised input and added to it."""

    def __init__(self, config: Config) -> None:
        self.ln_1 = LayerNorm(config.width, config.epsilon)
        self.attn = GPT2Attention(config)
        self.ln_2 = LayerNorm(config.width, config.epsilon)
        self.mlp = GPT2MLP(config)

    def __call__(self, x: Tensor, t: Dim, pattern: Pattern) -> Tensor:
        attended = x + self.attn(self.ln_1(x), t, pattern)
        return attended + self.mlp(self.ln_2(attended))


class GPT2Model(Module):
    """All but the output layer."""

    def __init__(self, config: Config) -> None:
        self.wte = Embedding(config.vocabulary, config.width, "blank")
        self.wpe = Embedding(config.positions, config.width, "blank")
        self.h = GPT2Layer(config)
        self.ln_f = LayerNorm(config.width, config.epsilon)


class GPT2(Module):
    """GPT-2, whose positions are learnt vectors."""

    layers_at = "transformer.h."

    def __init__(self, config: Config) -> None:
        self.transformer = GPT2Model(config)
        self.lm_head = None if config.tied else Linear(config.width, config.vocabulary, False, "blank")

    def embed(self, token: Tensor, t: Dim) -> Tensor:
        """The vectors of a token and of its position."""
        return self.transformer.wte(token) + take(self.transformer.wpe.weight, value(t), 0)

    def layer(self, h: Tensor, t: Dim, pattern: Pattern) -> Tensor:
        """The vector after one layer."""
        return self.transformer.h(h, t, pattern)

    def scores(self, h: Tensor) -> Tensor:
        """The logits of the next token."""
        return _scores(self.transformer.ln_f(h), self.lm_head, self.transformer.wte)


def _scores(h: Tensor, head: Linear | None, embedding: Embedding) -> Tensor:
    """The output layer, which may be the embedding itself."""
    logits = einsum("...i,oi->...o", h, embedding.weight) if head is None else head(h)
    return logits.cast("float32")


def blank_decoder(config: Config) -> GPT2 | Llama:
    """The model of a configuration, without weights."""
    return GPT2(config) if config.family == "gpt2" else Llama(config)
