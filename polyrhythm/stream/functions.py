"""The function table: what Map and Accum can apply to tiles.

A record says everything the rest needs: a NumPy implementation for functional mode, a shape rule and a FLOP rule
that work on numbers and on symbolic expressions alike, so the same record drives the run, the type check and the
metrics. Elementwise functions are those of the compiler's op table, and the lowering makes its records from that table
too; no operator knows a function by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.stream.types import BOOL, F32, DataType

Side = Any  # an int at run time, an Expr when the program is built
TileShape = tuple[Side, Side]


@dataclass(frozen=True)
class Function:
    """An element-wise function of one or two tiles, for Map.

    `cycles` is a fixed minimum time, for functions that move data instead of computing. `stationary` is the index of
    the operand that a matrix unit keeps (its weights); None for other functions. `valid_rows` says how many rows of the
    result are no padding where that is not the number of the first operand. `check` says whether the operands fit.

    >>> FUNCTIONS["matmul"].shape((4, 8), (8, 2)), FUNCTIONS["matmul"].flops((4, 8), (8, 2))
    ((4, 2), 128)
    """

    name: str
    compute: Callable[..., np.ndarray]
    shape: Callable[..., TileShape]
    flops: Callable[..., Side]
    dtype: DataType | None = F32
    cycles: int = 0
    stationary: int | None = None
    check: Callable[..., bool] | None = None
    valid_rows: Callable[..., int] | None = None


@dataclass(frozen=True)
class Reduction:
    """A state update over the elements of a group, for Accum and Scan.

    `start` makes the state from the shapes of the elements, `update` folds one element (or one pair) into it.
    `grows` says that rows of the state add up, so that the type of the result depends on the size of the group.
    `cycles` is a fixed time at the end of a group, for reductions that only signal. Rows of the state are padding
    where those of the operand `valid_from` are.

    >>> REDUCTIONS["add"].update(np.ones((1, 2)), np.ones((1, 2))).tolist()
    [[2.0, 2.0]]
    """

    name: str
    start: Callable[..., np.ndarray]
    update: Callable[..., np.ndarray]
    shape: Callable[..., TileShape]
    flops: Callable[..., Side]
    dtype: DataType | None = F32
    grows: bool = False
    cycles: int = 0
    stationary: int | None = None
    valid_from: int = 0


def _no_flops(*shapes: TileShape) -> Side:
    return 0


def _elements(shape: TileShape) -> Side:
    return shape[0] * shape[1]


def _first(*shapes: TileShape) -> TileShape:
    return shapes[0]


def _broadcast(left: TileShape, right: TileShape) -> TileShape:
    """The shape of an element-wise result; a side of 1 stretches."""
    (left_rows, left_cols), (right_rows, right_cols) = left, right
    return right_rows if _is_one(left_rows) else left_rows, right_cols if _is_one(left_cols) else left_cols


def _is_one(side: Side) -> bool:
    return getattr(side, "constant", side) == 1


def _fits(left: TileShape, right: TileShape) -> bool:
    return all(a == b or _is_one(a) or _is_one(b) for a, b in zip(left, right, strict=True))


def _binary(name: str, op: str) -> Function:
    """An operation of the op table on two tiles."""
    return Function(name, TABLE[op].numpy, _broadcast, lambda a, b: _elements(_broadcast(a, b)), check=_fits)


def _unary(name: str, op: str, flops_each: int) -> Function:
    """An operation of the op table on one tile."""
    return Function(name, TABLE[op].numpy, _first, lambda a: flops_each * _elements(a))


def _matmul_flops(a: TileShape, b: TileShape) -> Side:
    return 2 * a[0] * a[1] * b[1]


_TABLE = (
    Function(
        "matmul",
        lambda a, b: a @ b,
        lambda a, b: (a[0], b[1]),
        _matmul_flops,
        stationary=1,
        check=lambda a, b: a[1] == b[0],
    ),
    _binary("add", "add"),
    _binary("subtract", "sub"),
    _binary("multiply", "mul"),
    _binary("divide", "div"),
    _binary("maximum", "maximum"),
    _unary("negate", "neg", 1),
    _unary("exp", "exp", 4),
    _unary("tanh", "tanh", 4),
    _unary("sqrt", "sqrt", 4),
    Function("relu", lambda a: np.maximum(a, 0), _first, _elements),
    Function("silu", lambda a: a / (1 + np.exp(-a)), _first, lambda a: 8 * _elements(a)),
    Function("row_sum", lambda a: a.sum(1, keepdims=True), lambda a: (a[0], 1), _elements),
    Function("row_max", lambda a: a.max(1, keepdims=True), lambda a: (a[0], 1), _elements),
)

FUNCTIONS: dict[str, Function] = {function.name: function for function in _TABLE}


_REDUCTION_TABLE = (
    Reduction("add", lambda a: np.zeros(a), np.add, _first, _elements),
    Reduction("maximum", lambda a: np.full(a, -np.inf), np.maximum, _first, _elements),
    Reduction(
        "matmul",
        lambda a, b: np.zeros((a[0], b[1])),
        lambda state, a, b: state + a @ b,
        lambda a, b: (a[0], b[1]),
        _matmul_flops,
        stationary=1,
    ),
    Reduction(
        "all_read",
        lambda a: np.ones((1, 1), bool),
        lambda state, a: state,
        lambda a: (1, 1),
        _no_flops,
        dtype=BOOL,
        cycles=1,
    ),
    Reduction(
        "pack_rows",
        lambda a: np.zeros((0, a[1])),
        lambda state, a: np.vstack([state, a]),
        _first,
        _no_flops,
        grows=True,
    ),
)

REDUCTIONS: dict[str, Reduction] = {reduction.name: reduction for reduction in _REDUCTION_TABLE}
