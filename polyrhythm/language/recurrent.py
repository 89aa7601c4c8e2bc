"""Recurrent tensors: defined piece by piece, by assignment to points, to conditions, or to what remains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from polyrhythm.compiler.ir import dtypes, sets
from polyrhythm.compiler.ir.conditions import TRUE, conjunction, disjunction, negation, within
from polyrhythm.compiler.ir.conditions import Condition as IrCondition
from polyrhythm.compiler.ir.graph import NodeDim, Range
from polyrhythm.compiler.ir.terms import Symbol, Term, dims_of
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.errors import (
    DataIndexError,
    DeclarationError,
    DefinitionError,
    DTypeError,
    IndexingError,
    LeftSideError,
    NotInjectiveError,
    ShapeError,
    UnboundDimError,
)
from polyrhythm.language.functions.support import as_dtype, as_tensor, cast_to
from polyrhythm.language.index import Condition, Dim, Index, affine, term_of
from polyrhythm.language.inverse import Collision, invert
from polyrhythm.language.tensor import Spans, Tensor, domain, in_order, index, parse_key, shaped, union
from polyrhythm.source import Source, here


class Otherwise:
    """The mark for `y[pr.otherwise] = ...`: wherever no other definition holds."""

    def __repr__(self) -> str:
        return "otherwise"


otherwise = Otherwise()


@dataclass(frozen=True)
class Piece:
    """One assignment: where it holds (None for `otherwise`), and the right side in terms of y's own dims."""

    condition: IrCondition | None
    value: Tensor
    at: Source


class Recurrent(Tensor):
    """A tensor defined by assignments, whose right sides may read the tensor itself at other steps."""

    def __init__(self, spans: Spans, type: TensorType, name: str | None) -> None:
        super().__init__(spans, type)
        target = self.line.target
        self.name = name or (target.name if target is not None and target.whole else None)
        self.assigned: list[Piece] = []

    def __setitem__(self, key: Any, value: Any) -> None:
        rhs = self._converted(value)
        condition: IrCondition | None
        bound: Sequence[Symbol]
        if isinstance(key, Otherwise):
            for piece in self.assigned:
                if piece.condition is None:
                    raise DefinitionError(
                        f"{self._called} already has a definition for pr.otherwise",
                        fix="keep one of them, and give the other a condition",
                        also=(("the other is at", piece.at),),
                    )
            condition, bound = None, self.symbols
        elif isinstance(key, Tensor):
            raise DataIndexError(
                f"data cannot say where a definition of {self._called} holds",
                fix="define every step, and choose on the right: pr.where(condition, a, b)",
            )
        elif not self.spans and isinstance(key, tuple) and not key:
            condition, bound = TRUE, ()
        elif not self.spans and not isinstance(key, Condition):
            raise IndexingError(
                f"{self._called} has no dims, so it has a single point",
                fix=f"define it with {self.name or 'y'}[()] = ..., and choose between values on the right",
            )
        elif isinstance(key, Condition):
            condition, bound = key.condition, self.symbols
            self._check_condition(condition)
        else:
            condition, bound, rhs = self._solved(key, rhs)
        _check_bound(rhs, bound)
        self.assigned.append(Piece(condition, self._shaped(rhs), here()))

    @property
    def _called(self) -> str:
        return self.name or "this tensor"

    def _shaped(self, rhs: Tensor) -> Tensor:
        try:
            return shaped(rhs, self.type.shape)
        except ShapeError:
            raise ShapeError(
                f"a value of shape {rhs.shape} cannot define {self._called}, which has shape {self.shape}",
                fix="reduce or reshape the right side, or declare the tensor with its shape",
            ) from None

    @property
    def pieces(self) -> list[tuple[IrCondition, Tensor, Source]]:
        """The definitions with their domains, simplified by what the extents already say."""
        box = domain(self.spans)
        stated = [piece.condition for piece in self.assigned if piece.condition is not None]
        rest = negation(disjunction(*stated)) if stated else TRUE
        return [
            (sets.simplified(rest if p.condition is None else p.condition, box), p.value, p.at) for p in self.assigned
        ]

    def _converted(self, value: Any) -> Tensor:
        rhs = as_tensor(value)
        joined, _ = dtypes.promote((self.dtype, False), (rhs.dtype, rhs.weak))
        if joined != self.dtype:
            raise DTypeError(
                f"a {rhs.dtype} value cannot define {self._called}, which is {self.dtype}, without losing information",
                fix=f"cast the right side, value.cast({str(self.dtype)!r}), or declare the tensor as {joined}",
            )
        return cast_to(value, self.dtype)

    def _check_condition(self, condition: IrCondition) -> None:
        for symbol in condition.symbols:
            if symbol.kind == "dim" and symbol not in self.symbols:
                raise UnboundDimError(
                    f"the condition {condition} depends on {symbol}, which is not a dim of {self._called}",
                    fix=f"use its own dims: {', '.join(map(str, self.symbols))}",
                )

    def _solved(self, key: Any, rhs: Tensor) -> tuple[IrCondition, Sequence[Symbol], Tensor]:
        """Invert the left side: the condition on y's own dims, the symbols bound, and the right side rewritten."""
        entries = [_point(entry) for entry in parse_key(self, key)]
        unknowns = in_order(symbol for entry in entries for symbol in entry.symbols if symbol.kind == "dim")
        for entry in entries:
            for symbol in unknowns:
                if not entry.linear_in(symbol):
                    raise LeftSideError(
                        f"the left side index {entry} cannot be inverted: {symbol} occurs inside //, % or min/max",
                        fix="define by a condition instead, as in y[t % 2 == 0] = ...",
                    )
        _check_bound(rhs, unknowns)
        self._check_ragged(entries, unknowns)
        found = invert(entries, unknowns, self.symbols)
        if isinstance(found, Collision):
            move = ", ".join(f"{s} by {amount}" for s, amount in found.move.items())
            raise NotInjectiveError(
                f"the left side [{', '.join(map(str, entries))}] sends several steps to one point: "
                f"moving {move} leaves it unchanged",
                fix="give every step symbol on the left its own dim, or reduce over it on the right",
            )
        ranges = (within(symbol, Term.of(symbol.bound)).substitute(found.steps) for symbol in unknowns if symbol.bound)
        condition = conjunction(found.condition, *ranges)
        at_point = {Index(Term.of(s)): Index(found.steps[s]) for s in rhs.symbols}
        return condition, self.symbols, index(rhs, at_point) if rhs.spans else rhs

    def _check_ragged(self, entries: Sequence[Term], unknowns: Sequence[Symbol]) -> None:
        """A ragged dim on the left keeps the dims that its length depends on at their current step."""
        current = [s for s, entry in zip(self.symbols, entries, strict=True) if entry is Term.of(s)]
        for symbol in unknowns:
            for owner in symbol.bound.over if symbol.bound else ():
                if owner not in current:
                    raise LeftSideError(
                        f"the length of {symbol} differs along {owner}, so the left side must keep {owner} as it is",
                        fix=f"write {owner} unchanged on the left and shift it on the right instead",
                    )


def recurrent(
    shape: Iterable[int | Index],
    dims: Iterable[Dim | tuple[Dim, int | Index]],
    dtype: Any = "float32",
    name: str | None = None,
) -> Recurrent:
    """A tensor to be defined by assignments.

    `y[t + 1] = rhs` defines y at t + 1 for every step t, `y[condition] = rhs` where a condition holds, and
    `y[pr.otherwise] = rhs` wherever nothing else does. The definitions must cover every point exactly once.
    A dim may have an extent of its own, as in `dims=((t, T + 1),)`.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> fibonacci = pr.recurrent((), (t,), "int32")
    >>> fibonacci[0] = 0
    >>> fibonacci[1] = 1
    >>> fibonacci[t + 2] = fibonacci[t + 1] + fibonacci
    >>> pr.evaluate(fibonacci, bounds={T: 8})
    array([ 0,  1,  1,  2,  3,  5,  8, 13], dtype=int32)
    """
    spans = declared_spans(dims)
    lengths = tuple(term_of(length) for length in as_shape(shape))
    check_shape_dims(lengths, spans)
    return Recurrent(spans, TensorType(lengths, as_dtype(dtype)), name)


def declared_spans(dims: Iterable[Dim | tuple[Dim, int | Index]]) -> Spans:
    """The dims of a declaration: `t`, or `(t, extent)`."""
    if isinstance(dims, Dim):
        dims = (dims,)
    spans: list[NodeDim] = []
    for entry in dims:
        dim, extent = entry if isinstance(entry, tuple) else (entry, None)
        if not isinstance(dim, Dim):
            raise DeclarationError(
                f"{dim!r} is not a dim",
                fix="list dims made by pr.dim, or pairs such as (t, T + 1)",
            )
        assert dim.symbol.bound is not None
        if any(dim.symbol is span.symbol for span in spans):
            raise DeclarationError(f"the dim {dim} is listed twice", fix="make a second dim with pr.dim")
        spans.append(NodeDim(dim.symbol, affine(extent) if extent is not None else Term.of(dim.symbol.bound)))
    return union([spans])


def as_shape(shape: Any) -> tuple[int | Index, ...]:
    """A shape given as one length or a sequence of lengths."""
    return (shape,) if isinstance(shape, (int, Index)) else tuple(shape)


def check_shape_dims(lengths: Iterable[Term], spans: Spans) -> None:
    """A shape may vary only along the tensor's own dims."""
    known = {span.symbol for span in spans}
    for length in lengths:
        for symbol in dims_of(length) - known:
            raise UnboundDimError(
                f"the shape entry {length} varies along {symbol}, which is not among the dims",
                fix=f"add {symbol} to the dims",
            )


def _point(entry: Term | Range) -> Term:
    if isinstance(entry, Range):
        raise LeftSideError(
            "a definition assigns to single steps, not to a slice",
            fix="use a condition, as in y[t < 3] = ..., and write the right side for the current step",
        )
    return entry


def _check_bound(rhs: Tensor, bound: Sequence[Symbol]) -> None:
    for symbol in rhs.symbols:
        if symbol not in bound:
            raise UnboundDimError(
                f"the right side varies along {symbol}, which the left side does not bind",
                fix=f"index the right side at one step of {symbol} (such as value[0]), reduce over it, "
                f"or write {symbol} on the left",
            )
