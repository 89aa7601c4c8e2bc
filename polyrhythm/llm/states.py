"""States of layers: tensors over the layers and steps of another one, defined by a recurrence.

A state is what makes a layer recurrent: one definition serves prefill, decoding and training, and how much of the past
is stored follows from how far back it is read, one step for most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from polyrhythm.compiler.ir.graph import NodeDim
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.language.functions import as_tensor, einsum, exp, reshape, sigmoid, softplus, sqrt
from polyrhythm.language.functions.support import as_dtype
from polyrhythm.language.index import Dim
from polyrhythm.language.recurrent import Recurrent, otherwise
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.config import Config, Kind
from polyrhythm.llm.fields import LARGEST, Fields
from polyrhythm.nn import Module
from polyrhythm.nn.initialisers import fan_in, ones, zeros
from polyrhythm.nn.module import Weight


def over(x: Tensor, shape: Sequence[Any], dtype: Any) -> Recurrent:
    """A tensor over the dims of x, up to their bounds, to be defined."""
    spans = []
    for span in x.spans:
        assert span.symbol.bound is not None
        spans.append(NodeDim(span.symbol, Term.of(span.symbol.bound)))
    return Recurrent(tuple(spans), TensorType(tuple(Term.of(length) for length in shape), as_dtype(dtype)), None)


def before(x: Tensor, t: Dim, steps: int = 1) -> Tensor:
    """x so many steps ago, and zero before there were any."""
    shifted = over(x, x.type.shape, x.dtype)
    shifted[t < steps] = as_tensor(x * 0.0)
    shifted[otherwise] = x[{t: t - steps}]
    return shifted


def decaying(keep: Tensor, new: Tensor, t: Dim) -> Tensor:
    """`h[t] = keep[t] * h[t - 1] + new[t]`, from zero."""
    state = over(new, new.type.shape, new.dtype)
    state[t < 1] = new
    state[otherwise] = keep * state[{t: t - 1}] + new
    return state


def convolved(x: Tensor, weight: Any, bias: Any, t: Dim) -> Tensor:
    """A causal convolution of each channel with its own weights, (channels, 1, width), over steps."""
    matrix = as_tensor(weight)
    width = int(matrix.shape[-1])
    total = x * matrix.axes[:, 0, width - 1]
    for steps in range(1, width):
        total = total + before(x, t, steps) * matrix.axes[:, 0, width - 1 - steps]
    return total if bias is None else total + bias


@dataclass(frozen=True)
class StateSizes:
    """The sizes of a state space: channels, states of each, the width of the convolution, and how steps are made."""

    inner: int
    states: int
    width: int
    rank: int = 0
    heads: int = 0
    groups: int = 1
    conv_bias: bool = True
    bias: bool = False
    limits: tuple[float, float] = (0.0, LARGEST)


def without_heads(fields: Fields, family: str, sizes: StateSizes, hidden: int, **rest: Any) -> Config:
    """The configuration of a model that has no attention."""
    layers = fields.number("num_hidden_layers")
    return Config(
        family=family,
        vocabulary=fields.number("vocab_size"),
        width=fields.number("hidden_size"),
        layers=layers,
        heads=1,
        kv_heads=1,
        head_size=1,
        hidden=hidden,
        epsilon=fields.real("layer_norm_epsilon", 1e-5),
        activation=fields.activation("hidden_act", "silu"),
        positions=fields.number("context_length", 2**30),
        detail=sizes,
        **{"kinds": (Kind(mixer="state"),) * layers, **rest},
    )


class Convolution(Module):
    """The weights of a convolution of each channel by itself."""

    def __init__(self, channels: int, width: int, bias: bool) -> None:
        self.weight: Weight = fan_in((channels, 1, width), "blank")
        self.bias: Weight | None = zeros((channels,)) if bias else None

    def __call__(self, x: Tensor, t: Dim) -> Tensor:
        return convolved(x, self.weight, self.bias, t)


class GatedRecurrence(Module):
    """RG-LRU (De et al., 2024): a linear recurrence whose decay and input are gated, in blocks of channels."""

    def __init__(self, config: Config) -> None:
        heads, size = config.heads, config.detail.inner // config.heads
        self.heads, self.size = heads, size
        self.recurrent_param: Weight = ones((config.detail.inner,))
        self.input_gate_weight: Weight = fan_in((heads, size, size), "blank")
        self.input_gate_bias: Weight = zeros((heads, size))
        self.recurrent_gate_weight: Weight = fan_in((heads, size, size), "blank")
        self.recurrent_gate_bias: Weight = zeros((heads, size))

    def __call__(self, x: Tensor, t: Dim) -> Tensor:
        batch = x.shape[:-1]
        blocks = reshape(x, *batch, self.heads, self.size)
        taken, kept = (
            reshape(sigmoid(einsum("...hi,hij->...hj", blocks, weight) + bias), *x.shape)
            for weight, bias in (
                (self.input_gate_weight, self.input_gate_bias),
                (self.recurrent_gate_weight, self.recurrent_gate_bias),
            )
        )
        decay = -8.0 * kept * softplus(as_tensor(self.recurrent_param))
        new = x * taken
        # The first step is taken as it is; later ones are scaled so that the state keeps its size.
        state = over(x, x.type.shape, "float32")
        state[t < 1] = new.cast("float32")
        scaled = (new * sqrt(1.0 - exp(2.0 * decay)).cast(x.dtype)).cast("float32")
        state[otherwise] = exp(decay).cast("float32") * state[{t: t - 1}] + scaled
        return state.cast(x.dtype)
