"""Gemma, Gemma 2 and Gemma 3 (text): the embedding is scaled, norms count from one, layers alternate between windows.

Gemma 2 normalises before and after each part and bounds scores and logits; Gemma 3 normalises queries and keys instead,
and has positions of its own for layers with a window.
"""

from __future__ import annotations

from typing import Any

from polyrhythm.llm.config import Config, Kind
from polyrhythm.llm.families.llama import common, windows
from polyrhythm.llm.fields import Fields
from polyrhythm.llm.rope import Rotary, read_rotary


def _gemma(fields: Fields, **options: Any) -> Config:
    width, bias = fields.number("hidden_size"), fields.flag("attention_bias", False)
    fields.only("use_bidirectional_attention", False)
    return common(
        fields,
        norm="rms+1",
        embedding_scale=float(width**0.5),
        head_size=fields.number("head_dim", 256),
        activation=fields.activation("hidden_activation", str(fields.get("hidden_act", "gelu_pytorch_tanh"))),
        tied_default=True,
        qkv_bias=bias,
        out_bias=bias,
        **options,
    )


def gemma(fields: Fields) -> Config:
    """The first Gemma, whose "gelu" has always been the one with tanh."""
    return _gemma(fields)


def gemma2(fields: Fields) -> Config:
    """Every second layer, from the first on, has a window."""
    layers = fields.number("num_hidden_layers")
    return _gemma(
        fields,
        kinds=windows(fields, sliding=tuple(n % 2 == 0 for n in range(layers))),
        order="both",
        scale=fields.real("query_pre_attn_scalar", 256) ** -0.5,
        softcap=fields.optional_real("attn_logit_softcapping") if "attn_logit_softcapping" in fields else 50.0,
        final_softcap=fields.optional_real("final_logit_softcapping") if "final_logit_softcapping" in fields else 30.0,
    )


def gemma3(fields: Fields) -> Config:
    """All but every sixth layer have a window and local positions."""
    layers, every = fields.number("num_hidden_layers"), fields.number("sliding_window_pattern", 6)
    nested = any(isinstance(entry, dict) for entry in fields.inner("rope_parameters").given.values())
    if nested:
        whole, local = (read_rotary(fields, layer=name) for name in ("full_attention", "sliding_attention"))
    else:
        whole = read_rotary(fields, base=1e6)
        local = Rotary(fields.real("rope_local_base_freq", 10000.0))
    sliding = tuple((n + 1) % every != 0 for n in range(layers))
    kinds = tuple(
        Kind(kind.window, whole if kind.window is None else local)
        for kind in windows(fields, rotary=whole, sliding=sliding)
    )
    return _gemma(
        fields,
        kinds=kinds,
        order="both",
        qk_norm="head",
        scale=fields.real("query_pre_attn_scalar", 256) ** -0.5,
        softcap=fields.optional_real("attn_logit_softcapping"),
        final_softcap=fields.optional_real("final_logit_softcapping"),
    )
