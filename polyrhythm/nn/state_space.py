"""A linear state-space layer with a diagonal matrix: S4D (Gu et al., 2022).

Each channel has some complex states that decay and turn, `h' = A h + u`, and puts out `2 Re(C h) + D u`. The
continuous system is discretised with a step of its own per channel, by holding the input (`zoh`) or by the bilinear
rule, and then runs as a recurrence over t. Complex numbers are pairs of real tensors. Names are those of the minimal
published implementation: `A = -exp(log_A_real) + i A_imag`, the last axis of `C` has its real and imaginary part.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from polyrhythm.compiler.ir.graph import NodeDim
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.errors import DeclarationError
from polyrhythm.language.functions import TensorLike, as_tensor, cos, exp, sin, sum, unsqueeze
from polyrhythm.language.index import Dim
from polyrhythm.language.recurrent import Recurrent
from polyrhythm.language.tensor import Tensor, union
from polyrhythm.nn import initialisers
from polyrhythm.nn.initialisers import Random
from polyrhythm.nn.module import Module, Weight


class _Complex(NamedTuple):
    """A complex tensor as two real ones."""

    re: Tensor
    im: Tensor

    def times(self, other: _Complex) -> _Complex:
        return _Complex(self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re)

    def over(self, other: _Complex) -> _Complex:
        size = other.re * other.re + other.im * other.im
        product = self.times(_Complex(other.re, -other.im))
        return _Complex(product.re / size, product.im / size)

    def scaled(self, factor: TensorLike) -> _Complex:
        return _Complex(self.re * factor, self.im * factor)

    def plus(self, number: float) -> _Complex:
        return _Complex(self.re + number, self.im)


class StateSpace(Module):
    """A diagonal linear state space along t, for values whose last axis has the channels.

    `states` counts the complex ones, each of which stands for a conjugate pair. `start` is the state before the first
    step, its real and imaginary part, zero unless given.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> layer = StateSpace(3, states=4)
    >>> pr.evaluate(layer(pr.input("x", (3,), (t,)), t), {"x": [[1, 2, 3], [4, 5, 6]]}).shape
    (2, 3)
    """

    def __init__(
        self,
        channels: int,
        states: int = 32,
        method: str = "zoh",
        steps: tuple[float, float] = (0.001, 0.1),
        rng: Random = None,
    ) -> None:
        if method not in ("zoh", "bilinear"):
            raise DeclarationError(f"a state space discretised by {method!r}", fix='write "zoh" or "bilinear"')
        self.channels, self.states, self.method = channels, states, method
        low, high = map(math.log, steps)
        self.log_dt: Weight = (low + high) / 2 + initialisers.uniform((channels,), (high - low) / 2, rng)
        self.C: Weight = initialisers.normal((channels, states, 2), 0.5**0.5, rng)
        self.log_A_real: Weight = np.full((channels, states), math.log(0.5), np.float32)
        self.A_imag: Weight = np.tile(np.arange(states, dtype=np.float32) * np.float32(math.pi), (channels, 1))
        self.D: Weight = initialisers.normal((channels,), 1.0, rng)

    def __call__(self, x: Tensor, t: Dim, start: tuple[TensorLike, TensorLike] = (0.0, 0.0)) -> Tensor:
        if t.symbol not in x.symbols:
            raise DeclarationError(f"a state space over {t} is called on a tensor without it", fix="check the dim")
        keep, take = self._discretised()
        h = _Complex(*(self._memory(part, x, t, first) for part, first in zip(keep, start, strict=True)))
        new = keep.times(h)
        new = _Complex(new.re + unsqueeze(x, -1), new.im)
        for memory, first, after in zip(h, start, new, strict=True):
            memory[{t: 0}] = first
            memory[{t: t + 1}] = after
        seen = _Complex(*(memory[{t: t + 1}] for memory in h))
        C = as_tensor(self.C)
        out = take.times(_Complex(C.axes[..., 0], C.axes[..., 1]))
        return 2.0 * sum(out.re * seen.re - out.im * seen.im, -1) + self.D * x

    def _discretised(self) -> tuple[_Complex, _Complex]:
        """What a state keeps from one step to the next, and what an input adds to it."""
        dt = unsqueeze(exp(self.log_dt), -1)
        A = _Complex(-exp(self.log_A_real), as_tensor(self.A_imag))
        z = A.scaled(dt)
        if self.method == "zoh":
            size = exp(z.re)
            keep = _Complex(size * cos(z.im), size * sin(z.im))
            return keep, keep.plus(-1.0).over(A)
        below = z.scaled(-0.5).plus(1.0)
        return z.scaled(0.5).plus(1.0).over(below), _Complex(dt, 0.0 * dt).over(below)

    def _memory(self, keep: Tensor, x: Tensor, t: Dim, start: TensorLike) -> Recurrent:
        """A state over the dims of the input, the weights and the start, with one more step."""
        spans = []
        for dim in (span.symbol for span in union([x.spans, keep.spans, as_tensor(start).spans])):
            assert dim.bound is not None
            spans.append(NodeDim(dim, Term.of(dim.bound) + 1 if dim is t.symbol else Term.of(dim.bound)))
        return Recurrent(tuple(spans), TensorType((*x.type.shape, Term(self.states)), x.dtype), None)
