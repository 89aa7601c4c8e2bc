"""Recurrent layers: called on a tensor over t, they return their states over t, each after reading x at t.

The states are recurrent tensors over t with one more step, beginning with zero, over all dims that the input and the
weights have. Names and the order of the gates are torch's, of one layer.
"""

from __future__ import annotations

from polyrhythm.errors import DeclarationError
from polyrhythm.ir.graph import NodeDim
from polyrhythm.ir.terms import Term
from polyrhythm.ir.types import TensorType
from polyrhythm.lang.functions import as_tensor, einsum, sigmoid, split, tanh
from polyrhythm.lang.index import Dim
from polyrhythm.lang.recurrent import Recurrent
from polyrhythm.lang.tensor import Tensor, union
from polyrhythm.nn import initialisers
from polyrhythm.nn.initialisers import Random
from polyrhythm.nn.module import Module, Weight


class _Cell(Module):
    """The weights of a cell with some gates."""

    gates = 1

    def __init__(self, inputs: int, hidden: int, rng: Random = None) -> None:
        self.hidden = hidden
        rows, limit = self.gates * hidden, hidden**-0.5
        self.weight_ih_l0: Weight = initialisers.uniform((rows, inputs), limit, rng)
        self.weight_hh_l0: Weight = initialisers.uniform((rows, hidden), limit, rng)
        self.bias_ih_l0: Weight = initialisers.uniform((rows,), limit, rng)
        self.bias_hh_l0: Weight = initialisers.uniform((rows,), limit, rng)

    def _from_input(self, x: Tensor) -> Tensor:
        return einsum("...i,oi->...o", x, self.weight_ih_l0) + self.bias_ih_l0

    def _from_state(self, h: Tensor) -> Tensor:
        return einsum("...i,oi->...o", h, self.weight_hh_l0) + self.bias_hh_l0

    def _state(self, given: Tensor, t: Dim) -> Tensor:
        """A state over the dims of what comes in and of the weights, zero before the first step."""
        if t.symbol not in given.symbols:
            raise DeclarationError(f"a recurrent layer over {t} is called on a tensor without it", fix="check the dim")
        weights = [as_tensor(weight).spans for weight in (self.weight_hh_l0, self.bias_hh_l0)]
        spans = []
        for dim in (span.symbol for span in union([given.spans, *weights])):
            # Definitions hold at the steps of a dim, so weights after the last iteration are not used.
            assert dim.bound is not None
            spans.append(NodeDim(dim, Term.of(dim.bound) + 1 if dim is t.symbol else Term.of(dim.bound)))
        state = Recurrent(tuple(spans), TensorType((*given.type.shape[:-1], Term(self.hidden)), given.dtype), None)
        state[{t: 0}] = 0.0
        return state


class RNN(_Cell):
    """`tanh` of a linear map of input and state (Elman, 1990).

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> pr.evaluate(RNN(3, 4)(pr.input("x", (3,), (t,)), t), {"x": [[1, 2, 3], [4, 5, 6]]}).shape
    (2, 4)
    """

    def __call__(self, x: Tensor, t: Dim) -> Tensor:
        given = self._from_input(x)
        h = self._state(given, t)
        h[{t: t + 1}] = tanh(given + self._from_state(h))
        return h[{t: t + 1}]


class LSTM(_Cell):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997; with forget gates); returns the states and the cells.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> h, c = LSTM(3, 4)(pr.input("x", (3,), (t,)), t)
    >>> pr.evaluate(h[T - 1], {"x": [[1, 2, 3], [4, 5, 6]]}).shape
    (4,)
    """

    gates = 4

    def __call__(self, x: Tensor, t: Dim) -> tuple[Tensor, Tensor]:
        given = self._from_input(x)
        h, c = self._state(given, t), self._state(given, t)
        into, forget, cell, out = split(given + self._from_state(h), 4, -1)
        c[{t: t + 1}] = sigmoid(forget) * c + sigmoid(into) * tanh(cell)
        h[{t: t + 1}] = sigmoid(out) * tanh(c[{t: t + 1}])
        return h[{t: t + 1}], c[{t: t + 1}]


class GRU(_Cell):
    """Gated recurrent unit (Cho et al., 2014).

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> pr.evaluate(GRU(3, 4)(pr.input("x", (3,), (t,)), t), {"x": [[1, 2, 3], [4, 5, 6]]}).shape
    (2, 4)
    """

    gates = 3

    def __call__(self, x: Tensor, t: Dim) -> Tensor:
        given = self._from_input(x)
        h = self._state(given, t)
        reset, update, new = split(given, 3, -1)
        reset_h, update_h, new_h = split(self._from_state(h), 3, -1)
        keep = sigmoid(update + update_h)
        h[{t: t + 1}] = (1.0 - keep) * tanh(new + sigmoid(reset + reset_h) * new_h) + keep * h
        return h[{t: t + 1}]
