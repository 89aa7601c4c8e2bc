"""Indexing by data. Indices are clamped to the axis when reading; what lies outside is not written."""

from __future__ import annotations

from polyrhythm.language.functions.arithmetic import cast, equal
from polyrhythm.language.functions.shapes import broadcast_to, unsqueeze
from polyrhythm.language.functions.support import (
    DTypeLike,
    Length,
    TensorLike,
    as_integers,
    as_tensor,
    one_axis,
    promoted,
)
from polyrhythm.language.index import index_of, term_of
from polyrhythm.language.tensor import Tensor, apply

__all__ = ["gather", "one_hot", "scatter_add", "scatter_add_along", "take"]


def take(x: TensorLike, indices: TensorLike, axis: int) -> Tensor:
    """The positions `indices` along an axis, whose place the axes of `indices` take.

    >>> import polyrhythm as pr
    >>> table = pr.constant([[1.0, 2.0], [3.0, 4.0]])
    >>> pr.evaluate(pr.take(table, pr.constant([1, 0, 1]), axis=0))
    array([[3., 4.],
           [1., 2.],
           [3., 4.]], dtype=float32)
    """
    operand = as_tensor(x)
    return apply("take", operand, as_integers(indices, "positions"), axis=one_axis(operand, axis))


def gather(x: TensorLike, indices: TensorLike, axis: int) -> Tensor:
    """For each element of `indices` the element of x at that position along an axis, and at its own along the others.

    >>> import polyrhythm as pr
    >>> x = pr.constant([[1.0, 2.0], [3.0, 4.0]])
    >>> pr.evaluate(pr.gather(x, pr.constant([[1], [0]]), axis=1))
    array([[2.],
           [3.]], dtype=float32)
    """
    operand = as_tensor(x)
    return apply("take_along", operand, as_integers(indices, "positions"), axis=one_axis(operand, axis))


def scatter_add(x: TensorLike, indices: TensorLike, updates: TensorLike, axis: int = 0) -> Tensor:
    """x with updates added at the positions `indices` along an axis: what `take` reads, this adds to.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.scatter_add(pr.zeros(3), pr.constant([0, 2, 0]), pr.constant([1.0, 2.0, 4.0])))
    array([5., 0., 2.], dtype=float32)
    """
    (base, added), _ = promoted(x, updates)
    place, chosen = one_axis(base, axis), as_integers(indices, "positions")
    shape = (*base.type.shape[:place], *chosen.type.shape, *base.type.shape[place + 1 :])
    full = broadcast_to(added, [index_of(length) for length in shape])
    return apply("scatter_add", base, chosen, full, axis=place)


def scatter_add_along(x: TensorLike, indices: TensorLike, updates: TensorLike, axis: int) -> Tensor:
    """x with each update added at its index along an axis, and at its own place along the others: what `gather` reads.

    >>> import polyrhythm as pr
    >>> x = pr.zeros((2, 2))
    >>> pr.evaluate(pr.scatter_add_along(x, pr.constant([[1], [0]]), pr.constant([[2.0], [3.0]]), axis=1))
    array([[0., 2.],
           [3., 0.]], dtype=float32)
    """
    (base, added), _ = promoted(x, updates)
    return apply("scatter_along", base, as_integers(indices, "positions"), added, axis=one_axis(base, axis))


def one_hot(indices: TensorLike, classes: Length, dtype: DTypeLike = "float32", axis: int = -1) -> Tensor:
    """1 at the position of each index along a new axis, 0 elsewhere; all 0 for an index outside.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.one_hot(pr.constant([0, 2]), 3))
    array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    chosen = as_integers(indices, "positions")
    place = one_axis(chosen, axis, chosen.rank + 1)
    positions = apply("iota", length=term_of(classes))
    spread = unsqueeze(positions, tuple(range(1, chosen.rank - place + 1))) if place < chosen.rank else positions
    return cast(equal(unsqueeze(chosen, place), spread), dtype)
