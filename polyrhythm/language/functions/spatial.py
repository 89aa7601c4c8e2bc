"""`x.axes[...]`: indexing the axes of a value with NumPy's basic indexing rules.

Integers drop an axis and count from the end when negative; slices are clamped, so they never fail; `None` adds an
axis; an ellipsis stands for the axes left out. Positions and bounds of slices may also be index expressions:
as positions those must be in range, as bounds they are clamped, and they never count from the end. One
integer tensor may stand among the entries; its elements count from the end when negative and are clamped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import numpy as np

from polyrhythm.compiler.ir import dtypes, sets
from polyrhythm.compiler.ir.conditions import Condition as IrCondition
from polyrhythm.compiler.ir.conditions import conjunction, ge
from polyrhythm.compiler.ir.ops.checks import show
from polyrhythm.compiler.ir.terms import ONE, ZERO, Term, maximum, minimum
from polyrhythm.errors import AxisError, DataIndexError, DTypeError, IndexingError, IndexValueError, OutOfRangeError
from polyrhythm.language.functions.arithmetic import where
from polyrhythm.language.functions.support import as_tensor, cast_to, reshaped
from polyrhythm.language.index import Condition, Index, affine, index_of
from polyrhythm.language.naming import names_result
from polyrhythm.language.tensor import Tensor, apply, counted, domain, in_order, union

Entry = int | slice | None | EllipsisType | Index | Tensor | np.ndarray | Sequence[int]


@dataclass(frozen=True)
class Cut:
    """What an entry takes of one axis: `length` positions from `start` on, `step` apart.

    The axis is dropped where the entry is a single position.
    """

    start: Term
    length: Term
    step: int
    dropped: bool = False


class Axes:
    """The axes of a tensor's value, for indexing.

    >>> import polyrhythm as pr
    >>> x = pr.constant([[1, 2, 3], [4, 5, 6]])
    >>> pr.evaluate(x.axes[0, ::-1])
    array([3, 2, 1], dtype=int32)
    >>> pr.evaluate(x.axes[..., -1])
    array([3, 6], dtype=int32)
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    @names_result
    def __getitem__(self, key: Entry | tuple[Entry, ...]) -> Tensor:
        x = self.tensor
        entries = filled(x, key if isinstance(key, tuple) else (key,))
        given = known(x, [entry for _, entry in entries])
        cuts: list[Cut] = []
        shape: list[Term] = []
        advanced: list[int] = []  # places of the entries that NumPy counts as arrays beside a tensor
        chosen: tuple[int, Tensor] | None = None
        for place, entry in entries:
            if entry is None:
                shape.append(ONE)
                continue
            length = x.type.shape[len(cuts)]
            if is_data(entry):
                if chosen is not None:
                    raise IndexingError(
                        "only one tensor may stand in .axes[...]",
                        fix="index one axis after the other, or gather with pr.gather",
                    )
                chosen = len(shape), positions_of(entry, length)
                advanced.append(place)
                cut = Cut(ZERO, length, 1)
            else:
                cut = entry_cut(entry, length, x, given)
                advanced += [place] if cut.dropped else []
            cuts.append(cut)
            shape += [] if cut.dropped else [cut.length]
        result = reshaped(cut_out(x, cuts), tuple(shape))
        if chosen is None:
            return result
        return _taken(result, *chosen, apart=advanced[-1] - advanced[0] >= len(advanced))


def filled(x: Tensor, entries: tuple[Any, ...]) -> list[tuple[int, Any]]:
    """One entry per axis, besides those that add one, each with the place where it was written.

    The ellipsis and the axes left out become full slices.
    """
    dots = [i for i, entry in enumerate(entries) if entry is Ellipsis]
    named = sum(entry is not None and entry is not Ellipsis for entry in entries)
    if len(dots) > 1 or named > x.rank:
        what = "more than one ellipsis" if len(dots) > 1 else f"{named} {'entry' if named == 1 else 'entries'}"
        raise AxisError(
            f"{what} for a value with {x.rank} axes, of shape {show(x.type.shape)}",
            fix="give at most one entry per axis, and at most one ellipsis; steps are indexed with x[...]",
        )
    place = dots[0] if dots else len(entries)
    written = list(enumerate(entries))
    return [*written[:place], *[(place, slice(None))] * (x.rank - named), *written[place + 1 :]]


def cut_out(x: Tensor, cuts: list[Cut]) -> Tensor:
    """A part of a value, with all its axes."""
    if all(c.start is ZERO and c.length is n and c.step == 1 for c, n in zip(cuts, x.type.shape, strict=True)):
        return x
    return apply(
        "slice",
        x,
        starts=tuple(cut.start for cut in cuts),
        lengths=tuple(cut.length for cut in cuts),
        steps=tuple(cut.step for cut in cuts),
    )


def known(x: Tensor, entries: list[Any]) -> IrCondition:
    """What holds where the result is demanded: nothing is negative, and dims that only entries name are in range.

    The value itself may be demanded beyond its own extent, by a definition of a tensor that has more steps.
    """
    parts = [p for e in entries for p in ((e.start, e.stop) if isinstance(e, slice) else (e,))]
    symbols = {symbol for part in parts if isinstance(part, Index) for symbol in part.term.symbols}
    lengths = (ge(length, ZERO) for length in x.type.shape)
    own = {span.symbol for span in x.spans}
    named = [span for span in union([], in_order(symbols)) if span.symbol not in own]
    return conjunction(counted(x.spans), domain(tuple(named)), *lengths)


def entry_cut(entry: Any, length: Term, x: Tensor, given: IrCondition) -> Cut:
    """What an entry that is no tensor takes of an axis."""
    return _range(entry, length, given) if isinstance(entry, slice) else _point(entry, length, x)


def _point(entry: Any, length: Term, x: Tensor) -> Cut:
    position = _position(entry)
    if isinstance(entry, Index):
        return Cut(position, ONE, 1, dropped=True)
    place = position + length if position.constant < 0 else position
    if length.is_constant and not 0 <= place.constant < length.constant:
        raise OutOfRangeError(
            f"position {entry} of an axis of length {length}, in a value of shape {show(x.type.shape)}",
            fix=f"use a position from -{length} to {length - 1}"
            if length.constant
            else "take a slice: the axis is empty",
        )
    return Cut(place, ONE, 1, dropped=True)


def _position(entry: Any) -> Term:
    if isinstance(entry, (bool, np.bool_, Condition)):
        raise _mask_error()
    if isinstance(entry, (int, np.integer, Index)):
        return affine(entry)
    raise IndexValueError(
        f"{entry!r} cannot index an axis",
        fix="use an integer, an index expression, a slice, None, an ellipsis, or an integer tensor",
    )


def _range(entry: slice, length: Term, given: IrCondition) -> Cut:
    step = 1 if entry.step is None else entry.step
    if not isinstance(step, (int, np.integer)) or isinstance(step, bool) or step == 0:
        raise IndexingError(f"the step of a slice is an integer other than 0, not {step!r}", fix="use an integer step")
    step = int(step)
    # With a negative step the positions run from length - 1 down, and "before the first" is -1.
    lowest, highest = (ZERO, length) if step > 0 else (Term(-1), length - 1)
    first, last = (lowest, highest) if step > 0 else (highest, lowest)

    def clamped(bound: Any) -> Term:
        position = _position(bound)
        if position.is_constant and position.constant < 0 and not isinstance(bound, Index):
            position = position + length
        return sets.simplified_term(minimum(maximum(position, lowest), highest), given)

    start = first if entry.start is None else clamped(entry.start)
    stop = last if entry.stop is None else clamped(entry.stop)
    return Cut(start, sets.simplified_term(sets.length(start, stop, step), given), step)


def is_data(entry: Any) -> bool:
    """Whether an entry is a tensor, or becomes one."""
    return isinstance(entry, (Tensor, np.ndarray, list))


def positions_of(entry: Any, length: Term) -> Tensor:
    """The elements of an index tensor, counted from the start of the axis."""
    indices = as_tensor(np.asarray(entry) if isinstance(entry, list) else entry)
    if indices.dtype == dtypes.BOOL:
        raise _mask_error()
    if dtypes.kind(indices.dtype) != "int":
        raise DTypeError(f"an axis is indexed by integers, not {indices.dtype}", fix='cast the index, x.cast("int32")')
    if indices.dtype.kind == "u":
        return indices
    wide = indices if indices.dtype == dtypes.INT64 else cast_to(indices, dtypes.INT32)
    return where(wide < 0, wide + cast_to(index_of(length), wide.dtype), wide)


def _taken(x: Tensor, axis: int, indices: Tensor, apart: bool) -> Tensor:
    """The positions along an axis; their axes come first where NumPy puts them there (`x[0, :, indices]`)."""
    result = apply("take", x, indices, axis=axis)
    if not apart or axis == 0 or not indices.rank:
        return result
    moved = range(axis, axis + indices.rank)
    return apply("transpose", result, axes=(*moved, *(i for i in range(result.rank) if i not in moved)))


def _mask_error() -> DataIndexError:
    return DataIndexError(
        "an axis cannot be indexed by truth values: the length of the result would depend on data",
        fix="keep the shape and choose values with pr.where(mask, x, 0)",
    )
