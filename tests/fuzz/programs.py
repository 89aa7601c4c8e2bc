"""Whole random programs: inputs, groups of recurrent tensors with their pieces, expressions between, outputs.

Legal by construction: the left sides of a tensor are drawn as partitions, and the right sides in the scope that the
left side gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.fuzz.dims import extents_of
from tests.fuzz.expressions import Expressions
from tests.fuzz.program import (
    Apply,
    Arith,
    Array,
    Compare,
    Condition,
    DimDecl,
    Expr,
    Index,
    InputDecl,
    Int,
    Let,
    Literal,
    Logic,
    Name,
    Not,
    Piece,
    Program,
    Read,
    RecurrentDecl,
    Slice,
    Span,
    Sym,
    add,
    symbols,
    walk,
)
from tests.fuzz.reads import Group, Position, Tensor
from tests.fuzz.scope import Scope

TILE = 4
DIMS = ("t", "i", "s", "u")


class Builder(Expressions):
    """Draws one program."""

    counts: tuple[int, ...] = (1, 2, 1, 2, 1, 2, 3, 1, 2, 1, 2, 3, 4)
    """How many dims there are, each as likely."""

    depths: tuple[int, ...] = (2, 3, 1)
    """How deep the expression on a right side is."""

    members: tuple[int, ...] = (1, 2)
    """How many tensors may read each other."""

    def __init__(self, draw: Callable[[Any], Any], lane: str) -> None:
        Expressions.__init__(self, draw, lane, ())
        self.inputs: list[InputDecl] = []
        self.recurrents: list[RecurrentDecl] = []
        self.lets: list[Let] = []
        self.groups = 0

    def sketch(self) -> Program:
        return Program(self.dims, tuple(self.inputs), tuple(self.recurrents), tuple(self.lets))

    def program(self) -> Program:
        self.dims = tuple(DimDecl(d) for d in DIMS[: self.pick(self.counts)])
        self.declarations()
        made = replace(
            self.sketch(), outputs=tuple(self.outputs()), bounds=tuple(self.bounds()), data_seed=self.number(0, 3)
        )
        return pruned(made)

    def declarations(self) -> None:
        for number in range(self.number(1, 3)):
            self.input(number)
        for _ in range(self.pick([1, 1, 2])):
            self.group()
            for _ in range(self.number(0, 1)):
                self.let()

    def bounds(self) -> list[tuple[str, int]]:
        sizes = [TILE, 1, 2, TILE - 1, TILE + 1, 0, 2 * TILE + 1]
        if len(self.dims) == 3:
            sizes = [*sizes[:5], 0]
        if len(self.dims) > 3:
            sizes = [2, 1, 3, 2, 0]
        return [(d.bound, self.pick(sizes)) for d in self.dims]

    def spans(self, at_least: int, more: int = 10) -> tuple[Span, ...]:
        names = [d.name for d in self.dims]
        while len(names) > at_least and self.chance(35):
            names.remove(self.pick(names))
        if len(names) > 1 and self.chance(30):
            names.reverse()
        return tuple(Span(name, 1 if self.chance(more) else 0) for name in names)

    def input(self, number: int) -> None:
        dtype = self.main if number == 0 or self.chance(60) else "int32"
        decl = InputDecl(f"x{number}", self.pick([(), (), (2,)]), self.spans(0 if number else 1), dtype)
        self.inputs.append(decl)
        self.tensors.append(Tensor(decl.name, decl.spans, decl.shape, decl.dtype))

    def let(self) -> None:
        """A named expression outside every recursion."""
        scope = self.natural(tuple(s.dim for s in self.spans(1)))
        self.budget, self.position = 12, None
        value = self.over_all(self.expr(scope, self.main, self.pick([(), (), (2,)]), 3), scope, self.main)
        if isinstance(value, (Literal, Name)):
            return
        self.name_let(f"h{len(self.lets)}", value, None)

    def name_let(self, name: str, value: Expr, like: Tensor | None) -> Tensor:
        extents = extents_of(value, self.sketch())
        spans = tuple(Span(d, 1 if all(e != Sym(d.upper()) for e in es) else 0) for d, es in extents.items())
        shape, dtype = (like.shape, like.dtype) if like else (self.shape_of(value), self.main)
        self.lets.append(Let(name, value))
        tensor = Tensor(name, spans, shape, dtype)
        self.tensors.append(tensor)
        return tensor

    def shape_of(self, value: Expr) -> tuple[int, ...]:
        """The static shape of an expression, by evaluating it on zeros."""
        from tests.fuzz.brute import Brute, Shapes

        return Shapes(Brute(self.sketch(), {}, {d.bound: 1 for d in self.dims})).at(value, {}).v.shape

    # ---- recurrent tensors

    def group(self) -> None:
        """One or two tensors that may read each other, and perhaps an expression between them."""
        self.groups += 1
        dims = [s.dim for s in self.spans(1, more=0)]
        order = list(reversed(dims)) if len(dims) > 1 and self.chance(30) else dims
        group = Group(self.groups, tuple((d, self.pick([1, 1, -1])) for d in order))
        count = self.pick(self.members)
        members = []
        for rank in range(count):
            names = list(reversed(dims)) if self.chance(20) else dims
            more = {d: 1 if self.chance(20) else 0 for d in dims}
            dtype = self.main if self.chance(85) else "int32"
            shift = self.number(1, 2) if rank and self.chance(20) else 0
            spans = tuple(Span(d, more[d]) for d in names)
            members.append(
                Tensor(f"y{len(self.recurrents)}", spans, self.pick([(), (), (2,)]), dtype, group, rank * 2, shift)
            )
            self.recurrents.append(RecurrentDecl(members[-1].name, members[-1].shape, spans, dtype))
        self.tensors += members
        if self.chance(25):
            self.between(group, dims)
        for member in members:
            place = next(i for i, r in enumerate(self.recurrents) if r.name == member.name)
            self.recurrents[place] = replace(self.recurrents[place], pieces=tuple(self.pieces(member)))
        # From here on the group is ordinary tensors, of which any step may be read.
        self.tensors = [replace(t, group=None, rank=0, shift=0) if t.group == group else t for t in self.tensors]
        self.position = None

    def between(self, group: Group, dims: list[str]) -> None:
        """An expression inside the recursion."""
        tensor = Tensor(
            f"h{len(self.lets)}",
            tuple(Span(d) for d in dims),
            self.pick([(), (2,)]),
            self.main,
            group,
            self.pick([1, -1]),
        )
        scope = self.natural(tuple(dims))
        self.position, self.budget = Position(tensor, tuple((d, Sym(d)) for d in dims)), 10
        value = self.expr(scope, tensor.dtype, tensor.shape, 2)
        extents = extents_of(value, self.sketch())
        if set(extents) != set(dims) or isinstance(value, (Name, Literal)):
            return
        spans = tuple(Span(d, 0) for d in extents)
        if any(e == [add(Sym(d.upper()), 1)] for d, e in extents.items()):
            return
        self.lets.append(Let(tensor.name, self.bounded(value, tensor.dtype)))
        self.tensors.append(replace(tensor, spans=spans))

    def pieces(self, member: Tensor) -> list[Piece]:
        mode = self.pick(["points", "points", "conditions", "mixed"])
        if mode == "points":
            return self.by_points(member)
        return self.by_conditions(member, mode == "mixed")

    def by_points(self, member: Tensor) -> list[Piece]:
        assert member.group is not None
        directions = dict(member.group.order)
        splits = [self.split(span, directions[span.dim]) for span in member.spans]
        if len(splits) > 2:
            # One dim is split, the others are whole: a dozen pieces would take long and show little more.
            chosen = self.number(0, len(splits) - 1)
            splits = [split if i == chosen else _whole(member.spans[i]) for i, split in enumerate(splits)]
        made = []
        for left in product(*splits):
            bound = {name for entry in left for name in symbols(entry)} & {d.name for d in self.dims}
            spans = tuple(Span(d.name) for d in self.dims if d.name in bound)
            limits = [c for entry, span in zip(left, member.spans, strict=True) for c in _within(entry, span)]
            scope = Scope(tuple(d.bound for d in self.dims), spans, tuple(limits))
            shown = left
            while len(shown) > 1 and shown[-1] == Sym(member.spans[len(shown) - 1].dim) and self.chance(40):
                shown = shown[:-1]
            made.append(Piece(tuple(shown), self.right(member, scope, left)))
        return self.shuffled(made)

    def shuffled(self, pieces: list[Piece]) -> list[Piece]:
        return list(reversed(pieces)) if self.chance(25) else pieces

    def split(self, span: Span, direction: int) -> list[Index]:
        """Left sides that cover a dim once."""
        t, bound, extent = Sym(span.dim), Sym(span.dim.upper()), span.extent
        k = self.number(1, 2)
        forward: list[Index] = [*(Int(c) for c in range(k)), add(t, k)]
        backward: list[Index] = [add(extent, -1), Arith("-", add(extent, -2), t)]
        if span.more:
            return self.pick([forward, backward, [t, bound], [Int(0), Arith("-", bound, t)]])
        whole: list[Index] = [t]
        options = [forward if direction > 0 else backward] * 3 + [whole, whole]
        options += [[Arith("-", add(bound, -1), t)], [Arith("*", t, Int(2)), add(Arith("*", t, Int(2)), 1)]]
        return self.pick(options)

    def by_conditions(self, member: Tensor, mixed: bool) -> list[Piece]:
        scope = Scope(tuple(d.bound for d in self.dims), member.spans)
        at: tuple[Index, ...] = tuple(Sym(s.dim) for s in member.spans)
        made: list[Piece] = []
        taken: list[Condition] = []
        if mixed:
            span = member.spans[0]
            point: Index = self.pick([Int(0), add(span.extent, -1), Int(1)])
            rest = Scope(scope.bounds, tuple(Span(s.dim) for s in member.spans[1:]), tuple(_within(point, span)))
            left = (point, *at[1:])
            # A left side by position binds 0 <= i < I, so longer dims cannot be used whole.
            if not any(s.more for s in member.spans[1:]):
                made.append(Piece(left if self.chance(50) else (point,), self.right(member, rest, left)))
                taken.append(Compare("==", at[0], point))
        for _ in range(self.number(0 if taken else 1, 1)):
            condition = self.condition(scope)
            if taken:
                condition = Logic("&", condition, Not(taken[0]))
            made.append(Piece(condition, self.right(member, scope.given(condition), at)))
            taken.append(condition)
        rest_of = scope.given(*(Not(c) for c in taken))
        final: Condition | None = None
        if self.chance(30):
            final = Not(taken[0]) if len(taken) == 1 else Logic("&", Not(taken[0]), Not(taken[1]))
        made.append(Piece(final, self.right(member, rest_of, at)))
        return self.shuffled(made)

    def right(self, member: Tensor, scope: Scope, left: tuple[Index, ...]) -> Expr:
        """A right side for the points that a left side names."""
        self.position = Position(member, tuple((s.dim, e) for s, e in zip(member.spans, left, strict=True)))
        self.budget = 9
        shape = () if member.shape and self.chance(15) else member.shape
        value = self.expr(scope, member.dtype, shape, self.pick(self.depths))
        if member.dtype == "float32" or self.chance(40):
            own = [t for t in self.tensors if t.group == member.group and t.dtype == member.dtype and t.shape == shape]
            if own and not self.reads_group(value, member):
                value = Apply("+", (value, self.point_read(scope, self.pick(own))))
        return self.bounded(value, member.dtype)

    def reads_group(self, value: Expr, member: Tensor) -> bool:
        names = {t.name for t in self.tensors if t.group == member.group}
        return any(isinstance(node, Name) and node.name in names for node in walk(value))

    def bounded(self, value: Expr, dtype: str) -> Expr:
        return Apply("tanh", (value,)) if dtype == "float32" else value

    # ---- outputs

    def outputs(self) -> list[tuple[str, Expr]]:
        made: list[tuple[str, Expr]] = [(r.name, Name(r.name)) for r in self.recurrents[-2:]]
        named: list[Expr] = [Name(let.name) for let in self.lets[-1:]]
        if named and self.chance(50):
            made.append(("named", named[0]))
        for number in range(self.number(0, 2)):
            made.append((f"o{number}", self.output()))
        return made

    def output(self) -> Expr:
        self.position, self.budget = None, 12
        if self.chance(25):
            tensor = self.pick([t for t in self.tensors if t.spans])
            return Read(Name(tensor.name), (self.pick([Slice(), Slice(None, None, -1), Slice(None, None, 2)]),))
        dims = () if self.chance(40) else tuple(s.dim for s in self.spans(1))
        scope = self.natural(dims)
        value = self.over_all(self.expr(scope, self.main, self.pick([(), (2,)]), 3), scope, self.main)
        return Array(value.value, self.main) if isinstance(value, Literal) else value


class SmallBuilder(Builder):
    """Draws a program of one recurrence, or of one expression, that compiles in a tenth of the time."""

    counts: tuple[int, ...] = (1, 1, 1, 2, 1, 1, 2, 3)
    depths: tuple[int, ...] = (1, 2, 1)
    members: tuple[int, ...] = (1, 1, 1, 2)

    def declarations(self) -> None:
        for number in range(self.number(1, 2)):
            self.input(number)
        if self.chance(60):
            self.group()
        else:
            self.let()

    def outputs(self) -> list[tuple[str, Expr]]:
        made: list[tuple[str, Expr]] = [(r.name, Name(r.name)) for r in self.recurrents]
        if self.lets and not made:
            made.append(("named", Name(self.lets[-1].name)))
        return made if made and self.chance(70) else [*made, ("o", self.output())]


class TinyBuilder(SmallBuilder):
    """Draws a program of one recurrence, or of one expression, over one dim mostly, with little on its right sides."""

    counts = (1, 1, 1, 1, 1, 1, 1, 2)
    depths = (1, 1, 2)
    members: tuple[int, ...] = (1,)

    def outputs(self) -> list[tuple[str, Expr]]:
        made = [(r.name, Name(r.name)) for r in self.recurrents] or [(let.name, Name(let.name)) for let in self.lets]
        return list(made) or [("o", self.output())]


def _whole(span: Span) -> list[Index]:
    return [Sym(span.dim), Sym(span.dim.upper())] if span.more else [Sym(span.dim)]


def _within(entry: Index, span: Span) -> list[Condition]:
    return [Compare(">=", entry, Int(0)), Compare("<", entry, span.extent)]


def pruned(program: Program) -> Program:
    """The program without the declarations that no output needs."""
    used: set[str] = set()
    waiting: list[Any] = [*program.outputs, *program.until, *(d.extent for d in program.dims if d.extent is not None)]
    while waiting:
        item = waiting.pop()
        for node in walk(item[1] if isinstance(item, tuple) else item):
            if isinstance(node, Name) and node.name not in used:
                used.add(node.name)
                waiting.append(program.declared(node.name))
    return replace(
        program,
        inputs=tuple(d for d in program.inputs if d.name in used),
        recurrents=tuple(d for d in program.recurrents if d.name in used),
        lets=tuple(d for d in program.lets if d.name in used),
    )


@st.composite
def programs(draw: Callable[[Any], Any], lane: str) -> Program:
    """Random programs of a lane, "int" or "float"."""
    return Builder(draw, lane).program()


@st.composite
def small_programs(draw: Callable[[Any], Any], lane: str) -> Program:
    """Random programs of a lane of which each has little in it."""
    return SmallBuilder(draw, lane).program()


@st.composite
def tiny_programs(draw: Callable[[Any], Any], lane: str) -> Program:
    """Random programs of a lane that compile fastest."""
    return TinyBuilder(draw, lane).program()


def data(program: Program, bounds: dict[str, int] | None = None) -> dict[str, np.ndarray]:
    """Random inputs for a program at its bounds."""
    sizes = dict(program.bounds) if bounds is None else bounds
    random = np.random.default_rng(program.data_seed)
    made = {}
    if any(d.extent is not None for d in program.dims):
        return _ragged_data(program, sizes, random)
    for decl in program.inputs:
        shape = (*(sizes[s.dim.upper()] + s.more for s in decl.spans), *decl.shape)
        if decl.dtype == "float32":
            made[decl.name] = random.uniform(-2, 2, shape).astype(np.float32)
        else:
            made[decl.name] = random.integers(-5, 6, shape).astype(decl.dtype)
    return made


def _ragged_data(program: Program, sizes: dict[str, int], random: np.random.Generator) -> dict[str, np.ndarray]:
    """Lengths, and rows padded to the longest."""
    made: dict[str, np.ndarray] = {}
    for dim, lengths, rows in zip(
        [d for d in program.dims if d.extent is not None], ("lengths", "counts"), "xz", strict=False
    ):
        assert dim.max is not None
        made[lengths] = random.integers(dim.min, dim.max + 1, sizes["B"]).astype(np.int32)
        shape = sizes["B"], int(made[lengths].max(initial=0))
        if program.declared(rows).dtype == "float32":  # type: ignore[union-attr]
            made[rows] = random.uniform(-2, 2, shape).astype(np.float32)
        else:
            made[rows] = random.integers(-5, 6, shape).astype(np.int32)
    return made
