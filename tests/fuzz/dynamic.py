"""Random expressions over axes of symbolic length: a range of steps, some work along the axis, and a reduction."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.fuzz.program import Apply, Array, Axes, Compare, Condition, Expr, Literal, Sym
from tests.fuzz.reads import Access, Position, Reader, Tensor, zero
from tests.fuzz.scope import Scope

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Rows:
    """A value whose first axis has symbolic length; `filled` is the condition that it is not empty, where known."""

    expr: Expr
    needs: tuple[Condition, ...]
    filled: Condition | None
    maybe_empty: bool = True


class Dynamic(Reader):
    """Draws reductions over dynamic axes. The tensors and the lane come from the class below."""

    lane: str
    tensors: list[Tensor]
    position: Position | None

    def readable(self) -> list[Tensor]:
        raise NotImplementedError

    def expr(self, scope: Scope, dtype: str, shape: Shape, depth: int) -> Expr:
        raise NotImplementedError

    def squashed(self, expr: Expr, dtype: str) -> Expr:
        raise NotImplementedError

    def dynamic(self, scope: Scope, dtype: str, shape: Shape, depth: int) -> Expr:
        """An expression of static shape that reduces over steps."""
        fitting = [t for t in self.readable() if t.dtype == dtype and t.shape == shape and t.spans]
        if not fitting:
            return self.from_other(scope, dtype, shape, depth)
        tensor = self.pick(fitting)
        if len(tensor.spans) > 1 and not shape and self.chance(25):
            return self.two_axes(scope, tensor, dtype)
        if dtype == "int32" and not shape and self.chance(20):
            return self.position_of(scope, dtype)
        rows, access = self.rows(scope, tensor)
        if not shape and self.chance(20):
            paired = self.paired(scope, tensor, rows, access)
            if paired is not None:
                return self.finish(scope, Apply("@", paired[:2]), paired[2], dtype, shape)
        if 1 <= len(shape) <= 2 and self.chance(30):
            return self.attended(scope, tensor, rows, access, depth)
        rows = self.worked(scope, rows, tensor, depth)
        return self.reduced(scope, rows, dtype, shape)

    def attended(self, scope: Scope, tensor: Tensor, rows: Rows, access: Access, depth: int) -> Expr:
        """Steps weighed by what they have to do with a value: a product over their axes, then one over the steps.

        With two axes the first is that of a batch.
        """
        paired = self.paired(scope, tensor, rows, access) if self.chance(50) else None
        values, needs = (rows.expr, rows.needs) if paired is None else paired[1:]
        query = self.expr(scope, tensor.dtype, tensor.shape, min(depth - 1, 1))
        score, mix = ("na,a->n", "n,na->a") if len(tensor.shape) == 1 else ("nab,ab->an", "an,nab->ab")
        weights = Apply("einsum", (rows.expr, query), (score,))
        if tensor.dtype == "float32" and self.chance(50):
            weights = Apply("softmax", (weights,), (len(tensor.shape) - 1,))
        mixed = Apply("einsum", (weights, values), (mix,))
        return self.finish(scope, mixed, needs, tensor.dtype, tensor.shape)

    def rows(self, scope: Scope, tensor: Tensor) -> tuple[Rows, Access]:
        """A range of steps of a tensor."""
        own = self.position is not None and tensor.group is not None and tensor.group == self.position.tensor.group
        dim = tensor.spans[0].dim
        if not own and len(tensor.spans) == 1 and dim in scope.dims and self.chance(25):
            needs = (Compare("<", Sym(dim), tensor.spans[0].extent),)
            window = Access(self.window(tensor, dim), needs)
            return Rows(window.expr, needs, None, maybe_empty=False), window
        access = self.access(scope, tensor, 1, self.position)
        return Rows(access.expr, access.needs, access.filled), access

    def paired(
        self, scope: Scope, tensor: Tensor, rows: Rows, access: Access
    ) -> tuple[Expr, Expr, tuple[Condition, ...]] | None:
        """The same range of another tensor."""
        if not access.slices:
            return None
        dim, steps = access.slices[0]
        group = self.position.tensor.group if self.position else None
        others = [
            t
            for t in self.tensors
            if t.dtype == tensor.dtype
            and t.shape == tensor.shape
            and any(s.dim == dim for s in t.spans)
            and (t.group is None or t.group != group)
            and _same_extent(t, tensor, dim)
        ]
        if not others:
            return None
        other = self.access(scope, self.pick(others), 1, None, same=(dim, steps))
        return rows.expr, other.expr, (*rows.needs, *other.needs)

    def worked(self, scope: Scope, rows: Rows, tensor: Tensor, depth: int) -> Rows:
        """Some operations that keep the axis."""
        for _ in range(self.number(0, 2)):
            rows = self.step(scope, rows, tensor, depth)
        return rows

    def step(self, scope: Scope, rows: Rows, tensor: Tensor, depth: int) -> Rows:
        x, dtype = rows.expr, tensor.dtype
        whole = dtype != "float32"
        kind = self.pick(
            ["plus", "cumsum", "flip", "stride", "concat", "pad", "tail", "times", "order", "mask", "squash", "put"]
        )
        if kind == "put":
            places = tuple(self.number(0, 3) for _ in range(self.number(1, 3)))
            return replace(
                rows, expr=Apply("put", (x,), (self.pick(["set", "add", "max"]), places, 2 if whole else 0.5))
            )
        if not whole and kind in ("mask", "order"):
            return replace(rows, expr=self.squashed(Apply("spectrum", (x,)), dtype))

        if kind == "plus":
            return replace(rows, expr=Apply("+", (x, self.expr(scope, dtype, (), min(depth - 1, 1)))))
        if kind == "times":
            return replace(rows, expr=Apply("*", (x, Literal(2 if whole else 0.5))))
        if kind == "cumsum":
            return replace(
                rows, expr=Apply(self.pick(["cumsum", "cumprod", "cummax"] if whole else ["cumsum"]), (x,), (0,))
            )
        if kind == "flip":
            return replace(rows, expr=Apply("flip", (x,), (0,)))
        if kind == "stride":
            return replace(rows, expr=Axes(x, ((None, None, self.pick([2, -1, 3])),)))
        if kind == "tail":
            return Rows(
                Axes(x, (self.pick([(1, None, None), (None, 2, None), (-2, None, None), (None, -1, None)]),)),
                rows.needs,
                None,
            )
        if kind == "concat":
            more = Array(_nested((2, *tensor.shape), 1 if whole else 0.5), dtype)
            pair = (x, more) if self.chance(50) else (more, x)
            return Rows(Apply("concat", pair, (0,)), rows.needs, None, maybe_empty=False)
        if kind == "pad":
            width = ((1, 0), *((0, 0) for _ in tensor.shape))
            return Rows(Apply("pad", (x,), (width,)), rows.needs, None, maybe_empty=False)
        if whole and kind == "order":
            return replace(rows, expr=Apply("sort", (x,), (0,)))
        if whole and kind == "mask":
            return replace(rows, expr=Apply("where", (Apply(">", (x, Literal(0))), x, Literal(-1))))
        if whole:
            return replace(rows, expr=Apply("clip", (x,), (-3, 3)))
        return replace(rows, expr=Apply("softmax", (x,), (0,)) if kind == "squash" else Apply("tanh", (x,)))

    def reduced(self, scope: Scope, rows: Rows, dtype: str, shape: Shape) -> Expr:
        """The first axis reduced away."""
        x, needs = rows.expr, rows.needs
        if dtype == "float32" and len(shape) == 1 and self.chance(15):
            return self.finish(scope, Apply("ridge", (Apply("clip", (x,), (-2.0, 2.0)),)), needs, dtype, shape)
        if dtype == "float32" and self.chance(12):
            return self.centred(scope, rows, dtype, shape)
        if dtype == "float32":
            op = self.pick(["sum", "mean", "max", "logsumexp", "min"])
            if op != "sum":
                filled = self.filled(rows, needs)
                op, needs = ("sum", needs) if filled is None else (op, filled)
        else:
            op = self.pick(["sum", "max", "min", "prod", "any", "all"])
        if shape and self.chance(30) and op in ("sum", "max", "min"):
            axes = (*range(1, len(shape) + 1), 0)
            return self.finish(
                scope, Apply(op, (Apply("transpose", (x,), (axes,)),), (len(shape),)), needs, dtype, shape
            )
        if op in ("any", "all"):
            return self.finish(scope, Apply("cast", (Apply(op, (x,), (0,)),), ("int32",)), needs, dtype, shape)
        if len(shape) == 1 and op == "sum" and self.chance(30):
            return self.finish(
                scope,
                Apply("einsum", (x, Array(_nested(shape, 1 if dtype != "float32" else 1.0), dtype)), ("na,a->a",)),
                needs,
                dtype,
                shape,
            )
        return self.finish(scope, Apply(op, (x,), (0,)), needs, dtype, shape)

    def centred(self, scope: Scope, rows: Rows, dtype: str, shape: Shape) -> Expr:
        """A sum of differences from what all of them make together, or of their squares, as in a variance."""
        filled = self.filled(rows, rows.needs)
        x = Apply("clip", (rows.expr,), (-2.0, 2.0))
        centre = Apply("sum" if filled is None else self.pick(["mean", "max", "sum"]), (x,), (0,))
        pair = (x, centre) if self.chance(50) else (centre, x)
        apart = Apply("-", pair)
        weighted = apart if self.chance(40) else Apply("*", (apart, apart))
        return self.finish(
            scope, Apply("sum", (weighted,), (0,)), rows.needs if filled is None else filled, dtype, shape
        )

    def filled(self, rows: Rows, needs: tuple[Condition, ...]) -> tuple[Condition, ...] | None:
        """The conditions with the one that there is something to reduce; None if nobody knows."""
        if not rows.maybe_empty:
            return needs
        return None if rows.filled is None else (rows.filled, *needs)

    def finish(self, scope: Scope, expr: Expr, needs: tuple[Condition, ...], dtype: str, shape: Shape) -> Expr:
        return self.guarded(scope, self.squashed(expr, dtype), needs, zero(shape, dtype, 1), shape)

    def two_axes(self, scope: Scope, tensor: Tensor, dtype: str) -> Expr:
        """Ranges along two dims at once."""
        access = self.access(scope, tensor, 2, self.position)
        if len(access.slices) < 2:
            return self.finish(scope, Apply("sum", (access.expr,), (None,)), access.needs, dtype, ())
        kind = self.number(0, 2)
        x = access.expr
        if kind == 0:
            expr = Apply("sum", (x,), (None,))
        elif kind == 1:
            expr = Apply("sum", (Apply("sum", (x,), (1,)),), (0,))
        else:
            expr = Apply("sum", (Apply("cumsum", (Apply("transpose", (x,), ((1, 0),)),), (0,)),), (None,))
        return self.finish(scope, expr, access.needs, dtype, ())

    def position_of(self, scope: Scope, dtype: str) -> Expr:
        """Where the extremum of a range is, or the element there."""
        fitting = [t for t in self.readable() if t.dtype == "int32" and t.shape == () and t.spans]
        access = self.access(scope, self.pick(fitting), 1, self.position)
        if not access.slices or access.filled is None:
            return Array(1, "int32")
        found = Apply(self.pick(["argmax", "argmin"]), (access.expr,), (0,))
        expr: Expr = found if self.chance(50) else Apply("take", (access.expr, found), (0,))
        return self.finish(scope, expr, (access.filled, *access.needs), dtype, ())

    def from_other(self, scope: Scope, dtype: str, shape: Shape, depth: int) -> Expr:
        """No tensor of this type has steps: flatten one of another shape, or count."""
        wider = [
            t
            for t in self.readable()
            if t.dtype == dtype and len(t.shape) == len(shape) + 1 and t.shape[1:] == shape and t.spans
        ]
        if not wider:
            return self.expr(scope, dtype, shape, 0)
        access = self.access(scope, self.pick(wider), 1, self.position)
        flat = Apply("reshape", (access.expr,), ((-1, *shape),))
        return self.finish(scope, Apply("sum", (flat,), (0,)), access.needs, dtype, shape)


def _same_extent(a: Tensor, b: Tensor, dim: str) -> bool:
    """Default ends of a slice mean the extent, so the extents must agree for the lengths to."""
    return {s.more for s in a.spans if s.dim == dim} == {s.more for s in b.spans if s.dim == dim}


def _nested(shape: Shape, value: float) -> object:
    return tuple(_nested(shape[1:], value) for _ in range(shape[0])) if shape else value
