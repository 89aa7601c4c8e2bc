"""GPT-2 (Radford et al., 2019), GPT-NeoX (Black et al., 2022), Falcon (Almazrouei et al., 2023) and BLOOM (2022).

Their projections of queries, keys and values are one matrix, each in its own order, and their modules have names of
their own. GPT-2 learns a vector for each position; BLOOM and some Falcons let attention fall with the distance (ALiBi).
"""

from __future__ import annotations

from typing import Any

from polyrhythm.errors import UnsupportedError
from polyrhythm.language.functions import as_tensor, einsum, reshape, split, take, value
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.config import Config, Kind
from polyrhythm.llm.fields import Fields
from polyrhythm.llm.parts import Attention, Layer, PlainMLP, Step, alibi_slopes, logits
from polyrhythm.llm.rope import read_rotary
from polyrhythm.llm.transformer import layered
from polyrhythm.nn import Embedding, LayerNorm, Linear, Module
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


def _sizes(fields: Fields, kv_heads: int | None = None, **rest: Any) -> dict[str, Any]:
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


def gpt_neox(fields: Fields) -> Config:
    """A quarter of each head is turned; attention and network are in parallel."""
    rotary, bias = read_rotary(fields, fields.real("rotary_emb_base", 10000.0), fields.real("rotary_pct", 0.25)), True
    order = "parallel" if fields.flag("use_parallel_residual", True) else "pre"
    attention_bias = fields.flag("attention_bias", True)
    sizes = _sizes(
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


def bloom(fields: Fields) -> Config:
    """ALiBi instead of positions, and a norm after the embedding."""
    fields.only("apply_residual_connection_post_layernorm", False)
    sizes = _sizes(
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
    return Config(**sizes, kinds=(Kind(),) * sizes["layers"], detail={"alibi": True, "embedding_norm": True})


def falcon(fields: Fields) -> Config:
    """Rotary positions or ALiBi; one head of keys, several, or all; one norm before both parts, or two."""
    new, parallel = fields.flag("new_decoder_architecture", False), fields.flag("parallel_attn", True)
    alibi, bias = fields.flag("alibi", False), fields.flag("bias", False)
    if new and not parallel:
        raise UnsupportedError(f"{fields.path} has parallel_attn = False for a new Falcon", fix="only True is known")
    heads = fields.number("num_attention_heads", fields.get("n_head"))
    one = fields.flag("multi_query", True) and not new
    norms = fields.number("num_ln_in_parallel_attn", 2 if new else 1)
    sizes = _sizes(
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
        self.between = PlainMLP(config, "first", "last").between
        self.c_fc = Conv1D(config.width, config.hidden)
        self.c_proj = Conv1D(config.hidden, config.width)

    def __call__(self, x: Tensor) -> Tensor:
        return self.c_proj(self.between(self.c_fc(x)))


class GPT2Layer(Module):
    """Attention and a network, each on a normalised input and added to it."""

    def __init__(self, config: Config, kind: Kind) -> None:
        self.ln_1 = LayerNorm(config.width, config.epsilon)
        self.attn = GPT2Attention(config, kind)
        self.ln_2 = LayerNorm(config.width, config.epsilon)
        self.mlp = GPT2MLP(config)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        attended = x + self.attn(self.ln_1(x), step)
        return attended + self.mlp(self.ln_2(attended))


class GPT2Body(Module):
    """All but the output layer."""

    def __init__(self, config: Config) -> None:
        self.wte = Embedding(config.vocabulary, config.width, "blank")
        self.wpe = Embedding(config.positions, config.width, "blank")
        self.h = layered(config, GPT2Layer)
        self.ln_f = LayerNorm(config.width, config.epsilon)


class GPT2(Module):
    """GPT-2, whose positions are learnt vectors."""

    layers_at = "transformer.h."

    def __init__(self, config: Config) -> None:
        self.transformer = GPT2Body(config)
        self.lm_head = None if config.tied else Linear(config.width, config.vocabulary, False, "blank")

    def embed(self, token: Tensor, t: Dim) -> Tensor:
        """The vectors of a token and of its position."""
        return self.transformer.wte(token) + take(self.transformer.wpe.weight, value(t), 0)

    def layer(self, number: int) -> Layer:
        """The only kind of layer."""
        return self.transformer.h

    def final(self, h: Tensor) -> Tensor:
        """What the last layer made, normalised."""
        return self.transformer.ln_f(h)

    def scores(self, h: Tensor) -> Tensor:
        """The logits of the next token."""
        return logits(self.final(h), self.lm_head, self.transformer.wte)


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


class _NeoXBody(Module):
    def __init__(self, config: Config) -> None:
        self.embed_in = Embedding(config.vocabulary, config.width, "blank")
        self.layers = layered(config, FusedLayer)
        self.final_layer_norm = LayerNorm(config.width, config.epsilon)


class GPTNeoX(Module):
    """GPT-NeoX and Pythia."""

    layers_at = "gpt_neox.layers."

    def __init__(self, config: Config) -> None:
        self.gpt_neox = _NeoXBody(config)
        self.embed_out = None if config.tied else Linear(config.width, config.vocabulary, False, "blank")

    def embed(self, token: Tensor, t: Dim) -> Tensor:
        """The vector of a token."""
        return self.gpt_neox.embed_in(token)

    def layer(self, number: int) -> Layer:
        """The only kind of layer."""
        return self.gpt_neox.layers

    def final(self, h: Tensor) -> Tensor:
        """What the last layer made, normalised."""
        return self.gpt_neox.final_layer_norm(h)

    def scores(self, h: Tensor) -> Tensor:
        """The logits of the next token."""
        return logits(self.final(h), self.embed_out, self.gpt_neox.embed_in)


class _FusedBody(Module):
    def __init__(self, config: Config) -> None:
        self.word_embeddings = Embedding(config.vocabulary, config.width, "blank")
        if config.detail.get("embedding_norm"):
            self.word_embeddings_layernorm = LayerNorm(config.width, config.epsilon)
        self.h = layered(config, FusedLayer)
        self.ln_f = LayerNorm(config.width, config.epsilon)


class Fused(Module):
    """Falcon and BLOOM."""

    layers_at = "transformer.h."

    def __init__(self, config: Config) -> None:
        self.config = config
        self.transformer = _FusedBody(config)
        self.lm_head = None if config.tied else Linear(config.width, config.vocabulary, False, "blank")

    def embed(self, token: Tensor, t: Dim) -> Tensor:
        """The vector of a token, which BLOOM normalises."""
        body = self.transformer
        found = body.word_embeddings(token)
        return body.word_embeddings_layernorm(found) if self.config.detail.get("embedding_norm") else found

    def layer(self, number: int) -> Layer:
        """The only kind of layer."""
        return self.transformer.h

    def final(self, h: Tensor) -> Tensor:
        """What the last layer made, normalised."""
        return self.transformer.ln_f(h)

    def scores(self, h: Tensor) -> Tensor:
        """The logits of the next token."""
        return logits(self.final(h), self.lm_head, self.transformer.word_embeddings)
