"""The function table: what Map and Accum can apply to tiles.

A record says everything the rest needs: a NumPy implementation for functional mode, a shape rule and a FLOP rule
that work on numbers and on symbolic expressions alike, so the same record drives the run, the type check and the
metrics. The compiler's own op table can be bound by adding records; no operator knows a function by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyrhythm.stream.types import BOOL, F32, DataType

Side = Any  # an int at run time, an Expr when the program is built
TileShape = tuple[Side, Side]


@dataclass(frozen=True)
class Function:
    """An element-wise function of one or two tiles, for Map.

    `cycles` is a fixed minimum time, for functions that move data instead of computing. `stationary` is the index
    of the operand that a matrix unit keeps (its weights); None for other functions. `sees_padding` functions get
    the number of valid rows of their last operand as an extra argument; `valid_rows` says how many rows of the result
    are valid where that is not the number of the first operand. `check` says whether the operands fit.

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
    sees_padding: bool = False
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


def _binary(name: str, compute: Callable[..., np.ndarray]) -> Function:
    return Function(name, compute, _broadcast, lambda a, b: _elements(_broadcast(a, b)), check=_fits)


def _unary(name: str, compute: Callable[..., np.ndarray], flops_each: int) -> Function:
    return Function(name, compute, _first, lambda a: flops_each * _elements(a))


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1.0 + np.exp(-x))


def _score(query: np.ndarray, keys: np.ndarray, valid: int) -> np.ndarray:
    scores = query @ keys.T
    scores[:, valid:] = -np.inf
    return scores


def _append_row(tile: np.ndarray, row_and_position: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    row, position = row_and_position
    result = tile.copy()
    result[int(position[0, 0])] = row[0]
    return result


def _matmul_flops(a: TileShape, b: TileShape) -> Side:
    return 2 * a[0] * a[1] * b[1]


def _score_flops(a: TileShape, b: TileShape) -> Side:
    return 2 * a[0] * a[1] * b[0]


_TABLE = (
    Function(
        "matmul",
        lambda a, b: a @ b,
        lambda a, b: (a[0], b[1]),
        _matmul_flops,
        stationary=1,
        check=lambda a, b: a[1] == b[0],
    ),
    Function(
        "score",
        _score,
        lambda a, b: (a[0], b[0]),
        _score_flops,
        stationary=1,
        sees_padding=True,
        check=lambda a, b: a[1] == b[1],
    ),
    _binary("add", np.add),
    _binary("subtract", np.subtract),
    _binary("multiply", np.multiply),
    _binary("divide", np.divide),
    _binary("maximum", np.maximum),
    _unary("negate", np.negative, 1),
    _unary("silu", _silu, 8),
    _unary("exp", np.exp, 4),
    Function("row_sum", lambda a: a.sum(1, keepdims=True), lambda a: (a[0], 1), _elements),
    Function(
        "append_row",
        _append_row,
        _first,
        _no_flops,
        dtype=None,
        cycles=1,
        valid_rows=lambda tile, row_and_position: int(row_and_position[1].data[0, 0]) + 1,
    ),
    Function(
        "softmax_finish",
        lambda s: s[:, :-2] / s[:, -1:],
        lambda s: (s[0], s[1] - 2),
        lambda s: s[0] * (s[1] - 2),
    ),
)

FUNCTIONS: dict[str, Function] = {function.name: function for function in _TABLE}


def _softmax_start(scores: TileShape, values: TileShape) -> np.ndarray:
    state = np.zeros((scores[0], values[1] + 2))
    state[:, -2] = -np.inf
    return state


def _softmax_update(state: np.ndarray, scores: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Online softmax: columns are the weighted sum, then the running maximum, then the running sum."""
    old_maximum = state[:, -2:-1]
    maximum = np.maximum(old_maximum, scores.max(1, keepdims=True))
    correction = np.exp(old_maximum - maximum)
    weights = np.exp(scores - maximum)
    weighted = state[:, :-2] * correction + weights @ values
    return np.hstack([weighted, maximum, state[:, -1:] * correction + weights.sum(1, keepdims=True)])


def _softmax_flops(scores: TileShape, values: TileShape) -> Side:
    """The product with the values; exponentials, running maximum and rescaling beside it."""
    return _matmul_flops(scores, values) + 7 * _elements(scores) + 2 * scores[0] * values[1] + 6 * scores[0]


_REDUCTION_TABLE = (
    Reduction("add", lambda a: np.zeros(a), np.add, _first, _elements),
    Reduction("maximum", lambda a: np.full(a, -np.inf), np.maximum, _first, _elements),
    Reduction(
        "row_sum",
        lambda a: np.zeros((a[0], 1)),
        lambda state, a: state + a.sum(1, keepdims=True),
        lambda a: (a[0], 1),
        _elements,
    ),
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
    Reduction(
        "softmax",
        _softmax_start,
        _softmax_update,
        lambda a, b: (a[0], b[1] + 2),
        _softmax_flops,
        stationary=1,
    ),
)

REDUCTIONS: dict[str, Reduction] = {reduction.name: reduction for reduction in _REDUCTION_TABLE}
