"""BLOOM (Le Scao et al., 2022): attention that falls with the distance (ALiBi; Press et al., 2022)."""

from __future__ import annotations

from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.config import Config, Kind
from polyrhythm.llm.fields import Fields
from polyrhythm.llm.fused import FusedLayer, fused_sizes
from polyrhythm.llm.transformer import Names, Transformer
from polyrhythm.nn import LayerNorm


def bloom(fields: Fields) -> Config:
    """ALiBi instead of positions, and a norm after the embedding."""
    fields.only("apply_residual_connection_post_layernorm", False)
    sizes = fused_sizes(
        fields,
        hidden=4 * fields.number("hidden_size", fields.get("n_embed")),
        epsilon=fields.real("layer_norm_epsilon", 1e-5),
        activation="gelu_tanh",
        positions=fields.number("seq_length", 2048),
        tied=fields.flag("tie_word_embeddings", True),
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
    )
    return Config(**sizes, kinds=(Kind(),) * sizes["layers"], detail={"alibi": True})


class Bloom(Transformer):
    """BLOOM, whose embedding is normalised."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, FusedLayer, Names("transformer", "word_embeddings", "h", "ln_f"))
        self.body.word_embeddings_layernorm = LayerNorm(config.width, config.epsilon)

    def embed(self, token: Tensor, t: Dim) -> Tensor:
        """The normalised vector of a token."""
        return self.body.word_embeddings_layernorm(super().embed(token, t))
