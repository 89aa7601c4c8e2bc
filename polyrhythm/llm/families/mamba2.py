"""Mamba 2 (Dao and Gu, 2024): a state space whose heads of channels share a decay."""

from __future__ import annotations

from typing import Any

from polyrhythm.language.functions import as_tensor, clip, exp, reshape, silu, softplus, sum
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.config import Config
from polyrhythm.llm.families.mamba import Mamba, StateLayer
from polyrhythm.llm.fields import LARGEST, Fields
from polyrhythm.llm.parts import FUNCTIONS
from polyrhythm.llm.states import Convolution, StateSizes, decaying, without_heads
from polyrhythm.nn import Linear, Module, RMSNorm
from polyrhythm.nn.initialisers import ones
from polyrhythm.nn.module import Weight


def mamba2(fields: Fields) -> Config:
    """Heads of channels share a decay, and groups of heads what goes in and out."""
    inner, heads = int(fields.real("expand", 2) * fields.number("hidden_size")), fields.number("num_heads", 128)
    if inner != heads * fields.number("head_dim", 64):
        raise fields.mismatch("head_dim", fields.get("head_dim"), f"{inner} channels divided by num_heads = {heads}")
    limits = fields.get("time_step_limit", [0.0, LARGEST])
    if not isinstance(limits, list) or len(limits) != 2:
        raise fields.mismatch("time_step_limit", limits, "two numbers")
    low, high = (_bounded(fields, limit) for limit in limits)
    sizes = StateSizes(
        inner,
        fields.number("state_size", 128),
        fields.number("conv_kernel", 4),
        heads=heads,
        groups=fields.number("n_groups", 8),
        conv_bias=fields.flag("use_conv_bias", True),
        bias=fields.flag("use_bias", False),
        limits=(low, high),
    )
    tied, wide = fields.flag("tie_word_embeddings", False), fields.flag("residual_in_fp32", True)
    return without_heads(fields, "mamba2", sizes, inner, tied=tied, wide=wide)


def _bounded(fields: Fields, limit: Any) -> float:
    """A limit of steps; JSON has no infinity, so that files write it as an object."""
    if limit == {"__float__": "Infinity"}:
        return LARGEST
    if isinstance(limit, bool) or not isinstance(limit, int | float) or limit < 0:
        raise fields.mismatch("time_step_limit", limit, "two numbers, 0 or more")
    return min(float(limit), LARGEST)


class Mamba2Mixer(Module):
    """A state space whose decay is one number for each head."""

    def __init__(self, config: Config) -> None:
        sizes: StateSizes = config.detail
        self.sizes, self.between = sizes, FUNCTIONS[config.activation]
        channels = sizes.inner + 2 * sizes.groups * sizes.states
        self.in_proj = Linear(config.width, sizes.inner + channels + sizes.heads, sizes.bias, "blank")
        self.conv1d = Convolution(channels, sizes.width, sizes.conv_bias)
        self.dt_bias: Weight = ones((sizes.heads,))
        self.A_log: Weight = ones((sizes.heads,))
        self.D: Weight = ones((sizes.heads,))
        self.norm = RMSNorm(sizes.inner, config.epsilon)
        self.out_proj = Linear(sizes.inner, config.width, sizes.bias, "blank")

    def __call__(self, x: Tensor, t: Dim) -> Tensor:
        sizes, batch = self.sizes, x.shape[:-1]
        found, size = self.in_proj(x), sizes.groups * sizes.states
        gate, dt = found.axes[..., : sizes.inner], found.axes[..., -sizes.heads :].cast("float32")
        joined = self.between(self.conv1d(found.axes[..., sizes.inner : -sizes.heads], t)).cast("float32")
        u = reshape(joined.axes[..., : sizes.inner], *batch, sizes.groups, sizes.heads // sizes.groups, -1)
        B, C = (
            reshape(part, *batch, sizes.groups, sizes.states)
            for part in (joined.axes[..., sizes.inner : sizes.inner + size], joined.axes[..., sizes.inner + size :])
        )
        dt = clip(softplus(dt + as_tensor(self.dt_bias).cast("float32")), *sizes.limits)
        keep = exp(dt * -exp(as_tensor(self.A_log).cast("float32")))
        by_group = (*batch, sizes.groups, sizes.heads // sizes.groups, 1)
        dt, keep = reshape(dt, *by_group), reshape(keep, *by_group)
        state = decaying(keep.unsqueeze(-1), (dt * u).unsqueeze(-1) * B.unsqueeze(-2).unsqueeze(-2), t)
        y = sum(state * C.unsqueeze(-2).unsqueeze(-2), -1)
        y = y + u * reshape(as_tensor(self.D).cast("float32"), *by_group[len(batch) :])
        y = reshape(y, *batch, sizes.inner) * silu(gate.cast("float32"))
        return self.out_proj(self.norm(y).cast(x.dtype))


def mamba2_decoder(config: Config) -> Mamba:
    """Mamba with other layers."""
    return Mamba(config, lambda c, _: StateLayer(c, Mamba2Mixer(c)))
