"""Families whose layers are recurrences: Mamba (Gu and Dao, 2023), Mamba 2 (Dao and Gu, 2024), RWKV 4 (Peng et al.,
2023) and RecurrentGemma (De et al., 2024).

Each state is an equation over steps. That the past is one step of it, and a few steps of a convolution, is derived: the
same program reads a prompt, writes, and could be trained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from polyrhythm.language.functions import (
    as_tensor,
    clip,
    einsum,
    exp,
    maximum,
    relu,
    reshape,
    sigmoid,
    silu,
    softplus,
    split,
    sqrt,
    square,
    sum,
    tanh,
)
from polyrhythm.language.index import Dim
from polyrhythm.language.recurrent import otherwise
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.config import Config, Kind
from polyrhythm.llm.families.llama import common
from polyrhythm.llm.fields import LARGEST, Fields
from polyrhythm.llm.parts import FUNCTIONS, Attention, GatedMLP, Layer, Step, logits, norm
from polyrhythm.llm.rope import read_rotary
from polyrhythm.llm.states import before, convolved, decaying, over
from polyrhythm.llm.transformer import layered
from polyrhythm.nn import Embedding, LayerNorm, Linear, Module, RMSNorm
from polyrhythm.nn.initialisers import fan_in, ones, zeros
from polyrhythm.nn.module import Weight


@dataclass(frozen=True)
class StateSizes:
    """The sizes of a state space: channels, states of each, the width of the convolution, and how steps are made."""

    inner: int
    states: int
    width: int
    rank: int = 0
    heads: int = 0
    groups: int = 1
    conv_bias: bool = True
    bias: bool = False
    limits: tuple[float, float] = (0.0, LARGEST)


def _without_heads(fields: Fields, family: str, sizes: StateSizes, hidden: int, **rest: Any) -> Config:
    """The configuration of a model that has no attention."""
    layers = fields.number("num_hidden_layers")
    return Config(
        family=family,
        vocabulary=fields.number("vocab_size"),
        width=fields.number("hidden_size"),
        layers=layers,
        heads=1,
        kv_heads=1,
        head_size=1,
        hidden=hidden,
        epsilon=fields.real("layer_norm_epsilon", 1e-5),
        activation=fields.activation("hidden_act", "silu"),
        positions=fields.number("context_length", 2**30),
        detail=sizes,
        **{"kinds": (Kind(mixer="state"),) * layers, **rest},
    )


def mamba(fields: Fields) -> Config:
    """Each channel has a state of its own, and steps of a length that the input decides."""
    width = fields.number("hidden_size")
    inner = fields.number("intermediate_size", int(fields.real("expand", 2) * width))
    rank = fields.get("time_step_rank", "auto")
    sizes = StateSizes(
        inner,
        fields.number("state_size", 16),
        fields.number("conv_kernel", 4),
        rank=-(-width // 16) if rank == "auto" else fields.number("time_step_rank"),
        conv_bias=fields.flag("use_conv_bias", True),
        bias=fields.flag("use_bias", False),
    )
    tied, wide = fields.flag("tie_word_embeddings", True), fields.flag("residual_in_fp32", True)
    return _without_heads(fields, "mamba", sizes, inner, tied=tied, wide=wide)


class _Convolution(Module):
    """The weights of a convolution of each channel by itself."""

    def __init__(self, channels: int, width: int, bias: bool) -> None:
        self.weight: Weight = fan_in((channels, 1, width), "blank")
        self.bias: Weight | None = zeros((channels,)) if bias else None

    def __call__(self, x: Tensor, t: Dim) -> Tensor:
        return convolved(x, self.weight, self.bias, t)


class MambaMixer(Module):
    """A selective state space."""

    def __init__(self, config: Config) -> None:
        sizes: StateSizes = config.detail
        self.sizes, self.between = sizes, FUNCTIONS[config.activation]
        self.in_proj = Linear(config.width, 2 * sizes.inner, sizes.bias, "blank")
        self.conv1d = _Convolution(sizes.inner, sizes.width, sizes.conv_bias)
        self.x_proj = Linear(sizes.inner, sizes.rank + 2 * sizes.states, False, "blank")
        self.dt_proj = Linear(sizes.rank, sizes.inner, True, "blank")
        self.A_log: Weight = ones((sizes.inner, sizes.states))
        self.D: Weight = ones((sizes.inner,))
        self.out_proj = Linear(sizes.inner, config.width, sizes.bias, "blank")

    def __call__(self, x: Tensor, t: Dim) -> Tensor:
        rank, states = self.sizes.rank, self.sizes.states
        u, gate = split(self.in_proj(x), 2, -1)
        u = self.between(self.conv1d(u, t))
        found = self.x_proj(u)
        B, C = found.axes[..., rank : rank + states].cast("float32"), found.axes[..., rank + states :].cast("float32")
        dt = softplus(self.dt_proj(found.axes[..., :rank]).cast("float32"))
        wide = u.cast("float32")
        keep = exp(dt.unsqueeze(-1) * -exp(as_tensor(self.A_log).cast("float32")))
        state = decaying(keep, (dt * wide).unsqueeze(-1) * B.unsqueeze(-2), t)
        y = sum(state * C.unsqueeze(-2), -1) + wide * as_tensor(self.D).cast("float32")
        return self.out_proj((y * self.between(gate.cast("float32"))).cast(x.dtype))


def mamba2(fields: Fields) -> Config:
    """Heads of channels share a decay, and groups of heads what goes in and out."""
    inner, heads = int(fields.real("expand", 2) * fields.number("hidden_size")), fields.number("num_heads", 128)
    if inner != heads * fields.number("head_dim", 64):
        raise fields.mismatch("head_dim", fields.get("head_dim"), f"{inner} channels divided by num_heads = {heads}")
    limits = fields.get("time_step_limit", [0.0, LARGEST])
    if not isinstance(limits, list) or len(limits) != 2:
        raise fields.mismatch("time_step_limit", limits, "two numbers")
    low, high = (_bounded(fields, limit) for limit in limits)
    sizes = StateSizes(
        inner,
        fields.number("state_size", 128),
        fields.number("conv_kernel", 4),
        heads=heads,
        groups=fields.number("n_groups", 8),
        conv_bias=fields.flag("use_conv_bias", True),
        bias=fields.flag("use_bias", False),
        limits=(low, high),
    )
    tied, wide = fields.flag("tie_word_embeddings", False), fields.flag("residual_in_fp32", True)
    return _without_heads(fields, "mamba2", sizes, inner, tied=tied, wide=wide)


def _bounded(fields: Fields, limit: Any) -> float:
    """A limit of steps; JSON has no infinity, so that files write it as an object."""
    if limit == {"__float__": "Infinity"}:
        return LARGEST
    if isinstance(limit, bool) or not isinstance(limit, int | float) or limit < 0:
        raise fields.mismatch("time_step_limit", limit, "two numbers, 0 or more")
    return min(float(limit), LARGEST)


class Mamba2Mixer(Module):
    """A state space whose decay is one number for each head."""

    def __init__(self, config: Config) -> None:
        sizes: StateSizes = config.detail
        self.sizes, self.between = sizes, FUNCTIONS[config.activation]
        channels = sizes.inner + 2 * sizes.groups * sizes.states
        self.in_proj = Linear(config.width, sizes.inner + channels + sizes.heads, sizes.bias, "blank")
        self.conv1d = _Convolution(channels, sizes.width, sizes.conv_bias)
        self.dt_bias: Weight = ones((sizes.heads,))
        self.A_log: Weight = ones((sizes.heads,))
        self.D: Weight = ones((sizes.heads,))
        self.norm = RMSNorm(sizes.inner, config.epsilon)
        self.out_proj = Linear(sizes.inner, config.width, sizes.bias, "blank")

    def __call__(self, x: Tensor, t: Dim) -> Tensor:
        sizes, batch = self.sizes, x.shape[:-1]
        found, size = self.in_proj(x), sizes.groups * sizes.states
        gate, dt = found.axes[..., : sizes.inner], found.axes[..., -sizes.heads :].cast("float32")
        joined = self.between(self.conv1d(found.axes[..., sizes.inner : -sizes.heads], t)).cast("float32")
        u = reshape(joined.axes[..., : sizes.inner], *batch, sizes.groups, sizes.heads // sizes.groups, -1)
        B, C = (
            reshape(part, *batch, sizes.groups, sizes.states)
            for part in (joined.axes[..., sizes.inner : sizes.inner + size], joined.axes[..., sizes.inner + size :])
        )
        dt = clip(softplus(dt + as_tensor(self.dt_bias).cast("float32")), *sizes.limits)
        keep = exp(dt * -exp(as_tensor(self.A_log).cast("float32")))
        by_group = (*batch, sizes.groups, sizes.heads // sizes.groups, 1)
        dt, keep = reshape(dt, *by_group), reshape(keep, *by_group)
        state = decaying(keep.unsqueeze(-1), (dt * u).unsqueeze(-1) * B.unsqueeze(-2).unsqueeze(-2), t)
        y = sum(state * C.unsqueeze(-2).unsqueeze(-2), -1)
        y = y + u * reshape(as_tensor(self.D).cast("float32"), *by_group[len(batch) :])
        y = reshape(y, *batch, sizes.inner) * silu(gate.cast("float32"))
        return self.out_proj(self.norm(y).cast(x.dtype))


class MambaLayer(Module):
    """A state space on a normalised input, added to it."""

    def __init__(self, config: Config, kind: Kind) -> None:
        self.dtype = config.dtype
        self.norm = RMSNorm(config.width, config.epsilon)
        self.mixer = MambaMixer(config) if config.family == "mamba" else Mamba2Mixer(config)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        return x + self.mixer(self.norm(x.cast(self.dtype)), step.t).cast(x.dtype)


class _MambaBody(Module):
    def __init__(self, config: Config) -> None:
        self.embeddings = Embedding(config.vocabulary, config.width, "blank")
        self.layers = layered(config, MambaLayer)
        self.norm_f = RMSNorm(config.width, config.epsilon)


class Mamba(Module):
    """Mamba and Mamba 2."""

    layers_at = "backbone.layers."

    def __init__(self, config: Config) -> None:
        self.dtype = config.dtype
        self.backbone = _MambaBody(config)
        self.lm_head = None if config.tied else Linear(config.width, config.vocabulary, False, "blank")

    def embed(self, token: Tensor, t: Dim) -> Tensor:
        """The vector of a token."""
        return self.backbone.embeddings(token)

    def layer(self, number: int) -> Layer:
        """The only kind of layer."""
        return self.backbone.layers

    def final(self, h: Tensor) -> Tensor:
        """What the last layer made, normalised."""
        return self.backbone.norm_f(h.cast(self.dtype))

    def scores(self, h: Tensor) -> Tensor:
        """The logits of the next token."""
        return logits(self.final(h), self.lm_head, self.backbone.embeddings)


def rwkv(fields: Fields) -> Config:
    """The first block normalises the embedding too."""
    width, layers = fields.number("hidden_size"), fields.number("num_hidden_layers")
    sizes = StateSizes(fields.number("attention_hidden_size", width), 0, 0)
    kinds = tuple(Kind(mixer="first" if n == 0 else "state") for n in range(layers))
    hidden, tied = fields.number("intermediate_size", 4 * width), fields.flag("tie_word_embeddings", False)
    config = _without_heads(fields, "rwkv", sizes, hidden, kinds=kinds, tied=tied)
    return replace(config, norm="layer")


def _shifted(x: Tensor, t: Dim, share: Any) -> Tensor:
    """A mixture of a step and the one before."""
    part = reshape(as_tensor(share), -1)
    return x * part + before(x, t) * (1.0 - part)


class RwkvAttention(Module):
    """A weighted mean of all values so far, whose weights decay: three states, one of them for the exponents."""

    def __init__(self, config: Config) -> None:
        inner = config.detail.inner
        self.time_decay: Weight = ones((inner,))
        self.time_first: Weight = ones((inner,))
        self.time_mix_key: Weight = ones((1, 1, config.width))
        self.time_mix_value: Weight = ones((1, 1, config.width))
        self.time_mix_receptance: Weight = ones((1, 1, config.width))
        self.key = Linear(config.width, inner, False, "blank")
        self.value = Linear(config.width, inner, False, "blank")
        self.receptance = Linear(config.width, inner, False, "blank")
        self.output = Linear(inner, config.width, False, "blank")

    def __call__(self, x: Tensor, t: Dim) -> Tensor:
        key = self.key(_shifted(x, t, self.time_mix_key)).cast("float32")
        values = self.value(_shifted(x, t, self.time_mix_value)).cast("float32")
        gate = sigmoid(self.receptance(_shifted(x, t, self.time_mix_receptance)))
        decay = -exp(as_tensor(self.time_decay).cast("float32"))
        most, top, below, mean = (over(key, key.type.shape, key.dtype) for _ in range(4))
        ago = {t: t - 1}
        most[t < 1], top[t < 1], below[t < 1], mean[t < 1] = key, values, exp(key * 0.0), values
        most[otherwise] = maximum(most[ago] + decay, key)
        kept, new = exp(most[ago] + decay - most), exp(key - most)
        top[otherwise] = kept * top[ago] + new * values
        below[otherwise] = kept * below[ago] + new
        own = key + as_tensor(self.time_first).cast("float32")
        both = maximum(most[ago], own)
        past, now = exp(most[ago] - both), exp(own - both)
        mean[otherwise] = (past * top[ago] + now * values) / (past * below[ago] + now)
        return self.output(gate * mean.cast(x.dtype))


class RwkvNetwork(Module):
    """A network with a squared activation and a gate."""

    def __init__(self, config: Config) -> None:
        self.time_mix_key: Weight = ones((1, 1, config.width))
        self.time_mix_receptance: Weight = ones((1, 1, config.width))
        self.key = Linear(config.width, config.hidden, False, "blank")
        self.receptance = Linear(config.width, config.width, False, "blank")
        self.value = Linear(config.hidden, config.width, False, "blank")

    def __call__(self, x: Tensor, t: Dim) -> Tensor:
        found = self.value(square(relu(self.key(_shifted(x, t, self.time_mix_key)))))
        return sigmoid(self.receptance(_shifted(x, t, self.time_mix_receptance))) * found


class RwkvLayer(Module):
    """Both on normalised inputs."""

    def __init__(self, config: Config, kind: Kind) -> None:
        self.pre_ln = LayerNorm(config.width, config.epsilon) if kind.mixer == "first" else None
        self.ln1 = LayerNorm(config.width, config.epsilon)
        self.ln2 = LayerNorm(config.width, config.epsilon)
        self.attention, self.feed_forward = RwkvAttention(config), RwkvNetwork(config)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x if self.pre_ln is None else self.pre_ln(x)
        x = x + self.attention(self.ln1(x), step.t)
        return x + self.feed_forward(self.ln2(x), step.t)


class _RwkvBody(Module):
    def __init__(self, config: Config) -> None:
        self.embeddings = Embedding(config.vocabulary, config.width, "blank")
        self.blocks = layered(config, RwkvLayer)
        self.ln_out = LayerNorm(config.width, 1e-5)


class Rwkv(Module):
    """RWKV 4."""

    layers_at = "rwkv.blocks."

    def __init__(self, config: Config) -> None:
        self.rwkv = _RwkvBody(config)
        self.head = None if config.tied else Linear(config.width, config.vocabulary, False, "blank")

    def embed(self, token: Tensor, t: Dim) -> Tensor:
        """The vector of a token."""
        return self.rwkv.embeddings(token)

    def layer(self, number: int) -> Layer:
        """The first block, or one of the others."""
        return self.rwkv.blocks[number] if isinstance(self.rwkv.blocks, list) else self.rwkv.blocks

    def final(self, h: Tensor) -> Tensor:
        """What the last layer made, normalised."""
        return self.rwkv.ln_out(h)

    def scores(self, h: Tensor) -> Tensor:
        """The logits of the next token."""
        return logits(self.final(h), self.head, self.rwkv.embeddings)


def recurrent_gemma(fields: Fields) -> Config:
    """Gated linear recurrences, and attention with a window, in turn."""
    layers, width = fields.number("num_hidden_layers"), fields.number("hidden_size")
    types = fields.get("block_types", fields.get("_block_types", ["recurrent", "recurrent", "attention"]))
    if not isinstance(types, list) or not types or any(entry not in ("recurrent", "attention") for entry in types):
        raise fields.mismatch("block_types", types, 'a list of "recurrent" and "attention"')
    turned = Kind(fields.number("attention_window_size", 2048), read_rotary(fields, part=0.5))
    kinds = tuple(turned if types[n % len(types)] == "attention" else Kind(mixer="state") for n in range(layers))
    return common(
        fields,
        kinds=kinds,
        norm="rms+1",
        head_size=fields.number("head_dim", width // fields.number("num_attention_heads")),
        hidden=fields.number("intermediate_size") // 2,
        activation=fields.activation("hidden_activation", "gelu_pytorch_tanh"),
        tied_default=True,
        qkv_bias=fields.flag("attention_bias", False),
        out_bias=True,
        mlp_bias=True,
        final_softcap=fields.real("logits_soft_cap", 30.0),
        detail=StateSizes(fields.number("lru_width", width), 1, fields.number("conv1d_width", 4)),
    )


class GatedRecurrence(Module):
    """RG-LRU: a linear recurrence whose decay and input are gated, in blocks of channels."""

    def __init__(self, config: Config) -> None:
        heads, size = config.heads, config.detail.inner // config.heads
        self.heads, self.size = heads, size
        self.recurrent_param: Weight = ones((config.detail.inner,))
        self.input_gate_weight: Weight = fan_in((heads, size, size), "blank")
        self.input_gate_bias: Weight = zeros((heads, size))
        self.recurrent_gate_weight: Weight = fan_in((heads, size, size), "blank")
        self.recurrent_gate_bias: Weight = zeros((heads, size))

    def __call__(self, x: Tensor, t: Dim) -> Tensor:
        batch = x.shape[:-1]
        blocks = reshape(x, *batch, self.heads, self.size)
        taken, kept = (
            reshape(sigmoid(einsum("...hi,hij->...hj", blocks, weight) + bias), *x.shape)
            for weight, bias in (
                (self.input_gate_weight, self.input_gate_bias),
                (self.recurrent_gate_weight, self.recurrent_gate_bias),
            )
        )
        decay = -8.0 * kept * softplus(as_tensor(self.recurrent_param))
        new = x * taken
        # The first step is taken as it is; later ones are scaled so that the state keeps its size.
        state = over(x, x.type.shape, "float32")
        state[t < 1] = new.cast("float32")
        scaled = (new * sqrt(1.0 - exp(2.0 * decay)).cast(x.dtype)).cast("float32")
        state[otherwise] = exp(decay).cast("float32") * state[{t: t - 1}] + scaled
        return state.cast(x.dtype)


class RecurrentBlock(Module):
    """Griffin's recurrent block: a convolution and a gated recurrence, beside a gate."""

    def __init__(self, config: Config) -> None:
        sizes = config.detail
        self.between = FUNCTIONS[config.activation]
        self.linear_y = Linear(config.width, sizes.inner, True, "blank")
        self.linear_x = Linear(config.width, sizes.inner, True, "blank")
        self.linear_out = Linear(sizes.inner, config.width, True, "blank")
        self.conv_1d = _Convolution(sizes.inner, sizes.width, True)
        self.rg_lru = GatedRecurrence(config)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        found = self.rg_lru(self.conv_1d(self.linear_x(x), step.t), step.t)
        return self.linear_out(found * self.between(self.linear_y(x)))


class GriffinLayer(Module):
    """A recurrence or attention, and a network."""

    def __init__(self, config: Config, kind: Kind) -> None:
        self.temporal_pre_norm = norm(config)
        self.temporal_block = RecurrentBlock(config) if kind.mixer == "state" else Attention(config, kind)
        self.channel_pre_norm = norm(config)
        self.mlp_block = GatedMLP(config)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.temporal_block(self.temporal_pre_norm(x), step)
        return x + self.mlp_block(self.channel_pre_norm(x))


class _GriffinBody(Module):
    def __init__(self, config: Config) -> None:
        self.embed_tokens = Embedding(config.vocabulary, config.width, "blank")
        self.layers = layered(config, GriffinLayer)
        self.final_norm = norm(config)


class RecurrentGemma(Module):
    """RecurrentGemma, whose embedding is scaled by a root that is rounded to bfloat16."""

    layers_at = "model.layers."

    def __init__(self, config: Config) -> None:
        self.config = config
        self.model = _GriffinBody(config)
        self.lm_head = None if config.tied else Linear(config.width, config.vocabulary, False, "blank")

    def embed(self, token: Tensor, t: Dim) -> Tensor:
        """The scaled vector of a token."""
        found = self.model.embed_tokens(token)
        return found * as_tensor(float(self.config.width**0.5)).cast("bfloat16").cast(found.dtype)

    def layer(self, number: int) -> Layer:
        """A layer, by its number among the kinds."""
        return self.model.layers[number] if isinstance(self.model.layers, list) else self.model.layers

    def final(self, h: Tensor) -> Tensor:
        """What the last layer made, normalised."""
        return self.model.final_norm(h)

    def scores(self, h: Tensor) -> Tensor:
        """The logits of the next token, bounded."""
        cap = self.config.final_softcap
        assert cap is not None
        return tanh(logits(self.final(h), self.lm_head, self.model.embed_tokens) / cap) * cap
