"""The decoder that most families are: Llama's, with other parts where the configuration or the family says so.

The weights have the names of the checkpoint. Layers of one kind, or of kinds that repeat, are one loop, and their
weights vary along its dim: `model.layers.mlp.up_proj.weight` stands for `model.layers.0.mlp.up_proj.weight` and the
others. If there are several kinds, `model.layers.1.` is the second kind of layer, and stands for all of that kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Names:
    """What a checkpoint calls the parts of a decoder."""

    body: str = "model"
    embedding: str = "embed_tokens"
    layers: str = "layers"
    norm: str = "norm"
    head: str = "lm_head"


class Transformer(Module):
    """A decoder in the manner of Llama: an embedding, layers, a norm, and an output layer unless that is tied."""

    def __init__(self, config: Config, layer: Maker = DecoderLayer, names: Names | None = None) -> None:
        self.config, self.names = config, names or Names()
        body = Module()
        setattr(body, self.names.embedding, Embedding(config.vocabulary, config.width, "blank"))
        setattr(body, self.names.layers, layered(config, layer))
        setattr(body, self.names.norm, norm(config))
        setattr(self, self.names.body, body)
        head = None if config.tied else Linear(config.width, config.vocabulary, False, "blank")
        setattr(self, self.names.head, head)

    @property
    def layers_at(self) -> str:
        """What the names of the weights of layers begin with."""
        return f"{self.names.body}.{self.names.layers}."

    @property
    def body(self) -> Any:
        """All but the output layer."""
        return getattr(self, self.names.body)

    def embed(self, token: Tensor, t: Dim) -> Tensor:
        """The vector of a token; its position comes in at the attention."""
        found: Tensor = getattr(self.body, self.names.embedding)(token)
        scale = self.config.embedding_scale
        return found if scale == 1 else found * scale

    def layer(self, number: int) -> Layer:
        """A layer, by its number among the kinds."""
        layers: Any = getattr(self.body, self.names.layers)
        return layers[number] if isinstance(layers, list) else layers

    def final(self, h: Tensor) -> Tensor:
        """What the last layer made, normalised."""
        return getattr(self.body, self.names.norm)(h)

    def scores(self, h: Tensor) -> Tensor:
        """The logits of the next token."""
        config, embedding = self.config, getattr(self.body, self.names.embedding)
        found = logits(self.final(h), getattr(self, self.names.head), embedding)
        found = found if config.logit_scale == 1 else found * config.logit_scale
        cap = config.final_softcap
        return found if cap is None else tanh(found / cap) * cap
