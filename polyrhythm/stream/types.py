"""Element types of streams, and the values that flow at run time.

A *type* says what an element is when the program is built: a tile, a dynamic tile, a handle to an on-chip buffer,
a selector, or a tuple of those. A *value* is what a token carries when the program runs. In timing mode a tile
value has a shape and no data, so one engine serves both modes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from polyrhythm.stream.dims import Shape, shape_text
from polyrhythm.stream.expr import Expr, ExprLike, as_expr


@dataclass(frozen=True)
class DataType:
    """A scalar type: its name, its bytes on the accelerator, and the NumPy type that stands for it.

    >>> BF16.nbytes, BF16.numpy
    (2, 'float32')
    """

    name: str
    nbytes: int
    numpy: str


F32 = DataType("f32", 4, "float32")
F64 = DataType("f64", 8, "float64")
F16 = DataType("f16", 2, "float16")
BF16 = DataType("bf16", 2, "float32")
U32 = DataType("u32", 4, "uint32")
U64 = DataType("u64", 8, "uint64")
BOOL = DataType("bool", 1, "bool")


class _Matrix:
    """What tiles have in common."""

    rows: ExprLike
    cols: ExprLike
    dtype: DataType

    @property
    def nbytes(self) -> Expr:
        """Bytes of one element."""
        return as_expr(self.rows) * self.cols * self.dtype.nbytes

    def __str__(self) -> str:
        return f"tile[{self.rows},{self.cols}] {self.dtype.name}"


@dataclass(frozen=True)
class Tile(_Matrix):
    """A matrix of fixed shape.

    >>> Tile(16, 64, BF16).nbytes.constant
    2048
    """

    rows: int
    cols: int
    dtype: DataType = F32


@dataclass(frozen=True)
class DynTile(_Matrix):
    """A matrix one of whose sides is an expression.

    >>> from polyrhythm.stream.expr import symbol
    >>> print(DynTile(symbol("n"), as_expr(64), BF16).nbytes)
    128*n
    """

    rows: Expr
    cols: Expr
    dtype: DataType = F32


MatrixType = Tile | DynTile


def tile_type(rows: ExprLike, cols: ExprLike, dtype: DataType) -> MatrixType:
    """A Tile when both sides are numbers, else a DynTile.

    >>> tile_type(as_expr(4), 2, F32) == Tile(4, 2, F32)
    True
    """
    height, width = as_expr(rows), as_expr(cols)
    if height.constant is not None and width.constant is not None:
        return Tile(height.constant, width.constant, dtype)
    return DynTile(height, width, dtype)


@dataclass(frozen=True)
class Buffer:
    """A read-only handle to an on-chip tensor of elements; only its outermost dim may be dynamic or ragged.

    >>> from polyrhythm.stream.dims import static
    >>> Buffer(Tile(2, 2, F32), (static(3),)).nbytes.constant
    48
    """

    element: MatrixType
    shape: Shape

    @property
    def nbytes(self) -> Expr:
        """Bytes of the buffered tensor; a ragged dim counts with its largest size."""
        return prod((dim.size for dim in self.shape), start=self.element.nbytes)

    def __str__(self) -> str:
        return f"buffer{shape_text(self.shape)} of {self.element}"


@dataclass(frozen=True)
class Selector:
    """Which of `targets` streams a group goes to. `hot` is how many are selected, None when it varies.

    `name` names the counts: two Partitions by selectors of one name have equal outer dims.

    >>> Selector("routing", 8, 2).nbytes.constant
    8
    """

    name: str
    targets: int
    hot: int | None = None

    @property
    def nbytes(self) -> Expr:
        """Bytes of a multi-hot vector, one byte a target."""
        return as_expr(self.targets)

    def __str__(self) -> str:
        return f"selector {self.name} of {self.targets}"


@dataclass(frozen=True)
class Tuple:
    """Several elements that travel together.

    >>> Tuple((Tile(1, 1, F32), Tile(1, 2, F32))).nbytes.constant
    12
    """

    parts: tuple[Element, ...]

    @property
    def nbytes(self) -> Expr:
        """Bytes of all parts."""
        return sum((part.nbytes for part in self.parts), as_expr(0))

    def __str__(self) -> str:
        return "(" + ", ".join(map(str, self.parts)) + ")"


Element = Tile | DynTile | Buffer | Selector | Tuple


@dataclass(slots=True, eq=False, repr=False)
class TileValue:
    """A tile at run time.

    `valid` counts the rows that are not padding, all of them by default. `from_memory` says that the consumer must pay
    an on-chip read. `data` is None in timing mode.

    >>> TileValue(2, 3, 24, data=np.zeros((2, 3))).valid
    2
    """

    rows: int
    cols: int
    nbytes: int
    valid: int = None  # type: ignore[assignment]
    from_memory: bool = False
    data: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.valid is None:
            self.valid = self.rows

    def __repr__(self) -> str:
        return f"TileValue({self.rows}x{self.cols}, {'no data' if self.data is None else self.data.tolist()})"


@dataclass(slots=True, eq=False, repr=False)
class SelectorValue:
    """A selector at run time: the targets, in increasing order.

    >>> SelectorValue((0, 3)).targets
    (0, 3)
    """

    targets: tuple[int, ...]
    nbytes: int = 0
    from_memory: bool = False

    def __repr__(self) -> str:
        return f"SelectorValue{self.targets}"


@dataclass(slots=True, eq=False)
class BufferValue:
    """A buffer at run time: the tokens of one group.

    >>> BufferValue([]).nbytes
    0
    """

    tokens: list[tuple[Any, int]]
    from_memory: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the buffered tiles."""
        return sum(value.nbytes for value, _ in self.tokens if isinstance(value, TileValue))
