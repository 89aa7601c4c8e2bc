"""Asking gradients to compute values again instead of keeping them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.errors import RecomputeError
from polyrhythm.language.index import Dim, Index, term_of
from polyrhythm.language.tensor import Computed, View
from polyrhythm.language.trees import flattened

Structure = TypeVar("Structure")


@dataclass(frozen=True)
class Mark:
    """What a user asked for: the dim, and the number of steps of a segment: a number, or all steps there are."""

    over: Symbol | None
    every: Term | None


def checkpoint(x: Structure, over: Dim | None = None, every: int | Index | None = None) -> Structure:
    """Gradients compute `x` again instead of keeping it. Returns `x`, a tensor or a structure of tensors.

    With `x` goes all it is computed from, back to inputs, recurrent tensors and other checkpoints, which are kept.

    With `over=t`, all that varies along t between the inputs and the loss and that `x` takes part in is computed again
    in segments of `every` steps, recurrent tensors too. Kept is what enters each segment, so the values of T steps
    need the memory of about T / every + every steps. Without `every` it is about the square root of T; then the
    largest T must be known, by `max=` or by the bounds of `pr.compile`. For a dim that is a segment already, as j in
    `h[s, j]`, `every=J` keeps what enters each row.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x, w = pr.input("x", (), (t,)), pr.input("w")
    >>> h = pr.recurrent((), ((t, T + 1),))
    >>> h[0] = 0.0
    >>> h[t + 1] = pr.tanh(w * h + x)
    >>> gradient = pr.grad(pr.checkpoint(h, over=t, every=32) ** 2, w)
    >>> keeping = pr.compile(gradient, backend="numpy").memory
    >>> keeping.kept({T: 1024}) < 1024
    True
    """
    mark = Mark(None if over is None else over.symbol, _every(over, every))
    for tensor in flattened(x)[0]:
        if isinstance(tensor, View) or (isinstance(tensor, Computed) and tensor.op == "input"):
            what = "a view" if isinstance(tensor, View) else "an input"
            raise RecomputeError(
                f"{what} is not computed, so it cannot be computed again",
                fix="mark the tensor that is viewed, or what is computed from it",
            )
        if mark.over is not None and mark.over not in tensor.symbols:
            raise RecomputeError(
                f"the tensor does not vary along {over}: its dims are ({', '.join(map(str, tensor.symbols))})",
                fix="mark a tensor over the dim, or leave over= out",
            )
        tensor.checkpoint = mark
    return x


def _every(over: Dim | None, every: Any) -> Term | None:
    if every is None:
        return None
    if over is None:
        raise RecomputeError("every= says how many steps of a dim make a segment", fix="give the dim too, over=t")
    term = term_of(every)
    if term.constant < 1 if term.is_constant else term.symbols != {over.symbol.bound}:
        raise RecomputeError(
            f"a segment cannot have {every} steps", fix=f"give a positive integer, or the bound of {over}"
        )
    return term
