"""Falcon (Almazrouei et al., 2023): rotary positions, or attention that falls with the distance (ALiBi)."""

from __future__ import annotations

from polyrhythm.errors import UnsupportedError
from polyrhythm.llm.config import Config, Kind
from polyrhythm.llm.fields import Fields
from polyrhythm.llm.fused import FusedLayer, fused_sizes
from polyrhythm.llm.rope import read_rotary
from polyrhythm.llm.transformer import Names, Transformer


def falcon(fields: Fields) -> Config:
    """Rotary positions or ALiBi; one head of keys, several, or all; one norm before both parts, or two."""
    new, parallel = fields.flag("new_decoder_architecture", False), fields.flag("parallel_attn", True)
    alibi, bias = fields.flag("alibi", False), fields.flag("bias", False)
    if new and not parallel:
        raise UnsupportedError(f"{fields.path} has parallel_attn = False for a new Falcon", fix="only True is known")
    heads = fields.number("num_attention_heads", fields.get("n_head"))
    one = fields.flag("multi_query", True) and not new
    norms = fields.number("num_ln_in_parallel_attn", 2 if new else 1)
    sizes = fused_sizes(
        fields,
        1 if one else fields.number("num_kv_heads", heads) if new else heads,
        hidden=fields.number("ffn_hidden_size", 4 * fields.number("hidden_size")),
        epsilon=fields.real("layer_norm_epsilon", 1e-5),
        activation=fields.activation("activation", "gelu"),
        positions=fields.number("max_position_embeddings", 2048),
        tied=fields.flag("tie_word_embeddings", True),
        order="parallel" if parallel else "pre",
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
    )
    kind = Kind(rotary=None if alibi else read_rotary(fields))
    detail = {"alibi": alibi, "norms": norms, "grouped": new or one}
    return Config(**sizes, kinds=(kind,) * sizes["layers"], detail=detail)


def falcon_decoder(config: Config) -> Transformer:
    """Names of its own."""
    return Transformer(config, FusedLayer, Names("transformer", "word_embeddings", "h", "ln_f"))
