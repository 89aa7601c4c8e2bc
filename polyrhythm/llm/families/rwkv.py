"""RWKV 4 (Peng et al., 2023): a weighted mean of the past whose weights decay, as three states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from polyrhythm.language.functions import as_tensor, exp, maximum, relu, reshape, sigmoid, square
from polyrhythm.language.index import Dim
from polyrhythm.language.recurrent import otherwise
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.config import Config, Kind
from polyrhythm.llm.fields import Fields
from polyrhythm.llm.parts import Step
from polyrhythm.llm.states import StateSizes, before, over, without_heads
from polyrhythm.llm.transformer import Names, Transformer
from polyrhythm.nn import LayerNorm, Linear, Module
from polyrhythm.nn.initialisers import ones
from polyrhythm.nn.module import Weight


def rwkv(fields: Fields) -> Config:
    """The first block normalises the embedding too."""
    width, layers = fields.number("hidden_size"), fields.number("num_hidden_layers")
    sizes = StateSizes(fields.number("attention_hidden_size", width), 0, 0)
    kinds = tuple(Kind(mixer="first" if n == 0 else "state") for n in range(layers))
    hidden, tied = fields.number("intermediate_size", 4 * width), fields.flag("tie_word_embeddings", False)
    config = without_heads(fields, "rwkv", sizes, hidden, kinds=kinds, tied=tied)
    return replace(config, norm="layer")


def _shifted(x: Tensor, t: Dim, share: Any) -> Tensor:
    """A mixture of a step and the one before."""
    part = reshape(as_tensor(share), -1)
    return x * part + before(x, t) * (1.0 - part)


class RwkvAttention(Module):
    """A weighted mean of all values so far, whose weights decay: three states, one of them for the exponents."""

    def __init__(self, config: Config) -> None:
        inner = config.detail.inner
        self.time_decay: Weight = ones((inner,))
        self.time_first: Weight = ones((inner,))
        self.time_mix_key: Weight = ones((1, 1, config.width))
        self.time_mix_value: Weight = ones((1, 1, config.width))
        self.time_mix_receptance: Weight = ones((1, 1, config.width))
        self.key, self.value, self.receptance = (Linear(config.width, inner, False, "blank") for _ in range(3))
        self.output = Linear(inner, config.width, False, "blank")

    def __call__(self, x: Tensor, t: Dim) -> Tensor:
        key = self.key(_shifted(x, t, self.time_mix_key)).cast("float32")
        values = self.value(_shifted(x, t, self.time_mix_value)).cast("float32")
        gate = sigmoid(self.receptance(_shifted(x, t, self.time_mix_receptance)))
        decay = -exp(as_tensor(self.time_decay).cast("float32"))
        most, top, below, mean = (over(key, key.type.shape, key.dtype) for _ in range(4))
        ago = {t: t - 1}
        most[t < 1], top[t < 1], below[t < 1], mean[t < 1] = key, values, exp(key * 0.0), values
        most[otherwise] = maximum(most[ago] + decay, key)
        kept, new = exp(most[ago] + decay - most), exp(key - most)
        top[otherwise] = kept * top[ago] + new * values
        below[otherwise] = kept * below[ago] + new
        own = key + as_tensor(self.time_first).cast("float32")
        both = maximum(most[ago], own)
        past, now = exp(most[ago] - both), exp(own - both)
        mean[otherwise] = (past * top[ago] + now * values) / (past * below[ago] + now)
        return self.output(gate * mean.cast(x.dtype))


class RwkvNetwork(Module):
    """A network with a squared activation and a gate."""

    def __init__(self, config: Config) -> None:
        self.time_mix_key: Weight = ones((1, 1, config.width))
        self.time_mix_receptance: Weight = ones((1, 1, config.width))
        self.key = Linear(config.width, config.hidden, False, "blank")
        self.receptance = Linear(config.width, config.width, False, "blank")
        self.value = Linear(config.hidden, config.width, False, "blank")

    def __call__(self, x: Tensor, t: Dim) -> Tensor:
        found = self.value(square(relu(self.key(_shifted(x, t, self.time_mix_key)))))
        return sigmoid(self.receptance(_shifted(x, t, self.time_mix_receptance))) * found


class RwkvLayer(Module):
    """Both on normalised inputs."""

    def __init__(self, config: Config, kind: Kind) -> None:
        self.pre_ln = LayerNorm(config.width, config.epsilon) if kind.mixer == "first" else None
        self.ln1, self.ln2 = (LayerNorm(config.width, config.epsilon) for _ in range(2))
        self.attention, self.feed_forward = RwkvAttention(config), RwkvNetwork(config)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x if self.pre_ln is None else self.pre_ln(x)
        x = x + self.attention(self.ln1(x), step.t)
        return x + self.feed_forward(self.ln2(x), step.t)


def rwkv_decoder(config: Config) -> Transformer:
    """Names of its own, and a last norm that does not follow the configuration."""
    made = Transformer(config, RwkvLayer, Names("rwkv", "embeddings", "blocks", "ln_out", "head"))
    made.body.ln_out = LayerNorm(config.width, 1e-5)
    return made
