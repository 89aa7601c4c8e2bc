"""Mixtures of experts: Mixtral (Jiang et al., 2024), Qwen's, gpt-oss (OpenAI, 2025) and DeepSeek V3 (2024)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from polyrhythm.language.functions import as_tensor, concat, einsum, reshape
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.config import Config, Experts, Kind
from polyrhythm.llm.experts import ClampedExperts, Mixture
from polyrhythm.llm.families.llama import alike, common, windows
from polyrhythm.llm.fields import Fields
from polyrhythm.llm.parts import Attention, GatedMLP, Step
from polyrhythm.llm.patterns import attend
from polyrhythm.llm.rope import magnitude, read_rotary
from polyrhythm.llm.transformer import DecoderLayer, Transformer
from polyrhythm.nn import Linear, Module, RMSNorm
from polyrhythm.nn.initialisers import zeros
from polyrhythm.nn.module import Weight


def mixtral(fields: Fields) -> Config:
    """Mistral with experts in all layers."""
    size = None if fields.get("sliding_window") is None else fields.number("sliding_window")
    kind = Kind(size, read_rotary(fields, base=1e6), experts=True)
    active, hidden = fields.number("num_experts_per_tok", 2), fields.number("intermediate_size")
    return common(
        fields,
        kinds=alike(fields, fields.number("num_hidden_layers"), kind),
        kv_heads=fields.number("num_key_value_heads", 8),
        epsilon=fields.real("rms_norm_eps", 1e-5),
        experts=Experts(fields.number("num_local_experts", 8), active, hidden, normalised=True),
    )


class _MixtralLayer(DecoderLayer):
    """The same layer, whose network has another name."""

    def __init__(self, config: Config, kind: Kind) -> None:
        super().__init__(config, kind, network=lambda c, k: Mixture(c, ("w1", "w3", "w2")), named="block_sparse_moe")


def mixtral_decoder(config: Config) -> Transformer:
    """Experts in all layers."""
    return Transformer(config, _MixtralLayer)


def _network(config: Config, kind: Kind) -> Module:
    return Mixture(config) if kind.experts else GatedMLP(config)


def mixture_decoder(config: Config) -> Transformer:
    """Experts where the kind of a layer says so."""
    return Transformer(config, lambda c, kind: DecoderLayer(c, kind, network=_network))


def gpt_oss(fields: Fields) -> Config:
    """Every second layer has a window, and every head a sink."""
    layers = fields.number("num_hidden_layers")
    bias, active = fields.flag("attention_bias", True), fields.number("num_experts_per_tok", 4)
    if "rope_parameters" not in fields and "rope_scaling" not in fields:
        raise fields.mismatch("rope_scaling", None, "an object")
    kinds = windows(fields, read_rotary(fields, base=150000.0), tuple(n % 2 == 0 for n in range(layers)))
    experts = Experts(fields.number("num_local_experts", 128), active, fields.number("intermediate_size"))
    return common(
        fields,
        kinds=kinds,
        head_size=fields.number("head_dim", 64),
        kv_heads=fields.number("num_key_value_heads", 8),
        epsilon=fields.real("rms_norm_eps", 1e-5),
        qkv_bias=bias,
        out_bias=bias,
        experts=replace(experts, form="clamped"),
        detail=(fields.real("swiglu_alpha", 1.702), fields.real("swiglu_limit", 7.0)),
    )


class _SinkAttention(Attention):
    """Attention with a sink for each head."""

    def __init__(self, config: Config, kind: Kind) -> None:
        super().__init__(config, kind)
        self.sinks: Weight = zeros((config.heads,))

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, step: Step, **options: Any) -> Tensor:
        return super().mixed(q, k, v, step, sinks=as_tensor(self.sinks))


def gpt_oss_decoder(config: Config) -> Transformer:
    """Sinks, and experts whose gates are clamped."""
    return Transformer(config, lambda c, kind: DecoderLayer(c, kind, _SinkAttention, lambda c, _: ClampedExperts(c)))


@dataclass(frozen=True)
class Latent:
    """The sizes of DeepSeek's latent attention: ranks of queries and keys, and the parts of a head."""

    query_rank: int | None
    rank: int
    plain: int
    turned: int
    values: int


def deepseek_v3(fields: Fields) -> Config:
    """Latent attention, and experts chosen within groups by a sigmoid with a correction."""
    rotary = read_rotary(fields, interleaved=fields.flag("rope_interleave", True))
    layers, dense = fields.number("num_hidden_layers"), fields.count("first_k_dense_replace", 3)
    detail = Latent(
        None if "q_lora_rank" in fields and fields.get("q_lora_rank") is None else fields.number("q_lora_rank", 1536),
        fields.number("kv_lora_rank", 512),
        fields.number("qk_nope_head_dim", 128),
        fields.number("qk_rope_head_dim", 64),
        fields.number("v_head_dim", 128),
    )
    scaling = fields.inner("rope_parameters" if fields.get("rope_scaling") in (None, {}) else "rope_scaling")
    scale = (detail.plain + detail.turned) ** -0.5
    if rotary.kind != "default" and scaling.get("mscale_all_dim"):
        scale *= magnitude(rotary.factor, scaling.real("mscale_all_dim")) ** 2
    hidden = fields.number("moe_intermediate_size", 2048)
    experts = Experts(
        fields.number("n_routed_experts", 256),
        fields.number("num_experts_per_tok", 8),
        hidden,
        fields.flag("norm_topk_prob", True),
        fields.number("n_shared_experts", 1) * hidden,
        form="sigmoid",
        groups=fields.number("n_group", 8),
        active_groups=fields.number("topk_group", 4),
        scale=fields.real("routed_scaling_factor", 2.5),
    )
    bias = fields.flag("attention_bias", False)
    return common(
        fields,
        kinds=tuple(Kind(rotary=rotary, experts=n >= dense) for n in range(layers)),
        head_size=detail.turned,
        scale=scale,
        qkv_bias=bias,
        out_bias=bias,
        experts=experts,
        detail=detail,
    )


class LatentAttention(Module):
    """DeepSeek's latent attention: what is stored of a step is one vector of `rank`, and a turned key for all heads.

    Keys and values of each head are linear in that vector, so the queries are brought to its space instead, and what
    they find is brought back: attention with one head of keys (DeepSeek V2, section 2.1.2).
    """

    def __init__(self, config: Config, kind: Kind) -> None:
        self.config, self.kind, sizes = config, kind, config.detail
        inner = config.heads * (sizes.plain + sizes.turned)
        if sizes.query_rank is None:
            self.q_proj = Linear(config.width, inner, False, "blank")
        else:
            self.q_a_proj = Linear(config.width, sizes.query_rank, config.qkv_bias, "blank")
            self.q_a_layernorm = RMSNorm(sizes.query_rank, 1e-6)
            self.q_b_proj = Linear(sizes.query_rank, inner, False, "blank")
        self.kv_a_proj_with_mqa = Linear(config.width, sizes.rank + sizes.turned, config.qkv_bias, "blank")
        self.kv_a_layernorm = RMSNorm(sizes.rank, 1e-6)
        self.kv_b_proj = Linear(sizes.rank, config.heads * (sizes.plain + sizes.values), False, "blank")
        self.o_proj = Linear(config.heads * sizes.values, config.width, config.out_bias, "blank")

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        config, sizes, batch, t = self.config, self.config.detail, x.shape[:-1], step.t
        rotary = self.kind.rotary
        assert rotary is not None
        q = self.q_proj(x) if sizes.query_rank is None else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q = reshape(q, *batch, config.heads, sizes.plain + sizes.turned)
        both = self.kv_a_proj_with_mqa(x)
        latent = self.kv_a_layernorm(both.axes[..., : sizes.rank])
        matrix = reshape(self.kv_b_proj.weight, config.heads, sizes.plain + sizes.values, sizes.rank)
        moved = einsum("...hn,hnr->...hr", q.axes[..., : sizes.plain], matrix.axes[:, : sizes.plain])
        queries = concat([moved, rotary.turned(q.axes[..., sizes.plain :], step.position)], -1)
        keys = concat([latent, rotary.turned(both.axes[..., sizes.rank :], step.position)], -1)
        found = attend(
            reshape(queries, *batch, 1, config.heads, sizes.rank + sizes.turned),
            reshape(keys, *batch, 1, sizes.rank + sizes.turned),
            reshape(latent, *batch, 1, sizes.rank),
            t,
            step.attending(self.kind),
            config.scale,
        )
        found = reshape(found, *batch, config.heads, sizes.rank)
        found = einsum("...hr,hvr->...hv", found, matrix.axes[:, sizes.plain :])
        return self.o_proj(reshape(found, *batch, config.heads * sizes.values))


def deepseek_decoder(config: Config) -> Transformer:
    """Latent attention, and experts after the first layers."""
    return Transformer(config, lambda c, kind: DecoderLayer(c, kind, LatentAttention, _network))
