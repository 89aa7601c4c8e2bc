"""GPT-NeoX and Pythia (Black et al., 2022; Biderman et al., 2023)."""

from __future__ import annotations

from polyrhythm.llm.config import Config, Kind
from polyrhythm.llm.fields import Fields
from polyrhythm.llm.fused import FusedLayer, fused_sizes
from polyrhythm.llm.rope import read_rotary
from polyrhythm.llm.transformer import Names, Transformer


def gpt_neox(fields: Fields) -> Config:
    """A quarter of each head is turned; attention and network are in parallel."""
    rotary, bias = read_rotary(fields, fields.real("rotary_emb_base", 10000.0), fields.real("rotary_pct", 0.25)), True
    order = "parallel" if fields.flag("use_parallel_residual", True) else "pre"
    attention_bias = fields.flag("attention_bias", True)
    sizes = fused_sizes(
        fields,
        hidden=fields.number("intermediate_size"),
        epsilon=fields.real("layer_norm_eps", 1e-5),
        activation=fields.activation("hidden_act", "gelu"),
        positions=fields.number("max_position_embeddings", 2048),
        tied=fields.flag("tie_word_embeddings", False),
        order=order,
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        mlp_bias=bias,
    )
    return Config(**sizes, kinds=(Kind(rotary=rotary),) * sizes["layers"])


def gpt_neox_decoder(config: Config) -> Transformer:
    """Names of its own."""
    names = Names("gpt_neox", "embed_in", "layers", "final_layer_norm", "embed_out")
    return Transformer(config, FusedLayer, names)
