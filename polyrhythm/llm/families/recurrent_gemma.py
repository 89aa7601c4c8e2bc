"""RecurrentGemma (Griffin; De et al., 2024): gated linear recurrences, and attention with a window, in turn."""

from __future__ import annotations

from polyrhythm.language.functions import as_tensor
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.config import Config, Kind
from polyrhythm.llm.families.llama import common
from polyrhythm.llm.fields import Fields
from polyrhythm.llm.parts import FUNCTIONS, Attention, GatedMLP, Step, norm
from polyrhythm.llm.rope import read_rotary
from polyrhythm.llm.states import Convolution, GatedRecurrence, StateSizes
from polyrhythm.llm.transformer import Names, Transformer
from polyrhythm.nn import Linear, Module


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


class RecurrentBlock(Module):
    """Griffin's recurrent block: a convolution and a gated recurrence, beside a gate."""

    def __init__(self, config: Config) -> None:
        sizes = config.detail
        self.between = FUNCTIONS[config.activation]
        self.linear_y = Linear(config.width, sizes.inner, True, "blank")
        self.linear_x = Linear(config.width, sizes.inner, True, "blank")
        self.linear_out = Linear(sizes.inner, config.width, True, "blank")
        self.conv_1d = Convolution(sizes.inner, sizes.width, True)
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


class RecurrentGemma(Transformer):
    """RecurrentGemma, whose embedding is scaled by a root that is rounded to bfloat16."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, GriffinLayer, Names(norm="final_norm"))

    def embed(self, token: Tensor, t: Dim) -> Tensor:
        """The scaled vector of a token."""
        found = super().embed(token, t)
        return found * as_tensor(float(self.config.width**0.5)).cast("bfloat16").cast(found.dtype)
