"""Families that differ from Llama in a few settings: SmolLM3, Phi 3, OLMo 2, Granite, StableLM, StarCoder 2, Cohere."""

from __future__ import annotations

from polyrhythm.language.functions import stack
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.config import Config, Kind
from polyrhythm.llm.families.llama import alike, common
from polyrhythm.llm.fields import Fields
from polyrhythm.llm.parts import Attention, FusedAttention, FusedMLP, PlainLayerNorm, PlainMLP
from polyrhythm.llm.rope import read_rotary
from polyrhythm.llm.transformer import DecoderLayer, Transformer
from polyrhythm.nn import Module


def smollm3(fields: Fields) -> Config:
    """Every fourth layer has no positions."""
    layers, every = fields.number("num_hidden_layers"), fields.number("no_rope_layer_interval", 4)
    fields.only("use_sliding_window", False)
    alike(fields, layers, Kind())
    has = fields.get("no_rope_layers", [int((n + 1) % every != 0) for n in range(layers)])
    if not isinstance(has, list) or len(has) != layers or any(entry not in (0, 1) for entry in has):
        raise fields.mismatch("no_rope_layers", has, "a 0 or 1 for each layer")
    rotary, bias = read_rotary(fields, base=2e6), fields.flag("attention_bias", False)
    kinds = tuple(Kind(rotary=rotary if own else None) for own in has)
    few = fields.number("num_key_value_heads", 4)
    return common(
        fields,
        kinds=kinds,
        tied_default=True,
        kv_heads=few,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=fields.flag("mlp_bias", False),
    )


def phi3(fields: Fields) -> Config:
    """One projection for queries, keys and values, and one for gate and up."""
    rotary = read_rotary(fields)
    size = None if fields.get("sliding_window") is None else fields.number("sliding_window")
    kinds = alike(fields, fields.number("num_hidden_layers"), Kind(size, rotary))
    limit = rotary.original if rotary.kind == "longrope" else None
    return common(fields, kinds=kinds, epsilon=fields.real("rms_norm_eps", 1e-5), limit=limit)


def phi3_decoder(config: Config) -> Transformer:
    """The fused projections of Phi 3."""
    return Transformer(config, lambda c, kind: DecoderLayer(c, kind, FusedAttention, lambda c, _: FusedMLP(c)))


def olmo2(fields: Fields) -> Config:
    """Norms come after attention and network; queries and keys are normalised over all heads."""
    bias = fields.flag("attention_bias", False)
    epsilon = fields.real("rms_norm_eps", 1e-5)
    return common(fields, order="post", qk_norm="width", qkv_bias=bias, out_bias=bias, epsilon=epsilon)


def granite(fields: Fields) -> Config:
    """Four factors: of the embedding, of attention, of what is added to the residual, and of the logits."""
    bias = fields.flag("attention_bias", False)
    return common(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=fields.flag("mlp_bias", False),
        embedding_scale=fields.real("embedding_multiplier", 1.0),
        scale=fields.real("attention_multiplier", 1.0),
        residual_scale=fields.real("residual_multiplier", 1.0),
        logit_scale=1 / fields.real("logits_scaling", 1.0),
    )


def stablelm(fields: Fields) -> Config:
    """LayerNorm, a quarter of each head turned, and attention and network in parallel if asked."""
    return common(
        fields,
        rotary=read_rotary(fields, part=fields.real("rope_pct", 0.25)),
        norm="layer",
        epsilon=fields.real("layer_norm_eps", 1e-5),
        qkv_bias=fields.flag("use_qkv_bias", False),
        order="parallel" if fields.flag("use_parallel_residual", False) else "pre",
        qk_norm="separate" if fields.flag("qk_layernorm", False) else None,
    )


class _HeadNorms(Module):
    """A LayerNorm for each head, as StableLM keeps them."""

    def __init__(self, heads: int, size: int, epsilon: float) -> None:
        self.norms = [PlainLayerNorm((size,), epsilon) for _ in range(heads)]

    def __call__(self, x: Tensor) -> Tensor:
        return stack([own(x.axes[..., n, :]) for n, own in enumerate(self.norms)], -2)


class _StableAttention(Attention):
    """Attention whose heads have norms of their own."""

    def __init__(self, config: Config, kind: Kind) -> None:
        super().__init__(config, kind)
        if config.qk_norm is not None:
            del self.q_norm, self.k_norm
            self.q_layernorm = _HeadNorms(config.heads, config.head_size, config.epsilon)
            self.k_layernorm = _HeadNorms(config.kv_heads, config.head_size, config.epsilon)

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().projected(x)
        if self.config.qk_norm is None:
            return q, k, v
        size, batch = self.config.head_size, x.shape[:-1]
        q, k = (part.reshape(*batch, -1, size) for part in (q, k))
        return self.q_layernorm(q), self.k_layernorm(k), v


def stablelm_decoder(config: Config) -> Transformer:
    """Attention with StableLM's norms."""
    return Transformer(config, lambda c, kind: DecoderLayer(c, kind, _StableAttention))


def starcoder2(fields: Fields) -> Config:
    """LayerNorm, biases everywhere, and a plain network."""
    bias = fields.flag("use_bias", True)
    size = None if fields.get("sliding_window") is None else fields.number("sliding_window")
    return common(
        fields,
        kinds=alike(fields, fields.number("num_hidden_layers"), Kind(size, read_rotary(fields))),
        kv_heads=fields.number("num_key_value_heads", 2),
        norm="layer",
        epsilon=fields.real("norm_epsilon", 1e-5),
        activation=fields.activation("hidden_act", "gelu_pytorch_tanh"),
        tied_default=True,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
    )


def starcoder2_decoder(config: Config) -> Transformer:
    """The network of StarCoder 2."""
    return Transformer(
        config, lambda c, kind: DecoderLayer(c, kind, network=lambda c, _: PlainMLP(c, "c_fc", "c_proj"))
    )


def cohere(fields: Fields) -> Config:
    """LayerNorm without a bias, attention and network in parallel, neighbours as rotary pairs, scaled logits."""
    bias = fields.flag("attention_bias", False)
    return common(
        fields,
        rotary=read_rotary(fields, base=500000.0, interleaved=True),
        norm="layer without bias",
        epsilon=fields.real("layer_norm_eps", 1e-5),
        order="parallel",
        tied_default=True,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm="heads" if fields.flag("use_qk_norm", False) else None,
        logit_scale=fields.real("logit_scale", 0.0625),
    )


class _CohereAttention(Attention):
    """Attention whose heads are normalised together, with a weight for each."""

    def __init__(self, config: Config, kind: Kind) -> None:
        super().__init__(config, kind)
        if config.qk_norm is not None:
            self.q_norm = PlainLayerNorm((config.heads, config.head_size), config.epsilon)
            self.k_norm = PlainLayerNorm((config.kv_heads, config.head_size), config.epsilon)

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().projected(x)
        if self.config.qk_norm is None:
            return q, k, v
        size, batch = self.config.head_size, x.shape[:-1]
        q, k = (part.reshape(*batch, -1, size) for part in (q, k))
        return self.q_norm(q), self.k_norm(k), v


def cohere_decoder(config: Config) -> Transformer:
    """Attention with Cohere's norms."""
    return Transformer(config, lambda c, kind: DecoderLayer(c, kind, _CohereAttention))
