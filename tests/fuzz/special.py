"""Smaller strategies for what ordinary programs do not have: ragged extents, `until`, host functions with effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.program import (
    Apply,
    Arith,
    Array,
    Choose,
    Compare,
    DimDecl,
    Expr,
    Extremum,
    Host,
    Index,
    InputDecl,
    Int,
    Let,
    Literal,
    Name,
    Piece,
    Program,
    Read,
    RecurrentDecl,
    Slice,
    Span,
    Sym,
    add,
)
from tests.fuzz.reads import Draws

T, B = Sym("t"), Sym("b")
LONGEST = 5


def _row(draws: Draws) -> Expr:
    """Something computed from the steps of a row of x."""
    steps = draws.pick(
        [
            Slice(Int(0), add(T, 1)),
            Slice(T, Sym("T")),
            Slice(),
            Slice(None, None, -1),
            Slice(add(T, 1), Sym("T")),
            Slice(Int(0), T),
        ]
    )
    op = draws.pick(["sum", "max", "min", "prod"])
    return Apply(op, (Read(Name("x"), (steps,), ("t",)),), (0,))


def _point(draws: Draws) -> Expr:
    kind = draws.number(0, 4)
    if kind == 0:
        return Name("x")
    if kind == 1:
        return Choose(Compare(">", T, Int(0)), Read(Name("x"), (B, add(T, -1))), Literal(1), ())
    if kind == 2:
        return Choose(Compare("<", add(T, 2), Sym("T")), Read(Name("x"), (add(T, 2),), ("t",)), Literal(2), ())
    if kind == 3:
        return Read(Name("x"), (B, Arith("-", add(Sym("T"), -1), T)))
    return Read(Name("x"), (B, Arith("//", T, Int(2))))


def _step(draws: Draws, other: Expr, dtype: str = "int32") -> Expr:
    ops = ["+", "-", "maximum", "minimum", "^" if dtype == "int32" else "*"]
    value = Apply(draws.pick(ops), (other, draws.pick([_row, _point])(draws)))
    return value if dtype == "int32" else Apply("tanh", (value,))


@st.composite
def ragged(draw: Callable[[Any], Any], dtype: str = "int32") -> Program:
    """Rows of different lengths: a recurrence along each, and reductions over it."""
    draws = Draws(draw)
    least = draws.pick([0, 0, 1, 2])
    dims = [DimDecl("b"), DimDecl("t", Read(Name("lengths"), (B,)), draws.pick([LONGEST, LONGEST, 9]), least)]
    inputs = [
        InputDecl("lengths", (), (Span("b"),), "int32"),
        InputDecl("x", (), (Span("b"), Span("t")), dtype),
    ]
    spans = (Span("b"), Span("t"))
    if draws.chance(50):
        pieces = (
            Piece((B, Int(0)), Apply("+", (Read(Name("x"), (B, Int(0))), Literal(1)))),
            Piece((B, add(T, 1)), _step(draws, Name("y"), dtype)),
        )
    else:
        pieces = (
            Piece(Compare("==", T, add(Sym("T"), -1)), _point(draws)),
            Piece(None, _step(draws, Read(Name("y"), (add(T, 1),), ("t",)), dtype)),
        )
    y = RecurrentDecl("y", (), spans, dtype, pieces)
    total = Apply("sum", (Read(Name("y"), (B, Slice())),), (0,))
    outputs: list[tuple[str, Expr]] = [("y", Name("y")), ("total", total)]
    if draws.chance(50):
        outputs.append(("all", Apply("sum", (Read(total, (Slice(),)),), (0,))))
    if draws.chance(50):
        outputs.append(("e", _step(draws, Name("y"), dtype)))
    if least:
        outputs.append(("last", Read(Name("y"), (B, add(Sym("T"), -1)))))
    if draws.chance(30):  # sums over two lengths
        dims.append(DimDecl("u", Read(Name("counts"), (B,)), LONGEST))
        inputs += [
            InputDecl("counts", (), (Span("b"),), "int32"),
            InputDecl("z", (), (Span("b"), Span("u")), dtype),
        ]
        pairs = Read(Apply("*", (draws.pick([Name("x"), Name("y")]), Name("z"))), (B, Slice(), Slice()))
        outputs.append(("pairs", Apply("sum", (Apply("sum", (pairs,), (0,)),), (0,))))
    bounds = (("B", draws.number(0, 3)),)
    return Program(tuple(dims), tuple(inputs), (y,), (), tuple(outputs), bounds, draws.number(0, 3))


@st.composite
def stopped(draw: Callable[[Any], Any], dtype: str = "int32") -> Program:
    """A recurrence that ends at the first step where a condition holds, each row at its own."""
    draws = Draws(draw)
    batched = draws.chance(40)
    spans = (Span("b"), Span("t")) if batched else (Span("t"),)
    dims = (DimDecl("b"), DimDecl("t")) if batched else (DimDecl("t"),)
    inputs = (InputDecl("x", (), spans[:-1], dtype),)
    at = (B,) if batched else ()
    grown = Apply("+", (Name("y"), draws.pick([Literal(1), Apply("abs", (Name("x"),)), Apply("abs", (Name("y"),))])))
    y = RecurrentDecl(
        "y",
        (),
        spans,
        dtype,
        (Piece((*at, Int(0)), Apply("%", (Name("x"), Literal(3)))), Piece((*at, add(T, 1)), grown)),
    )
    done = Apply(">", (Name("y"), Array(draws.number(0, 6), dtype)))
    outputs: list[tuple[str, Expr]] = [("y", Name("y"))]
    if draws.chance(60):
        outputs.append(("total", Apply("sum", (Read(Name("y"), (Slice(),), ("t",)),), (0,))))
    if draws.chance(60):
        outputs.append(("rest", Apply("sum", (Read(Name("y"), (Slice(T, Sym("T")),), ("t",)),), (0,))))
    bounds = (("T", draws.pick([4, 1, 2, 5, 9])), *([("B", draws.number(1, 3))] if batched else []))
    return Program(dims, inputs, (y,), (), tuple(outputs), bounds, draws.number(0, 5), (("t", done),))


def _seen(draws: Draws, source: str, dims: tuple[str, ...]) -> Expr:
    """What a step sees of itself and those before it: all, a window, every second, the first few and a window."""
    width = draws.number(1, 3)

    def added(start: Index, stop: Index, step: int = 1) -> Expr:
        entries = tuple(Slice(start, stop, step) if d == "t" else Sym(d) for d in dims)
        return Apply("sum", (Read(Name(source), entries),), (0,))

    near = Extremum("max", Int(0), add(T, 1 - width))
    kind = draws.number(0, 3)
    if kind == 0:
        return added(Int(0), add(T, 1))
    if kind == 1:
        return added(near, add(T, 1))
    if kind == 2:
        return added(Arith("%", T, Int(2)), add(T, 1), 2)
    first = draws.number(1, 3)
    early = added(Int(0), Extremum("min", Int(first), add(T, 1)))
    return Apply("+", (early, added(Extremum("max", Int(first), add(T, 1 - width)), add(T, 1))))


@st.composite
def begun(draw: Callable[[Any], Any]) -> Program:
    """Steps that are given up to one that the call decides, and made from those before afterwards; it may end early."""
    draws = Draws(draw)
    layers = draws.chance(50)
    before = Compare("<", T, Sym("P"))
    small = Literal(7)
    recurrents, lets = [], []
    if layers:
        top: Expr = Read(Name("h"), (Sym("L"), add(T, -1)))
        above = Apply("%", (Apply("+", (_seen(draws, "h", ("l", "t")), Name("h"))), small))
        pieces = (Piece((Int(0), T), Name("y")), Piece((add(Sym("l"), 1), T), above))
        recurrents.append(RecurrentDecl("h", (), (Span("l", 1), Span("t")), "int32", pieces))
    else:
        lets.append(Let("z", _seen(draws, "y", ("t",))))
        top = Read(Name("z"), (add(T, -1),))
    made = Apply("%", (Apply("+", (Apply("*", (top, Literal(3))), Literal(1))), small))
    pieces = (Piece(before, Name("x")), Piece(Compare(">=", T, Sym("P")), made))
    recurrents.append(RecurrentDecl("y", (), (Span("t"),), "int32", pieces))
    outputs: list[tuple[str, Expr]] = [("y", Name("y"))]
    if draws.chance(40):
        whole = Read(Name("h" if layers else "z"), ((Sym("L"),) if layers else ()) + (Slice(),))
        outputs.append(("total", Apply("sum", (whole,), (0,))))
    until: tuple[tuple[str, Expr], ...] = ()
    if draws.chance(60):
        done: Expr = Apply("==", (Name("y"), Array(draws.number(0, 6), "int32")))
        if draws.chance(50):
            earlier = Apply("|", (Name("d"), Read(done, (add(T, 1),), ("t",))))
            ending = (Piece((Int(0),), Read(done, (Int(0),), ("t",))), Piece((add(T, 1),), earlier))
            recurrents.append(RecurrentDecl("d", (), (Span("t"),), "bool", ending))
            done = Name("d")
        until = (("t", done),)
    steps = draws.pick([5, 1, 2, 3, 9])
    bounds = (("T", steps), ("P", draws.number(1, steps)), *([("L", draws.number(0, 2))] if layers else []))
    dims = (DimDecl("l"), DimDecl("t")) if layers else (DimDecl("t"),)
    inputs = (InputDecl("x", (), (Span("t"),), "int32"),)
    sizes = (("P", "T"),)
    seed = draws.number(0, 5)
    return Program(dims, inputs, tuple(recurrents), tuple(lets), tuple(outputs), bounds, seed, until, sizes)


@st.composite
def hosted(draw: Callable[[Any], Any]) -> Program:
    """Host functions inside a recurrence, pure and with an effect, and of ranges."""
    draws = Draws(draw)
    two = draws.chance(40)
    spans = (Span("b"), Span("t")) if two else (Span("t"),)
    dims = (DimDecl("b"), DimDecl("t")) if two else (DimDecl("t"),)
    inputs = (InputDecl("x", (), spans, "int32"),)
    earlier = Choose(Compare(">", T, Int(0)), Read(Name("y"), (add(T, -1),), ("t",)), Literal(1), ())
    effect = draws.pick([None, "log", "log"])
    function = draws.pick(["count", "tell"]) if effect else "double"
    call = Host(function, (Apply("+", (Name("x"), earlier)),), (), "int32", effect)
    y = RecurrentDecl("y", (), spans, "int32", (Piece(tuple(Sym(s.dim) for s in spans), Name("h")),))
    outputs: list[tuple[str, Expr]] = [("y", Name("y"))]
    lets = [Let("h", call)]
    if draws.chance(50):
        lets.append(Let("g", Host("combine", (Name("h"), Name("x")), (), "int32")))
        outputs.append(("g", Name("g")))
    if effect and draws.chance(50):
        lets.append(Let("k", Host("tell", (Name("h"),), (), "int32", effect)))
        outputs.append(("k", Name("k")))
    if draws.chance(50):  # lengths of the step, of the run, and what is left of it
        steps, length = draws.pick(
            [(Slice(Int(0), add(T, 1)), add(T, 1)), (Slice(), Sym("T")), (Slice(T, Sym("T")), Arith("-", Sym("T"), T))]
        )
        past = Read(Name(draws.pick(["x", "y"])), (steps,), ("t",))
        lets.append(Let("p", Apply("sum", (Host("double", (past,), (length,), "int32"),), (0,))))
        outputs.append(("p", Name("p")))
    sizes = (("T", draws.pick([4, 0, 1, 2, 5])), *([("B", draws.number(0, 3))] if two else []))
    return Program(dims, inputs, (y,), tuple(lets), tuple(outputs), sizes, draws.number(0, 3))


@st.composite
def paired(draw: Callable[[Any], Any]) -> Program:
    """Pairs of steps: one tensor at positions of several dims, in values, reductions and recurrences over both."""
    draws = Draws(draw)
    dims = (DimDecl("b"), DimDecl("t"))
    inputs = (InputDecl("x", (), (Span("t"),), "int32"), InputDecl("z", (), (Span("b"),), "int32"))

    def at(dim: Sym) -> Expr:
        """x at a step of either dim, or counted from its end, where there is one."""
        step: Index = draws.pick([dim, Arith("-", add(Sym("T"), -1), dim), add(dim, -1)])
        inside = Compare(">=", step, Int(0)), Compare("<", step, Sym("T"))
        value: Expr = Read(Name("x"), (step,), ("t",))
        for needed in inside:
            value = Choose(needed, value, Literal(0), ())
        return value

    def pair(depth: int) -> Expr:
        if depth == 0:
            return draws.pick([at(T), at(B), Name("x"), Name("z")])
        return Apply(draws.pick(["+", "-", "*", "maximum"]), (pair(depth - 1), pair(depth - 1)))

    p = Apply("+", (pair(draws.number(1, 2)), Apply("*", (Name("z"), Literal(0)))))
    lets = [Let("p", Apply("+", (p, Apply("*", (Name("x"), Literal(0))))))]
    outputs: list[tuple[str, Expr]] = [("p", Name("p"))]
    for dim in draws.pick([(), ("t",), ("b",), ("t", "b")]):
        op = draws.pick(["sum", "max", "min"])
        steps = Slice(Int(0), add(Sym(dim), 1)) if draws.chance(50) else Slice()
        if op != "sum":
            steps = Slice(Int(0), add(Sym(dim), 1))
        outputs.append((f"over_{dim}", Apply(op, (Read(Name("p"), (steps,), (dim,)),), (0,))))
    sizes = (("T", draws.pick([4, 1, 2, 5])), ("B", draws.pick([3, 1, 4, 5])))
    return Program(dims, inputs, (), tuple(lets), tuple(outputs), sizes, draws.number(0, 3))


@st.composite
def swept(draw: Callable[[Any], Any]) -> Program:
    """A row is made of the row before or after it: of neighbours, with something else at the edges."""
    draws = Draws(draw)
    table, back = draws.chance(50), draws.chance(30)
    own = (Sym("b"),) if table else ()
    dims = (*((DimDecl("b"),) if table else ()), DimDecl("n"), DimDecl("t"))
    spans = (*((Span("b"),) if table else ()), Span("n", 1), Span("t"))
    inputs = (InputDecl("x", (), (*spans[:-2], Span("t")), "int32"),)
    row = add(Sym("n"), 1) if back else Sym("n")

    def near(name: str) -> Expr:
        """A neighbour: shifted with an edge, clamped, or none."""
        shift = draws.pick([-1, 1, -2, 0, 2])
        step = add(T, shift)
        if draws.chance(30):
            step = Extremum("max", Int(0), Extremum("min", add(Sym("T"), -1), step))
        value: Expr = Read(Name(name), (*own, row, step))
        edge = draws.pick([Literal(draws.number(0, 2)), Read(Name(name), (*own, row, T))])
        for inside in (Compare(">=", step, Int(0)), Compare("<", step, Sym("T"))):
            value = Choose(inside, value, edge, ())
        return value

    made: Expr = near("y")
    for _ in range(draws.number(1, 3)):
        made = Apply(draws.pick(["+", "-", "maximum"]), (made, near("y")))
    made = Apply("%", (made, Literal(7)))
    first, following = (Sym("N"), Sym("n")) if back else (Int(0), add(Sym("n"), 1))
    pieces = (Piece((*own, first, T), Name("x")), Piece((*own, following, T), made))
    y = RecurrentDecl("y", (), spans, "int32", pieces)
    last = Read(Name("y"), (*own, Int(0) if back else Sym("N"), T))
    whole = ("y", Name("y")) if draws.chance(50) else ("last", last)
    bounds = (("N", draws.pick([3, 0, 1, 2])), ("T", draws.pick([4, 1, 2, 3, 9])), *((("B", 2),) if table else ()))
    return Program(dims, inputs, (y,), (), (whole,), bounds, draws.number(0, 3))


@st.composite
def crossed(draw: Callable[[Any], Any]) -> Program:
    """A table whose cells are made of neighbours in both dims, each walked up or down, with other edges."""
    draws = Draws(draw)
    up, right = draws.chance(50), draws.chance(50)
    N = Sym("n")
    inputs = (InputDecl("x", (), (Span("n"), Span("t")), "float32"),)

    def near(rows: int, columns: int) -> Expr:
        row, column = add(N, rows if up else -rows), add(T, columns if right else -columns)
        value: Expr = Read(Name("y"), (row, column))
        for inside in (Compare(">=", row, Int(0)), Compare("<", row, Sym("N"))):
            value = Choose(inside, value, Literal(0.5), ())
        for inside in (Compare(">=", column, Int(0)), Compare("<", column, Sym("T"))):
            value = Choose(inside, value, Literal(0.25), ())
        return value

    made: Expr = Apply("tanh", (Apply("+", (near(1, 0), near(0, 1))),))
    for _ in range(draws.number(0, 2)):
        other = near(*draws.pick([(1, 1), (1, -1), (2, 1), (0, 2)]))
        made = Apply(draws.pick(["+", "*", "maximum"]), (made, other))
    made = Apply("tanh", (Apply("+", (made, Name("x"))),))
    y = RecurrentDecl("y", (), (Span("n"), Span("t")), "float32", (Piece((N, T), made),))
    bounds = (("N", draws.pick([3, 1, 2, 5])), ("T", draws.pick([4, 1, 2, 6])))
    outputs = (("y", Name("y")),)
    return Program((DimDecl("n"), DimDecl("t")), inputs, (y,), (), outputs, bounds, draws.number(0, 3))


@st.composite
def resumed(draw: Callable[[Any], Any]) -> Program:
    """Iterations that begin where the one before has ended, or somewhere on its way."""
    draws = Draws(draw)
    i = Sym("i")
    at: Index = draws.pick([Sym("T"), Arith("//", Sym("T"), Int(2))])
    end = Read(Name("y"), (i, at))
    inputs = (InputDecl("x", (), (Span("i"), Span("t")), "int32"),)
    step = Apply("%", (Apply("+", (Apply("*", (Name("y"), Literal(3))), Name("x"))), Literal(11)))
    pieces = (
        Piece((Int(0), Int(0)), Literal(draws.number(0, 3))),
        Piece((add(i, 1), Int(0)), Apply("+", (end, Literal(1))) if draws.chance(30) else end),
        Piece((i, add(T, 1)), step),
    )
    y = RecurrentDecl("y", (), (Span("i"), Span("t", 1)), "int32", pieces)
    outputs = (("ends", end), ("last", Read(Name("y"), (i, Sym("T")))))
    bounds = (("I", draws.pick([3, 1, 2, 4])), ("T", draws.pick([4, 0, 1, 3])))
    return Program((DimDecl("i"), DimDecl("t")), inputs, (y,), (), outputs, bounds, draws.number(0, 3))


@st.composite
def attended(draw: Callable[[Any], Any]) -> Program:
    """Rows of weights for the steps before, after, or all, and what they sum up: with gradients, values of pairs.

    Steps may come back to front, and two ranges of them side by side; in place of a sum there may be a product.
    """
    draws = Draws(draw)
    inputs = (InputDecl("x", (), (Span("t"),), "float32"), InputDecl("z", (), (Span("t"),), "float32"))
    ranges = [Slice(Int(0), add(T, 1)), Slice(T, Sym("T")), Slice(), Slice(Int(0), T)]
    seen = [draws.pick(ranges) for _ in range(2 if draws.chance(30) else 1)]

    def steps(name: str) -> Expr:
        """What is seen of an input."""
        parts: list[Expr] = [Read(Name(name), (part,)) for part in seen]
        parts = [Apply("flip", (part,), (0,)) if draws.chance(20) else part for part in parts]
        return parts[0] if len(parts) == 1 else Apply("concat", tuple(parts), (0,))

    def row(depth: int) -> Expr:
        """A value for each step that is seen."""
        if depth == 0:
            return Apply(draws.pick(["*", "-"]), (steps(draws.pick(["x", "z"])), Name("x")))
        kind = draws.number(0, 2)
        if kind == 0:
            return Apply(draws.pick(["tanh", "sigmoid", "square"]), (row(depth - 1),))
        if kind == 1:
            return Apply(draws.pick(["+", "*"]), (row(depth - 1), row(depth - 1)))
        return Apply("softmax", (row(depth - 1),), (0,))

    values = Apply("*", (row(draws.number(1, 2)), steps("z")))
    whole = draws.pick(["sum", "sum", "sum", "prod"])
    outputs: tuple[tuple[str, Expr], ...] = (("y", Apply(whole, (values,), (0,))),)
    return Program((DimDecl("t"),), inputs, (), (), outputs, (("T", draws.pick([4, 1, 2, 3])),), draws.number(0, 3))


@st.composite
def recalled(draw: Callable[[Any], Any]) -> Program:
    """A state that at each step looks at all that it was before, in another way than any running result can."""
    draws = Draws(draw)
    shape = draws.pick([(2,), ()])
    more = draws.number(0, 1)
    begin, step = Int(draws.pick([0, 0, 1])), draws.pick([1, 1, 2])
    seen, own = Read(Name("h"), (Slice(begin, add(T, step)),)), Read(Name("h"), (add(T, step - 1),))
    apart = Apply(draws.pick(["*", "-"]), (seen, own))
    kind = draws.number(0, 3)
    if kind == 0:
        found: Expr = Apply("sum", (Apply("*", (Apply("softmax", (apart,), (0,)), seen)),), (0,))
    elif kind == 1:
        found = Apply(draws.pick(["sum", "max"]), (Apply(draws.pick(["tanh", "abs"]), (apart,)),), (0,))
    else:
        found = Apply(draws.pick(["sum", "prod"]), (Apply("sigmoid", (Apply("+", (apart, Name("x"))),)),), (0,))
    # With a step of the input beside it, or of the state itself.
    inputs = [InputDecl("x", shape, (), "float32")]
    if draws.chance(30):
        inputs.append(InputDecl("z", shape, (Span("t"),), "float32"))
        found = Apply("+", (found, Name("z")))
    found = Apply("tanh", (Apply("+", (found, own)) if draws.chance(40) else found,))
    first = tuple(Piece((Int(place),), Name("x")) for place in range(step))
    h = RecurrentDecl("h", shape, (Span("t", more),), "float32", (*first, Piece((add(T, step),), found)))
    last = Read(Name("h"), (add(Sym("T"), more - 1),))
    outputs: tuple[tuple[str, Expr], ...] = (("h", Name("h")),)
    if more and step == 1 and draws.chance(50):
        outputs = (("last", last),)
    bounds = (("T", draws.pick([4, 2, 3, 5, 9])),)
    return Program((DimDecl("t"),), tuple(inputs), (h,), (), outputs, bounds, draws.number(0, 3))


@st.composite
def aligned(draw: Callable[[Any], Any]) -> Program:
    """A table over two dims, or three, each cell of which reads neighbours along both, either way."""
    draws = Draws(draw)
    batched = draws.chance(30)
    own = (B,) if batched else ()
    spans = (*((Span("b"),) if batched else ()), Span("n"), Span("t"))
    dims = (*((DimDecl("b"),) if batched else ()), DimDecl("n"), DimDecl("t"))
    inputs = (InputDecl("x", (), (Span("t"),), "int32"), InputDecl("z", (), (Span("n"),), "int32"))
    down, right = draws.pick([-1, 1, -1]), draws.pick([-1, 1, -1])

    def neighbour(rows: int, columns: int) -> Expr:
        """A cell elsewhere, and beyond the edges something else."""
        row, column = add(Sym("n"), rows), add(T, columns)
        value: Expr = Read(Name("c"), (*own, row, column))
        edge = draws.pick([Literal(draws.number(0, 2)), Name("x"), Name("z")])
        needed = (Compare("<", row, Sym("N")), Compare("<", column, Sym("T")))
        for inside in (*needed, Compare(">=", row, Int(0)), Compare(">=", column, Int(0))):
            value = Choose(inside, value, edge, ())
        return value

    # Along the row, from the row before, and perhaps from further: the column ahead of it makes rows worth more.
    further = [(down, right), (2 * down, 0), (0, 2 * right), (down, -right), (down, 2 * right)]
    reads = [(0, right), (down, 0), *(draws.pick(further) for _ in range(draws.number(0, 2)))]
    made: Expr = Apply(draws.pick(["*", "-"]), (Name("x"), Name("z")))
    for read in reads:
        made = Apply(draws.pick(["+", "-", "maximum"]), (made, neighbour(*read)))
    c = RecurrentDecl("c", (), spans, "int32", (Piece(None, Apply("%", (made, Literal(7)))),))
    outputs: list[tuple[str, Expr]] = [("c", Name("c"))] if draws.chance(40) else []
    if draws.chance(40):
        along = draws.pick(["n", "t"])
        outputs.append(("sums", Apply("sum", (Read(Name("c"), (Slice(),), (along,)),), (0,))))
    if not outputs or draws.chance(50):
        outputs.append(("d", Apply("+", (Name("c"), Name("z")))))
    sizes = (("N", draws.pick([3, 1, 2, 4])), ("T", draws.pick([4, 1, 2, 5])), *((("B", 2),) if batched else ()))
    return Program(dims, inputs, (c,), (), tuple(outputs), sizes, draws.number(0, 3))


@st.composite
def running(draw: Callable[[Any], Any]) -> Program:
    """What steps so far, before, or from here on, have together.

    Where the greatest of few values is, the greatest itself where all are below zero, sums about a centre, sums of
    elements over what the reader has, and what a recurrence is in all but its first or last steps.
    """
    draws = Draws(draw)
    if draws.chance(30):
        return _total(draws)
    whole = draws.chance(50)
    dtype = "int32" if whole else "float32"
    inputs = [InputDecl("x", (), (Span("t"),), dtype)]
    seen = Read(Name("x"), (draws.pick([Slice(Int(0), add(T, 1)), Slice(T, Sym("T"))]),))
    few = Apply("%", (seen, Literal(3)))  # many are equal
    if whole and draws.chance(50):
        found: Expr = Apply(draws.pick(["argmax", "argmin"]), (few,), (0,))
    elif whole:
        part = draws.pick([Slice(Int(0), T), Slice(add(T, 1), Sym("T")), Slice(Int(0), add(T, 1))])
        below = Apply("-", (Apply("%", (Read(Name("x"), (part,)), Literal(3))), Literal(5)))
        found = Apply(draws.pick(["max", "min", "prod", "sum"]), (below,), (0,))
    elif draws.chance(30):
        inputs += [InputDecl("z", (), (Span("t"),), dtype)]
        own = Apply("+", (Apply("*", (Name("z"), Name("z"))), Literal(1)))
        found = Apply("sum", (Apply(draws.pick(["/", "*"]), (seen, own)),), (0,))
    else:
        centre = draws.pick([Apply("mean", (seen,), (0,)), Apply("max", (seen,), (0,)), Name("z"), Name("x")])
        inputs += [InputDecl("z", (), (Span("t"),), dtype)] if centre == Name("z") else []
        apart = Apply("-", (seen, centre) if draws.chance(70) else (centre, seen))
        apart = apart if draws.chance(40) else Apply("*", (apart, apart))
        found = Apply("sum", (apart,), (0,))
    outputs: tuple[tuple[str, Expr], ...] = (("y", found),)
    bounds = (("T", draws.pick([4, 1, 2, 3, 9])),)
    return Program((DimDecl("t"),), tuple(inputs), (), (), outputs, bounds, draws.number(0, 3))


def _total(draws: Draws) -> Program:
    """A reduction of most steps of a recurrence, of which there may be too few."""
    forwards, left_out = draws.chance(60), Int(draws.pick([1, 2, 3]))
    last = Arith("-", Sym("T"), Int(1))
    begin, further = (Int(0), add(T, 1)) if forwards else (last, Arith("-", T, Int(1)))
    other = draws.pick([Name("x"), Literal(0.5)])
    step = Apply("tanh", (Apply(draws.pick(["*", "*", "+", "-"]), (Name("y"), other)),))
    pieces = (Piece((begin,), Read(Name("x"), (begin,))), Piece((further,), step))
    y = RecurrentDecl("y", (), (Span("t"),), "float32", pieces)
    part = Slice(left_out, Sym("T")) if draws.chance(60) else Slice(Int(0), Arith("-", Sym("T"), left_out))
    total = Apply(draws.pick(["sum", "max", "min", "prod"]), (Read(Name("y"), (part,)),), (0,))
    inputs = (InputDecl("x", (), (Span("t"),), "float32"),)
    bounds = (("T", draws.pick([4, 1, 2, 3, 9])),)
    return Program((DimDecl("t"),), inputs, (y,), (), (("total", total),), bounds, draws.number(0, 3))


@st.composite
def picked(draw: Callable[[Any], Any]) -> Program:
    """Steps so far, of which data pick one at each step: of an input, or of the recurrence itself."""
    draws = Draws(draw)
    inputs = (InputDecl("x", (), (Span("t"),), "float32"), InputDecl("k", (), (Span("t"),), "int32"))
    own = draws.chance(50)
    so_far = Read(Name("y" if own else "x"), (Slice(Int(0), add(T, 1)),))
    chosen: Expr = Apply("take", (so_far, Apply("abs", (Name("k"),))), (0,))
    chosen = Apply(draws.pick(["*", "+", "-"]), (chosen, Name("x")))
    if not own:
        outputs: tuple[tuple[str, Expr], ...] = (("y", chosen),)
        return Program((DimDecl("t"),), inputs, (), (), outputs, (("T", draws.pick([4, 2, 5])),), draws.number(0, 3))
    pieces = (Piece((Int(0),), Read(Name("x"), (Int(0),))), Piece((add(T, 1),), Apply("tanh", (chosen,))))
    y = RecurrentDecl("y", (), (Span("t"),), "float32", pieces)
    outputs = (("y", Name("y")),)
    return Program((DimDecl("t"),), inputs, (y,), (), outputs, (("T", draws.pick([4, 2, 5])),), draws.number(0, 3))


@st.composite
def divided(draw: Callable[[Any], Any]) -> Program:
    """Steps at quotients and remainders of others, alone and inside of sums, which gradients have to solve for."""
    draws = Draws(draw)
    dims = (DimDecl("n"), DimDecl("t"))
    inputs = (InputDecl("x", (), (Span("t"),), "float32"), InputDecl("z", (), (Span("n"),), "float32"))

    def step() -> Index:
        by = Int(draws.pick([2, 3, 4]))
        found: Index = Arith(draws.pick(["//", "//", "%"]), add(T, draws.pick([0, 0, 1, 3])), by)
        if draws.chance(40):
            found = Arith("+", found, draws.pick([Sym("n"), Arith("//", Sym("n"), Int(2)), Int(1)]))
        if draws.chance(30):
            found = Arith("-", T, found)
        return found

    made: Expr = Name("z")
    for _ in range(draws.number(1, 2)):
        at = step()
        value: Expr = Read(Name("x"), (at,))
        for inside in (Compare(">=", at, Int(0)), Compare("<", at, Sym("T"))):
            value = Choose(inside, value, Literal(0.5), ())
        made = Apply(draws.pick(["*", "+", "-"]), (made, value))
    sizes = (("N", draws.pick([2, 1, 3])), ("T", draws.pick([5, 1, 3, 7])))
    return Program(dims, inputs, (), (), (("y", made),), sizes, draws.number(0, 3))
