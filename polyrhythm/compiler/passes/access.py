"""Reading through a definition: the access that reads the same values one step further back."""

from __future__ import annotations

from collections.abc import Sequence

from polyrhythm.compiler.ir.graph import Access, Range, Step
from polyrhythm.compiler.ir.terms import Symbol, Term, dims_of


def composed(inner: Access, dims: Sequence[Symbol], steps: Sequence[Step]) -> tuple[Access, list[int | None]] | None:
    """What `inner` reads when the node it belongs to is itself read at `steps`; None where that is no access.

    `dims` are the dims of that node. Reading it over a range makes a range of what it reads, if exactly one step of
    `inner` follows the dim linearly. The second result says for each range of the composed access which outer range
    it comes from (its number), or None for a range that was there before.
    """
    points = {s: step for s, step in zip(dims, steps, strict=True) if isinstance(step, Term)}
    ranges = [(s, step) for s, step in zip(dims, steps, strict=True) if isinstance(step, Range)]
    place: dict[int, tuple[int, Symbol, Range]] = {}
    for number, (symbol, run) in enumerate(ranges):
        varying = [i for i, step in enumerate(inner.steps) if symbol in _dims(step)]
        if not varying:
            continue
        step = inner.steps[varying[0]]
        if len(varying) > 1 or varying[0] in place or not isinstance(step, Term):
            return None
        if not step.linear_in(symbol) or step.coefficient(symbol) == 0:
            return None
        place[varying[0]] = (number, symbol, run)
    result: list[Step] = []
    origin: list[int | None] = []
    for position, step in enumerate(inner.steps):
        if position in place:
            number, symbol, run = place[position]
            assert isinstance(step, Term)
            start = step.substitute({**points, symbol: run.start})
            result.append(Range(start, run.length, run.step * step.coefficient(symbol)))
            origin.append(number)
        else:
            result.append(step.substitute(points))
            if isinstance(step, Range):
                origin.append(None)
    return Access(inner.source, tuple(result)), origin


def _dims(step: Step) -> frozenset[Symbol]:
    return dims_of(step) if isinstance(step, Term) else dims_of(step.start) | dims_of(step.length)
