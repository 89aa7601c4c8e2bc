"""`pr.shard`: where the axes of values inside a program lie, for programs that are compiled with a mesh."""

from __future__ import annotations

from collections.abc import Sequence

from polyrhythm.errors import ShapeError
from polyrhythm.language.functions.support import TensorLike, as_tensor
from polyrhythm.language.tensor import Tensor, apply


def shard(x: TensorLike, axis: int, over: str | Sequence[str]) -> Tensor:
    """The same value, with an axis of its shape spread over an axis of the mesh, or several.

    It is for axes that no dim and no input names, such as those a program makes itself. It never changes a value, and
    without a mesh says nothing.

    >>> import polyrhythm as pr
    >>> x = pr.shard(pr.zeros((8, 3)), 0, "data")
    >>> pr.evaluate(x.sum())
    array(0., dtype=float32)
    """
    tensor = as_tensor(x)
    rank = len(tensor.shape)
    if not -rank <= axis < rank:
        raise ShapeError(f"shard: there is no axis {axis} in a shape of {rank} axes", fix="name an axis of the shape")
    axes = (over,) if isinstance(over, str) else tuple(over)
    return apply("shard", tensor, axis=axis if axis < 0 else axis - rank, over=axes)
