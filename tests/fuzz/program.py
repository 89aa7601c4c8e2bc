"""A program of the language as plain data: what the generator draws, the brute force evaluates and a script prints.

This is the level a user writes at: dims, declarations, definitions piece by piece, expressions with accesses. Nothing
here knows polyrhythm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

# ---- index expressions and conditions on them


@dataclass(frozen=True)
class Int:
    """A constant."""

    value: int


@dataclass(frozen=True)
class Sym:
    """A dim ("t"), a bound ("T") or a size ("P")."""

    name: str


@dataclass(frozen=True)
class Arith:
    """`left op right` with op one of + - * // %."""

    op: str
    left: Index
    right: Index


@dataclass(frozen=True)
class Extremum:
    """`pr.min(...)` or `pr.max(...)`."""

    which: str
    left: Index
    right: Index


Index = Int | Sym | Arith | Extremum


@dataclass(frozen=True)
class Compare:
    """`left op right` with op one of < <= > >= == !=."""

    op: str
    left: Index
    right: Index


@dataclass(frozen=True)
class Logic:
    """`left & right` or `left | right`."""

    op: str
    left: Condition
    right: Condition


@dataclass(frozen=True)
class Not:
    """`~inner`."""

    inner: Condition


Condition = Compare | Logic | Not


@dataclass(frozen=True)
class Slice:
    """`start:stop:step` inside a temporal index."""

    start: Index | None = None
    stop: Index | None = None
    step: int = 1


Entry = Index | Slice

# ---- expressions


@dataclass(frozen=True)
class Name:
    """An input, a recurrent tensor or a named expression."""

    name: str


@dataclass(frozen=True)
class Literal:
    """A Python scalar, whose dtype is weak."""

    value: bool | int | float


@dataclass(frozen=True)
class Array:
    """`pr.constant(values, dtype)`; values are nested tuples."""

    values: Any
    dtype: str


@dataclass(frozen=True)
class Value:
    """`pr.value(index)`, or of a condition."""

    index: Index | Condition


@dataclass(frozen=True)
class Read:
    """`source[entries]`, by position, or by name where `names` gives the dims."""

    source: Expr
    entries: tuple[Entry, ...]
    names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Window:
    """`pr.window(source, dim, width)`."""

    source: Expr
    dim: str
    width: int


@dataclass(frozen=True)
class Choose:
    """`pr.where(condition, first, second)` with a condition on indices; `shape` is what the branches broadcast to."""

    condition: Condition
    first: Expr
    second: Expr
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Apply:
    """An operation of the array library; options are Python values, or index expressions in shapes."""

    op: str
    args: tuple[Expr, ...]
    options: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Axes:
    """`source.axes[key]`; entries are integers, (start, stop, step) triples, or "..."."""

    source: Expr
    key: tuple[Any, ...]


@dataclass(frozen=True)
class Host:
    """`pr.host(function, args, shape, dtype, effect=...)`, a function from the list in `hosts.py`."""

    function: str
    args: tuple[Expr, ...]
    shape: tuple[Index, ...]
    dtype: str
    effect: str | None = None


Expr = Name | Literal | Array | Value | Read | Window | Choose | Apply | Axes | Host

# ---- declarations


@dataclass(frozen=True)
class DimDecl:
    """`t, T = pr.dim("t")`; with `extent`, a ragged dim of at least `min` and at most `max` steps."""

    name: str
    extent: Expr | None = None
    max: int | None = None
    min: int = 0

    @property
    def bound(self) -> str:
        return self.name.upper()


@dataclass(frozen=True)
class Span:
    """A dim of a declaration; `more` steps beyond the bound."""

    dim: str
    more: int = 0

    @property
    def extent(self) -> Index:
        bound = Sym(self.dim.upper())
        return Arith("+", bound, Int(self.more)) if self.more else bound


@dataclass(frozen=True)
class InputDecl:
    """`pr.input(name, shape, dims, dtype)`."""

    name: str
    shape: tuple[int, ...]
    spans: tuple[Span, ...]
    dtype: str


@dataclass(frozen=True)
class Piece:
    """`y[left] = value`: left is a tuple of index expressions, a condition, or None for `pr.otherwise`."""

    left: tuple[Index, ...] | Condition | None
    value: Expr


@dataclass(frozen=True)
class RecurrentDecl:
    """`y = pr.recurrent(shape, dims, dtype)` with its pieces."""

    name: str
    shape: tuple[int, ...]
    spans: tuple[Span, ...]
    dtype: str
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class Let:
    """A named expression."""

    name: str
    value: Expr


@dataclass(frozen=True)
class Program:
    """A whole program with what it is called with."""

    dims: tuple[DimDecl, ...]
    inputs: tuple[InputDecl, ...] = ()
    recurrents: tuple[RecurrentDecl, ...] = ()
    lets: tuple[Let, ...] = ()
    outputs: tuple[tuple[str, Expr], ...] = ()
    bounds: tuple[tuple[str, int], ...] = ()
    data_seed: int = 0
    until: tuple[tuple[str, Expr], ...] = ()
    sizes: tuple[tuple[str, str], ...] = ()  # each with the bound that is its maximum

    def declared(self, name: str) -> InputDecl | RecurrentDecl | Let:
        """The declaration of a name."""
        everything: list[InputDecl | RecurrentDecl | Let] = [*self.inputs, *self.recurrents, *self.lets]
        return next(d for d in everything if d.name == name)

    def dim(self, name: str) -> DimDecl:
        return next(d for d in self.dims if d.name == name)


# ---- walking and rewriting


def children(node: Any) -> Iterator[Any]:
    """Every dataclass directly inside another, tuples opened."""
    waiting = [getattr(node, f.name) for f in fields(node)]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, tuple):
            waiting = [*value, *waiting]
        elif is_dataclass(value):
            yield value


def walk(node: Any) -> Iterator[Any]:
    """A node and everything inside it, outermost first."""
    yield node
    for child in children(node):
        yield from walk(child)


def rewrite(node: Any, change: Callable[[Any], Any]) -> Any:
    """The node with `change` applied to every dataclass inside, innermost first."""
    if isinstance(node, tuple):
        return tuple(rewrite(value, change) for value in node)
    if not is_dataclass(node):
        return node
    values = {f.name: rewrite(getattr(node, f.name), change) for f in fields(node)}
    return change(replace(node, **values))  # type: ignore[type-var]


def substitute(node: Any, mapping: Mapping[str, Index]) -> Any:
    """An index or condition with symbols replaced, all at once."""
    if isinstance(node, Sym):
        return mapping.get(node.name, node)
    if isinstance(node, tuple):
        return tuple(substitute(value, mapping) for value in node)
    if not is_dataclass(node):
        return node
    values = {f.name: substitute(getattr(node, f.name), mapping) for f in fields(node)}
    return replace(node, **values)  # type: ignore[type-var]


def symbols(node: Any) -> set[str]:
    """The names of all symbols in an index, a condition or a slice."""
    return {n.name for n in walk(node) if isinstance(n, Sym)}


# ---- short ways to write index expressions


def add(left: Index, amount: int) -> Index:
    """`left + amount`, or `left - |amount|`."""
    if isinstance(left, Int):
        return Int(left.value + amount)
    if amount == 0:
        return left
    if isinstance(left, Arith) and left.op in "+-" and isinstance(left.right, Int):
        known = left.right.value if left.op == "+" else -left.right.value
        return add(left.left, known + amount)
    return Arith("+" if amount > 0 else "-", left, Int(abs(amount)))


def both(*conditions: Condition) -> Condition | None:
    """The conjunction of some conditions; None of none."""
    result: Condition | None = None
    for condition in conditions:
        result = condition if result is None else Logic("&", result, condition)
    return result


def fold(node: Any) -> Any:
    """An index or condition with constant parts worked out; a condition may become True or False."""
    match node:
        case Arith(op, left, right):
            a, b = fold(left), fold(right)
            if isinstance(a, Int) and isinstance(b, Int):
                values = {"+": a.value + b.value, "-": a.value - b.value, "*": a.value * b.value}
                return Int(values[op] if op in values else a.value // b.value if op == "//" else a.value % b.value)
            return Arith(op, a, b)
        case Extremum(which, left, right):
            a, b = fold(left), fold(right)
            if isinstance(a, Int) and isinstance(b, Int):
                return Int((min if which == "min" else max)(a.value, b.value))
            return Extremum(which, a, b)
        case Compare(op, left, right):
            a, b = fold(left), fold(right)
            if isinstance(a, Int) and isinstance(b, Int):
                x, y = a.value, b.value
                return {"<": x < y, "<=": x <= y, ">": x > y, ">=": x >= y, "==": x == y, "!=": x != y}[op]
            return Compare(op, a, b)
        case Logic(op, left, right):
            a, b = fold(left), fold(right)
            decided = op == "|"
            if decided in (a, b):
                return decided
            if isinstance(a, bool):
                return b
            return a if isinstance(b, bool) else Logic(op, a, b)
        case Not(inner):
            a = fold(inner)
            return not a if isinstance(a, bool) else Not(a)
        case Slice(start, stop, step):
            return Slice(start and fold(start), stop and fold(stop), step)
    return node
