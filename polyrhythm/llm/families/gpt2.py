"""GPT-2 (Radford et al., 2019): learnt positions, and one projection of queries, keys and values."""

from __future__ import annotations

from polyrhythm.language.functions import einsum, reshape, split, take, value
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.config import Config, Kind
from polyrhythm.llm.fields import Fields
from polyrhythm.llm.parts import FUNCTIONS, Attention, Step
from polyrhythm.llm.transformer import Names, Transformer
from polyrhythm.nn import Embedding, LayerNorm, Module
from polyrhythm.nn.initialisers import fan_in, uniform
from polyrhythm.nn.module import Weight


def gpt2(fields: Fields) -> Config:
    """GPT-2, whose matrices are (in, out)."""
    fields.only("scale_attn_weights", True)
    fields.only("scale_attn_by_inverse_layer_idx", False)
    width, heads = fields.number("n_embd"), fields.number("n_head")
    layers, positions = fields.number("n_layer"), fields.number("n_positions")
    return Config(
        family="gpt2",
        vocabulary=fields.number("vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_size=width // heads,
        hidden=fields.number("n_inner", 4 * width),
        epsilon=fields.real("layer_norm_epsilon", 1e-5),
        activation=fields.activation("activation_function", "gelu_new"),
        positions=positions,
        limit=positions,
        tied=fields.flag("tie_word_embeddings", True),
        kinds=(Kind(),) * layers,
        norm="layer",
    )


class Conv1D(Module):
    """`x @ weight + bias`: a linear layer with its weight (in, out), as GPT-2 keeps it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.weight: Weight = fan_in((inputs, outputs), "blank")
        self.bias: Weight = uniform((outputs,), 1.0, "blank")

    def __call__(self, x: Tensor) -> Tensor:
        return einsum("...i,io->...o", x, self.weight) + self.bias


class GPT2Attention(Attention):
    """Attention with queries, keys and values from one projection, one after the other."""

    def __init__(self, config: Config, kind: Kind) -> None:
        self.config, self.kind = config, kind
        self.c_attn = Conv1D(config.width, 3 * config.width)
        self.c_proj = Conv1D(config.width, config.width)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        config, batch = self.config, x.shape[:-1]
        q, k, v = (
            reshape(part, *batch, config.heads, *one, config.head_size)
            for part, one in zip(split(self.c_attn(x), 3, -1), ((1,), (), ()), strict=True)
        )
        return self.c_proj(self.mixed(q, k, v, step))


class GPT2MLP(Module):
    """Two linear layers."""

    def __init__(self, config: Config) -> None:
        self.between = FUNCTIONS[config.activation]
        self.c_fc = Conv1D(config.width, config.hidden)
        self.c_proj = Conv1D(config.hidden, config.width)

    def __call__(self, x: Tensor) -> Tensor:
        return self.c_proj(self.between(self.c_fc(x)))


class GPT2Layer(Module):
    """Attention and a network, each on a normalised input and added to it."""

    def __init__(self, config: Config, kind: Kind) -> None:
        self.ln_1, self.ln_2 = (LayerNorm(config.width, config.epsilon) for _ in range(2))
        self.attn, self.mlp = GPT2Attention(config, kind), GPT2MLP(config)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        attended = x + self.attn(self.ln_1(x), step)
        return attended + self.mlp(self.ln_2(attended))


class GPT2(Transformer):
    """GPT-2, whose positions are learnt vectors."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, GPT2Layer, Names("transformer", "wte", "h", "ln_f"))
        self.body.wpe = Embedding(config.positions, config.width, "blank")

    def embed(self, token: Tensor, t: Dim) -> Tensor:
        """The vectors of a token and of its position."""
        return super().embed(token, t) + take(self.body.wpe.weight, value(t), 0)
