"""`x[...]`: the steps of a tensor, also around the end of a dim, as in `x[(i + 1) % N]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyrhythm.compiler.ir import sets
from polyrhythm.compiler.ir.conditions import negation
from polyrhythm.errors import NonAffineError
from polyrhythm.language.index import Dim, Index, Wrapped
from polyrhythm.language.recurrent import Recurrent
from polyrhythm.language.tensor import Computed, Tensor, index, select


def read(tensor: Tensor, key: Any) -> Tensor:
    """`tensor[key]`: some steps of it."""
    entries = key if isinstance(key, dict) else dict(enumerate(key if isinstance(key, tuple) else (key,)))
    for name, entry in entries.items():
        if isinstance(entry, Wrapped):
            return _around(tensor, entries, name, entry)
    return index(tensor, key)


def _around(tensor: Tensor, entries: Mapping[Any, Any], name: Any, entry: Wrapped) -> Tensor:
    """A read that goes on at the other end of a dim, at most once around.

    Every read is checked to be in range, and along a dim of so many steps what is in range is the remainder.
    """
    place = tensor if _has_own_steps(tensor) else _stored(tensor)

    def at(step: Index) -> Tensor:
        given = {**entries, name: step}
        return read(place, given if isinstance(name, Dim) else tuple(given.values()))

    steps = entry.steps
    result = at(entry.index)
    dim = name.symbol if isinstance(name, Dim) else tensor.symbols[name]
    span = next(span for span in tensor.spans if span.symbol == dim)
    if span.extent is not steps.term:
        raise NonAffineError(
            f"{entry} is no step of a dim with {span.extent} steps: it would have to be divided by these",
            fix=f"divide by {span.extent}, or by a Python integer",
        )
    given = sets.facts(entry.index.term.symbols | steps.term.symbols)
    for beyond, other in ((entry.index >= steps, entry.index - steps), (entry.index < 0, entry.index + steps)):
        if not sets.proves(given, negation(beyond.condition)):
            result = select(beyond, at(other), result)
    return result


def _has_own_steps(tensor: Tensor) -> bool:
    """Whether a tensor has the steps that it says: an operation may have more, a view is an index worked out later."""
    return isinstance(tensor, Recurrent) or (isinstance(tensor, Computed) and tensor.op == "input")


def _stored(tensor: Tensor) -> Tensor:
    """The tensor at its own steps."""
    own = Recurrent(tensor.spans, tensor.type, tensor.name)
    own[tuple(map(Index, (symbol.term for symbol in tensor.symbols)))] = tensor
    return own


__all__ = ["read"]
