"""Random reads: point and range accesses to a tensor, with the conditions under which they are legal.

Legal means inside the extents and, for a tensor of the recursion being defined, strictly before the point that is
being defined in the order of the recursion. A read whose conditions do not follow from the scope is clamped or guarded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.program import (
    Arith,
    Array,
    Choose,
    Compare,
    Condition,
    Entry,
    Expr,
    Extremum,
    Index,
    Int,
    Literal,
    Logic,
    Name,
    Read,
    Slice,
    Span,
    Sym,
    Window,
    add,
    both,
    fold,
    substitute,
)
from tests.fuzz.scope import Scope


@dataclass(frozen=True)
class Group:
    """A recursion: the order in which its dims progress, each forwards (1) or backwards (-1)."""

    number: int
    order: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Tensor:
    """Something to read by name. In a group, `rank` orders the members at one point, `shift` moves the steps."""

    name: str
    spans: tuple[Span, ...]
    shape: tuple[int, ...]
    dtype: str
    group: Group | None = None
    rank: int = 0
    shift: int = 0


@dataclass(frozen=True)
class Position:
    """The point of a tensor that is being defined, as index expressions of the scope's symbols."""

    tensor: Tensor
    at: tuple[tuple[str, Index], ...]


@dataclass(frozen=True)
class Access:
    """A read with the conditions it needs; `filled` says when its (first) slice is not empty."""

    expr: Expr
    needs: tuple[Condition, ...]
    slices: tuple[tuple[str, Slice], ...] = ()
    filled: Condition | None = None


class Draws:
    """Choices that shrink towards the first option and towards no."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw

    def pick(self, options: Sequence[Any]) -> Any:
        return options[0] if len(options) == 1 else options[self.draw(st.integers(0, len(options) - 1))]

    def number(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def chance(self, percent: int) -> bool:
        return bool(self.draw(st.integers(0, 99)) >= 100 - percent)


def zero(shape: tuple[int, ...], dtype: str, value: int = 0) -> Expr:
    """A constant to fall back on: a scalar literal, which broadcasts."""
    if dtype == "bool":
        return Array(False, "bool") if not shape else Array(_full(shape, False), "bool")
    return Literal(float(value)) if dtype == "float32" else Literal(value)


def constant(fallback: Expr, shape: tuple[int, ...]) -> Expr:
    """A fallback that stands alone: not a Python scalar, and of full shape."""
    if not isinstance(fallback, Literal):
        return fallback
    return Array(_full(shape, fallback.value), "float32" if isinstance(fallback.value, float) else "int32")


def _full(shape: tuple[int, ...], value: Any) -> Any:
    return tuple(_full(shape[1:], value) for _ in range(shape[0])) if shape else value


class Reader(Draws):
    """Draws reads in a scope."""

    def access(
        self,
        scope: Scope,
        tensor: Tensor,
        slices: int,
        position: Position | None,
        same: tuple[str, Slice] | None = None,
    ) -> Access:
        """A read with so many slices; `same` asks for a given slice along a given dim."""
        own = position is not None and tensor.group is not None and tensor.group == position.tensor.group
        if own:
            assert position is not None
            return self._own(scope, tensor, slices, position)
        sliced = self._sliced_dims(tensor, slices, same)
        entries: list[Entry] = []
        needs: list[Condition] = []
        for span in tensor.spans:
            symbol = self._symbol(scope, span)
            if same is not None and span.dim == same[0]:
                entry: Entry = same[1]
            elif span.dim in sliced:
                entry = self.slice(span, symbol)
            else:
                entry = self.point(scope, span, symbol)
            entries.append(entry)
            needs += inside(entry, span)
        return self._made(tensor, entries, needs)

    def _sliced_dims(self, tensor: Tensor, slices: int, same: tuple[str, Slice] | None) -> list[str]:
        if same is not None:
            return [same[0]]
        dims = [span.dim for span in tensor.spans]
        while len(dims) > slices:
            dims.remove(self.pick(dims))
        return dims

    def _symbol(self, scope: Scope, span: Span) -> Index | None:
        """What stands for the current step: the dim itself, mostly, or another dim of the scope."""
        others = [d for d in scope.dims if d != span.dim]
        if span.dim in scope.dims and not (others and self.chance(8)):
            return Sym(span.dim)
        return Sym(self.pick(others)) if others and self.chance(60) else None

    def _made(self, tensor: Tensor, entries: list[Entry], needs: list[Condition]) -> Access:
        entries = [fold(entry) for entry in entries]
        slices = tuple((s.dim, e) for s, e in zip(tensor.spans, entries, strict=True) if isinstance(e, Slice))
        filled = both(*(nonempty(e, s) for s, e in zip(tensor.spans, entries, strict=True) if isinstance(e, Slice)))
        dims = tuple(span.dim for span in tensor.spans)
        source = Name(tensor.name)
        expr: Expr
        if not dims or (all(e == Sym(d) for e, d in zip(entries, dims, strict=True)) and not self.chance(25)):
            expr = source
        elif self.chance(25):
            kept = [(d, e) for d, e in zip(dims, entries, strict=True) if e != Sym(d)] or [(dims[0], entries[0])]
            expr = Read(source, tuple(e for _, e in kept), tuple(d for d, _ in kept))
        else:
            while len(entries) > 1 and entries[-1] == Sym(dims[len(entries) - 1]) and self.chance(50):
                entries = entries[:-1]
            expr = Read(source, tuple(entries))
        return Access(expr, tuple(needs), slices, filled)

    def point(self, scope: Scope, span: Span, symbol: Index | None) -> Index:
        """A point index along a dim, most of them near the current step."""
        bound, k = Sym(span.dim.upper()), self.number(1, 3)
        if symbol is None:
            return self.pick([Int(0), Int(k - 1), add(bound, -1), add(bound, -k)])
        near = [symbol, add(symbol, -1), add(symbol, -k), add(symbol, k)]
        far = [
            Arith("-", add(bound, -1), symbol),
            Arith("//", symbol, Int(k + 1)),
            Arith("%", symbol, Int(k + 1)),
            Arith("*", symbol, Int(2)),
            add(Arith("*", symbol, Int(2)), 1),
            Extremum("max", Int(0), add(symbol, -k)),
            Extremum("min", add(bound, -1), add(symbol, k)),
            Int(k - 1),
            add(bound, -1),
        ]
        others = [Sym(d) for d in scope.dims if Sym(d) != symbol]
        if others:
            far.append(Extremum("min", Arith("+", symbol, self.pick(others)), add(bound, -1)))
            far.append(Arith("-", symbol, self.pick(others)))
        chosen = self.pick([symbol, *near, *far])
        if chosen not in (symbol,) and self.chance(15):
            return Extremum("min", Extremum("max", Int(0), chosen), add(bound, -1))
        return chosen

    def slice(self, span: Span, symbol: Index | None) -> Slice:
        """A range along a dim."""
        extent, k = span.extent, self.number(1, 3)
        ends = [
            Slice(),
            Slice(Int(0), extent),
            Slice(Int(0), Extremum("min", Int(k), extent)),
            Slice(Int(k - 1), Int(k + 1)),
            Slice(None, None, 2),
            Slice(None, None, -1),
            Slice(Int(k), extent, 2),
            Slice(Extremum("max", Int(0), add(extent, -k)), extent),
        ]
        if symbol is None:
            return self.pick(ends)
        moving = [
            Slice(Int(0), add(symbol, 1)),
            Slice(symbol, extent),
            Slice(Extremum("max", Int(0), add(symbol, 1 - k)), add(symbol, 1)),
            Slice(Int(0), symbol),
            Slice(add(symbol, 1), extent),
            Slice(symbol, Extremum("min", extent, add(symbol, k))),
            Slice(Extremum("max", Int(0), add(symbol, -k)), Extremum("min", extent, add(symbol, k + 1))),
            Slice(add(symbol, -k), add(symbol, 1)),
            Slice(symbol, add(symbol, k)),
            Slice(symbol, add(symbol, 1)),
            Slice(Int(0), add(symbol, 1), 2),
            Slice(symbol, None, -1),
            Slice(add(extent, -1), add(symbol, -1), -1),
            Slice(None, add(symbol, 1)),
            Slice(symbol, None, 2),
            Slice(Int(0), Arith("//", add(symbol, 1), Int(2))),
        ]
        return self.pick([*moving, *ends])

    def _own(self, scope: Scope, tensor: Tensor, slices: int, position: Position) -> Access:
        """A read of the recursion: equal along some dims, strictly before along the next, free along the rest."""
        assert tensor.group is not None
        at, order = dict(position.at), tensor.group.order
        shift = position.tensor.shift - tensor.shift
        level = self.number(0, len(order) - 1)
        if tensor.rank < position.tensor.rank and shift == 0 and slices == 0 and self.chance(50):
            level = len(order)
        elif shift != 0:
            level = 0
        sliceable = [dim for dim, _ in order[level:]]
        sliced: list[str] = []
        while sliceable and len(sliced) < slices:
            dim = self.pick(sliceable)
            sliceable.remove(dim)
            sliced.append(dim)
        entries: dict[str, Entry] = {}
        needs: list[Condition] = []
        spans = {span.dim: span for span in tensor.spans}
        for place, (dim, direction) in enumerate(order):
            span, here = spans[dim], at[dim]
            if place < level:
                entries[dim] = here
                # Members of one group may have different extents.
                needs += inside(here, span)
            elif place == level:
                moved = add(here, shift * direction)
                entry = (
                    self._before_slice(span, moved, direction)
                    if dim in sliced
                    else self._before(span, moved, direction)
                )
                entries[dim] = entry
                needs += [*inside(entry, span), *before(entry, span, moved, direction)]
            else:
                entry = self.slice(span, here) if dim in sliced else self.point(scope, span, here)
                entries[dim] = entry
                needs += inside(entry, span)
        return self._made(tensor, [entries[span.dim] for span in tensor.spans], needs)

    def _before(self, span: Span, here: Index, direction: int) -> Index:
        k = self.number(1, 3)
        near = [add(here, -direction), add(here, -direction), add(here, -k * direction)]
        if direction > 0:
            return self.pick([*near, Arith("//", here, Int(2)), Extremum("max", Int(0), add(here, -k)), Int(k - 1)])
        last = add(span.extent, -1)
        return self.pick([*near, Extremum("min", last, add(here, k)), add(Arith("*", here, Int(2)), 1), last])

    def _before_slice(self, span: Span, here: Index, direction: int) -> Slice:
        k = self.number(1, 3)
        if direction > 0:
            first = Extremum("max", Int(0), add(here, -k))
            return self.pick(
                [
                    Slice(Int(0), here),
                    Slice(first, here),
                    Slice(add(here, -k), here),
                    Slice(Int(0), here, 2),
                    Slice(add(here, -1), None, -1),
                ]
            )
        last = Extremum("min", span.extent, add(here, k + 1))
        after = add(here, 1)
        return self.pick(
            [Slice(after, span.extent), Slice(after, last), Slice(after, add(after, k)), Slice(after, None, 2)]
        )

    def guarded(
        self, scope: Scope, expr: Expr, needs: Sequence[Condition], fallback: Expr, shape: tuple[int, ...] | None
    ) -> Expr:
        """The expression where what it needs holds, the fallback elsewhere; bare if it always does."""
        missing: list[Condition] = []
        for need in map(fold, needs):
            if need is False or (need is not True and not scope.given(*missing).finds(need)):
                return constant(fallback, shape or ())
            if need is not True and not scope.given(*missing).implies(need):
                missing.append(need)
        guard = both(*missing)
        return expr if guard is None else Choose(guard, expr, fallback, shape)

    def window(self, tensor: Tensor, dim: str) -> Expr:
        return Window(Name(tensor.name), dim, self.number(1, 5))


def inside(entry: Entry, span: Span) -> list[Condition]:
    """Conditions under which a point or a range stays inside a dim."""
    if not isinstance(entry, Slice):
        return [Compare(">=", entry, Int(0)), Compare("<", entry, span.extent)]
    if entry.step < 0:
        start = add(span.extent, -1) if entry.start is None else entry.start
        stop: Index = Int(-1) if entry.stop is None else entry.stop
        fits = Logic("&", Compare("<", start, span.extent), Compare(">=", stop, Int(-1)))
        return [Logic("|", Compare("<=", start, stop), fits)]
    start = Int(0) if entry.start is None else entry.start
    stop = span.extent if entry.stop is None else entry.stop
    fits = Logic("&", Compare(">=", start, Int(0)), Compare("<=", stop, span.extent))
    return [Logic("|", Compare(">=", start, stop), fits)]


def nonempty(entry: Slice, span: Span) -> Condition:
    """The condition that a range has at least one step."""
    if entry.step < 0:
        start = add(span.extent, -1) if entry.start is None else entry.start
        return Compare(">", start, Int(-1) if entry.stop is None else entry.stop)
    return Compare(
        "<", Int(0) if entry.start is None else entry.start, span.extent if entry.stop is None else entry.stop
    )


def before(entry: Entry, span: Span, here: Index, direction: int) -> list[Condition]:
    """Conditions under which a read comes strictly before a step in the direction of a recursion."""
    if not isinstance(entry, Slice):
        return [Compare("<" if direction > 0 else ">", entry, here)]
    if entry.step < 0:
        start = add(span.extent, -1) if entry.start is None else entry.start
        stop: Index = Int(-1) if entry.stop is None else entry.stop
        empty: Condition = Compare("<=", start, stop)
        ahead = Compare("<", start, here) if direction > 0 else Compare(">=", stop, here)
        return [Logic("|", empty, ahead)]
    start = Int(0) if entry.start is None else entry.start
    stop = span.extent if entry.stop is None else entry.stop
    ahead = Compare("<=", stop, here) if direction > 0 else Compare(">", start, here)
    return [Logic("|", Compare(">=", start, stop), ahead)]


def chained(reader: Reader, scope: Scope, access: Access, dim: str) -> tuple[Expr, tuple[Condition, ...]]:
    """A read of a read: the steps of `dim` moved again. The conditions are those of the first at the new step."""
    moved = reader.pick(
        [
            add(Sym(dim), -1),
            add(Sym(dim), 1),
            Arith("-", add(Sym(dim.upper()), -1), Sym(dim)),
            Arith("//", Sym(dim), Int(2)),
        ]
    )
    inner = Read(access.expr, (moved,), (dim,))
    natural = [Compare(">=", moved, Int(0)), Compare("<", moved, Sym(dim.upper()))]
    return inner, (*natural, *substitute(access.needs, {dim: moved}))
