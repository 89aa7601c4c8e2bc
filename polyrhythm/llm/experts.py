"""Mixtures of experts: each token goes through the few networks that its router prefers (Shazeer et al., 2017).

A step reads the matrices of its active experts and no others: rows of the stack, taken by the router's choice. Of steps
that are computed together, as a prompt is, the compiler multiplies those together that chose the same expert. Matrices
of codes are the exception: there a prompt goes through all experts, and a share of zero leaves out those that are not
active, since taking codes for each step would copy them once for every step.
"""

from __future__ import annotations

from math import prod
from typing import Any

from polyrhythm.language.functions import (
    as_tensor,
    clip,
    einsum,
    gather,
    minimum,
    one_hot,
    reshape,
    sigmoid,
    softmax,
    sum,
    take,
    topk,
    where,
)
from polyrhythm.language.recurrent import otherwise
from polyrhythm.language.tensor import Computed, Tensor
from polyrhythm.llm.config import Config, Experts
from polyrhythm.llm.parts import FUNCTIONS, GatedMLP, Step
from polyrhythm.llm.states import over
from polyrhythm.nn import Linear, Module
from polyrhythm.nn.initialisers import fan_in, zeros
from polyrhythm.nn.module import Weight


class _Stacked(Module):
    """A matrix for each expert."""

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        self.weight: Weight = fan_in((count, outputs, inputs), "blank")


class ExpertStack(Module):
    """The gated networks of all experts, under the names that a family gives to gate, up and down."""

    def __init__(self, config: Config, sizes: Experts, names: tuple[str, str, str]) -> None:
        self.between, self.names = FUNCTIONS[config.activation], names
        gate, up, down = names
        setattr(self, gate, _Stacked(sizes.count, config.width, sizes.hidden))
        setattr(self, up, _Stacked(sizes.count, config.width, sizes.hidden))
        setattr(self, down, _Stacked(sizes.count, sizes.hidden, config.width))

    def matrices(self) -> list[Tensor]:
        """Gate, up and down: (experts, out, in)."""
        return [as_tensor(getattr(self, name).weight) for name in self.names]

    def all(self, x: Tensor, shares: Tensor) -> Tensor:
        """All experts, each with its share."""
        gate, up, down = self.matrices()
        h = self.between(einsum("...i,eoi->...eo", x, gate)) * einsum("...i,eoi->...eo", x, up)
        return einsum("...eh,eoh->...o", h * shares.unsqueeze(-1).cast(h.dtype), down)

    def active(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """The experts that were chosen."""
        gate, up, down = (take(matrix, chosen, 0) for matrix in self.matrices())
        h = self.between(einsum("...i,...koi->...ko", x, gate)) * einsum("...i,...koi->...ko", x, up)
        return einsum("...kh,...koh->...o", h * shares.unsqueeze(-1).cast(h.dtype), down)


def mixed(x: Tensor, step: Step, sizes: Experts, stack: Any, chosen: Tensor, shares: Tensor) -> Tensor:
    """The experts of each step: those that were chosen, or all of them where that takes less.

    A step whose rows together choose as many as there are, or more, goes through all, which reads each matrix once.
    """
    spread = sum(one_hot(chosen, sizes.count) * shares.unsqueeze(-1).cast("float32"), -2)
    together = stack.all(x, spread)
    if step.given is None:
        return together
    active = stack.active(x, chosen, shares)
    coded = any(isinstance(matrix, Computed) and matrix.op == "dequantize" for matrix in stack.matrices())
    many = max(step.sequences, prod(map(int, x.shape[:-1]))) * sizes.active >= sizes.count
    at_once, alone = (together if coded else active), (together if many else active)
    if at_once is alone:
        return alone
    result = over(x, x.shape, x.dtype)
    result[step.given] = at_once
    result[otherwise] = alone
    return result


class Gate(Module):
    """The router's matrix, and DeepSeek's correction of its choice."""

    def __init__(self, config: Config, sizes: Experts) -> None:
        self.weight: Weight = fan_in((sizes.count, config.width), "blank")
        if sizes.form == "sigmoid":
            self.e_score_correction_bias: Weight = zeros((sizes.count,))


class Mixture(Module):
    """Experts with a router, and perhaps a network for all tokens."""

    def __init__(self, config: Config, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> None:
        assert config.experts is not None
        self.sizes = config.experts
        self.gate = Gate(config, self.sizes)
        self.experts = ExpertStack(config, self.sizes, names)
        self.shared = ""
        if self.sizes.shared:
            self.shared = "shared_expert" if self.sizes.gated else "shared_experts"
            setattr(self, self.shared, GatedMLP(config, self.sizes.shared))
        if self.sizes.gated:
            self.shared_expert_gate = Linear(config.width, 1, False, "blank")

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        shares, chosen = self.routed(x)
        found = mixed(x, step, self.sizes, self.experts, chosen, shares)
        if not self.shared:
            return found
        common = getattr(self, self.shared)(x)
        return found + (sigmoid(self.shared_expert_gate(x)) * common if self.sizes.gated else common)

    def routed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The shares of the active experts, and which they are."""
        sizes = self.sizes
        if sizes.form == "sigmoid":
            return self._by_groups(x)
        scores = softmax(einsum("...i,ei->...e", x, self.gate.weight).cast("float32"), -1)
        shares, chosen = topk(scores, sizes.active)
        shares = shares / sum(shares, -1, keepdims=True) if sizes.normalised else shares
        return shares.cast(x.dtype), chosen

    def _by_groups(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """DeepSeek V3: the best groups by their two best experts, and the best experts of those."""
        sizes, weight = self.sizes, as_tensor(self.gate.weight).cast("float32")
        scores = sigmoid(einsum("...i,ei->...e", x.cast("float32"), weight))
        wanted = scores + as_tensor(self.gate.e_score_correction_bias).cast("float32")
        size = sizes.count // sizes.groups
        grouped = reshape(wanted, *x.shape[:-1], sizes.groups, size)
        best, _ = topk(grouped, min(2, size))
        _, groups = topk(sum(best, -1), sizes.active_groups)
        kept = sum(one_hot(groups, sizes.groups), -2) > 0
        wanted = reshape(where(kept.unsqueeze(-1), grouped, float("-inf")), *x.shape[:-1], sizes.count)
        _, chosen = topk(wanted, sizes.active)
        shares = gather(scores, chosen, -1)
        shares = shares / (sum(shares, -1, keepdims=True) + 1e-20) if sizes.normalised else shares
        return (shares * sizes.scale).cast(x.dtype), chosen


class _Clamped(Module):
    """gpt-oss keeps gate and up in one matrix (in, out), their columns in turn, and has biases."""

    def __init__(self, config: Config, sizes: Experts) -> None:
        self.alpha, self.limit = config.detail
        self.gate_up_proj: Weight = fan_in((sizes.count, config.width, 2 * sizes.hidden), "blank")
        self.gate_up_proj_bias: Weight = zeros((sizes.count, 2 * sizes.hidden))
        self.down_proj: Weight = fan_in((sizes.count, sizes.hidden, config.width), "blank")
        self.down_proj_bias: Weight = zeros((sizes.count, config.width))

    def matrices(self) -> list[Tensor]:
        """Gate with up, and down: (experts, in, out)."""
        return [as_tensor(weight) for weight in (self.gate_up_proj, self.down_proj)]

    def _gated(self, both: Tensor) -> Tensor:
        gate, up = both.axes[..., ::2], both.axes[..., 1::2]
        gate, up = minimum(gate, self.limit), clip(up, -self.limit, self.limit)
        return (up + 1.0) * gate * sigmoid(gate * self.alpha)

    def all(self, x: Tensor, shares: Tensor) -> Tensor:
        h = self._gated(einsum("...i,eio->...eo", x, self.gate_up_proj) + self.gate_up_proj_bias)
        found = einsum("...eh,eho->...eo", h, self.down_proj) + self.down_proj_bias
        return sum(found * shares.unsqueeze(-1).cast(found.dtype), -2)

    def active(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        first, first_bias, last, last_bias = (
            take(weight, chosen, 0)
            for weight in (self.gate_up_proj, self.gate_up_proj_bias, self.down_proj, self.down_proj_bias)
        )
        h = self._gated(einsum("...i,...kio->...ko", x, first) + first_bias)
        found = einsum("...kh,...kho->...ko", h, last) + last_bias
        return sum(found * shares.unsqueeze(-1).cast(found.dtype), -2)


class ClampedExperts(Module):
    """The mixture of gpt-oss: the softmax is over the chosen experts only."""

    def __init__(self, config: Config) -> None:
        assert config.experts is not None
        self.sizes = config.experts
        self.router = Linear(config.width, self.sizes.count, True, "blank")
        self.experts = _Clamped(config, self.sizes)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        best, chosen = topk(self.router(x), self.sizes.active)
        return mixed(x, step, self.sizes, self.experts, chosen, softmax(best, -1))
