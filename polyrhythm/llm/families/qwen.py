"""Qwen2 and Qwen3 (Yang et al., 2024, 2025): Llama with biases on queries, keys and values, or with both normalised.

Their mixtures of experts have a network for all tokens beside the experts (Qwen2), and dense layers among the others.
"""

from __future__ import annotations

from dataclasses import replace

from polyrhythm.llm.config import Config, Experts, Kind
from polyrhythm.llm.families.llama import common, windows
from polyrhythm.llm.fields import Fields


def _windows(fields: Fields) -> tuple[Kind, ...]:
    """Layers from `max_window_layers` on have a window, if windows are used at all."""
    layers, first = fields.number("num_hidden_layers"), fields.count("max_window_layers", 28)
    used = fields.flag("use_sliding_window", False)
    if not used and fields.get("layer_types") is None:
        return windows(fields)
    return windows(fields, sliding=tuple(used and n >= first for n in range(layers)))


def qwen2(fields: Fields) -> Config:
    """Biases on queries, keys and values."""
    return common(fields, kinds=_windows(fields), qkv_bias=True)


def qwen3(fields: Fields) -> Config:
    """Heads of queries and keys are normalised."""
    bias = fields.flag("attention_bias", False)
    size = fields.number("head_dim", 128)
    return common(fields, kinds=_windows(fields), qk_norm="head", qkv_bias=bias, out_bias=bias, head_size=size)


def _mixed(fields: Fields, config: Config, experts: Experts) -> Config:
    """Every so many layers have experts, except those that are listed."""
    every, dense = fields.number("decoder_sparse_step", 1), fields.get("mlp_only_layers", [])
    if not isinstance(dense, list):
        raise fields.mismatch("mlp_only_layers", dense, "a list of layers")
    has = [(n + 1) % every == 0 and n not in dense for n in range(config.layers)]
    kinds = tuple(replace(kind, experts=own) for kind, own in zip(config.kinds, has, strict=True))
    return replace(config, kinds=kinds, experts=experts)


def qwen2_moe(fields: Fields) -> Config:
    """Qwen2 with experts, and one network with a gate for all tokens."""
    config = replace(qwen2(fields), qkv_bias=fields.flag("qkv_bias", True))
    return _mixed(
        fields,
        config,
        Experts(
            fields.number("num_experts", 60),
            fields.number("num_experts_per_tok", 4),
            fields.number("moe_intermediate_size", 1408),
            fields.flag("norm_topk_prob", False),
            fields.number("shared_expert_intermediate_size", 5632),
            gated=True,
        ),
    )


def qwen3_moe(fields: Fields) -> Config:
    """Qwen3 with experts."""
    size = fields.number("head_dim", fields.number("hidden_size") // fields.number("num_attention_heads"))
    bias = fields.flag("attention_bias", False)
    sliding = (fields.flag("use_sliding_window", False),) * fields.number("num_hidden_layers")
    kinds = windows(fields, sliding=sliding)
    config = common(fields, kinds=kinds, qk_norm="head", qkv_bias=bias, out_bias=bias, head_size=size)
    count = fields.number("num_experts", fields.number("num_local_experts", 128))
    active, hidden = fields.number("num_experts_per_tok", 8), fields.number("moe_intermediate_size", 768)
    return _mixed(fields, config, Experts(count, active, hidden, fields.flag("norm_topk_prob", False)))
