"""Random expressions of a wanted dtype and shape, legal by construction wherever their scope holds.

In the integer lane everything is int32 or bool and may wrap. In the float lane values stay small, and decisions
(comparisons, sorting, positions of extrema) are made on integers only, so that rounding cannot flip them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fuzz.dims import dims_of
from tests.fuzz.dynamic import Dynamic
from tests.fuzz.program import (
    Apply,
    Arith,
    Array,
    Axes,
    Choose,
    Compare,
    Condition,
    DimDecl,
    Expr,
    Index,
    Int,
    Literal,
    Logic,
    Not,
    Program,
    Read,
    Span,
    Sym,
    Value,
    add,
)
from tests.fuzz.reads import Position, Tensor, chained, zero
from tests.fuzz.scope import Scope

Shape = tuple[int, ...]


class Expressions(Dynamic):
    """Draws expressions over the tensors known so far."""

    def __init__(self, draw: Callable[[Any], Any], lane: str, dims: tuple[DimDecl, ...]) -> None:
        super().__init__(draw)
        self.lane, self.dims = lane, dims
        self.main = "int32" if lane == "int" else "float32"
        self.tensors: list[Tensor] = []
        self.position: Position | None = None
        self.budget = 0

    def natural(self, dims: tuple[str, ...]) -> Scope:
        """The scope of an expression over some dims, nothing else known."""
        return Scope(tuple(d.bound for d in self.dims), tuple(Span(d) for d in dims))

    # ---- expressions

    def expr(self, scope: Scope, dtype: str, shape: Shape, depth: int) -> Expr:
        """An expression of exactly this dtype and shape."""
        self.budget -= 1
        if depth <= 0 or self.budget <= 0:
            return self.leaf(scope, dtype, shape)
        if dtype == "bool":
            return self.boolean(scope, shape, depth)
        kinds = [self.leaf_of, self.binary, self.dynamic, self.unary, self.choice, self.dynamic, self.binary]
        kinds += [self.data_where, self.arranged, self.static_reduction, self.inline, self.conversion]
        return self.pick(kinds)(scope, dtype, shape, depth)

    def leaf_of(self, scope: Scope, dtype: str, shape: Shape, depth: int) -> Expr:
        return self.leaf(scope, dtype, shape)

    def leaf(self, scope: Scope, dtype: str, shape: Shape) -> Expr:
        """A read of a tensor of the right type, or a constant."""
        fitting = [t for t in self.readable() if t.dtype == dtype and t.shape == shape]
        if not fitting or self.chance(10):
            return self.constant(scope, dtype, shape)
        return self.point_read(scope, self.pick(fitting))

    def readable(self) -> list[Tensor]:
        """The tensors known here; those of the recursion twice, so that they are not lost among the others."""
        group = self.position.tensor.group if self.position else None
        own = [t for t in self.tensors if t.group is not None and t.group == group]
        others = [t for t in self.tensors if t not in own]
        return [*own, *own, *others]

    def point_read(self, scope: Scope, tensor: Tensor) -> Expr:
        access = self.access(scope, tensor, 0, self.position)
        own = self.position is not None and tensor.group is not None and tensor.group == self.position.tensor.group
        program = self.sketch()
        over = [d for d in dims_of(access.expr, program) if d in scope.dims]
        if isinstance(access.expr, Read) and not own and over and self.chance(15):
            expr, needs = chained(self, scope, access, self.pick(over))
            return self.guarded(scope, expr, needs, zero(tensor.shape, tensor.dtype, 1), tensor.shape)
        return self.guarded(scope, access.expr, access.needs, zero(tensor.shape, tensor.dtype, 1), tensor.shape)

    def constant(self, scope: Scope, dtype: str, shape: Shape) -> Expr:
        if shape or dtype == "bool" or self.chance(30):
            return Array(self._values(dtype, shape), dtype)
        if scope.dims and self.chance(60):
            value = Value(self.small_index(scope))
            return value if dtype == "int32" else Apply("*", (value, Literal(0.25)))
        return Array(self._values(dtype, shape), dtype)

    def _values(self, dtype: str, shape: Shape) -> Any:
        if shape:
            return tuple(self._values(dtype, shape[1:]) for _ in range(shape[0]))
        if dtype == "bool":
            return self.chance(50)
        number = self.number(-3, 3)
        return number if dtype == "int32" else number * 0.5

    def small_index(self, scope: Scope) -> Index:
        symbols: list[Index] = [Sym(d) for d in scope.dims]
        symbol = self.pick(symbols)
        k = Int(self.number(1, 3))
        return self.pick(
            [
                symbol,
                Arith("+", symbol, k),
                Arith("*", symbol, k),
                Arith("%", symbol, Int(k.value + 1)),
                Arith("+", symbol, self.pick(symbols)),
            ]
        )

    def scalar(self, dtype: str) -> Expr:
        number = self.number(-3, 3)
        return Literal(number) if dtype != "float32" else Literal(number * 0.5)

    def binary(self, scope: Scope, dtype: str, shape: Shape, depth: int) -> Expr:
        left = self.expr(scope, dtype, shape, depth - 1)
        narrow: Shape = () if shape and self.chance(30) else shape
        right = self.scalar(dtype) if self.chance(25) else self.expr(scope, dtype, narrow, depth - 1)
        if isinstance(left, Literal):
            left, right = self.expr(scope, dtype, shape, 0), left
        ops = ["+", "-", "*", "minimum", "maximum"]
        if dtype == "int32":
            ops += ["&", "|", "^"]
            if self.chance(15):
                return Apply(self.pick(["//", "%"]), (left, Literal(self.number(1, 4))))
        elif self.chance(15):
            return Apply(
                "/",
                (
                    left,
                    Apply("+", (Apply("square", (right if not isinstance(right, Literal) else left,)), Literal(1.0))),
                ),
            )
        op = self.pick(ops)
        if self.chance(30) and not isinstance(right, Literal):
            left, right = right, left
        return self.squashed(Apply(op, (left, right)), dtype) if op == "*" else Apply(op, (left, right))

    def squashed(self, expr: Expr, dtype: str) -> Expr:
        """Floats are kept small, so that errors are too."""
        return expr if dtype != "float32" else Apply("clip", (expr,), (-8.0, 8.0))

    def unary(self, scope: Scope, dtype: str, shape: Shape, depth: int) -> Expr:
        inner = self.expr(scope, dtype, shape, depth - 1)
        if isinstance(inner, Literal):
            return inner
        if dtype == "int32":
            op = self.pick(["neg", "abs", "sign", "square", "relu", "invert", "clip"])
            return Apply(op, (inner,), (-2, 3)) if op == "clip" else Apply(op, (inner,))
        op = self.pick(["neg", "tanh", "sin", "cos", "sigmoid", "abs", "relu", "exp"])
        op = self.pick(["atan", "softsign", "elu", "mish", "log_sigmoid", "lgamma"]) if self.chance(25) else op
        if op == "lgamma":
            return Apply("lgamma", (Apply("clip", (inner,), (0.5, 4.0)),))
        return Apply("exp", (Apply("clip", (inner,), (-3.0, 2.0)),)) if op == "exp" else Apply(op, (inner,))

    def condition(self, scope: Scope) -> Condition:
        """A condition on the indices of the scope."""
        symbols: list[Index] = [Sym(d) for d in scope.dims]
        bounds: list[Index] = [Sym(b) for b in scope.bounds]
        k = self.number(0, 3)
        if not symbols:
            return Compare(self.pick([">", "<=", "=="]), self.pick(bounds), Int(k))
        symbol = self.pick(symbols)
        own_bound = Sym(symbol.name.upper())
        simple = [
            Compare(">", symbol, Int(k)),
            Compare("<", symbol, add(own_bound, -k)),
            Compare("==", Arith("%", symbol, Int(2)), Int(k % 2)),
            Compare("==", symbol, Int(k)),
            Compare("!=", symbol, add(own_bound, -1)),
            Compare("<=", Arith("*", symbol, Int(2)), own_bound),
        ]
        if len(symbols) > 1:
            simple += [Compare(self.pick(["<", "<=", "=="]), symbols[0], symbols[1])] * 2
        chosen = self.pick(simple)
        if self.chance(15):
            return Not(chosen)
        return Logic(self.pick(["&", "|"]), chosen, self.pick(simple)) if self.chance(20) else chosen

    def choice(self, scope: Scope, dtype: str, shape: Shape, depth: int) -> Expr:
        """`pr.where` with an index condition, which each branch may rely on."""
        condition = self.condition(scope)
        first = self.expr(scope.given(condition), dtype, shape, depth - 1)
        second = (
            zero(shape, dtype, 2)
            if self.chance(25)
            else self.expr(scope.given(Not(condition)), dtype, shape, depth - 1)
        )
        return Choose(condition, first, second, shape)

    def boolean(self, scope: Scope, shape: Shape, depth: int) -> Expr:
        kind = self.number(0, 4)
        if kind <= 1:
            left, right = (self.expr(scope, "int32", shape, depth - 1) for _ in range(2))
            return Apply(self.pick(["<", "<=", ">", ">=", "==", "!="]), (left, right))
        if kind == 2:
            return Apply(self.pick(["&", "|", "^"]), tuple(self.boolean(scope, shape, depth - 1) for _ in range(2)))
        if kind == 3 and not shape and scope.dims:
            return Value(self.condition(scope))
        return Apply(">", (self.leaf(scope, "int32", shape), Array(self.number(-2, 2), "int32")))

    def data_where(self, scope: Scope, dtype: str, shape: Shape, depth: int) -> Expr:
        condition = self.boolean(scope, () if self.chance(40) else shape, depth - 1)
        first = self.expr(scope, dtype, shape, depth - 1)
        second = self.expr(scope, dtype, shape, depth - 1) if not self.chance(30) else zero(shape, dtype, 1)
        return Apply("where", (condition, first, second))

    def conversion(self, scope: Scope, dtype: str, shape: Shape, depth: int) -> Expr:
        """A cast from another type."""
        if dtype == "float32":
            whole = self.strong(self.expr(scope, "int32", shape, depth - 1), shape)
            return Apply("cast", (Apply("clip", (whole,), (-4, 4)),), ("float32",))
        kind = self.pick(["bool", "int8", "int64"])
        if kind == "bool":
            return Apply("cast", (self.boolean(scope, shape, depth - 1),), ("int32",))
        inner = self.strong(self.expr(scope, "int32", shape, depth - 1), shape)
        narrow = Apply("cast", (inner,), (kind,))
        if kind == "int8" and self.chance(40):
            return Apply("+", (narrow, self.expr(scope, "int32", shape, 0)))
        return Apply("cast", (narrow,), ("int32",))

    def strong(self, expr: Expr, shape: Shape) -> Expr:
        """Not a bare Python scalar, which has no methods."""
        return Array(expr.value, "int32") if isinstance(expr, Literal) else expr

    def static_reduction(self, scope: Scope, dtype: str, shape: Shape, depth: int) -> Expr:
        """Over an axis of fixed length."""
        inner = self.expr(scope, dtype, (2, *shape), depth - 1)
        ops = ["sum", "max", "min"] if dtype == "float32" else ["sum", "max", "min", "prod"]
        if len(shape) == 0 and self.chance(40):
            return Apply("@", (inner, self.expr(scope, dtype, (2,), depth - 1)))
        return self.squashed(Apply(self.pick(ops), (inner,), (0,)), dtype)

    def arranged(self, scope: Scope, dtype: str, shape: Shape, depth: int) -> Expr:
        """Rearrangements of static axes."""
        inner = self.expr
        if not shape:
            kind = self.number(0, 3)
            if kind == 0:
                return Axes(inner(scope, dtype, (2,), depth - 1), (self.number(-2, 1),))
            if kind == 1:
                return Axes(inner(scope, dtype, (2, 2), depth - 1), ("...", 1, 0))
            if kind == 2:
                digit = Apply("%", (self.strong(inner(scope, "int32", (), depth - 1), ()), Literal(3)))
                hot = Apply("one_hot", (digit,), (3, dtype))
                return Apply("sum", (Apply("*", (hot, Array(self._values(dtype, (3,)), dtype))),), (0,))
            place = Apply("%", (self.strong(inner(scope, "int32", (), depth - 1), ()), Literal(3)))
            return Apply("take", (Array(self._values(dtype, (3,)), dtype), place), (0,))
        if len(shape) >= 2:
            turned = tuple(reversed(range(len(shape))))
            return Apply("transpose", (inner(scope, dtype, shape[::-1], depth - 1),), (turned,))
        kind = self.number(0, 5)
        n = shape[0]
        if kind == 0:
            return Apply("stack", tuple(inner(scope, dtype, (), depth - 1) for _ in range(n)), (0,))
        if kind == 1:
            return Apply("concat", tuple(inner(scope, dtype, (1,), depth - 1) for _ in range(n)), (0,))
        if kind == 2:
            return Apply("flip", (inner(scope, dtype, shape, depth - 1),), (0,))
        if kind == 3:
            return Axes(Apply("pad", (inner(scope, dtype, shape, depth - 1),), ((1, 1),)), ((1, n + 1, None),))
        if kind == 4:
            return Apply("reshape", (inner(scope, dtype, (1, n), depth - 1),), ((n,),))
        return Axes(inner(scope, dtype, (2, n), depth - 1), (self.number(0, 1), (None, None, -1)))

    def inline(self, scope: Scope, dtype: str, shape: Shape, depth: int) -> Expr:
        """An expression indexed like a tensor: `(x + y)[t - 1]`."""
        if not scope.dims:
            return self.leaf(scope, dtype, shape)
        position, self.position = self.position, None
        group = position.tensor.group if position else None
        tensors = self.tensors
        # Inside, the steps are not those of the definition, so the recursion itself cannot be read.
        self.tensors = [t for t in tensors if t.group is None or t.group != group]
        inner = self.over_all(self.expr(self.natural(scope.dims), dtype, shape, depth - 1), scope, dtype)
        over = dims_of(inner, self.sketch())
        self.position, self.tensors = position, tensors
        if not over or isinstance(inner, (Literal, Array)):
            return inner
        dim = self.pick(over)
        point = self.point(scope, Span(dim), Sym(dim) if dim in scope.dims else None)
        needs = [Compare(">=", point, Int(0)), Compare("<", point, Sym(dim.upper()))]
        # Along its other dims it stands at the current step, which may be beyond those that were assumed inside.
        needs += [
            Compare("<", Sym(other), Sym(other.upper())) for other in over if other != dim and other in scope.dims
        ]
        return self.guarded(scope, Read(inner, (point,), (dim,)), needs, zero(shape, dtype, 1), shape)

    def over_all(self, value: Expr, scope: Scope, dtype: str) -> Expr:
        """The expression made to vary along every dim of its scope, on whose being there its reads may rely."""
        for dim in scope.dims:
            if dim not in dims_of(value, self.sketch()):
                nothing = Apply("*", (Value(Sym(dim)), Literal(0 if dtype == "int32" else 0.0)))
                value = Apply("+", (value, nothing))
        return value

    def sketch(self) -> Program:
        """The declarations so far, for asking after dims."""
        raise NotImplementedError
