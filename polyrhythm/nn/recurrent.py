"""Recurrent layers: called on a tensor over t, they return their states over t, each after reading x at t.

The states are recurrent tensors over t with one more step than x, beginning with zero or with what is given, over all
dims that the input and the weights have. A reverse direction runs from the end: its state at t has read x from the
last step down to t. Names, the order of the gates and the order of layers and directions are torch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyrhythm.compiler.ir.graph import NodeDim
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.errors import DeclarationError
from polyrhythm.language.functions import TensorLike, as_tensor, concat, einsum, relu, sigmoid, split, tanh
from polyrhythm.language.index import Dim, Index
from polyrhythm.language.recurrent import Recurrent
from polyrhythm.language.tensor import Computed, Tensor, natural, union
from polyrhythm.nn import initialisers
from polyrhythm.nn.initialisers import Random
from polyrhythm.nn.layers import Dropout
from polyrhythm.nn.module import Module, Weight

States = list[Tensor]
"""One state per layer and direction: layer 0, layer 0 reverse, layer 1, ..."""


class _Layers(Module):
    """Cells with some gates, in layers and directions. `memories` is how many tensors a cell carries along."""

    gates = 1
    memories = 1

    def __init__(
        self,
        inputs: int,
        hidden: int,
        layers: int = 1,
        *,
        bias: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        rng: Random = None,
    ) -> None:
        self.hidden, self.layers, self.bias, self.bidirectional = hidden, layers, bias, bidirectional
        self.dropout = Dropout(dropout)
        rows, limit = self.gates * hidden, hidden**-0.5
        for layer in range(layers):
            columns = hidden * len(self._directions) if layer else inputs
            for direction in self._directions:
                shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, columns), "weight_hh": (rows, hidden)}
                shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)} if bias else {}
                for kind, shape in shapes.items():
                    setattr(self, f"{kind}_l{layer}{direction}", initialisers.uniform(shape, limit, rng))

    @property
    def _directions(self) -> tuple[str, ...]:
        return ("", "_reverse") if self.bidirectional else ("",)

    def _step(self, given: Tensor, from_state: Tensor, before: Sequence[Tensor]) -> list[Tensor]:
        """What a cell carries along after a step, the state first."""
        raise NotImplementedError

    def _run(self, x: Tensor, t: Dim, start: Sequence[Sequence[TensorLike]] | None) -> list[States]:
        """What all cells carry along, for each kind of memory the states of all layers and directions."""
        if not isinstance(t, Dim):
            raise DeclarationError("the second argument is not the dim to run along", fix="call it as layer(x, t)")
        if t.symbol not in x.symbols:
            raise DeclarationError(f"a recurrent layer over {t} is called on a tensor without it", fix="check the dim")
        count = self.layers * len(self._directions)
        if start is not None and [len(states) for states in start] != [count] * self.memories:
            raise DeclarationError(
                f"the layers need {self.memories} lists of {count} states to start with, one per layer and direction",
                fix="give the states in torch's order: layer 0, layer 0 reverse, layer 1, and so on",
            )
        kept: list[States] = [[] for _ in range(self.memories)]
        for layer in range(self.layers):
            seen = self.dropout(x) if layer else x
            for direction in self._directions:
                number = len(kept[0])
                first = [0.0] * self.memories if start is None else [states[number] for states in start]
                for states, state in zip(kept, self._cell(seen, t, f"l{layer}{direction}", first), strict=True):
                    states.append(state)
            x = self._joined(kept[0])
        return kept

    def step(self, x: Tensor, before: Sequence[Sequence[Tensor]]) -> list[States]:
        """One step of all layers: for each kind of memory the states after x, given those before it.

        >>> import polyrhythm as pr
        >>> [[h]] = GRU(3, 4).step(pr.ones((2, 3)), [[pr.zeros((2, 4))]])
        >>> h.shape
        (2, 4)
        """
        kept: list[States] = [[] for _ in range(self.memories)]
        for layer in range(self.layers):
            seen = self.dropout(x) if layer else x
            own = [states[layer] for states in before]
            after = self._after(self._linear(seen, f"ih_l{layer}"), f"l{layer}", own)
            for states, state in zip(kept, after, strict=True):
                states.append(state)
            x = after[0]
        return kept

    def _joined(self, states: States) -> Tensor:
        """The output of the last layer: both directions side by side."""
        return concat(states[-2:], -1) if self.bidirectional else states[-1]

    def _cell(self, x: Tensor, t: Dim, place: str, start: Sequence[TensorLike]) -> States:
        """One direction of one layer."""
        given = self._linear(x, f"ih_{place}")
        memories = [self._memory(given, t, place, first) for first in start]
        if place.endswith("_reverse"):
            end = Index(Term.of(_bound(t)))
            for memory, first in zip(memories, start, strict=True):
                memory[{t: end}] = first
            before = [memory[{t: t + 1}] for memory in memories]
            for memory, new in zip(memories, self._after(given, place, before), strict=True):
                memory[{t: t}] = new
            return [_without_end(memory) for memory in memories]
        for memory, first in zip(memories, start, strict=True):
            memory[{t: 0}] = first
        for memory, new in zip(memories, self._after(given, place, memories), strict=True):
            memory[{t: t + 1}] = new
        return [memory[{t: t + 1}] for memory in memories]

    def _after(self, given: Tensor, place: str, before: Sequence[Tensor]) -> list[Tensor]:
        return self._step(given, self._linear(before[0], f"hh_{place}"), before)

    def _linear(self, x: Tensor, place: str) -> Tensor:
        result = einsum("...i,oi->...o", x, getattr(self, f"weight_{place}"))
        return result + getattr(self, f"bias_{place}") if self.bias else result

    def _memory(self, given: Tensor, t: Dim, place: str, start: TensorLike) -> Recurrent:
        """A tensor over the dims of what comes in, of the weights and of the start, with one more step."""
        weights: list[Weight] = [getattr(self, f"weight_hh_{place}")]
        weights += [getattr(self, f"bias_hh_{place}")] if self.bias else []
        groups = [given.spans, *(as_tensor(weight).spans for weight in weights), as_tensor(start).spans]
        spans = []
        for dim in (span.symbol for span in union(groups)):
            # Definitions hold at the steps of a dim, so weights after the last iteration are not used.
            assert dim.bound is not None
            spans.append(NodeDim(dim, Term.of(dim.bound) + 1 if dim is t.symbol else Term.of(dim.bound)))
        return Recurrent(tuple(spans), TensorType((*given.type.shape[:-1], Term(self.hidden)), given.dtype), None)


class _OneMemory(_Layers):
    """Cells that carry along nothing but their state."""

    def states(self, x: Tensor, t: Dim, start: Sequence[TensorLike] | None = None) -> States:
        """The states of every layer and direction, in torch's order.

        torch's `h_n` is each of them after its last step: `T - 1`, or 0 in the reverse direction.
        """
        return self._run(x, t, None if start is None else [start])[0]

    def __call__(self, x: Tensor, t: Dim, start: Sequence[TensorLike] | None = None) -> Tensor:
        return self._joined(self.states(x, t, start))


class RNN(_OneMemory):
    """`tanh`, or `relu`, of a linear map of input and state (Elman, 1990).

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> layers = RNN(3, 4, layers=2, bidirectional=True)
    >>> pr.evaluate(layers(pr.input("x", (3,), (t,)), t), {"x": [[1, 2, 3], [4, 5, 6]]}).shape
    (2, 8)
    """

    def __init__(self, inputs: int, hidden: int, layers: int = 1, nonlinearity: str = "tanh", **options: Any) -> None:
        functions = {"tanh": tanh, "relu": relu}
        if nonlinearity not in functions:
            raise DeclarationError(f"an RNN with {nonlinearity!r}", fix='write "tanh" or "relu"')
        self.function = functions[nonlinearity]
        super().__init__(inputs, hidden, layers, **options)

    def _step(self, given: Tensor, from_state: Tensor, before: Sequence[Tensor]) -> list[Tensor]:
        return [self.function(given + from_state)]


class GRU(_OneMemory):
    """Gated recurrent unit (Cho et al., 2014).

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> pr.evaluate(GRU(3, 4)(pr.input("x", (3,), (t,)), t), {"x": [[1, 2, 3], [4, 5, 6]]}).shape
    (2, 4)
    """

    gates = 3

    def _step(self, given: Tensor, from_state: Tensor, before: Sequence[Tensor]) -> list[Tensor]:
        reset, update, new = split(given, 3, -1)
        reset_h, update_h, new_h = split(from_state, 3, -1)
        keep = sigmoid(update + update_h)
        return [(1.0 - keep) * tanh(new + sigmoid(reset + reset_h) * new_h) + keep * before[0]]


class LSTM(_Layers):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997; with forget gates); returns the states and the cells.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> h, c = LSTM(3, 4)(pr.input("x", (3,), (t,)), t)
    >>> pr.evaluate(h[T - 1], {"x": [[1, 2, 3], [4, 5, 6]]}).shape
    (4,)
    """

    gates = 4
    memories = 2

    def _step(self, given: Tensor, from_state: Tensor, before: Sequence[Tensor]) -> list[Tensor]:
        into, forget, cell, out = split(given + from_state, 4, -1)
        c = sigmoid(forget) * before[1] + sigmoid(into) * tanh(cell)
        return [sigmoid(out) * tanh(c), c]

    def states(
        self, x: Tensor, t: Dim, start: tuple[Sequence[TensorLike], Sequence[TensorLike]] | None = None
    ) -> tuple[States, States]:
        """The states and the cells of every layer and direction, in torch's order."""
        h, c = self._run(x, t, start)
        return h, c

    def __call__(
        self, x: Tensor, t: Dim, start: tuple[Sequence[TensorLike], Sequence[TensorLike]] | None = None
    ) -> tuple[Tensor, Tensor]:
        h, c = self.states(x, t, start)
        return self._joined(h), self._joined(c)


def _without_end(memory: Recurrent) -> Tensor:
    """A tensor on the steps of its dims alone, without the one beyond."""
    spans = tuple(natural(span.symbol) for span in memory.spans)
    return Computed("copy", (memory,), {}, spans, memory.type, False)


def _bound(t: Dim) -> Any:
    assert t.symbol.bound is not None
    return t.symbol.bound
