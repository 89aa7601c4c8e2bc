"""Mamba (Gu and Dao, 2023): a state space whose steps the input decides.

The state is an equation over steps. That the past is one step of it, and a few of the convolution, is derived: the same
program reads a prompt, writes, and can be trained.
"""

from __future__ import annotations

from polyrhythm.language.functions import as_tensor, exp, softplus, split, sum
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.config import Config
from polyrhythm.llm.fields import Fields
from polyrhythm.llm.parts import FUNCTIONS, Step
from polyrhythm.llm.states import Convolution, StateSizes, decaying, without_heads
from polyrhythm.llm.transformer import Maker, Names, Transformer
from polyrhythm.nn import Linear, Module, RMSNorm
from polyrhythm.nn.initialisers import ones
from polyrhythm.nn.module import Weight


def mamba(fields: Fields) -> Config:
    """Each channel has a state of its own, and steps of a length that the input decides."""
    width = fields.number("hidden_size")
    inner = fields.number("intermediate_size", int(fields.real("expand", 2) * width))
    rank = fields.get("time_step_rank", "auto")
    sizes = StateSizes(
        inner,
        fields.number("state_size", 16),
        fields.number("conv_kernel", 4),
        rank=-(-width // 16) if rank == "auto" else fields.number("time_step_rank"),
        conv_bias=fields.flag("use_conv_bias", True),
        bias=fields.flag("use_bias", False),
    )
    tied, wide = fields.flag("tie_word_embeddings", True), fields.flag("residual_in_fp32", True)
    return without_heads(fields, "mamba", sizes, inner, tied=tied, wide=wide)


class MambaMixer(Module):
    """A selective state space."""

    def __init__(self, config: Config) -> None:
        sizes: StateSizes = config.detail
        self.sizes, self.between = sizes, FUNCTIONS[config.activation]
        self.in_proj = Linear(config.width, 2 * sizes.inner, sizes.bias, "blank")
        self.conv1d = Convolution(sizes.inner, sizes.width, sizes.conv_bias)
        self.x_proj = Linear(sizes.inner, sizes.rank + 2 * sizes.states, False, "blank")
        self.dt_proj = Linear(sizes.rank, sizes.inner, True, "blank")
        self.A_log: Weight = ones((sizes.inner, sizes.states))
        self.D: Weight = ones((sizes.inner,))
        self.out_proj = Linear(sizes.inner, config.width, sizes.bias, "blank")

    def __call__(self, x: Tensor, t: Dim) -> Tensor:
        rank, states = self.sizes.rank, self.sizes.states
        u, gate = split(self.in_proj(x), 2, -1)
        u = self.between(self.conv1d(u, t))
        found = self.x_proj(u)
        B, C = found.axes[..., rank : rank + states].cast("float32"), found.axes[..., rank + states :].cast("float32")
        dt = softplus(self.dt_proj(found.axes[..., :rank]).cast("float32"))
        wide = u.cast("float32")
        keep = exp(dt.unsqueeze(-1) * -exp(as_tensor(self.A_log).cast("float32")))
        state = decaying(keep, (dt * wide).unsqueeze(-1) * B.unsqueeze(-2), t)
        y = sum(state * C.unsqueeze(-2), -1) + wide * as_tensor(self.D).cast("float32")
        return self.out_proj((y * self.between(gate.cast("float32"))).cast(x.dtype))


class StateLayer(Module):
    """A state space on a normalised input, added to it."""

    def __init__(self, config: Config, mixer: Module) -> None:
        self.dtype = config.dtype
        self.norm = RMSNorm(config.width, config.epsilon)
        self.mixer = mixer

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        return x + self.mixer(self.norm(x.cast(self.dtype)), step.t).cast(x.dtype)  # type: ignore[operator]


class Mamba(Transformer):
    """Mamba, whose layers are added in float32."""

    def __init__(self, config: Config, layer: Maker = lambda c, _: StateLayer(c, MambaMixer(c))) -> None:
        super().__init__(config, layer, Names("backbone", "embeddings", "layers", "norm_f"))

    def final(self, h: Tensor) -> Tensor:
        """What the last layer made, normalised."""
        return super().final(h.cast(self.config.dtype))
