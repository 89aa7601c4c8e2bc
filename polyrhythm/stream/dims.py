"""Dims and shapes of streams: static, dynamic-regular and ragged, with absorption and exact totals.

A shape lists dims outermost first, `(D_N, ..., D_0)`; its rank is N. A *static* dim is a number known when the
program is built. A *dynamic-regular* dim is one data-dependent number. A *ragged* dim varies with the outer index;
any expression that contains a ragged dim is again a ragged dim of its own (absorption). A ragged dim carries the
`total` of its sizes over all outer indices, so cardinalities, and with them all traffic formulae, stay exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyrhythm.stream.expr import Expr, ExprLike, as_expr, ceil_div, concatenate, pick, positive, symbol, total


@dataclass(frozen=True)
class Dim:
    """One dim of a stream. `size` is meaningful for regular dims, `name` and `total` for ragged ones.

    >>> print(static(4), dynamic("n"), ragged("r", symbol("sum_r")))
    4 n r~
    """

    size: Expr
    name: str = ""
    total: Expr | None = None

    def __str__(self) -> str:
        return f"{self.name}~" if self.is_ragged else str(self.size)

    @property
    def is_static(self) -> bool:
        """Whether the size is a number known when the program is built.

        >>> static(3).is_static, dynamic("n").is_static
        (True, False)
        """
        return not self.is_ragged and self.size.constant is not None

    @property
    def is_ragged(self) -> bool:
        """Whether the size varies with the outer index.

        >>> ragged("r", 7).is_ragged
        True
        """
        return self.total is not None


Shape = tuple[Dim, ...]


def static(size: int) -> Dim:
    """A dim whose size is a number.

    >>> static(3).size.constant
    3
    """
    return Dim(as_expr(size))


def dynamic(size: str | ExprLike) -> Dim:
    """A dim with one data-dependent size; a constant expression gives a static dim.

    >>> dynamic(as_expr(4)) == static(4)
    True
    """
    return Dim(symbol(size) if isinstance(size, str) else as_expr(size))


def ragged(name: str, sum_of_sizes: ExprLike) -> Dim:
    """A dim whose size varies with the outer index; `sum_of_sizes` counts it over all outer indices.

    >>> print(cardinality((static(2), ragged("r", 9), static(3))))
    27
    """
    return Dim(symbol(f"max({name})"), name, as_expr(sum_of_sizes))


def cardinality(shape: Shape) -> Expr:
    """How many elements a stream of this shape carries.

    >>> print(cardinality((dynamic("n"), static(3))))
    3*n
    """
    count = as_expr(1)
    for dim in shape:
        count = dim.total if dim.total is not None else count * dim.size
    return count


def product(outer: Shape, dims: Shape) -> Dim:
    """The dim that flattening `dims` gives below the dims `outer`: ragged if any of them is (absorption).

    >>> print(product((static(2),), (static(2), ragged("r", 9))))
    flatten(2,r~)~
    """
    if not outer or not any(dim.is_ragged for dim in dims):
        return dynamic(cardinality(dims))
    others = [dim for dim in dims if dim.size.constant != 1]
    if len(others) == 1:
        return others[0]
    name = f"flatten({','.join(map(str, dims))})"
    return ragged(name, cardinality(outer + dims))


def chunked(dim: Dim, chunk: int) -> Dim:
    """The number of chunks of `chunk` in a dim, the last one padded.

    >>> print(chunked(dynamic("n"), 16))
    ceil((n)/16)
    """
    if dim.is_ragged:
        name = f"chunks({dim},{chunk})"
        return ragged(name, symbol(f"total({name})"))
    return dynamic(ceil_div(dim.size, chunk))


def one_if_any(dim: Dim) -> Dim:
    """1 if the dim is not empty, else 0.

    >>> print(one_if_any(static(5)), one_if_any(dynamic("n")))
    1 [n > 0]
    """
    return dynamic(positive(dim.size))


def total_over(shapes: Shape, count: int, parts: int) -> Shape:
    """The dims of `count` replicated streams after they are joined into `parts` streams.

    Outer dims add up; an inner ragged dim keeps its name and its totals add up; inner regular dims must be equal
    in all copies, which `joinable` checks.

    >>> print(*total_over((dynamic(symbol("n", 8)), static(4)), 8, 1))
    sum_i(n[i]) 4
    """
    outer = shapes[0]
    if outer.is_ragged:
        raise ValueError("the outermost dim of a stream is never ragged")
    inner = (d if d.total is None else ragged(d.name, total(d.total, count, parts)) for d in shapes[1:])
    return dynamic(total(outer.size, count, parts)), *inner


def joinable(shape: Shape) -> bool:
    """Whether copies of this shape can be joined: no inner regular dim differs between copies.

    >>> joinable((dynamic(symbol("n", 2)), static(3)))
    True
    """
    return not any(dim.size.indexed for dim in shape[1:] if not dim.is_ragged)


def selected_part(shape: Shape, name: str, copies: int) -> Shape:
    """Inner dims of the groups that a selector named `name` sends to each of `copies` targets.

    >>> print(*selected_part((ragged("r", 9), static(3)), "routing", 4))
    r@routing~ 3
    """
    fresh = {dim: f"{dim.name}@{name}" for dim in shape if dim.is_ragged}
    return tuple(ragged(fresh[d], symbol(f"total({fresh[d]})", copies)) if d in fresh else d for d in shape)


def stack_shapes(shapes: list[Shape], copies: int = 1) -> Shape:
    """The shape of several streams seen as the interleaved copies of one.

    >>> print(*stack_shapes([(dynamic("a"),), (dynamic("b"),)]))
    (a, b)[i]
    """
    stacked: list[Dim] = []
    for position, dims in enumerate(zip(*shapes, strict=True)):
        if any(dim.is_ragged for dim in dims):
            name = "|".join(dict.fromkeys(dim.name or str(dim) for dim in dims))
            sums = [cardinality(shape[: position + 1]) for shape in shapes]
            stacked.append(ragged(name, concatenate(sums, copies)))
        else:
            stacked.append(dynamic(concatenate([dim.size for dim in dims], copies)))
    return tuple(stacked)


def pick_shape(shape: Shape, index: int, step: int, copies: int = 1) -> Shape:
    """The shape of every `step`-th copy of a replicated stream.

    >>> print(*pick_shape((dynamic(symbol("n", 2)),), 1, 2))
    (n[i])[1::2]
    """
    return tuple(
        dynamic(pick(dim.size, index, step, copies))
        if dim.total is None
        else ragged(f"{dim.name}[{index}]", pick(dim.total, index, step, copies))
        for dim in shape
    )


def shape_text(shape: Shape) -> str:
    """A shape as a user writes it.

    >>> shape_text((static(2), dynamic("n")))
    '[2, n]'
    """
    return "[" + ", ".join(map(str, shape)) + "]"
