"""Layers of GPT-NeoX, Falcon and BLOOM: one projection of queries, keys and values, ordered by heads of keys."""

from __future__ import annotations

from typing import Any

from polyrhythm.language.functions import as_tensor, reshape
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.config import Config, Kind
from polyrhythm.llm.fields import Fields
from polyrhythm.llm.parts import Attention, PlainMLP, Step, alibi_slopes
from polyrhythm.nn import LayerNorm, Linear, Module


def fused_sizes(fields: Fields, kv_heads: int | None = None, **rest: Any) -> dict[str, Any]:
    """What GPT-NeoX, Falcon and BLOOM name alike, or in an older and a newer way."""
    heads = fields.number("num_attention_heads", fields.get("n_head"))
    width = fields.number("hidden_size", fields.get("n_embed"))
    return {
        "family": str(fields.get("model_type")),
        "vocabulary": fields.number("vocab_size"),
        "width": width,
        "layers": fields.number("num_hidden_layers", fields.get("n_layer")),
        "heads": heads,
        "kv_heads": kv_heads or heads,
        "head_size": width // heads,
        "norm": "layer",
        **rest,
    }


class FusedHeads(Attention):
    """One projection whose rows are ordered by heads of keys: the queries that share one, then its key and value."""

    def __init__(self, config: Config, kind: Kind) -> None:
        self.config, self.kind = config, kind
        rows = (config.heads + 2 * config.kv_heads) * config.head_size
        self.query_key_value = Linear(config.width, rows, config.qkv_bias, "blank")
        self.dense = Linear(config.heads * config.head_size, config.width, config.out_bias, "blank")
        self.alibi = bool((config.detail or {}).get("alibi"))

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        config = self.config
        shape = (*x.shape[:-1], config.kv_heads, config.group + 2, config.head_size)
        rows = reshape(self.query_key_value(x), *shape)
        q, k, v = rows.axes[..., :-2, :], rows.axes[..., -2, :], rows.axes[..., -1, :]
        options = {"position_bias": self._bias} if self.alibi else {}
        return self.dense(self.mixed(q, k, v, step, **options))

    def _bias(self, positions: Tensor) -> Tensor:
        """The bias for each position: as Falcon has it, rounded and scaled like the scores."""
        slopes = alibi_slopes(self.config.heads)[:, None]
        if self.config.family == "falcon":
            rounded = positions.cast("bfloat16") * as_tensor(slopes).cast("bfloat16")
            return rounded.cast(self.config.dtype).cast("float32") * float(self.config.head_size**-0.5)
        return (positions.cast("float32") * slopes).cast(self.config.dtype).cast("float32")


class FusedLayer(Module):
    """A layer of GPT-NeoX, Falcon or BLOOM; the names differ."""

    def __init__(self, config: Config, kind: Kind) -> None:
        self.config = config
        self.name = "attention" if config.family == "gpt_neox" else "self_attention"
        setattr(self, self.name, FusedHeads(config, kind))
        self.mlp = PlainMLP(config, "dense_h_to_4h", "dense_4h_to_h")
        two = config.family == "falcon" and config.order == "parallel" and config.detail["norms"] == 2
        both = config.order == "pre" or config.family == "gpt_neox"
        self.names = ("ln_attn", "ln_mlp") if two else ("input_layernorm", "post_attention_layernorm" if both else "")
        for name in filter(None, self.names):
            setattr(self, name, LayerNorm(config.width, config.epsilon))

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        first, second = self.names
        before = getattr(self, first)(x)
        found = getattr(self, self.name)(before, step)
        if self.config.order == "parallel":
            return x + found + self.mlp(getattr(self, second)(x) if second else before)
        attended = x + found
        return attended + self.mlp(getattr(self, second)(attended))
