"""The decoder that most families are: Llama's, with other parts where the configuration or the family says so.

The weights have the names of the checkpoint. Layers of one kind, or of kinds that repeat, are one loop, and their
weights vary along its dim: `model.layers.mlp.up_proj.weight` stands for `model.layers.0.mlp.up_proj.weight` and the
others. If there are several kinds, `model.layers.1.` is the second kind of layer, and stands for all of that kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polyrhythm.language.functions import tanh
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.config import Config, Kind, stacks
from polyrhythm.llm.parts import Attention, GatedMLP, Layer, Step, logits, norm
from polyrhythm.nn import Embedding, Linear, Module

Maker = Callable[[Config, Kind], Any]


def gated(config: Config, kind: Kind) -> Module:
    """The network of most layers."""
    return GatedMLP(config)


def layered(config: Config, make: Maker) -> Any:
    """A layer of each kind: one module, or a list of them where kinds differ."""
    kinds = [config.kinds[s.start + n] for s in stacks(config.kinds) for n in range(s.period)]
    made = [make(config, kind) for kind in kinds]
    return made[0] if len(made) == 1 else made


class DecoderLayer(Module):
    """Attention and a network, each normalised before (pre), after (post) or both, and added to what they read."""

    def __init__(
        self, config: Config, kind: Kind, attention: Maker = Attention, network: Maker = gated, named: str = "mlp"
    ) -> None:
        self.config, self.named = config, named
        self.self_attn = attention(config, kind)
        setattr(self, named, network(config, kind))
        if config.order != "post":
            self.input_layernorm = norm(config)
        if config.order != "parallel":
            self.post_attention_layernorm = norm(config)
        if config.order == "both":
            self.pre_feedforward_layernorm = norm(config)
        if config.order in ("both", "post"):
            self.post_feedforward_layernorm = norm(config)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        order, scale, network = self.config.order, self.config.residual_scale, getattr(self, self.named)
        before = x if order == "post" else self.input_layernorm(x)
        found = self.self_attn(before, step)
        if order == "parallel":
            return x + found + network(before, step)
        if order in ("both", "post"):
            found = self.post_attention_layernorm(found)
        x = x + (found if scale == 1 else found * scale)
        if order == "pre":
            found = network(self.post_attention_layernorm(x), step)
        else:
            before = x if order == "post" else self.pre_feedforward_layernorm(x)
            found = self.post_feedforward_layernorm(network(before, step))
        return x + (found if scale == 1 else found * scale)


class _Body(Module):
    """All but the output layer."""

    def __init__(self, config: Config, layer: Maker) -> None:
        self.embed_tokens = Embedding(config.vocabulary, config.width, "blank")
        self.layers = layered(config, layer)
        self.norm = norm(config)


class Transformer(Module):
    """A decoder in the manner of Llama."""

    layers_at = "model.layers."

    def __init__(self, config: Config, layer: Maker = DecoderLayer) -> None:
        self.config = config
        self.model = _Body(config, layer)
        self.lm_head = None if config.tied else Linear(config.width, config.vocabulary, False, "blank")

    def embed(self, token: Tensor, t: Dim) -> Tensor:
        """The vector of a token; its position comes in at the attention."""
        found = self.model.embed_tokens(token)
        scale = self.config.embedding_scale
        return found if scale == 1 else found * scale

    def layer(self, number: int) -> Layer:
        """A layer, by its number among the kinds."""
        layers = self.model.layers
        return layers[number] if isinstance(layers, list) else layers

    def final(self, h: Tensor) -> Tensor:
        """What the last layer made, normalised."""
        return self.model.norm(h)

    def scores(self, h: Tensor) -> Tensor:
        """The logits of the next token."""
        config = self.config
        found = logits(self.final(h), self.lm_head, self.model.embed_tokens)
        found = found if config.logit_scale == 1 else found * config.logit_scale
        cap = config.final_softcap
        return found if cap is None else tanh(found / cap) * cap
