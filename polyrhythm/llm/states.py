"""States of layers: tensors over the layers and steps of another one, defined by a recurrence.

A state is what makes a layer recurrent: one definition serves prefill, decoding and training, and how much of the past
is stored follows from how far back it is read, one step for most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyrhythm.compiler.ir.graph import NodeDim
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.language.functions import as_tensor
from polyrhythm.language.functions.support import as_dtype
from polyrhythm.language.index import Dim
from polyrhythm.language.recurrent import Recurrent, otherwise
from polyrhythm.language.tensor import Tensor


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
