"""Random expressions over dims in any order: inputs over some of them, folds, ranges as axes, reads of other steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import polyrhythm as pr

if TYPE_CHECKING:
    from tests.stream.schedules import _Maker

UNARY: tuple[Callable[[pr.Tensor], pr.Tensor], ...] = (pr.tanh, pr.exp, lambda z: -z, lambda z: z * 0.5)
BINARY: tuple[Callable[[pr.Tensor, pr.Tensor], pr.Tensor], ...] = (pr.maximum, lambda a, b: a + b, lambda a, b: a * b)
ALONG: tuple[Callable[[pr.Tensor], pr.Tensor], ...] = (
    lambda z: pr.sort(z, 0), lambda z: pr.cumsum(z, 0), lambda z: pr.softmax(z, 0), lambda z: z * 1.0, lambda z: z
)  # fmt: skip


def expression(maker: _Maker) -> pr.Tensor:
    """An expression over two or three dims, which often have the same size."""
    draw = maker.draw
    names = "bmn"[: draw.choice([2, 2, 3])]
    size = draw.choice([3, 4, 4, 0, 0])
    for name in names:
        maker.dim(name, size or draw.choice([1, 2, 3, 4]))
    return _tree(maker, names, draw.randint(1, 4))


def _leaf(maker: _Maker, names: str) -> pr.Tensor:
    draw = maker.draw
    own = tuple(draw.sample(names, draw.randint(1, len(names))))
    shape = draw.choice([(), (), (2,), (3, 2)])
    return maker.floats(f"x_{''.join(own)}{len(shape)}{draw.choice('pq')}", shape, own)


def _tree(maker: _Maker, names: str, depth: int) -> pr.Tensor:
    draw = maker.draw
    if depth == 0:
        return _leaf(maker, names)
    found = _tree(maker, names, depth - 1)
    maker.between.append(found)
    kind = draw.choice(["unary", "binary", "binary", "fold", "fold", "along", "along", "step", "product"])
    maker.story.append(kind)
    if kind == "unary":
        return draw.choice(UNARY)(found * 0.5)
    if kind == "binary":
        other = _tree(maker, names, draw.randint(0, depth - 1))
        while other.shape and list(map(str, other.shape)) != list(map(str, found.shape)):
            other = other.sum(0)
        return draw.choice(BINARY)(found, other)
    own = [str(dim) for dim in found.dims if str(dim) in names]
    if not own:
        return found
    name = draw.choice(own)
    rows = found[maker.whole(name)]
    if kind == "step":
        t, T, _ = maker.dims[name]
        return found[{t: draw.choice([pr.max(t - 1, 0), T - 1 - t, pr.min(t + 1, T - 1)])}]
    if kind == "along" and not found.shape:
        return draw.choice(ALONG)(rows)
    other = _leaf(maker, names)
    if kind == "product" and not found.shape and len(other.shape) < 2 and name in map(str, other.dims):
        return (pr.matmul if other.shape else pr.dot)(rows, other[maker.whole(name)])
    return getattr(rows, draw.choice(["sum", "max", "min", "mean"]))(0)
